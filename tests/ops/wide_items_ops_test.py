# SPDX-License-Identifier: Apache-2.0
"""The ops on items, for wide ones (more than two components): against the oracles, bit for bit."""

import numpy as np
import positions_reference
import pytest
import random_k_reference
import tensorflow as tf
import threshold_reference
import top_k_reference
from sample_values import KINDS, NON_FINITE_KINDS, near_one, sample

from tf_gradcomp.ops import magnitude_moments, placement, positions, random_k, threshold, top_k

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
KEY = (1, 2, 3, 4)
# Items and their components; the last are enough to be sampled.
SHAPES = [(1, 3), (2, 65536), (33, 8), (65, 9), (300, 256), (70_001, 5)]


def bits(tensor: tf.Tensor) -> np.ndarray:
    return np.asarray(tensor).view(np.uint32)


def counts(n: int) -> set[int]:
    return {1, n // 50 + 1, n // 3 + 1, n}


def assert_selects_as_oracles(items: np.ndarray) -> None:
    n = items.shape[0]
    for k in counts(n):
        words, kept = top_k.top_k_select(items, k)
        expected_words, expected_kept = top_k_reference.encode(items, k)
        np.testing.assert_array_equal(bits(words), expected_words)
        np.testing.assert_array_equal(bits(kept), bits(expected_kept))
    norms = threshold_reference.magnitudes(items)
    for t in (0.0, np.nanmedian(np.where(np.isfinite(norms), norms, np.nan)), np.inf):
        t = np.float32(min(t, np.finfo(np.float32).max) if np.isfinite(t) else t)
        words, kept = threshold.threshold_select(items, t, n // 3 + 1)
        expected_words, expected_kept = threshold_reference.encode(items, t, n // 3 + 1)
        np.testing.assert_array_equal(bits(words), expected_words)
        np.testing.assert_array_equal(bits(kept), bits(expected_kept))


@pytest.mark.parametrize("shape", SHAPES)
def test_selections(shape, rng):
    assert_selects_as_oracles(sample("gauss", shape, rng))


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("components", [3, 40])
def test_selections_of_kinds_of_values(kind, components, rng):
    assert_selects_as_oracles(sample(kind, (200, components), rng))


def test_the_order_of_the_sum_decides():
    """Squares that reach 1 only if they are added in the order of FORMAT.md."""
    small = [2.0**-28] * 4  # squares that are lost in a sum close to 1, unless 16 come at once
    own_lane = near_one({1: small * 4})
    last_fold = near_one({1: small, 3: small, 5: small, 7: small})
    one_by_one = near_one({0: small * 4})
    each_too_few = near_one({4: small, 2: small, 1: small * 2})
    items = np.stack([own_lane, last_fold, one_by_one, each_too_few])
    words, _ = threshold.threshold_select(items, 1.0, 4)
    assert words.numpy().tolist() == [2, 0b0011]
    assert_selects_as_oracles(items)

    # The last components, fewer than 8, go on in their partial sums: here to numbers 1 and 3.
    tail = np.float32([0, 2.0**-27, 0, 2.0**-27])
    item = np.concatenate([near_one({1: small * 2}), tail])
    words, _ = threshold.threshold_select(item[np.newaxis], 1.0, 1)
    assert words.numpy()[0] == 1
    assert_selects_as_oracles(item[np.newaxis])


def test_sampled_thresholds(rng):
    for shape in SHAPES:
        items = sample("gauss", shape, rng)
        n = shape[0]
        for k, num_samples in {(1, 1), (n // 2 + 1, n // 3 + 1), (n, n)}:
            expected = threshold_reference.sampled_key(items, KEY, k, num_samples)
            t = float(threshold.sampled_threshold(items, KEY, k, num_samples))
            assert threshold_reference.threshold_key(t, shape[1]) <= expected
            after = np.nextafter(np.float32(t), np.float32(np.inf))
            assert threshold_reference.threshold_key(after, shape[1]) > expected


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_positions(shape, counted, rng):
    n, components = shape
    for k in counts(n):
        found = [k, max(1, k // 2) if counted else k]
        chosen = [np.sort(rng.choice(n, f, replace=False)) for f in found]
        capacity = k if counted else None
        blocks = np.stack([positions_reference.encode(c, n, capacity) for c in chosen])
        words = blocks.view(np.int32)
        kept = sample("gauss", (2, k, components), rng)
        if counted:
            kept[1, found[1] :] = np.nan  # beyond the count: must not be seen
        total = positions.positions_sum(words, kept, n, counted=counted)
        expected = positions_reference.decode_sum(blocks, kept, n, counted)
        np.testing.assert_array_equal(bits(total), bits(expected))
        values = sample("wide", shape, rng)
        replaced = positions.positions_replace(values, words[1], kept[1], counted=counted)
        expected = positions_reference.replace(values, blocks[1], kept[1], counted)
        np.testing.assert_array_equal(bits(replaced), bits(expected))
        if not counted:
            gathered = positions.positions_gather(values, words[0], k)
            np.testing.assert_array_equal(bits(gathered), bits(values[chosen[0]]))


def test_sum_starts_from_plus_zero_and_is_in_worker_order(rng):
    n, k, components = 40, 30, 20
    chosen = [np.sort(rng.choice(n, k, replace=False)) for _ in range(4)]
    blocks = np.stack([positions_reference.encode(c, n) for c in chosen])
    kept = sample("wide", (4, k, components), rng)
    kept[:, :5] = -0.0
    total = positions.positions_sum(blocks.view(np.int32), kept, n)
    expected = positions_reference.decode_sum(blocks, kept, n)
    np.testing.assert_array_equal(np.isnan(total), np.isnan(expected))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(bits(total)[number], bits(expected)[number])


@pytest.mark.parametrize("components", [3, 256])
def test_hostile_blocks_are_refused(components, rng):
    for n, k in [(100, 20), (70_000, 5)]:
        words = rng.integers(0, 2**32, positions.num_words(n, k), np.uint32).view(np.int32)
        kept, values = np.ones((k, components), np.float32), np.zeros((n, components), np.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="positions block of worker 0"):
            positions.positions_replace(values, words, kept)
        with pytest.raises(tf.errors.InvalidArgumentError, match="positions block of worker 0"):
            positions.positions_gather(values, words, k)
        right = positions_reference.encode(np.arange(k), n).view(np.int32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="positions block of worker 1"):
            positions.positions_sum(np.stack([right, words]), np.stack([kept, kept]), n)


def test_scale(rng):
    kept = sample("gauss", (37, 50), rng)
    scaled = random_k.random_k_scale(kept, 1000)
    np.testing.assert_array_equal(bits(scaled), bits(random_k_reference.scale(kept, 1000)))


def test_moments(rng):
    items = sample("laplace", (2000, 30), rng)
    moments = tf.stack(magnitude_moments.magnitude_moments(items, 1.0))
    # Sums of 2000 terms of 30 squares each, in binary64.
    np.testing.assert_allclose(moments, threshold_reference.moments(items, 1.0), rtol=1e-12)


def test_shapes_are_static():
    values = tf.TensorSpec([1000, 12], tf.float32)
    graph = tf.function(lambda v: top_k.top_k_select(v, 7)).get_concrete_function(values)
    assert graph.structured_outputs[1].shape == [7, 12]
    graph = tf.function(lambda v: threshold.threshold_select(v, 1.0, 7)).get_concrete_function(
        values
    )
    assert graph.structured_outputs[1].shape == [7, 12]
    graph = tf.function(lambda w, k: positions.positions_sum(w, k, 1000)).get_concrete_function(
        tf.TensorSpec([3, None], tf.int32), tf.TensorSpec([3, None, 12], tf.float32)
    )
    assert graph.structured_outputs.shape == [1000, 12]


def test_bad_arguments_are_named():
    words = np.zeros(4, np.int32)
    for kept_shape in ((20, 4), (20, 2), (20,)):
        with pytest.raises(BAD_ARGUMENT, match="kept|rank|equal"):
            positions.positions_replace(
                np.zeros((100, 3), np.float32), words, np.zeros(kept_shape, np.float32)
            )
    for components in (0, 1, 65537):
        with pytest.raises(BAD_ARGUMENT, match=r"values .* 2\.\.65536|at least 2"):
            top_k.top_k_select(np.zeros((2, components), np.float32), 1)
    with pytest.raises(BAD_ARGUMENT, match="row_length"):
        top_k.top_k_select(np.zeros((6, 3), np.float32), 1, row_length=4)
    # No items, but a size that no memory holds.
    with pytest.raises(BAD_ARGUMENT, match="kept"):
        positions.positions_sum(
            np.zeros((1, 4), np.int32), np.zeros((1, 0, 2**40), np.float32), 128
        )


@pytest.mark.parametrize(
    ("shape", "leading", "counted", "on_cpu"),
    [
        ([10], 1, False, False),
        ([10, 2], 1, False, False),
        ([10, None], 1, False, False),
        (None, 1, False, False),
        ([10, 3], 1, False, True),
        ([4, 10], 2, False, False),
        ([4, 10, 256], 2, False, True),
        ([10], 1, True, True),
    ],
)
def test_what_has_no_gpu_kernel_is_placed_on_the_cpu(shape, leading, counted, on_cpu):
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)])
    def double(items):
        with tf.device("GPU:0"), placement.for_items(items, leading, counted):
            return tf.add(items, items, name="doubled")

    graph = double.get_concrete_function().graph
    device = graph.get_operation_by_name("doubled").device
    assert ("CPU" in device) == on_cpu
