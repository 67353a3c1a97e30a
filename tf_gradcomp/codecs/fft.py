# SPDX-License-Identifier: Apache-2.0
"""The flat real Fourier transform of SuperNeurons.

Source: Wang et al., "FFT-based Gradient Sparsification for the Distributed Training of Deep
Neural Networks", HPDC 2020 (DOI 10.1145/3369583.3392681). The paper transforms a whole tensor
at once; rows of a fixed power of two cost less, run on all cores and spread an error less far.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_gradcomp.codecs import base

MAX_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class FFT(base.Transform):
    """Unnormalised real FFT of a bucket, in rows.

    Item ``r * (L // 2 + 1) + b`` is bin ``b`` of row ``r``; the last row is padded with zeros.
    No scaling is applied on the way out (``tf.signal.irfft`` divides by ``L``): quantizers take
    their range from the data.

    Attributes:
      chunk: row length ``L``, a power of two from 2 to 2**20 elements. ``None`` transforms the
        whole bucket at once, as the paper does, padded to the next length of the form
        ``2^a 3^b 5^c``, for which a fast transform exists.

    Raises:
      ValueError: ``chunk`` is not a power of two in range.
    """

    chunk: int | None = 4096

    def __post_init__(self) -> None:
        chunk = self.chunk
        if chunk is None:
            return
        if isinstance(chunk, bool) or not isinstance(chunk, int):
            raise ValueError(f"fft: chunk must be an integer or None, got {chunk!r}")
        if not 2 <= chunk <= MAX_CHUNK or chunk & (chunk - 1):
            raise ValueError(
                f"fft: chunk must be a power of two from 2 to {MAX_CHUNK}, or none, got {chunk}"
            )

    def row_length(self, num_elements: int) -> int:
        """Returns ``L`` for a bucket of ``num_elements``."""
        return self.chunk if self.chunk is not None else next_fast_length(num_elements)

    def layout(self, num_elements: int) -> base.Layout:
        length = self.row_length(num_elements)
        num_rows = -(-num_elements // length)
        return base.Layout(num_rows * (length // 2 + 1), components=2, row_length=length)

    def forward(self, bucket: tf.Tensor) -> tf.Tensor:
        num_elements = bucket.shape[0]
        length = self.row_length(num_elements)
        padding = -num_elements % length
        if padding:
            bucket = tf.pad(bucket, [[0, padding]])
        spectrum = tf.signal.rfft(tf.reshape(bucket, [-1, length]))
        return tf.reshape(tf.bitcast(spectrum, tf.float32), [-1, 2])

    def inverse(self, coefficients: tf.Tensor, num_elements: int) -> tf.Tensor:
        length = self.row_length(num_elements)
        rows = tf.reshape(coefficients, [-1, length // 2 + 1, 2])
        spectrum = tf.bitcast(rows, tf.complex64)
        padded = tf.reshape(tf.signal.irfft(spectrum, fft_length=[length]), [-1])
        return padded[:num_elements]


def next_fast_length(num_elements: int) -> int:
    """Returns the smallest even ``2^a 3^b 5^c`` that is at least ``num_elements`` and 2."""
    target = max(2, num_elements)
    best = 1 << (target - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            power = max(1, (-(-target // three) - 1).bit_length())
            best = min(best, three << power)
            three *= 3
        five *= 5
    return best
