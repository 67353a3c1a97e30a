# SPDX-License-Identifier: Apache-2.0
"""Range float ops against the oracle, bit for bit, and the properties claimed for the format."""

import numpy as np
import pytest
import range_float_reference as reference
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import range_float

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
ALL_PARAMETERS = [(N, m) for N in range(6, 13) for m in range(1, N - 1)]
SMALLEST_NORMAL = np.finfo(np.float32).tiny


def words_of(values, num_bits, mantissa_bits, value_range=None) -> np.ndarray:
    words, _ = range_float.range_float_encode(values, num_bits, mantissa_bits, value_range)
    return words.numpy().view(np.uint32)


def decoded(words: np.ndarray, count: int, num_bits: int, mantissa_bits: int) -> np.ndarray:
    """One block, uint32 [w] -> float32 [count]."""
    result = range_float.range_float_decode(
        words[None].view(np.int32), count, num_bits, mantissa_bits
    )
    return result.numpy()[0]


def round_trip(values, num_bits, mantissa_bits, value_range=None) -> np.ndarray:
    words = words_of(values, num_bits, mantissa_bits, value_range)
    return decoded(words, values.size, num_bits, mantissa_bits).reshape(values.shape)


def assert_as_oracle(values, num_bits, mantissa_bits, value_range=None) -> None:
    words, error = range_float.range_float_encode(values, num_bits, mantissa_bits, value_range)
    words = words.numpy().view(np.uint32)
    expected = reference.encode(values, num_bits, mantissa_bits, value_range)
    np.testing.assert_array_equal(words, expected)
    expected = reference.error(values, words, num_bits, mantissa_bits)
    np.testing.assert_array_equal(error.numpy(), expected)
    expected = reference.decode(words, values.size, num_bits, mantissa_bits)
    result = decoded(words, values.size, num_bits, mantissa_bits)
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


# ---- equality with the oracle


@pytest.mark.parametrize("v", SIZES)
@pytest.mark.parametrize(("num_bits", "mantissa_bits"), [(8, 4), (11, 6)])
def test_sizes(v, num_bits, mantissa_bits, rng):
    assert_as_oracle(sample("gauss", v, rng), num_bits, mantissa_bits)


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("num_bits", range(6, 13))
def test_all_parameters_and_kinds_of_values(kind, num_bits, rng):
    for mantissa_bits in range(1, num_bits - 1):
        assert_as_oracle(sample(kind, 777, rng), num_bits, mantissa_bits)


@pytest.mark.parametrize("kind", ["denormal", "wide", "ties", "inf_and_nan"])
def test_kinds_of_values_over_several_shards(kind, rng):
    # Pool threads may run with denormals flushed; a small input never leaves the calling thread.
    assert_as_oracle(sample(kind, 400003, rng), 10, 5)


@pytest.mark.parametrize("at", [0, 123456, 400002])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_non_finite_value_makes_all_nan(at, bad):
    values = np.ones(400003, np.float32)
    values[at] = bad
    for value_range in (None, (-2.0, 2.0)):
        words, error = range_float.range_float_encode(values, 7, 3, value_range)
        words = words.numpy().view(np.uint32)
        assert words[2] == 0x80000000 | 7 | 3 << 4
        assert not words[[0, 1]].any()
        assert not words[3:].any()
        assert not error.numpy().any()
        assert (decoded(words, values.size, 7, 3).view(np.uint32) == 0x7FC00000).all()


RANGES = [
    (-1.0, 1.0),
    (-1.0, 0.0),
    (0.0, 1.0),
    (-0.0, 1.0),  # a negative zero is written as +0
    (0.0, 0.0),
    (-1e-3, 1e3),
    (-3e38, 1e-42),
    (-1e-45, 1e-45),
    (-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max)),
]


@pytest.mark.parametrize("value_range", RANGES)
@pytest.mark.parametrize("kind", ["gauss", "wide", "denormal", "huge", "zeros", "inf"])
def test_given_ranges(value_range, kind, rng):
    values = sample(kind, 500, rng)
    for num_bits, mantissa_bits in [(6, 1), (8, 4), (12, 10)]:
        assert_as_oracle(values, num_bits, mantissa_bits, value_range)


@pytest.mark.parametrize("value_range", [(-1.0, 1.0), (-3e38, 3e38), (-1e-44, 1e-42), (-2.0, 0.01)])
def test_rounding_at_half_way_points(value_range):
    for num_bits, mantissa_bits in ALL_PARAMETERS:
        t = reference.table(*np.float32(value_range), num_bits, mantissa_bits)
        half_step = 1 << (t.s - 1)
        lattice = (np.arange(t.p, t.p + max(t.P, t.Q)) << t.s) + half_step
        half_eps = int((t.eps / np.float32(2)).view(np.uint32))
        patterns = np.add.outer([*lattice, half_eps, t.p << t.s], [-1, 0, 1]).reshape(-1)
        magnitude = patterns[patterns < 0x7F800000].astype(np.uint32).view(np.float32)
        values = np.concatenate([magnitude, -magnitude])
        assert_as_oracle(values, num_bits, mantissa_bits, value_range)


def test_shape_of_values_is_free(rng):
    for shape in [(), (0,), (6,), (2, 3), (3, 0, 2), (2, 3, 4)]:
        values = sample("gauss", (1, *shape), rng)[0]  # also of rank 0
        words, error = range_float.range_float_encode(values, 9, 5)
        assert error.shape == shape
        expected = reference.encode(values, 9, 5)
        np.testing.assert_array_equal(words.numpy().view(np.uint32), expected)


def test_decodes_several_workers(rng):
    blocks = [
        reference.encode(sample(kind, 1001, rng), 10, 6)
        for kind in ("gauss", "nan", "zeros", "wide")
    ]
    result = range_float.range_float_decode(np.stack(blocks).view(np.int32), 1001, 10, 6)
    expected = np.stack([reference.decode(words, 1001, 10, 6) for words in blocks])
    np.testing.assert_array_equal(result.numpy().view(np.uint32), expected.view(np.uint32))


def test_codes_that_do_not_occur_are_nan():
    words = reference.encode(np.zeros(64, np.float32), 6, 3, (-2.0, 0.5))  # 23 + 39 codes
    words[3:] = reference.pack(np.arange(64), 6)
    result = decoded(words, 64, 6, 3)
    assert np.isfinite(result[:63]).all()
    assert result[63:].view(np.uint32) == 0x7FC00000


def test_graph_equals_eager(rng):
    values = sample("laplace", 4099, rng)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def encode_then_decode(values):
        words, error = range_float.range_float_encode(values, 8, 4)
        result = range_float.range_float_decode(words[None], tf.size(values, tf.int64), 8, 4)
        return words, error, result[0]

    words, error, result = encode_then_decode(values)
    expected = reference.encode(values, 8, 4)
    np.testing.assert_array_equal(words.numpy().view(np.uint32), expected)
    np.testing.assert_array_equal(error.numpy(), reference.error(values, expected, 8, 4))
    np.testing.assert_array_equal(result.numpy(), reference.decode(expected, 4099, 8, 4))


@pytest.mark.parametrize(("v", "num_bits"), [(0, 6), (1, 6), (16, 6), (17, 6), (1001, 12)])
def test_static_shapes_are_exact(v, num_bits):
    count = 3 + -(-v * num_bits // 32)
    assert range_float.num_words(v, num_bits) == count
    encode = tf.function(lambda x: range_float.range_float_encode(x, num_bits, 3))
    words, error = encode.get_concrete_function(tf.TensorSpec([v], tf.float32)).structured_outputs
    assert words.shape == [count]
    assert error.shape == [v]
    decode = tf.function(lambda w: range_float.range_float_decode(w, v, num_bits, 3))
    graph = decode.get_concrete_function(tf.TensorSpec([5, count], tf.int32))
    assert graph.structured_outputs.shape == [5, v]


# ---- properties claimed for the format

parameters = st.sampled_from(ALL_PARAMETERS)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
magnitudes = st.floats(0, width=32, allow_infinity=False)
value_ranges = st.one_of(
    st.tuples(magnitudes.map(lambda x: -x), magnitudes),
    magnitudes.map(lambda x: (-x, x)),
    magnitudes.map(lambda x: (0.0, x)),
    magnitudes.map(lambda x: (-x, 0.0)),
)
bounded = settings(max_examples=50, deadline=None)


@bounded
@given(parameters, value_ranges)
def test_table_fits_and_encoding_a_decoded_code_gives_the_code(num_bits_m, value_range):
    num_bits, mantissa_bits = num_bits_m
    words = reference.encode(
        np.zeros(2**num_bits, np.float32), num_bits, mantissa_bits, value_range
    )
    words[3:] = reference.pack(np.arange(2**num_bits), num_bits)  # every code once
    values = decoded(words, 2**num_bits, num_bits, mantissa_bits)

    occurring = int(np.isfinite(values).sum())
    assert occurring <= 2**num_bits  # zero and P + Q <= 2^N - 1 others
    assert np.isnan(values[occurring:]).all()
    values = values[:occurring]
    assert np.unique(values).size == occurring  # no two codes for one value
    np.testing.assert_array_equal(values[:1].view(np.uint32), [0])

    again = words_of(values, num_bits, mantissa_bits, value_range)
    codes = reference.unpack(again[3:], occurring, num_bits)
    np.testing.assert_array_equal(codes, np.arange(occurring))


@bounded
@given(parameters, value_ranges)
def test_all_codes_are_spent_unless_the_lattice_ends(num_bits_m, value_range):
    num_bits, mantissa_bits = num_bits_m
    words = reference.encode(
        np.zeros(2**num_bits, np.float32), num_bits, mantissa_bits, value_range
    )
    words[3:] = reference.pack(np.arange(2**num_bits), num_bits)
    values = decoded(words, 2**num_bits, num_bits, mantissa_bits)
    magnitude = np.abs(values[np.isfinite(values)])
    smallest_lattice_point = np.uint32(1 << (23 - mantissa_bits)).view(np.float32)
    if magnitude.size < 2**num_bits - 1:  # one code may be left over when both signs have codes
        assert magnitude.size == 1 or magnitude[magnitude > 0].min() == smallest_lattice_point


@bounded
@given(parameters, st.lists(finite, min_size=2, max_size=200), st.one_of(st.none(), value_ranges))
def test_decoded_values_are_monotone_in_the_value(num_bits_m, values, value_range):
    ordered = np.sort(np.array(values, np.float32))
    result = round_trip(ordered, *num_bits_m, value_range)
    assert (result[1:] >= result[:-1]).all()


@bounded
@given(parameters, st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.booleans())
def test_error_bounds(num_bits_m, seed, kind, given_range):
    num_bits, mantissa_bits = num_bits_m
    values = sample(kind, 300, np.random.default_rng(seed))
    value_range = None
    lo, hi = reference.bounds(values)
    if given_range:  # the middle half of the values, so that others lie outside
        value_range = lo, hi = np.float32(lo / 2), np.float32(hi / 2)
    result = round_trip(values, num_bits, mantissa_bits, value_range)
    t = reference.table(lo, hi, num_bits, mantissa_bits)
    x, y = values.astype(np.float64), result.astype(np.float64)  # differences are exact
    magnitude, error = np.abs(x), np.abs(x - y)

    assert ((np.sign(y) == np.sign(x)) | (y == 0)).all()
    inside = (magnitude >= t.eps) & (lo <= values) & (values <= hi)
    largest = np.uint32((0x7F7FFFFF >> t.s) << t.s).view(np.float32)
    rounds_up_past_the_end = magnitude >= largest + 2.0 ** (127 - mantissa_bits - 1)
    normal = inside & (magnitude >= SMALLEST_NORMAL) & ~rounds_up_past_the_end
    assert (error[normal] <= magnitude[normal] * 2.0 ** -(mantissa_bits + 1)).all()
    last_step = inside & rounds_up_past_the_end
    assert (y[last_step] == np.sign(x[last_step]) * largest).all()
    denormal = inside & (magnitude < SMALLEST_NORMAL)
    assert (error[denormal] <= 2.0 ** (t.s - 1 - 149)).all()

    below = (magnitude < t.eps) & np.where(values > 0, t.P > 0, t.Q > 0)
    assert (error[below] <= np.float64(t.eps) / 2).all()
    without_codes = np.where(values > 0, t.P == 0, t.Q == 0)
    assert (y[without_codes] == 0).all()
    if t.P:
        assert np.unique(y[values > hi]).size <= 1
        assert (y[values > hi] == round_trip(np.float32([hi]), *num_bits_m, (lo, hi))[0]).all()
    if t.Q:
        assert (y[values < lo] == round_trip(np.float32([lo]), *num_bits_m, (lo, hi))[0]).all()


@bounded
@given(parameters, st.lists(finite, min_size=1, max_size=100), st.one_of(st.none(), value_ranges))
def test_any_values_as_oracle(num_bits_m, values, value_range):
    assert_as_oracle(np.array(values, np.float32), *num_bits_m, value_range)


def test_zero_is_exact():
    for num_bits, mantissa_bits in ALL_PARAMETERS:
        result = round_trip(np.float32([0.0, -0.0, 5.0, -1e-3]), num_bits, mantissa_bits)
        np.testing.assert_array_equal(result[:2].view(np.uint32), [0, 0])


# ---- relative mean squared error (Gauss and Laplace, range scaled to the maximum)


SAMPLES = 1_000_000
DENSITY = {  # of abs(x), up to a constant factor
    "gauss": lambda x: np.exp(-(x**2) / 2),
    "laplace": lambda x: np.exp(-x),
}
# 1 % and 99 % quantiles of the largest of SAMPLES magnitudes: F(x)^SAMPLES = q.
LARGEST = {"gauss": (4.58, 5.73), "laplace": (12.29, 18.42)}


def relative_mse(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """sum((x - y)^2) / sum(x^2) and its standard error (delta method for a ratio of means)."""
    x = x.astype(np.float64)
    squared_error, squared = (x - y) ** 2, x**2
    ratio = squared_error.sum() / squared.sum()
    residual = squared_error - ratio * squared
    return ratio, residual.std() / squared.mean() / np.sqrt(x.size)


def expected_mse(kind: str, num_bits: int, mantissa_bits: int, largest: float) -> float:
    """The same ratio by integration over the density, for a symmetric range."""
    s = 23 - mantissa_bits
    per_sign = 2 ** (num_bits - 1) - 1
    top = (int(np.float32(largest).view(np.uint32)) + (1 << (s - 1))) >> s
    eps = float(np.uint32((top - per_sign + 1) << s).view(np.float32))
    x = (np.arange(2_000_000) + 0.5) * (largest / 2_000_000)
    step = 2.0 ** (np.floor(np.log2(x)) - mantissa_bits)
    error = np.where(x < eps, np.minimum(x, eps - x), x - np.rint(x / step) * step)
    density = DENSITY[kind](x)
    return float(np.sum(density * error**2) / np.sum(density * x**2))


def uniform_round_trip(x: np.ndarray, num_bits: int) -> np.ndarray:
    """The yardstick: 2^N - 1 equal steps over [-max, max]."""
    step = 2 * np.abs(x).max().astype(np.float64) / (2**num_bits - 2)
    return np.rint(x / step) * step


@pytest.mark.parametrize(
    ("kind", "num_bits", "mantissa_bits", "claimed", "last_digit"),
    [
        ("gauss", 8, 4, 1.8e-4, 1e-5),
        ("laplace", 8, 4, 1.9e-4, 1e-5),
        ("gauss", 10, 6, 1.2e-5, 1e-6),
        ("laplace", 10, 6, 2.0e-5, 1e-6),
    ],
)
def test_relative_mean_squared_error(kind, num_bits, mantissa_bits, claimed, last_digit, rng):
    values = sample(kind, SAMPLES, rng)
    largest = float(np.abs(values).max())
    result = round_trip(values, num_bits, mantissa_bits, (-largest, largest))
    measured, standard_error = relative_mse(values, result)
    expected = expected_mse(kind, num_bits, mantissa_bits, largest)
    assert abs(measured - expected) <= 5 * standard_error

    # The claim comes from a sample scaled to its maximum, which varies, rounded to two digits.
    low, high = (expected_mse(kind, num_bits, mantissa_bits, x) for x in LARGEST[kind])
    assert low - last_digit / 2 <= claimed <= high + last_digit / 2

    uniform, _ = relative_mse(values, uniform_round_trip(values, num_bits))
    assert (measured < uniform) == (kind == "laplace")  # heavier than Gauss: range float wins


# ---- corrupt blocks and bad arguments


@pytest.mark.parametrize(
    ("num_bits", "mantissa_bits", "named"),
    [
        (5, 3, "num_bits"),
        (13, 3, "num_bits"),
        (0, 0, "num_bits"),
        (8, 0, "mantissa_bits"),
        (8, 7, "mantissa_bits"),
        (8, -1, "mantissa_bits"),
    ],
)
def test_bad_parameters_are_named(num_bits, mantissa_bits, named):
    with pytest.raises(BAD_ARGUMENT, match=named):
        range_float.range_float_encode(np.ones(4, np.float32), num_bits, mantissa_bits)
    with pytest.raises(BAD_ARGUMENT, match=named):
        range_float.range_float_decode(np.zeros((1, 4), np.int32), 4, num_bits, mantissa_bits)


@pytest.mark.parametrize(
    "value_range",
    [
        (0.5, 1.0),
        (-1.0, -0.5),
        (1.0, -1.0),
        (-np.inf, 1.0),
        (-1.0, np.inf),
        (np.nan, 1.0),
        (-1.0, np.nan),
    ],
)
def test_bad_ranges_are_named(value_range):
    with pytest.raises(BAD_ARGUMENT, match="range must"):
        range_float.range_float_encode(np.ones(4, np.float32), 8, 4, value_range)


@pytest.mark.parametrize("value_range", [(1.0,), (-1.0, 0.0, 1.0), ((-1.0, 1.0),)])
def test_range_is_two_numbers(value_range):
    with pytest.raises(BAD_ARGUMENT, match="range must"):
        range_float.range_float_encode(np.ones(4, np.float32), 8, 4, value_range)


@pytest.mark.parametrize(
    ("shape", "count", "named"),
    [
        ((1, 4), 5, "words"),  # 5 values of 8 bits need 3 + 2 words
        ((1, 6), 5, "words"),
        ((1, 2), 0, "words"),
        ((1, 0), 5, "words"),
        ((5,), 5, "words"),
        ((1, 1, 5), 5, "words"),
        ((1, 5), -1, "count"),
        ((1, 5), 2**62, "count|words"),
    ],
)
def test_words_of_another_length_are_refused(shape, count, named):
    words = np.zeros(shape, np.int32)
    words[..., 2:3] = 8 | 4 << 4
    with pytest.raises(BAD_ARGUMENT, match=named):
        range_float.range_float_decode(words, count, 8, 4)


@pytest.mark.parametrize(
    "header", [0, 9 | 4 << 4, 8 | 5 << 4, 8 | 4 << 4 | 1 << 9, 8 | 4 << 4 | 1 << 30]
)
def test_another_header_is_refused(header):
    right = reference.encode(np.float32([1, 2, 3]), 8, 4)
    wrong = right.copy()
    wrong[2] = header
    for worker, blocks in enumerate([[wrong, right], [right, wrong]]):  # whoever sent it is named
        expected = f"range float block of worker {worker}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
            range_float.range_float_decode(np.stack(blocks).view(np.int32), 3, 8, 4)
