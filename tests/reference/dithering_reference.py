# SPDX-License-Identifier: Apache-2.0
"""Oracle of dithering (FORMAT.md, "Dithering block"). s, u, t and z are the names of that page."""

from typing import NamedTuple

import numpy as np
import philox_reference
from range_float_reference import pack, unpack

NON_FINITE = 1 << 31
NORM_STREAM = 1 << 31
NAN = np.uint32(0x7FC00000).view(np.float32)
FLOAT_MAX = np.finfo(np.float32).max
CHUNK = 4096
LANES = 16
Key = tuple[int, int, int, int]


class Parameters(NamedTuple):
    levels: int
    kind: str = "natural"
    norm: str = "inf"
    block: int = 4096
    norm_code: str = "float32"

    @property
    def bits(self) -> int:
        """1 + ceil(log2(s + 1))."""
        return 1 + int(np.ceil(np.log2(self.levels + 1)))

    @property
    def header(self) -> list[int]:
        flags = (self.kind == "standard") + 2 * (self.norm == "2")
        flags += 4 * (self.norm_code == "natural")
        return [self.levels + (flags << 16), self.block]

    def num_norms(self, v: int) -> int:
        return -(-v // (self.block or max(v, 1)))

    def norm_words(self, v: int) -> int:
        return -(-self.num_norms(v) // 4) if self.norm_code == "natural" else self.num_norms(v)

    def num_words(self, v: int) -> int:
        return 2 + self.norm_words(v) + -(-v * self.bits // 32)


def norm_of(x: np.ndarray, kind: str) -> np.float32:
    """The norm of the finite values of one block."""
    if kind == "inf":
        return np.abs(x).max(initial=np.float32(0))
    total = 0.0
    for start in range(0, x.size, CHUNK):
        chunk = x[start : start + CHUNK].astype(np.float64) ** 2
        rows = np.zeros((-(-chunk.size // LANES), LANES))
        rows.reshape(-1)[: chunk.size] = chunk
        lanes = np.add.accumulate(rows)[-1]  # one row after the other
        total += np.add.accumulate(lanes)[-1]
    return np.float32(min(np.sqrt(total), float(FLOAT_MAX)))


def norm_code(norm: np.float32, u: int) -> int:
    """The byte of a norm: linear below 2^-126, then to one of the powers of two around it."""
    n = float(norm)
    exponent = max(int(np.frexp(n)[1]) - 1, -127) if n >= 2.0**-126 else -127
    lower = 2.0**exponent if exponent > -127 else 0.0
    step = max(2.0**exponent, 2.0**-126)
    # 23 bits of u are used: a fraction of a binary32 number has no more.
    promote = (u >> 9) < (n - lower) / step * 2.0**23
    return min(exponent + 127 + promote, 254)


def sent_norm(code: int) -> np.float32:
    return np.float32(2.0 ** (code - 127) if code else 0.0)


def quantize(x: np.ndarray, u: np.ndarray, norm: np.float32, p: Parameters) -> np.ndarray:
    """float32 [b], uint32 [b] -> codes, int64 [b]."""
    s, magnitude = p.levels, np.abs(x).astype(np.float64)
    if norm == 0:
        return np.zeros(x.size, np.int64)
    if p.kind == "standard":
        position = np.rint(magnitude * (2.0**32 * s / np.float64(norm)))  # in steps of 2^-32
        lower = np.floor(position / 2.0**32)
        index = lower + (u < position - lower * 2.0**32)
    else:
        # Products of two binary32 numbers are exact in binary64, and so are powers of two. In the
        # sum, what binary64 cannot hold is far below the 24 digits that are kept.
        m, e = np.frexp(np.float64(norm))
        m, e = 2 * m, e - 1
        t = (m * (1 + (u >> 9) * 2.0**-23)).astype(np.float32).astype(np.float64)
        smallest = np.float64(norm) * 2.0 ** (1 - s)
        below = magnitude < smallest
        digits, exponent = np.frexp(magnitude + smallest)
        z = np.ldexp(digits.astype(np.float32).astype(np.float64), exponent)
        y_digits, y_exponent = np.frexp(np.where(below, smallest, magnitude))
        k = y_exponent - 1 - e - (2 * y_digits < m)
        promoted = np.ldexp(t, e + k) < np.where(below, z, magnitude)
        index = np.where(below, 0, k + s) + promoted
    index = np.minimum(index, s).astype(np.int64)
    return np.where((x < 0) & (index > 0), index + 2 ** (p.bits - 1), index)


def dequantize(codes: np.ndarray, norm: np.float32, p: Parameters) -> np.ndarray:
    """Codes, int64 [b] -> float32 [b]; indices above s give NaN."""
    sign_bit = 2 ** (p.bits - 1)
    index = codes % sign_bit
    if p.kind == "standard":
        magnitude = (index * (np.float64(norm) / p.levels)).astype(np.float32)
    else:
        level = np.where(index > 0, 2.0 ** np.minimum(index - p.levels, 0), 0.0)
        magnitude = (level * np.float64(norm)).astype(np.float32)
    return np.where(index > p.levels, NAN, np.where(codes >= sign_bit, -magnitude, magnitude))


def encode(
    values: np.ndarray, key: Key, p: Parameters, residual: np.ndarray | None = None
) -> np.ndarray:
    """float32, any shape, v values in all -> uint32 [p.num_words(v)]."""
    x = meant(values, residual)
    v = x.size
    words = np.zeros(p.num_words(v), "<u4")
    words[:2] = p.header
    if not np.isfinite(x).all():
        words[0] |= NON_FINITE
        return words
    u = philox_reference.random_words(key, v)
    seed, stream, bucket, step = key
    norm_key = (seed, stream % 2**32 ^ NORM_STREAM, bucket, step)
    u_norm = philox_reference.random_words(norm_key, p.num_norms(v))
    codes = np.zeros(v, np.int64)
    norms = _norms(words, v, p)
    for b, part in enumerate(_parts(v, p)):
        norm = norm_of(x[part], p.norm)
        codes[part] = quantize(x[part], u[part], norm, p)
        natural = p.norm_code == "natural"
        norms[b] = norm_code(norm, int(u_norm[b])) if natural else norm
    words[2 + p.norm_words(v) :] = pack(codes, p.bits)
    return words


def decode(words: np.ndarray, v: int, p: Parameters) -> np.ndarray:
    """uint32 [p.num_words(v)] -> float32 [v]. ValueError if it is no such block."""
    words = np.array(words, "<u4")
    if words.shape != (p.num_words(v),):
        raise ValueError(f"words has shape {words.shape}")
    non_finite = bool(words[0] >> 31)
    words[0] %= NON_FINITE
    if words[:2].tolist() != p.header:
        raise ValueError(f"header {words[:2]} is not {p.header}")
    norms = _norms(words, v, p)
    if norms[p.num_norms(v) :].any() or (non_finite and words[2 : 2 + p.norm_words(v)].any()):
        raise ValueError("a norm without values is set")
    natural = p.norm_code == "natural"
    if (norms == 255).any() if natural else not (np.isfinite(norms) & ~np.signbit(norms)).all():
        raise ValueError("a norm is not a finite number from +0 up")
    if non_finite:
        return np.full(v, NAN)
    codes = unpack(words[2 + p.norm_words(v) :], v, p.bits)
    result = np.empty(v, np.float32)
    for b, part in enumerate(_parts(v, p)):
        norm = sent_norm(int(norms[b])) if natural else norms[b]
        result[part] = dequantize(codes[part], norm, p)
    return result


def decode_sum(blocks: np.ndarray, v: int, p: Parameters) -> np.ndarray:
    """uint32 [W, p.num_words(v)] -> float32 [v], added up in order from +0."""
    total = np.zeros(v, np.float32)
    for words in blocks:
        total = total + decode(words, v, p)
    return total


def error(
    values: np.ndarray, words: np.ndarray, p: Parameters, residual: np.ndarray | None = None
) -> np.ndarray:
    """x minus what it decodes to, float32 like values; 0 everywhere if any x is not finite."""
    x = meant(values, residual)
    if not np.isfinite(x).all():
        return np.zeros(np.shape(values), np.float32)
    with np.errstate(over="ignore"):
        return (x - decode(words, x.size, p)).reshape(np.shape(values))


def meant(values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """x, float32 [v]."""
    x = np.asarray(values, np.float32).reshape(-1)
    if residual is None:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        return x + np.asarray(residual, np.float32).reshape(-1)


def _parts(v: int, p: Parameters) -> list[slice]:
    size = p.block or max(v, 1)
    return [slice(start, min(v, start + size)) for start in range(0, v, size)]


def _norms(words: np.ndarray, v: int, p: Parameters) -> np.ndarray:
    """View of the norms as floats, or as bytes with their padding."""
    view = np.uint8 if p.norm_code == "natural" else np.float32
    return words[2 : 2 + p.norm_words(v)].view(view)
