# SPDX-License-Identifier: Apache-2.0
"""The pipelines that `tf-gradcomp bench codecs` times: ours, and one in plain TensorFlow.

Both do what one worker does around the exchange of a bucket of `n` float32 gradient elements:
`encode` runs up to the payload and stores the residual, `decode_sum` goes from all workers'
payloads to the summed bucket. Each is one `tf.function`, as in a training step. The bucket is an
argument and not a constant, which TensorFlow would fold for small buckets.
"""

from __future__ import annotations

import math
from typing import Protocol

import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.codecs import base
from tf_gradcomp.compression import Compression

_ROW_LENGTH = 4096
_DENSITY = 0.15


class Pipeline(Protocol):
    """One worker's side of an exchange."""

    def encode(self, bucket: tf.Tensor) -> tf.Tensor:
        """Maps float32 `[n]` to int32 `[m]` and stores what that loses, if it is kept."""

    def decode_sum(self, payloads: tf.Tensor) -> tf.Tensor:
        """Maps int32 `[W, m]` to float32 `[n]`."""

    def reset(self) -> None:
        """Sets the residual to zero."""


class CodecPipeline:
    """A codec's compression, applied as the reducer applies it."""

    def __init__(self, compression: Compression, num_elements: int) -> None:
        codec = compression.build()
        assert isinstance(codec, base.Codec)
        self._codec = codec
        self._num_elements = num_elements
        # A kernel of 1,024 outputs, for transforms that look at shapes; with view=auto along them.
        shape = (num_elements // 1024, 1024) if num_elements % 1024 == 0 else (num_elements,)
        transform = codec.transform.fit([base.VariableShape(shape)])
        names = transform.candidates[0] if transform.candidates else ()
        # An argument, too: a choice that is no constant takes the way it takes in training.
        self._choice = tf.constant([names.index("output") if "output" in names else 0])
        self._transform = transform
        self._layout = transform.layout(num_elements)
        self._draw = base.Draw(bucket=0, worker=0, step=tf.constant(1))
        self._residual = (
            state.local_zeros(self._layout.shape, "CPU:0", "residual")
            if compression.error_feedback
            else None
        )
        # An argument: as a constant, it would let TensorFlow remove the condition in `commit`.
        self._finite = tf.constant(True)
        # One function per object: one for all would count as retracing.
        self._encode = tf.function(self._encode_step, autograph=False)
        self._decode = tf.function(self._decode_step, autograph=False)

    def encode(self, bucket: tf.Tensor) -> tf.Tensor:
        return self._encode(bucket, self._finite, self._choice)

    def decode_sum(self, payloads: tf.Tensor) -> tf.Tensor:
        total, _ = self._decode(payloads, self._choice)
        return total

    def _encode_step(self, bucket: tf.Tensor, finite: tf.Tensor, choice: tf.Tensor) -> tf.Tensor:
        coefficients = self._transform.at(choice).forward(bucket)
        residual = None if self._residual is None else self._residual.read_value()
        encoded = self._codec.encode(coefficients, residual, self._layout, self._draw)
        if self._residual is not None:
            assert encoded.residual is not None
            state.commit(finite, [(self._residual, encoded.residual)])
        return encoded.payload

    def _decode_step(self, payloads: tf.Tensor, choice: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        total, finite = self._codec.decode_sum(payloads, self._layout, self._draw)
        return self._transform.at(choice).inverse(total, self._num_elements), finite

    def reset(self) -> None:
        if self._residual is not None:
            self._residual.assign(tf.zeros(self._layout.shape))


class PythonBaseline:
    """The default FFT codec's job, as a good user of TensorFlow's own operations would do it.

    FFT in rows of 4096; the 15 % of the bins with the most energy in the whole bucket, conjugate
    pairs counted twice; kept bins as pairs of float16, scaled by the largest so that they neither
    overflow nor vanish; indices as int32; error feedback in the spectrum. The payload is
    `scale | k indices | k pairs`.
    """

    def __init__(self, num_elements: int) -> None:
        self._num_elements = num_elements
        self._num_rows = -(-num_elements // _ROW_LENGTH)
        self._num_bins = _ROW_LENGTH // 2 + 1
        self._num_items = self._num_rows * self._num_bins
        self._num_kept = math.ceil(_DENSITY * self._num_items)
        self._pair_weights = tf.constant([1.0] + [2.0] * (self._num_bins - 2) + [1.0])
        self._residual = tf.Variable(
            tf.zeros([self._num_rows, self._num_bins], tf.complex64), trainable=False
        )

    @tf.function(autograph=False)
    def encode(self, bucket: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(bucket, [[0, self._num_rows * _ROW_LENGTH - self._num_elements]])
        spectrum = tf.signal.rfft(tf.reshape(padded, [-1, _ROW_LENGTH])) + self._residual
        energies = self._pair_weights * (
            tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum))
        )
        _, indices = tf.math.top_k(tf.reshape(energies, [-1]), self._num_kept, sorted=False)
        items = _to_pairs(spectrum)
        kept = tf.gather(items, indices)
        scale = tf.reduce_max(tf.abs(kept))
        codes = tf.cast(tf.math.divide_no_nan(kept, scale), tf.float16)
        error = kept - tf.cast(codes, tf.float32) * scale
        residual = tf.tensor_scatter_nd_update(items, indices[:, tf.newaxis], error)
        self._residual.assign(self._from_pairs(residual))
        return tf.concat(
            [tf.bitcast(scale, tf.int32)[tf.newaxis], indices, tf.bitcast(codes, tf.int32)], axis=0
        )

    @tf.function(autograph=False)
    def decode_sum(self, payloads: tf.Tensor) -> tf.Tensor:
        scales, indices, codes = tf.split(payloads, [1, self._num_kept, self._num_kept], axis=1)
        values = tf.cast(tf.bitcast(codes, tf.float16), tf.float32)
        values *= tf.bitcast(scales, tf.float32)[:, :, tf.newaxis]
        total = tf.scatter_nd(
            tf.reshape(indices, [-1, 1]), tf.reshape(values, [-1, 2]), [self._num_items, 2]
        )
        padded = tf.signal.irfft(self._from_pairs(total))
        return tf.reshape(padded, [-1])[: self._num_elements]

    def reset(self) -> None:
        self._residual.assign(tf.zeros_like(self._residual))

    def _from_pairs(self, pairs: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.bitcast(pairs, tf.complex64), [self._num_rows, self._num_bins])


def _to_pairs(spectrum: tf.Tensor) -> tf.Tensor:
    """Maps complex64 of any shape to float32 `[N, 2]`."""
    return tf.reshape(tf.bitcast(spectrum, tf.float32), [-1, 2])
