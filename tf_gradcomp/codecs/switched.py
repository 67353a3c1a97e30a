# SPDX-License-Identifier: Apache-2.0
"""A quantizer whose bits are known only when the graph runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.ops.counts import Count


@dataclasses.dataclass(frozen=True)
class Switched(base.Quantizer):
    """One quantizer for each number of bits, of which an exchange runs one.

    A graph holds the operations of all of them, and payloads have no static size.

    Attributes:
      quantizers: alike but for their bits, which go up by 1; none is lossless or addable.
      fewest_bits: those of the first one.
      bits: int32 scalar, those in use, the same on all workers. Fewer than the first one's mean
        the first one, more than the last one's the last one.
    """

    quantizers: tuple[base.Quantizer, ...]
    fewest_bits: int
    bits: tf.Tensor
    adjustable: ClassVar[bool] = True

    @property
    def bits_range(self) -> tuple[int, int]:
        return self.fewest_bits, self.fewest_bits + len(self.quantizers) - 1

    def at(self, bits: tf.Tensor) -> Switched:
        return dataclasses.replace(self, bits=bits)

    @property
    def biased(self) -> bool:
        return self.quantizers[0].biased

    @property
    def stochastic(self) -> bool:
        return self.quantizers[0].stochastic

    def num_words(self, num_values: Count) -> tf.Tensor:
        with tf.device("CPU:0"):  # which is where numbers of words are needed
            words = [quantizer.num_words(num_values) for quantizer in self.quantizers]
            return tf.convert_to_tensor(words, tf.int64)[self._index()]

    def encode(
        self, values: tf.Tensor, residual: tf.Tensor | None, with_error: bool, draw: base.Draw
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        if not with_error:
            words = self._run(lambda quantizer: quantizer.encode(values, residual, False, draw)[0])
            return words, None
        words, error = self._run(lambda quantizer: quantizer.encode(values, residual, True, draw))
        return words, error

    def decode(self, words: tf.Tensor, num_values: Count) -> tf.Tensor:
        return self._run(lambda quantizer: quantizer.decode(words, num_values))

    def decode_sum(self, words: tf.Tensor, num_values: Count) -> tf.Tensor:
        return self._run(lambda quantizer: quantizer.decode_sum(words, num_values))

    def all_finite(self, words: tf.Tensor) -> tf.Tensor:
        return self._run(lambda quantizer: quantizer.all_finite(words))

    def _index(self) -> tf.Tensor:
        with tf.device("CPU:0"):  # which is where it is decided what runs
            fewest, most = self.bits_range
            return tf.clip_by_value(self.bits, fewest, most) - fewest

    def _run(self, call: Callable[[base.Quantizer], Any]) -> Any:
        """Calls a method of the quantizer that is in use."""

        def branch(quantizer: base.Quantizer) -> Callable[[], Any]:
            return lambda: call(quantizer)

        return tf.switch_case(self._index(), list(map(branch, self.quantizers)))


def by_bits(quantizer: Any, bits: tf.Tensor) -> Switched:
    """Returns a quantizer of any bits in its ``bits_range``, with all other fields as they are.

    Args:
      quantizer: a dataclass with a field ``bits``.
      bits: int32 scalar, the same on all workers.
    """
    fewest, most = quantizer.bits_range
    quantizers = [dataclasses.replace(quantizer, bits=n) for n in range(fewest, most + 1)]
    return Switched(tuple(quantizers), fewest, bits)
