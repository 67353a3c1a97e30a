# SPDX-License-Identifier: Apache-2.0
"""Random-k: which items are kept follows from a key that all workers share.

The strata and the draw are in `custom_ops/core/FORMAT.md`, section "Random-k".
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>RandomKPositions")
tf.no_gradient("Gradcomp>RandomKScale")


def random_k_positions(
    key: tf.Tensor, size: int | tf.Tensor, count: int | tf.Tensor, name: str | None = None
) -> tf.Tensor:
    """Draws k of n positions: one, uniformly, from each of k strata of about n/k items.

    A function of its arguments alone: workers that share them need not send positions. Every item
    is drawn with probability 1/m, m being the size of its stratum, up to 2^-32.

    Args:
      key: int32 `[4]`, (seed, stream, bucket, step). All workers must use the same.
      size: int64 scalar n, 1 <= n < 2^32: the number of items.
      count: int64 scalar k, 1 <= k <= n: the number of positions.
      name: name of the operation.

    Returns:
      int32 `[p]`, the positions block; `positions.num_words(n, k)` gives p.

    Raises:
      tf.errors.InvalidArgumentError: a shape, `size` or `count` is outside these limits.

    Source: random sparsification with a shared seed, as in "Compressed Communication for
      Distributed Training" (arXiv 2105.07829); the strata are this project's own.
    """
    size, count = tf.cast(size, tf.int64), tf.cast(count, tf.int64)
    return loader.load().gradcomp_random_k_positions(key=key, size=size, count=count, name=name)


def random_k_scale(kept: tf.Tensor, size: int | tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Multiplies each kept item by the size of its stratum, which makes random-k unbiased.

    Not for use with error feedback, which sends later what was not sent now. Works in place where
    nothing else reads `kept`. Not differentiable.

    Args:
      kept: float32 `[k]` real items or `[k, c]` items of 2 <= c <= 65,536 components, one from each
        of the k strata, in order.
      size: int64 scalar n, 1 <= n < 2^32: the number of items they were drawn from.
      name: name of the operation.

    Returns:
      float32, the shape of `kept`: `kept * m` with the stratum's size m rounded to float32.

    Raises:
      tf.errors.InvalidArgumentError: a shape or `size` is outside these limits, or k is not in
        1..n.
    """
    return loader.load().gradcomp_random_k_scale(kept=kept, size=tf.cast(size, tf.int64), name=name)
