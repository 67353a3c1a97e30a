# SPDX-License-Identifier: Apache-2.0
"""Parts that change nothing: the reference every other part is compared with."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.ops.counts import Count


@dataclasses.dataclass(frozen=True)
class NoTransform(base.Transform):
    """The gradient elements themselves are the coefficients."""

    def layout(self, num_elements: int) -> base.Layout:
        return base.Layout(num_elements)

    def forward(self, bucket: tf.Tensor) -> tf.Tensor:
        return bucket

    def inverse(self, coefficients: tf.Tensor, num_elements: int) -> tf.Tensor:
        return coefficients


@dataclasses.dataclass(frozen=True)
class Float32(base.Quantizer):
    """Values travel as they are, 32 bits each."""

    biased: ClassVar[bool] = False
    lossless: ClassVar[bool] = True
    addable: ClassVar[tf.DType | None] = tf.float32

    def num_words(self, num_values: Count) -> Count:
        return num_values

    def encode(
        self, values: tf.Tensor, residual: tf.Tensor | None, with_error: bool, draw: base.Draw
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        if residual is not None:
            values = values + residual
        error = tf.zeros_like(values) if with_error else None
        return tf.bitcast(tf.reshape(values, [-1]), tf.int32), error

    def decode(self, words: tf.Tensor, num_values: Count) -> tf.Tensor:
        return tf.bitcast(words, tf.float32)

    def all_finite(self, words: tf.Tensor) -> tf.Tensor:
        return tf.reduce_all(tf.math.is_finite(tf.bitcast(words, tf.float32)))

    def addends(self, words: tf.Tensor, num_values: int) -> tf.Tensor:
        return tf.bitcast(words, tf.float32)
