# SPDX-License-Identifier: Apache-2.0
"""Narrow floats: float16, bfloat16, and float8 (e4m3, e5m2) with a power of two for each block.

Rounding is to nearest, ties to even; denormals are kept. Finite values beyond the range of float16
or bfloat16 become the largest finite number. A block of float8 values is scaled so that its largest
one fits. The code is defined in `custom_ops/core/FORMAT.md`, section "Narrow float block".

Source of the 8-bit formats: Micikevicius et al., "FP8 Formats for Deep Learning" (arXiv
2209.05433); the block scales are this project's own.
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader
from tf_gradcomp.ops.counts import Count, check_count

DTYPES = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
"""What `dtype` may be; its index is the number on the wire."""

DEFAULT_BLOCK = 128

tf.no_gradient("Gradcomp>NarrowFloatEncode")
tf.no_gradient("Gradcomp>NarrowFloatDecode")


def num_words(count: Count, dtype: str, block: int = DEFAULT_BLOCK) -> Count:
    """Words (int32) of the narrow float block of `count` values.

    Raises:
      ValueError: `count` is negative, or `dtype` or `block` is outside its limits.
    """
    check_count(count)
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if not 32 <= block <= 65536 or block % 32:
        raise ValueError(f"block must be a multiple of 32 in 32..65536, got {block}")
    if not dtype.startswith("float8"):
        return 1 + -(-count // 2)
    blocks = -(-count // block)
    return 1 + -(-blocks // 4) + -(-count // 4)


def flag_word() -> int:
    """Index of the word whose bit 31 says that the values held an Inf or NaN."""
    return 0


def narrow_float_encode(
    values: tf.Tensor,
    dtype: str,
    residual: tf.Tensor | None = None,
    block: int = DEFAULT_BLOCK,
    with_error: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Codes `x = values + residual` in 16 or 8 bits a value. Not differentiable.

    Args:
      values: float32, any shape, v values.
      dtype: one of `DTYPES`.
      residual: float32, v values; None for none.
      block: float8: values that share a scale, a multiple of 32 in 32..65536.
      with_error: whether the error is wanted.
      name: name of the operation.

    Returns:
      words: int32 `[num_words(v, dtype, block)]`, the narrow float block.
      error: float32 like `values`, `x` minus what it decodes to. 0 everywhere if any `x` is Inf or
        NaN, because then all of them decode to NaN. `[0]` if it is not wanted.

    Raises:
      tf.errors.InvalidArgumentError: `residual` has another number of values, or a parameter is
        outside its limits (ValueError while a graph is built).
    """
    words, error = loader.load().gradcomp_narrow_float_encode(
        values=values,
        residual=tf.zeros([0], tf.float32) if residual is None else residual,
        dtype=dtype,
        block=block,
        with_error=with_error,
        name=name,
    )
    return words, error


def narrow_float_decode(
    words: tf.Tensor,
    count: int | tf.Tensor,
    dtype: str,
    block: int = DEFAULT_BLOCK,
    sum: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Decodes the narrow float blocks of W workers. Not differentiable.

    Args:
      words: int32 `[W, num_words(count, dtype, block)]`.
      count: int64 scalar v: the number of values in each block.
      dtype: as given to the encoder.
      block: as given to the encoder.
      sum: whether to add up the workers' values.
      name: name of the operation.

    Returns:
      float32 `[W, v]`, or `[v]`: the sum in float32 in the order of the workers, from +0. NaN
      everywhere for a worker whose values held an Inf or NaN.

    Raises:
      tf.errors.InvalidArgumentError: the number of words does not fit `count`, or a header is not
        one that the encoder writes.
    """
    return loader.load().gradcomp_narrow_float_decode(
        words=words,
        count=tf.cast(count, tf.int64),
        dtype=dtype,
        block=block,
        sum=sum,
        name=name,
    )
