# SPDX-License-Identifier: Apache-2.0
"""Oracle of block masks (FORMAT.md, "Block mask"), and of packing by them."""

import numpy as np


def blocks(values: np.ndarray, block_size: int) -> np.ndarray:
    """float32 of any shape -> [b, block_size], the last one filled up with +0."""
    values = np.ravel(values)
    padding = np.zeros(-values.size % block_size, np.float32)
    return np.concatenate([values, padding]).reshape(-1, block_size)


def to_mask(is_set: np.ndarray) -> np.ndarray:
    """bool [b] -> uint32 [ceil(b / 32)]."""
    padded = np.zeros(-(-is_set.size // 32) * 32, bool)
    padded[: is_set.size] = is_set
    return np.packbits(padded, bitorder="little").view("<u4")


def nonzero(values: np.ndarray, block_size: int) -> np.ndarray:
    """-> bool [b]."""
    patterns = blocks(values, block_size).view(np.uint32)
    return (patterns & 0x7FFFFFFF).any(axis=1)


def take(is_set: np.ndarray, values: np.ndarray, block_size: int) -> np.ndarray:
    """-> float32 [u, block_size]."""
    return blocks(values, block_size)[is_set]


def put(is_set: np.ndarray, packed: np.ndarray, size: int) -> np.ndarray:
    """-> float32 [size]."""
    dense = np.zeros((is_set.size, packed.shape[1]), np.float32)
    dense[is_set] = packed
    return dense.reshape(-1)[:size]
