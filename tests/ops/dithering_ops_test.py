# SPDX-License-Identifier: Apache-2.0
"""Dithering ops against the oracle, bit for bit, and the claims of the papers."""

import dithering_reference as reference
import numpy as np
import pytest
import tensorflow as tf
from dithering_reference import Parameters
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import dithering

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
KEY = (7, 1, 2, 3)
FLAG = 0x80000000
TERNGRAD = Parameters(1, "standard", "inf")
QSGD = Parameters(127, "standard", "2", 512)
NATURAL = Parameters(7, "natural", "2", 0)
PARAMETERS = [
    TERNGRAD,
    QSGD,
    NATURAL,
    Parameters(3, "natural", "inf", 4096),
    Parameters(1, "natural", "2", 32),
    Parameters(127, "natural", "inf", 0, "natural"),
    Parameters(12, "natural", "2", 8192, "natural"),
    Parameters(5, "standard", "2", 0, "natural"),
    Parameters(32767, "standard", "inf", 65536),
    Parameters(100, "standard", "inf", 96, "natural"),
]


def named(p: Parameters) -> dict:
    return p._asdict()


def words_of(values, p: Parameters, key=KEY, residual=None) -> np.ndarray:
    words, error = dithering.dithering_encode(
        values, key, residual=residual, with_error=False, **named(p)
    )
    assert error.shape == [0]
    return words.numpy().view(np.uint32)


def decoded(words: np.ndarray, count: int, p: Parameters, sum: bool = False) -> np.ndarray:
    """uint32 [w] or [W, w] -> float32 [count] or [W, count]."""
    result = dithering.dithering_decode(
        np.atleast_2d(words).view(np.int32), count, sum=sum, **named(p)
    )
    return result.numpy()[0] if words.ndim == 1 and not sum else result.numpy()


def round_trip(values, p: Parameters, key=KEY) -> np.ndarray:
    return decoded(words_of(values, p, key), values.size, p)


def assert_as_oracle(values, p: Parameters, key=KEY, residual=None) -> None:
    expected = reference.encode(values, key, p, residual)
    np.testing.assert_array_equal(words_of(values, p, key, residual), expected)
    words, error = dithering.dithering_encode(values, key, residual=residual, **named(p))
    np.testing.assert_array_equal(words.numpy().view(np.uint32), expected)
    expected_error = reference.error(values, expected, p, residual)
    assert error.shape == expected_error.shape
    np.testing.assert_array_equal(error.numpy().view(np.uint32), expected_error.view(np.uint32))
    result = decoded(expected, values.size, p)
    expected = reference.decode(expected, values.size, p)
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


# ---- equality with the oracle


@pytest.mark.parametrize("v", [0, *SIZES, 4095, 4096, 4097])
@pytest.mark.parametrize("p", PARAMETERS)
def test_sizes(v, p, rng):
    if v == 1000003 and p.block == 32:
        v = 100003  # the oracle takes a block at a time
    assert_as_oracle(sample("gauss", v, rng), p)


@pytest.mark.parametrize("v", [1, 33, 4097, 400003])
@pytest.mark.parametrize("p", PARAMETERS)
def test_residual(v, p, rng):
    assert_as_oracle(sample("gauss", v, rng), p, residual=sample("laplace", v, rng))


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("p", PARAMETERS)
def test_kinds_of_values_over_several_shards(kind, p, rng):
    # Pool threads may run with denormals flushed; a small input never leaves the calling thread.
    assert_as_oracle(sample(kind, 100003, rng), p)


@pytest.mark.parametrize("kind", ["natural", "standard"])
def test_all_numbers_of_levels_up_to_127(kind, rng):
    values = sample("gauss", 300, rng)
    for levels in range(1, 128):
        norm, block = ("2", 96) if levels % 2 else ("inf", 0)
        assert_as_oracle(values, Parameters(levels, kind, norm, block))


@pytest.mark.parametrize("bits", range(2, 17))
def test_all_widths_of_codes(bits, rng):
    values = sample("laplace", 1003, rng)
    for levels in {2 ** (bits - 2), 2 ** (bits - 1) - 1}:
        assert_as_oracle(values, Parameters(levels, "standard", "inf", 0))


@pytest.mark.parametrize("at", [0, 123456, 400002])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("p", [TERNGRAD, QSGD, NATURAL])
def test_one_non_finite_value_makes_all_nan(at, bad, p):
    values = np.ones(400003, np.float32)
    values[at] = bad
    words, error = dithering.dithering_encode(values, KEY, **named(p))
    words = words.numpy().view(np.uint32)
    assert words[dithering.flag_word()] & FLAG
    assert not words[2:].any()
    assert not error.numpy().any()
    assert (decoded(words, values.size, p).view(np.uint32) == 0x7FC00000).all()


@pytest.mark.parametrize("kind", ["natural", "standard"])
def test_a_norm_beyond_float32_becomes_its_largest_number(kind):
    values = np.full(1000, np.finfo(np.float32).max)
    p = Parameters(3, kind, "2", 0)
    assert_as_oracle(values, p)
    np.testing.assert_array_equal(round_trip(values, p), values)


def test_shape_of_values_is_free(rng):
    for shape in [(), (0,), (6,), (2, 3), (3, 0, 2), (2, 3, 4)]:
        values = sample("gauss", (1, *shape), rng)[0]  # also of rank 0
        assert_as_oracle(values, QSGD)
        assert_as_oracle(values, NATURAL, residual=values.reshape(-1))


@pytest.mark.parametrize("p", PARAMETERS)
def test_decodes_and_sums_several_workers(p, rng):
    for kinds in (["gauss", "wide", "zeros", "denormal"], ["gauss", "nan", "gauss"]):
        blocks = np.stack([reference.encode(sample(kind, 10001, rng), KEY, p) for kind in kinds])
        expected = np.stack([reference.decode(words, 10001, p) for words in blocks])
        result = decoded(blocks, 10001, p)
        np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))
        expected = reference.decode_sum(blocks, 10001, p)
        result = decoded(blocks, 10001, p, sum=True)
        np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


def test_graph_equals_eager_and_reuses_the_residual(rng):
    values, residual = sample("laplace", 9999, rng), sample("gauss", 9999, rng)
    for p in (QSGD, NATURAL):

        @tf.function
        def encode(values, residual, p=p):
            # Results of other ops, whose memory the error may take over.
            first = dithering.dithering_encode(
                values * 1.0, KEY, residual=residual * 1.0, **named(p)
            )
            return first, dithering.dithering_encode(values * 1.0, KEY, **named(p))

        for (words, error), r in zip(encode(values, residual), (residual, None), strict=True):
            expected = reference.encode(values, KEY, p, r)
            np.testing.assert_array_equal(words.numpy().view(np.uint32), expected)
            np.testing.assert_array_equal(error.numpy(), reference.error(values, expected, p, r))


@pytest.mark.parametrize("v", [0, 1, 31, 4096, 4097])
@pytest.mark.parametrize("p", PARAMETERS)
def test_static_shapes_are_exact(v, p):
    count = dithering.num_words(v, **named(p))
    assert count == p.num_words(v)
    assert dithering.num_bits(p.levels) == p.bits
    encode = tf.function(lambda x, k: dithering.dithering_encode(x, k, **named(p)))
    specs = [tf.TensorSpec([v], tf.float32), tf.TensorSpec([4], tf.int32)]
    words, error = encode.get_concrete_function(*specs).structured_outputs
    assert words.shape == [count]
    assert error.shape == [v]
    for sum, shape in [(False, [5, v]), (True, [v])]:
        decode = tf.function(
            lambda w, sum=sum: dithering.dithering_decode(w, v, sum=sum, **named(p))
        )
        graph = decode.get_concrete_function(tf.TensorSpec([5, count], tf.int32))
        assert graph.structured_outputs.shape == shape


# ---- properties claimed for the format

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
words32 = st.integers(-(2**31), 2**31 - 1)
keys = st.tuples(words32, words32, words32, words32)
all_parameters = st.one_of(
    st.builds(
        Parameters,
        levels,
        st.just(kind),
        st.sampled_from(["inf", "2"]),
        st.integers(0, 4).map(lambda groups: 32 * groups),
        st.sampled_from(["float32", "natural"]),
    )
    for kind, levels in [("natural", st.integers(1, 127)), ("standard", st.integers(1, 32767))]
)
bounded = settings(max_examples=100, deadline=None)


@bounded
@given(st.lists(finite, min_size=1, max_size=100), all_parameters, keys, st.booleans())
def test_any_values_as_oracle(values, p, key, with_residual):
    values = np.array(values, np.float32)
    assert_as_oracle(values, p, key, values[::-1].copy() if with_residual else None)


def neighbours(y: np.ndarray, p: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """The levels around y in [0, 1]; the upper one is above y unless y is 1."""
    if p.kind == "standard":
        levels = np.arange(p.levels + 1) / p.levels
    else:
        levels = np.concatenate([[0], 2.0 ** np.arange(1 - p.levels, 1)])
    upper = np.minimum(np.searchsorted(levels, y, "right"), p.levels)
    return levels[upper - 1], levels[upper]


@bounded
@given(st.integers(0, 2**32 - 1), all_parameters, keys)
def test_decoded_values_are_the_levels_around_the_value(seed, p, key):
    p = p._replace(block=0, norm_code="float32")
    x = sample("laplace", 100, np.random.default_rng(seed))
    decoded_values = round_trip(x, p, key).astype(np.float64)
    norm = float(reference.norm_of(x, p.norm))
    y = np.abs(x.astype(np.float64)) / norm
    lower, upper = neighbours(y, p)
    result = np.abs(decoded_values) / norm
    near = 2.0**-23
    assert (np.minimum(np.abs(result - lower), np.abs(result - upper)) <= near * result).all()
    assert ((np.sign(decoded_values) == np.sign(x)) | (decoded_values == 0)).all()
    if p.norm == "inf":  # the largest value is exact
        largest = np.argmax(np.abs(x))
        assert decoded_values[largest] == x[largest]


@pytest.mark.parametrize("p", PARAMETERS)
def test_zero_is_plus_zero(p):
    result = round_trip(np.float32([0.0, -0.0, 5.0, -1e-3]), p)
    np.testing.assert_array_equal(result[:2].view(np.uint32), [0, 0])
    zeros = words_of(sample("zeros", 5000, np.random.default_rng(0)), p)
    assert not zeros[2:].any()


# ---- claims of the papers (arXiv 1905.10988)


@pytest.mark.parametrize("norm_code", ["float32", "natural"])
@pytest.mark.parametrize("norm", ["inf", "2"])
@pytest.mark.parametrize(
    ("kind", "levels"),
    [("standard", 1), ("standard", 10), ("natural", 1), ("natural", 4), ("natural", 20)],
)
def test_unbiased(kind, levels, norm, norm_code, rng):
    x = sample("gauss", 512, rng)
    p = Parameters(levels, kind, norm, x.size, norm_code)
    # Equal blocks have the same norm and draws of their own.
    copies, steps = 200, 10
    mean = np.zeros(x.size)
    for step in range(steps):
        drawn = round_trip(np.tile(x, copies), p, (1, 2, 3, step))
        mean += drawn.reshape(copies, -1).mean(axis=0, dtype=np.float64) / steps
    steps *= copies
    x = x.astype(np.float64)
    exact_norm = float(reference.norm_of(x.astype(np.float32), norm))
    y = np.abs(x) / exact_norm
    lower, upper = neighbours(y, p)
    second_moment = y * (lower + upper) - lower * upper
    growth = 9 / 8 if norm_code == "natural" else 1  # E[sent^2] <= 9/8 norm^2
    deviation = exact_norm * np.sqrt(np.maximum(growth * second_moment - y**2, 0) / steps)
    largest_step = 2 * exact_norm * np.maximum(upper - lower, 0.5 * (norm_code == "natural"))
    assert (np.abs(mean - x) <= 5 * deviation + 10 * largest_step / steps).all()


@pytest.mark.parametrize("norm", [1.0, 1.0 + 2.0**-20, 1.5, 3.4e38, 2e-38, 3e-41])
@pytest.mark.parametrize("levels", [1, 4, 127])
def test_natural_rounding_is_as_unbiased_as_the_format_says(levels, norm, rng):
    norm = np.float32(norm)
    p = Parameters(levels, "natural", "inf", 0)
    x = np.float32(norm * 2.0 ** -rng.uniform(0, 6, 5000))
    x = np.unique(x[x < norm])
    y = x.astype(np.float64) / float(norm)
    lower, upper = neighbours(y, p)
    lower_index = np.where(lower > 0, np.log2(np.maximum(lower, 2.0**-127)) + levels, 0)
    # The draws that round up are those below the first one that does not.
    rounded_up, bound = np.zeros(x.size, np.int64), np.full(x.size, 2**32)
    while (rounded_up < bound).any():
        draw = (rounded_up + bound) // 2
        up = reference.quantize(x, np.minimum(draw, 2**32 - 1), norm, p) > lower_index
        up &= rounded_up < bound
        rounded_up, bound = np.where(up, draw + 1, rounded_up), np.where(up, bound, draw)
    bias = np.abs(rounded_up * 2.0**-32 - (y - lower) / (upper - lower))
    assert (bias[lower > 0] <= 2.0**-23).all()
    assert (bias[lower == 0] <= 2.0**-22).all()


def omega(x: np.ndarray, p: Parameters) -> tuple[float, float]:
    """Measured and exact E||C(x) - x||^2 / ||x||^2."""
    result = round_trip(x, p).astype(np.float64)
    norm = float(reference.norm_of(x, p.norm))
    x = x.astype(np.float64)
    y = np.abs(x) / norm
    lower, upper = neighbours(y, p)
    energy = np.sum(x**2)
    exact = norm**2 * np.sum((y - lower) * (upper - y)) / energy
    return np.sum((result - x) ** 2) / energy, exact


@pytest.mark.parametrize(
    ("kind", "norm", "levels", "tabulated"),
    [
        ("natural", "2", 4, 98),
        ("standard", "2", 8, 97),
        ("standard", "2", 4, 191),
        ("natural", "2", 8, 5.2),
        ("standard", "2", 128, 5.2),
        ("standard", "2", 8, 99.7),
        ("natural", "2", 12, 0.094),
        ("standard", "2", 2048, 0.040),
        ("standard", "2", 12, 64.9),
        ("natural", "inf", 4, 0.107),
        ("standard", "inf", 8, 0.064),
        ("standard", "inf", 4, 0.256),
        ("natural", "inf", 8, 0.081),
        ("standard", "inf", 128, 2.5e-4),
    ],
)
def test_variance_table(kind, norm, levels, tabulated, rng):
    d = 1_000_000
    p = Parameters(levels, kind, norm, 0)
    measured, exact = omega(sample("gauss", d, rng), p)
    assert abs(measured - exact) <= 0.05 * exact
    # One draw each; the infinity norm varies with the sample, and enters squared.
    assert abs(measured - tabulated) <= (0.06 if norm == "2" else 0.3) * tabulated
    if kind == "natural":
        tail = np.sqrt(d) * 2.0 ** (1 - levels)
        bound = 1 / 8 + tail * min(1, tail)
    else:
        bound = min(d / levels**2, np.sqrt(d) / levels)
    assert exact <= bound


@pytest.mark.parametrize(
    "p", [Parameters(1, "standard", "inf", 0), Parameters(255, "standard", "2", 0)]
)
def test_layers_coded_one_by_one_lose_less_than_as_one(p, rng):
    """With a norm for each layer, not the largest one for all (Dutta et al., AAAI 2020)."""
    sizes, scales = (5_000, 40_000, 100_000), (10, 1, 0.1)
    layers = [
        np.float32(scale) * sample("gauss", size, rng)
        for size, scale in zip(sizes, scales, strict=True)
    ]

    def noise(x):
        return np.array(omega(x, p)) * np.sum(np.square(x, dtype=np.float64))

    measured, exact = sum(map(noise, layers))
    assert abs(measured - exact) <= 0.05 * exact
    measured_as_one, exact_as_one = noise(np.concatenate(layers))
    assert abs(measured_as_one - exact_as_one) <= 0.05 * exact_as_one
    assert measured <= 0.6 * measured_as_one


@pytest.mark.parametrize("levels", [2, 4, 6, 8])
def test_natural_matches_standard_of_two_to_the_s_minus_one_levels(levels, rng):
    x = sample("gauss", 1_000_000, rng)
    natural, _ = omega(x, Parameters(levels, "natural", "2", 0))
    standard, _ = omega(x, Parameters(2 ** (levels - 1), "standard", "2", 0))
    assert abs(natural - standard) <= 0.06 * standard


def test_standard_wins_with_many_levels(rng):
    x = sample("gauss", 1_000_000, rng)
    natural, _ = omega(x, Parameters(14, "natural", "2", 0))
    standard, _ = omega(x, Parameters(2**13, "standard", "2", 0))
    assert standard < 0.1 * natural
    assert natural < 1 / 8


def test_terngrad_has_three_values(rng):
    x = sample("gauss", 4096, rng)
    largest = np.abs(x).max()
    assert set(round_trip(x, TERNGRAD)) == {-largest, np.float32(0), largest}


# ---- corrupt blocks and bad arguments


@pytest.mark.parametrize(
    ("change", "named_parameter"),
    [
        ({"levels": 0}, "levels"),
        ({"levels": 128}, "levels"),
        ({"kind": "standard", "levels": 32768}, "levels"),
        ({"kind": "other"}, "kind"),
        ({"norm": "1"}, "norm"),
        ({"norm_code": "half"}, "norm_code"),
        ({"block": -32}, "block"),
        ({"block": 33}, "block"),
        ({"block": 65568}, "block"),
    ],
)
def test_bad_parameters_are_named(change, named_parameter):
    p = Parameters(7)._replace(**change)
    with pytest.raises(ValueError, match=named_parameter):
        dithering.num_words(4, **named(p))
    with pytest.raises(BAD_ARGUMENT, match=named_parameter):
        dithering.dithering_encode(np.ones(4, np.float32), KEY, **named(p))
    with pytest.raises(BAD_ARGUMENT, match=named_parameter):
        dithering.dithering_decode(np.zeros((1, 4), np.int32), 4, **named(p))


def test_bad_arguments_are_named():
    values = np.ones(4, np.float32)
    with pytest.raises(BAD_ARGUMENT, match="residual"):
        dithering.dithering_encode(values, KEY, residual=np.ones(3, np.float32), **named(QSGD))
    with pytest.raises(BAD_ARGUMENT):
        dithering.dithering_encode(values, KEY[:3], **named(QSGD))
    with pytest.raises(ValueError, match="count"):
        dithering.num_words(-1, **named(QSGD))


@pytest.mark.parametrize(
    ("shape", "count", "named_argument"),
    [
        ((1, 4), 5, "words"),  # 5 values of 8 bits need 2 + 1 + 2 words
        ((1, 6), 5, "words"),
        ((5,), 5, "words"),
        ((1, 5), -1, "count"),
        ((1, 5), 2**62, "count|words"),
    ],
)
def test_words_of_another_length_are_refused(shape, count, named_argument):
    words = np.zeros(shape, np.int32)
    with pytest.raises(BAD_ARGUMENT, match=named_argument):
        dithering.dithering_decode(words, count, **named(QSGD))


@pytest.mark.parametrize(
    ("norm_code", "word", "value"),
    [
        ("float32", 0, 4),
        ("float32", 0, 5 | 1 << 16),
        ("float32", 0, 5 | 1 << 20),
        ("float32", 1, 0),
        ("float32", 2, 0x80000000),
        ("float32", 2, 0xBF800000),
        ("float32", 2, 0x7F800000),
        ("float32", 2, 0x7FC00000),
        ("float32", 0, 5 | FLAG),  # with norms
        ("natural", 2, 255),
        ("natural", 2, 127 | 1 << 8),  # a norm of a block that does not exist
    ],
)
def test_another_header_is_refused(norm_code, word, value):
    p = Parameters(5, "natural", "inf", 32, norm_code)
    right = reference.encode(np.float32([1, 2, 3]), KEY, p)
    wrong = right.copy()
    wrong[word] = value
    with pytest.raises(ValueError):
        reference.decode(wrong, 3, p)
    for worker, blocks in enumerate([[wrong, right], [right, wrong]]):  # whoever sent it is named
        expected = f"dithering block of worker {worker}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
            decoded(np.stack(blocks), 3, p)


def test_codes_that_do_not_occur_are_nan():
    p = Parameters(5, "standard", "inf", 32)
    words = reference.encode(np.float32([1] * 16), KEY, p)
    words[3:] = reference.pack(np.arange(16), 4)
    result = decoded(words, 16, p)
    assert np.isfinite(result[[*range(6), *range(8, 14)]]).all()
    assert (result[[6, 7, 14, 15]].view(np.uint32) == 0x7FC00000).all()
