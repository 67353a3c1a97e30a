# SPDX-License-Identifier: Apache-2.0
"""Oracle of the one bit quantizer (FORMAT.md, "One bit block"), a group of 32 values at a time."""

import numpy as np

SEGMENT = 4096
GROUP = 32
LANES = 16
NON_FINITE = 1 << 31
NAN = np.uint32(0x7FC00000).view(np.float32)


def layout(v: int, block: int) -> tuple[int, int, int]:
    """How many scales, groups and flag words (as many as spare words) there are."""
    scales = -(-v // block) if block else min(v, 1)
    groups = -(-v // GROUP)
    return scales, groups, -(-groups // 32)


def num_words(v: int, block: int) -> int:
    scales, groups, flags = layout(v, block)
    return 1 + scales + groups + 2 * flags


def parts(words: np.ndarray, v: int, block: int) -> list[np.ndarray]:
    """Views of the scales (float32), flags, signs and spares."""
    scales, groups, flags = layout(v, block)
    found = np.split(words[1:], np.cumsum([scales, flags, groups]))
    return [found[0].view(np.float32), *found[1:]]


def sum_of_magnitudes(x: np.ndarray) -> float:
    """The binary64 sum of one segment in the order of FORMAT.md."""
    rows = np.zeros(-(-x.size // LANES) * LANES)
    rows[: x.size] = np.abs(x)
    lanes = np.zeros(LANES)
    for row in rows.reshape(-1, LANES):
        lanes = lanes + row
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return float(lanes[0])


def word_of(bits: np.ndarray) -> int:
    return sum(1 << i for i in np.flatnonzero(bits).tolist())


def encode(values: np.ndarray, block: int, residual: np.ndarray | None = None) -> np.ndarray:
    """float32, any shape, v values in all -> uint32 [num_words(v, block)]."""
    x = meant(values, residual)
    v = x.size
    words = np.zeros(num_words(v, block), "<u4")
    if not np.isfinite(x).all():
        words[0] = NON_FINITE
        return words
    scales, flags, signs, spares = parts(words, v, block)
    total, coded = np.zeros(scales.size), np.zeros(scales.size, np.int64)
    for first in range(0, v, SEGMENT):
        segment = x[first : first + SEGMENT]
        of_block = first // block if block else 0
        total[of_block] += sum_of_magnitudes(segment)
        coded[of_block] += segment.size
        used, room = first // (32 * GROUP), -(-min(v, first + SEGMENT) // (32 * GROUP))
        for start in range(0, segment.size, GROUP):
            values_of_group = segment[start : start + GROUP]
            group = (first + start) // GROUP
            negative, zero = values_of_group < 0, values_of_group == 0
            signs[group] = word_of(negative)
            if not zero.any():
                continue
            if not zero.all():
                if used == room:
                    signs[group] = word_of(negative | zero & (np.arange(zero.size) % 2 == 1))
                    continue
                spares[used] = word_of(negative)
                used += 1
            signs[group] = word_of(~zero)
            flags[group // 32] |= np.uint32(1 << group % 32)
            coded[of_block] -= int(zero.sum())
    for i in np.flatnonzero(coded):
        scales[i] = np.float32(total[i] / coded[i])
    return words


def decode(words: np.ndarray, v: int, block: int) -> np.ndarray:
    """uint32 [num_words(v, block)] -> float32 [v]. ValueError if it is no such block."""
    words = np.ascontiguousarray(words, "<u4")
    if words.shape != (num_words(v, block),):
        raise ValueError(f"words has shape {words.shape}")
    if words[0] % NON_FINITE:
        raise ValueError(f"header word {int(words[0]):#010x}")
    scales, flags, signs, spares = parts(words, v, block)
    if not (np.isfinite(scales).all() and not (scales.view(np.uint32) >> 31).any()):
        raise ValueError("a scale is not finite, or is negative")
    if words[0] and scales.any():
        raise ValueError("a block marked non-finite has scales")
    flagged = np.unpackbits(flags.view(np.uint8), bitorder="little")
    if flagged[signs.size :].any():
        raise ValueError("a group that does not exist is flagged")
    flagged = flagged[: signs.size] == 1
    result = np.empty(signs.size * GROUP, np.float32)
    for first in range(0, signs.size, SEGMENT // GROUP):
        used, room = first // 32, -(-min(signs.size, first + SEGMENT // GROUP) // 32)
        scale = scales[first * GROUP // block] if block else scales[0]
        for group in range(first, min(first + SEGMENT // GROUP, signs.size)):
            nonzero, negative = 2**32 - 1, int(signs[group])
            if flagged[group]:
                nonzero, negative = negative, 0
                if nonzero:
                    if used == room:
                        raise ValueError("more flagged groups than spare words")
                    negative = int(spares[used])
                    used += 1
            for i in range(GROUP):
                value = -scale if negative >> i & 1 else scale
                result[group * GROUP + i] = value if nonzero >> i & 1 else 0
    return np.full(v, NAN) if words[0] else result[:v]


def decode_sum(blocks: np.ndarray, v: int, block: int) -> np.ndarray:
    """uint32 [W, num_words(v, block)] -> float32 [v], added up in order from +0."""
    total = np.zeros(v, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for words in blocks:
            total = total + decode(words, v, block)
    return total


def error(
    values: np.ndarray, words: np.ndarray, block: int, residual: np.ndarray | None = None
) -> np.ndarray:
    """x minus what it decodes to, float32 like values; 0 everywhere if any x is not finite."""
    x = meant(values, residual)
    if not np.isfinite(x).all():
        return np.zeros(np.shape(values), np.float32)
    return (x - decode(words, x.size, block)).reshape(np.shape(values))


def meant(values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """x, float32 [v]."""
    x = np.asarray(values, np.float32).reshape(-1)
    if residual is None:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        return x + np.asarray(residual, np.float32).reshape(-1)
