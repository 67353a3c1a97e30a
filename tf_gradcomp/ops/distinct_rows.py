# SPDX-License-Identifier: Apache-2.0
"""Rows of the same index, added up."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>DistinctRows")


class DistinctRows(NamedTuple):
    """Rows of one table: distinct ascending indices `[u]`, and values `[u, size]`."""

    indices: tf.Tensor
    values: tf.Tensor


def distinct_rows(values: tf.Tensor, indices: tf.Tensor, name: str | None = None) -> DistinctRows:
    """Adds up the rows that have the same index: 0 + first + second + ..., as they come.

    The bits depend on neither threads nor instruction set. Not differentiable.

    Args:
      values: float32 or float64 `[n, size]`.
      indices: int32 or int64 `[n]`, any numbers in any order.
      name: name of the operation.

    Raises:
      tf.errors.InvalidArgumentError: the shapes do not fit together.
    """
    sums, distinct = loader.load().gradcomp_distinct_rows(values=values, indices=indices, name=name)
    return DistinctRows(distinct, sums)
