# SPDX-License-Identifier: Apache-2.0
"""What transports have in common that encode a bucket once, as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_gradcomp.transports.base import Collectives


class WholeBucket:
    """Base of a ``Transport`` with one shard and one residual: what this worker's payload lost."""

    needs_addable = False

    @staticmethod
    def num_shards(num_workers: int) -> int:
        """Returns 1."""
        return 1

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def residual_shapes(
        self, shape: tuple[int, ...], shard_shape: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        """Returns the shape of the bucket's coefficients."""
        return [shape]

    @staticmethod
    def merge(residuals: Sequence[tf.Tensor], worker_index: int) -> tf.Tensor:
        """Returns the only one."""
        return residuals[0]
