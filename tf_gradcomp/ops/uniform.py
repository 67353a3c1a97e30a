# SPDX-License-Identifier: Apache-2.0
"""Uniform: `2 ** num_bits` evenly spaced levels between the extremes of each block of values.

Rounding to nearest has the smaller error and a bias, for error feedback; stochastic rounding has no
bias. The extremes of a block are exact. A zero is not, unless it is one of them: it becomes one of
the two levels beside it. The code is defined in `custom_ops/core/FORMAT.md`, section "Uniform
block".

Source: the min-max quantization of CGX (Markov et al., Middleware 2022), and stochastic rounding as
in QSGD (Alistarh et al., NeurIPS 2017); the code is this project's own.
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader
from tf_gradcomp.ops.counts import Count, check_count

DEFAULT_BLOCK = 512

tf.no_gradient("Gradcomp>UniformEncode")
tf.no_gradient("Gradcomp>UniformDecode")


def num_words(count: Count, num_bits: int, block: int = DEFAULT_BLOCK) -> Count:
    """Words (int32) of the uniform block of `count` values.

    Raises:
      ValueError: `count` is negative, or `num_bits` or `block` is outside its limits.
    """
    check_count(count)
    if not 1 <= num_bits <= 8:
        raise ValueError(f"num_bits must be in 1..8, got {num_bits}")
    if not 32 <= block <= 65536 or block % 32:
        raise ValueError(f"block must be a multiple of 32 in 32..65536, got {block}")
    return 1 + 2 * -(-count // block) + -(-count * num_bits // 32)


def flag_word() -> int:
    """Index of the word whose bit 31 says that the values held an Inf or NaN."""
    return 0


def uniform_encode(
    values: tf.Tensor,
    num_bits: int,
    key: tf.Tensor | None = None,
    residual: tf.Tensor | None = None,
    block: int = DEFAULT_BLOCK,
    with_error: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Codes `x = values + residual` in `num_bits` bits a value. Not differentiable.

    Args:
      values: float32, any shape, v values.
      num_bits: b, bits of a code, 1..8.
      key: int32 `[4]`: seed, stream, bucket and step of the random numbers of stochastic rounding.
        Equal keys and values give equal words. None rounds to nearest.
      residual: float32, v values; None for none.
      block: values that share their extremes, a multiple of 32 in 32..65536.
      with_error: whether the error is wanted.
      name: name of the operation.

    Returns:
      words: int32 `[num_words(v, num_bits, block)]`, the uniform block.
      error: float32 like `values`, `x` minus what it decodes to. 0 everywhere if any `x` is Inf or
        NaN, because then all of them decode to NaN. `[0]` if it is not wanted.

    Raises:
      tf.errors.InvalidArgumentError: `residual` has another number of values, `key` another shape,
        or a parameter is outside its limits (ValueError while a graph is built).
    """
    words, error = loader.load().gradcomp_uniform_encode(
        values=values,
        residual=tf.zeros([0], tf.float32) if residual is None else residual,
        key=tf.zeros([4], tf.int32) if key is None else key,
        num_bits=num_bits,
        block=block,
        stochastic=key is not None,
        with_error=with_error,
        name=name,
    )
    return words, error


def uniform_decode(
    words: tf.Tensor,
    count: int | tf.Tensor,
    num_bits: int,
    block: int = DEFAULT_BLOCK,
    sum: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Decodes the uniform blocks of W workers. Not differentiable.

    Args:
      words: int32 `[W, num_words(count, num_bits, block)]`.
      count: int64 scalar v: the number of values in each block.
      num_bits: as given to the encoder.
      block: as given to the encoder.
      sum: whether to add up the workers' values.
      name: name of the operation.

    Returns:
      float32 `[W, v]`, or `[v]`: the sum in float32 in the order of the workers, from +0. NaN
      everywhere for a worker whose values held an Inf or NaN.

    Raises:
      tf.errors.InvalidArgumentError: the number of words does not fit `count`, or a header or bound
        is not one that the encoder writes.
    """
    return loader.load().gradcomp_uniform_decode(
        words=words,
        count=tf.cast(count, tf.int64),
        num_bits=num_bits,
        block=block,
        sum=sum,
        name=name,
    )
