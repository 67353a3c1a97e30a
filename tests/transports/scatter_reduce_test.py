# SPDX-License-Identifier: Apache-2.0
"""Scatter-reduce against sums made by hand, and what it conserves."""

import numpy as np
import pytest
import tensorflow as tf
from reduction import reduce_steps

from tf_gradcomp.codecs.base import Draw, Layout
from tf_gradcomp.compression import Compression

# Lossy codecs of every kind, and those whose payloads say nothing without the draw.
SPECS = [
    "fft:density=0.2,chunk=64",
    "topk:density=0.1",
    "block_topk:density=0.3,block=16",
    "randomk:density=0.2",
    "randomk:density=0.2,error_feedback=false",
    "sidco:density=0.1",
    "natural",
    "dithering",
    "onebit",
    "uniform:bits=4",
    "float16",
]


def gradient(worker, step, size):
    rng = np.random.default_rng([worker, step, size])
    return rng.standard_t(3, size=size).astype(np.float32)


def exchange(spec, size, num_workers=2, num_steps=1, spoil=None):
    """Returns, per worker, every step's sum and residuals after it, and the words it sent."""

    def values_of(worker, step):
        value = gradient(worker, step, size)
        if spoil == (worker, step):
            value[size // 2] = np.inf
        return value

    outcomes = reduce_steps(spec, "scatter_reduce", values_of, num_workers, num_steps)
    return [(steps, collectives.words_sent) for steps, collectives in outcomes]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, 4097])
def test_identity_is_the_float32_sum_in_worker_order(num_workers, size):
    expected = gradient(0, 0, size)
    for worker in range(1, num_workers):
        expected = expected + gradient(worker, 0, size)
    for ((total, residuals),), _ in exchange("identity", size, num_workers):
        np.testing.assert_array_equal(total, expected, strict=True)
        assert not residuals


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("size", [3000, 4096])
def test_the_sum_is_that_of_shards_encoded_one_by_one(spec, size):
    """With the codec alone, in NumPy's hands: encode, sum per shard, encode again, join."""
    num_workers = 3
    compression = Compression.from_spec(spec)
    codec = compression.build()
    transform = codec.transform
    layout = transform.layout(size)
    shard = layout.shard(num_workers)
    padded = np.zeros((num_workers, num_workers * shard.num_items, *layout.shape[1:]), np.float32)
    for worker, rows in enumerate(padded):
        rows[: layout.num_items] = transform.forward(tf.constant(gradient(worker, 0, size)))

    def encode(values, draw, with_residual):
        residual = tf.zeros(shard.shape) if with_residual else None
        return codec.encode(tf.constant(values), residual, shard, draw).payload

    parts = []
    for number in range(num_workers):
        start = number * shard.num_items
        rows = padded[:, start : start + shard.num_items]

        def draw(worker, number=number):
            return Draw(0, worker, tf.constant(1), number)

        payloads = [
            encode(rows[worker], draw(worker), compression.error_feedback)
            for worker in range(num_workers)
        ]
        total, _ = codec.decode_sum(tf.stack(payloads), shard, draw(0))
        # Random-k scales what it keeps only where there is no residual, and only once.
        # A quarter is the power of two next to a third: sums are encoded as if they were means.
        again = encode(total / 4, draw(num_workers + number), True)
        parts.append(4 * codec.decode_sum(again[tf.newaxis], shard, draw(0))[0])
    joined = tf.concat(parts, axis=0)[: layout.num_items]
    expected = transform.inverse(joined, size).numpy()
    for ((total, _),), _ in exchange(spec, size, num_workers):
        np.testing.assert_array_equal(total, expected, strict=True)


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("spec", ["topk:density=0.05", "onebit", "block_topk:density=0.2,block=16"])
def test_both_residuals_hold_all_that_was_not_sent(spec, num_workers):
    size, num_steps = 5000, 8
    outcomes = exchange(spec, size, num_workers, num_steps)
    sent = sum(total.astype(np.float64) for total, _ in outcomes[0][0])
    left = np.zeros(size)
    for worker, (steps, _) in enumerate(outcomes):
        first, second = (residual.ravel() for residual in steps[-1][1])
        left += first[:size]
        start = worker * second.size
        left[start : start + second.size] += second[: max(0, size - start)]
        assert np.abs(second).max() > 0
    meant = sum(
        gradient(worker, step, size).astype(np.float64)
        for worker in range(num_workers)
        for step in range(num_steps)
    )
    bound = 64 * num_steps * np.finfo(np.float32).eps * np.abs(meant).max()
    np.testing.assert_allclose(sent + left, meant, rtol=0, atol=bound)


@pytest.mark.parametrize("spec", ["fft:density=0.2,chunk=64", "onebit", "natural"])
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_an_infinity_reaches_all_and_leaves_all_residuals(spec, worker):
    for steps, _ in exchange(spec, 3000, 3, 3, spoil=(worker, 1)):
        assert not np.isfinite(steps[1][0]).any()
        assert np.isfinite(steps[2][0]).all()
        for before, after in zip(steps[0][1], steps[1][1], strict=True):
            np.testing.assert_array_equal(before, after)


def test_the_workers_hold_the_same_bits_and_send_two_payloads_at_most():
    for num_workers in (2, 3, 8):
        outcomes = exchange("topk:density=0.02", 100_000, num_workers, 2)
        for step in range(2):
            sums = {steps[step][0].tobytes() for steps, _ in outcomes}
            assert len(sums) == 1
        codec = Compression("topk", {"density": 0.02}.items()).build()
        whole = codec.num_words(codec.transform.layout(100_000))
        for _, words in outcomes:  # loopback counts what is handed over, a worker's own share too
            assert words / 2 < 1.06 * whole * (1 + 1 / num_workers)


def test_sums_beyond_the_range_of_float16_arrive():
    """Each worker's 20,000 fits, the sum of four does not."""

    outcomes = reduce_steps(
        "float16", "scatter_reduce", lambda worker, step: np.full(1000, 20000, np.float32), 4
    )
    for ((total, _),), _ in outcomes:
        np.testing.assert_array_equal(total, np.full(1000, 80000, np.float32))


def test_every_draw_has_numbers_of_its_own():
    keys = {
        tuple(Draw(bucket, worker, tf.constant(3), shard).own_key(7).numpy())
        for bucket in (0, 1, 65535)
        for worker in range(6)  # a worker's second encoding counts as worker + W
        for shard in (0, 1, 32767)
    }
    assert len(keys) == 3 * 6 * 3
    shared = {
        tuple(Draw(bucket, worker, tf.constant(3), shard).shared_key(7).numpy())
        for bucket in (0, 1)
        for worker in range(6)
        for shard in (0, 1)
    }
    assert len(shared) == 2 * 2


def test_shards_are_whole_rows():
    assert Layout(1000).shard(3) == Layout(334)
    assert Layout(10 * 33, 2, 64).shard(4) == Layout(3 * 33, 2, 64)
    assert Layout(33, 2, 64).shard(4) == Layout(33, 2, 64)
