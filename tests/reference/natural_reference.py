# SPDX-License-Identifier: Apache-2.0
"""Oracle of natural compression (FORMAT.md, "Natural block").

Written from the paper's definition, in logarithms and probabilities rather than bit patterns. The
names E, p and u are those of FORMAT.md.
"""

import numpy as np
import philox_reference

BLOCK = 4096
HEADER = 12
NON_FINITE = 1 << 31
NAN = np.uint32(0x7FC00000).view(np.float32)
Key = tuple[int, int, int, int]


def num_blocks(v: int) -> int:
    return -(-v // BLOCK)


def num_words(v: int) -> int:
    return 1 + -(-num_blocks(v) // 4) + -(-v // 4)


def block_exponent(x: np.ndarray) -> int:
    """E of finite values."""
    largest = float(np.abs(x).max(initial=0))
    if largest == 0:
        return 0
    fraction, exponent = np.frexp(largest)  # largest = fraction * 2^exponent, 1/2 <= fraction < 1
    ceiling = int(exponent) - (fraction == 0.5)
    return min(max(ceiling + 127, 104), 254)


def quantize(x: np.ndarray, u: np.ndarray, E: int) -> np.ndarray:
    """float32 [b], uint32 [b] -> codes, int64 [b]. Binary64 holds all that is computed, exactly."""
    magnitude, u = np.abs(x).astype(np.float64), u.astype(np.float64)
    p = 2.0 ** (E - 253)
    fraction, exponent = np.frexp(magnitude)
    lower = exponent - 1  # floor(log2(magnitude))
    promote = u < (2 * fraction - 1) * 2.0**32
    codes = np.minimum(lower + promote + 127 - (E - 127), 127)
    codes = np.where(magnitude < p, u < magnitude / p * 2.0**32, codes)
    return np.where((x < 0) & (codes > 0), codes + 128, codes).astype(np.int64)


def dequantize(codes: np.ndarray, E: int) -> np.ndarray:
    """Codes, int64 [b] -> float32 [b]."""
    c = codes % 128
    magnitude = np.where((c == 0) | (E == 0), 0.0, 2.0 ** (c - 127.0 + E - 127.0))
    return np.where(codes >= 128, -magnitude, magnitude).astype(np.float32)


def encode(values: np.ndarray, key: Key, residual: np.ndarray | None = None) -> np.ndarray:
    """float32, any shape, v values in all -> uint32 [num_words(v)]."""
    x = meant(values, residual)
    v = x.size
    words = np.zeros(num_words(v), "<u4")
    if not np.isfinite(x).all():
        words[0] = HEADER | NON_FINITE
        return words
    words[0] = HEADER
    u = philox_reference.random_words(key, v)
    exponents, codes = _bytes(words, v)
    for b in range(num_blocks(v)):
        part = slice(b * BLOCK, min(v, (b + 1) * BLOCK))
        exponents[b] = block_exponent(x[part])
        codes[part] = quantize(x[part], u[part], int(exponents[b]))
    return words


def decode(words: np.ndarray, v: int) -> np.ndarray:
    """uint32 [num_words(v)] -> float32 [v]. ValueError if it is no such block."""
    words = np.ascontiguousarray(words, "<u4")
    if words.shape != (num_words(v),):
        raise ValueError(f"words has shape {words.shape}")
    non_finite, header = words[0] >> 31, words[0] % 2**31
    if header != HEADER:
        raise ValueError(f"header word {int(words[0]):#010x}")
    exponents, codes = _bytes(words, v)
    used = exponents[: num_blocks(v)]
    if exponents[num_blocks(v) :].any() or ((used != 0) & ((used < 104) | (used > 254))).any():
        raise ValueError("an exponent byte is not one of 0, 104..254")
    if non_finite:
        if used.any():
            raise ValueError("a block marked non-finite has exponents")
        return np.full(v, NAN)
    result = np.empty(v, np.float32)
    for b in range(num_blocks(v)):
        part = slice(b * BLOCK, min(v, (b + 1) * BLOCK))
        result[part] = dequantize(codes[part].astype(np.int64), int(exponents[b]))
    return result


def decode_sum(blocks: np.ndarray, v: int) -> np.ndarray:
    """uint32 [W, num_words(v)] -> float32 [v], added up in order from +0."""
    total = np.zeros(v, np.float32)
    for words in blocks:
        total = total + decode(words, v)
    return total


def error(values: np.ndarray, words: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    """x minus what it decodes to, float32 like values; 0 everywhere if any x is not finite."""
    x = meant(values, residual)
    if not np.isfinite(x).all():
        return np.zeros(np.shape(values), np.float32)
    return (x - decode(words, x.size)).reshape(np.shape(values))


def meant(values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """x, float32 [v]."""
    x = np.asarray(values, np.float32).reshape(-1)
    if residual is None:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        return x + np.asarray(residual, np.float32).reshape(-1)


def _bytes(words: np.ndarray, v: int) -> tuple[np.ndarray, np.ndarray]:
    """Views of the exponent bytes, padding included, and of the v code bytes."""
    exponent_words = -(-num_blocks(v) // 4)
    exponents = words[1 : 1 + exponent_words].view(np.uint8)
    return exponents, words[1 + exponent_words :].view(np.uint8)[:v]
