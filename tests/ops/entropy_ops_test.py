# SPDX-License-Identifier: Apache-2.0
"""Entropy ops against the oracle, bit for bit, and the properties claimed for the code."""

import entropy_reference as reference
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, sample

from tf_gradcomp.ops import entropy

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
# Around streams of 1024 values and units of four of them.
SIZES = [0, 1, 2, 3, 7, 33, 1000, 1023, 1024, 1025, 2049, 4095, 4097, 12289]


def same_bits(a, b) -> None:
    a, b = (np.ascontiguousarray(x).view(np.uint32) for x in (a, b))
    np.testing.assert_array_equal(a, b)


def assert_as_oracle(values, bits, residual=None) -> np.ndarray:
    """Checks both ops; returns the words."""
    expected = reference.encode(values, bits, residual)
    words, error = entropy.entropy_encode(values, bits, residual)
    same_bits(words.numpy(), expected)
    decoded = reference.decode(expected, values.size, bits)
    x = reference.meant(values, residual)
    same_bits(error.numpy(), x - decoded if np.isfinite(x).all() else np.zeros_like(x))
    words, error = entropy.entropy_encode(values, bits, residual, with_error=False)
    same_bits(words.numpy(), expected)
    assert error.shape == [0]
    stacked = np.stack([expected, expected, expected]).view(np.int32)
    rows = entropy.entropy_decode(stacked, values.size, bits)
    same_bits(rows.numpy(), np.stack([decoded] * 3))
    with np.errstate(over="ignore"):
        total = np.float32(0) + decoded + decoded + decoded
    same_bits(entropy.entropy_decode(stacked, values.size, bits, sum=True).numpy(), total)
    return expected


def round_trip(values, bits, residual=None) -> np.ndarray:
    words, _ = entropy.entropy_encode(values, bits, residual)
    return entropy.entropy_decode(words[None], values.size, bits).numpy()[0]


# ---- equality with the oracle


@pytest.mark.parametrize("v", SIZES)
def test_sizes(v, rng):
    for bits in (3, 10.5):
        assert_as_oracle(sample("gauss", v, rng), bits, sample("laplace", v, rng))


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
def test_kinds_of_values(kind, rng):
    for bits, residual in [
        (3, None),
        (7.125, sample("gauss", 5001, rng)),
        (24, sample("wide", 5001, rng)),
    ]:
        assert_as_oracle(sample(kind, 5001, rng), bits, residual)


@pytest.mark.parametrize("kind", ["denormal", "wide"])
def test_kinds_of_values_over_several_shards(kind, rng):
    # Pool threads may run with denormals flushed; a small input never leaves the calling thread.
    half = sample(kind, 131073, rng) / 2
    assert_as_oracle(half, 10.5, half)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_non_finite_value_makes_all_nan(bad):
    for at in (0, 123456, 400002):
        values, residual = np.ones(400003, np.float32), np.zeros(400003, np.float32)
        residual[at] = bad
        words, error = entropy.entropy_encode(values, 10.5, residual)
        words = words.numpy().view(np.uint32)
        assert words[entropy.flag_word()] == 0x80000000
        assert not words[1:].any()
        assert not error.numpy().any()
        result = entropy.entropy_decode(words[None].view(np.int32), 400003, 10.5).numpy()
        assert (result.view(np.uint32) == 0x7FC00000).all()


def test_sums_workers_in_order(rng):
    kinds = ["gauss", "zeros", "wide", "huge", "denormal"]
    blocks = np.stack([reference.encode(sample(k, 5001, rng), 8) for k in kinds])
    total = entropy.entropy_decode(blocks.view(np.int32), 5001, 8, sum=True)
    same_bits(total.numpy(), reference.decode_sum(blocks, 5001, 8))
    empty = entropy.entropy_decode(blocks[:0].view(np.int32), 5001, 8, sum=True)
    same_bits(empty.numpy(), np.zeros(5001, np.float32))


def test_shape_of_values_is_free(rng):
    for shape in [(), (0,), (6,), (2, 3), (3, 0, 2), (2, 3, 4)]:
        values = sample("gauss", (1, *shape), rng)[0]  # also of rank 0
        words, error = entropy.entropy_encode(values, 8, values.reshape(-1))
        assert error.shape == shape
        same_bits(words.numpy(), reference.encode(values, 8, values))


def test_graph_equals_eager(rng):
    values = sample("laplace", 5001, rng)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)] * 2)
    def encode_then_decode(values, residual):
        words, error = entropy.entropy_encode(values + 0.0, 8, residual + 0.0)
        return words, error, entropy.entropy_decode(words[None], tf.size(values, tf.int64), 8)

    words, error, result = encode_then_decode(values, -values / 3)
    expected = reference.encode(values, 8, -values / 3)
    same_bits(words.numpy(), expected)
    same_bits(error.numpy(), reference.error(values, expected, 8, -values / 3))
    same_bits(result.numpy()[0], reference.decode(expected, 5001, 8))


@pytest.mark.parametrize("v", [0, 1, 2, 31, 255, 256, 257, 4097])
@pytest.mark.parametrize("bits", [3, 10.125, 24.0])
def test_static_shapes_are_exact(v, bits):
    count = reference.num_words(v, bits)
    assert entropy.num_words(v, bits) == count
    encode = tf.function(lambda x: entropy.entropy_encode(x, bits))
    words, error = encode.get_concrete_function(tf.TensorSpec([v], tf.float32)).structured_outputs
    assert words.shape == [count]
    assert error.shape == [v]
    decode = tf.function(lambda w: entropy.entropy_decode(w, v, bits))
    graph = decode.get_concrete_function(tf.TensorSpec([5, count], tf.int32))
    assert graph.structured_outputs.shape == [5, v]


# ---- properties of the code


def test_what_fits_is_exact(rng):
    """Values of few mantissa bits, such as those of bfloat16, or of few exponents."""
    gauss = sample("gauss", 20000, rng)
    of_bfloat16 = (gauss.view(np.uint32) & 0xFFFF0000).view(np.float32)
    same_bits(round_trip(of_bfloat16, 11), of_bfloat16)
    one_octave = rng.integers(2**20, 2**21, 20000).astype(np.float32)
    same_bits(round_trip(one_octave, 22), one_octave)
    same_bits(round_trip(np.full(5000, np.float32(-0.75)), 4), np.full(5000, np.float32(-0.75)))
    same_bits(round_trip(sample("zeros", 5000, rng), 4), np.zeros(5000, np.float32))
    for v in range(1, 5):
        same_bits(round_trip(gauss[:v], 10.5), gauss[:v])


def test_the_words_are_used(rng):
    """A mix of two steps, and not even a thousandth of the words left over."""
    for bits in (3, 7, 10.5, 16):
        words = reference.encode(sample("laplace", 30000, rng), bits)
        assert 0 < words[1] < 30
        assert np.flatnonzero(words)[-1] > 0.985 * words.size


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
bounded = settings(max_examples=40, deadline=None)


@bounded
@given(st.lists(finite, max_size=200), st.sampled_from([3, 10.5]))
def test_any_values_as_oracle(values, bits):
    assert_as_oracle(np.array(values, np.float32), bits)


@bounded
@given(st.lists(finite, min_size=1, max_size=300), st.sampled_from([3, 6]))
def test_errors_are_below_values_and_the_largest_is_always_sent(values, bits):
    """So that error feedback gets rid of everything but denormals."""
    x = np.array(values, np.float32).astype(np.float64)
    y = round_trip(x.astype(np.float32), bits).astype(np.float64)
    assert (np.abs(x - y) <= np.abs(x)).all()
    sent = np.abs(x) >= 2.0 ** max(np.frexp(np.abs(x).max())[1] - 1, -126)
    assert (np.abs(x - y)[sent] <= np.abs(x)[sent] / 2).all()


@bounded
@given(st.integers(0, 2**32 - 1), st.sampled_from(["gauss", "laplace", "positive"]))
def test_error_bounds(seed, kind):
    """Half a step where a value is not below the step, whatever its size."""
    x = sample(kind, 3000, np.random.default_rng(seed))
    words, error = entropy.entropy_encode(x, 8)
    coarse, fine_streams = reference.MIN_STEP + int(words[0]) % 512, int(words[1])
    for i in range(3):
        step = 2.0 ** (coarse - (i < fine_streams) - 127)
        part = slice(i * 1024, (i + 1) * 1024)
        bound = np.where(np.abs(x[part]) < step, np.abs(x[part]), step / 2)
        assert (np.abs(error.numpy()[part]) <= bound).all()


@bounded
@given(st.integers(0, 2**32 - 1), st.integers(-80, 100))
def test_follows_the_scale_of_the_data(seed, exponent):
    x = sample("gauss", 2000, np.random.default_rng(seed))
    same_bits(round_trip(np.ldexp(x, exponent), 8), np.ldexp(round_trip(x, 8), exponent))


@pytest.mark.parametrize("kind", ["gauss", "laplace"])
def test_is_closer_than_bfloat16_in_two_thirds_of_its_bits(kind, rng):
    x = sample(kind, 100000, rng)
    error = entropy.entropy_encode(x)[1].numpy().astype(np.float64)
    bfloat16 = tf.cast(tf.cast(x, tf.bfloat16), tf.float32).numpy() - x
    assert 32 * entropy.num_words(x.size) / x.size < 2 / 3 * 16
    assert 2 * (error**2).sum() < (bfloat16.astype(np.float64) ** 2).sum()


def test_error_feedback_sends_everything_in_time(rng):
    gradient = sample("laplace", 4096, rng)
    residual, sent = np.zeros_like(gradient), np.zeros(gradient.size)
    for _ in range(50):
        words, error = entropy.entropy_encode(gradient, 4, residual)
        sent += entropy.entropy_decode(words[None], gradient.size, 4).numpy()[0]
        residual = error.numpy()
        assert (np.abs(residual) < 1).all()  # does not grow
    # Each of 50 steps rounds x once, at magnitudes below 16.
    np.testing.assert_allclose(sent + residual, 50.0 * gradient, atol=50 * 16 * 2.0**-24)


def test_the_values_are_not_changed(rng):
    values, residual = (tf.constant(sample("gauss", 5000, rng)) for _ in range(2))
    before = values.numpy().copy(), residual.numpy().copy()
    entropy.entropy_encode(values, 8, residual)
    same_bits(values.numpy(), before[0])
    same_bits(residual.numpy(), before[1])


# ---- corrupt blocks and bad arguments


@pytest.mark.parametrize("bits", [0, 2.875, 24.125, 10.1, -8, 1e9, float("nan")])
def test_bad_rates_are_named(bits):
    with pytest.raises(BAD_ARGUMENT, match="bits"):
        entropy.entropy_encode(np.ones(4, np.float32), bits)
    with pytest.raises(BAD_ARGUMENT, match="bits"):
        entropy.entropy_decode(np.zeros((1, 9), np.int32), 4, bits)
    with pytest.raises(ValueError, match="bits"):
        entropy.num_words(4, bits)


def test_residual_of_another_size_is_refused():
    with pytest.raises(BAD_ARGUMENT, match="residual"):
        entropy.entropy_encode(np.ones(4, np.float32), 8, np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("shape", "count"),
    [((1, 9), 5), ((1, 10), 4), ((1, 0), 1), ((9,), 1), ((1, 1, 9), 1), ((1, 9), -1)]
    + [((1, 9), 2**62), ((1, 9), 2**63 - 1)],
)
def test_words_of_another_length_are_refused(shape, count):
    with pytest.raises(BAD_ARGUMENT, match="words|count|must be"):
        entropy.entropy_decode(np.zeros(shape, np.int32), count, 8)


def damaged(what: str, right: np.ndarray) -> np.ndarray:
    """A block of 5000 values, two of whose five streams are fine, with one thing wrong."""
    wrong = right.copy()
    coarse_words = 1 + -(-(int(right[2]) >> 8 & 255) // 8)
    fine_at = 2 + coarse_words
    sizes_at = fine_at + 1 + -(-(int(right[fine_at]) >> 8 & 255) // 8)
    at, value = {
        "reserved bit": (0, int(right[0]) | 1 << 14),
        "flag beside a step": (0, int(right[0]) | 1 << 31),
        "flag beside fine streams": (0, 1 << 31),
        "step": (0, int(right[0]) & ~511 | 277),
        "width": (0, int(right[0]) | 31 << 9),
        "fine step below the smallest": (0, int(right[0]) & ~511),
        "fine streams": (1, 6),
        "no room for a code": (2, int(right[2]) | 255 << 8),
        "exponent below the step": (2, int(right[2]) - 1),
        "reserved bit of a code": (2, int(right[2]) | 1 << 20),
        "length above 12": (3, int(right[3]) | 0xF),
        "incomplete code": (3, int(right[3]) & ~0xF),
        "incomplete fine code": (fine_at + 1, int(right[fine_at + 1]) & ~0xF),
        "no lengths for two exponents": (3, 0),
        "size": (sizes_at, 4609),
        "end": (sizes_at, 0x10001000),
        "size beyond the last": (sizes_at + 2, int(right[sizes_at + 2]) | 1 << 16),
    }[what]
    wrong[at] = value
    return wrong


BAD_WORDS = [
    *("reserved bit", "flag beside a step", "flag beside fine streams", "step", "width"),
    *("fine step below the smallest", "fine streams", "no room for a code"),
    *("exponent below the step", "reserved bit of a code", "length above 12", "incomplete code"),
    *("incomplete fine code", "no lengths for two exponents", "size", "end"),
    "size beyond the last",
]


@pytest.mark.parametrize("what", BAD_WORDS)
def test_corrupt_blocks_are_refused(what):
    right = reference.encode(sample("gauss", 5000, np.random.default_rng(3)), 8)
    assert 0 < right[1] < 5
    wrong = damaged(what, right)
    assert (wrong != right).any()
    with pytest.raises(ValueError):
        reference.decode(wrong, 5000, 8)
    for worker, blocks in enumerate([[wrong, right], [right, wrong]]):  # whoever sent it is named
        with pytest.raises(BAD_ARGUMENT, match=f"entropy block of worker {worker}"):
            entropy.entropy_decode(np.stack(blocks).view(np.int32), 5000, 8, sum=True)


@bounded
@given(st.binary(min_size=200, max_size=200), st.integers(0, 2), st.integers(0, 10), st.data())
def test_any_words_decode_or_are_refused(noise, fine, at, data):
    """Streams of any content, and now and then any word of what comes before them."""
    x = sample("laplace", 1500, np.random.default_rng(at))
    words = reference.encode(x, 8)
    words[-50:] = np.frombuffer(noise, "<u4")
    words[60:110] = np.frombuffer(noise, "<u4")
    if data.draw(st.booleans()):
        words[at] = np.frombuffer(noise, "<u4")[at]
    try:
        expected = reference.decode(words, 1500, 8)
    except ValueError:
        with pytest.raises(BAD_ARGUMENT, match="entropy block"):
            entropy.entropy_decode(words[None].view(np.int32), 1500, 8)
    else:
        same_bits(entropy.entropy_decode(words[None].view(np.int32), 1500, 8).numpy()[0], expected)
