# SPDX-License-Identifier: Apache-2.0
"""All-gather: every worker receives every worker's payload and decodes all of them."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf


class _Collectives(Protocol):
    def all_gather(self, words: tf.Tensor) -> tf.Tensor: ...


class AllGather:
    """One fused, fixed-size all-gather per bucket.

    Each worker sends and receives ``(W - 1) * m`` words on a ring of ``W`` workers, so the cost
    grows with the number of workers.
    """

    def __init__(self, collectives: _Collectives) -> None:
        self._collectives = collectives

    def exchange(self, payload: tf.Tensor) -> tf.Tensor:
        """Maps this worker's int32 ``[m]`` to all workers' int32 ``[W, m]``, in worker order."""
        return self._collectives.all_gather(payload)
