# SPDX-License-Identifier: Apache-2.0
"""Natural compression C_nat: powers of two in 8 bits, rounded at random and without bias.

A value between two powers of two becomes the upper one with probability
`(abs(x) - lower) / (upper - lower)`, else the lower one, so that its expectation is `x` and its
variance at most `x ** 2 / 8`. The code is defined in `custom_ops/core/FORMAT.md`, section "Natural
block".

Source: Horvath et al., "Natural Compression for Distributed Deep Learning" (arXiv 1905.10988; MSML
2022); the 8-bit code is this project's own.
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader
from tf_gradcomp.ops.counts import Count, check_count

BLOCK = 4096
"""Values that share one exponent byte."""

tf.no_gradient("Gradcomp>NaturalEncode")
tf.no_gradient("Gradcomp>NaturalDecode")


def num_words(count: Count) -> Count:
    """Words (int32) of the natural block of `count` values.

    Raises:
      ValueError: `count` is negative.
    """
    check_count(count)
    blocks = -(-count // BLOCK)
    return 1 + -(-blocks // 4) + -(-count // 4)


def flag_word() -> int:
    """Index of the word whose bit 31 says that the values held an Inf or NaN."""
    return 0


def natural_encode(
    values: tf.Tensor,
    key: tf.Tensor,
    residual: tf.Tensor | None = None,
    with_error: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Codes `x = values + residual` in 8 bits a value. Not differentiable.

    Args:
      values: float32, any shape, v values.
      key: int32 `[4]`: seed, stream, bucket and step of the random numbers. Equal keys and values
        give equal words.
      residual: float32, v values; None for none.
      with_error: whether the error is wanted.
      name: name of the operation.

    Returns:
      words: int32 `[num_words(v)]`, the natural block.
      error: float32 like `values`, `x` minus what it decodes to. 0 everywhere if any `x` is Inf or
        NaN, because then all of them decode to NaN. `[0]` if it is not wanted.

    Raises:
      tf.errors.InvalidArgumentError: `residual` has another number of values, or `key` another
        shape.
    """
    words, error = loader.load().gradcomp_natural_encode(
        values=values,
        residual=tf.zeros([0], tf.float32) if residual is None else residual,
        key=key,
        with_error=with_error,
        name=name,
    )
    return words, error


def natural_decode(
    words: tf.Tensor, count: int | tf.Tensor, sum: bool = False, name: str | None = None
) -> tf.Tensor:
    """Decodes the natural blocks of W workers. Not differentiable.

    Args:
      words: int32 `[W, num_words(count)]`.
      count: int64 scalar v: the number of values in each block.
      sum: whether to add up the workers' values.
      name: name of the operation.

    Returns:
      float32 `[W, v]`, or `[v]`: the sum in float32 in the order of the workers, from +0. NaN
      everywhere for a worker whose values held an Inf or NaN.

    Raises:
      tf.errors.InvalidArgumentError: the number of words does not fit `count`, or a header or an
        exponent byte is not one that the encoder writes.
    """
    return loader.load().gradcomp_natural_decode(
        words=words, count=tf.cast(count, tf.int64), sum=sum, name=name
    )
