# SPDX-License-Identifier: Apache-2.0
"""Oracle of top-k selection (FORMAT.md, "Top-k").

Items are float32 [n], or [n, 2] for complex ones (real part first).
"""

import numpy as np
import positions_reference


def keys(items: np.ndarray, row_length: int = 0) -> np.ndarray:
    """float32 [n] or [n, 2] -> uint32 [n]."""
    if items.ndim == 1:
        return np.minimum(items.view(np.uint32) & 0x7FFFFFFF, 0x7F800000)
    with np.errstate(invalid="ignore"):  # Inf and NaN are part of the contract
        re, im = items.astype(np.float64).T
        energy = weights(items.shape[0], row_length) * (re * re + im * im)
    return np.minimum((energy.view(np.uint64) >> 32).astype(np.uint32) & 0x7FFFFFFF, 0x7FF00000)


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
    """-> positions block uint32 [p], kept items float32 [k] or [k, 2]."""
    positions = select(items, k, row_length)
    return positions_reference.encode(positions, items.shape[0]), items[positions]
