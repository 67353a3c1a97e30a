# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors of natural compression and dithering from their NumPy oracles.

Run `python tests/golden/regenerate_natural.py`. As with regenerate.py, a change in the files is a
change of the wire format.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

import dithering_reference
import golden_files
import natural_reference
from dithering_reference import Parameters
from golden_files import to_hex
from sample_values import sample

KEY = (7, 1, 2, 3)
FLAG = 1 << 31


def write_natural(name: str, values: np.ndarray, key: tuple[int, int, int, int] = KEY) -> None:
    words = natural_reference.encode(values, key)
    decoded = natural_reference.decode(words, values.size)
    golden_files.write(
        "natural",
        name,
        key=key,
        values=to_hex(values),
        words=to_hex(words),
        decoded=to_hex(decoded),
    )


def write_dithering(name: str, values: np.ndarray, parameters: Parameters) -> None:
    words = dithering_reference.encode(values, KEY, parameters)
    decoded = dithering_reference.decode(words, values.size, parameters)
    golden_files.write(
        "dithering",
        name,
        **parameters._asdict(),
        key=KEY,
        values=to_hex(values),
        words=to_hex(words),
        decoded=to_hex(decoded),
    )


def write_bad(part: str, name: str, reason: str, words: list[int], **parameters: int | str) -> None:
    """A block of three values that no decoder may accept, written by hand."""
    words_array = np.array(words, np.uint32)
    golden_files.write(
        part, f"bad_{name}", reason=reason, count=3, **parameters, words=to_hex(words_array)
    )


def natural_vectors(rng: np.random.Generator) -> None:
    write_natural("worked_example", np.float32([2.5, -1, 0, 1e-3, -0.7]))
    write_natural("one_value", np.float32([0.7]))
    for kind in ("zeros", "gauss", "laplace", "denormal", "wide", "huge", "inf_and_nan"):
        write_natural(kind, sample(kind, 75, rng))
    write_natural("negative_key", sample("gauss", 33, rng), (-1, -(2**31), 2**31 - 1, -7))
    two_blocks = np.zeros(4100, np.float32)  # the first all zero
    two_blocks[4096:] = [3e-5, -1e-5, 0, 1e-45]
    write_natural("two_blocks", two_blocks)
    bad = {
        "reserved_bit": ("bit 9 of word 0 set", [12 | 1 << 9, 127, 0]),
        "other_block_size": ("2^11 values a block", [11, 127, 0]),
        "exponent_too_small": ("E = 103", [12, 103, 0]),
        "exponent_too_large": ("E = 255", [12, 255, 0]),
        "exponent_beyond_blocks": ("a second exponent", [12, 127 | 127 << 8, 0]),
        "non_finite_with_exponent": ("bit 31 set, E = 127", [12 | FLAG, 127, 0]),
        "too_short": ("2 words, not 3", [12, 127]),
    }
    for name, (reason, words) in bad.items():
        write_bad("natural", name, reason, words)


def dithering_vectors(rng: np.random.Generator) -> None:
    example = np.float32([0.5, -2, 0, 0.3, -0.1])
    write_dithering("worked_example", example, Parameters(3, "natural", "inf", 32))
    kinds = {"natural": (1, 3, 7, 127), "standard": (1, 4, 127, 2048, 32767)}
    for kind, all_levels in kinds.items():
        for levels in all_levels:
            for norm in ("inf", "2"):
                p = Parameters(levels, kind, norm, 32)
                write_dithering(f"{kind}_{levels}_{norm}", sample("gauss", 75, rng), p)
        p = Parameters(5, kind, "2", 0, "natural")
        write_dithering(f"{kind}_whole_natural_norm", sample("laplace", 75, rng), p)
        p = Parameters(6, kind, "inf", 32, "natural")
        write_dithering(f"{kind}_natural_norms", sample("laplace", 175, rng), p)
        for values in ("zeros", "denormal", "wide", "huge", "inf_and_nan"):
            p = Parameters(9, kind, "2", 0)
            write_dithering(f"{kind}_{values}", sample(values, 33, rng), p)
    write_dithering(
        "norm_over_two_chunks", sample("gauss", 4200, rng), Parameters(1, norm="2", block=0)
    )

    header, one = [5 | 1 << 16, 32], 0x3F800000
    p = Parameters(5, "standard", "inf", 32)
    bad = {
        "other_levels": ("s = 6", [6 | 1 << 16, 32, one, 0]),
        "other_kind": ("natural", [5, 32, one, 0]),
        "other_block": ("block = 64", [5 | 1 << 16, 64, one, 0]),
        "reserved_bit": ("bit 19 of word 0 set", [5 | 1 << 16 | 1 << 19, 32, one, 0]),
        "negative_norm": ("norm = -1", [*header, one | FLAG, 0]),
        "negative_zero": ("norm = -0.0", [*header, FLAG, 0]),
        "infinite_norm": ("norm = Inf", [*header, 0x7F800000, 0]),
        "nan_norm": ("norm = NaN", [*header, 0x7FC00000, 0]),
        "non_finite_with_norm": ("bit 31 set, norm = 1", [header[0] | FLAG, 32, one, 0]),
        "too_long": ("5 words, not 4", [*header, one, 0, 0]),
    }
    for name, (reason, words) in bad.items():
        write_bad("dithering", name, reason, words, **p._asdict())
    p = p._replace(norm_code="natural")
    header[0] |= 1 << 18
    bad = {
        "natural_norm_too_large": ("byte 255", [*header, 255, 0]),
        "natural_norm_beyond_blocks": ("a second norm", [*header, 127 | 127 << 8, 0]),
    }
    for name, (reason, words) in bad.items():
        write_bad("dithering", name, reason, words, **p._asdict())


if __name__ == "__main__":
    natural_vectors(np.random.default_rng(1))
    dithering_vectors(np.random.default_rng(2))
