# SPDX-License-Identifier: Apache-2.0
"""Oracle of random-k (FORMAT.md, "Random-k"): k of n items, one from each stratum."""

import numpy as np
import philox_reference
import positions_reference


def begins(n: int, k: int) -> np.ndarray:
    """Where the strata begin, and where the last one ends: int64 [k + 1]."""
    if n * k < 2**63:
        return np.arange(k + 1, dtype=np.int64) * n // k
    return np.array([j * n // k for j in range(k + 1)], np.int64)  # Python's integers never wrap


def draw(key: tuple[int, int, int, int], n: int, k: int) -> np.ndarray:
    """Ascending positions, int64 [k]."""
    edges = begins(n, k).astype(np.uint64)
    words = philox_reference.random_words(key, k).astype(np.uint64)
    return (edges[:-1] + (np.diff(edges) * words >> np.uint64(32))).astype(np.int64)


def encode(key: tuple[int, int, int, int], n: int, k: int) -> np.ndarray:
    """-> positions block, uint32 [p]."""
    return positions_reference.encode(draw(key, n, k), n)


def scale(kept: np.ndarray, n: int) -> np.ndarray:
    """float32 [k] or [k, c], each item times the size of its stratum."""
    sizes = np.diff(begins(n, kept.shape[0])).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # Inf and NaN are part of the contract
        return kept * sizes.reshape(-1, *[1] * (kept.ndim - 1))
