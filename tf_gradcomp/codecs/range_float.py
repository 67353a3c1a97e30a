# SPDX-License-Identifier: Apache-2.0
"""Range-based float of SuperNeurons: floating-point spacing, codes only where the data are.

Source: Wang et al., HPDC 2020 (see ``fft.py``). The construction here is a reconstruction, as
the paper's constants are not public; ``custom_ops/core/FORMAT.md`` defines it bit by bit.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base, switched
from tf_gradcomp.ops import range_float as range_float_ops
from tf_gradcomp.ops.counts import Count

MIN_BITS, MAX_BITS = 6, 12


@dataclasses.dataclass(frozen=True)
class RangeFloat(base.Quantizer):
    """``bits``-bit floats whose exponent range is taken from the values themselves.

    The 2^bits - 1 codes other than zero are the floats with ``mantissa_bits`` bits of mantissa
    that lie nearest below the largest positive and above the smallest negative value; smaller
    magnitudes round to zero or the smallest code. Relative error within the range is at most
    ``2^-(mantissa_bits + 1)``. Biased (round to nearest).

    Attributes:
      bits: code length N in bits, 6..12.
      mantissa_bits: m, 1..N-2. More mantissa bits mean finer steps over fewer octaves: about
        ``2^(N-1-m)`` of them. ``None`` is ``bits - 4``, eight octaves.

    Raises:
      ValueError: a field is out of range.
    """

    bits: int = 10
    mantissa_bits: int | None = None
    biased: ClassVar[bool] = True
    adjustable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        base.check_range("range float", "bits", self.bits, MIN_BITS, MAX_BITS, low_open=False)
        if self.mantissa_bits is not None:
            base.check_range(
                "range float", "mantissa_bits", self.mantissa_bits, 1, self.bits - 2, low_open=False
            )

    @property
    def bits_range(self) -> tuple[int, int]:
        fewest = MIN_BITS if self.mantissa_bits is None else self.mantissa_bits + 2
        return max(fewest, MIN_BITS), MAX_BITS

    def at(self, bits: tf.Tensor) -> switched.Switched:
        return switched.by_bits(self, bits)

    @property
    def mantissa(self) -> int:
        """The number m of mantissa bits in use."""
        return self.bits - 4 if self.mantissa_bits is None else self.mantissa_bits

    def num_words(self, num_values: Count) -> Count:
        return range_float_ops.num_words(num_values, self.bits)

    def encode(
        self, values: tf.Tensor, residual: tf.Tensor | None, with_error: bool, draw: base.Draw
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        if residual is not None:
            values = values + residual
        words, error = range_float_ops.range_float_encode(values, self.bits, self.mantissa)
        return words, error if with_error else None

    def decode(self, words: tf.Tensor, num_values: Count) -> tf.Tensor:
        return range_float_ops.range_float_decode(words, num_values, self.bits, self.mantissa)

    def all_finite(self, words: tf.Tensor) -> tf.Tensor:
        # The flag is the top bit of the header's last word: its sign.
        return tf.reduce_all(words[:, range_float_ops.HEADER_WORDS - 1] >= 0)
