# SPDX-License-Identifier: Apache-2.0
"""Compresses, exchanges and decompresses: the exchange of a bucket that has a codec.

Residual and momentum live behind the transform, which is linear: no inverse is needed to update
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_gradcomp import plan as plan_lib
from tf_gradcomp import state
from tf_gradcomp.codecs.base import Codec, Draw, Transform, VariableShape
from tf_gradcomp.codecs.learned_basis import Rotation
from tf_gradcomp.compression import Compression
from tf_gradcomp.costs import BYTES_PER_WORD
from tf_gradcomp.exchange_state import RESIDUAL, Share
from tf_gradcomp.exchanges.assumption import Dropped
from tf_gradcomp.exchanges.base import (
    Chosen,
    Reduced,
    all_finite,
    compression_of,
    nan_unless,
    pack,
    restore,
    split,
    unpack,
)
from tf_gradcomp.exchanges.coder import BucketCoder
from tf_gradcomp.exchanges.following import Bases, Follower, Views
from tf_gradcomp.exchanges.learned_bases import LearnedBases
from tf_gradcomp.feedback.error_feedback import ErrorFeedback
from tf_gradcomp.feedback.momentum import GlobalMomentum, LocalMomentum, Momentum
from tf_gradcomp.transports import TRANSPORTS
from tf_gradcomp.transports.base import Collectives, PayloadSize, cut, join
from tf_gradcomp.transports.dense import Dense


class _Sent(NamedTuple):
    """What became of a bucket's coefficients.

    Attributes:
      bucket: the sum of the workers' gradients, float32 ``[n]``.
      finite: bool scalar: whether all of them were finite, as far as anything was sent.
      lost: the new residuals.
      momentum: the new momentum, if there is any.
      words: int64 scalar: 32-bit words that this worker has contributed.
      coefficients: the sum as coefficients, if bases are to learn from it.
    """

    bucket: tf.Tensor
    finite: tf.Tensor
    lost: list[tf.Tensor]
    momentum: list[tf.Tensor]
    words: tf.Tensor
    coefficients: list[tf.Tensor]


class CompressedExchange:
    """Compresses, exchanges and decompresses one bucket; holds its state.

    Attributes:
      bucket: which gradients it exchanges.
      checks_assumption: whether it says what it drops; see ``Assumption``.
      sent: int64 variable: bytes that this worker has contributed so far; ``None`` where these are
        the same in each exchange.
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
        self._num_shards = self._transport.num_shards(collectives.num_workers)
        self._shard_layout = self._layout.shard(self._num_shards)
        is_adaptive = any(len(names) > 1 for names in self._transform.candidates)
        self._choice = (
            state.host_zeros((len(self._variables),), f"view_{number}") if is_adaptive else None
        )
        self._bases = (
            LearnedBases(self._transform.learned, collectives.device)
            if any(self._transform.learned)
            else None
        )
        shapes = self._transport.residual_shapes(self._layout.shape, self._shard_layout.shape)
        compression = compression_of(self.bucket)
        self._density_schedule = compression.density_schedule
        self.sent: tf.Variable | None = None
        if self.bucket.changes:
            self.sent = state.host_zeros((), f"sent_bytes_{number}", tf.int64)
        self._dense = Dense(collectives)
        self._changes_density = compression.changes_density
        self._dense_beyond = math.inf
        if self._changes_density:
            self._dense_beyond = plan_lib.dense_beyond(
                plan.variables, self.bucket, collectives.num_workers
            )
        self._is_told = bool(compression.controller or compression.scheduled)
        self._start_after = compression.start_after
        self._withholds = compression.withholds
        controller = compression.controller
        # Without error feedback, nobody knows what is dropped.
        self.checks_assumption = bool(
            controller and controller.checks_assumption and compression.error_feedback
        )
        self._feedback = ErrorFeedback(compression, shapes, collectives.device)
        self._momentum = _momentum(compression, self._layout.shape, collectives)

    @property
    def residuals(self) -> list[tf.Variable]:
        """What payloads lost, to be added to what the next ones say.

        First that of the gradients, in the shape of the bucket's coefficients, then that of the
        sums, if the transport encodes these. Empty without error feedback.
        """
        return self._feedback.residuals

    @property
    def memory(self) -> dict[str, tf.Variable]:
        """What is remembered from step to step, by name."""
        views = {} if self._choice is None else {"views": self._choice}
        momentum = {} if self._momentum is None else {self._momentum.name: self._momentum.variable}
        bases = {} if self._bases is None else self._bases.memory
        return self._feedback.memory | views | bases | momentum

    def restore(self, shares: Sequence[Share]) -> None:
        """Goes on from what other exchanges remembered, of which each is given to one worker.

        The residuals of all workers add up to what they did there.
        """
        residuals = state.by_name(RESIDUAL, self.residuals)
        restore({k: v for k, v in self.memory.items() if k not in residuals}, shares)
        if not residuals:
            return
        (share, *others) = shares
        here = (self._collectives.num_workers, self.bucket.transport)
        if not others and (share.num_workers, share.transport) == here:
            restore(residuals, shares)
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
        left = self._merged(residuals)
        elements = self._current_transform().inverse(left, self.bucket.num_elements)
        elements = self._feedback.in_updates(elements)
        return split(elements, [(variable.num_elements,) for variable in self._variables])

    def set_left_over(self, parts: Sequence[tf.Tensor]) -> None:
        """Sets the residuals to what ``left_over`` is to return."""
        first, *others = self.residuals
        elements = self._feedback.in_gradients(pack(parts, tf.float32))
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
        self,
        gradients: Sequence[tf.Tensor],
        draw: Draw,
        learning_rate: tf.Tensor | None = None,
        chosen: Chosen | None = None,
    ) -> Reduced:
        assert chosen is not None or not self._is_told, (
            f"an exchange by {self.bucket.how} must be told what was decided on it"
        )
        packed = pack(gradients, tf.float32)
        residuals = self._feedback.repaid(learning_rate)
        transform = self._current_transform()
        meant = transform.forward(packed)
        if self._momentum is not None:
            meant = self._momentum.add(meant)
        chosen = Chosen() if chosen is None else chosen
        if self._density_schedule is not None:
            with tf.device("CPU:0"):  # as all that becomes a number of items
                chosen = chosen._replace(density=self._density_schedule(draw.step))
        sent = self._send(transform, meant, residuals, draw, chosen)
        density = chosen.density

        def dropped() -> Dropped:
            assert density is not None
            return Dropped(transform.forward(sent.bucket), self._merged(sent.lost), density)

        sums = unpack(sent.bucket, gradients)
        narrow = [total for total in sums if total.dtype.size < tf.float32.size]
        left, momentum = self._feedback.left(sent.lost, learning_rate), sent.momentum

        def updates_of(left: list[tf.Tensor], momentum: list[tf.Tensor]) -> list[state.Update]:
            updates = self._feedback.following(left, learning_rate)
            if self._momentum is not None:
                updates.append((self._momentum.variable, *momentum))
            return updates

        def move(
            choice: tf.Tensor | None, bases: Sequence[Sequence[Rotation]], stays: tf.Tensor
        ) -> list[state.Update]:
            then = self._transform.at(choice, bases)
            return updates_of(*self._moved(transform, then, stays, left, momentum))

        follower = self._follower(packed, transform, sent.coefficients, draw.step, move)
        return Reduced(
            sums,
            lambda: sent.finite & all_finite(narrow),
            updates_of(left, momentum) if follower is None else (),
            self._withholds,
            dropped if self.checks_assumption else None,
            follower,
        )

    def _send(
        self,
        transform: Transform,
        meant: tf.Tensor,
        residuals: list[tf.Tensor],
        draw: Draw,
        chosen: Chosen,
    ) -> _Sent:
        """Sends what was decided: what the codec makes of it, all as it is, or nothing."""
        ways = [lambda: self._code(transform, meant, residuals, draw, chosen)]
        with tf.device("CPU:0"):
            way = tf.constant(0)
            if self._withholds:
                way = tf.where(tf.equal(chosen.density, 0), len(ways), way)
                ways.append(lambda: self._withhold(meant, residuals))
            if self._start_after or self._dense_beyond < math.inf:
                is_dense = draw.step <= self._start_after
                if chosen.density is not None:
                    is_dense |= chosen.density > self._dense_beyond
                way = tf.where(is_dense, len(ways), way)
                ways.append(lambda: self._send_all(transform, meant, residuals))
        sent = ways[0]() if len(ways) == 1 else tf.switch_case(way, ways)
        if self.sent is not None:
            with tf.device(self.sent.device):
                self.sent.assign_add(BYTES_PER_WORD * sent.words)
        return sent

    def _code(
        self,
        transform: Transform,
        meant: tf.Tensor,
        residuals: list[tf.Tensor],
        draw: Draw,
        chosen: Chosen,
    ) -> _Sent:
        """Sends what the codec makes of it."""
        codec = self._codec
        if self._changes_density or chosen.bits is not None:
            density = chosen.density if self._changes_density else None
            with tf.device("CPU:0"):  # as all that becomes a number of items or words
                codec = codec.at(density, chosen.bits)
        coder = BucketCoder(codec, self._shard_layout, draw, self._collectives.num_workers)
        summed = self._transport.sum(coder, meant, residuals)
        bucket = transform.inverse(summed.total, self.bucket.num_elements)
        if not self._codec.lossless:
            # Bits of a payload that is not finite say nothing about any element of the bucket.
            (bucket,) = nan_unless(summed.finite, [bucket])

        def without_sent(coefficients: tf.Tensor) -> tf.Tensor:
            shards = cut(coefficients, self._num_shards, coder.shape)
            unsent = [coder.without_sent(i, shard) for i, shard in enumerate(shards)]
            return join(unsent, coefficients)

        momentum = self._following_momentum(meant, summed.total, without_sent)
        num_words = self._transport.payload_words(
            PayloadSize(
                coder.num_words(),
                self._shard_layout.num_items,
                self._shard_layout.components,
                self._codec.density(self._shard_layout),
            ),
            self._collectives.num_workers,
        )
        return _Sent(
            bucket,
            summed.finite,
            list(summed.residuals),
            momentum,
            tf.cast(num_words, tf.int64),
            self._to_learn(summed.total),
        )

    def _send_all(
        self, transform: Transform, meant: tf.Tensor, residuals: list[tf.Tensor]
    ) -> _Sent:
        """Sends all of it as it is, and what was left over."""
        total = self._dense.sum(meant + self._merged(residuals) if residuals else meant)
        return _Sent(
            transform.inverse(total, self.bucket.num_elements),
            all_finite([total]),
            list(map(tf.zeros_like, residuals)),
            self._following_momentum(meant, total, _all_of),
            tf.size(total, tf.int64),
            self._to_learn(total),
        )

    def _withhold(self, meant: tf.Tensor, residuals: list[tf.Tensor]) -> _Sent:
        """Sends nothing, and leaves all of it over."""
        left = meant + self._merged(residuals)
        return _Sent(
            tf.zeros((self.bucket.num_elements,)),
            all_finite([left]),
            [left, *map(tf.zeros_like, residuals[1:])],
            self._following_momentum(meant, tf.zeros_like(meant), _all_of),
            tf.constant(0, tf.int64),
            self._to_learn(tf.zeros_like(meant)),
        )

    def _to_learn(self, total: tf.Tensor) -> list[tf.Tensor]:
        return [] if self._bases is None else [total]

    def _following_momentum(
        self,
        meant: tf.Tensor,
        total: tf.Tensor,
        without_sent: Callable[[tf.Tensor], tf.Tensor],
    ) -> list[tf.Tensor]:
        """Returns the next momentum, if there is any."""
        if self._momentum is None:
            return []
        return [self._momentum.following(meant, total, without_sent)]

    def _merged(self, residuals: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns what all residuals say, as one in the shape of the coefficients."""
        return self._transport.merge(residuals, self._collectives.worker_index)

    def _current_transform(self) -> Transform:
        """Returns the transform that the residuals are behind."""
        choice = None if self._choice is None else self._choice.read_value()
        bases = self._bases
        return self._transform.at(choice, bases.by_variable(bases.current()) if bases else ())

    def _follower(
        self,
        packed: tf.Tensor,
        transform: Transform,
        coefficients: list[tf.Tensor],
        step: tf.Tensor,
        move: Callable[..., Sequence[state.Update]],
    ) -> Follower | None:
        """Returns what the transform is to follow, if there is anything."""
        views = bases = None
        if self._choice is not None:
            density = self._codec.density(self._layout)
            views = Views(
                self._choice,
                lambda: transform.kept_energy(packed, density),
                transform.learned_candidates(),
            )
        if self._bases is not None:
            assert self.sent is not None
            bases = Bases(self._bases, transform.samples(coefficients[0], step), self.sent)
        return Follower(views, bases, move) if views or bases else None

    def _moved(
        self,
        now: Transform,
        then: Transform,
        stays: tf.Tensor,
        residuals: list[tf.Tensor],
        momentum: list[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns residuals and momentum in the coefficients of another transform.

        They stay the same gradients, but for rounding.
        """
        if not residuals:
            return residuals, momentum

        def seen(coefficients: tf.Tensor) -> tf.Tensor:
            return then.forward(now.inverse(coefficients, self.bucket.num_elements))

        def move() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            left = self._merged(residuals)
            return [seen(left), *map(tf.zeros_like, residuals[1:])], list(map(seen, momentum))

        def stay() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            return list(map(tf.identity, residuals)), list(map(tf.identity, momentum))

        return tf.cond(stays, stay, move)


def _merged_residual(share: Share) -> tf.Tensor:
    residuals = [
        tf.constant(array) for name, array in share.arrays.items() if name.startswith(RESIDUAL)
    ]
    return TRANSPORTS[share.transport].merge(residuals, share.worker_index)


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


def _all_of(coefficients: tf.Tensor) -> tf.Tensor:
    """Returns what remains of a momentum where no items were chosen to be sent: all of it."""
    return coefficients
