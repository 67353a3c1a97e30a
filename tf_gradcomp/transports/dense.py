# SPDX-License-Identifier: Apache-2.0
"""Dense: TensorFlow's own all-reduce of the gradients as they are."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf


class _Collectives(Protocol):
    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor: ...


class Dense:
    """One all-reduce per bucket; on a ring each worker sends ``2 (W - 1) / W`` of the bucket."""

    def __init__(self, collectives: _Collectives) -> None:
        self._collectives = collectives

    def sum(self, bucket: tf.Tensor) -> tf.Tensor:
        """Returns the sum of all workers' ``[n]``, the same bits on every worker."""
        return self._collectives.all_reduce(bucket)
