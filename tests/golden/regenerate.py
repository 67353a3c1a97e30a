# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors from the NumPy oracles, never from the native ops.

Run `python tests/golden/regenerate.py`. The files freeze format version 2: a change in them is a
change of the wire format, so FORMAT.md, its version and the CHANGELOG change with it.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

import fft_reference
import golden_files
import identity_reference
import range_float_reference
import top_k_reference
from golden_files import to_hex
from sample_values import near_one, sample

WORKED_EXAMPLE = np.array([0.5, -0.25, 0, 0.1, -2], np.float32)


def sparse(size: int, items: dict[int, float]) -> np.ndarray:
    result = np.zeros(size, np.float32)
    result[list(items)] = list(items.values())
    return result


def write_top_k(name: str, items: np.ndarray, count: int, row_length: int = 0) -> None:
    positions, kept = top_k_reference.encode(items, count, row_length)
    golden_files.write(
        "top_k",
        name,
        row_length=row_length,
        count=count,
        **golden_files.sparse_to_fields(items),
        positions=to_hex(positions),
        kept=to_hex(kept),
    )


def write_top_k_chunked(name: str, items: np.ndarray, chunk: int, density: float) -> None:
    positions, kept = top_k_reference.encode_chunked(items, chunk, density)
    golden_files.write(
        "top_k_chunked",
        name,
        chunk=chunk,
        density=density,
        **golden_files.sparse_to_fields(items),
        positions=to_hex(positions),
        kept=to_hex(kept),
    )


def write_range_float(
    name: str,
    values: np.ndarray,
    num_bits: int,
    mantissa_bits: int,
    value_range: tuple[float, float] | None = None,
) -> None:
    words = range_float_reference.encode(values, num_bits, mantissa_bits, value_range)
    decoded = range_float_reference.decode(words, values.size, num_bits, mantissa_bits)
    golden_files.write(
        "range_float",
        name,
        num_bits=num_bits,
        mantissa_bits=mantissa_bits,
        range=None if value_range is None else to_hex(np.float32(value_range)),
        values=to_hex(values),
        words=to_hex(words),
        decoded=to_hex(decoded),
    )


def write_identity(name: str, values: np.ndarray) -> None:
    words = to_hex(identity_reference.encode(values))
    golden_files.write("identity", name, values=to_hex(values), words=words)


def write_fft(name: str, spectra: np.ndarray, row_length: int, count: int, N: int, m: int) -> None:
    """spectra: complex64 [W, rows, bins]."""
    payloads = np.stack([fft_reference.encode(s, count, row_length, N, m) for s in spectra])
    total = fft_reference.decode_sum(payloads, spectra.shape[1:], count, N, m)
    golden_files.write(
        "fft",
        name,
        row_length=row_length,
        count=count,
        num_bits=N,
        mantissa_bits=m,
        shape=spectra.shape,
        spectra=[to_hex(s) for s in spectra],
        payloads=[to_hex(p) for p in payloads],
        sum=to_hex(total),
    )


def write_bad(name: str, reason: str, block: str, words: list[int], **plan: int) -> None:
    """A block that no decoder may accept. Written by hand: no encoder makes one."""
    words_array = np.array(words, np.uint32)
    golden_files.write("bad", name, reason=reason, block=block, **plan, words=to_hex(words_array))


def top_k_vectors(rng: np.random.Generator) -> None:
    write_top_k("worked_example", WORKED_EXAMPLE, 3)
    write_top_k("one_item", np.float32([-3.0]), 1)
    write_top_k("all_zero", np.zeros(40, np.float32), 6)
    write_top_k("ties", sample("ties", 40, rng), 17)
    write_top_k("denormal", sample("denormal", 40, rng), 9)
    write_top_k("non_finite", sample("inf_and_nan", 40, rng), 4)
    write_top_k("bitmap_partial_word", sample("gauss", 65, rng), 30)
    write_top_k("elias_fano_odd_count", sparse(1000, {0: 1, 500: -2, 501: 3, 998: 4, 999: -5}), 5)
    # Buckets of 32,768 items, of which two hold two; -0.0 and zeros fill up to the count.
    items = {65535: 1, 131072: 1e-45, 196607: -1, 196608: 2, 200000: -0.0}
    write_top_k("elias_fano_far_apart", sparse(200001, items), 6)
    write_top_k("complex", sample("gauss", (33, 2), rng), 5)
    write_top_k(
        "complex_huge_and_denormal",
        np.stack([sample(k, 40, rng) for k in ("huge", "denormal")], 1),
        7,
    )
    write_top_k("complex_non_finite", sample("inf_and_nan", (40, 2), rng), 3)
    write_top_k("complex_rows_even", sample("ties", (30, 2), rng), 8, row_length=8)
    write_top_k("complex_rows_odd", sample("ties", (30, 2), rng), 8, row_length=9)


def wide_vectors(rng: np.random.Generator) -> None:
    write_top_k("wide", sample("gauss", (40, 9), rng), 7)
    write_top_k("wide_non_finite", sample("inf_and_nan", (40, 8), rng), 5)
    small = [2.0**-28] * 4  # their squares count in a sum close to 1 only if 16 come at once
    split = {1: small, 3: small, 5: small, 7: small}
    items = np.stack([near_one({0: small * 4}), near_one(split)])
    write_top_k("wide_order_of_the_sum", items, 1)


def top_k_chunked_vectors(rng: np.random.Generator) -> None:
    write_top_k_chunked("whole_chunks", sample("gauss", 256, rng), 64, 0.05)
    write_top_k_chunked("shorter_last_chunk", sample("ties", 200, rng), 64, 0.1)
    write_top_k_chunked("one_shorter_chunk", sample("inf_and_nan", 40, rng), 64, 0.1)
    items = {0: 1, 511: -2, 512: 3, 65535: 1e-45, 65536: 2, 70_000: -1}
    write_top_k_chunked("elias_fano", sparse(70_001, items), 512, 0.001)


def range_float_vectors(rng: np.random.Generator) -> None:
    write_range_float("worked_example", top_k_reference.encode(WORKED_EXAMPLE, 3)[1], 6, 3)
    write_range_float("one_value", np.float32([0.7]), 12, 1)
    write_range_float("all_zero", sample("zeros", 11, rng), 7, 2)
    write_range_float("gauss_8_4", sample("gauss", 33, rng), 8, 4)
    write_range_float("laplace_10_6", sample("laplace", 33, rng), 10, 6)
    write_range_float("wide_6_1", sample("wide", 33, rng), 6, 1)
    write_range_float("wide_12_10", sample("wide", 33, rng), 12, 10)
    write_range_float("denormal_9_5", sample("denormal", 33, rng), 9, 5)
    write_range_float("huge_11_7", sample("huge", 33, rng), 11, 7)
    write_range_float("positive_7_3", sample("positive", 33, rng), 7, 3)
    write_range_float("negative_7_3", sample("negative", 33, rng), 7, 3)
    write_range_float("given_range_saturates", sample("gauss", 33, rng), 8, 4, (-0.5, 0.25))
    write_range_float("given_range_one_sided", sample("gauss", 33, rng), 8, 5, (-1.0, -0.0))
    write_range_float("non_finite", sample("inf_and_nan", 33, rng), 8, 4)
    # Zero, eps / 2, eps and the first two half-way points, each with its neighbours.
    t = range_float_reference.table(np.float32(-1), np.float32(1), 6, 3)
    first = t.p << t.s
    edges = [0, 1, first - (1 << 23), first, first + (1 << (t.s - 1)), first + (3 << (t.s - 1))]
    patterns = np.array([e + d for e in edges for d in (-1, 0, 1) if e + d >= 0], np.uint32)
    edges = patterns.view(np.float32)
    write_range_float("rounding_6_3", np.concatenate([edges, -edges]), 6, 3, (-1.0, 1.0))


def bad_vectors() -> None:
    bitmap = {"size": 100, "count": 20}
    write_bad(
        "bitmap_one_too_many", "21 bits set, k = 20", "positions", [0x1FFFFF, 0, 0, 0], **bitmap
    )
    write_bad(
        "bitmap_one_too_few", "19 bits set, k = 20", "positions", [0x7FFFF, 0, 0, 0], **bitmap
    )
    write_bad("bitmap_beyond_n", "bit n set", "positions", [0x7FFFF, 0, 0, 1 << 4], **bitmap)
    write_bad("bitmap_too_short", "3 words, not 4", "positions", [0xFFFFF, 0, 0], **bitmap)

    # Positions 3, 70, 75 and 199: 5 low bits, 7 buckets.
    elias_fano = {"size": 200, "count": 4}
    lows, upper = 3 | 6 << 5 | 11 << 10 | 7 << 15, 1 | 1 << 3 | 1 << 4 | 1 << 9
    variants = {
        "elias_fano_one_too_many": ("5 upper bits set", [lows, upper | 1 << 5]),
        "elias_fano_one_too_few": ("3 upper bits set", [lows, upper ^ 1 << 3]),
        "elias_fano_beyond_n": ("position 200", [lows + (1 << 15), upper]),
        "elias_fano_beyond_buckets": ("bucket 7 of 0..6", [lows, upper ^ 1 << 9 | 1 << 10]),
        "elias_fano_not_ascending": ("75 before 70", [3 | 11 << 5 | 6 << 10 | 7 << 15, upper]),
        "elias_fano_twice": ("position 70 twice", [3 | 6 << 5 | 6 << 10 | 7 << 15, upper]),
        "elias_fano_padding": ("a low bit after the last", [lows | 1 << 20, upper]),
        "elias_fano_too_long": ("3 words, not 2", [lows, upper, 0]),
    }
    for name, (reason, words) in variants.items():
        write_bad(name, reason, "positions", words, **elias_fano)

    plan = {"count": 3, "num_bits": 8, "mantissa_bits": 4}
    bounds = [0xBF800000, 0x3F800000]
    headers = {
        "range_float_other_num_bits": ("N is 9, not 8", 9 | 4 << 4),
        "range_float_other_mantissa_bits": ("m is 5, not 4", 8 | 5 << 4),
        "range_float_reserved_bit": ("bit 9 of word 2 set", 8 | 4 << 4 | 1 << 9),
    }
    for name, (reason, header) in headers.items():
        write_bad(name, reason, "range_float", [*bounds, header, 0], **plan)
    header = 8 | 4 << 4
    bad_bounds = {
        "range_float_positive_lo": ("lo = 1", 0x3F800000, 0x3F800000, header),
        "range_float_negative_zero_lo": ("lo = -0.0", 0x80000000, 0x3F800000, header),
        "range_float_nan_hi": ("hi = NaN", 0xBF800000, 0x7FC00000, header),
        "range_float_infinite_hi": ("hi = Inf", 0xBF800000, 0x7F800000, header),
        "range_float_non_finite_with_bounds": (
            "bit 31 set, hi = 1",
            0,
            0x3F800000,
            header | 1 << 31,
        ),
    }
    for name, (reason, *words) in bad_bounds.items():
        write_bad(name, reason, "range_float", [*words, 0], **plan)
    short = [*bounds, header]
    write_bad("range_float_too_short", "3 words, not 4", "range_float", short, **plan)


def main() -> None:
    rng = np.random.default_rng(1)
    top_k_vectors(rng)
    range_float_vectors(rng)
    write_identity(
        "special_values", np.concatenate([WORKED_EXAMPLE, sample("inf_and_nan", 3, rng)])
    )
    write_identity("one_value", np.float32([-0.0]))
    for name, row_length, rows in [("even_rows", 16, 3), ("odd_rows", 9, 4)]:
        signal = rng.standard_normal((2, rows, row_length)).cumsum(axis=2)
        spectra = np.fft.rfft(signal, norm="ortho").astype(np.complex64)
        write_fft(name, spectra, row_length, 6, 10, 6)
    spectra[1, 2, 3] = np.nan
    write_fft("one_worker_non_finite", spectra, row_length, 6, 8, 4)
    rng = np.random.default_rng(3)
    wide_vectors(rng)
    top_k_chunked_vectors(rng)
    bad_vectors()


if __name__ == "__main__":
    main()
