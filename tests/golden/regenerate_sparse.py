# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors of random-k, thresholds and counted blocks from their NumPy oracles.

Run `python tests/golden/regenerate_sparse.py`. As with regenerate.py, a change in the files is a
change of the wire format.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

import golden_files
import random_k_reference
import threshold_reference
from golden_files import to_hex
from sample_values import sample

WORKED_EXAMPLE = np.array([0.5, -0.25, 0, 0.1, -2], np.float32)
KEY = (7, 1, 2, 3)


def write_random_k(name: str, size: int, count: int, key: tuple[int, int, int, int] = KEY) -> None:
    words = random_k_reference.encode(key, size, count)
    golden_files.write("random_k", name, key=key, size=size, count=count, positions=to_hex(words))


def write_threshold(
    name: str, items: np.ndarray, threshold: float, capacity: int, row_length: int = 0
) -> None:
    positions, kept = threshold_reference.encode(items, threshold, capacity, row_length)
    golden_files.write(
        "threshold",
        name,
        row_length=row_length,
        threshold=to_hex(np.float32([threshold])),
        capacity=capacity,
        **golden_files.sparse_to_fields(items),
        positions=to_hex(positions),
        kept=to_hex(kept),
    )


def write_bad(name: str, reason: str, size: int, capacity: int, words: list[int]) -> None:
    """A counted block that no decoder may accept. Written by hand: no encoder makes one."""
    golden_files.write(
        "threshold",
        f"bad_{name}",
        reason=reason,
        size=size,
        capacity=capacity,
        words=to_hex(np.array(words, np.uint32)),
    )


def random_k_vectors() -> None:
    write_random_k("worked_example", 10, 4)
    write_random_k("one_item", 1, 1)
    write_random_k("all_items", 33, 33)
    write_random_k("one_of_many", 1 << 20, 1)
    write_random_k("bitmap_unequal_strata", 100, 37)
    write_random_k("elias_fano_odd_count", 1000, 5)
    write_random_k("elias_fano_far_apart", 200_001, 11)
    write_random_k("other_keys", 1_000_000, 3, key=(2**31 - 1, -(2**31), -1, 0))


def threshold_vectors(rng: np.random.Generator) -> None:
    write_threshold("worked_example", WORKED_EXAMPLE, 0.25, 4)
    write_threshold("nothing", sample("gauss", 40, rng), 100.0, 9)
    write_threshold("exactly_full", sample("ties", 40, rng), 0.0, 40)
    write_threshold("too_many", sample("ties", 40, rng), 1.0, 9)
    write_threshold("denormal", sample("denormal", 40, rng), 1e-39, 30)
    write_threshold("non_finite", sample("inf_and_nan", 40, rng), 1e38, 4)
    write_threshold("infinite_threshold", sample("inf", 40, rng), np.inf, 4)
    items = np.zeros(200_001, np.float32)
    items[[65535, 65536, 131072, 200_000]] = [1, -2, 0.5, 3]
    write_threshold("elias_fano_even_count", items, 0.5, 7)
    write_threshold("elias_fano_odd_count", items, 0.75, 7)
    write_threshold("complex", sample("gauss", (33, 2), rng), 1.0, 20)
    write_threshold("complex_rows_even", sample("ties", (30, 2), rng), 2.0, 12, row_length=8)
    write_threshold("complex_rows_odd", sample("ties", (30, 2), rng), 2.0, 25, row_length=9)


def bad_vectors() -> None:
    bitmap = [3, 0x80000001, 0x1]  # items 0, 31 and 32 of 40, room for 5
    write_bad("bitmap_counts_more", "counts 4, holds 3", 40, 5, [4, *bitmap[1:]])
    write_bad("bitmap_counts_less", "counts 2, holds 3", 40, 5, [2, *bitmap[1:]])
    write_bad("bitmap_over_capacity", "6 of 5", 40, 5, [6, 0x3F, 0])
    write_bad("bitmap_without_count", "2 words, not 3", 40, 5, bitmap[1:])
    # Items 70 and 199 of 200, room for 4: 5 low bits, 7 buckets.
    elias_fano = [2, 6 | 7 << 5, 1 << 2 | 1 << 7]
    bad = {
        "counts_more": ("counts 3, holds 2", [3, *elias_fano[1:]]),
        "counts_less": ("counts 1, holds 2", [1, *elias_fano[1:]]),
        "count_of_ones": ("counts 2^32 - 1", [0xFFFFFFFF, *elias_fano[1:]]),
        "over_capacity": ("5 of 4", [5, 0, 0x1F]),
        "unused_low_bit": ("bit 0 of low bits without an item", [2, elias_fano[1] | 1 << 10, 0x84]),
        "padding": ("the low bit after the capacity", [2, elias_fano[1] | 1 << 20, 0x84]),
        "beyond_buckets": ("bucket 7 of 0..6", [*elias_fano[:2], 1 << 2 | 1 << 8]),
    }
    for name, (reason, words) in bad.items():
        write_bad(f"elias_fano_{name}", reason, 200, 4, words)


def main() -> None:
    random_k_vectors()
    threshold_vectors(np.random.default_rng(2))
    bad_vectors()


if __name__ == "__main__":
    main()
