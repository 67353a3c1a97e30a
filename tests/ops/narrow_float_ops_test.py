# SPDX-License-Identifier: Apache-2.0
"""Narrow float ops against the oracle and other implementations of the formats, bit for bit."""

import ml_dtypes
import narrow_float_reference as reference
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import narrow_float

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
DTYPES = list(reference.FORMATS)
FLOAT8 = DTYPES[2:]
OTHERS = {  # the same formats, implemented by others
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def same_bits(a, b) -> None:
    a, b = (np.ascontiguousarray(x).view(np.uint32) for x in (a, b))
    np.testing.assert_array_equal(a, b)


def assert_as_oracle(values, dtype, block=128, residual=None) -> None:
    expected = reference.encode(values, dtype, block, residual)
    words, error = narrow_float.narrow_float_encode(values, dtype, residual, block)
    same_bits(words.numpy(), expected)
    same_bits(error.numpy(), reference.error(values, expected, dtype, block, residual))
    words, error = narrow_float.narrow_float_encode(values, dtype, residual, block, False)
    same_bits(words.numpy(), expected)
    assert error.shape == [0]
    stacked = np.stack([expected, expected, expected]).view(np.int32)
    decoded = reference.decode(expected, values.size, dtype, block)
    result = narrow_float.narrow_float_decode(stacked, values.size, dtype, block)
    same_bits(result.numpy(), np.stack([decoded] * 3))
    with np.errstate(over="ignore"):
        total = np.float32(0) + decoded + decoded + decoded
    result = narrow_float.narrow_float_decode(stacked, values.size, dtype, block, sum=True)
    same_bits(result.numpy(), total)


def round_trip(values, dtype, block=128) -> np.ndarray:
    words, _ = narrow_float.narrow_float_encode(values, dtype, None, block)
    return narrow_float.narrow_float_decode(words[None], values.size, dtype, block).numpy()[0]


# ---- equality with the oracle


@pytest.mark.parametrize("v", [0, *SIZES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(v, dtype, rng):
    assert_as_oracle(sample("gauss", v, rng), dtype, 4128, sample("laplace", v, rng))
    if v < 100000:
        assert_as_oracle(sample("gauss", v, rng), dtype, 32)


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kinds_of_values(kind, dtype, rng):
    for block in (32, 128, 1056):
        for residual in (None, sample("gauss", 4001, rng), sample("wide", 4001, rng)):
            assert_as_oracle(sample(kind, 4001, rng), dtype, block, residual)


@pytest.mark.parametrize("kind", ["denormal", "wide", "huge"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kinds_of_values_over_several_shards(kind, dtype, rng):
    # Pool threads may run with denormals flushed; a small input never leaves the calling thread.
    assert_as_oracle(sample(kind, 400003, rng), dtype, 1024)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_non_finite_value_makes_all_nan(dtype, bad):
    for at in (0, 123456, 400002):
        values, residual = np.ones(400003, np.float32), np.zeros(400003, np.float32)
        residual[at] = bad
        words, error = narrow_float.narrow_float_encode(values, dtype, residual)
        words = words.numpy().view(np.uint32)
        assert words[narrow_float.flag_word()] == 0x80000000 | narrow_float.DTYPES.index(dtype)
        assert not words[1:].any()
        assert not error.numpy().any()
        result = narrow_float.narrow_float_decode(words[None].view(np.int32), 400003, dtype)
        assert (result.numpy().view(np.uint32) == 0x7FC00000).all()


def test_sums_workers_in_order(rng):
    kinds = ["gauss", "zeros", "wide", "huge", "denormal"]
    for dtype in DTYPES:
        blocks = np.stack([reference.encode(sample(k, 9001, rng), dtype, 128) for k in kinds])
        total = narrow_float.narrow_float_decode(blocks.view(np.int32), 9001, dtype, sum=True)
        same_bits(total.numpy(), reference.decode_sum(blocks, 9001, dtype, 128))
        none = blocks[:0].view(np.int32)
        empty = narrow_float.narrow_float_decode(none, 9001, dtype, sum=True)
        same_bits(empty.numpy(), np.zeros(9001, np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_shape_of_values_is_free(dtype, rng):
    for shape in [(), (0,), (6,), (2, 3), (3, 0, 2), (2, 3, 4)]:
        values = sample("gauss", (1, *shape), rng)[0]  # also of rank 0
        words, error = narrow_float.narrow_float_encode(values, dtype, values.reshape(-1))
        assert error.shape == shape
        same_bits(words.numpy(), reference.encode(values, dtype, 128, values))


@pytest.mark.parametrize("dtype", DTYPES)
def test_graph_equals_eager(dtype, rng):
    values = sample("laplace", 4099, rng)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)] * 2)
    def encode_then_decode(values, residual):
        words, error = narrow_float.narrow_float_encode(values + 0.0, dtype, residual + 0.0)
        count = tf.size(values, tf.int64)
        return words, error, narrow_float.narrow_float_decode(words[None], count, dtype)

    words, error, result = encode_then_decode(values, -values / 3)
    expected = reference.encode(values, dtype, 128, -values / 3)
    same_bits(words.numpy(), expected)
    same_bits(error.numpy(), reference.error(values, expected, dtype, 128, -values / 3))
    same_bits(result.numpy()[0], reference.decode(expected, 4099, dtype, 128))


@pytest.mark.parametrize("v", [0, 1, 2, 3, 4, 5, 128, 129, 513])
@pytest.mark.parametrize("dtype", DTYPES)
def test_static_shapes_are_exact(v, dtype):
    count = reference.num_words(v, dtype, 128)
    assert narrow_float.num_words(v, dtype) == count
    encode = tf.function(lambda x: narrow_float.narrow_float_encode(x, dtype))
    words, error = encode.get_concrete_function(tf.TensorSpec([v], tf.float32)).structured_outputs
    assert words.shape == [count]
    assert error.shape == [v]
    decode = tf.function(lambda w: narrow_float.narrow_float_decode(w, v, dtype))
    graph = decode.get_concrete_function(tf.TensorSpec([5, count], tf.int32))
    assert graph.structured_outputs.shape == [5, v]


# ---- the formats


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_are_those_of_other_implementations(dtype):
    """All positive codes, the points half way between them, and their neighbours."""
    f, other = reference.FORMATS[dtype], OTHERS[dtype]
    numbers = np.arange(f.largest + 1, dtype=f.code).view(other).astype(np.float64)
    half_way = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    points = np.concatenate([numbers.astype(np.float32), half_way])
    points = np.concatenate([points, *(np.nextafter(points, np.float32(s)) for s in (0, np.inf))])
    points = points[points <= np.float32(numbers[-1])]
    points = np.concatenate([points, -points])
    scale = 1.0
    if f.scaled:  # a block without scale: the last exponent is that of 1
        scale = 2.0 ** -reference.last_exponent(f)
        rows = np.full((-(-points.size // 31), 32), numbers[-1], np.float32)
        rows[:, 1:] = np.resize(points, rows[:, 1:].shape)
        points = rows.reshape(-1)
    values = (points * scale).astype(np.float32)
    assert_as_oracle(values, dtype, 32)
    with np.errstate(over="ignore"):
        expected = points.astype(other).astype(np.float32) * np.float32(scale)
    same_bits(round_trip(values, dtype, 32), expected)


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 65504.0), ("bfloat16", 3.38953139e38)])
def test_finite_values_saturate(dtype, largest):
    values = np.float32([65504, 65519, 65520, 1e10, np.finfo(np.float32).max, 3.39e38])
    values = np.concatenate([values, -values])
    assert_as_oracle(values, dtype)
    beyond = np.abs(values) > np.float32(largest)
    assert beyond.any()
    expected = np.float32(largest) * np.sign(values)
    np.testing.assert_array_equal(round_trip(values, dtype)[beyond], expected[beyond])


@pytest.mark.parametrize("dtype", FLOAT8)
def test_edges_of_scales(dtype):
    """Where the scale changes, down to the smallest float and up to the largest."""
    edges = np.array([7 << 20, 1 << 23, 2 << 23, 254 << 23, (254 << 23) | 0x600000, 0x7F7FFFFF])
    patterns = np.add.outer(edges, [-1, 0, 1]).reshape(-1)
    patterns = patterns[patterns < 0x7F800000]
    largest = np.concatenate([[1, 2, 3], patterns]).astype(np.uint32).view(np.float32)
    parts = np.array([1, 1.75 / 2, 0.5, 0.4, 1 / 3, 1e-2, 1e-3, 2.0**-16, 2.0**-17, 1e-9, 0, -1])
    rows = np.zeros((largest.size, 32), np.float32)
    rows[:, : parts.size] = np.outer(largest.astype(np.float64), parts)
    assert_as_oracle(rows.reshape(-1), dtype, 32)
    result = round_trip(rows.reshape(-1), dtype, 32)
    assert np.isfinite(result).all()
    relative = 2.0 ** -(reference.FORMATS[dtype].mantissa_bits + 1)
    normal = largest >= np.float32(2.0**-120)
    below = largest < np.float32(1.99 * 2.0**127)  # there the last code is one short
    sent = result.reshape(rows.shape)[normal & below, 0]
    assert (np.abs(sent / largest[normal & below] - 1) <= relative).all()


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
bounded = settings(max_examples=50, deadline=None)


@bounded
@given(st.lists(finite, max_size=200), st.sampled_from(DTYPES), st.sampled_from([32, 128]))
def test_any_values_as_oracle(values, dtype, block):
    assert_as_oracle(np.array(values, np.float32), dtype, block)


@bounded
@given(st.integers(0, 2**32 - 1), st.sampled_from(["gauss", "laplace", "denormal", "wide"]))
def test_float8_error_bounds(seed, kind):
    """Half a unit in the last place of the value, or of the block's smallest normal number."""
    x = sample(kind, 128, np.random.default_rng(seed))
    for dtype in FLOAT8:
        f = reference.FORMATS[dtype]
        y = round_trip(x, dtype).astype(np.float64)
        S = reference.scale_byte(x)
        _, exponent = np.frexp(x.astype(np.float64))
        smallest = S - 127 - reference.last_exponent(f) + 1 - f.bias
        unit = 2.0 ** (np.maximum(exponent - 1, smallest) - f.mantissa_bits)
        last_step = 1 if S < 255 else 2  # the last code of the last binade is not used
        assert (np.abs(x - y) <= last_step * unit / 2 + 2.0**-150).all()


@bounded
@given(st.integers(0, 2**32 - 1), st.integers(-100, 100))
def test_float8_follows_the_scale_of_the_data(seed, exponent):
    x = sample("gauss", 1000, np.random.default_rng(seed))
    for dtype in FLOAT8:
        scaled = round_trip(np.ldexp(x, exponent), dtype)
        same_bits(scaled, np.ldexp(round_trip(x, dtype), exponent))


def test_signs_of_zeros_are_kept():
    for dtype in DTYPES:
        same_bits(round_trip(np.float32([0.0, -0.0, 1.0]), dtype), np.float32([0.0, -0.0, 1.0]))
        same_bits(round_trip(np.float32([0.0, -0.0]), dtype), np.float32([0.0, -0.0]))


def test_the_values_are_not_changed(rng):
    values, residual = (tf.constant(sample("gauss", 5000, rng)) for _ in range(2))
    before = values.numpy().copy(), residual.numpy().copy()
    for dtype in DTYPES:
        narrow_float.narrow_float_encode(values, dtype, residual)
    same_bits(values.numpy(), before[0])
    same_bits(residual.numpy(), before[1])


# ---- corrupt blocks and bad arguments


@pytest.mark.parametrize(
    ("dtype", "block", "named"),
    [("float32", 128, "dtype"), ("", 128, "dtype")]
    + [("float8_e4m3", block, "block") for block in (0, 16, 33, -32, 65568, 2**40)],
)
def test_bad_parameters_are_named(dtype, block, named):
    with pytest.raises(BAD_ARGUMENT, match=named):
        narrow_float.narrow_float_encode(np.ones(4, np.float32), dtype, None, block)
    with pytest.raises(BAD_ARGUMENT, match=named):
        narrow_float.narrow_float_decode(np.zeros((1, 3), np.int32), 4, dtype, block)
    with pytest.raises(ValueError, match=named):
        narrow_float.num_words(4, dtype, block)


def test_residual_of_another_size_is_refused():
    with pytest.raises(BAD_ARGUMENT, match="residual"):
        narrow_float.narrow_float_encode(np.ones(4, np.float32), "float16", np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("shape", "count"),
    [((1, 3), 5), ((1, 4), 4), ((1, 0), 1), ((3,), 1), ((1, 1, 3), 1), ((1, 3), -1)]
    + [((1, 3), 2**62), ((1, 3), 2**63 - 1)],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_words_of_another_length_are_refused(shape, count, dtype):
    with pytest.raises(BAD_ARGUMENT, match="words|count|must be"):
        narrow_float.narrow_float_decode(np.zeros(shape, np.int32), count, dtype)


@pytest.mark.parametrize(
    ("dtype", "wrong_words"),
    [
        ("float16", {0: 1}),
        ("float16", {0: 1 << 8}),
        ("float8_e4m3", {0: 3}),
        ("float8_e4m3", {0: 2 | 1 << 31}),  # the scales are not 0
    ],
)
def test_corrupt_blocks_are_refused(dtype, wrong_words, rng):
    right = reference.encode(sample("gauss", 600, rng), dtype, 128)
    wrong = right.copy()
    for at, value in wrong_words.items():
        wrong[at] = value
    with pytest.raises(ValueError):
        reference.decode(wrong, 600, dtype, 128)
    for worker, blocks in enumerate([[wrong, right], [right, wrong]]):  # whoever sent it is named
        with pytest.raises(BAD_ARGUMENT, match=f"narrow float block of worker {worker}"):
            narrow_float.narrow_float_decode(np.stack(blocks).view(np.int32), 600, dtype, sum=True)


@bounded
@given(st.binary(min_size=4 * 34, max_size=4 * 34), st.sampled_from(DTYPES))
def test_any_codes_decode(data, dtype):
    """No code is refused; those of Inf and NaN in other implementations do not occur."""
    words = np.frombuffer(data, "<u4").copy()
    words[0] = narrow_float.DTYPES.index(dtype)
    count = 66 if dtype.endswith("16") else 128
    result = narrow_float.narrow_float_decode(words[None].view(np.int32), count, dtype)
    assert result.shape == [1, count]
