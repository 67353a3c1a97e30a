# SPDX-License-Identifier: Apache-2.0
"""One bit ops against the oracle, bit for bit, and the properties claimed for the compressor."""

import numpy as np
import one_bit_reference as reference
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import one_bit

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
BLOCKS = [4096, 12288, 0]


def same_bits(a, b) -> None:
    a, b = (np.ascontiguousarray(x).view(np.uint32) for x in (a, b))
    np.testing.assert_array_equal(a, b)


def assert_as_oracle(values, block, residual=None) -> np.ndarray:
    """Checks both ops; returns the words."""
    expected = reference.encode(values, block, residual)
    words, error = one_bit.one_bit_encode(values, residual, block)
    same_bits(words.numpy(), expected)
    same_bits(error.numpy(), reference.error(values, expected, block, residual))
    words, error = one_bit.one_bit_encode(values, residual, block, with_error=False)
    same_bits(words.numpy(), expected)
    assert error.shape == [0]
    stacked = np.stack([expected, expected, expected]).view(np.int32)
    decoded = reference.decode(expected, values.size, block)
    same_bits(one_bit.one_bit_decode(stacked, values.size, block).numpy(), np.stack([decoded] * 3))
    with np.errstate(over="ignore"):
        total = np.float32(0) + decoded + decoded + decoded
    same_bits(one_bit.one_bit_decode(stacked, values.size, block, sum=True).numpy(), total)
    return expected


def decoded(values, block=4096, residual=None) -> np.ndarray:
    words, _ = one_bit.one_bit_encode(values, residual, block)
    return one_bit.one_bit_decode(words[None], values.size, block).numpy()[0]


def with_zeros(v: int, share: float, run: int, rng: np.random.Generator) -> np.ndarray:
    """Gauss, with about `share` of the values in runs of `run` zeros of either sign."""
    values = sample("gauss", v, rng)
    zeros = np.repeat(rng.random(-(-v // run)) < share, run)[:v]
    values[zeros] = sample("zeros", int(zeros.sum()), rng)
    return values


# ---- equality with the oracle


@pytest.mark.parametrize("v", [0, *SIZES])
@pytest.mark.parametrize("block", BLOCKS)
def test_sizes(v, block, rng):
    if v == 1000003 and block == 12288:
        pytest.skip("two blocks at this size are enough")
    values = with_zeros(v, 0.1, 100, rng)
    assert_as_oracle(values, block, sample("gauss", v, rng) * (values != 0))


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("block", BLOCKS)
def test_kinds_of_values(kind, block, rng):
    for residual in (None, sample("gauss", 20000, rng), sample("wide", 20000, rng)):
        assert_as_oracle(sample(kind, 20000, rng), block, residual)


@pytest.mark.parametrize("run", [1, 7, 32, 100, 5000])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.9, 1.0])
def test_zeros(run, share, rng):
    for block in BLOCKS:
        assert_as_oracle(with_zeros(9000, share, run, rng), block)


@pytest.mark.parametrize("v", [1, 31, 33, 1023, 1025, 4095, 4097])
def test_a_zero_at_the_end(v):
    values = np.ones(v, np.float32)
    values[-1] = -0.0
    for block in BLOCKS:
        assert_as_oracle(values, block)


@pytest.mark.parametrize("at", [0, 123456, 400002])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_non_finite_value_makes_all_nan(at, bad):
    values, residual = np.ones(400003, np.float32), np.zeros(400003, np.float32)
    residual[at] = bad
    for block in (4096, 0):
        words, error = one_bit.one_bit_encode(values, residual, block)
        words = words.numpy().view(np.uint32)
        assert words[one_bit.flag_word()] == 0x80000000
        assert not words[1:].any()
        assert not error.numpy().any()
        result = one_bit.one_bit_decode(words[None].view(np.int32), 400003, block).numpy()
        assert (result.view(np.uint32) == 0x7FC00000).all()


def test_a_sum_that_overflows_is_non_finite():
    largest = np.full(5, np.finfo(np.float32).max)
    assert reference.encode(largest, 0, largest)[0] == 0x80000000
    assert_as_oracle(largest, 0, largest)
    assert_as_oracle(largest, 0)  # the mean of the largest is the largest


def test_sums_workers_in_order(rng):
    kinds = ["gauss", "zeros", "wide", "huge", "denormal"]
    for block in BLOCKS:
        blocks = np.stack([reference.encode(sample(k, 9001, rng), block) for k in kinds])
        total = one_bit.one_bit_decode(blocks.view(np.int32), 9001, block, sum=True)
        same_bits(total.numpy(), reference.decode_sum(blocks, 9001, block))
        empty = one_bit.one_bit_decode(blocks[:0].view(np.int32), 9001, block, sum=True)
        same_bits(empty.numpy(), np.zeros(9001, np.float32))


def test_shape_of_values_is_free(rng):
    for shape in [(), (0,), (6,), (2, 3), (3, 0, 2), (2, 3, 4)]:
        values = sample("gauss", (1, *shape), rng)[0]  # also of rank 0
        words, error = one_bit.one_bit_encode(values, values.reshape(-1))
        assert error.shape == shape
        same_bits(words.numpy(), reference.encode(values, 4096, values))


def test_graph_equals_eager(rng):
    values = sample("laplace", 9001, rng)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)] * 2)
    def encode_then_decode(values, residual):
        words, error = one_bit.one_bit_encode(values + 0.0, residual + 0.0)
        return words, error, one_bit.one_bit_decode(words[None], tf.size(values, tf.int64))

    words, error, result = encode_then_decode(values, -values / 3)
    expected = reference.encode(values, 4096, -values / 3)
    same_bits(words.numpy(), expected)
    same_bits(error.numpy(), reference.error(values, expected, 4096, -values / 3))
    same_bits(result.numpy()[0], reference.decode(expected, 9001, 4096))


@pytest.mark.parametrize("v", [0, 1, 32, 33, 1024, 1025, 4096, 4097, 12289])
@pytest.mark.parametrize("block", BLOCKS)
def test_static_shapes_are_exact(v, block):
    count = reference.num_words(v, block)
    assert one_bit.num_words(v, block) == count
    encode = tf.function(lambda x: one_bit.one_bit_encode(x, None, block))
    words, error = encode.get_concrete_function(tf.TensorSpec([v], tf.float32)).structured_outputs
    assert words.shape == [count]
    assert error.shape == [v]
    decode = tf.function(lambda w: one_bit.one_bit_decode(w, v, block))
    graph = decode.get_concrete_function(tf.TensorSpec([5, count], tf.int32))
    assert graph.structured_outputs.shape == [5, v]


def test_costs_about_one_bit_a_value():
    assert 32 * one_bit.num_words(2**22) / 2**22 == pytest.approx(1 + 2 / 32 + 1 / 128, abs=1e-4)


# ---- properties claimed for the compressor

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
bounded = settings(max_examples=50, deadline=None)


@bounded
@given(st.lists(st.one_of(st.just(0.0), finite), max_size=200), st.sampled_from(BLOCKS))
def test_any_values_as_oracle(values, block):
    assert_as_oracle(np.array(values, np.float32), block)


@bounded
@given(st.integers(0, 2**32 - 1), st.sampled_from(["gauss", "laplace", "positive", "ties"]))
def test_contracts_as_the_paper_says(seed, kind):
    """||x - C(x)||^2 = (1 - ||x||_1^2 / (d ||x||^2)) ||x||^2, d without the zeros that are kept."""
    x = sample(kind, 4000, np.random.default_rng(seed))
    y = decoded(x).astype(np.float64)
    x = x.astype(np.float64)
    d = np.count_nonzero(y)
    squared = (x**2).sum()
    claimed = squared - np.abs(x).sum() ** 2 / d
    # The scale is rounded to 24 bits, which enters the error at second order around the mean.
    assert ((x - y) ** 2).sum() == pytest.approx(claimed, abs=squared * 2.0**-44)
    assert ((x - y) ** 2).sum() <= squared


@bounded
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 4096))
def test_a_run_of_zeros_stays_zero(seed, offset, length):
    """A run needs spare words at its two ends only, and every segment has some."""
    x = sample("gauss", 12000, np.random.default_rng(seed)) + np.float32(20)
    x[offset : offset + length] = 0
    y = decoded(x)
    np.testing.assert_array_equal(y == 0, x == 0)


def test_zeros_beyond_the_spare_words_alternate():
    x = np.ones(4096, np.float32)
    x[5::32] = 0  # an odd lane of every group
    x[64:96:2] = 0
    y = decoded(x)
    spare = 4
    np.testing.assert_array_equal(y[5 : spare * 32 : 32], 0)
    assert (y[5 + spare * 32 :: 32] < 0).all()
    x[5::32], x[6::32] = 1, 0
    assert (decoded(x)[6 + spare * 32 :: 32] > 0).all()


def test_all_zero_rows_cost_the_others_nothing(rng):
    rows = sample("gauss", (1000, 64), rng)
    rows[rng.random(1000) < 0.95] = 0
    y = decoded(rows.reshape(-1)).reshape(rows.shape)
    np.testing.assert_array_equal(y == 0, rows == 0)
    segment = rows.reshape(-1)[:4096].astype(np.float64)
    mean = np.abs(segment[segment != 0]).mean()
    np.testing.assert_allclose(np.abs(y.reshape(-1)[:4096][segment != 0]), mean, rtol=2.0**-24)


def test_error_feedback_sends_everything_in_time(rng):
    """The sum of what was sent is the sum of the gradients but for the last residual."""
    gradient = sample("laplace", 4096, rng)
    residual, sent = np.zeros_like(gradient), np.zeros(gradient.size)
    sizes = []
    for _ in range(200):
        words, error = one_bit.one_bit_encode(gradient, residual)
        sent += one_bit.one_bit_decode(words[None], gradient.size).numpy()[0]
        residual = error.numpy()
        sizes.append(np.linalg.norm(residual))
    # Each of 200 steps rounds x and the error once, at magnitudes of at most a few hundred.
    np.testing.assert_allclose(sent + residual, 200.0 * gradient, atol=200 * 256 * 2.0**-23)
    assert max(sizes[100:]) < 2 * max(sizes[:100])  # it does not grow


def test_the_values_are_not_changed(rng):
    values, residual = (tf.constant(sample("gauss", 5000, rng)) for _ in range(2))
    before = values.numpy().copy(), residual.numpy().copy()
    one_bit.one_bit_encode(values, residual)
    same_bits(values.numpy(), before[0])
    same_bits(residual.numpy(), before[1])


# ---- corrupt blocks and bad arguments


@pytest.mark.parametrize("block", [-4096, 1, 32, 4095, 6000])
def test_bad_blocks_are_named(block):
    with pytest.raises(BAD_ARGUMENT, match="block"):
        one_bit.one_bit_encode(np.ones(4, np.float32), None, block)
    with pytest.raises(BAD_ARGUMENT, match="block"):
        one_bit.one_bit_decode(np.zeros((1, 5), np.int32), 4, block)
    with pytest.raises(ValueError, match="block"):
        one_bit.num_words(4, block)


def test_residual_of_another_size_is_refused():
    with pytest.raises(BAD_ARGUMENT, match="residual"):
        one_bit.one_bit_encode(np.ones(4, np.float32), np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("shape", "count"),
    [((1, 5), 33), ((1, 6), 32), ((1, 0), 1), ((5,), 1), ((1, 1, 5), 1), ((1, 5), -1)]
    + [((1, 5), 2**62), ((1, 5), 2**63 - 1)],
)
def test_words_of_another_length_are_refused(shape, count):
    with pytest.raises(BAD_ARGUMENT, match="words|count|must be"):
        one_bit.one_bit_decode(np.zeros(shape, np.int32), count)


BAD_WORDS = {
    "reserved bit": (0, 1),
    "flag beside a scale": (0, 0x80000000),
    "infinite scale": (1, 0x7F800000),
    "NaN scale": (1, 0x7FC00000),
    "negative scale": (1, 0xBF800000),
    "scale -0": (1, 0x80000000),
    "flagged group that does not exist": (7, 1 << 29),
    "more groups than spare words": (3, 0x1F),
}


@pytest.mark.parametrize("what", BAD_WORDS)
def test_corrupt_blocks_are_refused(what, rng):
    v = 5000  # two segments of 128 and 29 groups; flags in words 3..7
    right = reference.encode(sample("gauss", v, rng), 4096)
    at, value = BAD_WORDS[what]
    wrong = right.copy()
    wrong[at] = value
    with pytest.raises(ValueError):
        reference.decode(wrong, v, 4096)
    for worker, blocks in enumerate([[wrong, right], [right, wrong]]):  # whoever sent it is named
        with pytest.raises(BAD_ARGUMENT, match=f"one bit block of worker {worker}"):
            one_bit.one_bit_decode(np.stack(blocks).view(np.int32), v, sum=True)


@bounded
@given(
    st.binary(min_size=4 * 138, max_size=4 * 138),
    st.sets(st.integers(0, 127), max_size=6),
    st.sets(st.integers(0, 127), max_size=6),
)
def test_any_words_decode_or_are_refused(data, flagged, zeros):
    words = np.frombuffer(data, "<u4").copy()
    words[0] &= 0x80000000
    words[1] &= 0x7FFFFFFF
    words[2:6] = 0
    for group in flagged:
        words[2 + group // 32] |= np.uint32(1 << group % 32)
    words[[6 + group for group in zeros]] = 0
    try:
        expected = reference.decode(words, 4096, 4096)
    except ValueError:
        with pytest.raises(BAD_ARGUMENT, match="one bit block"):
            one_bit.one_bit_decode(words[None].view(np.int32), 4096)
    else:
        same_bits(one_bit.one_bit_decode(words[None].view(np.int32), 4096).numpy()[0], expected)
