# SPDX-License-Identifier: Apache-2.0
"""Oracle of top-k selection (FORMAT.md, "Top-k" and "Top-k in chunks").

Items are float32 [n], or [n, c]: complex ones (real part first) for c = 2, wide ones for more.
"""

import math

import numpy as np
import positions_reference


def keys(items: np.ndarray, row_length: int = 0) -> np.ndarray:
    """float32 [n] or [n, c] -> uint32 [n]."""
    if items.ndim == 1:
        return np.minimum(items.view(np.uint32) & 0x7FFFFFFF, 0x7F800000)
    with np.errstate(invalid="ignore"):  # Inf and NaN are part of the contract
        energy = weights(items.shape[0], row_length) * sums_of_squares(items)
    return np.minimum((energy.view(np.uint64) >> 32).astype(np.uint32) & 0x7FFFFFFF, 0x7FF00000)


def sums_of_squares(items: np.ndarray) -> np.ndarray:
    """float32 [n, c] -> float64 [n], added in the order that FORMAT.md fixes."""
    sums = np.zeros((8, items.shape[0]))
    for i, component in enumerate(items.astype(np.float64).T):
        sums[i % 8] += component * component
    for half in (4, 2, 1):  # re^2 + im^2 for two components: the other sums are +0
        sums = sums[:half] + sums[half:]
    return sums[0]


def weights(n: int, row_length: int) -> np.ndarray:
    """float64 [n]: 2 for a bin that stands for its conjugate too."""
    if row_length == 0:
        return np.ones(n)
    row = np.full(row_length // 2 + 1, 2.0)
    row[0] = 1.0
    if row_length % 2 == 0:
        row[row_length // 2] = 1.0
    return np.tile(row, n // row.size)


def select(items: np.ndarray, k: int, row_length: int = 0) -> np.ndarray:
    """Positions of the kept items, ascending, int64 [k]."""
    by_falling_key = np.argsort(
        ~keys(items, row_length), kind="stable"
    )  # stable: lowest index first
    return np.sort(by_falling_key[:k])


def encode(items: np.ndarray, k: int, row_length: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """-> positions block uint32 [p], kept items float32 [k] or [k, c]."""
    positions = select(items, k, row_length)
    return positions_reference.encode(positions, items.shape[0]), items[positions]


def num_kept(density: float, n: int) -> int:
    """Of n >= 1 items."""
    return max(1, math.ceil(round(density * n, 6)))


def encode_chunked(items: np.ndarray, chunk: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """float32 [n] -> positions block uint32 [p], kept items float32 [k]."""
    positions = []
    for first in range(0, items.size, chunk):
        members = items[first : first + chunk]
        positions.extend(first + select(members, num_kept(density, members.size)))
    return positions_reference.encode(np.array(positions), items.size), items[positions]
