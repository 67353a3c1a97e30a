# SPDX-License-Identifier: Apache-2.0
"""Scatter-reduce, then all-gather: every worker sums one shard for all.

Source: two-way compression as in Zhong et al., "Compressed Communication for Distributed Training:
Adaptive Methods and System" (arXiv 2105.07829), with the workers as servers of a shard each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_gradcomp.transports.base import (
    Coder,
    Collectives,
    Message,
    PayloadSize,
    Summed,
    cut,
    join,
)


class ScatterReduce:
    """An all-to-all of shards' payloads, and an all-gather of the sums' payloads.

    A worker encodes each of ``W`` shards on its own and sends it to the worker of that number.
    That one decodes and sums all workers' payloads of its shard, encodes the sum, with an error
    feedback of its own, and sends it to all. Each worker so sends and receives
    ``2 (W - 1)`` payloads of a shard: less than two payloads of the bucket, however many workers
    there are. What it costs is a second loss, and two collectives where all-gather takes one.
    """

    needs_gain = True
    needs_addable = False

    @staticmethod
    def num_shards(num_workers: int) -> int:
        """Returns one shard per worker."""
        return num_workers

    @staticmethod
    def payload_words(shard: PayloadSize, num_workers: int) -> float:
        """Returns the words of the payloads of all its shards; the sum's is one more."""
        return shard.num_words * num_workers

    @staticmethod
    def messages(shard: PayloadSize, num_workers: int) -> list[Message]:
        """Returns that of the shards and that of their sums."""
        words = shard.num_words * (num_workers - 1.0)
        return [Message("all_to_all", words), Message("all_gather", words)]

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def residual_shapes(
        self, shape: tuple[int, ...], shard_shape: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        """Returns two shapes: what this worker's payloads lost, and what that of its sum did."""
        return [shape, shard_shape]

    @staticmethod
    def merge(residuals: Sequence[tf.Tensor], worker_index: int) -> tf.Tensor:
        """Returns the first residual, and the second at the place of its shard."""
        first, second = residuals
        start = worker_index * second.shape[0]
        size = max(0, min(second.shape[0], first.shape[0] - start))
        around = [[start, first.shape[0] - start - size]] if size else [[0, first.shape[0]]]
        return first + tf.pad(second[:size], around + [[0, 0]] * (len(second.shape) - 1))

    def sum(self, coder: Coder, coefficients: tf.Tensor, residuals: Sequence[tf.Tensor]) -> Summed:
        """Sums coefficients over the workers; see ``Transport``."""
        num_workers, own = self._collectives.num_workers, self._collectives.worker_index
        # Sums are encoded as if they were means, lest they leave the range of a 16-bit format. A
        # power of two rounds nothing.
        scale = np.float32(2.0 ** -math.ceil(math.log2(num_workers)))
        shards = cut(coefficients, num_workers, coder.shape)
        meant: Sequence[tf.Tensor | None] = [None] * num_workers
        second_meant = None
        if residuals:
            meant, second_meant = cut(residuals[0], num_workers, coder.shape), residuals[1]
        sent = [coder.encode(i, shards[i], meant[i]) for i in range(num_workers)]
        received = self._collectives.all_to_all(tf.stack([payload for payload, _ in sent]))
        shard, finite = coder.decode_sum(own, received)
        # What is not finite must reach all workers, whatever the payloads hold instead.
        shard = tf.cond(finite, lambda: shard, lambda: tf.fill(shard.shape, np.float32("nan")))
        payload, lost = coder.encode(
            own, scale * shard, None if second_meant is None else scale * second_meant, second=True
        )
        payloads = self._collectives.all_gather(payload)
        decoded = [coder.decode_sum(i, payloads[i : i + 1]) for i in range(num_workers)]
        total = join([part for part, _ in decoded], coefficients) / scale
        all_finite = tf.reduce_all([part_finite for _, part_finite in decoded])
        if lost is None:
            return Summed(total, all_finite, [])
        first_lost = join([left for _, left in sent], total)
        return Summed(total, all_finite, [first_lost, lost / scale])
