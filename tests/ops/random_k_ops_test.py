# SPDX-License-Identifier: Apache-2.0
"""Random-k against the oracle, bit for bit, and what its randomness promises."""

import numpy as np
import positions_reference
import pytest
import random_k_reference
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import positions, random_k

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
KEY = (1, 2, 3, 4)


def counts(n: int) -> list[int]:
    wanted = (1, 2, 3, n // 100, n // 16, n * 15 // 100, n // 2, n * 2 // 3, n - 1, n)
    return sorted({k for k in wanted if 1 <= k <= n})


def draw(key: tuple[int, ...], n: int, k: int) -> np.ndarray:
    """Positions that the op draws, by the oracle's decoder, which refuses a bad block."""
    words = random_k.random_k_positions(np.array(key, np.int64).astype(np.int32), n, k)
    return positions_reference.decode(words.numpy().view(np.uint32), n, k)


@pytest.mark.parametrize("n", [*SIZES, 2**18, 3 * 65536 + 1])
def test_sizes(n):
    for k in counts(n):
        words = random_k.random_k_positions(KEY, n, k).numpy().view(np.uint32)
        np.testing.assert_array_equal(words, random_k_reference.encode(KEY, n, k))


@given(
    n=st.integers(1, 300_000),
    share=st.floats(0, 1),
    key=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 4),
)
def test_any_size_and_key(n, share, key):
    k = max(1, round(share * n))
    words = random_k.random_k_positions(key, n, k).numpy().view(np.uint32)
    np.testing.assert_array_equal(words, random_k_reference.encode(key, n, k))
    # The decoder has checked that positions ascend; one lies in each stratum.
    edges = random_k_reference.begins(n, k)
    drawn = positions_reference.decode(words, n, k)
    assert (drawn >= edges[:-1]).all() and (drawn < edges[1:]).all()


@pytest.mark.parametrize("n", [2**26, 2**31 - 1, 2**32 - 1])
def test_large_sizes(n):
    for k in (1, 7, 100_003):
        drawn = random_k_reference.draw(KEY, n, k)
        words = random_k.random_k_positions(KEY, n, k).numpy().view(np.uint32)
        np.testing.assert_array_equal(words, positions_reference.encode(drawn, n))


def test_every_item_is_kept_when_k_is_n():
    for n in (1, 31, 65536, 65537):
        np.testing.assert_array_equal(draw(KEY, n, n), np.arange(n))


def test_each_part_of_the_key_matters():
    n, k = 100_000, 100
    first = draw(KEY, n, k)
    np.testing.assert_array_equal(first, draw(KEY, n, k))
    for part in range(4):
        other = list(KEY)
        other[part] += 1
        # Of 100 strata of 1000 items, more than 5 equal draws have a chance of about 1e-9.
        assert (draw(tuple(other), n, k) == first).sum() <= 5


@pytest.mark.parametrize(("n", "k"), [(12, 4), (10, 4), (100, 7), (64, 63), (50, 1)])
def test_inclusion_probabilities(n, k):
    """Item i of a stratum of m items is drawn with probability 1/m: chi-square by stratum."""
    trials = 4000
    drawn = np.stack([draw((7, 0, 0, step), n, k) for step in range(trials)])
    edges = random_k_reference.begins(n, k)
    found = np.bincount(drawn.reshape(-1), minlength=n)
    sizes = np.diff(edges)
    expected = np.repeat(trials / sizes, sizes)
    chi_square = ((found - expected) ** 2 / expected).sum()
    degrees = n - k
    # The statistic has mean `degrees` and variance 2 * degrees (a normal bound at five sigma).
    assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize(("n", "k"), [(4096, 64), (4099, 37)])
def test_scaled_is_unbiased_with_the_variance_of_random_k(n, k, rng):
    """E x' = x, and E|x' - x|^2 = sum_i (m_i - 1) x_i^2: (n/k - 1) |x|^2 for equal strata."""
    trials = 3000
    x = sample("laplace", n, rng)
    total, errors = np.zeros(n), np.zeros(trials)
    for step in range(trials):
        key = np.int32([5, 6, 7, step])
        words = random_k.random_k_positions(key, n, k)
        kept = random_k.random_k_scale(positions.positions_gather(x, words, k), n)
        decoded = positions.positions_sum(words[None], kept[None], n).numpy()
        total += decoded
        errors[step] = ((decoded.astype(np.float64) - x) ** 2).sum()
    sizes = np.diff(random_k_reference.begins(n, k))
    variance = (np.repeat(sizes, sizes) - 1) * x.astype(np.float64) ** 2
    # The squared deviations of the means add up to sum(variance) / trials, give or take.
    deviation = ((total / trials - x) ** 2).sum() * trials / variance.sum()
    assert 0.8 < deviation < 1.2
    assert abs(errors.mean() - variance.sum()) < 5 * errors.std() / np.sqrt(trials)
    if n % k == 0:
        assert np.isclose(variance.sum(), (n / k - 1) * (x.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_scale_of_all_kinds_of_values(kind, components, rng):
    for k, n in [(1, 1), (1, 17), (1000, 1000), (1000, 1001), (4099, 3 * 10**6), (7, 2**32 - 1)]:
        kept = sample(kind, (k, *components), rng)
        scaled = random_k.random_k_scale(kept, n).numpy()
        expected = random_k_reference.scale(kept, n)
        np.testing.assert_array_equal(np.isnan(scaled), np.isnan(expected))
        finite = ~np.isnan(expected)
        np.testing.assert_array_equal(
            scaled[finite].view(np.uint32), expected[finite].view(np.uint32)
        )


def test_scale_leaves_its_input_alone(rng):
    kept = tf.constant(sample("gauss", 1000, rng))
    before = kept.numpy().copy()
    random_k.random_k_scale(kept, 5000)
    np.testing.assert_array_equal(kept.numpy(), before)


def test_shapes_are_static():
    graph = tf.function(lambda key: random_k.random_k_positions(key, 70000, 5))
    graph = graph.get_concrete_function(tf.TensorSpec([4], tf.int32))
    assert graph.structured_outputs.shape == [positions.num_words(70000, 5)]
    graph = tf.function(random_k.random_k_scale).get_concrete_function(
        tf.TensorSpec([10, 2], tf.float32), 100
    )
    assert graph.structured_outputs.shape == [10, 2]


@pytest.mark.parametrize(
    ("key", "size", "count", "named"),
    [
        ([1, 2, 3], 10, 1, "4"),
        ([[1, 2, 3, 4]], 10, 1, "key|rank"),
        (KEY, 0, 1, "size"),
        (KEY, 2**32, 1, "size"),
        (KEY, 10, 0, "count"),
        (KEY, 10, 11, "count"),
        (KEY, [10], 1, "rank"),
        (KEY, 10, [1], "rank"),
    ],
)
def test_bad_arguments_are_named(key, size, count, named):
    with pytest.raises(BAD_ARGUMENT, match=named):
        random_k.random_k_positions(np.array(key, np.int32), size, count)


@pytest.mark.parametrize(
    ("kept_shape", "size", "named"),
    [
        ((3,), 2, "count"),
        ((0,), 2, "count"),
        ((3,), 0, "size"),
        ((3,), 2**32, "size"),
        ((3, 1), 10, "kept"),
    ],
)
def test_bad_arguments_of_scale_are_named(kept_shape, size, named):
    with pytest.raises(BAD_ARGUMENT, match=f"{named}|2"):
        random_k.random_k_scale(np.zeros(kept_shape, np.float32), size)
