# SPDX-License-Identifier: Apache-2.0
"""Range float: floats in 6 to 12 bits, with binary32's spacing inside the range of the values.

The code is defined in `custom_ops/core/FORMAT.md`, section "Range float block". For N bits and m
mantissa bits the relative error is at most `2 ** -(m + 1)` down to the smallest magnitude that has
a code; what is smaller becomes that magnitude or 0.

Source: the range-based float of SuperNeurons (arXiv 1811.08596); the exact code table is this
project's own.
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader
from tf_gradcomp.ops.counts import Count, check_count

HEADER_WORDS = 3
"""Words before the codes: both bounds, and the parameters."""

tf.no_gradient("Gradcomp>RangeFloatEncode")
tf.no_gradient("Gradcomp>RangeFloatDecode")


def num_words(count: Count, num_bits: int) -> Count:
    """Words (int32) of the range float block of `count` values of `num_bits` bits.

    Raises:
      ValueError: `count` is negative or `num_bits` not in 6..12.
    """
    check_count(count)
    if not 6 <= num_bits <= 12:
        raise ValueError(f"num_bits must be in 6..12, got {num_bits}")
    return HEADER_WORDS + (count * num_bits + 31) // 32


def range_float_encode(
    values: tf.Tensor,
    num_bits: int,
    mantissa_bits: int,
    value_range: tuple[float, float] | tf.Tensor | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Quantizes `values` to `num_bits` bits each. Not differentiable.

    Args:
      values: float32, any shape, v values.
      num_bits: N, bits of a code, 6..12.
      mantissa_bits: mantissa bits kept, 1..N-2. More of them mean finer steps over fewer octaves.
      value_range: `(lo, hi)`, lo <= 0 <= hi, finite, or a float32 tensor `[2]`: values outside
        saturate. None takes the smallest and the largest value.
      name: name of the operation.

    Returns:
      words: int32 `[num_words(v, num_bits)]`, the range float block.
      error: float32 like `values`, values minus what they decode to. 0 everywhere if any value is
        Inf or NaN, because then all of them decode to NaN.

    Raises:
      tf.errors.InvalidArgumentError: a parameter or `value_range` is outside these limits.
    """
    bounds = tf.zeros([0], tf.float32) if value_range is None else value_range
    words, error = loader.load().gradcomp_range_float_encode(
        values=values,
        range=bounds,
        num_bits=num_bits,
        mantissa_bits=mantissa_bits,
        name=name,
    )
    return words, error


def range_float_decode(
    words: tf.Tensor,
    count: int | tf.Tensor,
    num_bits: int,
    mantissa_bits: int,
    name: str | None = None,
) -> tf.Tensor:
    """Decodes the range float blocks of W workers. Not differentiable.

    Args:
      words: int32 `[W, num_words(count, num_bits)]`.
      count: int64 scalar v: the number of values in each block.
      num_bits: N, as given to the encoder.
      mantissa_bits: as given to the encoder.
      name: name of the operation.

    Returns:
      float32 `[W, v]`. NaN everywhere for a worker whose values held an Inf or NaN.

    Raises:
      tf.errors.InvalidArgumentError: the number of words does not fit `count`, or a header does
        not say the same parameters, or holds bounds that no encoder writes.
    """
    count = tf.cast(count, tf.int64)
    return loader.load().gradcomp_range_float_decode(
        words=words,
        count=count,
        num_bits=num_bits,
        mantissa_bits=mantissa_bits,
        name=name,
    )
