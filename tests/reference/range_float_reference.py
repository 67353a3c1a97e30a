# SPDX-License-Identifier: Apache-2.0
"""Oracle of the range float quantizer (FORMAT.md, "Range float block").

The one-letter names are those of that page.
"""

from typing import NamedTuple

import numpy as np

MAX_FINITE = 0x7F7FFFFF
NON_FINITE = 1 << 31
NAN = np.uint32(0x7FC00000).view(np.float32)


class Table(NamedTuple):
    """Code 0 is zero; P positive codes follow, then Q negative ones, both from pattern p << s."""

    p: int
    P: int
    Q: int
    s: int

    @property
    def eps(self) -> np.float32:
        return np.uint32(self.p << self.s).view(np.float32)


def bits(x: np.ndarray) -> np.ndarray:
    """Pattern of abs(x) as int64, so that the arithmetic below cannot wrap around."""
    return (np.asarray(x, np.float32).view(np.uint32) & 0x7FFFFFFF).astype(np.int64)


def lattice_index(x: np.ndarray, s: int) -> np.ndarray:
    """u(x)."""
    return np.minimum((bits(x) + (1 << (s - 1))) >> s, MAX_FINITE >> s)


def table(lo: float, hi: float, num_bits: int, mantissa_bits: int) -> Table:
    s = 23 - mantissa_bits
    U, V = int(lattice_index(hi, s)), int(lattice_index(lo, s))
    C = 2**num_bits - 1
    a, b = max(U, V), min(U, V)
    p = a - C + 1
    if not p > b:
        p = -((C - 2 - a - b) // 2)  # ceil((a + b + 2 - C) / 2)
    p = max(p, 1)
    return Table(p, max(0, U - p + 1), max(0, V - p + 1), s)


def quantize(values: np.ndarray, t: Table) -> np.ndarray:
    """Finite float32 [v] -> codes, int64 [v]."""
    magnitude = np.abs(values).astype(np.float64)  # binary64: doubling it is exact
    j = np.where(
        magnitude < t.eps,
        2 * magnitude >= t.eps,
        lattice_index(values, t.s) - t.p + 1,
    )
    j = np.minimum(j, np.where(values > 0, t.P, t.Q))
    return np.where((values > 0) | (j == 0), j, t.P + j)


def dequantize(codes: np.ndarray, t: Table) -> np.ndarray:
    """Codes, int64 [v] -> float32 [v]; codes beyond P + Q give NaN."""
    negative = codes > t.P
    magnitude_bits = (np.where(negative, codes - t.P, codes) - 1 + t.p) << t.s
    magnitude_bits[(codes == 0) | (codes > t.P + t.Q)] = 0
    result = magnitude_bits.astype(np.uint32).view(np.float32)
    result[negative] *= -1
    result[codes > t.P + t.Q] = NAN
    return result


def num_code_words(v: int, num_bits: int) -> int:
    return -(-v * num_bits // 32)


def pack(codes: np.ndarray, num_bits: int) -> np.ndarray:
    """Codes [v] -> uint32 [ceil(v * num_bits / 32)]."""
    stream = np.zeros(num_code_words(codes.size, num_bits) * 32, np.uint8)
    stream[: codes.size * num_bits] = ((codes[:, None] >> np.arange(num_bits)) & 1).reshape(-1)
    return np.packbits(stream, bitorder="little").view("<u4")


def unpack(words: np.ndarray, v: int, num_bits: int) -> np.ndarray:
    """uint32 words -> codes, int64 [v]. ValueError if an unused bit is set."""
    stream = np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8), bitorder="little")
    if stream[v * num_bits :].any():
        raise ValueError("an unused bit of the last code word is set")
    stream = stream[: v * num_bits].reshape(v, num_bits)
    codes = np.zeros(v, np.int64)
    for bit in range(num_bits):
        codes += stream[:, bit].astype(np.int64) << bit
    return codes


def bounds(values: np.ndarray) -> tuple[np.float32, np.float32]:
    """lo and hi of finite values, +0 where there is no value of that sign."""
    zero = np.float32(0.0)
    lo, hi = values.min(initial=zero), values.max(initial=zero)
    return (lo if lo < 0 else zero), (hi if hi > 0 else zero)


def encode(
    values: np.ndarray,
    num_bits: int,
    mantissa_bits: int,
    value_range: tuple[float, float] | None = None,
) -> np.ndarray:
    """float32, any shape, v values in all -> uint32 [3 + ceil(v * num_bits / 32)]."""
    values = np.asarray(values, np.float32).reshape(-1)
    parameters = num_bits | mantissa_bits << 4
    if not np.isfinite(values).all():
        codes = np.zeros(values.size, np.int64)
        lo = hi = np.float32(0.0)
        parameters |= NON_FINITE
    else:
        lo, hi = bounds(values if value_range is None else np.asarray(value_range, np.float32))
        codes = quantize(values, table(lo, hi, num_bits, mantissa_bits))
    header = [lo.view(np.uint32), hi.view(np.uint32), parameters]
    return np.concatenate([np.array(header, "<u4"), pack(codes, num_bits)])


def decode(words: np.ndarray, count: int, num_bits: int, mantissa_bits: int) -> np.ndarray:
    """uint32 [3 + ceil(count * N / 32)] -> float32 [count]. ValueError if it is no such block."""
    words = np.ascontiguousarray(words, "<u4")
    if words.shape != (3 + num_code_words(count, num_bits),):
        raise ValueError(f"words has shape {words.shape}")
    if words[2] & ~np.uint32(NON_FINITE) != num_bits | mantissa_bits << 4:
        raise ValueError(
            f"header word {int(words[2]):#010x} is not of N={num_bits}, m={mantissa_bits}"
        )
    codes = unpack(words[3:], count, num_bits)
    if words[2] & NON_FINITE:
        if words[:2].any() or codes.any():
            raise ValueError("a block marked non-finite has bounds or codes")
        return np.full(count, NAN)
    lo, hi = words[:2].view(np.float32)
    if not (np.isfinite(lo) and np.isfinite(hi) and lo <= 0 <= hi) or 0x80000000 in words[:2]:
        raise ValueError(f"bounds {lo}, {hi} are not finite with lo <= 0 <= hi, zero as +0")
    return dequantize(codes, table(lo, hi, num_bits, mantissa_bits))


def error(values: np.ndarray, words: np.ndarray, num_bits: int, mantissa_bits: int) -> np.ndarray:
    """values minus what they decode to, float32 like values; 0 wherever that is not finite."""
    decoded = decode(words, values.size, num_bits, mantissa_bits).reshape(values.shape)
    with np.errstate(invalid="ignore"):
        difference = values - decoded
    return np.where(np.isfinite(difference), difference, np.float32(0.0))
