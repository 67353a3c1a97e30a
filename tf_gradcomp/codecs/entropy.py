# SPDX-License-Identifier: Apache-2.0
"""Near-lossless entropy coding at a fixed rate: Huffman-coded exponents, mantissas cut to a step.

Source: "Near-Lossless Gradient Compression" (GComp), SoCC 2024. How the mantissas are cut is this
project's own: see docs/methods/entropy.md.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.codecs.block_quantizer import BlockQuantizer
from tf_gradcomp.ops import entropy as entropy_ops
from tf_gradcomp.ops.counts import Count


@dataclasses.dataclass(frozen=True)
class EntropyFloat(BlockQuantizer):
    """Floats of which larger ones keep more bits, as many as fit in a given number of words.

    Attributes:
      bits: bits of a value on average, codes and all, a multiple of 1/8 from 3 to 24.

    Raises:
      ValueError: ``bits`` is out of range.
    """

    bits: float = entropy_ops.DEFAULT_BITS
    biased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        base.check_range("entropy", "bits", self.bits, 3.0, 24.0, low_open=False)
        try:
            self.num_words(1)
        except ValueError as error:
            raise ValueError(f"entropy: {error}") from None

    def num_words(self, num_values: Count) -> Count:
        return entropy_ops.num_words(num_values, self.bits)

    def _encode(self, values: tf.Tensor, draw: base.Draw, **inputs: Any) -> tuple[Any, Any]:
        return entropy_ops.entropy_encode(values, self.bits, **inputs)

    def _decode(self, words: tf.Tensor, num_values: Count, sum: bool) -> tf.Tensor:
        return entropy_ops.entropy_decode(words, num_values, self.bits, sum)
