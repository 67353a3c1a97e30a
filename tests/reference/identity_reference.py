# SPDX-License-Identifier: Apache-2.0
"""Oracle of the identity quantizer (FORMAT.md, "Identity block"): bit patterns, unchanged."""

import numpy as np


def encode(values: np.ndarray) -> np.ndarray:
    """float32, any shape, v values in all -> uint32 [v]."""
    return np.ascontiguousarray(values, "<f4").reshape(-1).view("<u4")


def decode(words: np.ndarray, count: int) -> np.ndarray:
    """uint32 [count] -> float32 [count]. ValueError if the block has another length."""
    if words.shape != (count,):
        raise ValueError(f"words has shape {words.shape}, expected ({count},)")
    return np.ascontiguousarray(words, "<u4").view("<f4")
