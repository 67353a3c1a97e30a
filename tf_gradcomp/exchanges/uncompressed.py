# SPDX-License-Identifier: Apache-2.0
"""Sums a bucket as it is, dense or row by row."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_gradcomp import plan as plan_lib
from tf_gradcomp import state
from tf_gradcomp.codecs.base import Draw
from tf_gradcomp.exchange_state import VELOCITY, Share
from tf_gradcomp.exchanges.base import Chosen, Reduced, all_finite, pack, restore, unpack
from tf_gradcomp.feedback.momentum import Velocities
from tf_gradcomp.transports.base import Collectives
from tf_gradcomp.transports.dense import Dense
from tf_gradcomp.transports.row_sparse import RowSparse


class UncompressedExchange:
    """Base of exchanges without compression, which remember momentum at most.

    Attributes:
      bucket: which gradients it exchanges.
    """

    def __init__(self, plan: plan_lib.Plan, number: int, collectives: Collectives) -> None:
        self.bucket = plan.buckets[number]
        self._velocities: Velocities | None = None
        dtype = tf.as_dtype(self.bucket.dtype)
        if plan.momentum and dtype.is_floating:
            shapes = [plan.variables[index].shape for index in self.bucket.indices]
            self._velocities = Velocities(plan.momentum, shapes, dtype, collectives.device)

    @property
    def memory(self) -> dict[str, tf.Variable]:
        """What is remembered from step to step, by name."""
        velocities = [] if self._velocities is None else self._velocities.variables
        return state.by_name(VELOCITY, velocities)

    def restore(self, shares: Sequence[Share]) -> None:
        """Goes on from what other exchanges remembered; see ``CompressedExchange``."""
        restore(self.memory, shares)

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
        self,
        gradients: Sequence[tf.Tensor],
        draw: Draw,
        learning_rate: tf.Tensor | None = None,
        chosen: Chosen | None = None,
    ) -> Reduced:
        total = self._transport.sum(pack(gradients, tf.as_dtype(self.bucket.dtype)))
        return self._with_momentum(unpack(total, gradients))


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
        chosen: Chosen | None = None,
    ) -> Reduced:
        sums, payload_bytes = self._transport.sum(gradients)
        with tf.device(self.sent.device):
            self.sent.assign_add(payload_bytes)
        return self._with_momentum(sums)
