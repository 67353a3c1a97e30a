# SPDX-License-Identifier: Apache-2.0
"""The row-sparse exchange against a dense sum in worker order, without a network."""

import loopback
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.transports.row_sparse import RowSparse

SHAPES = [(40, 3), (1000, 2, 4), (7,)]


def random_slices(rng, shape, count, dtype=tf.float32, index_dtype=tf.int32):
    """Rows drawn with replacement, so that there are duplicates."""
    values = tf.constant(rng.normal(size=(count, *shape[1:])), dtype)
    indices = tf.constant(rng.integers(0, shape[0], count), index_dtype)
    return tf.IndexedSlices(values, indices, tf.constant(shape))


def exchange(slices, shapes):
    """Returns, per worker, what it gets, the bytes it sent, and its collectives.

    Args:
      slices: per worker, one ``tf.IndexedSlices`` for each table.
      shapes: of the tables.
    """

    def work(collectives):
        transport = RowSparse(collectives, shapes)
        sums, payload_bytes = transport.sum(slices[collectives.worker_index])
        return sums, int(payload_bytes), collectives

    return loopback.run_workers(len(slices), work)


def sum_rows(slices):
    """Rows touched, and their sums: duplicates in float64 where float32 is exact, then workers."""
    wide = np.float64 if slices[0].values.dtype == tf.float64 else np.float32
    total = {}
    for part in slices:
        own = {}
        for index, row in zip(part.indices.numpy(), part.values.numpy(), strict=True):
            own[index] = own.get(index, 0) + row.astype(wide)
        for index, row in own.items():
            rounded = row.astype(part.values.dtype.as_numpy_dtype).astype(wide)
            total[index] = total.get(index, 0) + rounded
    touched = sorted(total)
    rows = [total[index] for index in touched]
    return np.array(touched), np.array(rows).reshape(len(rows), *slices[0].values.shape[1:])


def check(outcomes, slices):
    """All workers have the same bits, which are the sum."""
    for table in range(len(slices[0])):
        touched, rows = sum_rows([parts[table] for parts in slices])
        given = slices[0][table]
        first = outcomes[0][0][table].values.numpy()
        for sums, _, _ in outcomes:
            total = sums[table]
            assert total.indices.dtype == given.indices.dtype
            assert total.values.dtype == given.values.dtype
            assert total.dense_shape is given.dense_shape or (
                total.dense_shape.numpy().tolist() == given.dense_shape.numpy().tolist()
            )
            np.testing.assert_array_equal(total.indices, touched)
            assert total.values.numpy().tobytes() == first.tobytes()
        expected = rows.astype(given.values.dtype.as_numpy_dtype)
        np.testing.assert_array_equal(first, expected, strict=True)


@pytest.mark.parametrize("index_dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_sum_of_rows_is_that_of_the_workers_in_order(rng, num_workers, dtype, index_dtype):
    counts = [(30, 25, 0), (9, 60, 4), (0, 0, 5)]
    slices = [
        [random_slices(rng, s, n, dtype, index_dtype) for s, n in zip(SHAPES, row, strict=True)]
        for row in counts[:num_workers]
    ]
    check(exchange(slices, SHAPES), slices)


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("empty", ["one worker", "all workers"])
def test_workers_without_rows(rng, num_workers, empty):
    slices = [
        [random_slices(rng, s, 0 if empty == "all workers" or w == 0 else 5) for s in SHAPES]
        for w in range(num_workers)
    ]
    check(exchange(slices, SHAPES), slices)


def test_a_step_costs_three_collectives_and_what_the_format_says(rng):
    shape, size = (10_000, 16), 16
    first = np.repeat([3, 9, 4000], 5)
    second = np.array([9, 7])
    slices = [
        [tf.IndexedSlices(tf.ones([i.size, size]), tf.constant(i), tf.constant(shape))] * 2
        for i in (first, second)
    ]
    outcomes = exchange(slices, [shape] * 2)
    # Three distinct rows on worker 0: counts, indices and rows of two tables, padded to three.
    words = 2 + (2 * 3 + 1) + (2 * 3 * size + 1)
    for _, payload_bytes, collectives in outcomes:
        assert payload_bytes == 4 * words
        assert (collectives.words_sent, collectives.words_reduced) == (words, 0)
        assert collectives._meeting._next_round == [3, 3]


def test_bytes_follow_the_rows_and_not_the_table(rng):
    sent = {}
    for num_rows in (10**4, 10**7):
        for count in (50, 100):
            indices = tf.range(count) * 2
            part = tf.IndexedSlices(tf.ones([count, 8]), indices, tf.constant([num_rows, 8]))
            sent[num_rows, count] = exchange([[part], [part]], [(num_rows, 8)])[0][1]
    for (_, count), payload_bytes in sent.items():
        assert payload_bytes == 12 + count * 4 * (1 + 8)


def test_never_more_than_the_dense_table_and_a_bit_a_row(rng):
    """However many rows are touched, and however narrow they are."""
    for num_workers in (2, 3, 5):
        for size in (1, 8):
            for count in (10, 40, 300, 3000):
                shape = (320, size)
                slices = [[random_slices(rng, shape, count)] for _ in range(num_workers)]
                for _, _, collectives in exchange(slices, [shape]):
                    gathers, reduces = num_workers - 1, 2 * (num_workers - 1) / num_workers
                    dense = reduces * 320 * size
                    sent = gathers * collectives.words_sent + reduces * collectives.words_reduced
                    assert sent <= dense + gathers * (3 + 320 / 32)


@pytest.mark.parametrize(("shift", "reduces"), [(0, True), (20, False)])
def test_rows_in_common_are_reduced_and_others_gathered(shift, reduces):
    """Of three workers: 2 U is less than 3 R if they touch the same rows."""
    slices = []
    for worker in range(3):
        indices = tf.range(20) + shift * worker
        values = tf.random.stateless_normal([20, 4], [worker, 0])
        slices.append([tf.IndexedSlices(values, indices, tf.constant([900, 4]))])
    outcomes = exchange(slices, [(900, 4)])
    check(outcomes, slices)
    for _, payload_bytes, collectives in outcomes:
        assert (collectives.words_reduced > 0) == reduces
        assert payload_bytes == 4 * (collectives.words_sent + collectives.words_reduced)


@pytest.mark.parametrize("num_rows", [31, 32, 33, 64])
def test_bitmaps_up_to_the_last_row(rng, num_rows):
    """More rows than the bitmap has words; the highest bit of a word makes it negative."""
    indices = [[0, num_rows - 1, 5, 31 % num_rows], [num_rows - 1, 30]]
    slices = [
        [tf.IndexedSlices(tf.ones([len(i), 2]), tf.constant(i), tf.constant([num_rows, 2]))]
        for i in indices
    ]
    outcomes = exchange(slices, [(num_rows, 2)])
    check(outcomes, slices)
    words = -(-num_rows // 32)
    assert outcomes[0][1] == 4 * (3 + words + 2 * len(set(indices[0])))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_inf_and_nan_reach_every_worker(num_workers, bad):
    slices = []
    for worker in range(num_workers):
        values = np.ones((3, 2), np.float32)
        values[1, 1] = bad if worker == 1 else 1.0
        slices.append([tf.IndexedSlices(tf.constant(values), tf.constant([1, 8, 2]), None)])
    for sums, _, _ in exchange(slices, [(100, 2)]):
        total = sums[0].values.numpy()
        np.testing.assert_array_equal(sums[0].indices, [1, 2, 8])
        np.testing.assert_array_equal(total[2, 1], np.float32(bad))
        assert np.isfinite(np.delete(total.ravel(), 5)).all()


def test_duplicates_of_16_bits_are_added_in_float32():
    """In float16, 2048 + 1 is 2048, however often it is added."""
    values = tf.constant([[2048.0]] + [[1.0]] * 8, tf.float16)
    part = tf.IndexedSlices(values, tf.zeros([9], tf.int32), tf.constant([50, 1]))
    for sums, _, _ in exchange([[part], [part]], [(50, 1)]):
        assert sums[0].values.numpy().tolist() == [[2 * 2056.0]]


@pytest.mark.parametrize("index", [-1, 100, 2**32 + 3])
def test_an_index_out_of_range_stays_one_on_every_worker(index):
    good = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3], tf.int64), tf.constant([100, 2]))
    bad = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([index], tf.int64), tf.constant([100, 2]))
    for sums, _, _ in exchange([[good], [bad]], [(100, 2)]):
        (wrong,) = [i for i in sums[0].indices.numpy().tolist() if i != 3]
        assert not 0 <= wrong < 100


def test_tables_of_more_rows_than_int32_counts():
    shape = (2**31 + 9, 1)
    high = tf.constant([2**31 + 8, 5], tf.int64)
    slices = [[tf.IndexedSlices(tf.ones([2, 1]), high, None)]] * 2
    for sums, payload_bytes, _ in exchange(slices, [shape]):
        assert sums[0].indices.numpy().tolist() == [5, 2**31 + 8]
        assert payload_bytes == 4 + 3 * 8 + 3 * 4
