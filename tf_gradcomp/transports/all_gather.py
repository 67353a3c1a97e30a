# SPDX-License-Identifier: Apache-2.0
"""All-gather: every worker receives every worker's payload and decodes all of them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_gradcomp.transports.base import Coder, Message, PayloadSize, Summed
from tf_gradcomp.transports.whole_bucket import WholeBucket


class AllGather(WholeBucket):
    """One fused, fixed-size all-gather per bucket.

    Each worker sends and receives ``(W - 1) * m`` words on a ring of ``W`` workers, so the cost
    grows with the number of workers.
    """

    needs_gain = True

    @staticmethod
    def payload_words(shard: PayloadSize, num_workers: int) -> float:
        """Returns the words of its payload."""
        return shard.num_words

    @staticmethod
    def messages(shard: PayloadSize, num_workers: int) -> list[Message]:
        """Returns its only one: a worker's own payload, and those it passes on."""
        return [Message("all_gather", shard.num_words * (num_workers - 1.0))]

    def sum(self, coder: Coder, coefficients: tf.Tensor, residuals: Sequence[tf.Tensor]) -> Summed:
        """Sums coefficients over the workers; see ``Transport``."""
        payload, lost = coder.encode(0, coefficients, residuals[0] if residuals else None)
        total, finite = coder.decode_sum(0, self._collectives.all_gather(payload))
        return Summed(total, finite, [] if lost is None else [lost])
