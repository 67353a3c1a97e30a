# SPDX-License-Identifier: Apache-2.0
"""Oracle of the positions block (FORMAT.md, "Positions block"). n items, k of them kept."""

import numpy as np


def low_bits(n: int, k: int) -> int:
    """l, by counting up."""
    bits = 0
    while bits < 31 and 2 ** (bits + 1) * max(k, 1) <= n:
        bits += 1
    return bits


def num_buckets(n: int, k: int) -> int:
    return -(-n // 2 ** low_bits(n, k))


def elias_fano_words(n: int, k: int) -> tuple[int, int]:
    """Words of the low and of the upper bits."""
    return -(-k * low_bits(n, k) // 32), -(-(k + num_buckets(n, k)) // 32)


def is_elias_fano(n: int, k: int) -> bool:
    """True for the Elias-Fano layout, False for the bitmap."""
    return 3 * sum(elias_fano_words(n, k)) < 2 * -(-n // 32)


def num_words(n: int, k: int) -> int:
    return sum(elias_fano_words(n, k)) if is_elias_fano(n, k) else -(-n // 32)


def to_words(bits: np.ndarray, size: int) -> np.ndarray:
    """Numbers of the bits that are set -> uint32 [size]."""
    stream = np.zeros(size * 32, np.uint8)
    stream[bits] = 1
    return np.packbits(stream, bitorder="little").view("<u4")


def from_words(words: np.ndarray) -> np.ndarray:
    """uint32 [size] -> uint8 [32 * size], its bits."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")


def encode(positions: np.ndarray, n: int, capacity: int | None = None) -> np.ndarray:
    """Ascending int64 [k] -> uint32 [num_words(n, k)].

    With a capacity, the counted block: uint32 [1 + num_words(n, capacity)].
    """
    positions = np.asarray(positions, np.int64)
    k = positions.size if capacity is None else capacity
    if is_elias_fano(n, k):
        bits, (low_words, upper_words) = low_bits(n, k), elias_fano_words(n, k)
        j = np.arange(positions.size)
        item, bit = np.nonzero(positions[:, None] >> np.arange(bits) & 1)
        lows = to_words(item * bits + bit, low_words)
        block = np.concatenate([lows, to_words((positions >> bits) + j, upper_words)])
    else:
        block = to_words(positions, -(-n // 32))
    return block if capacity is None else np.concatenate([[np.uint32(positions.size)], block])


def decode(words: np.ndarray, n: int, k: int, counted: bool = False) -> np.ndarray:
    """uint32 [num_words(n, k)] -> ascending int64 [k]. ValueError if it is no such block.

    A counted block has one more word in front, and as many positions as that says, k at most.
    """
    words = np.ascontiguousarray(words, "<u4")
    capacity = k
    if counted:
        k = int(words[0])
        if k > capacity:
            raise ValueError(f"{k} items are kept, more than the capacity of {capacity}")
        words = words[1:]
    if words.shape != (num_words(n, capacity),):
        raise ValueError(f"{words.size} words, expected {num_words(n, capacity)}")
    if is_elias_fano(n, capacity):
        bits, (low_words, _) = low_bits(n, capacity), elias_fano_words(n, capacity)
        lows, upper = from_words(words[:low_words]), np.flatnonzero(from_words(words[low_words:]))
        if upper.size != k:
            raise ValueError(f"{upper.size} upper bits are set, expected {k}")
        if lows[k * bits :].any():
            raise ValueError("low bits of an unused position are not 0")
        buckets = upper - np.arange(k)
        if k and buckets[-1] >= num_buckets(n, capacity):
            raise ValueError(f"bucket {buckets[-1]} does not exist")
        low = lows[: k * bits].reshape(k, bits) @ (1 << np.arange(bits))
        positions = (buckets << bits) + low
    else:
        positions = np.flatnonzero(from_words(words))
        if positions.size != k:
            raise ValueError(f"{positions.size} bits are set, expected {k}")
    if (np.diff(positions) <= 0).any():
        raise ValueError("positions are not ascending")
    if positions.size and positions[-1] >= n:
        raise ValueError(f"position {positions[-1]} is not below {n}")
    return positions


def decode_sum(
    words_wxp: np.ndarray, kept: np.ndarray, n: int, counted: bool = False
) -> np.ndarray:
    """Blocks [W, p], float32 [W, k] or [W, k, c] -> float32 [n] or [n, c].

    Added in float32 and in worker order, starting from +0.
    """
    total = np.zeros((n, *kept.shape[2:]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # Inf and NaN are part of the contract
        for words, values in zip(words_wxp, kept, strict=True):
            positions = decode(words, n, values.shape[0], counted)
            total[positions] += values[: positions.size]
    return total


def replace(
    values: np.ndarray, words: np.ndarray, kept: np.ndarray, counted: bool = False
) -> np.ndarray:
    """float32 [n] or [n, c], its items at the block's positions replaced by kept [k] or [k, c]."""
    result = values.copy()
    positions = decode(words, values.shape[0], kept.shape[0], counted)
    result[positions] = kept[: positions.size]
    return result
