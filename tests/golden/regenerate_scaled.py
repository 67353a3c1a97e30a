# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors of uniform, one bit, narrow float and entropy from their oracles.

Run `python tests/golden/regenerate_scaled.py`. As with regenerate.py, a change in the files is a
change of the wire format.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

import entropy_reference
import golden_files
import narrow_float_reference
import one_bit_reference
import uniform_reference
from golden_files import to_hex
from sample_values import sample

WORKED_EXAMPLE = np.array([0.5, -0.25, 0, 0.1, -2], np.float32)
KEY = (7, 1, 2, 3)


def write_uniform(
    name: str,
    values: np.ndarray,
    num_bits: int,
    block: int = 512,
    key: tuple[int, int, int, int] | None = None,
) -> None:
    words = uniform_reference.encode(values, num_bits, block, key)
    decoded = uniform_reference.decode(words, values.size, num_bits, block)
    golden_files.write(
        "uniform",
        name,
        num_bits=num_bits,
        block=block,
        key=key,
        values=to_hex(values),
        words=to_hex(words),
        decoded=to_hex(decoded),
    )


def write_one_bit(name: str, values: np.ndarray, block: int = 4096) -> None:
    words = one_bit_reference.encode(values, block)
    decoded = one_bit_reference.decode(words, values.size, block)
    golden_files.write(
        "one_bit",
        name,
        block=block,
        values=to_hex(values),
        words=to_hex(words),
        decoded=to_hex(decoded),
    )


def write_narrow_float(name: str, values: np.ndarray, dtype: str, block: int = 32) -> None:
    words = narrow_float_reference.encode(values, dtype, block)
    decoded = narrow_float_reference.decode(words, values.size, dtype, block)
    golden_files.write(
        "narrow_float",
        name,
        dtype=dtype,
        block=block,
        values=to_hex(values),
        words=to_hex(words),
        decoded=to_hex(decoded),
    )


def write_entropy(name: str, values: np.ndarray, bits: float) -> None:
    words = entropy_reference.encode(values, bits)
    decoded = entropy_reference.decode(words, values.size, bits)
    golden_files.write(
        "entropy",
        name,
        bits=bits,
        values=to_hex(values),
        words=to_hex(words),
        decoded=to_hex(decoded),
    )


def write_bad(
    part: str, name: str, reason: str, count: int, words: list[int], **parameters: float | str
) -> None:
    """A block that no decoder may accept. Written by hand: no encoder makes one."""
    words_array = np.array(words, np.uint32)
    golden_files.write(
        part, f"bad_{name}", reason=reason, count=count, **parameters, words=to_hex(words_array)
    )


def uniform_vectors(rng: np.random.Generator) -> None:
    write_uniform("worked_example", WORKED_EXAMPLE, 2)
    write_uniform("one_value", np.float32([0.7]), 8)
    write_uniform("all_zero", sample("zeros", 40, rng), 3)
    for num_bits in range(1, 9):
        write_uniform(f"nearest_{num_bits}", sample("gauss", 75, rng), num_bits, 32)
        write_uniform(f"stochastic_{num_bits}", sample("laplace", 75, rng), num_bits, 32, KEY)
    write_uniform("denormal", sample("denormal", 33, rng), 4, 32, KEY)
    write_uniform("wide", sample("wide", 33, rng), 8, 32)
    write_uniform("huge", sample("huge", 33, rng), 4, 32)
    write_uniform("non_finite", sample("inf_and_nan", 33, rng), 4, 32)
    one, minus_one = 0x3F800000, 0xBF800000
    bad = {
        "other_num_bits": ("b is 5, not 4", 5, minus_one, one),
        "reserved_bit": ("bit 9 of word 0 set", 4 | 1 << 9, minus_one, one),
        "lo_above_hi": ("lo = 1, hi = -1", 4, one, minus_one),
        "negative_zero": ("lo = -0.0", 4, 1 << 31, one),
        "infinite_hi": ("hi = Inf", 4, minus_one, 0x7F800000),
        "nan_lo": ("lo = NaN", 4, 0x7FC00000, one),
        "non_finite_with_bounds": ("bit 31 set, hi = 1", 4 | 1 << 31, 0, one),
    }
    for name, (reason, *words) in bad.items():
        write_bad("uniform", name, reason, 3, [*words, 0], num_bits=4, block=512)
    short = [4, minus_one, one]
    write_bad("uniform", "too_short", "3 words, not 4", 3, short, num_bits=4, block=512)


def one_bit_vectors(rng: np.random.Generator) -> None:
    write_one_bit("worked_example", WORKED_EXAMPLE)
    write_one_bit("one_value", np.float32([-0.7]))
    write_one_bit("all_zero", sample("zeros", 40, rng))
    write_one_bit("gauss", sample("gauss", 75, rng), 0)
    write_one_bit("denormal", sample("denormal", 33, rng))
    write_one_bit("huge", sample("huge", 33, rng))
    write_one_bit("non_finite", sample("inf_and_nan", 33, rng))
    runs = sample("gauss", 200, rng)
    runs[30:100] = 0
    write_one_bit("run_of_zeros", runs)
    scattered = sample("gauss", 200, rng)
    scattered[::20] = -0.0  # more groups with zeros than spare words
    write_one_bit("scattered_zeros", scattered)
    write_one_bit("two_blocks", np.repeat(np.float32([1, -3]), [4096, 40]))
    one = 0x3F800000
    bad = {
        "reserved_bit": ("bit 4 of word 0 set", [16, one, 0, 0, 0, 0]),
        "negative_scale": ("scale -1", [0, 0xBF800000, 0, 0, 0, 0]),
        "infinite_scale": ("scale Inf", [0, 0x7F800000, 0, 0, 0, 0]),
        "nan_scale": ("scale NaN", [0, 0x7FC00000, 0, 0, 0, 0]),
        "negative_zero": ("scale -0.0", [0, 1 << 31, 0, 0, 0, 0]),
        "non_finite_with_scale": ("bit 31 set, scale 1", [1 << 31, one, 0, 0, 0, 0]),
        "flag_beyond_v": ("group 2 of 2 flagged", [0, one, 4, 0, 0, 0]),
        "two_spare_words": ("two groups with signs, one spare word", [0, one, 3, 1, 1, 0]),
        "too_long": ("7 words, not 6", [0, one, 0, 0, 0, 0, 0]),
    }
    for name, (reason, words) in bad.items():
        write_bad("one_bit", name, reason, 40, words, block=4096)


def narrow_float_vectors(rng: np.random.Generator) -> None:
    for dtype in narrow_float_reference.FORMATS:
        write_narrow_float(f"{dtype}_worked_example", WORKED_EXAMPLE, dtype)
        for kind in ("gauss", "denormal", "wide", "huge", "zeros", "inf_and_nan"):
            write_narrow_float(f"{dtype}_{kind}", sample(kind, 37, rng), dtype)
    e4m3 = {"dtype": "float8_e4m3", "block": 32}
    half = {"dtype": "float16", "block": 32}
    write_bad("narrow_float", "other_dtype", "number 3, not 2", 3, [3, 0, 0], **e4m3)
    write_bad("narrow_float", "reserved_bit", "bit 2 of word 0 set", 3, [4, 0, 0], **half)
    words = [2 | 1 << 31, 1, 0]
    write_bad("narrow_float", "non_finite_with_scale", "bit 31 set, S = 1", 3, words, **e4m3)
    write_bad("narrow_float", "too_short", "2 words, not 3", 3, [0, 0], **half)


def entropy_vectors(rng: np.random.Generator) -> None:
    write_entropy("worked_example", WORKED_EXAMPLE, 4)
    write_entropy("no_values", np.float32([]), 8)
    write_entropy("one_value", np.float32([-0.7]), 4)
    write_entropy("one_exponent", np.float32([1, -1.5, 1.25, -1] * 10), 4)
    for kind in ("gauss", "denormal", "wide", "huge", "zeros", "ties", "inf_and_nan"):
        write_entropy(kind, sample(kind, 75, rng), 10.5)
    write_entropy("two_steps", sample("laplace", 1100, rng), 6.125)
    # Symbols 0 and 127, each of one bit; the step is 2^0.
    header, code = 127 + 22 | 23 << 9, 127 | 1 << 8 | 1 << 16
    good = [header, 0, code, 1, 1, 0b1101010, 0, 0, 0]
    bad = {
        "reserved_bit": ("bit 14 of word 0 set", 0, header | 1 << 14),
        "step": ("q = 255", 0, 277),
        "width": ("w = 24", 0, 127 + 22 | 24 << 9),
        "non_finite_with_step": ("bit 31 set beside a step", 0, header | 1 << 31),
        "fine_streams": ("2 of 1 streams have the finer step", 1, 2),
        "exponent_below_step": ("exponents from 126", 2, 126 | 1 << 8 | 1 << 16),
        "exponent_255": ("exponents 127..255", 2, 127 | 129 << 8 | 1 << 16),
        "no_room_for_lengths": ("128 lengths", 2, 127 | 128 << 8 | 1 << 16),
        "incomplete_code": ("lengths 1 and 2", 3, 2),
        "length_13": ("length 13", 3, 13),
        "length_beyond_last": ("two lengths for one exponent", 3, 1 | 1 << 4),
        "stream_beyond_end": ("17 bytes of 16", 4, 17),
        "second_size": ("two sizes for one stream", 4, 1 | 1 << 16),
    }
    for name, (reason, at, word) in bad.items():
        words = [*good[:at], word, *good[at + 1 :]]
        write_bad("entropy", name, reason, 4, words, bits=8)
    write_bad("entropy", "too_short", "8 words, not 9", 4, good[:8], bits=8)


def main() -> None:
    rng = np.random.default_rng(2)
    uniform_vectors(rng)
    one_bit_vectors(rng)
    narrow_float_vectors(rng)
    entropy_vectors(rng)


if __name__ == "__main__":
    main()
