# SPDX-License-Identifier: Apache-2.0
"""Oracle of the entropy quantizer (FORMAT.md, "Entropy block"), one value after the other."""

import collections
import fractions
import math
from typing import NamedTuple

import numpy as np

STREAM = 1024
MAX_LENGTH = 12
MIN_STEP, MAX_STEP = -22, 254
MAX_STREAM_BYTES = STREAM * (MAX_LENGTH + 1 + 23) // 8
NON_FINITE = 1 << 31


class Code(NamedTuple):
    """A step q, the width w of the mantissas, and the lengths of the symbols that occur."""

    q: int
    w: int
    lengths: dict[int, int]

    def kept(self, symbol: int) -> int:
        return min(max(symbol - self.q, 0), self.w)

    def bits(self, symbol: int) -> int:
        return self.lengths[symbol] + (1 + self.kept(symbol) if symbol else 0)

    def codewords(self) -> dict[int, int]:
        """Canonical codewords with their first bit lowest."""
        words, code, before = {}, 0, 0
        for length, symbol in sorted((n, s) for s, n in self.lengths.items()):
            code <<= length - before
            words[symbol] = int(f"{code:0{length}b}"[::-1], 2) if length else 0
            code, before = code + 1, length
        return words

    def table(self) -> list[int]:
        """The code as it travels, in words."""
        exponents = sorted(s for s in self.lengths if s)
        first, count = (exponents[0], exponents[-1] - exponents[0] + 1) if exponents else (0, 0)
        table = [first | count << 8 | self.lengths.get(0, 0) << 16] + [0] * -(-count // 8)
        for i in range(count):
            table[1 + i // 8] |= self.lengths.get(first + i, 0) << 4 * (i % 8)
        return table


def num_words(v: int, bits: float) -> int:
    return 8 + math.ceil(fractions.Fraction(bits) * v / 32)


def symbols_of(x: np.ndarray, q: int) -> np.ndarray:
    exponents = x.view(np.uint32) >> 23 & 255
    return np.where(exponents >= max(q, 1), exponents, 0).astype(np.int64)


def code_lengths(counts: dict[int, int]) -> dict[int, int]:
    """Package-merge."""
    if len(counts) == 1:
        return dict.fromkeys(counts, 0)
    leaves = [(n, [s]) for n, s in sorted((n, s) for s, n in counts.items())]
    items = leaves
    for _ in range(MAX_LENGTH - 1):
        pairs = [(a + b, s + t) for (a, s), (b, t) in zip(items[::2], items[1::2], strict=False)]
        items = sorted(leaves + pairs, key=lambda item: item[0])  # stable: symbols before pairs
    return collections.Counter(s for _, group in items[: 2 * len(counts) - 2] for s in group)


def make_code(x: np.ndarray, q: int, w: int) -> Code:
    symbols, counts = np.unique(symbols_of(x, q), return_counts=True)
    found = dict(zip(symbols.tolist(), counts.tolist(), strict=True))
    return Code(q, w, code_lengths(found) if found else {0: 0})


def stream_bits(x: np.ndarray, code: Code) -> np.ndarray:
    """The bits of one stream, uint8 of 0 and 1."""
    codewords = code.codewords()
    fields = []
    for symbol, pattern in zip(symbols_of(x, code.q).tolist(), x.view("<u4").tolist(), strict=True):
        value, length = codewords[symbol], code.lengths[symbol]
        if symbol:
            value |= (pattern >> 31) << length
            value |= (pattern % 2**23 >> 23 - code.kept(symbol)) << length + 1
        fields.append((value, code.bits(symbol)))
    values, sizes = np.array(fields, np.int64).T
    places = np.arange(MAX_LENGTH + 24)
    return (values[:, None] >> places & 1).astype(np.uint8)[places < sizes[:, None]]


def encode(values: np.ndarray, bits: float, residual: np.ndarray | None = None) -> np.ndarray:
    """float32, any shape, v values in all -> uint32 [num_words(v, bits)]."""
    x = meant(values, residual)
    words = np.zeros(num_words(x.size, bits), "<u4")
    if not np.isfinite(x).all():
        words[0] = NON_FINITE
        return words
    any_bits = int(np.bitwise_or.reduce(x.view(np.uint32))) % 2**23
    w = 23 - ((any_bits & -any_bits).bit_length() - 1) if any_bits else 0
    S = -(-x.size // STREAM)

    def room(*codes: Code) -> int:
        """Bytes that are left for streams."""
        return 4 * (words.size - 2 - sum(len(code.table()) for code in codes) - -(-S // 2))

    def bits_of_streams(code: Code) -> np.ndarray:
        costs = np.array([code.bits(s) if s in code.lengths else 0 for s in range(255)])
        bits = np.zeros(S * STREAM, np.int64)
        bits[: x.size] = costs[symbols_of(x, code.q)]
        return bits.reshape(S, STREAM).sum(axis=1)

    def fits(q: int) -> bool:
        code = make_code(x, q, w)
        return int(bits_of_streams(code).sum()) + 7 * S <= 8 * room(code)

    low, high = MIN_STEP, int((x.view(np.uint32) >> 23 & 255).max(initial=0))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    coarse = make_code(x, low, w)
    codes, P = [coarse] * S, 0
    if low > MIN_STEP:
        fine = make_code(x, low - 1, w)
        fine_bytes, coarse_bytes = (-(-bits_of_streams(code) // 8) for code in (fine, coarse))
        left = room(coarse, fine) - coarse_bytes.sum() - np.cumsum(fine_bytes - coarse_bytes)
        P = int(np.argmax(left < 0)) if (left < 0).any() else S
        codes[:P] = [fine] * P
    streams = [
        np.packbits(stream_bits(x[i * STREAM : (i + 1) * STREAM], codes[i]), bitorder="little")
        for i in range(S)
    ]
    lengths = np.array([stream.size for stream in streams] + [0] * (S % 2), "<u2")
    head = [low - MIN_STEP | w << 9, P, *coarse.table(), *(fine.table() if P else [])]
    payload = np.concatenate([np.array(head, "<u4").view("u1"), lengths.view("u1"), *streams])
    words.view("u1")[: payload.size] = payload
    return words


def read_code(words: list[int], q: int, w: int) -> tuple[Code, list[int]]:
    """A code, and the words after it."""
    first, count, zero = words[0] & 255, words[0] >> 8 & 255, words[0] >> 16
    if zero > 15 or first + count > 255 or first < (max(q, 1) if count else 0):
        raise ValueError(f"word {words[0]:#x} of a code")
    if count == 0 and first:
        raise ValueError("the first of no exponents")
    end = 1 + -(-count // 8)
    nibbles = [word >> 4 * i & 15 for word in words[1:end] for i in range(8)]
    if len(nibbles) < count or any(nibbles[count:]):
        raise ValueError("lengths are missing, or there are too many")
    lengths = {0: zero, **{first + i: nibbles[i] for i in range(count)}}
    occur = {s: n for s, n in lengths.items() if n}
    if not occur and count <= 1:
        return Code(q, w, {first: 0}), words[end:]
    if max(occur.values(), default=0) > MAX_LENGTH or sum(2.0**-n for n in occur.values()) != 1:
        raise ValueError("lengths do not make a complete code")
    return Code(q, w, occur), words[end:]


def read_stream(data: bytes, count: int, code: Code) -> list[int]:
    """The patterns of `count` values."""
    symbol_of = {(code.lengths[s], word): s for s, word in code.codewords().items()}
    lengths = sorted(set(code.lengths.values()))
    stream, at, patterns = int.from_bytes(data, "little"), 0, []
    for _ in range(count):
        window = stream >> at & (1 << MAX_LENGTH) - 1
        length = next(n for n in lengths if (n, window % 2**n) in symbol_of)
        symbol = symbol_of[length, window % 2**length]
        tail = stream >> at + length
        at += code.bits(symbol)
        if symbol == 0:
            patterns.append(0)
            continue
        kept = code.kept(symbol)
        mantissa = (tail >> 1) % 2**kept << 23 - kept
        half = 1 << 22 - kept if kept < code.w else 0
        patterns.append((tail & 1) << 31 | symbol << 23 | mantissa | half)
    return patterns


def decode(words: np.ndarray, v: int, bits: float) -> np.ndarray:
    """uint32 [num_words(v, bits)] -> float32 [v]. ValueError if it is no such block."""
    words = np.ascontiguousarray(words, "<u4")
    if words.shape != (num_words(v, bits),):
        raise ValueError(f"words has shape {words.shape}")
    header, P, *rest = words.tolist()
    if header & NON_FINITE:
        if header != NON_FINITE or P:
            raise ValueError("a block marked non-finite has a step")
        return np.full(v, np.uint32(0x7FC00000).view(np.float32))
    q, w, S = header % 512 + MIN_STEP, header >> 9, -(-v // STREAM)
    if q > MAX_STEP or w > 23 or P > S or (P and q == MIN_STEP):
        raise ValueError(f"header {header:#x}, {P} fine streams")
    coarse, rest = read_code(rest, q, w)
    fine, rest = read_code(rest, q - 1, w) if P else (coarse, rest)
    data = np.array(rest, "<u4").tobytes()
    at = 4 * -(-S // 2)
    if at > len(data):
        raise ValueError("sizes are missing")
    sizes = np.frombuffer(data[:at], "<u2").tolist()
    if any(sizes[S:]) or max(sizes, default=0) > MAX_STREAM_BYTES or at + sum(sizes) > len(data):
        raise ValueError("sizes of streams")
    patterns: list[int] = []
    for i, size in enumerate(sizes[:S]):
        count = min(STREAM, v - i * STREAM)
        patterns += read_stream(data[at : at + size], count, fine if i < P else coarse)
        at += size
    return np.array(patterns, np.uint32).view(np.float32)


def decode_sum(blocks: np.ndarray, v: int, bits: float) -> np.ndarray:
    """uint32 [W, num_words(v, bits)] -> float32 [v], added up in order from +0."""
    total = np.zeros(v, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for words in blocks:
            total = total + decode(words, v, bits)
    return total


def error(
    values: np.ndarray, words: np.ndarray, bits: float, residual: np.ndarray | None = None
) -> np.ndarray:
    """x minus what it decodes to, float32 like values; 0 everywhere if any x is not finite."""
    x = meant(values, residual)
    if not np.isfinite(x).all():
        return np.zeros(np.shape(values), np.float32)
    return (x - decode(words, x.size, bits)).reshape(np.shape(values))


def meant(values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """x, float32 [v]."""
    x = np.asarray(values, np.float32).reshape(-1)
    if residual is None:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        return x + np.asarray(residual, np.float32).reshape(-1)
