# SPDX-License-Identifier: Apache-2.0
"""Orthonormal transforms along axes of a tensor, as products with small matrices.

An axis is transformed in blocks of at most 64 elements: as fast as a copy or two, whatever the
axis' length and place, without transposing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

MAX_BLOCK = 64

BASES = ("dct", "fft")


@functools.cache
def matrix(basis: str, length: int) -> np.ndarray:
    """Returns the transform of ``length`` values, an orthonormal float32 ``[length, length]``.

    Args:
      basis: ``"dct"``, the type II discrete cosine transform, or ``"fft"``, the real and
        imaginary parts of the discrete Fourier transform's first half, scaled by the square root
        of 2 where they stand for a conjugate pair.
      length: number of values, at least 1.
    """
    position = np.arange(length)
    if basis == "dct":
        rows = np.cos(np.pi / length * np.outer(position, position + 0.5))
    else:
        angles = 2 * np.pi / length * np.outer(position, position)
        waves = np.stack([np.cos(angles), np.sin(angles)], axis=1).reshape(-1, length)
        # The sine of frequency 0 is zero, and so is that of the highest one of an even length.
        rows = np.concatenate([waves[:1], waves[2 : length + 1]])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def transform_axes(
    tensor: tf.Tensor, shape: Sequence[int], axes: Sequence[int], basis: str, inverse: bool
) -> tf.Tensor:
    """Transforms a tensor along some of its axes.

    Args:
      tensor: float32 ``[n]``, flattened in row-major order.
      shape: its shape, with ``n`` elements.
      axes: the axes, from 0 to ``len(shape) - 1``.
      basis: a name in ``BASES``.
      inverse: whether to undo the transform instead.

    Returns:
      float32 ``[n]``.
    """
    for axis in axes:
        outer, length = math.prod(shape[:axis]), shape[axis]
        inner = math.prod(shape[axis + 1 :])
        tensor = _transform_middle(tf.reshape(tensor, [outer, length, inner]), basis, inverse)
    return tf.reshape(tensor, [-1])


def _transform_middle(tensor: tf.Tensor, basis: str, inverse: bool) -> tf.Tensor:
    """Transforms float32 ``[outer, length, inner]`` along its middle axis, block by block."""
    outer, length, inner = tensor.shape
    num_blocks = -(-length // MAX_BLOCK)
    size, num_longer = divmod(length, num_blocks)
    parts, start = [], 0
    for count, block in ((num_longer, size + 1), (num_blocks - num_longer, size)):
        if not count:
            continue
        part = tensor if count == num_blocks else tensor[:, start : start + count * block]
        start += count * block
        weights = tf.constant(matrix(basis, block))
        if inner == 1:
            part = tf.matmul(tf.reshape(part, [-1, block]), weights, transpose_b=not inverse)
        else:
            part = tf.matmul(weights, tf.reshape(part, [-1, block, inner]), transpose_a=inverse)
        parts.append(tf.reshape(part, [outer, count * block, inner]))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)
