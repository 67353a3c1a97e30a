# SPDX-License-Identifier: Apache-2.0
"""Selection of all items whose magnitude reaches a threshold, and a threshold from a sample.

The order of magnitudes is that of top-k, and the block a counted one: `custom_ops/core/FORMAT.md`,
sections "Threshold" and "Counted positions block".
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>ThresholdSelect")
tf.no_gradient("Gradcomp>ThresholdSelectSum")
tf.no_gradient("Gradcomp>SampledThreshold")


def threshold_select(
    values: tf.Tensor,
    threshold: float | tf.Tensor,
    capacity: int | tf.Tensor,
    row_length: int = 0,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Selects the items whose magnitude reaches a threshold, up to a capacity.

    If more items reach it than fit, those of largest magnitude are kept, ties broken by lowest
    index: never the first ones in memory. None may reach it. Inf and NaN always do. Not
    differentiable.

    Args:
      values: float32 `[n]` real items or `[n, c]` items of 2 <= c <= 65,536 components, n >= 1;
        c = 2 are complex ones (real part first).
      threshold: float32 scalar >= 0. A complex item reaches it if `sqrt(w * (re^2 + im^2))` does,
        w = 2 for bins that stand for a conjugate pair, and one of more components if its Euclidean
        norm does; squares are compared to 20 fraction bits.
      capacity: int64 scalar K, 1 <= K <= n: the largest number of items to keep.
      row_length: L >= 0, as in `top_k.top_k_select`.
      name: name of the operation.

    Returns:
      positions: int32 `[p]`, the counted positions block; `positions.num_words(n, K, counted=True)`
        gives p, and `positions[0]` is the number of items kept.
      kept: float32 `[K]` or `[K, c]`, the items kept, in ascending order of position, then +0.

    Raises:
      tf.errors.InvalidArgumentError: a shape, `threshold`, `capacity` or `row_length` is outside
        these limits.

    Source: Threshold-v of "On the Discrepancy between the Theoretical Analysis and Practical
      Implementations of Compressed Communication" (AAAI 2020); the capacity is this project's own.
    """
    positions, kept = loader.load().gradcomp_threshold_select(
        values=values,
        threshold=tf.cast(threshold, tf.float32),
        capacity=tf.cast(capacity, tf.int64),
        row_length=row_length,
        name=name,
    )
    return positions, kept


def threshold_select_sum(
    values: tf.Tensor,
    residual: tf.Tensor,
    threshold: float | tf.Tensor,
    capacity: int | tf.Tensor,
    row_length: int = 0,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Adds a residual to values and selects as `threshold_select` does, in one pass over both.

    Args:
      values: as for `threshold_select`.
      residual: float32, of the same shape.
      threshold: as for `threshold_select`.
      capacity: as for `threshold_select`.
      row_length: as for `threshold_select`.
      name: name of the operation.

    Returns:
      positions: int32 `[p]`, the counted positions block.
      kept: float32 `[K]` or `[K, c]`, the items of the sum that are kept, then +0.
      sum: `values + residual`; takes over the memory of one of them if nothing else needs it.

    Raises:
      tf.errors.InvalidArgumentError: as for `threshold_select`, and for shapes that differ.
    """
    positions, kept, total = loader.load().gradcomp_threshold_select_sum(
        values=values,
        threshold=tf.cast(threshold, tf.float32),
        capacity=tf.cast(capacity, tf.int64),
        residual=residual,
        row_length=row_length,
        name=name,
    )
    return positions, kept, total


def sampled_threshold(
    values: tf.Tensor,
    key: tf.Tensor,
    count: int | tf.Tensor,
    num_samples: int | tf.Tensor,
    row_length: int = 0,
    name: str | None = None,
) -> tf.Tensor:
    """A threshold that about k of n items reach, judged by a sample of s of them.

    The magnitude of rank `ceil(k * s / n)` in a stratified sample. The number of items that reach
    it varies by about `k / sqrt(k * s / n)`, one standard deviation. Not differentiable.

    Args:
      values: float32 `[n]` or `[n, c]` items as in `threshold_select`, 1 <= n < 2^32.
      key: int32 `[4]`, (seed, stream, bucket, step) of the sample.
      count: int64 scalar k, 1 <= k <= n.
      num_samples: int64 scalar s, 1 <= s <= n. DGC takes max(n / 100, 2 * n / k).
      row_length: L >= 0, as in `top_k.top_k_select`.
      name: name of the operation.

    Returns:
      float32 scalar for `threshold_select`; Inf if the item of that rank is not finite.

    Raises:
      tf.errors.InvalidArgumentError: a shape, `count`, `num_samples` or `row_length` is outside
        these limits.

    Source: Lin et al., "Deep Gradient Compression" (ICLR 2018).
    """
    return loader.load().gradcomp_sampled_threshold(
        values=values,
        key=key,
        count=tf.cast(count, tf.int64),
        num_samples=tf.cast(num_samples, tf.int64),
        row_length=row_length,
        name=name,
    )
