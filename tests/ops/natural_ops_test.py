# SPDX-License-Identifier: Apache-2.0
"""Natural compression ops against the oracle, bit for bit, and the claims of the paper."""

import natural_reference as reference
import numpy as np
import philox_reference
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import natural

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
KEY = (7, 1, 2, 3)
FLAG = 0x80000000


def words_of(values, key=KEY, residual=None) -> np.ndarray:
    words, error = natural.natural_encode(values, key, residual, with_error=False)
    assert error.shape == [0]
    return words.numpy().view(np.uint32)


def decoded(words: np.ndarray, count: int, sum: bool = False) -> np.ndarray:
    """uint32 [w] or [W, w] -> float32 [count] or [W, count]."""
    result = natural.natural_decode(np.atleast_2d(words).view(np.int32), count, sum)
    return result.numpy()[0] if words.ndim == 1 and not sum else result.numpy()


def assert_as_oracle(values, key=KEY, residual=None) -> None:
    expected = reference.encode(values, key, residual)
    np.testing.assert_array_equal(words_of(values, key, residual), expected)
    words, error = natural.natural_encode(values, key, residual)
    np.testing.assert_array_equal(words.numpy().view(np.uint32), expected)
    expected_error = reference.error(values, expected, residual)
    assert error.shape == expected_error.shape
    np.testing.assert_array_equal(error.numpy().view(np.uint32), expected_error.view(np.uint32))
    result = decoded(expected, values.size)
    expected = reference.decode(expected, values.size)
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


# ---- random numbers


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers that come with the authors' implementation, Random123
        (
            [0, 0, 0, 0],
            (0, 0),
            [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        ),
        (
            [0xFFFFFFFF] * 4,
            (0xFFFFFFFF, 0xFFFFFFFF),
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_oracle_gives_the_published_words(counter, key, expected):
    words = philox_reference.philox(np.array(counter, np.uint32), key)
    np.testing.assert_array_equal(words, np.array(expected, np.uint32))


def test_every_part_of_the_key_changes_the_draws():
    values = np.full(5000, 1.5, np.float32)
    draws = {words_of(values, key).tobytes() for key in [KEY, *np.add(KEY, np.eye(4, dtype=int))]}
    assert len(draws) == 5


# ---- equality with the oracle


@pytest.mark.parametrize("v", [0, *SIZES, 4095, 4096, 4097, 16384, 16385])
@pytest.mark.parametrize("with_residual", [False, True])
def test_sizes(v, with_residual, rng):
    residual = sample("laplace", v, rng) if with_residual else None
    assert_as_oracle(sample("gauss", v, rng), residual=residual)


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("with_residual", [False, True])
def test_kinds_of_values_over_several_shards(kind, with_residual, rng):
    # Pool threads may run with denormals flushed; a small input never leaves the calling thread.
    residual = sample(kind, 400003, rng) if with_residual else None
    assert_as_oracle(sample(kind, 400003, rng), residual=residual)


@pytest.mark.parametrize("exponent", range(-149, 128, 3))
def test_every_part_of_the_range_of_float32(exponent, rng):
    # A block whose largest value is near 2^exponent, others down to the smallest denormal.
    top = np.float32(2.0**exponent)
    with np.errstate(under="ignore"):
        values = (top * 2.0 ** rng.uniform(-160, 0, 5000)).astype(np.float32)
    values[::7] *= -1
    values[0] = top
    for largest in (top, np.nextafter(top, np.float32(0)), np.nextafter(top, np.float32(np.inf))):
        values[1] = largest
        assert_as_oracle(values)


def test_extreme_keys(rng):
    values = sample("gauss", 1000, rng)
    for key in [(0, 0, 0, 0), (-1, -1, -1, -1), (2**31 - 1, -(2**31), 1, -5)]:
        assert_as_oracle(values, key)


@pytest.mark.parametrize("at", [0, 123456, 400002])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_non_finite_value_makes_all_nan(at, bad):
    values = np.ones(400003, np.float32)
    values[at] = bad
    words, error = natural.natural_encode(values, KEY)
    words = words.numpy().view(np.uint32)
    assert words[natural.flag_word()] & FLAG
    assert not words[1:].any()
    assert not error.numpy().any()
    assert (decoded(words, values.size).view(np.uint32) == 0x7FC00000).all()


def test_a_sum_that_overflows_is_non_finite():
    huge = np.full(10, 3e38, np.float32)
    assert words_of(huge, residual=huge)[0] & FLAG


def test_shape_of_values_is_free(rng):
    for shape in [(), (0,), (6,), (2, 3), (3, 0, 2), (2, 3, 4)]:
        values = sample("gauss", (1, *shape), rng)[0]  # also of rank 0
        assert_as_oracle(values)
        assert_as_oracle(values, residual=values.reshape(-1))


def test_decodes_and_sums_several_workers(rng):
    for kinds in (["gauss", "wide", "zeros", "denormal"], ["gauss", "nan", "huge"]):
        blocks = np.stack([reference.encode(sample(kind, 10001, rng), KEY) for kind in kinds])
        expected = np.stack([reference.decode(words, 10001) for words in blocks])
        result = decoded(blocks, 10001)
        np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))
        expected = reference.decode_sum(blocks, 10001)
        result = decoded(blocks, 10001, sum=True)
        np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


def test_graph_equals_eager_and_reuses_the_residual(rng):
    values, residual = sample("laplace", 4099, rng), sample("gauss", 4099, rng)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)] * 2)
    def encode_then_decode(values, residual):
        # Results of other ops, whose memory the error may take over.
        words, error = natural.natural_encode(values * 1.0, KEY, residual * 1.0)
        in_place, same = natural.natural_encode(values * 1.0, KEY)
        total = natural.natural_decode(words[None], tf.size(values, tf.int64), sum=True)
        return words, error, total, in_place, same

    words, error, total, in_place, same = encode_then_decode(values, residual)
    expected = reference.encode(values, KEY, residual)
    np.testing.assert_array_equal(words.numpy().view(np.uint32), expected)
    np.testing.assert_array_equal(error.numpy(), reference.error(values, expected, residual))
    np.testing.assert_array_equal(total.numpy(), reference.decode(expected, 4099))
    expected = reference.encode(values, KEY)
    np.testing.assert_array_equal(in_place.numpy().view(np.uint32), expected)
    np.testing.assert_array_equal(same.numpy(), reference.error(values, expected))


@pytest.mark.parametrize("v", [0, 1, 4, 5, 4096, 4097, 16384, 16385])
def test_static_shapes_are_exact(v):
    count = natural.num_words(v)
    assert count == reference.num_words(v)
    encode = tf.function(lambda x, r, k: natural.natural_encode(x, k, r))
    specs = [tf.TensorSpec([v], tf.float32)] * 2 + [tf.TensorSpec([4], tf.int32)]
    words, error = encode.get_concrete_function(*specs).structured_outputs
    assert words.shape == [count]
    assert error.shape == [v]
    for sum, shape in [(False, [5, v]), (True, [v])]:
        decode = tf.function(lambda w, sum=sum: natural.natural_decode(w, v, sum))
        graph = decode.get_concrete_function(tf.TensorSpec([5, count], tf.int32))
        assert graph.structured_outputs.shape == shape


# ---- properties claimed for the format

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
words32 = st.integers(-(2**31), 2**31 - 1)
keys = st.tuples(words32, words32, words32, words32)
bounded = settings(max_examples=50, deadline=None)


@bounded
@given(st.lists(finite, min_size=1, max_size=100), keys, st.booleans())
def test_any_values_as_oracle(values, key, with_residual):
    values = np.array(values, np.float32)
    assert_as_oracle(values, key, values[::-1].copy() if with_residual else None)


@bounded
@given(st.lists(finite, min_size=1, max_size=100), keys)
def test_decoded_values_are_the_powers_of_two_around_the_value(values, key):
    x = np.array(values, np.float32)
    y = decoded(words_of(x, key), x.size).astype(np.float64)
    x = x.astype(np.float64)
    p = 2.0 ** (reference.block_exponent(x) - 253.0)
    fraction, exponent = np.frexp(np.abs(x))
    lower = np.where(np.abs(x) < p, 0, 2.0 ** (exponent - 1.0))
    upper = np.where(np.abs(x) < p, p, np.minimum(2 * lower, 2.0**127))
    upper = np.where((fraction == 0.5) | (x == 0), lower, upper)  # powers of two are exact
    assert ((np.abs(y) == lower) | (np.abs(y) == upper)).all()
    assert ((np.sign(y) == np.sign(x)) | (y == 0)).all()


def test_powers_of_two_are_exact_over_126_octaves():
    for top in (-23, 0, 50, 127):
        exponents = np.arange(max(top - 126, -149), top + 1)
        x = np.repeat((2.0**exponents).astype(np.float32), 16)
        x[::2] *= -1
        np.testing.assert_array_equal(decoded(words_of(x), x.size), x)


def test_zero_is_plus_zero():
    result = decoded(words_of(np.float32([0.0, -0.0, 5.0, -1e-3])), 4)
    np.testing.assert_array_equal(result[:2].view(np.uint32), [0, 0])


def test_the_largest_binade_rounds_down():
    x = np.float32([3.4e38, -2.0e38, 1.0e38])
    for step in range(20):
        result = decoded(words_of(x, (1, 1, 1, step)), 3)
        assert result[0] == 2.0**127
        assert result[1] == -(2.0**127)


# ---- claims of the paper (arXiv 1905.10988)

DRAWS = 400_000


def promoted_share(x: float, largest: float, upper: float) -> float:
    """How often `x` becomes `upper`, in a block whose largest magnitude is `largest`."""
    values = np.full(DRAWS, x, np.float32)
    values[:: reference.BLOCK] = largest
    result = decoded(words_of(values), DRAWS)
    counted = np.arange(DRAWS) % reference.BLOCK != 0
    return float((result[counted] == np.float32(upper)).mean())


@pytest.mark.parametrize(
    ("x", "largest", "lower", "upper"),
    [
        (2.5, 2.5, 2, 4),  # the paper's example: 4 with probability 1/4
        (-1.75, 100, -1, -2),
        (3 * 2.0**-149, 2.0**-30, 2.0**-148, 2.0**-147),  # denormals
        (1.25 * 2.0**-126, 2.0**-126, 2.0**-126, 2.0**-125),
        (0.3 * 2.0**-127, 2.0**-10, 0.25 * 2.0**-127, 0.5 * 2.0**-127),
        (0.7 * 2.0**-26, 2.0**100, 0, 2.0**-26),  # below p = 2^(100 - 126)
        (2.0**-40, 2.0**100, 0, 2.0**-26),
        (1.9 * 2.0**126, 1.9 * 2.0**126, 2.0**126, 2.0**127),
    ],
)
def test_unbiased(x, largest, lower, upper):
    x = float(np.float32(x))
    expected = (x - lower) / (upper - lower)
    share = promoted_share(x, largest, upper)
    assert abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / DRAWS)


def test_mean_of_many_draws_is_the_value(rng):
    x = sample("gauss", 3000, rng)
    steps = 500
    mean, square = np.zeros(x.size), np.zeros(x.size)
    for step in range(steps):
        y = decoded(words_of(x, (1, 2, 3, step)), x.size).astype(np.float64)
        mean += y / steps
        square += y**2 / steps
    # The variance of one draw of x in [a, 2a] is (x - a)(2a - x).
    x = x.astype(np.float64)
    a = 2.0 ** np.floor(np.log2(np.abs(x)))
    deviation = np.sqrt((np.abs(x) - a) * (2 * a - np.abs(x)) / steps)
    assert (np.abs(mean - x) <= 6 * deviation + 10 * a / steps).all()
    variance = deviation**2
    expected, spread = variance.sum(), np.sqrt(3 * (variance**2).sum())
    assert abs(np.sum((mean - x) ** 2) - expected) <= 6 * spread
    assert square.sum() <= 9 / 8 * (x**2).sum()


@pytest.mark.parametrize("t", [1.0, 1.1, 4 / 3, 1.5, 1.9])
@pytest.mark.parametrize("k", [-130, -20, 0, 100])
def test_omega_is_an_eighth_at_four_thirds_and_less_elsewhere(t, k):
    x = np.full(DRAWS, t * 2.0**k, np.float32)
    t = float(x[0]) / 2.0**k
    y = decoded(words_of(x), DRAWS).astype(np.float64)
    ratio = (y / float(x[0])) ** 2  # 1/t^2 or 4/t^2
    expected = (3 * t - 2) / t**2
    deviation = 3 / t**2 * np.sqrt((t - 1) * (2 - t))
    assert abs(ratio.mean() - expected) <= 5 * deviation / np.sqrt(DRAWS) + 1e-12
    assert expected <= 9 / 8 + 1e-12
    omega = np.mean((y / float(x[0]) - 1) ** 2)
    exact = (t - 1) * (2 - t) / t**2
    assert abs(omega - exact) <= 5 * deviation / np.sqrt(DRAWS) + 1e-12
    assert exact <= 1 / 8 + 1e-12
    if abs(t - 4 / 3) < 1e-6:
        np.testing.assert_allclose(exact, 1 / 8, rtol=1e-6)


def test_omega_on_gaussian_data(rng):
    x = sample("gauss", 1_000_000, rng)
    y = decoded(words_of(x), x.size)
    omega = np.sum((y - x).astype(np.float64) ** 2) / np.sum(x.astype(np.float64) ** 2)
    assert abs(omega - 0.0820) <= 0.0005  # measured on Gaussian data, to four digits


# ---- corrupt blocks and bad arguments


def test_bad_arguments_are_named():
    values = np.ones(4, np.float32)
    with pytest.raises(BAD_ARGUMENT, match="residual"):
        natural.natural_encode(values, KEY, np.ones(3, np.float32))
    for key in [(1, 2, 3), (1, 2, 3, 4, 5), ((1, 2, 3, 4),)]:
        with pytest.raises(BAD_ARGUMENT):
            natural.natural_encode(values, key)
    with pytest.raises(ValueError, match="count"):
        natural.num_words(-1)


@pytest.mark.parametrize(
    ("shape", "count", "named"),
    [
        ((1, 3), 5, "words"),
        ((1, 5), 5, "words"),
        ((1, 1), 4, "words"),
        ((1, 0), 0, "words"),
        ((4,), 5, "words"),
        ((1, 1, 4), 5, "words"),
        ((1, 4), -1, "count"),
        ((1, 4), 2**62, "count|words"),
    ],
)
def test_words_of_another_length_are_refused(shape, count, named):
    words = np.zeros(shape, np.int32)
    words[..., :1] = 12
    with pytest.raises(BAD_ARGUMENT, match=named):
        natural.natural_decode(words, count)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (0, 0),
        (0, 11),
        (0, 12 | 1 << 30),
        (0, 12 | FLAG),  # with exponents
        (1, 103),
        (1, 1),
        (1, 255),
        (1, 127 | 1 << 8),  # an exponent of a block that does not exist
        (1, 127 | 1 << 31),
    ],
)
def test_another_header_is_refused(word, value):
    right = reference.encode(np.float32([1, 2, 3]), KEY)
    wrong = right.copy()
    wrong[word] = value
    with pytest.raises(ValueError):
        reference.decode(wrong, 3)
    for worker, blocks in enumerate([[wrong, right], [right, wrong]]):  # whoever sent it is named
        for sum in (False, True):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=f"natural block of worker {worker}"
            ):
                decoded(np.stack(blocks), 3, sum)


@bounded
@given(st.binary(min_size=16, max_size=16), st.integers(104, 254))
def test_any_codes_decode_to_finite_values(codes, exponent):
    words = np.concatenate([[12, exponent], np.frombuffer(codes, np.uint32)]).astype(np.uint32)
    result = decoded(words, 16)
    assert np.isfinite(result).all()
    np.testing.assert_array_equal(result, reference.decode(words, 16))
