# SPDX-License-Identifier: Apache-2.0
"""The oracles against definitions: loops over Python integers, and the example in FORMAT.md."""

import math
import struct
from fractions import Fraction

import fft_reference
import identity_reference
import numpy as np
import positions_reference
import pytest
import range_float_reference
import top_k_reference
from sample_values import KINDS, NON_FINITE_KINDS, sample

ALL_PARAMETERS = [(N, m) for N in range(6, 13) for m in range(1, N - 1)]


def bits32(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


def float32(pattern: int) -> float:
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def bits64(x: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", x))[0]


# ---- top-k


def key(item: np.ndarray, weight: float) -> int:
    if item.ndim == 0:
        return min(bits32(abs(float(item))), 0x7F800000)
    squares = [float(x) ** 2 for x in item]
    if len(squares) > 2:
        a, b, c, d, e, f, g, h = (sum(squares[lane::8]) for lane in range(8))
        energy = ((a + e) + (c + g)) + ((b + f) + (d + h))
    else:
        energy = weight * sum(squares)
    return min(bits64(abs(energy)) >> 32, 0x7FF00000)


def bin_weight(index: int, row_length: int) -> float:
    if row_length == 0:
        return 1.0
    bin_ = index % (row_length // 2 + 1)
    return 1.0 if bin_ == 0 or 2 * bin_ == row_length else 2.0


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize(
    ("shape", "row_length"),
    [((1,), 0), ((97,), 0), ((96, 2), 0), ((96, 2), 4), ((96, 2), 5), ((96, 2), 190), ((96, 2), 1)]
    + [((50, 3), 0), ((50, 8), 0), ((50, 100), 0)],
)
def test_top_k_is_a_sort_by_falling_key_then_index(kind, shape, row_length, rng):
    items = sample(kind, shape, rng)
    n = shape[0]
    keys = [key(items[i], bin_weight(i, row_length)) for i in range(n)]
    np.testing.assert_array_equal(top_k_reference.keys(items, row_length), keys)
    ranking = sorted(range(n), key=lambda i: (-keys[i], i))
    for k in {1, min(2, n), (n + 1) // 2, n}:
        expected = sorted(ranking[:k])
        np.testing.assert_array_equal(top_k_reference.select(items, k, row_length), expected)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 640, 700])
def test_top_k_in_chunks_is_top_k_of_each_chunk(n, rng):
    items = sample("ties", n, rng)
    words, kept = top_k_reference.encode_chunked(items, 64, 0.1)
    expected = []
    for first in range(0, n, 64):
        size = min(64, n - first)
        ranking = sorted(range(size), key=lambda i: (-abs(items[first + i]), i))
        expected += sorted(first + i for i in ranking[: (size + 9) // 10])
    np.testing.assert_array_equal(positions_reference.decode(words, n, kept.size), expected)
    np.testing.assert_array_equal(kept, items[expected])


def test_the_number_kept_is_that_of_decimal_arithmetic():
    for density, n, expected in [(0.1, 10, 1), (0.1, 11, 2), (0.01, 4096, 41), (1e-6, 64, 1)]:
        assert top_k_reference.num_kept(density, n) == expected


def test_complex_keys_span_binary32_and_keep_20_fraction_bits():
    largest, smallest = float32(0x7F7FFFFF), float32(1)
    one = 1.0
    items = np.array(
        [[largest, largest], [smallest, 0], [one, 0], [one, 2.0**-11], [one, 2.0**-10], [0, -0.0]],
        np.float32,
    )
    extreme = top_k_reference.keys(items)
    assert extreme[0] < 0x7FF00000
    assert extreme[1] == bits64(2.0**-298) >> 32 > 0
    assert extreme[2] == extreme[3] == 0x3FF00000  # 1 + 2^-22: below the 20 bits kept
    assert extreme[4] == 0x3FF00001  # 1 + 2^-20
    assert extreme[5] == 0


# ---- positions


def positions_words(positions: list[int], n: int) -> list[int]:
    k = len(positions)
    low_bits = int(math.log2(n / k))
    upper = sum(1 << ((p >> low_bits) + j) for j, p in enumerate(positions))
    lows = sum((p % 2**low_bits) << (j * low_bits) for j, p in enumerate(positions))
    low_words = (k * low_bits + 31) // 32
    upper_words = (k + math.ceil(n / 2**low_bits) + 31) // 32
    bitmap_words = (n + 31) // 32
    if (low_words + upper_words) / bitmap_words < 2 / 3:
        streams = [(lows, low_words), (upper, upper_words)]
    else:
        streams = [(sum(1 << p for p in positions), bitmap_words)]
    return [stream >> 32 * i & 0xFFFFFFFF for stream, size in streams for i in range(size)]


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 65, 1000, 4096, 20001])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.15, 0.2, 0.25, 0.5, 1.0])
def test_positions_words_and_their_inverse(n, share, rng):
    k = max(1, int(n * share))
    positions = np.sort(rng.choice(n, k, replace=False))
    words = positions_reference.encode(positions, n)
    np.testing.assert_array_equal(words, positions_words(positions.tolist(), n))
    assert words.size == positions_reference.num_words(n, k)
    np.testing.assert_array_equal(positions_reference.decode(words, n, k), positions)


def test_positions_layout_changes_where_elias_fano_saves_no_more_than_a_third():
    assert positions_reference.num_words(1024, 128) == 12 + 8
    assert positions_reference.num_words(1024, 129) == 32  # 9 + 13 would be more than 2/3 of it
    assert positions_reference.num_words(1024, 0) == 1
    assert positions_reference.num_words(0, 0) == 0


def test_positions_low_bits_end_at_31():
    assert positions_reference.low_bits(2**31 - 1, 1) == 30
    assert positions_reference.low_bits(2**40, 1) == 31
    assert positions_reference.num_buckets(2**40, 1) == 512


def test_positions_of_the_worked_example():
    words = positions_reference.encode(np.array([3, 70, 75, 199]), 200)
    assert words.tolist() == [0x3ACC3, 0x219]


def test_positions_sum_starts_at_plus_zero_and_follows_worker_order():
    blocks = np.stack(
        [positions_reference.encode(np.array(p), 4) for p in ([0, 2], [2, 3], [1, 2])]
    )
    kept = np.array([[-0.0, 2.0**24], [1.0, 5.0], [-0.0, 1.0]], np.float32)
    total = positions_reference.decode_sum(blocks, kept, 4)
    assert total.tolist() == [0.0, 0.0, 2.0**24, 5.0]  # (2^24 + 1) + 1 rounds twice, down each time
    assert not np.signbit(total).any()


def test_positions_replace_leaves_the_others():
    values = np.arange(10, dtype=np.float32).reshape(5, 2)
    words = positions_reference.encode(np.array([1, 4]), 5)
    result = positions_reference.replace(values, words, -np.ones((2, 2), np.float32))
    assert result.tolist() == [[0, 1], [-1, -1], [4, 5], [6, 7], [-1, -1]]


# ---- range float


def sample_bounds(rng: np.random.Generator) -> tuple[float, float]:
    """lo <= 0 <= hi of any magnitudes, near or far from one another, sometimes one-sided."""
    high = int(rng.integers(0, 0x7F800000))
    low = int(np.clip(high + rng.integers(-(2**28), 2**28), 0, 0x7F7FFFFF))
    side = rng.integers(0, 6)
    return -float32(0 if side == 0 else low), float32(0 if side == 1 else high)


@pytest.mark.parametrize(("num_bits", "mantissa_bits"), ALL_PARAMETERS)
def test_range_float_table_has_the_smallest_eps_that_fits(num_bits, mantissa_bits, rng):
    s = 23 - mantissa_bits
    capacity = 2**num_bits - 1

    def u(x: float) -> int:
        return min((bits32(abs(x)) + 2 ** (s - 1)) // 2**s, 0x7F7FFFFF // 2**s)

    for _ in range(50):
        lo, hi = sample_bounds(rng)
        t = range_float_reference.table(np.float32(lo), np.float32(hi), num_bits, mantissa_bits)

        def num_codes(p: int, bounds=(hi, lo)) -> list[int]:
            return [max(0, u(bound) - p + 1) for bound in bounds]

        assert num_codes(t.p) == [t.P, t.Q]
        assert t.p >= 1
        assert sum(num_codes(t.p)) <= capacity
        assert t.p == 1 or sum(num_codes(t.p - 1)) > capacity
        assert bits32(float(t.eps)) == t.p << s


@pytest.mark.parametrize("difference", [-2, -1, 0, 1])
def test_range_float_table_where_the_smaller_side_loses_its_codes(difference):
    """a - b around C - 1, the last distance at which both signs may have codes."""
    capacity = 63
    b = 1008
    a = b + capacity - 1 + difference
    hi, lo = (np.uint32(u << 20).view(np.float32) for u in (a, b))
    t = range_float_reference.table(-lo, hi, 6, 3)
    # Both signs have codes only while eps can be as small as lo: a - b + 1 positive codes and one.
    expected = {-2: (61, 1), -1: (62, 1), 0: (62, 0), 1: (63, 0)}[difference]
    assert expected == (t.P, t.Q)
    mirrored = range_float_reference.table(-hi, lo, 6, 3)
    assert (mirrored.p, mirrored.P, mirrored.Q) == (t.p, t.Q, t.P)


def units(x: float) -> int:
    """x as an exact multiple of the smallest denormal."""
    return int(Fraction(x) * 2**149)


def nearest_code(x: float, positive: list[int], negative: list[int]) -> int:
    """Nearest of zero and the code values of x's sign; of two equally near ones, the larger."""
    distances = [abs(abs(units(x)) - c) for c in [0, *(positive if x > 0 else negative)]]
    nearest = min(distances)
    j = max(i for i, d in enumerate(distances) if d == nearest)
    return j if x > 0 or j == 0 else len(positive) + j


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_bits", "mantissa_bits"), [(6, 1), (6, 4), (7, 3), (8, 6)])
def test_range_float_codes_are_the_nearest_values(kind, num_bits, mantissa_bits, rng):
    values = sample(kind, 60, rng)
    lo, hi = range_float_reference.bounds(values)
    t = range_float_reference.table(lo, hi, num_bits, mantissa_bits)

    def magnitudes(count: int) -> list[int]:
        return [units(float32((t.p + j) << t.s)) for j in range(count)]

    # Half-way points and their neighbours are where rounding can go wrong.
    largest = int(max(bits32(float(hi)), bits32(float(-lo))))
    half = [(t.p + j << t.s) + 2 ** (t.s - 1) + d for j in range(0, t.P, 7) for d in (-1, 0, 1)]
    half += [bits32(float(t.eps) / 2) + d for d in (-1, 0, 1) if t.p << t.s > 4]
    edges = np.array([b for b in half if 0 < b <= largest], np.uint32).view(np.float32)
    probes = np.concatenate([values, edges, -edges])
    codes = range_float_reference.quantize(probes, t)
    positive, negative = magnitudes(t.P), magnitudes(t.Q)
    expected = [nearest_code(float(x), positive, negative) for x in probes]
    np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize("num_bits", range(6, 13))
@pytest.mark.parametrize("v", [0, 1, 2, 3, 5, 31, 32, 33, 64, 101])
def test_range_float_bit_stream(num_bits, v, rng):
    codes = rng.integers(0, 2**num_bits, v)
    stream = sum(int(code) << (i * num_bits) for i, code in enumerate(codes))
    count = -(-v * num_bits // 32)
    expected = [stream >> (32 * i) & 0xFFFFFFFF for i in range(count)]
    words = range_float_reference.pack(codes, num_bits)
    np.testing.assert_array_equal(words, np.array(expected, np.uint32))
    np.testing.assert_array_equal(range_float_reference.unpack(words, v, num_bits), codes)


def test_range_float_header():
    words = range_float_reference.encode(np.array([1.0, 3.0, -0.0], np.float32), 10, 6)
    assert words[:3].tolist() == [0x00000000, 0x40400000, 10 | 6 << 4]
    words = range_float_reference.encode(np.float32([-1.0, -2.0]), 12, 10, value_range=(-4.0, -0.0))
    assert words[:3].tolist() == [0xC0800000, 0x00000000, 12 | 10 << 4]
    for bad in (np.inf, -np.inf, np.nan):
        words = range_float_reference.encode(np.float32([1.0, bad]), 6, 3, value_range=(-1.0, 1.0))
        assert words.tolist() == [0, 0, 0x80000036, 0]
        decoded = range_float_reference.decode(words, 2, 6, 3)
        assert decoded.view(np.uint32).tolist() == [0x7FC00000] * 2


def test_range_float_codes_that_do_not_occur_are_nan():
    t = range_float_reference.table(np.float32(-2), np.float32(0.5), 6, 3)
    assert (t.P, t.Q) == (23, 39)
    decoded = range_float_reference.dequantize(np.arange(64), t)
    assert decoded.view(np.uint32)[63] == 0x7FC00000
    assert np.isfinite(decoded[:63]).all()


def test_range_float_error_is_what_decoding_loses():
    values = np.array([[0.5, -0.25, -2.0], [0.3, 0.03, 0.04]], np.float32)
    words = range_float_reference.encode(values, 6, 3)
    error = range_float_reference.error(values, words, 6, 3)
    # 0.3125 and eps = 0.078125 are the nearest values; 0.03 is below eps / 2 and 0.04 above.
    expected = np.float32([[0, 0, 0], [0.3, 0.03, 0.04]]) - np.float32(
        [[0] * 3, [0.3125, 0, 0.078125]]
    )
    np.testing.assert_array_equal(error, expected)


# ---- identity, FFT codec, worked example


def test_identity_keeps_patterns():
    values = np.array([1.0, -0.0, np.inf, float32(1)], np.float32)
    words = identity_reference.encode(values)
    assert words.tolist() == [0x3F800000, 0x80000000, 0x7F800000, 1]
    np.testing.assert_array_equal(identity_reference.decode(words, 4).view(np.uint32), words)


def test_fft_payload_is_its_blocks_and_sums_per_worker(rng):
    rows, row_length, k = 3, 10, 5
    bins = row_length // 2 + 1
    spectra = np.fft.rfft(rng.standard_normal((2, rows, row_length))).astype(np.complex64)
    payloads = np.stack([fft_reference.encode(s, k, row_length, 12, 8) for s in spectra])
    assert payloads.shape == (2, 1 + 3 + (2 * k * 12 + 31) // 32)

    expected = np.zeros((rows, bins), np.complex64)
    for spectrum in spectra:
        kept = {}
        for row in range(rows):
            for b in range(bins):
                weight = 1 if b in (0, row_length / 2) else 2
                kept[row, b] = weight * abs(complex(spectrum[row, b])) ** 2
        chosen = sorted(kept, key=kept.get, reverse=True)[:k]
        components = np.array([spectrum[at] for at in sorted(chosen)]).view(np.float32)
        words = range_float_reference.encode(components, 12, 8)
        decoded = range_float_reference.decode(words, 2 * k, 12, 8).view(np.complex64)
        for at, value in zip(sorted(chosen), decoded, strict=True):
            expected[at] += value
    total = fft_reference.decode_sum(payloads, (rows, bins), k, 12, 8)
    np.testing.assert_array_equal(total, expected)


def test_worked_example_of_the_format_page():
    items = np.array([0.5, -0.25, 0, 0.1, -2], np.float32)
    positions, kept = top_k_reference.encode(items, 3)
    assert kept.tolist() == [0.5, -0.25, -2.0]
    words = range_float_reference.encode(kept, 6, 3)
    payload = [f"{word:08x}" for word in [*positions, *words]]
    # Worked out by hand in the last section of FORMAT.md.
    assert payload == ["00000013", "c0000000", "3f000000", "00000036", "0003e997"]
    assert range_float_reference.decode(words, 3, 6, 3).tolist() == [0.5, -0.25, -2.0]
