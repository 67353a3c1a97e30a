# SPDX-License-Identifier: Apache-2.0
"""The ways of exchanging one bucket: payloads of a codec, low-rank factors, rows, or all as it is.

Error feedback adds what one step could not send to the next step's gradient. With a codec, the
residual lives behind the transform, which is linear: no inverse is needed to update it. So does
momentum, where the exchange has it in place of the optimizer. Source: Seide et al., "1-Bit
Stochastic Gradient Descent", INTERSPEECH 2014; for compression in general Karimireddy et al.,
"Error Feedback Fixes SignSGD", ICML 2019 (arXiv 1901.09847).

An exchange is made for one bucket of a plan and holds that bucket's state. Called with this
worker's gradients, it returns their sums over the workers, and what to store if the step is kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tf_gradcomp import plan as plan_lib
from tf_gradcomp import state
from tf_gradcomp.codecs.base import Codec, Draw, Layout, LowRank, Transform, VariableShape
from tf_gradcomp.compression import Compression
from tf_gradcomp.controllers import view_choice
from tf_gradcomp.exchange_state import OF_WORKERS, RESIDUAL, Share
from tf_gradcomp.feedback.momentum import GlobalMomentum, LocalMomentum, Momentum, Velocities
from tf_gradcomp.feedback.rate_correction import RateCorrection
from tf_gradcomp.transports import TRANSPORTS
from tf_gradcomp.transports.base import Collectives, cut, join
from tf_gradcomp.transports.dense import Dense
from tf_gradcomp.transports.row_sparse import RowSparse


class Reduced(NamedTuple):
    """The outcome of one bucket's exchange.

    Attributes:
      gradients: the sums, ``tf.IndexedSlices`` from a row-sparse exchange.
      finite: makes a bool scalar: whether no worker's gradient held an Inf or NaN, and no sum
        became one when cast to the gradient's type. Only called if it is needed.
      updates: the state to store if the step is kept.
    """

    gradients: list[tf.Tensor | tf.IndexedSlices]
    finite: Callable[[], tf.Tensor]
    updates: Sequence[state.Update] = ()


class CompressedExchange:
    """Compresses, exchanges and decompresses one bucket; holds its state.

    Attributes:
      bucket: which gradients it exchanges.
      residuals: what payloads lost, to be added to what the next ones say. First that of the
        gradients, in the shape of the bucket's coefficients, then that of the sums, if the
        transport encodes these. Empty without error feedback.
    """

    def __init__(
        self, plan: plan_lib.Plan, number: int, codec: Codec, collectives: Collectives
    ) -> None:
        self.bucket = plan.buckets[number]
        self._codec = codec
        self._variables = [plan.variables[index] for index in self.bucket.indices]
        self._transform = self._codec.transform.fit(
            [VariableShape(variable.shape, variable.hidden) for variable in self._variables]
        )
        self._layout = self._transform.layout(self.bucket.num_elements)
        self._collectives = collectives
        self._transport = TRANSPORTS[self.bucket.transport](collectives)
        num_shards = self._transport.num_shards(collectives.num_workers)
        self._shard_layout = self._layout.shard(num_shards)
        is_adaptive = any(len(names) > 1 for names in self._transform.candidates)
        self._choice = (
            state.host_zeros((len(self._variables),), f"view_{number}") if is_adaptive else None
        )
        shapes = self._transport.residual_shapes(self._layout.shape, self._shard_layout.shape)
        compression = _compression(self.bucket)
        self._density_schedule = compression.density_schedule
        self.residuals = _residuals(compression, number, shapes, collectives)
        self._momentum = _momentum(compression, self._layout.shape, collectives)
        self._rate = _rate_correction(compression)

    @property
    def memory(self) -> dict[str, tf.Variable]:
        """What is remembered from step to step, by name."""
        views = {} if self._choice is None else {"views": self._choice}
        momentum = {} if self._momentum is None else {self._momentum.name: self._momentum.variable}
        return _by_name(RESIDUAL, self.residuals) | views | momentum | _memory_of(self._rate)

    def restore(self, shares: Sequence[Share]) -> None:
        """Goes on from what other exchanges remembered, of which each is given to one worker.

        The residuals of all workers add up to what they did there.
        """
        residuals = _by_name(RESIDUAL, self.residuals)
        _restore({k: v for k, v in self.memory.items() if k not in residuals}, shares)
        if not residuals:
            return
        (share, *others) = shares
        here = (self._collectives.num_workers, self.bucket.transport)
        if not others and (share.num_workers, share.transport) == here:
            _restore(residuals, shares)
            return
        merged = list(map(_merged_residual, shares))
        self.residuals[0].assign(tf.add_n(merged))
        for variable in self.residuals[1:]:
            variable.assign(tf.zeros_like(variable))

    def left_over(self) -> list[tf.Tensor]:
        """Returns what payloads lost of each gradient, as vectors; nothing without error feedback.

        They say the same as the residuals, in elements, and with ``lr_correction`` in units of
        updates.
        """
        if not self.residuals:
            return []
        residuals = [residual.read_value() for residual in self.residuals]
        left = self._transport.merge(residuals, self._collectives.worker_index)
        elements = self._current_transform().inverse(left, self.bucket.num_elements)
        elements = _in_updates(elements, self._rate)
        return _split(elements, [(variable.num_elements,) for variable in self._variables])

    def set_left_over(self, parts: Sequence[tf.Tensor]) -> None:
        """Sets the residuals to what ``left_over`` is to return."""
        first, *others = self.residuals
        elements = _in_gradients(_pack(parts, tf.float32), self._rate)
        first.assign(self._current_transform().forward(elements))
        for residual in others:
            residual.assign(tf.zeros_like(residual))

    def views(self) -> dict[str, str]:
        """Returns the view in which each variable is sparsified, if the codec has views.

        Reads the state, so not while a graph is traced.
        """
        candidates = self._transform.candidates
        choice = [0] * len(candidates) if self._choice is None else self._choice.numpy()
        return {
            variable.name: names[index]
            for variable, names, index in zip(self._variables, candidates, choice, strict=False)
        }

    def __call__(
        self, gradients: Sequence[tf.Tensor], draw: Draw, learning_rate: tf.Tensor | None = None
    ) -> Reduced:
        packed = _pack(gradients, tf.float32)
        residuals, updates = _repaid(self.residuals, self._rate, learning_rate)
        transform = self._current_transform()
        codec = self._codec_at(draw.step)
        coder = _Coder(codec, self._shard_layout, draw, self._collectives.num_workers)
        meant = transform.forward(packed)
        if self._momentum is not None:
            meant = self._momentum.add(meant)
        summed = self._transport.sum(coder, meant, residuals)
        bucket = transform.inverse(summed.total, self.bucket.num_elements)
        if not self._codec.lossless:
            # Bits of a payload that is not finite say nothing about any element of the bucket.
            (bucket,) = _nan_unless(summed.finite, [bucket])
        sums = _unpack(bucket, gradients)
        narrow = [total for total in sums if total.dtype.size < tf.float32.size]
        lost, momentum = list(summed.residuals), []
        if self._momentum is not None:
            momentum = [self._momentum.following(meant, summed.total, coder.without_sent)]
        if self._choice is not None:
            choice, lost, momentum = self._choose_views(
                self._choice, packed, lost, momentum, draw.step
            )
            updates.append((self._choice, choice))
        updates.extend(zip(self.residuals, lost, strict=True))
        if self._momentum is not None:
            updates.append((self._momentum.variable, *momentum))
        return Reduced(sums, lambda: summed.finite & all_finite(narrow), updates)

    def _codec_at(self, step: tf.Tensor) -> Codec:
        """Returns the codec with the density of this exchange."""
        if self._density_schedule is None:
            return self._codec
        with tf.device("CPU:0"):  # as all that becomes a number of items
            return self._codec.at(self._density_schedule(step))

    def _current_transform(self) -> Transform:
        """Returns the transform that the residuals are behind."""
        if self._choice is None:
            return self._transform
        return self._transform.at(self._choice.read_value())

    def _choose_views(
        self,
        choice: tf.Variable,
        packed: tf.Tensor,
        residuals: list[tf.Tensor],
        momentum: list[tf.Tensor],
        step: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Returns the views for the next step, and residuals and momentum as seen in them.

        Not for this step: to compare takes a message, for which encoding would have to wait.
        """
        old = choice.read_value()

        def compare() -> tf.Tensor:
            density = self._codec.density(self._layout)
            energies = self._transform.kept_energy(packed, density)
            return view_choice.choose(self._collectives.all_reduce(energies), old)

        new = tf.cond(view_choice.is_due(step), compare, lambda: tf.identity(old))
        if not residuals:
            return new, [], []

        def seen(coefficients: tf.Tensor) -> tf.Tensor:
            elements = self._transform.at(old).inverse(coefficients, self.bucket.num_elements)
            return self._transform.at(new).forward(elements)

        def move() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            left = self._transport.merge(residuals, self._collectives.worker_index)
            return [seen(left), *map(tf.zeros_like, residuals[1:])], list(map(seen, momentum))

        def stay() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            return list(map(tf.identity, residuals)), list(map(tf.identity, momentum))

        return new, *tf.cond(tf.reduce_all(tf.equal(new, old)), stay, move)


class _Coder:
    """A codec at work on the shards of one bucket, in one exchange; ``transports.base.Coder``."""

    def __init__(self, codec: Codec, layout: Layout, draw: Draw, num_workers: int) -> None:
        self.shape = layout.shape
        self.lossless = codec.lossless
        self.addable = codec.addable
        self._codec = codec
        self._layout = layout
        self._draw = draw
        self._num_workers = num_workers
        self._sent: dict[int, tf.Tensor | None] = {}  # positions, by shard

    def encode(
        self, shard: int, coefficients: tf.Tensor, residual: tf.Tensor | None, second: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        draw = self._draw._replace(shard=shard)
        if second:
            # Other random numbers, but for positions: a sum has no other items than its parts.
            draw = draw._replace(worker=draw.worker + self._num_workers)
        if second and residual is None and self._drops_items():
            # Random-k scales up what it keeps unless there is a residual: once is enough.
            zeros = tf.zeros(self.shape)
            return self._codec.encode(coefficients, zeros, self._layout, draw).payload, None
        encoded = self._codec.encode(coefficients, residual, self._layout, draw)
        if not second:
            self._sent[shard] = encoded.positions
        return encoded.payload, encoded.residual

    def without_sent(self, coefficients: tf.Tensor) -> tf.Tensor:
        """Returns the bucket's coefficients with zeros for the items that this worker has sent."""
        shards = cut(coefficients, len(self._sent), self.shape)
        unsent = [
            self._codec.without(part, self._sent[shard], self._layout)
            for shard, part in enumerate(shards)
        ]
        return join(unsent, coefficients)

    def _drops_items(self) -> bool:
        """Whether the payload has no room for all items; if nobody knows before, it may."""
        density = self._codec.density(self._layout)
        return tf.is_tensor(density) or density < 1

    def decode_sum(self, shard: int, payloads: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        draw = self._draw._replace(shard=shard)
        return self._codec.decode_sum(payloads, self._layout, draw)

    def addends(self, payload: tf.Tensor) -> tf.Tensor:
        return self._codec.addends(payload, self._layout)


class LowRankExchange:
    """Sums one bucket by way of low-rank factors; holds its state.

    The residual is in elements, as packed. Gradients that are no matrices, or too small for
    factors to be smaller, travel with the factors, as they are.

    Attributes:
      bucket: which gradients it exchanges; matrices come first.
      residuals: what the factors lost, one tensor; empty without error feedback.
    """

    def __init__(
        self, plan: plan_lib.Plan, number: int, method: LowRank, collectives: Collectives
    ) -> None:
        bucket = plan.buckets[number]
        matrices = {i: method.matrix_shape(plan.variables[i].shape) for i in bucket.indices}
        indices = sorted(bucket.indices, key=lambda index: matrices[index] is None)
        self.bucket = dataclasses.replace(bucket, indices=tuple(indices))
        shapes = [shape for shape in matrices.values() if shape is not None]
        self._num_matrices = len(shapes)
        self._shapes = [matrices[i] or plan.variables[i].shape for i in indices]
        self._method = method
        self._factors = [
            state.local_zeros(shape, collectives.device, f"factor_{number}")
            for shape in method.factor_shapes(shapes)
        ]
        self._transport = Dense(collectives)
        compression = _compression(bucket)
        self.residuals = _residuals(compression, number, [(bucket.num_elements,)], collectives)
        self._rate = _rate_correction(compression)

    @property
    def memory(self) -> dict[str, tf.Variable]:
        """What is remembered from step to step, by name."""
        factors = _by_name(_FACTOR, self._factors)
        return _by_name(RESIDUAL, self.residuals) | factors | _memory_of(self._rate)

    def restore(self, shares: Sequence[Share]) -> None:
        """Goes on from what other exchanges remembered; see ``CompressedExchange``."""
        _restore(self.memory, shares)

    def left_over(self) -> list[tf.Tensor]:
        """Returns what factors lost of each gradient; see ``CompressedExchange``."""
        if not self.residuals:
            return []
        left = _in_updates(self.residuals[0].read_value(), self._rate)
        return _split(left, [(math.prod(shape),) for shape in self._shapes])

    def set_left_over(self, parts: Sequence[tf.Tensor]) -> None:
        """Sets the residual to what ``left_over`` is to return."""
        (residual,) = self.residuals
        residual.assign(_in_gradients(_pack(parts, tf.float32), self._rate))

    def __call__(
        self, gradients: Sequence[tf.Tensor], draw: Draw, learning_rate: tf.Tensor | None = None
    ) -> Reduced:
        meant = _pack(gradients, tf.float32)
        residuals, updates = _repaid(self.residuals, self._rate, learning_rate)
        for residual in residuals:
            meant += residual
        parts = _split(meant, self._shapes)
        matrices, raw = parts[: self._num_matrices], parts[self._num_matrices :]
        factors = [factor.read_value() for factor in self._factors]
        outcome = self._method.sum(matrices, raw, factors, draw.step, self._sum)
        # Every message is in the new factors, or has left a NaN there if it was not finite.
        messages_finite = all_finite([*outcome.factors, *outcome.raw])
        totals = _nan_unless(messages_finite, [*outcome.totals, *outcome.raw])
        sums = [_like(total, gradient) for total, gradient in zip(totals, gradients, strict=True)]
        updates.extend(zip(self._factors, outcome.factors, strict=True))
        for residual in self.residuals:
            updates.append((residual, meant - _pack([*outcome.sent, *raw], tf.float32)))
        return Reduced(sums, lambda: all_finite(sums), updates)

    def _sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums float32 tensors over the workers in one all-reduce."""
        total = self._transport.sum(_pack(tensors, tf.float32))
        return _split(total, [tensor.shape for tensor in tensors])


class UncompressedExchange:
    """Base of exchanges without compression, which remember momentum at most.

    Attributes:
      bucket: which gradients it exchanges.
    """

    def __init__(self, plan: plan_lib.Plan, number: int, collectives: Collectives) -> None:
        self.bucket = plan.buckets[number]
        self._velocities: Velocities | None = None
        if plan.momentum and tf.as_dtype(self.bucket.dtype).is_floating:
            shapes = [plan.variables[index].shape for index in self.bucket.indices]
            self._velocities = Velocities(plan.momentum, shapes, collectives.device)

    @property
    def memory(self) -> dict[str, tf.Variable]:
        """What is remembered from step to step, by name."""
        velocities = [] if self._velocities is None else self._velocities.variables
        return _by_name(_VELOCITY, velocities)

    def restore(self, shares: Sequence[Share]) -> None:
        """Goes on from what other exchanges remembered; see ``CompressedExchange``."""
        _restore(self.memory, shares)

    def left_over(self) -> list[tf.Tensor]:
        """Returns nothing: nothing is lost."""
        return []

    def set_left_over(self, parts: Sequence[tf.Tensor]) -> None:
        """Does nothing."""

    def _with_momentum(self, sums: list[tf.Tensor | tf.IndexedSlices]) -> Reduced:
        """Returns the outcome of an exchange that has come to these sums."""
        values = [total.values if isinstance(total, tf.IndexedSlices) else total for total in sums]
        if self._velocities is None:
            return Reduced(sums, lambda: all_finite(values))
        added = self._velocities.add(sums)
        gradients = [tf.cast(new, part.dtype) for new, part in zip(added, values, strict=True)]
        updates = list(zip(self._velocities.variables, added, strict=True))
        return Reduced(gradients, lambda: all_finite([*values, *gradients]), updates)


class DenseExchange(UncompressedExchange):
    """Sums one bucket as it is."""

    def __init__(self, plan: plan_lib.Plan, number: int, collectives: Collectives) -> None:
        super().__init__(plan, number, collectives)
        self._transport = Dense(collectives)

    def __call__(
        self, gradients: Sequence[tf.Tensor], draw: Draw, learning_rate: tf.Tensor | None = None
    ) -> Reduced:
        total = self._transport.sum(_pack(gradients, tf.as_dtype(self.bucket.dtype)))
        return self._with_momentum(_unpack(total, gradients))


class RowSparseExchange(UncompressedExchange):
    """Sums sparse gradients row by row.

    Attributes:
      sent: int64 variable: bytes that this worker has contributed so far.
    """

    def __init__(self, plan: plan_lib.Plan, number: int, collectives: Collectives) -> None:
        super().__init__(plan, number, collectives)
        shapes = [plan.variables[index].shape for index in self.bucket.indices]
        self._transport = RowSparse(collectives, shapes)
        self.sent = state.host_zeros((), f"row_sparse_bytes_{number}", tf.int64)

    def __call__(
        self,
        gradients: Sequence[tf.IndexedSlices],
        draw: Draw,
        learning_rate: tf.Tensor | None = None,
    ) -> Reduced:
        sums, payload_bytes = self._transport.sum(gradients)
        with tf.device(self.sent.device):
            self.sent.assign_add(payload_bytes)
        return self._with_momentum(sums)


_FACTOR = "factor"
_VELOCITY = "velocity"


def _by_name(name: str, variables: Sequence[tf.Variable]) -> dict[str, tf.Variable]:
    return {f"{name}_{number}": variable for number, variable in enumerate(variables)}


def _restore(memory: Mapping[str, tf.Variable], shares: Sequence[Share]) -> None:
    """Assigns what all workers had in common, and the sums of what each had of its own."""
    for name, variable in memory.items():
        arrays = [share.arrays[name] for share in shares]
        variable.assign(np.sum(arrays, axis=0) if name.startswith(OF_WORKERS) else arrays[0])


def _merged_residual(share: Share) -> tf.Tensor:
    residuals = [
        tf.constant(array) for name, array in share.arrays.items() if name.startswith(RESIDUAL)
    ]
    return TRANSPORTS[share.transport].merge(residuals, share.worker_index)


Exchange: TypeAlias = CompressedExchange | LowRankExchange | DenseExchange | RowSparseExchange


def make_exchange(plan: plan_lib.Plan, number: int, collectives: Collectives) -> Exchange:
    """Makes the exchange of bucket ``number`` of a plan, with new state."""
    compression = plan.buckets[number].compression
    if plan.buckets[number].row_sparse:
        return RowSparseExchange(plan, number, collectives)
    if compression is None:
        return DenseExchange(plan, number, collectives)
    codec = compression.build()
    if isinstance(codec, LowRank):
        return LowRankExchange(plan, number, codec, collectives)
    return CompressedExchange(plan, number, codec, collectives)


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns a bool scalar; types that cannot hold an Inf or NaN are not looked at."""
    checks = [tf.reduce_all(tf.math.is_finite(t)) for t in tensors if t.dtype.is_floating]
    return tf.reduce_all(checks) if checks else tf.constant(True)


def _compression(bucket: plan_lib.Bucket) -> Compression:
    assert bucket.compression is not None
    return bucket.compression


def _residuals(
    compression: Compression,
    number: int,
    shapes: Sequence[tuple[int, ...]],
    collectives: Collectives,
) -> list[tf.Variable]:
    """Makes the residuals of a bucket, if its compression asks for error feedback."""
    if not compression.error_feedback:
        return []
    names = [f"residual_{number}_{i}" if i else f"residual_{number}" for i in range(len(shapes))]
    return [
        state.local_zeros(shape, collectives.device, name)
        for shape, name in zip(shapes, names, strict=True)
    ]


def _momentum(
    compression: Compression, shape: tuple[int, ...], collectives: Collectives
) -> Momentum | None:
    """Makes the momentum of a bucket, if its compression has any."""
    if compression.momentum:
        return LocalMomentum(compression.momentum, shape, collectives.device)
    if compression.global_momentum:
        factor = compression.global_momentum
        return GlobalMomentum(factor, shape, collectives.device, collectives.num_workers)
    return None


def _rate_correction(compression: Compression) -> RateCorrection | None:
    return RateCorrection() if compression.lr_correction else None


def _memory_of(rate: RateCorrection | None) -> dict[str, tf.Variable]:
    return {} if rate is None else {"learning_rate": rate.variable}


def _repaid(
    residuals: Sequence[tf.Variable], rate: RateCorrection | None, learning_rate: tf.Tensor | None
) -> tuple[list[tf.Tensor], list[state.Update]]:
    """Returns what to add to this step's gradients of the steps before, and what to store."""
    values = [residual.read_value() for residual in residuals]
    if rate is None:
        return values, []
    if learning_rate is None:
        raise ValueError(
            "lr_correction needs the learning rate, which is not known here: give it to "
            "all_reduce_gradients, or let a Keras optimizer reduce the gradients"
        )
    scale = rate.scale(learning_rate)
    return [scale * value for value in values], [(rate.variable, rate.following(learning_rate))]


def _in_updates(residual: tf.Tensor, rate: RateCorrection | None) -> tf.Tensor:
    """Multiplies a residual by its learning rate, if that matters."""
    return residual if rate is None else residual * rate.unit()


def _in_gradients(updates: tf.Tensor, rate: RateCorrection | None) -> tf.Tensor:
    """Undoes ``_in_updates``. Where the learning rate is not known, it is 1 from now on."""
    if rate is None:
        return updates
    rate.variable.assign(rate.unit())
    return updates / rate.unit()


def _nan_unless(finite: tf.Tensor, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors, or as many NaNs."""
    return tf.cond(
        finite, lambda: tensors, lambda: [tf.fill(t.shape, np.float32("nan")) for t in tensors]
    )


def _pack(tensors: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Flattens and concatenates tensors."""
    flat = [tf.reshape(tf.cast(tensor, dtype), [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def _split(packed: tf.Tensor, shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """Cuts a vector into tensors of these static shapes."""
    parts = [packed] if len(shapes) == 1 else tf.split(packed, [math.prod(s) for s in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _unpack(bucket: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts a bucket into tensors shaped and typed like those that were packed."""
    parts = _split(bucket, [gradient.shape for gradient in like])
    return [_like(part, gradient) for part, gradient in zip(parts, like, strict=True)]


def _like(value: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.reshape(value, gradient.shape), gradient.dtype)
