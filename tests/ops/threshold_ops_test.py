# SPDX-License-Identifier: Apache-2.0
"""Selection by threshold and sampled thresholds against the oracle, bit for bit."""

import numpy as np
import positions_reference
import pytest
import tensorflow as tf
import threshold_reference
import top_k_reference
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import positions, random_k, threshold, top_k

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
KEY = (1, 2, 3, 4)


def thresholds(items: np.ndarray, row_length: int = 0) -> list[float]:
    """Thresholds that all, most, few, one or no item reaches, and items' own magnitudes."""
    with np.errstate(over="ignore"):
        y = threshold_reference.magnitudes(items, row_length).astype(np.float32)
    y = np.sort(y[np.isfinite(y)]) if np.isfinite(y).any() else np.float32([1])
    picked = y[[0, y.size // 3, y.size * 9 // 10, y.size * 99 // 100, -1]]
    return [0.0, 1e-45, *picked.tolist(), np.finfo(np.float32).max, np.inf]


def assert_selects_as_oracle(
    items: np.ndarray, t: float, capacity: int, row_length: int = 0
) -> int:
    words, kept = threshold.threshold_select(items, np.float32(t), capacity, row_length=row_length)
    expected_words, expected_kept = threshold_reference.encode(items, t, capacity, row_length)
    np.testing.assert_array_equal(words.numpy().view(np.uint32), expected_words)
    np.testing.assert_array_equal(kept.numpy().view(np.uint32), expected_kept.view(np.uint32))
    return int(expected_words[0])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_sizes(n, components, rng):
    items = sample("gauss", (n, *components), rng)
    for t in (0.0, 0.1, 1.0, 2.5, 10.0):
        for capacity in sorted({1, max(1, n // 100), max(1, n // 7), n}):
            assert_selects_as_oracle(items, t, capacity)


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("n", [33, 1000, 131073])
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_kinds_of_values(kind, n, components, rng):
    items = sample(kind, (n, *components), rng)
    for t in thresholds(items):
        for capacity in (n // 50 + 1, n):
            assert_selects_as_oracle(items, t, capacity)


@pytest.mark.parametrize("row_length", [1, 2, 3, 4, 5, 64, 65, 4096, 4097])
def test_conjugate_pairs_count_twice(row_length, rng):
    n = 40 * (row_length // 2 + 1)
    for kind in ("gauss", "ties", "denormal", "huge", "inf_and_nan"):
        items = sample(kind, (n, 2), rng)
        for t in thresholds(items, row_length):
            assert_selects_as_oracle(items, t, n // 3 + 1, row_length)


@given(
    items=st_numpy.arrays(
        np.float32, st.integers(1, 200), elements=st.floats(width=32, allow_subnormal=True)
    ),
    t=st.floats(0, width=32),
    share=st.floats(0, 1),
)
def test_any_values(items, t, share):
    assert_selects_as_oracle(items, t, max(1, round(share * items.size)))


def test_counts_around_the_capacity(rng):
    """One item fewer than fit, just as many, and one more: then the smallest goes."""
    items = sample("gauss", 20000, rng)
    order = np.argsort(-np.abs(items), kind="stable")
    for reached in (199, 200, 201, 202):
        t = abs(items[order[reached - 1]])
        assert assert_selects_as_oracle(items, t, 200) == min(reached, 200)


def test_overflow_keeps_the_largest_and_the_first_of_equals():
    items = np.ones(100_000, np.float32)
    items[-3:] = 2
    words, kept = threshold.threshold_select(items, 0.5, 10)
    at = positions_reference.decode(words.numpy().view(np.uint32), items.size, 10, counted=True)
    np.testing.assert_array_equal(at, [*range(7), 99_997, 99_998, 99_999])
    np.testing.assert_array_equal(kept, [1] * 7 + [2] * 3)


@pytest.mark.parametrize("capacity", [5000, 60])  # with room for all that reach it, and without
@pytest.mark.parametrize("components", [(), (2,), (5,)], ids=["real", "complex", "wide"])
def test_selects_from_the_sum_with_a_residual(components, capacity, rng):
    values, residual = (sample("gauss", (20001, *components), rng) for _ in range(2))
    words, kept, total = threshold.threshold_select_sum(values, residual, 4.0, capacity)
    np.testing.assert_array_equal(total, values + residual)
    expected_words, expected_kept = threshold.threshold_select(values + residual, 4.0, capacity)
    assert 0 < words[0] <= capacity
    np.testing.assert_array_equal(words, expected_words)
    np.testing.assert_array_equal(kept, expected_kept)


def test_memory_that_something_else_needs_is_not_taken():
    variable = tf.Variable(tf.ones([5000]))

    @tf.function
    def select(values):
        doubled = 2.0 * values
        total = threshold.threshold_select_sum(doubled, variable.read_value(), 9.0, 9)[2]
        return total, doubled + 0.0

    total, doubled = select(tf.range(5000.0))
    np.testing.assert_array_equal(total, 2 * np.arange(5000.0) + 1)
    np.testing.assert_array_equal(doubled, 2 * np.arange(5000.0))
    np.testing.assert_array_equal(variable, np.ones(5000))


@pytest.mark.parametrize("shape", [(4,), (5, 2), ()])
def test_a_residual_of_another_shape_is_refused(shape):
    with pytest.raises(BAD_ARGUMENT):
        threshold.threshold_select_sum(tf.zeros([5]), tf.zeros(shape), 1.0, 1)


def test_nothing_reaches_it(rng):
    for components in ((), (2,)):
        items = sample("gauss", (70_000, *components), rng)
        words, kept = threshold.threshold_select(items, 100.0, 700)
        assert not words.numpy().any() and not kept.numpy().any()
        total = positions.positions_sum([words, words], [kept, kept], 70_000, counted=True)
        np.testing.assert_array_equal(total, np.zeros_like(items))
        replaced = positions.positions_replace(items, words, kept, counted=True)
        np.testing.assert_array_equal(replaced, items)


def test_selected_and_residual_add_up(rng):
    items = sample("laplace", 300_000, rng)
    words, kept = threshold.threshold_select(items, 4.0, 9000)
    residual = positions.positions_replace(items, words, tf.zeros_like(kept), counted=True)
    total = positions.positions_sum(words[None], kept[None], items.size, counted=True)
    np.testing.assert_array_equal(total.numpy() + residual.numpy(), items)
    assert np.abs(residual).max() < 4.0


def test_the_kth_magnitude_selects_as_top_k(rng):
    items = sample("gauss", 50_000, rng)
    top_words, top_kept = top_k.top_k_select(items, 500)
    words, kept = threshold.threshold_select(items, np.abs(top_kept).min(), 500)
    np.testing.assert_array_equal(words[1:], top_words)
    np.testing.assert_array_equal(kept, top_kept)


@pytest.mark.parametrize("kind", [*KINDS, *NON_FINITE_KINDS])
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_sampled_threshold_is_the_oracles(kind, components, rng):
    for n in (1, 2, 33, 70_000):
        items = sample(kind, (n, *components), rng)
        for k, num_samples in {(1, 1), (n, n), (n // 2 + 1, n // 3 + 1), (n // 50 + 1, n)}:
            expected = threshold_reference.sampled_key(items, KEY, k, num_samples)
            t = float(threshold.sampled_threshold(items, KEY, k, num_samples))
            if not components:
                assert np.float32(t).view(np.uint32) == expected
                continue
            # The largest float whose key is not above: the next one's is, if there is one.
            assert threshold_reference.threshold_key(t, 2) <= expected
            if t < np.finfo(np.float32).max:
                after = np.nextafter(np.float32(t), np.float32(np.inf))
                assert threshold_reference.threshold_key(after, 2) > expected
            # The item it was taken from reaches it.
            keys = top_k_reference.keys(items)
            assert (keys[keys >= threshold_reference.threshold_key(t, 2)] == expected).any()


def test_sampled_threshold_of_everything_is_exact(rng):
    items = sample("gauss", 10_000, rng)
    for k in (1, 100, 10_000):
        t = threshold.sampled_threshold(items, KEY, k, items.size)
        assert t == np.sort(np.abs(items))[-k]


def test_sampled_threshold_selects_about_k(rng):
    n, k, num_samples = 1_000_000, 10_000, 100_000
    items = sample("laplace", n, rng)
    found = []
    for step in range(50):
        t = threshold.sampled_threshold(items, (0, 0, 0, step), k, num_samples)
        found.append((np.abs(items) >= t.numpy()).sum())
    # The sample's rank is 1000, so k is met with a relative deviation of 1 / sqrt(1000) at most.
    deviation = 1 / np.sqrt(k * num_samples / n)
    assert abs(np.mean(found) / k - 1) < 5 * deviation / np.sqrt(50)
    assert np.std(found) / k < 2 * deviation


def test_sampled_threshold_weighs_bins(rng):
    items = sample("gauss", (33 * 40, 2), rng)
    for k, num_samples in [(1, 33 * 40), (33, 500), (1000, 1000)]:
        expected = threshold_reference.sampled_key(items, KEY, k, num_samples, row_length=64)
        t = float(threshold.sampled_threshold(items, KEY, k, num_samples, row_length=64))
        assert threshold_reference.threshold_key(t, 2) == expected


def test_shapes_are_static():
    for components in ([], [2]):
        graph = tf.function(lambda x: threshold.threshold_select(x, 1.0, 7)).get_concrete_function(
            tf.TensorSpec([1000, *components], tf.float32)
        )
        words, kept = graph.structured_outputs
        assert words.shape == [positions.num_words(1000, 7, counted=True)]
        assert kept.shape == [7, *components]


def test_the_key_draws_as_random_k_does(rng):
    """The smallest of a sample is the smallest of random-k's items."""
    items = sample("gauss", 5000, rng)
    words = random_k.random_k_positions(KEY, 5000, 50)
    kept = positions.positions_gather(items, words, 50)
    assert threshold.sampled_threshold(items, KEY, 5000, 50) == np.abs(kept).min()


@pytest.mark.parametrize(
    ("shape", "t", "capacity", "row_length", "named"),
    [
        ((10,), -1.0, 5, 0, "threshold"),
        ((10,), np.nan, 5, 0, "threshold"),
        ((10,), [1.0], 5, 0, "rank"),
        ((10,), 1.0, 0, 0, "capacity"),
        ((10,), 1.0, 11, 0, "capacity"),
        ((0,), 1.0, 1, 0, "capacity"),
        ((10,), 1.0, 5, 8, "row_length"),
        ((11, 2), 1.0, 5, 8, "row_length"),
        ((10, 1), 1.0, 5, 0, "values"),
        ((), 1.0, 1, 0, "values|rank"),
    ],
)
def test_bad_arguments_are_named(shape, t, capacity, row_length, named):
    with pytest.raises(BAD_ARGUMENT, match=named):
        threshold.threshold_select(np.zeros(shape, np.float32), t, capacity, row_length)


@pytest.mark.parametrize(
    ("key", "count", "num_samples", "named"),
    [
        ([1, 2, 3], 1, 1, "4"),
        (KEY, 0, 1, "count"),
        (KEY, 11, 1, "count"),
        (KEY, 1, 0, "num_samples"),
        (KEY, 1, 11, "num_samples"),
    ],
)
def test_bad_arguments_of_sampled_threshold_are_named(key, count, num_samples, named):
    items = np.zeros(10, np.float32)
    with pytest.raises(BAD_ARGUMENT, match=named):
        threshold.sampled_threshold(items, np.int32(key), count, num_samples)
