# SPDX-License-Identifier: Apache-2.0
"""Oracle of the FFT codec from the spectrum on: top-k of complex bins, then range float.

A spectrum is complex64 [rows, bins], each row the real transform of row_length values, so bins is
row_length // 2 + 1. The transform itself is not part of the wire format.
"""

import numpy as np
import positions_reference
import range_float_reference
import top_k_reference


def encode(
    spectrum: np.ndarray, k: int, row_length: int, num_bits: int, mantissa_bits: int
) -> np.ndarray:
    """complex64 [rows, bins] -> uint32 payload: positions of k bins, then 2 * k range floats."""
    items = np.ascontiguousarray(spectrum, np.complex64).view(np.float32).reshape(-1, 2)
    positions, kept = top_k_reference.encode(items, k, row_length)
    return np.concatenate([positions, range_float_reference.encode(kept, num_bits, mantissa_bits)])


def decode_sum(
    payloads: np.ndarray, shape: tuple[int, int], k: int, num_bits: int, mantissa_bits: int
) -> np.ndarray:
    """uint32 [W, words] -> complex64 of the given shape: the sum, float32, in worker order."""
    n = shape[0] * shape[1]
    p = positions_reference.num_words(n, k)
    kept = [
        range_float_reference.decode(words[p:], 2 * k, num_bits, mantissa_bits).reshape(k, 2)
        for words in payloads
    ]
    total = positions_reference.decode_sum(payloads[:, :p], np.stack(kept), n)
    return total.view(np.complex64).reshape(shape)
