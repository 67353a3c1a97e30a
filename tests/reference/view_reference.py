# SPDX-License-Identifier: Apache-2.0
"""Oracle of the views: orthonormal transforms along an axis, each coefficient a sum of its own."""

import math

import numpy as np


def blocks(length: int) -> list[int]:
    """Sizes of the blocks of an axis: as few as can be of at most 64, equal but for one element."""
    count = math.ceil(length / 64)
    return [length // count + (index < length % count) for index in range(count)]


def along(array: np.ndarray, axis: int, basis: str) -> np.ndarray:
    """The coefficients of an array along one axis, block by block, in float64."""
    rows = np.moveaxis(np.asarray(array, np.float64), axis, 0)
    parts, start = [], 0
    for size in blocks(len(rows)):
        block = rows[start : start + size]
        transform = {"dct": _cosine, "fft": _fourier}[basis]
        parts.append(np.stack([transform(block, index) for index in range(size)]))
        start += size
    return np.moveaxis(np.concatenate(parts), 0, axis)


def _cosine(block: np.ndarray, k: int) -> np.ndarray:
    n = len(block)
    scale = math.sqrt((1 if k == 0 else 2) / n)
    return scale * sum(block[i] * math.cos(math.pi * (2 * i + 1) * k / (2 * n)) for i in range(n))


def _fourier(block: np.ndarray, index: int) -> np.ndarray:
    """Frequency 0, then the real and the imaginary part of frequency 1, of frequency 2, ..."""
    n = len(block)
    frequency = (index + 1) // 2
    is_pair = 0 < frequency < n / 2
    scale = math.sqrt((2 if is_pair else 1) / n)
    wave = math.cos if index == 0 or index % 2 == 1 else math.sin
    return scale * sum(block[i] * wave(2 * math.pi * i * frequency / n) for i in range(n))
