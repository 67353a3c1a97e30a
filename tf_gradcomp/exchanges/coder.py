# SPDX-License-Identifier: Apache-2.0
"""A codec at work on one bucket, as transports need it."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.codecs.base import Codec, Draw, Layout


class BucketCoder:
    """A codec at work on the shards of one bucket, in one exchange; ``transports.base.Coder``."""

    def __init__(self, codec: Codec, layout: Layout, draw: Draw, num_workers: int) -> None:
        self.shape = layout.shape
        self.lossless = codec.lossless
        self.addable = codec.addable
        self._codec = codec
        self._layout = layout
        self._draw = draw
        self._num_workers = num_workers
        self._sent: dict[int, tf.Tensor | None] = {}  # positions, by shard
        self._num_words = tf.constant(0.0, tf.float64)

    def encode(
        self, shard: int, coefficients: tf.Tensor, residual: tf.Tensor | None, second: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        draw = self._draw._replace(shard=shard)
        if second:
            # Other random numbers, but for positions: a sum has no other items than its parts.
            draw = draw._replace(worker=draw.worker + self._num_workers)
        if second and residual is None and self._drops_items():
            # Random-k scales up what it keeps unless there is a residual: once is enough.
            zeros = tf.zeros(self.shape)
            return self._codec.encode(coefficients, zeros, self._layout, draw).payload, None
        encoded = self._codec.encode(coefficients, residual, self._layout, draw)
        if not second:
            self._sent[shard] = encoded.positions
            self._num_words = tf.cast(tf.size(encoded.payload), tf.float64)
        return encoded.payload, encoded.residual

    def without_sent(self, shard: int, coefficients: tf.Tensor) -> tf.Tensor:
        """Returns a shard's coefficients with zeros for the items that were encoded first."""
        return self._codec.without(coefficients, self._sent[shard], self._layout)

    def num_words(self) -> tf.Tensor:
        """Returns the 32-bit words of a shard's payload, a float64 scalar; 0 if there was none."""
        return self._num_words

    def _drops_items(self) -> bool:
        """Whether the payload has no room for all items; if nobody knows before, it may."""
        density = self._codec.density(self._layout)
        return tf.is_tensor(density) or density < 1

    def decode_sum(self, shard: int, payloads: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        draw = self._draw._replace(shard=shard)
        return self._codec.decode_sum(payloads, self._layout, draw)

    def addends(self, payload: tf.Tensor) -> tf.Tensor:
        return self._codec.addends(payload, self._layout)
