# SPDX-License-Identifier: Apache-2.0
"""Oracle of selection by threshold (FORMAT.md, "Threshold") and of what chooses thresholds.

Items are float32 [n], or [n, c]: complex ones (real part first) for c = 2, wide ones for more.
"""

import math

import numpy as np
import positions_reference
import random_k_reference
import top_k_reference


def threshold_key(threshold: float, components: int) -> int:
    """The key of an item of t and zeros."""
    item = np.zeros((1, components), np.float32)
    item[0, 0] = threshold
    return int(top_k_reference.keys(item if components > 1 else item[:, 0])[0])


def select(items: np.ndarray, threshold: float, capacity: int, row_length: int = 0) -> np.ndarray:
    """Ascending positions of the kept items, int64."""
    components = items.reshape(items.shape[0], -1).shape[1]
    keys = top_k_reference.keys(items, row_length)
    reached = np.flatnonzero(keys >= threshold_key(threshold, components))
    if reached.size <= capacity:
        return reached
    return top_k_reference.select(items, capacity, row_length)


def encode(
    items: np.ndarray, threshold: float, capacity: int, row_length: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """-> counted positions block, uint32 [p]; kept items, float32 [capacity] or [capacity, c]."""
    positions = select(items, threshold, capacity, row_length)
    kept = np.zeros((capacity, *items.shape[1:]), np.float32)
    kept[: positions.size] = items[positions]
    return positions_reference.encode(positions, items.shape[0], capacity), kept


def sampled_key(
    items: np.ndarray,
    key: tuple[int, int, int, int],
    k: int,
    num_samples: int,
    row_length: int = 0,
) -> int:
    """The key of rank ceil(k * s / n) among the keys of s sampled items."""
    n = items.shape[0]
    sample = random_k_reference.draw(key, n, num_samples)
    keys = np.sort(top_k_reference.keys(items, row_length)[sample])[::-1]
    return int(keys[-(-k * num_samples // n) - 1])


def magnitudes(items: np.ndarray, row_length: int = 0) -> np.ndarray:
    """float64 [n]."""
    with np.errstate(invalid="ignore"):  # Inf and NaN are part of the contract
        if items.ndim == 1:
            return np.abs(items.astype(np.float64))
        energy = (items.astype(np.float64) ** 2).sum(axis=1)
        return np.sqrt(energy * top_k_reference.weights(items.shape[0], row_length))


def moments(items: np.ndarray, bound: float = 0.0, row_length: int = 0) -> list[float]:
    """[count, minimum, mean, variance, mean logarithm] of the finite magnitudes above the bound."""
    y = magnitudes(items, row_length)
    y = y[(y > bound) & np.isfinite(y)]
    if y.size == 0:
        return [0.0] * 5
    mean = math.fsum(y) / y.size
    variance = math.fsum((y - mean) ** 2) / y.size
    return [float(y.size), y.min(), mean, variance, math.fsum(np.log(y)) / y.size]
