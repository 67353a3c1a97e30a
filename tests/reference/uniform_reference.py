# SPDX-License-Identifier: Apache-2.0
"""Oracle of the uniform quantizer (FORMAT.md, "Uniform block"); the names are those of FORMAT."""

import numpy as np
import philox_reference

FRACTION = 23
NON_FINITE = 1 << 31
NAN = np.uint32(0x7FC00000).view(np.float32)
Key = tuple[int, int, int, int]


def num_words(v: int, num_bits: int, block: int) -> int:
    return 1 + 2 * -(-v // block) + -(-v * num_bits // 32)


def quantize(
    x: np.ndarray, lo: float, hi: float, num_bits: int, u: np.ndarray | None
) -> np.ndarray:
    """float32 [b], random words uint32 [b] or None -> codes, int64 [b]."""
    L, lo, hi = 2**num_bits - 1, np.float64(lo), np.float64(hi)
    scale = np.float64(L * 2**FRACTION) / (hi - lo) if hi > lo else np.float64(0)
    position = np.floor((x.astype(np.float64) - lo) * scale + 0.5).astype(np.int64)
    code, fraction = np.divmod(position, 2**FRACTION)
    if u is None:
        return code + (2 * fraction >= 2**FRACTION)
    return code + (u.astype(np.int64) < fraction << 32 - FRACTION)


def dequantize(codes: np.ndarray, lo: float, hi: float, num_bits: int) -> np.ndarray:
    """Codes, int64 [b] -> float32 [b]."""
    L, c = np.float64(2**num_bits - 1), codes.astype(np.float64)
    return (np.float64(lo) / L * (L - c) + np.float64(hi) / L * c).astype(np.float32)


def pack(codes: np.ndarray, num_bits: int) -> np.ndarray:
    """Codes [v] -> uint32 [ceil(v * num_bits / 32)]."""
    stream = np.zeros(-(-codes.size * num_bits // 32) * 32, np.uint8)
    stream[: codes.size * num_bits] = ((codes[:, None] >> np.arange(num_bits)) & 1).reshape(-1)
    return np.packbits(stream, bitorder="little").view("<u4")


def unpack(words: np.ndarray, v: int, num_bits: int) -> np.ndarray:
    """uint32 words -> codes, int64 [v]."""
    stream = np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8), bitorder="little")
    bits = stream[: v * num_bits].reshape(v, num_bits).astype(np.int64)
    return (bits << np.arange(num_bits)).sum(axis=1)


def encode(
    values: np.ndarray,
    num_bits: int,
    block: int,
    key: Key | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """float32, any shape, v values in all -> uint32 [num_words(v, num_bits, block)]."""
    x = meant(values, residual)
    v = x.size
    bounds = np.zeros((-(-v // block), 2), np.float32)
    codes = np.zeros(v, np.int64)
    finite = bool(np.isfinite(x).all())
    if finite:
        u = None if key is None else philox_reference.random_words(key, v)
        for i in range(len(bounds)):
            part = slice(i * block, (i + 1) * block)
            bounds[i] = lo, hi = x[part].min() + np.float32(0), x[part].max() + np.float32(0)
            codes[part] = quantize(x[part], lo, hi, num_bits, None if u is None else u[part])
    header = np.array([num_bits | (0 if finite else NON_FINITE)], "<u4")
    return np.concatenate([header, bounds.reshape(-1).view("<u4"), pack(codes, num_bits)])


def decode(words: np.ndarray, v: int, num_bits: int, block: int) -> np.ndarray:
    """uint32 [num_words(v, num_bits, block)] -> float32 [v]. ValueError if it is no such block."""
    words = np.ascontiguousarray(words, "<u4")
    if words.shape != (num_words(v, num_bits, block),):
        raise ValueError(f"words has shape {words.shape}")
    if words[0] % NON_FINITE != num_bits:
        raise ValueError(f"header word {int(words[0]):#010x}")
    blocks = -(-v // block)
    patterns = words[1 : 1 + 2 * blocks]
    bounds = patterns.view(np.float32).reshape(blocks, 2)
    ordered = np.isfinite(bounds).all() and (bounds[:, 0] <= bounds[:, 1]).all()
    if not ordered or (patterns == NON_FINITE).any():
        raise ValueError("bounds are not finite, not in order, or -0")
    if words[0] >> 31:
        if patterns.any():
            raise ValueError("a block marked non-finite has bounds")
        return np.full(v, NAN)
    codes = unpack(words[1 + 2 * blocks :], v, num_bits)
    result = np.empty(v, np.float32)
    for i, (lo, hi) in enumerate(bounds):
        part = slice(i * block, (i + 1) * block)
        result[part] = dequantize(codes[part], lo, hi, num_bits)
    return result


def decode_sum(blocks: np.ndarray, v: int, num_bits: int, block: int) -> np.ndarray:
    """uint32 [W, num_words(v, num_bits, block)] -> float32 [v], added up in order from +0."""
    total = np.zeros(v, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for words in blocks:
            total = total + decode(words, v, num_bits, block)
    return total


def error(
    values: np.ndarray,
    words: np.ndarray,
    num_bits: int,
    block: int,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """x minus what it decodes to, float32 like values, kept finite; 0 if any x is not finite."""
    x = meant(values, residual)
    if not np.isfinite(x).all():
        return np.zeros(np.shape(values), np.float32)
    largest = np.finfo(np.float32).max
    with np.errstate(over="ignore"):
        lost = np.clip(x - decode(words, x.size, num_bits, block), -largest, largest)
    return lost.reshape(np.shape(values))


def meant(values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """x, float32 [v]."""
    x = np.asarray(values, np.float32).reshape(-1)
    if residual is None:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        return x + np.asarray(residual, np.float32).reshape(-1)
