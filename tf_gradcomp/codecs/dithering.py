# SPDX-License-Identifier: Apache-2.0
"""Dithering: random rounding to a few levels between 0 and a norm.

Source: Horvath et al., "Natural Compression for Distributed Deep Learning", MSML 2022
(arXiv 1905.10988), which has natural dithering, and standard dithering as a special case of the
same scheme: that of QSGD (Alistarh et al., NeurIPS 2017) and TernGrad (Wen et al., NeurIPS 2017).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.codecs.block_quantizer import BlockQuantizer
from tf_gradcomp.ops import dithering as dithering_ops
from tf_gradcomp.ops.counts import Count

# The paper's p of the norm.
_NORMS = {"max": "inf", "l2": "2"}


@dataclasses.dataclass(frozen=True)
class Dithering(BlockQuantizer):
    """D^{p,s}: sign and level of every value, and one norm a block. Unbiased.

    Attributes:
      levels: s, levels other than zero; a value takes ``1 + ceil(log2(s + 1))`` bits.
      kind: ``"natural"`` (1, 1/2, 1/4, ...: s up to 127) or ``"standard"`` (evenly spaced: s up to
        32767).
      norm: ``"max"`` or ``"l2"``, the paper's p = infinity and p = 2. With ``"l2"`` the variance
        grows with the block.
      block: values that share a norm, a multiple of 32 up to 65536; 0, as published, for all.
      norm_code: ``"float32"``, or ``"natural"``: the norm is rounded to a power of two as well.
      seed: of the random numbers.

    Raises:
      ValueError: a field is out of range.
    """

    levels: int = 7
    kind: str = "natural"
    norm: str = "max"
    block: int = 4096
    norm_code: str = "float32"
    seed: int = 0
    biased: ClassVar[bool] = False
    stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        base.check_seed("dithering", self.seed)
        if self.norm not in _NORMS:
            raise ValueError(f"dithering: norm must be max or l2, got {self.norm!r}")
        for field in ("levels", "block"):
            base.check_integer("dithering", field, getattr(self, field))
        try:
            dithering_ops.check_parameters(*self._parameters)
        except ValueError as error:
            raise ValueError(f"dithering: {error}") from None

    @property
    def _parameters(self) -> tuple[int, str, str, int, str]:
        return self.levels, self.kind, _NORMS[self.norm], self.block, self.norm_code

    def num_words(self, num_values: Count) -> Count:
        return dithering_ops.num_words(num_values, *self._parameters)

    def _encode(self, values: tf.Tensor, draw: base.Draw, **inputs: Any) -> tuple[Any, Any]:
        key = draw.own_key(self.seed)
        return dithering_ops.dithering_encode(values, key, *self._parameters, **inputs)

    def _decode(self, words: tf.Tensor, num_values: Count, sum: bool) -> tf.Tensor:
        return dithering_ops.dithering_decode(words, num_values, *self._parameters, sum=sum)
