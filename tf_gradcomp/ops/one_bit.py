# SPDX-License-Identifier: Apache-2.0
"""One bit: the sign of each value, and the mean magnitude of each block.

A value decodes to plus or minus the mean magnitude of its block, so the code is biased: use it with
error feedback. Zeros in runs stay zeros. The code is defined in `custom_ops/core/FORMAT.md`,
section "One bit block".

Source: the compressor `mean(abs(x)) * sign(x)` of EF-SignSGD (Karimireddy et al., "Error Feedback
Fixes SignSGD and other Gradient Compression Schemes", ICML 2019); the code is this project's own.
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader
from tf_gradcomp.ops.counts import Count, check_count

SEGMENT = 4096
"""`block` is a multiple of this, or 0."""

tf.no_gradient("Gradcomp>OneBitEncode")
tf.no_gradient("Gradcomp>OneBitDecode")


def num_words(count: Count, block: int = SEGMENT) -> Count:
    """Words (int32) of the one bit block of `count` values, about `count / 30`.

    Raises:
      ValueError: `count` is negative, or `block` not 0 or a multiple of 4096.
    """
    check_count(count)
    if block < 0 or block % SEGMENT:
        raise ValueError(f"block must be 0 or a multiple of {SEGMENT}, got {block}")
    scales = -(-count // (block or count + 1))  # one of all values, if there are any
    groups = -(-count // 32)
    return 1 + scales + groups + 2 * -(-groups // 32)


def flag_word() -> int:
    """Index of the word whose bit 31 says that the values held an Inf or NaN."""
    return 0


def one_bit_encode(
    values: tf.Tensor,
    residual: tf.Tensor | None = None,
    block: int = SEGMENT,
    with_error: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Codes `x = values + residual` in about one bit a value. Not differentiable.

    Args:
      values: float32, any shape, v values.
      residual: float32, v values; None for none.
      block: values that share a scale, a multiple of 4096; 0 for one scale in all, as in the paper.
      with_error: whether the error is wanted.
      name: name of the operation.

    Returns:
      words: int32 `[num_words(v, block)]`, the one bit block.
      error: float32 like `values`, `x` minus what it decodes to. 0 everywhere if any `x` is Inf or
        NaN, because then all of them decode to NaN. `[0]` if it is not wanted.

    Raises:
      tf.errors.InvalidArgumentError: `residual` has another number of values, or `block` is outside
        these limits (ValueError while a graph is built).
    """
    words, error = loader.load().gradcomp_one_bit_encode(
        values=values,
        residual=tf.zeros([0], tf.float32) if residual is None else residual,
        block=block,
        with_error=with_error,
        name=name,
    )
    return words, error


def one_bit_decode(
    words: tf.Tensor,
    count: int | tf.Tensor,
    block: int = SEGMENT,
    sum: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Decodes the one bit blocks of W workers. Not differentiable.

    Args:
      words: int32 `[W, num_words(count, block)]`.
      count: int64 scalar v: the number of values in each block.
      block: as given to the encoder.
      sum: whether to add up the workers' values.
      name: name of the operation.

    Returns:
      float32 `[W, v]`, or `[v]`: the sum in float32 in the order of the workers, from +0. NaN
      everywhere for a worker whose values held an Inf or NaN.

    Raises:
      tf.errors.InvalidArgumentError: the number of words does not fit `count`, or a header, scale
        or flag is not one that the encoder writes.
    """
    return loader.load().gradcomp_one_bit_decode(
        words=words, count=tf.cast(count, tf.int64), block=block, sum=sum, name=name
    )
