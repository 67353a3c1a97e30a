# SPDX-License-Identifier: Apache-2.0
"""Sums a bucket by way of low-rank factors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from tf_gradcomp import plan as plan_lib
from tf_gradcomp import state
from tf_gradcomp.codecs.base import Draw, LowRank
from tf_gradcomp.exchange_state import Share
from tf_gradcomp.exchanges.base import (
    Chosen,
    Reduced,
    all_finite,
    compression_of,
    nan_unless,
    pack,
    restore,
    shaped_like,
    split,
)
from tf_gradcomp.feedback.error_feedback import ErrorFeedback
from tf_gradcomp.transports.base import Collectives
from tf_gradcomp.transports.dense import Dense


class LowRankExchange:
    """Sums one bucket by way of low-rank factors; holds its state.

    The residual is in elements, as packed. Gradients that are no matrices, or too small for
    factors to be smaller, travel with the factors, as they are.

    Attributes:
      bucket: which gradients it exchanges; matrices come first.
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
        compression = compression_of(bucket)
        shape = (bucket.num_elements,)
        self._feedback = ErrorFeedback(compression, [shape], collectives.device)

    @property
    def residuals(self) -> list[tf.Variable]:
        """What the factors lost, one tensor; empty without error feedback."""
        return self._feedback.residuals

    @property
    def memory(self) -> dict[str, tf.Variable]:
        """What is remembered from step to step, by name."""
        return self._feedback.memory | state.by_name("factor", self._factors)

    def restore(self, shares: Sequence[Share]) -> None:
        """Goes on from what other exchanges remembered; see ``CompressedExchange``."""
        restore(self.memory, shares)

    def left_over(self) -> list[tf.Tensor]:
        """Returns what factors lost of each gradient; see ``CompressedExchange``."""
        if not self.residuals:
            return []
        left = self._feedback.in_updates(self.residuals[0].read_value())
        return split(left, [(math.prod(shape),) for shape in self._shapes])

    def set_left_over(self, parts: Sequence[tf.Tensor]) -> None:
        """Sets the residual to what ``left_over`` is to return."""
        (residual,) = self.residuals
        residual.assign(self._feedback.in_gradients(pack(parts, tf.float32)))

    def __call__(
        self,
        gradients: Sequence[tf.Tensor],
        draw: Draw,
        learning_rate: tf.Tensor | None = None,
        chosen: Chosen | None = None,
    ) -> Reduced:
        meant = pack(gradients, tf.float32)
        for residual in self._feedback.repaid(learning_rate):
            meant += residual
        parts = split(meant, self._shapes)
        matrices, raw = parts[: self._num_matrices], parts[self._num_matrices :]
        factors = [factor.read_value() for factor in self._factors]
        outcome = self._method.sum(matrices, raw, factors, draw.step, self._sum)
        # Every message is in the new factors, or has left a NaN there if it was not finite.
        messages_finite = all_finite([*outcome.factors, *outcome.raw])
        totals = nan_unless(messages_finite, [*outcome.totals, *outcome.raw])
        sums = [
            shaped_like(total, gradient) for total, gradient in zip(totals, gradients, strict=True)
        ]
        updates = list(zip(self._factors, outcome.factors, strict=True))
        lost = [meant - pack([*outcome.sent, *raw], tf.float32) for _ in self.residuals]
        left = self._feedback.left(lost, learning_rate)
        updates.extend(self._feedback.following(left, learning_rate))
        return Reduced(sums, lambda: all_finite(sums), updates)

    def _sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums tensors over the workers in one all-reduce for each type."""
        sums: dict[int, tf.Tensor] = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            members = [tensors[i] for i in places]
            total = self._transport.sum(pack(members, dtype))
            sums.update(zip(places, split(total, [m.shape for m in members]), strict=True))
        return [sums[i] for i in range(len(tensors))]
