# SPDX-License-Identifier: Apache-2.0
"""One bit a value: the sign, times the mean magnitude of a block.

Source: Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019 (arXiv 1901.09847).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.codecs.block_quantizer import BlockQuantizer
from tf_gradcomp.ops import one_bit as one_bit_ops
from tf_gradcomp.ops.counts import Count


@dataclasses.dataclass(frozen=True)
class OneBit(BlockQuantizer):
    """Scaled signs. Biased: use error feedback.

    Attributes:
      block: values that share a scale, a multiple of 4096; 0, as published, for all of them.

    Raises:
      ValueError: ``block`` is out of range.
    """

    block: int = 4096
    biased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        base.check_integer("one-bit", "block", self.block)
        try:
            self.num_words(1)
        except ValueError as error:
            raise ValueError(f"one-bit: {error}") from None

    def num_words(self, num_values: Count) -> Count:
        return one_bit_ops.num_words(num_values, self.block)

    def _encode(self, values: tf.Tensor, draw: base.Draw, **inputs: Any) -> tuple[Any, Any]:
        return one_bit_ops.one_bit_encode(values, block=self.block, **inputs)

    def _decode(self, words: tf.Tensor, num_values: Count, sum: bool) -> tf.Tensor:
        return one_bit_ops.one_bit_decode(words, num_values, self.block, sum)
