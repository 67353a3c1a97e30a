# SPDX-License-Identifier: Apache-2.0
"""Shorter floating-point types, rounded to nearest, ties to even.

Sources: IEEE 754-2019 (binary16); Micikevicius et al., "FP8 Formats for Deep Learning"
(arXiv 2209.05433) for the two 8-bit types.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.codecs.block_quantizer import BlockQuantizer
from tf_gradcomp.ops import narrow_float as narrow_float_ops
from tf_gradcomp.ops.counts import Count


class _NarrowFloat(BlockQuantizer):
    dtype: ClassVar[str]
    block: int = narrow_float_ops.DEFAULT_BLOCK
    biased: ClassVar[bool] = True

    def num_words(self, num_values: Count) -> Count:
        return narrow_float_ops.num_words(num_values, self.dtype, self.block)

    def _encode(self, values: tf.Tensor, draw: base.Draw, **inputs: Any) -> tuple[Any, Any]:
        return narrow_float_ops.narrow_float_encode(values, self.dtype, block=self.block, **inputs)

    def _decode(self, words: tf.Tensor, num_values: Count, sum: bool) -> tf.Tensor:
        return narrow_float_ops.narrow_float_decode(words, num_values, self.dtype, self.block, sum)


class _Halves(_NarrowFloat):
    """Two numbers a word, after a header; the last word may have room for one more."""

    def addends(self, words: tf.Tensor, num_values: int) -> tf.Tensor:
        halves = tf.bitcast(words[self.num_words(0) :], self.addable)
        numbers = tf.reshape(halves, [-1])[:num_values]
        # The codes of what is not finite are zeros.
        is_finite = self.all_finite(words[tf.newaxis])
        nan = tf.constant(float("nan"), self.addable)
        return tf.cond(is_finite, lambda: numbers, lambda: tf.fill([num_values], nan))


@dataclasses.dataclass(frozen=True)
class Float16(_Halves):
    """IEEE half precision; larger values become the largest finite one."""

    dtype: ClassVar[str] = "float16"
    addable: ClassVar[tf.DType | None] = tf.float16


@dataclasses.dataclass(frozen=True)
class BFloat16(_Halves):
    """The upper half of a float32, rounded."""

    dtype: ClassVar[str] = "bfloat16"
    addable: ClassVar[tf.DType | None] = tf.bfloat16


@dataclasses.dataclass(frozen=True)
class _Float8(_NarrowFloat):
    block: int = narrow_float_ops.DEFAULT_BLOCK

    def __post_init__(self) -> None:
        base.check_integer(self.dtype, "block", self.block)
        try:
            self.num_words(1)
        except ValueError as error:
            raise ValueError(f"{self.dtype}: {error}") from None


@dataclasses.dataclass(frozen=True)
class Float8E4M3(_Float8):
    """Four exponent and three mantissa bits, scaled by a power of two per block.

    Attributes:
      block: values that share a scale, a multiple of 32 from 32 to 65536.

    Raises:
      ValueError: ``block`` is out of range.
    """

    dtype: ClassVar[str] = "float8_e4m3"


@dataclasses.dataclass(frozen=True)
class Float8E5M2(_Float8):
    """Five exponent and two mantissa bits, scaled by a power of two per block.

    Attributes:
      block: values that share a scale, a multiple of 32 from 32 to 65536.

    Raises:
      ValueError: ``block`` is out of range.
    """

    dtype: ClassVar[str] = "float8_e5m2"
