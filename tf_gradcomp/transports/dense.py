# SPDX-License-Identifier: Apache-2.0
"""Dense: TensorFlow's own all-reduce of the gradients as they are."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.transports.base import Collectives


class Dense:
    """One all-reduce per bucket, on a ring of the workers."""

    @staticmethod
    def sent_share(num_workers: int) -> float:
        """Returns how many times a worker sends the bucket."""
        return 2.0 * (num_workers - 1) / num_workers

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def sum(self, bucket: tf.Tensor) -> tf.Tensor:
        """Returns the sum of all workers' ``[n]``, the same bits on every worker."""
        return self._collectives.all_reduce(bucket)
