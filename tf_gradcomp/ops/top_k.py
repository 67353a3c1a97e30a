# SPDX-License-Identifier: Apache-2.0
"""Exact top-k selection of items of one or several components."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader, placement

tf.no_gradient("Gradcomp>TopKSelect")
tf.no_gradient("Gradcomp>TopKSelectSum")


def top_k_select(
    values: tf.Tensor,
    count: int | tf.Tensor,
    row_length: int = 0,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Selects the items of largest magnitude, exactly; ties go to the lowest index.

    The order is fixed by `custom_ops/core/FORMAT.md`, section "Top-k", so that every worker and
    every device selects the same items. Inf and NaN rank first. Not differentiable.

    Args:
      values: float32 `[n]` real items or `[n, c]` items of 2 <= c <= 65,536 components, n >= 1. The
        magnitude of the latter is their Euclidean norm; c = 2 are complex ones (real part first).
        More than two components are dealt with on the CPU.
      count: int64 scalar k, 1 <= k <= n: the number of items to keep.
      row_length: L >= 0. If positive, `values` is `[n, 2]` and holds rows of `L // 2 + 1` bins of
        real transforms of length L; bins that stand for a conjugate pair then count twice in the
        ranking, as their energy does in the signal.
      name: name of the operation.

    Returns:
      positions: int32 `[p]`, the positions block; `positions.num_words(n, k)` gives p.
      kept: float32 `[k]` or `[k, c]`, the items kept, in ascending order of position.

    Raises:
      tf.errors.InvalidArgumentError: a shape, `count` or `row_length` is outside these limits.

    Source: sparsification in the frequency domain, SuperNeurons (arXiv 1811.08596); ranking and
      tie rule are this project's own.
    """
    values, count = tf.convert_to_tensor(values), tf.cast(count, tf.int64)
    with placement.for_items(values, 1):
        positions, kept = loader.load().gradcomp_top_k_select(
            values=values, count=count, row_length=row_length, name=name
        )
    return positions, kept


def top_k_select_sum(
    values: tf.Tensor,
    residual: tf.Tensor,
    count: int | tf.Tensor,
    row_length: int = 0,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Adds a residual to values and selects as `top_k_select` does, in one pass over both.

    Args:
      values: as for `top_k_select`.
      residual: float32, of the same shape.
      count: as for `top_k_select`.
      row_length: as for `top_k_select`.
      name: name of the operation.

    Returns:
      positions: int32 `[p]`, the positions block.
      kept: float32 `[k]` or `[k, c]`, the items of the sum that are kept.
      sum: `values + residual`; takes over the memory of one of them if nothing else needs it.

    Raises:
      tf.errors.InvalidArgumentError: as for `top_k_select`, and for shapes that differ.
    """
    values, count = tf.convert_to_tensor(values), tf.cast(count, tf.int64)
    with placement.for_items(values, 1):
        positions, kept, total = loader.load().gradcomp_top_k_select_sum(
            values=values, count=count, residual=residual, row_length=row_length, name=name
        )
    return positions, kept, total
