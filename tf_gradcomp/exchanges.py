# SPDX-License-Identifier: Apache-2.0
"""The ways of exchanging one bucket: compressed and gathered, by low-rank factors, or dense.

An exchange is made for one bucket of a plan and holds that bucket's state. Called with this
worker's gradients, it returns their sums over the workers, and what to store if the step is kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tf_gradcomp import plan as plan_lib
from tf_gradcomp import state
from tf_gradcomp.codecs.base import Codec, Draw, LowRank, VariableShape
from tf_gradcomp.controllers import view_choice
from tf_gradcomp.feedback.error_feedback import ErrorFeedback
from tf_gradcomp.transports.all_gather import AllGather
from tf_gradcomp.transports.base import Collectives
from tf_gradcomp.transports.dense import Dense


class Reduced(NamedTuple):
    """The outcome of one bucket's exchange.

    Attributes:
      gradients: the sums.
      finite: makes a bool scalar: whether no worker's gradient held an Inf or NaN, and no sum
        became one when cast to the gradient's type. Only called if it is needed.
      updates: the state to store if the step is kept.
    """

    gradients: list[tf.Tensor]
    finite: Callable[[], tf.Tensor]
    updates: Sequence[state.Update] = ()


class CompressedExchange:
    """Compresses, exchanges and decompresses one bucket; holds its state.

    Attributes:
      bucket: which gradients it exchanges.
      needs_step: whether the number of the exchange matters.
      feedback: the residual; ``None`` without error feedback.
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
        self._transport = AllGather(collectives)
        is_adaptive = any(len(names) > 1 for names in self._transform.candidates)
        self._choice = (
            state.local_integers((len(self._variables),), f"view_{number}") if is_adaptive else None
        )
        self.needs_step = self._codec.stochastic or is_adaptive
        self.feedback = _feedback(plan, number, self._layout.shape, collectives)

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

    def __call__(self, gradients: Sequence[tf.Tensor], draw: Draw) -> Reduced:
        packed = _pack(gradients, tf.float32)
        residual = None if self.feedback is None else self.feedback.residual.read_value()
        transform, updates = self._transform, []
        if self._choice is not None:
            choice, residual = self._choose_views(packed, residual, draw.step)
            transform = transform.at(choice)
            updates.append((self._choice, choice))
        coefficients = transform.forward(packed)
        encoded = self._codec.encode(coefficients, residual, self._layout, draw)
        payloads = self._transport.exchange(encoded.payload)
        total, payloads_finite = self._codec.decode_sum(payloads, self._layout, draw)
        bucket = transform.inverse(total, self.bucket.num_elements)
        if not self._codec.lossless:
            # Bits of a payload that is not finite say nothing about any element of the bucket.
            (bucket,) = _nan_unless(payloads_finite, [bucket])
        sums = _unpack(bucket, gradients)
        narrow = [total for total in sums if total.dtype.size < tf.float32.size]
        if self.feedback is not None:
            assert encoded.residual is not None
            updates.append((self.feedback.residual, encoded.residual))
        return Reduced(sums, lambda: payloads_finite & all_finite(narrow), updates)

    def _choose_views(
        self, packed: tf.Tensor, residual: tf.Tensor | None, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the views for this step, and the residual as seen in them."""
        assert self._choice is not None
        old = self._choice.read_value()

        def compare() -> tf.Tensor:
            density = self._codec.density(self._layout)
            energies = self._transform.kept_energy(packed, density)
            return view_choice.choose(self._collectives.all_reduce(energies), old)

        new = tf.cond(view_choice.is_due(step), compare, lambda: tf.identity(old))
        if residual is None:
            return new, None

        def move() -> tf.Tensor:
            elements = self._transform.at(old).inverse(residual, self.bucket.num_elements)
            return self._transform.at(new).forward(elements)

        is_same = tf.reduce_all(tf.equal(new, old))
        return new, tf.cond(is_same, lambda: tf.identity(residual), move)


class LowRankExchange:
    """Sums one bucket by way of low-rank factors; holds its state.

    The residual is in elements, as packed. Gradients that are no matrices, or too small for
    factors to be smaller, travel with the factors, as they are.

    Attributes:
      bucket: which gradients it exchanges; matrices come first.
      needs_step: whether the number of the exchange matters.
      feedback: the residual; ``None`` without error feedback.
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
        self.needs_step = method.alternates
        self.feedback = _feedback(plan, number, (bucket.num_elements,), collectives)

    def __call__(self, gradients: Sequence[tf.Tensor], draw: Draw) -> Reduced:
        meant = _pack(gradients, tf.float32)
        if self.feedback is not None:
            meant += self.feedback.residual.read_value()
        parts = _split(meant, self._shapes)
        matrices, raw = parts[: self._num_matrices], parts[self._num_matrices :]
        factors = [factor.read_value() for factor in self._factors]
        outcome = self._method.sum(matrices, raw, factors, draw.step, self._sum)
        # Every message is in the new factors, or has left a NaN there if it was not finite.
        messages_finite = all_finite([*outcome.factors, *outcome.raw])
        totals = _nan_unless(messages_finite, [*outcome.totals, *outcome.raw])
        sums = [_like(total, gradient) for total, gradient in zip(totals, gradients, strict=True)]
        updates = list(zip(self._factors, outcome.factors, strict=True))
        if self.feedback is not None:
            residual = meant - _pack([*outcome.sent, *raw], tf.float32)
            updates.append((self.feedback.residual, residual))
        return Reduced(sums, lambda: all_finite(sums), updates)

    def _sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums float32 tensors over the workers in one all-reduce."""
        total = self._transport.sum(_pack(tensors, tf.float32))
        return _split(total, [tensor.shape for tensor in tensors])


class DenseExchange:
    """Sums one bucket as it is."""

    needs_step = False

    def __init__(self, plan: plan_lib.Plan, number: int, collectives: Collectives) -> None:
        self.bucket = plan.buckets[number]
        self._transport = Dense(collectives)

    def __call__(self, gradients: Sequence[tf.Tensor], draw: Draw) -> Reduced:
        total = self._transport.sum(_pack(gradients, tf.as_dtype(self.bucket.dtype)))
        return Reduced(_unpack(total, gradients), lambda: all_finite([total]))


Exchange: TypeAlias = CompressedExchange | LowRankExchange | DenseExchange


def make_exchange(plan: plan_lib.Plan, number: int, collectives: Collectives) -> Exchange:
    """Makes the exchange of bucket ``number`` of a plan, with new state."""
    compression = plan.buckets[number].compression
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


def _feedback(
    plan: plan_lib.Plan, number: int, shape: tuple[int, ...], collectives: Collectives
) -> ErrorFeedback | None:
    """Makes the residual of a bucket, if its compression asks for one."""
    compression = plan.buckets[number].compression
    assert compression is not None
    if not compression.error_feedback:
        return None
    return ErrorFeedback(shape, collectives.device, f"residual_{number}")


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
