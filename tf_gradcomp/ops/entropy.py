# SPDX-License-Identifier: Apache-2.0
"""Entropy coding of floats at a fixed rate: Huffman-coded exponents, mantissas cut at a step.

The step, a power of two, is the finest one with which the block fits in its words. Larger values
keep more mantissa bits, and those below the step become zero. The code is defined in
`custom_ops/core/FORMAT.md`, section "Entropy block".

Source: "Near-Lossless Gradient Compression" (GComp, SoCC 2024) for coding exponents and mantissas
apart; the code, the step and the fixed rate are this project's own.
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader
from tf_gradcomp.ops.counts import Count, check_count

DEFAULT_BITS = 10.5

tf.no_gradient("Gradcomp>EntropyEncode")
tf.no_gradient("Gradcomp>EntropyDecode")


def num_words(count: Count, bits: float = DEFAULT_BITS) -> Count:
    """Words (int32) of the entropy block of `count` values.

    Raises:
      ValueError: `count` is negative, or `bits` is outside its limits.
    """
    check_count(count)
    eighths = bits * 8
    if not 24 <= eighths <= 192 or eighths != int(eighths):
        raise ValueError(f"bits must be a multiple of 1/8 in 3..24, got {bits}")
    return 8 + -(-count * int(eighths) // 256)


def flag_word() -> int:
    """Index of the word whose bit 31 says that the values held an Inf or NaN."""
    return 0


def entropy_encode(
    values: tf.Tensor,
    bits: float = DEFAULT_BITS,
    residual: tf.Tensor | None = None,
    with_error: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Codes `x = values + residual` in `bits` bits a value on average. Not differentiable.

    Args:
      values: float32, any shape, v values.
      bits: a multiple of 1/8 in 3..24.
      residual: float32, v values; None for none.
      with_error: whether the error is wanted.
      name: name of the operation.

    Returns:
      words: int32 `[num_words(v, bits)]`, the entropy block.
      error: float32 like `values`, `x` minus what it decodes to. 0 everywhere if any `x` is Inf or
        NaN, because then all of them decode to NaN. `[0]` if it is not wanted.

    Raises:
      tf.errors.InvalidArgumentError: `residual` has another number of values, or `bits` is outside
        its limits (ValueError while a graph is built).
    """
    words, error = loader.load().gradcomp_entropy_encode(
        values=values,
        residual=tf.zeros([0], tf.float32) if residual is None else residual,
        bits=bits,
        with_error=with_error,
        name=name,
    )
    return words, error


def entropy_decode(
    words: tf.Tensor,
    count: int | tf.Tensor,
    bits: float = DEFAULT_BITS,
    sum: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Decodes the entropy blocks of W workers. Not differentiable.

    Args:
      words: int32 `[W, num_words(count, bits)]`.
      count: int64 scalar v: the number of values in each block.
      bits: as given to the encoder.
      sum: whether to add up the workers' values.
      name: name of the operation.

    Returns:
      float32 `[W, v]`, or `[v]`: the sum in float32 in the order of the workers, from +0. NaN
      everywhere for a worker whose values held an Inf or NaN.

    Raises:
      tf.errors.InvalidArgumentError: the number of words does not fit `count`, or a header, a code
        or a size of a stream is not one that the encoder writes.
    """
    return loader.load().gradcomp_entropy_decode(
        words=words, count=tf.cast(count, tf.int64), bits=bits, sum=sum, name=name
    )
