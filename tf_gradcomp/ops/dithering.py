# SPDX-License-Identifier: Apache-2.0
"""Dithering: values rounded at random, and without bias, to levels between zero and a block's norm.

With s levels besides zero, *natural* dithering has the levels `2^(1-s), ..., 1/2, 1` and *standard*
dithering `1/s, 2/s, ..., 1`, times the norm. QSGD is standard dithering with the 2-norm, TernGrad
standard dithering with the infinity norm and s = 1. The code is defined in
`custom_ops/core/FORMAT.md`, section "Dithering block".

Sources: Horvath et al., "Natural Compression for Distributed Deep Learning" (arXiv 1905.10988),
Alistarh et al., "QSGD" (arXiv 1610.02132), Wen et al., "TernGrad" (arXiv 1705.07878).
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader
from tf_gradcomp.ops.counts import Count, check_count

KINDS = ("natural", "standard")
NORMS = ("inf", "2")
NORM_CODES = ("float32", "natural")
MAX_LEVELS = {"natural": 127, "standard": 32767}
MAX_BLOCK = 65536
HEADER_WORDS = 2
"""Words before the norms: the parameters."""

tf.no_gradient("Gradcomp>DitheringEncode")
tf.no_gradient("Gradcomp>DitheringDecode")


def num_bits(levels: int) -> int:
    """Bits of a code: a sign, and the index of one of `levels` + 1 levels."""
    return 1 + levels.bit_length()


def num_words(
    count: Count, levels: int, kind: str, norm: str, block: int, norm_code: str = "float32"
) -> Count:
    """Words (int32) of the dithering block of `count` values; the arguments are the encoder's.

    Raises:
      ValueError: `count` is negative or a parameter outside its limits.
    """
    check_count(count)
    check_parameters(levels, kind, norm, block, norm_code)
    norms = -(-count // (block or count + 1))  # one of all values, if there are any
    norm_words = -(-norms // 4) if norm_code == "natural" else norms
    return HEADER_WORDS + norm_words + -(-count * num_bits(levels) // 32)


def check_parameters(levels: int, kind: str, norm: str, block: int, norm_code: str) -> None:
    """Raises ValueError, naming the parameter, unless all are within the limits of the encoder."""
    for name, value, allowed in [
        ("kind", kind, KINDS),
        ("norm", norm, NORMS),
        ("norm_code", norm_code, NORM_CODES),
    ]:
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, got {value!r}")
    if not 1 <= levels <= MAX_LEVELS[kind]:
        raise ValueError(f"levels must be in 1..{MAX_LEVELS[kind]} for {kind}, got {levels}")
    if not 0 <= block <= MAX_BLOCK or block % 32:
        raise ValueError(f"block must be 0 or a multiple of 32 up to {MAX_BLOCK}, got {block}")


def flag_word() -> int:
    """Index of the word whose bit 31 says that the values held an Inf or NaN."""
    return 0


def dithering_encode(
    values: tf.Tensor,
    key: tf.Tensor,
    levels: int,
    kind: str,
    norm: str,
    block: int,
    norm_code: str = "float32",
    residual: tf.Tensor | None = None,
    with_error: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Codes `x = values + residual` in `num_bits(levels)` bits a value. Not differentiable.

    Args:
      values: float32, any shape, v values.
      key: int32 `[4]`: seed, stream, bucket and step of the random numbers. Equal keys and values
        give equal words.
      levels: s, the levels other than zero: 1..127 natural or 1..32767 standard ones.
      kind: "natural" or "standard".
      norm: "inf", the largest magnitude of a block, or "2", its Euclidean norm.
      block: values that share a norm, a multiple of 32 up to 65536; 0 for all of them.
      norm_code: "float32", or "natural": norms are rounded at random to powers of two, and travel
        as a byte.
      residual: float32, v values; None for none.
      with_error: whether the error is wanted.
      name: name of the operation.

    Returns:
      words: int32 `[num_words(v, ...)]`, the dithering block.
      error: float32 like `values`, `x` minus what it decodes to. 0 everywhere if any `x` is Inf or
        NaN, because then all of them decode to NaN. `[0]` if it is not wanted.

    Raises:
      tf.errors.InvalidArgumentError: a parameter is outside these limits, `residual` has another
        number of values, or `key` another shape.
    """
    words, error = loader.load().gradcomp_dithering_encode(
        values=values,
        residual=tf.zeros([0], tf.float32) if residual is None else residual,
        key=key,
        levels=levels,
        kind=kind,
        norm=norm,
        norm_code=norm_code,
        block=block,
        with_error=with_error,
        name=name,
    )
    return words, error


def dithering_decode(
    words: tf.Tensor,
    count: int | tf.Tensor,
    levels: int,
    kind: str,
    norm: str,
    block: int,
    norm_code: str = "float32",
    sum: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Decodes the dithering blocks of W workers. Not differentiable.

    Args:
      words: int32 `[W, num_words(count, ...)]`.
      count: int64 scalar v: the number of values in each block.
      levels: as given to the encoder; and likewise `kind`, `norm`, `block` and `norm_code`.
      kind: see above.
      norm: see above.
      block: see above.
      norm_code: see above.
      sum: whether to add up the workers' values.
      name: name of the operation.

    Returns:
      float32 `[W, v]`, or `[v]`: the sum in float32 in the order of the workers, from +0. NaN
      everywhere for a worker whose values held an Inf or NaN.

    Raises:
      tf.errors.InvalidArgumentError: the number of words does not fit `count`, a header does not
        say the same parameters, or a norm is not one that the encoder writes.
    """
    return loader.load().gradcomp_dithering_decode(
        words=words,
        count=tf.cast(count, tf.int64),
        levels=levels,
        kind=kind,
        norm=norm,
        norm_code=norm_code,
        block=block,
        sum=sum,
        name=name,
    )
