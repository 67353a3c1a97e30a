# SPDX-License-Identifier: Apache-2.0
"""Positions blocks: which k of n items a payload holds, and what to do with them.

The layout is in `custom_ops/core/FORMAT.md`, section "Positions block".

A counted block has room for k items and says in its first word how many it holds, for methods
whose count varies by worker: its number of words depends on n and k alone.

Counted blocks, and items of more than two components, are dealt with on the CPU.
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader, placement

tf.no_gradient("Gradcomp>PositionsSum")
tf.no_gradient("Gradcomp>PositionsReplace")
tf.no_gradient("Gradcomp>PositionsGather")


def num_words(size: int, count: int, counted: bool = False) -> int:
    """Words (int32) of the positions block of `count` of `size` items, or of a counted one.

    Raises:
      ValueError: not 0 <= count <= size.
    """
    if not 0 <= count <= size:
        raise ValueError(f"need 0 <= count <= size, got count={count}, size={size}")
    bitmap_words = (size + 31) // 32
    # Elias-Fano: the low bits of every position, and a bitmap of the gaps between the others.
    low_bits = min(31, max(0, (size // max(count, 1)).bit_length() - 1))
    buckets = (size + (1 << low_bits) - 1) >> low_bits
    elias_fano_words = (count * low_bits + 31) // 32 + (count + buckets + 31) // 32
    is_shorter = 3 * elias_fano_words < 2 * bitmap_words
    return int(counted) + (elias_fano_words if is_shorter else bitmap_words)


def positions_sum(
    positions: tf.Tensor,
    kept: tf.Tensor,
    size: int | tf.Tensor,
    counted: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Sums the kept items of all workers into a dense tensor.

    In float32 and in the order of the workers, starting from +0: the bits depend on nothing else,
    so every worker gets the same. Not differentiable.

    Args:
      positions: int32 `[W, p]`, the positions blocks of W workers,
        p = `num_words(size, k, counted)`.
      kept: float32 `[W, k]` real items or `[W, k, c]` items of 2 <= c <= 65,536 components, in
        ascending order of position.
      size: int64 scalar n: the number of items of the sum.
      counted: the blocks are counted ones; what `kept` has beyond a block's count is ignored.
      name: name of the operation.

    Returns:
      float32 `[n]` or `[n, c]`; items that no worker kept are +0.

    Raises:
      tf.errors.InvalidArgumentError: shapes do not fit together, or a block is corrupt: it does
        not keep k items, or its indices are out of range or not ascending.
    """
    kept, size = tf.convert_to_tensor(kept), tf.cast(size, tf.int64)
    with placement.for_items(kept, 2, counted):
        return loader.load().gradcomp_positions_sum(
            positions=positions, kept=kept, size=size, counted=counted, name=name
        )


def positions_replace(
    values: tf.Tensor,
    positions: tf.Tensor,
    kept: tf.Tensor,
    counted: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Replaces the items of `values` at the positions by those in `kept`.

    Works in place where nothing else reads `values`. With the quantization error of the kept items
    as `kept`, the result is the residual: what was meant minus what was sent. Not differentiable.

    Args:
      values: float32 `[n]` real items or `[n, c]` items of 2 <= c <= 65,536 components.
      positions: int32 `[p]`, a positions block, p = `num_words(n, k, counted)`.
      kept: float32 `[k]` or `[k, c]`, the new items, in ascending order of position.
      counted: the block is a counted one; what `kept` has beyond its count is ignored.
      name: name of the operation.

    Returns:
      float32, the shape of `values`.

    Raises:
      tf.errors.InvalidArgumentError: shapes do not fit together, or the block is corrupt.
    """
    values = tf.convert_to_tensor(values)
    with placement.for_items(values, 1, counted):
        return loader.load().gradcomp_positions_replace(
            values=values, positions=positions, kept=kept, counted=counted, name=name
        )


def positions_gather(
    values: tf.Tensor, positions: tf.Tensor, count: int | tf.Tensor, name: str | None = None
) -> tf.Tensor:
    """Reads the items of `values` at the positions.

    For positions that are chosen without looking at the values, as those of random-k. Not
    differentiable.

    Args:
      values: float32 `[n]` real items or `[n, c]` items of 2 <= c <= 65,536 components.
      positions: int32 `[p]`, a positions block, p = `num_words(n, k)`.
      count: int64 scalar k: the number of positions in the block.
      name: name of the operation.

    Returns:
      float32 `[k]` or `[k, c]`, the items in ascending order of position, bits unchanged.

    Raises:
      tf.errors.InvalidArgumentError: shapes do not fit together, or the block is corrupt.
    """
    count = tf.cast(count, tf.int64)
    return loader.load().gradcomp_positions_gather(
        values=values, positions=positions, count=count, name=name
    )
