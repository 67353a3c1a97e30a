# SPDX-License-Identifier: Apache-2.0
"""What the quantizers on native operations have in common."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.ops.counts import Count

_FLAG_WORD = 0  # of the header; its bit 31 says that a value was not finite


class BlockQuantizer(base.Quantizer):
    """A quantizer with an encode and a decode operation, which add up and sum on their own."""

    @abc.abstractmethod
    def _encode(self, values: tf.Tensor, draw: base.Draw, **inputs: Any) -> tuple[Any, Any]:
        """Calls the encode operation; ``inputs`` are its ``residual`` and ``with_error``."""

    @abc.abstractmethod
    def _decode(self, words: tf.Tensor, num_values: Count, sum: bool) -> tf.Tensor:
        """Calls the decode operation."""

    def encode(
        self, values: tf.Tensor, residual: tf.Tensor | None, with_error: bool, draw: base.Draw
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        words, error = self._encode(values, draw, residual=residual, with_error=with_error)
        return words, error if with_error else None

    def decode(self, words: tf.Tensor, num_values: Count) -> tf.Tensor:
        return self._decode(words, num_values, sum=False)

    def decode_sum(self, words: tf.Tensor, num_values: Count) -> tf.Tensor:
        return self._decode(words, num_values, sum=True)

    def all_finite(self, words: tf.Tensor) -> tf.Tensor:
        return tf.reduce_all(words[:, _FLAG_WORD] >= 0)
