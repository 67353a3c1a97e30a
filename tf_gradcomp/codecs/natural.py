# SPDX-License-Identifier: Apache-2.0
"""Natural compression: random rounding to powers of two, one byte a value.

Source: Horvath et al., "Natural Compression for Distributed Deep Learning", MSML 2022
(arXiv 1905.10988).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.codecs.block_quantizer import BlockQuantizer
from tf_gradcomp.ops import natural as natural_ops
from tf_gradcomp.ops.counts import Count


@dataclasses.dataclass(frozen=True)
class Natural(BlockQuantizer):
    """C_nat: unbiased, with a variance of at most 1/8 of the values' energy.

    Attributes:
      seed: of the random numbers.
    """

    seed: int = 0
    biased: ClassVar[bool] = False
    stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        base.check_seed("natural", self.seed)

    def num_words(self, num_values: Count) -> Count:
        return natural_ops.num_words(num_values)

    def _encode(self, values: tf.Tensor, draw: base.Draw, **inputs: Any) -> tuple[Any, Any]:
        return natural_ops.natural_encode(values, draw.own_key(self.seed), **inputs)

    def _decode(self, words: tf.Tensor, num_values: Count, sum: bool) -> tf.Tensor:
        return natural_ops.natural_decode(words, num_values, sum)
