# SPDX-License-Identifier: Apache-2.0
"""Dense: TensorFlow's own all-reduce of the gradients as they are."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.transports.base import Collectives, Message


class Dense:
    """One all-reduce per bucket, on a ring of the workers."""

    @staticmethod
    def message(num_words: float, num_workers: int) -> Message:
        """Returns the all-reduce of so many words, of which a ring sends 2 (W - 1) / W."""
        return Message("all_reduce", num_words * 2.0 * (num_workers - 1) / num_workers)

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def sum(self, bucket: tf.Tensor) -> tf.Tensor:
        """Returns the sum of all workers' ``[n]``, the same bits on every worker."""
        return self._collectives.all_reduce(bucket)
