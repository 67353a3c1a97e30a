# SPDX-License-Identifier: Apache-2.0
"""Blocks of a tensor that are not all zero: which they are, and packing and unpacking them.

n values are cut in row-major order into `b = ceil(n / block_size)` blocks, of which the last may be
shorter. A mask has a bit for each; its layout is in `custom_ops/core/FORMAT.md`, section "Block
mask". Masks of several workers are joined by `tf.bitwise.bitwise_or`.
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>NonzeroBlocks")
tf.no_gradient("Gradcomp>BlocksTake")
tf.no_gradient("Gradcomp>BlocksPut")


def nonzero_blocks(values: tf.Tensor, block_size: int, name: str | None = None) -> tf.Tensor:
    """Finds the blocks that hold anything but zeros.

    Zeros of either sign are zeros; denormals, Inf and NaN are not. Reading stops early in a block
    that is not zero. Not differentiable.

    Args:
      values: float32 of any shape, n values.
      block_size: values of a block, 1 to 65,536.
      name: name of the operation.

    Returns:
      int32 `[ceil(b / 32)]`, the mask: bit `i % 32` of word `i // 32` belongs to block i.

    Raises:
      tf.errors.InvalidArgumentError: `block_size` is out of range.
    """
    return loader.load().gradcomp_nonzero_blocks(values=values, block_size=block_size, name=name)


def blocks_take(
    mask: tf.Tensor, values: tf.Tensor, block_size: int, name: str | None = None
) -> tf.Tensor:
    """Packs the blocks whose bits are set.

    Not differentiable.

    Args:
      mask: int32 `[ceil(b / 32)]`.
      values: float32 of any shape, n values.
      block_size: values of a block, 1 to 65,536.
      name: name of the operation.

    Returns:
      float32 `[u, block_size]`, the blocks of the u set bits, in ascending order, bits unchanged;
      a shorter last block is filled up with +0.

    Raises:
      tf.errors.InvalidArgumentError: `block_size` is out of range, or the mask is of another size
        or has a bit set that no block belongs to.
    """
    return loader.load().gradcomp_blocks_take(
        mask=mask, values=values, block_size=block_size, name=name
    )


def blocks_put(
    mask: tf.Tensor, packed: tf.Tensor, size: int | tf.Tensor, name: str | None = None
) -> tf.Tensor:
    """Unpacks blocks: the inverse of `blocks_take`.

    Not differentiable.

    Args:
      mask: int32 `[ceil(b / 32)]`, with u set bits.
      packed: float32 `[u, block_size]`, the blocks of the set bits, in ascending order; what is
        beyond a shorter last block is ignored. `block_size` is in 1 to 65,536.
      size: int64 scalar n: the number of values.
      name: name of the operation.

    Returns:
      float32 `[n]`, +0 in the blocks whose bits are not set.

    Raises:
      tf.errors.InvalidArgumentError: shapes do not fit together, or the mask has another number of
        bits set, or one that no block belongs to.
    """
    size = tf.cast(size, tf.int64)
    return loader.load().gradcomp_blocks_put(mask=mask, packed=packed, size=size, name=name)
