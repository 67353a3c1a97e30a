# SPDX-License-Identifier: Apache-2.0
"""Oracle of the positions block (FORMAT.md, "Positions block"). n items, k of them kept."""

import numpy as np

SEGMENT = 65536


def num_segments(n: int) -> int:
    return -(-n // SEGMENT)


def is_local(n: int, k: int) -> bool:
    """True for the local layout, False for the bitmap."""
    return num_segments(n) + -(-k // 2) < -(-n // 32)


def num_words(n: int, k: int) -> int:
    return num_segments(n) + -(-k // 2) if is_local(n, k) else -(-n // 32)


def encode(positions: np.ndarray, n: int, capacity: int | None = None) -> np.ndarray:
    """Ascending int64 [k] -> uint32 [num_words(n, k)].

    With a capacity, the counted block: uint32 [1 + num_words(n, capacity)].
    """
    positions = np.asarray(positions, np.int64)
    k = positions.size if capacity is None else capacity
    if is_local(n, k):
        counts = np.bincount(positions // SEGMENT, minlength=num_segments(n)).astype("<u4")
        halves = np.zeros(-(-k // 2) * 2, "<u2")
        halves[: positions.size] = positions % SEGMENT
        block = np.concatenate([counts, halves.view("<u4")])
    else:
        bits = np.zeros(-(-n // 32) * 32, np.uint8)
        bits[positions] = 1
        block = np.packbits(bits, bitorder="little").view("<u4")
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
    if is_local(n, capacity):
        counts, halves = (
            words[: num_segments(n)].astype(np.int64),
            words[num_segments(n) :].view("<u2"),
        )
        if counts.sum() != k:
            raise ValueError(f"segment counts add up to {counts.sum()}, expected {k}")
        if halves[k:].any():
            raise ValueError("the 16 bits of an unused index are not 0")
        # Segments come from the counts: positions ascend over the block exactly if they do within
        # each segment, and only the last segment, if shorter, can be overrun.
        positions = np.repeat(np.arange(counts.size) * SEGMENT, counts) + halves[:k]
    else:
        positions = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
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
    """Blocks [W, p], float32 [W, k] or [W, k, 2] -> float32 [n] or [n, 2].

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
    """float32 [n] or [n, 2], its items at the block's positions replaced by kept [k] or [k, 2]."""
    result = values.copy()
    positions = decode(words, values.shape[0], kept.shape[0], counted)
    result[positions] = kept[: positions.size]
    return result
