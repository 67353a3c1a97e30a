# SPDX-License-Identifier: Apache-2.0
"""top_k_select against the oracle, bit for bit, and what Parseval's identity promises."""

import numpy as np
import positions_reference
import pytest
import tensorflow as tf
import top_k_reference
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import positions as positions_ops
from tf_gradcomp.ops import top_k

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)


def counts(n: int) -> list[int]:
    return sorted({k for k in (1, 2, n // 100, n * 15 // 100, n) if 1 <= k <= n})


def assert_selects_as_oracle(items: np.ndarray, k: int, row_length: int = 0) -> None:
    words, kept = top_k.top_k_select(items, k, row_length=row_length)
    expected_words, expected_kept = top_k_reference.encode(items, k, row_length)
    np.testing.assert_array_equal(words.numpy().view(np.uint32), expected_words)
    np.testing.assert_array_equal(kept.numpy().view(np.uint32), expected_kept.view(np.uint32))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_sizes(n, components, rng):
    items = sample("gauss", (n, *components), rng)
    order = np.argsort(~top_k_reference.keys(items), kind="stable")  # once for all counts
    for k in counts(n):
        words, kept = top_k.top_k_select(items, k)
        expected = np.sort(order[:k])
        block = positions_reference.encode(expected, n)
        np.testing.assert_array_equal(words.numpy().view(np.uint32), block)
        np.testing.assert_array_equal(kept.numpy(), items[expected])


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("n", [33, 1000, 131073])
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_kinds_of_values(kind, n, components, rng):
    items = sample(kind, (n, *components), rng)
    for k in {1, n // 50 + 1, n // 3}:
        assert_selects_as_oracle(items, k)


@pytest.mark.parametrize("row_length", [1, 2, 3, 4, 5, 64, 65, 4096, 4097])
def test_conjugate_pairs_count_twice(row_length, rng):
    n = 40 * (row_length // 2 + 1)
    for kind in ("gauss", "ties", "denormal", "huge", "inf_and_nan"):
        items = sample(kind, (n, 2), rng)
        for k in counts(n):
            assert_selects_as_oracle(items, k, row_length)


def test_equal_items_keep_the_lowest_indices():
    for items in (np.ones(200000, np.float32), -np.ones((200000, 2), np.float32)):
        for k in (1, 3000, 70001):
            words, _ = top_k.top_k_select(items, k)
            block = positions_reference.encode(np.arange(k), 200000)
            np.testing.assert_array_equal(words.numpy().view(np.uint32), block)


def test_one_large_item_at_each_end_and_segment_boundary():
    n = 3 * 65536 + 7
    for at in (0, 65535, 65536, 131071, 131072, n - 1):
        items = np.zeros(n, np.float32)
        items[at] = -1e-42  # a denormal: it must not be flushed to zero
        assert_selects_as_oracle(items, 1)
        assert_selects_as_oracle(np.stack([items, items], 1), 2)


def test_non_finite_items_come_first(rng):
    items = sample("huge", 5000, rng)
    items[[7, 4000, 4999]] = [np.nan, -np.inf, np.inf]
    _, kept = top_k.top_k_select(items, 3)
    np.testing.assert_array_equal(kept.numpy(), items[[7, 4000, 4999]])
    _, kept = top_k.top_k_select(items, 2)  # Inf and NaN are equal: lowest index
    np.testing.assert_array_equal(kept.numpy(), items[[7, 4000]])


@pytest.mark.parametrize("components", [(), (2,), (5,)], ids=["real", "complex", "wide"])
@pytest.mark.parametrize("kind", ["gauss", "denormal"])
def test_selects_from_the_sum_with_a_residual(components, kind, rng):
    values, residual = (sample(kind, (70001, *components), rng) for _ in range(2))
    words, kept, total = top_k.top_k_select_sum(values, residual, 900)
    np.testing.assert_array_equal(
        total.numpy().view(np.uint32), (values + residual).view(np.uint32)
    )
    expected_words, expected_kept = top_k.top_k_select(values + residual, 900)
    np.testing.assert_array_equal(words, expected_words)
    np.testing.assert_array_equal(kept, expected_kept)


def test_memory_that_something_else_needs_is_not_taken():
    variable = tf.Variable(tf.ones([5000]))

    @tf.function
    def select(values):
        return top_k.top_k_select_sum(2.0 * values, variable.read_value(), 9)[2], values + 0.0

    values = tf.range(5000.0)
    total, again = select(values)
    np.testing.assert_array_equal(total, 2 * np.arange(5000.0) + 1)
    np.testing.assert_array_equal(again, values)
    np.testing.assert_array_equal(variable, np.ones(5000))


@pytest.mark.parametrize("shape", [(4,), (5, 2), ()])
def test_a_residual_of_another_shape_is_refused(shape):
    with pytest.raises(BAD_ARGUMENT):
        top_k.top_k_select_sum(tf.zeros([5]), tf.zeros(shape), 1)


def test_graph_equals_eager(rng):
    items = sample("gauss", (4099, 2), rng)

    @tf.function(
        input_signature=[tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([], tf.int64)]
    )
    def select(values, count):
        return top_k.top_k_select(values, count)

    for k in (1, 41, 4099):
        words, kept = select(items, tf.constant(k, tf.int64))
        expected_words, expected_kept = top_k_reference.encode(items, k)
        np.testing.assert_array_equal(words.numpy().view(np.uint32), expected_words)
        np.testing.assert_array_equal(kept.numpy(), expected_kept)


@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (64, 1), (65, 1), (1000, 5), (65537, 4090), (70000, 9)]
)
def test_static_shapes_are_exact(n, k):
    assert positions_ops.num_words(n, k) == positions_reference.num_words(n, k)
    for components in ([], [2]):
        select = tf.function(lambda values, k=k: top_k.top_k_select(values, k))
        graph = select.get_concrete_function(tf.TensorSpec([n, *components], tf.float32))
        words, kept = graph.structured_outputs
        assert words.shape == [positions_reference.num_words(n, k)]
        assert kept.shape == [k, *components]


# ---- Parseval : relative squared error = dropped energy / total energy


@pytest.mark.parametrize("row_length", [64, 65, 1024])
@pytest.mark.parametrize("density", [0.01, 0.15, 0.5])
def test_fft_selection_loses_exactly_the_dropped_energy(row_length, density, rng):
    rows = 30
    signal = rng.standard_normal((rows, row_length)).cumsum(axis=1)
    spectrum = np.fft.rfft(signal, norm="ortho").astype(np.complex64)
    items = spectrum.view(np.float32).reshape(-1, 2)
    n = items.shape[0]
    k = int(np.ceil(density * n))
    words, _ = top_k.top_k_select(items, k, row_length=row_length)
    kept = positions_reference.decode(words.numpy().view(np.uint32), n, k)

    sparse = np.zeros(n, np.complex128)
    sparse[kept] = spectrum.reshape(-1)[kept]
    exact = np.fft.irfft(spectrum.astype(np.complex128), row_length, norm="ortho")
    approximate = np.fft.irfft(sparse.reshape(rows, -1), row_length, norm="ortho")
    loss = np.sum((exact - approximate) ** 2)

    bins = np.arange(n) % (row_length // 2 + 1)
    weight = np.where((bins == 0) | (2 * bins == row_length), 1.0, 2.0)
    energy = weight * np.abs(spectrum.reshape(-1).astype(np.complex128)) ** 2
    total = energy.sum()
    dropped = total - energy[kept].sum()
    # binary64 transform and sums, each relative to the total: a few last places per stage.
    rounding = 64 * np.finfo(np.float64).eps * total
    assert abs(loss - dropped) <= rounding
    assert abs(np.sum(exact**2) - total) <= rounding

    # No other k bins hold more energy, up to the 20 fraction bits of the key; and dropping a share
    # theta of the bins, the smallest ones, costs at most that share of the energy.
    best = np.sort(energy)[::-1][:k].sum()
    assert energy[kept].sum() >= best * (1 - 2.0**-20) - rounding
    assert dropped <= (1 - k / n) * total * (1 + 2.0**-20) + rounding


# ---- bad arguments


@pytest.mark.parametrize(
    ("shape", "count", "row_length", "named"),
    [
        ((5,), 0, 0, "count"),
        ((5,), -1, 0, "count"),
        ((5,), 6, 0, "count"),
        ((5, 2), 6, 0, "count"),
        ((0,), 1, 0, "count"),
        ((), 1, 0, "values"),
        ((5, 1), 1, 0, "values"),
        ((6, 65537), 1, 0, "values"),
        ((3, 2, 2), 1, 0, "values"),
        ((6,), 1, 4, "row_length"),
        ((7, 2), 1, 4, "row_length"),
        ((6, 2), 1, -1, "row_length"),
    ],
)
def test_bad_arguments_are_named(shape, count, row_length, named):
    values = np.zeros(shape, np.float32)
    with pytest.raises(BAD_ARGUMENT, match=named):
        top_k.top_k_select(values, count, row_length=row_length)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32), tf.TensorSpec([], tf.int64)])
    def select(values, count):
        return top_k.top_k_select(values, count, row_length=row_length)

    with pytest.raises(BAD_ARGUMENT, match=named):
        select(values, tf.constant(count, tf.int64))
