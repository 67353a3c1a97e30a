# SPDX-License-Identifier: Apache-2.0
"""Uniform quantization between the smallest and the largest value of a block.

Source: the quantizer of CGX (Markov et al., Middleware 2022).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base, switched
from tf_gradcomp.codecs.block_quantizer import BlockQuantizer
from tf_gradcomp.ops import uniform as uniform_ops
from tf_gradcomp.ops.counts import Count

MAX_BITS = 8
MIN_BITS_TO_NEAREST = 3


@dataclasses.dataclass(frozen=True)
class Uniform(BlockQuantizer):
    """``2^bits`` evenly spaced levels from a block's minimum to its maximum.

    Attributes:
      bits: bits of a value, 1..8; at least 3 without ``stochastic``, as the error of fewer can
        exceed the value, so that residuals grow without end.
      block: values that share a range, a multiple of 32 from 32 to 65536.
      stochastic: rounds at random, and is then unbiased, instead of to the nearest level.
      seed: of the random numbers.

    Raises:
      ValueError: a field is out of range.
    """

    bits: int = 4
    block: int = 512
    stochastic: bool = False
    seed: int = 0
    adjustable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        base.check_seed("uniform", self.seed)
        base.check_range("uniform", "bits", self.bits, 1, MAX_BITS, low_open=False)
        base.check_integer("uniform", "block", self.block)
        if not isinstance(self.stochastic, bool):
            raise ValueError(f"uniform: stochastic must be true or false, got {self.stochastic!r}")
        if self.bits < MIN_BITS_TO_NEAREST and not self.stochastic:
            raise ValueError(
                f"uniform: bits must be at least {MIN_BITS_TO_NEAREST}, or stochastic, "
                f"got {self.bits}"
            )
        try:
            self.num_words(1)
        except ValueError as error:
            raise ValueError(f"uniform: {error}") from None

    @property
    def bits_range(self) -> tuple[int, int]:
        return 1 if self.stochastic else MIN_BITS_TO_NEAREST, MAX_BITS

    def at(self, bits: tf.Tensor) -> switched.Switched:
        return switched.by_bits(self, bits)

    @property
    def biased(self) -> bool:
        return not self.stochastic

    def num_words(self, num_values: Count) -> Count:
        return uniform_ops.num_words(num_values, self.bits, self.block)

    def _encode(self, values: tf.Tensor, draw: base.Draw, **inputs: Any) -> tuple[Any, Any]:
        key = draw.own_key(self.seed) if self.stochastic else None
        return uniform_ops.uniform_encode(values, self.bits, key, block=self.block, **inputs)

    def _decode(self, words: tf.Tensor, num_values: Count, sum: bool) -> tf.Tensor:
        return uniform_ops.uniform_decode(words, num_values, self.bits, self.block, sum)
