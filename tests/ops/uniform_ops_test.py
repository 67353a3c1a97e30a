# SPDX-License-Identifier: Apache-2.0
"""Uniform ops against the oracle, bit for bit, and the properties claimed for the quantizer."""

import numpy as np
import pytest
import tensorflow as tf
import uniform_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import uniform

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
KEY = (7, -1, 2, 2**31 - 1)
ALL_BITS = range(1, 9)
BLOCKS = [32, 512, 1056]


def same_bits(a, b) -> None:
    a, b = (np.ascontiguousarray(x).view(np.uint32) for x in (a, b))
    np.testing.assert_array_equal(a, b)


def assert_as_oracle(values, num_bits, block=512, key=None, residual=None) -> None:
    expected = reference.encode(values, num_bits, block, key, residual)
    words, error = uniform.uniform_encode(values, num_bits, key, residual, block)
    same_bits(words.numpy(), expected)
    same_bits(error.numpy(), reference.error(values, expected, num_bits, block, residual))
    words, error = uniform.uniform_encode(values, num_bits, key, residual, block, with_error=False)
    same_bits(words.numpy(), expected)
    assert error.shape == [0]
    stacked = np.stack([expected, expected, expected]).view(np.int32)
    decoded = reference.decode(expected, values.size, num_bits, block)
    result = uniform.uniform_decode(stacked, values.size, num_bits, block)
    same_bits(result.numpy(), np.stack([decoded] * 3))
    with np.errstate(over="ignore"):
        total = np.float32(0) + decoded + decoded + decoded
    result = uniform.uniform_decode(stacked, values.size, num_bits, block, sum=True)
    same_bits(result.numpy(), total)


def round_trip(values, num_bits, block=512, key=None) -> np.ndarray:
    words, _ = uniform.uniform_encode(values, num_bits, key, None, block)
    return uniform.uniform_decode(words[None], values.size, num_bits, block).numpy()[0]


# ---- equality with the oracle


@pytest.mark.parametrize("v", [0, *SIZES])
@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(("num_bits", "block"), [(4, 512), (3, 32), (8, 4128)])
def test_sizes(v, key, num_bits, block, rng):
    if v == 1000003:
        v = 100003 if block == 32 else 400003  # the oracle takes a block at a time
    values = sample("gauss", v, rng)
    assert_as_oracle(values, num_bits, block, key, sample("laplace", v, rng))


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("num_bits", ALL_BITS)
def test_all_bits_and_kinds_of_values(kind, num_bits, rng):
    for block in BLOCKS:
        for key in (None, KEY):
            assert_as_oracle(sample(kind, 2200, rng), num_bits, block, key)
    residual = sample("wide", 2200, rng)
    assert_as_oracle(sample(kind, 2200, rng), num_bits, 512, KEY, residual)


@pytest.mark.parametrize("kind", ["denormal", "wide", "huge"])
@pytest.mark.parametrize("key", [None, KEY])
def test_kinds_of_values_over_several_shards(kind, key, rng):
    # Pool threads may run with denormals flushed; a small input never leaves the calling thread.
    assert_as_oracle(sample(kind, 400003, rng), 5, 512, key)


@pytest.mark.parametrize("at", [0, 123456, 400002])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_non_finite_value_makes_all_nan(at, bad):
    values, residual = np.ones(400003, np.float32), np.zeros(400003, np.float32)
    residual[at] = bad
    for key in (None, KEY):
        words, error = uniform.uniform_encode(values, 3, key, residual)
        words = words.numpy().view(np.uint32)
        assert words[uniform.flag_word()] == 0x80000000 | 3
        assert not words[1:].any()
        assert not error.numpy().any()
        result = uniform.uniform_decode(words[None].view(np.int32), 400003, 3).numpy()
        assert (result.view(np.uint32) == 0x7FC00000).all()


@pytest.mark.parametrize("num_bits", ALL_BITS)
def test_edges_of_blocks(num_bits):
    largest = np.finfo(np.float32).max
    tiny = np.float32(1e-45)
    for lo, hi in [
        (-largest, largest),
        (0, tiny),
        (-tiny, tiny),
        (-1, tiny),
        (-tiny, largest),
        (1, np.nextafter(np.float32(1), np.float32(2))),
        (-3.3, -1.1),
        (2.5, 2.5),
        (-0.0, -0.0),
        (-1, -0.0),
    ]:
        values = np.linspace(np.float64(lo), np.float64(hi), 97).astype(np.float32)
        values = np.clip(values, np.float32(lo), np.float32(hi))
        values[[0, -1]] = lo, hi
        for key in (None, *((seed, 0, 0, 0) for seed in range(5))):
            assert_as_oracle(values, num_bits, 128, key)
            result = round_trip(values, num_bits, 128, key)
            assert result[0] == values[0]
            assert result[-1] == values[-1]


def test_sums_workers_in_order(rng):
    kinds = ["gauss", "zeros", "wide", "huge", "denormal"]
    for num_bits in (1, 4, 8):
        blocks = np.stack([reference.encode(sample(k, 9001, rng), num_bits, 512) for k in kinds])
        total = uniform.uniform_decode(blocks.view(np.int32), 9001, num_bits, sum=True)
        same_bits(total.numpy(), reference.decode_sum(blocks, 9001, num_bits, 512))
        empty = uniform.uniform_decode(blocks[:0].view(np.int32), 9001, num_bits, sum=True)
        same_bits(empty.numpy(), np.zeros(9001, np.float32))


def test_shape_of_values_is_free(rng):
    for shape in [(), (0,), (6,), (2, 3), (3, 0, 2), (2, 3, 4)]:
        values = sample("gauss", (1, *shape), rng)[0]  # also of rank 0
        words, error = uniform.uniform_encode(values, 4, KEY, values.reshape(-1))
        assert error.shape == shape
        same_bits(words.numpy(), reference.encode(values, 4, 512, KEY, values))


def test_graph_equals_eager(rng):
    values = sample("laplace", 4099, rng)

    @tf.function(
        input_signature=[tf.TensorSpec(None, tf.float32)] * 2 + [tf.TensorSpec([4], "int32")]
    )
    def encode_then_decode(values, residual, key):
        words, error = uniform.uniform_encode(values + 0.0, 4, key, residual + 0.0)
        return words, error, uniform.uniform_decode(words[None], tf.size(values, tf.int64), 4)

    words, error, result = encode_then_decode(values, -values / 3, KEY)
    expected = reference.encode(values, 4, 512, KEY, -values / 3)
    same_bits(words.numpy(), expected)
    same_bits(error.numpy(), reference.error(values, expected, 4, 512, -values / 3))
    same_bits(result.numpy()[0], reference.decode(expected, 4099, 4, 512))


@pytest.mark.parametrize("v", [0, 1, 31, 32, 33, 511, 512, 513, 1024])
@pytest.mark.parametrize("num_bits", [1, 5, 8])
def test_static_shapes_are_exact(v, num_bits):
    count = reference.num_words(v, num_bits, 512)
    assert uniform.num_words(v, num_bits) == count
    encode = tf.function(lambda x: uniform.uniform_encode(x, num_bits))
    words, error = encode.get_concrete_function(tf.TensorSpec([v], tf.float32)).structured_outputs
    assert words.shape == [count]
    assert error.shape == [v]
    decode = tf.function(lambda w: uniform.uniform_decode(w, v, num_bits))
    graph = decode.get_concrete_function(tf.TensorSpec([5, count], tf.int32))
    assert graph.structured_outputs.shape == [5, v]


# ---- properties claimed for the quantizer

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
keys = st.one_of(st.none(), st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 4))
bounded = settings(max_examples=50, deadline=None)


@bounded
@given(st.lists(finite, max_size=200), st.sampled_from(ALL_BITS), keys, st.sampled_from([32, 512]))
def test_any_values_as_oracle(values, num_bits, key, block):
    assert_as_oracle(np.array(values, np.float32), num_bits, block, key)


@bounded
@given(finite, finite, st.sampled_from(ALL_BITS))
def test_levels_rise_from_the_lower_to_the_upper_bound(a, b, num_bits):
    lo, hi = np.float32(min(a, b) + 0.0), np.float32(max(a, b) + 0.0)
    words = reference.encode(np.array([lo, hi]), num_bits, 512)
    words = np.concatenate([words[:3], reference.pack(np.arange(2**num_bits), num_bits)])
    result = uniform.uniform_decode(words[None].view(np.int32), 2**num_bits, num_bits).numpy()[0]
    assert result[0] == lo
    assert result[-1] == hi
    assert (np.diff(result.astype(np.float64)) >= 0).all()
    step = (np.float64(hi) - np.float64(lo)) / (2**num_bits - 1)
    exact = np.float64(lo) + step * np.arange(2**num_bits)
    spacing = np.spacing(np.maximum(np.abs(result), np.abs(exact).astype(np.float32)))
    assert (np.abs(result - exact) <= 0.51 * spacing + 1e-12 * step).all()


@bounded
@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.sampled_from(ALL_BITS), keys)
def test_error_is_at_most_a_step_or_half_of_one(seed, kind, num_bits, key):
    x = sample(kind, 512, np.random.default_rng(seed))
    y = round_trip(x, num_bits, 512, key).astype(np.float64)
    step = (np.float64(x.max()) - np.float64(x.min())) / (2**num_bits - 1)
    bound = step * (0.5 if key is None else 1) * (1 + 2.0**-20)
    assert (np.abs(x - y) <= bound + np.spacing(np.abs(x).max())).all()


@pytest.mark.parametrize("num_bits", [1, 2, 4, 8])
def test_stochastic_rounding_is_unbiased_with_the_variance_of_the_paper(num_bits, rng):
    """E Q(x) = x, E (Q(x) - x)^2 = f (1 - f) step^2 <= step^2 / 4; f: the place between levels."""
    trials, v = 2000, 512
    x = sample("gauss", v, rng)
    words = [
        uniform.uniform_encode(x, num_bits, (3, 1, 0, step), with_error=False)[0]
        for step in range(trials)
    ]
    y = uniform.uniform_decode(tf.stack(words), v, num_bits).numpy().astype(np.float64)
    x = x.astype(np.float64)
    step = (x.max() - x.min()) / (2**num_bits - 1)
    f = (x - x.min()) / step % 1.0
    variance = f * (1 - f) * step**2
    # Levels are floats, which moves an expectation by half their spacing.
    spacing = np.spacing(np.float32(np.abs(x).max()))
    z = (np.abs(y.mean(axis=0) - x) - spacing) / np.sqrt(variance / trials + 1e-30)
    seldom = variance * trials < 9 * step**2  # too few promotions for a normal approximation
    assert (z[~seldom] < 5.5).all()  # 512 values: once in 50,000 runs
    total = ((y - x) ** 2).sum(axis=1)
    # (Q(x) - x)^2 is (f step)^2 or ((1 - f) step)^2, which differ by (1 - 2 f) step^2.
    deviation = np.sqrt((variance * ((1 - 2 * f) * step) ** 2).sum() / trials)
    assert abs(total.mean() - variance.sum()) < 5 * deviation + 2 * v * step * spacing
    assert total.mean() <= v * step**2 / 4 + 5 * deviation
    # And over all values together, which sees a common drift.
    drift = (y.mean(axis=0) - x).sum()
    assert abs(drift) < 5 * np.sqrt(variance.sum() / trials) + v * spacing


def test_draws_follow_from_the_key_alone(rng):
    x = sample("gauss", 100000, rng)
    words = {}
    for key in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]:
        first, again = (uniform.uniform_encode(x, 2, key)[0].numpy() for _ in range(2))
        same_bits(first, again)
        words[key] = reference.unpack(first.view(np.uint32)[1 + 2 * 196 :], x.size, 2)
    chosen = list(words.values())
    for i, a in enumerate(chosen):
        for b in chosen[:i]:
            assert 0.1 < (a != b).mean() < 0.6


def test_promotes_where_the_random_word_is_below_the_fraction():
    """u * 2^-32 < f, where f has 23 bits: 1/4 is exact, and all draws of a key are used."""
    x = np.full(32768, 0.25, np.float32)
    x[::512], x[1::512] = 0, 1
    u = reference.philox_reference.random_words(KEY, x.size)
    expected = (u < 2**30).astype(np.float32)
    expected[::512], expected[1::512] = 0, 1
    same_bits(round_trip(x, 1, 512, KEY), expected)


def test_zeros_become_one_of_the_levels_beside_them():
    x = np.zeros(512, np.float32)
    x[:2] = -1, 2.1
    np.testing.assert_allclose(round_trip(x, 2)[2:], 1.0 / 30, atol=1e-6)
    stochastic = round_trip(x, 2, 512, KEY)[2:]
    assert set(np.round(stochastic, 4)) == {np.float32(-1), np.float32(0.0333)}
    np.testing.assert_array_equal(round_trip(np.zeros(700, np.float32), 2), 0)


def test_the_values_are_not_changed(rng):
    values, residual = (tf.constant(sample("gauss", 5000, rng)) for _ in range(2))
    before = values.numpy().copy(), residual.numpy().copy()
    uniform.uniform_encode(values, 4, KEY, residual)
    same_bits(values.numpy(), before[0])
    same_bits(residual.numpy(), before[1])


# ---- corrupt blocks and bad arguments


@pytest.mark.parametrize(
    ("num_bits", "block", "named"),
    [(0, 512, "num_bits"), (9, 512, "num_bits"), (-1, 512, "num_bits")]
    + [(4, block, "block") for block in (0, 16, 33, -32, 65568, 2**40)],
)
def test_bad_parameters_are_named(num_bits, block, named):
    with pytest.raises(BAD_ARGUMENT, match=named):
        uniform.uniform_encode(np.ones(4, np.float32), num_bits, None, None, block)
    with pytest.raises(BAD_ARGUMENT, match=named):
        uniform.uniform_decode(np.zeros((1, 4), np.int32), 4, num_bits, block)
    with pytest.raises(ValueError, match=named):
        uniform.num_words(4, num_bits, block)


def test_bad_inputs_are_named():
    with pytest.raises(BAD_ARGUMENT, match="residual"):
        uniform.uniform_encode(np.ones(4, np.float32), 4, None, np.ones(3, np.float32))
    with pytest.raises(BAD_ARGUMENT, match="key|Dimension|hape"):
        uniform.uniform_encode(np.ones(4, np.float32), 4, (1, 2, 3))


@pytest.mark.parametrize(
    ("shape", "count"),
    [((1, 4), 9), ((1, 5), 8), ((1, 0), 1), ((4,), 1), ((1, 1, 4), 1), ((1, 4), -1)]
    + [((1, 4), 2**62), ((1, 4), 2**63 - 1)],
)
def test_words_of_another_length_are_refused(shape, count):
    with pytest.raises(BAD_ARGUMENT, match="words|count|must be"):
        uniform.uniform_decode(np.zeros(shape, np.int32), count, 4)


BAD_WORDS = {
    "other bits": {0: 5},
    "reserved bit": {0: 4 | 1 << 8},
    "flag beside bounds": {0: 4 | 1 << 31},
    "lo above hi": {1: 0x40000000, 2: 0x3F800000},
    "denormal lo above 0": {3: 1, 4: 0},
    "infinite hi": {2: 0x7F800000},
    "infinite lo": {3: 0xFF800000},
    "NaN lo": {1: 0x7FC00000},
    "NaN hi": {4: 0xFFC00001},
    "lo -0": {1: 0x80000000, 2: 0x3F800000},
    "hi -0": {1: 0xBF800000, 2: 0x80000000},
}


@pytest.mark.parametrize("what", BAD_WORDS)
def test_corrupt_blocks_are_refused(what, rng):
    right = reference.encode(sample("gauss", 600, rng), 4, 512)
    wrong = right.copy()
    for at, value in BAD_WORDS[what].items():
        wrong[at] = value
    with pytest.raises(ValueError):
        reference.decode(wrong, 600, 4, 512)
    for worker, blocks in enumerate([[wrong, right], [right, wrong]]):  # whoever sent it is named
        with pytest.raises(BAD_ARGUMENT, match=f"uniform block of worker {worker}"):
            uniform.uniform_decode(np.stack(blocks).view(np.int32), 600, 4, sum=True)


@bounded
@given(st.binary(min_size=4 * 18, max_size=4 * 18), finite, finite)
def test_any_words_decode_or_are_refused(data, a, b):
    words = np.frombuffer(data, "<u4").copy()
    words[0] = words[0] & 0x80000000 | 5
    words[1:3] = np.array([a, b], np.float32).view(np.uint32)
    try:
        expected = reference.decode(words, 96, 5, 512)
    except ValueError:
        with pytest.raises(BAD_ARGUMENT, match="uniform block"):
            uniform.uniform_decode(words[None].view(np.int32), 96, 5)
    else:
        same_bits(uniform.uniform_decode(words[None].view(np.int32), 96, 5).numpy()[0], expected)
