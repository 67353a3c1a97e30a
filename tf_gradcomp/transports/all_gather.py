# SPDX-License-Identifier: Apache-2.0
"""All-gather: every worker receives every worker's payload and decodes all of them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_gradcomp.transports.base import Coder, Collectives, PayloadSize, Summed


class AllGather:
    """One fused, fixed-size all-gather per bucket.

    Each worker sends and receives ``(W - 1) * m`` words on a ring of ``W`` workers, so the cost
    grows with the number of workers.
    """

    saves = True

    @staticmethod
    def num_shards(num_workers: int) -> int:
        """Returns 1: a bucket is encoded as a whole."""
        return 1

    @staticmethod
    def sent_words(shard: PayloadSize, num_workers: int) -> float:
        """Returns the words that a worker sends: its own, or passed on."""
        return shard.num_words * (num_workers - 1.0)

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def residual_shapes(
        self, shape: tuple[int, ...], shard_shape: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        """Returns one shape: what this worker's payload lost."""
        return [shape]

    def merge(self, residuals: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the only one."""
        return residuals[0]

    def sum(self, coder: Coder, coefficients: tf.Tensor, residuals: Sequence[tf.Tensor]) -> Summed:
        """Sums coefficients over the workers; see ``Transport``."""
        payload, lost = coder.encode(0, coefficients, residuals[0] if residuals else None)
        total, finite = coder.decode_sum(0, self._collectives.all_gather(payload))
        return Summed(total, finite, [] if lost is None else [lost])
