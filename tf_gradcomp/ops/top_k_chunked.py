# SPDX-License-Identifier: Apache-2.0
"""Exact top-k selection within every chunk of neighbours."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader

MIN_CHUNK = 64
MAX_CHUNK = 65536

tf.no_gradient("Gradcomp>TopKChunkedSelect")


def top_k_chunked_select(
    values: tf.Tensor,
    chunk: int,
    count: int | tf.Tensor,
    last_count: int | tf.Tensor = 0,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Selects the items of largest magnitude of every chunk; ties go to the lowest index.

    The order is that of top-k: `custom_ops/core/FORMAT.md`, section "Top-k in chunks". Not
    differentiable.

    Args:
      values: float32 `[n]`, n >= 1.
      chunk: items of a chunk, a power of two from 64 to 65,536.
      count: int64 scalar, 1 <= count <= chunk: the number of items to keep of a chunk.
      last_count: int64 scalar: the same for the last `n % chunk` items, of which at least one is
        kept if there are any.
      name: name of the operation.

    Returns:
      positions: int32 `[p]`, the positions block; `positions.num_words(n, k)` gives p, with
        `k = n // chunk * count + last_count`.
      kept: float32 `[k]`, the items kept, in ascending order of position.

    Raises:
      ValueError: when a graph is built, as below.
      tf.errors.InvalidArgumentError: a shape, `chunk` or a count is outside these limits.

    Source: this project's own.
    """
    positions, kept = loader.load().gradcomp_top_k_chunked_select(
        values=values,
        count=tf.cast(count, tf.int64),
        last_count=tf.cast(last_count, tf.int64),
        chunk=chunk,
        name=name,
    )
    return positions, kept
