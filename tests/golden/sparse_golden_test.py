# SPDX-License-Identifier: Apache-2.0
"""Oracles and native ops of random-k, thresholds and counted blocks against their golden vectors.

The lists below are the inventory: a missing file fails, and so does one that is not listed.
"""

import golden_files
import numpy as np
import positions_reference
import pytest
import random_k_reference
import tensorflow as tf
import threshold_reference
from golden_files import from_hex

from tf_gradcomp.ops import positions, random_k, threshold

NAMES = {
    "random_k": ["worked_example", "one_item", "all_items", "one_of_many", "bitmap_unequal_strata"]
    + ["elias_fano_odd_count", "elias_fano_far_apart", "other_keys"],
    "threshold": ["worked_example", "nothing", "exactly_full", "too_many", "denormal", "non_finite"]
    + ["infinite_threshold", "elias_fano_even_count", "elias_fano_odd_count", "complex"]
    + ["complex_rows_even", "complex_rows_odd"],
}
BAD = ["bitmap_counts_more", "bitmap_counts_less", "bitmap_over_capacity", "bitmap_without_count"]
BAD += ["elias_fano_counts_more", "elias_fano_counts_less", "elias_fano_count_of_ones"]
BAD += ["elias_fano_over_capacity", "elias_fano_unused_low_bit", "elias_fano_padding"]
BAD += ["elias_fano_beyond_buckets"]


def uint32(tensor: tf.Tensor) -> np.ndarray:
    return tensor.numpy().view(np.uint32)


@pytest.mark.parametrize("part", NAMES)
def test_sparse_inventory_is_complete(part):
    found = {path.stem for path in (golden_files.FOLDER / part).iterdir()}
    bad = {f"bad_{name}" for name in BAD} if part == "threshold" else set()
    assert found == set(NAMES[part]) | bad


@pytest.mark.parametrize("name", NAMES["random_k"])
def test_random_k(name):
    golden = golden_files.read("random_k", name)
    key, size, count = golden["key"], golden["size"], golden["count"]
    words = from_hex(golden["positions"])
    np.testing.assert_array_equal(random_k_reference.encode(key, size, count), words)
    np.testing.assert_array_equal(uint32(random_k.random_k_positions(key, size, count)), words)


@pytest.mark.parametrize("name", NAMES["threshold"])
def test_threshold(name):
    golden = golden_files.read("threshold", name)
    items = golden_files.sparse_from_fields(golden)
    (t,) = from_hex(golden["threshold"], np.float32)
    capacity, row_length = golden["capacity"], golden["row_length"]
    words, kept = from_hex(golden["positions"]), from_hex(golden["kept"], np.float32)
    kept = kept.reshape(capacity, *items.shape[1:])

    oracle_words, oracle_kept = threshold_reference.encode(items, t, capacity, row_length)
    np.testing.assert_array_equal(oracle_words, words)
    np.testing.assert_array_equal(oracle_kept.view(np.uint32), kept.view(np.uint32))
    native_words, native_kept = threshold.threshold_select(items, t, capacity, row_length)
    np.testing.assert_array_equal(uint32(native_words), words)
    np.testing.assert_array_equal(uint32(native_kept), kept.view(np.uint32))

    # Decoding: each kept item is back in its place.
    at = positions_reference.decode(words, items.shape[0], capacity, counted=True)
    expected = np.zeros_like(items)
    expected[at] = kept[: at.size]
    zeros = np.zeros_like(items)
    replaced = positions.positions_replace(zeros, native_words, kept, counted=True)
    np.testing.assert_array_equal(uint32(replaced), expected.view(np.uint32))


@pytest.mark.parametrize("name", BAD)
def test_bad_counted_blocks_are_refused(name):
    golden = golden_files.read("threshold", f"bad_{name}")
    words, size, capacity = from_hex(golden["words"]), golden["size"], golden["capacity"]
    with pytest.raises(ValueError):
        positions_reference.decode(words, size, capacity, counted=True)
    kept, values = np.ones((1, capacity), np.float32), np.zeros(size, np.float32)
    native_words = words[None].view(np.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions"):
        positions.positions_sum(native_words, kept, size, counted=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions"):
        positions.positions_replace(values, native_words[0], kept[0], counted=True)
