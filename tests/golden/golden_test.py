# SPDX-License-Identifier: Apache-2.0
"""Oracles and native ops against the golden vectors of wire format version 2.

The lists below are the inventory: a missing file fails, and so does one that is not listed.
"""

import fft_reference
import golden_files
import identity_reference
import numpy as np
import positions_reference
import pytest
import range_float_reference
import tensorflow as tf
import top_k_reference
from golden_files import from_hex

from tf_gradcomp.ops import positions, range_float, top_k, top_k_chunked

NAMES = {
    "top_k": [
        "worked_example",
        "one_item",
        "all_zero",
        "ties",
        "denormal",
        "non_finite",
        "bitmap_partial_word",
        "elias_fano_odd_count",
        "elias_fano_far_apart",
        "complex",
        "complex_huge_and_denormal",
        "complex_non_finite",
        "complex_rows_even",
        "complex_rows_odd",
        "wide",
        "wide_non_finite",
        "wide_order_of_the_sum",
    ],
    "top_k_chunked": [
        "whole_chunks",
        "shorter_last_chunk",
        "one_shorter_chunk",
        "elias_fano",
    ],
    "range_float": [
        "worked_example",
        "one_value",
        "all_zero",
        "gauss_8_4",
        "laplace_10_6",
        "wide_6_1",
        "wide_12_10",
        "denormal_9_5",
        "huge_11_7",
        "positive_7_3",
        "negative_7_3",
        "given_range_saturates",
        "given_range_one_sided",
        "non_finite",
        "rounding_6_3",
    ],
    "identity": ["special_values", "one_value"],
    "fft": ["even_rows", "odd_rows", "one_worker_non_finite"],
    "bad": [
        "bitmap_one_too_many",
        "bitmap_one_too_few",
        "bitmap_beyond_n",
        "bitmap_too_short",
        "elias_fano_one_too_many",
        "elias_fano_one_too_few",
        "elias_fano_beyond_n",
        "elias_fano_beyond_buckets",
        "elias_fano_not_ascending",
        "elias_fano_twice",
        "elias_fano_padding",
        "elias_fano_too_long",
        "range_float_other_num_bits",
        "range_float_other_mantissa_bits",
        "range_float_reserved_bit",
        "range_float_positive_lo",
        "range_float_negative_zero_lo",
        "range_float_nan_hi",
        "range_float_infinite_hi",
        "range_float_non_finite_with_bounds",
        "range_float_too_short",
    ],
}


def uint32(tensor: tf.Tensor) -> np.ndarray:
    return tensor.numpy().view(np.uint32)


@pytest.mark.parametrize("part", NAMES)
def test_inventory_is_complete(part):
    found = {path.stem for path in (golden_files.FOLDER / part).iterdir()}
    assert found == set(NAMES[part])


@pytest.mark.parametrize("name", NAMES["top_k"])
def test_top_k(name):
    golden = golden_files.read("top_k", name)
    items = golden_files.sparse_from_fields(golden)
    n, count, row_length = items.shape[0], golden["count"], golden["row_length"]
    words, kept = from_hex(golden["positions"]), from_hex(golden["kept"], np.float32)
    kept = kept.reshape(count, *items.shape[1:])

    oracle_words, oracle_kept = top_k_reference.encode(items, count, row_length)
    np.testing.assert_array_equal(oracle_words, words)
    np.testing.assert_array_equal(oracle_kept.view(np.uint32), kept.view(np.uint32))
    native_words, native_kept = top_k.top_k_select(items, count, row_length=row_length)
    np.testing.assert_array_equal(uint32(native_words), words)
    np.testing.assert_array_equal(uint32(native_kept), kept.view(np.uint32))

    # Decoding: each kept item is back in its place.
    at = positions_reference.decode(words, n, count)
    np.testing.assert_array_equal(items[at].view(np.uint32), kept.view(np.uint32))
    replaced = positions.positions_replace(np.zeros_like(items), native_words, kept).numpy()
    expected = np.zeros_like(items)
    expected[at] = kept
    np.testing.assert_array_equal(replaced.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", NAMES["top_k_chunked"])
def test_top_k_chunked(name):
    golden = golden_files.read("top_k_chunked", name)
    items = golden_files.sparse_from_fields(golden)
    chunk, density = golden["chunk"], golden["density"]
    words, kept = from_hex(golden["positions"]), from_hex(golden["kept"])
    oracle_words, oracle_kept = top_k_reference.encode_chunked(items, chunk, density)
    np.testing.assert_array_equal(oracle_words, words)
    np.testing.assert_array_equal(oracle_kept.view(np.uint32), kept)
    num_kept = top_k_reference.num_kept
    rest = items.size % chunk
    native_words, native_kept = top_k_chunked.top_k_chunked_select(
        items, chunk, num_kept(density, chunk), num_kept(density, rest) if rest else 0
    )
    np.testing.assert_array_equal(uint32(native_words), words)
    np.testing.assert_array_equal(uint32(native_kept), kept)


@pytest.mark.parametrize("name", NAMES["range_float"])
def test_range_float(name):
    golden = golden_files.read("range_float", name)
    values, words = from_hex(golden["values"], np.float32), from_hex(golden["words"])
    parameters = golden["num_bits"], golden["mantissa_bits"]
    value_range = None if golden["range"] is None else from_hex(golden["range"], np.float32)

    oracle_words = range_float_reference.encode(values, *parameters, value_range)
    np.testing.assert_array_equal(oracle_words, words)
    native_words, _ = range_float.range_float_encode(values, *parameters, value_range)
    np.testing.assert_array_equal(uint32(native_words), words)

    oracle = range_float_reference.decode(words, values.size, *parameters)
    np.testing.assert_array_equal(oracle.view(np.uint32), from_hex(golden["decoded"]))
    native = range_float.range_float_decode(words[None].view(np.int32), values.size, *parameters)
    np.testing.assert_array_equal(uint32(native[0]), from_hex(golden["decoded"]))


@pytest.mark.parametrize("name", NAMES["identity"])
def test_identity(name):
    golden = golden_files.read("identity", name)
    values, words = from_hex(golden["values"], np.float32), from_hex(golden["words"])
    np.testing.assert_array_equal(identity_reference.encode(values), words)
    decoded = identity_reference.decode(words, values.size)
    np.testing.assert_array_equal(decoded.view(np.uint32), values.view(np.uint32))
    np.testing.assert_array_equal(uint32(tf.bitcast(values, tf.int32)), words)


@pytest.mark.parametrize("name", NAMES["fft"])
def test_fft_payloads(name):
    golden = golden_files.read("fft", name)
    workers, *shape = golden["shape"]
    n, count, row_length = shape[0] * shape[1], golden["count"], golden["row_length"]
    parameters = golden["num_bits"], golden["mantissa_bits"]
    payloads = np.stack([from_hex(lines) for lines in golden["payloads"]])
    total = from_hex(golden["sum"], np.float32)

    native_payloads = []
    for lines, payload in zip(golden["spectra"], payloads, strict=True):
        items = from_hex(lines, np.float32).reshape(n, 2)
        spectrum = items.view(np.complex64).reshape(shape)
        oracle = fft_reference.encode(spectrum, count, row_length, *parameters)
        np.testing.assert_array_equal(oracle, payload)
        block, kept = top_k.top_k_select(items, count, row_length=row_length)
        words, _ = range_float.range_float_encode(kept, *parameters)
        native_payloads.append(tf.concat([block, words], 0))
        np.testing.assert_array_equal(uint32(native_payloads[-1]), payload)

    oracle = fft_reference.decode_sum(payloads, tuple(shape), count, *parameters)
    np.testing.assert_array_equal(oracle.view(np.float32).reshape(-1), total)
    p = positions.num_words(n, count)
    stacked = tf.stack(native_payloads)
    values = range_float.range_float_decode(stacked[:, p:], 2 * count, *parameters)
    kept = tf.reshape(values, [workers, count, 2])
    native = positions.positions_sum(stacked[:, :p], kept, n)
    np.testing.assert_array_equal(native.numpy().reshape(-1), total)


@pytest.mark.parametrize("name", NAMES["bad"])
def test_bad_blocks_are_refused(name):
    golden = golden_files.read("bad", name)
    words, count = from_hex(golden["words"]), golden["count"]
    native_words = words[None].view(np.int32)
    if golden["block"] == "positions":
        with pytest.raises(ValueError):
            positions_reference.decode(words, golden["size"], count)
        kept = np.ones((1, count), np.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="positions"):
            positions.positions_sum(native_words, kept, golden["size"])
        values = np.zeros(golden["size"], np.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="positions"):
            positions.positions_replace(values, native_words[0], kept[0])
    else:
        parameters = golden["num_bits"], golden["mantissa_bits"]
        with pytest.raises(ValueError):
            range_float_reference.decode(words, count, *parameters)
        with pytest.raises(tf.errors.InvalidArgumentError, match="range float block"):
            range_float.range_float_decode(native_words, count, *parameters)
