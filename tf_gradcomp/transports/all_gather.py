# SPDX-License-Identifier: Apache-2.0
"""All-gather: every worker receives every worker's payload and decodes all of them."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.transports.base import Collectives


class AllGather:
    """One fused, fixed-size all-gather per bucket.

    Each worker sends and receives ``(W - 1) * m`` words on a ring of ``W`` workers, so the cost
    grows with the number of workers.
    """

    @staticmethod
    def sent_share(num_workers: int) -> float:
        """Returns how many times a worker sends its payload."""
        return num_workers - 1.0

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def exchange(self, payload: tf.Tensor) -> tf.Tensor:
        """Maps this worker's int32 ``[m]`` to all workers' int32 ``[W, m]``, in worker order."""
        return self._collectives.all_gather(payload)
