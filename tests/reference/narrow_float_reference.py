# SPDX-License-Identifier: Apache-2.0
"""Oracle of the narrow float quantizer (FORMAT.md, "Narrow float block").

Works on numbers, not on bit patterns: binary64 holds every step exactly, and `np.rint` rounds ties
to even.
"""

from typing import NamedTuple

import numpy as np

NON_FINITE = 1 << 31
NAN = np.uint32(0x7FC00000).view(np.float32)


class Format(NamedTuple):
    number: int
    mantissa_bits: int
    bias: int
    largest: int  # code of the largest finite magnitude
    code: np.dtype

    @property
    def scaled(self) -> bool:
        return self.code.itemsize == 1


FORMATS = {
    "float16": Format(0, 10, 15, 0x7BFF, np.dtype("<u2")),
    "bfloat16": Format(1, 7, 127, 0x7F7F, np.dtype("<u2")),
    "float8_e4m3": Format(2, 3, 7, 0x7E, np.dtype("u1")),
    "float8_e5m2": Format(3, 2, 15, 0x7B, np.dtype("u1")),
}


def magnitude_of(code: np.ndarray, f: Format) -> np.ndarray:
    """Code without sign -> the number, binary64."""
    exponent, mantissa = code >> f.mantissa_bits, code % 2**f.mantissa_bits
    step = 2.0 ** (np.maximum(exponent, 1) - f.bias - f.mantissa_bits)
    return step * (mantissa + np.where(exponent > 0, 2**f.mantissa_bits, 0))


def quantize(y: np.ndarray, f: Format, largest: int) -> np.ndarray:
    """Binary64 [b] -> codes, int64 [b]."""
    magnitude = np.abs(y)
    _, exponent = np.frexp(magnitude)  # magnitude < 2^exponent
    # Denormal codes count steps of the smallest exponent; so do the codes of each other exponent,
    # on top of those below.
    exponent = np.where(magnitude > 0, np.maximum(exponent - 1, 1 - f.bias), 1 - f.bias)
    steps = np.rint(magnitude * 2.0 ** (f.mantissa_bits - exponent))
    code = steps + (exponent + f.bias - 1) * 2.0**f.mantissa_bits
    code = np.minimum(code, largest).astype(np.int64)
    return code + np.where(np.signbit(y), 1 << 8 * f.code.itemsize - 1, 0)


def dequantize(codes: np.ndarray, f: Format) -> np.ndarray:
    """Codes, int64 [b] -> binary64 [b]."""
    sign = 1 << 8 * f.code.itemsize - 1
    magnitude = magnitude_of(codes % sign, f)
    return np.where(codes >= sign, -magnitude, magnitude)


def scale_byte(x: np.ndarray) -> int:
    """S: the smallest with max(abs(x)) <= 1.75 * 2^(S - 127)."""
    largest = float(np.abs(x).max())
    return next(S for S in range(256) if largest <= 1.75 * 2.0 ** (S - 127))


def last_exponent(f: Format) -> int:
    """That of the largest number."""
    return (f.largest >> f.mantissa_bits) - f.bias


def sizes(v: int, f: Format, block: int) -> tuple[int, int]:
    """Words of scales, and of codes."""
    scales = -(-v // block) if f.scaled else 0
    return -(-scales // 4), -(-v * f.code.itemsize // 4)


def num_words(v: int, dtype: str, block: int) -> int:
    return 1 + sum(sizes(v, FORMATS[dtype], block))


def encode(
    values: np.ndarray, dtype: str, block: int, residual: np.ndarray | None = None
) -> np.ndarray:
    """float32, any shape, v values in all -> uint32 [num_words(v, dtype, block)]."""
    f = FORMATS[dtype]
    x = meant(values, residual)
    words = np.zeros(num_words(x.size, dtype, block), "<u4")
    words[0] = f.number
    if not np.isfinite(x).all():
        words[0] |= np.uint32(NON_FINITE)
        return words
    scales, codes = parts(words, x.size, f, block)
    if not f.scaled:
        codes[:] = quantize(x.astype(np.float64), f, f.largest)
        return words
    for i in range(scales.size):
        part = slice(i * block, (i + 1) * block)
        S = scales[i] = scale_byte(x[part])
        y = x[part].astype(np.float64) * 2.0 ** (last_exponent(f) + 127 - int(S))
        codes[part] = quantize(y, f, f.largest if S < 255 else 0x77)
    return words


def decode(words: np.ndarray, v: int, dtype: str, block: int) -> np.ndarray:
    """uint32 [num_words(v, dtype, block)] -> float32 [v]. ValueError if it is no such block."""
    f = FORMATS[dtype]
    words = np.ascontiguousarray(words, "<u4")
    if words.shape != (num_words(v, dtype, block),):
        raise ValueError(f"words has shape {words.shape}")
    if words[0] % NON_FINITE != f.number:
        raise ValueError(f"header word {int(words[0]):#010x}")
    scales, codes = parts(words, v, f, block)
    if words[0] >> 31:
        if scales.any():
            raise ValueError("a block marked non-finite has scales")
        return np.full(v, NAN)
    y = dequantize(codes.astype(np.int64), f)
    if f.scaled:
        exponents = scales.astype(np.int64) - 127 - last_exponent(f)
        y *= 2.0 ** np.repeat(exponents, block)[:v]
    return y.astype(np.float32)


def decode_sum(blocks: np.ndarray, v: int, dtype: str, block: int) -> np.ndarray:
    """uint32 [W, num_words(v, dtype, block)] -> float32 [v], added up in order from +0."""
    total = np.zeros(v, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for words in blocks:
            total = total + decode(words, v, dtype, block)
    return total


def error(
    values: np.ndarray,
    words: np.ndarray,
    dtype: str,
    block: int,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """x minus what it decodes to, float32 like values; 0 everywhere if any x is not finite."""
    x = meant(values, residual)
    if not np.isfinite(x).all():
        return np.zeros(np.shape(values), np.float32)
    return (x - decode(words, x.size, dtype, block)).reshape(np.shape(values))


def meant(values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """x, float32 [v]."""
    x = np.asarray(values, np.float32).reshape(-1)
    if residual is None:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        return x + np.asarray(residual, np.float32).reshape(-1)


def parts(words: np.ndarray, v: int, f: Format, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Views of the scale bytes and the codes, without padding."""
    scale_words, _ = sizes(v, f, block)
    scales = words[1 : 1 + scale_words].view(np.uint8)
    codes = words[1 + scale_words :].view(f.code)
    return scales[: -(-v // block) if f.scaled else 0], codes[:v]
