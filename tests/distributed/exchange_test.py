# SPDX-License-Identifier: Apache-2.0
"""The exchange between real processes, seen from a custom training loop."""

import json

import cluster
import numpy as np
import pytest

pytestmark = pytest.mark.distributed

SHAPE = (64, 128)  # two rows of the transform, without padding


def probe(*arguments, **kwargs):
    outcomes = cluster.run_cluster("probe", arguments, **kwargs)
    return [outcome.result for outcome in outcomes]


def gradient(worker, shape):
    return np.random.default_rng(worker).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("transport", ["all_gather", "scatter_reduce"])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_identity_is_the_sum_in_worker_order(num_workers, transport):
    spec = f"identity:transport={transport}"
    results = probe("custom_loop", spec, num_workers=num_workers)
    expected = gradient(0, SHAPE)
    for worker in range(1, num_workers):
        expected = expected + gradient(worker, SHAPE)
    table = np.zeros((9, 5), np.float32)
    for worker in range(num_workers):
        table[[worker, 3]] += worker + 1
    for result in results:
        assert result["sums"] == results[0]["sums"]
        np.testing.assert_array_equal(np.float32(result["sums"][0]), expected.ravel(), strict=True)
        np.testing.assert_array_equal(np.float32(result["sums"][3]), table.ravel(), strict=True)


@pytest.mark.parametrize(
    "transport", ["all_gather", "scatter_reduce", "block_sparse", "integer", "all_reduce"]
)
@pytest.mark.parametrize(
    ("num_workers", "sizes"),
    [
        (2, (1, 1000, 300_007)),
        pytest.param(3, (1, 2, 1_000_003, 10 << 20), marks=pytest.mark.slow),
        pytest.param(4, (1, 3, 1_000_003, 10 << 20), marks=pytest.mark.slow),
    ],
)
def test_transports_sum_as_exactly_as_their_numbers_can(transport, num_workers, sizes):
    # On two cores, 10 Mi numbers of three and four workers take their time.
    arguments = ("transport_sums", transport, *map(str, sizes))
    results = probe(*arguments, num_workers=num_workers, timeout=400)
    for outcomes in zip(*(result["outcomes"] for result in results), strict=True):
        first = outcomes[0]
        assert all(outcome["digest"] == first["digest"] for outcome in outcomes), first
        # TensorFlow's ring adds up in an order of its own, and integers are rounded once.
        is_ordered = transport in ("all_gather", "scatter_reduce")
        is_exact = is_ordered or (transport == "all_reduce" and num_workers == 2)
        is_right = first["digest"] == first["expected"] or not is_exact
        assert is_right and first["is_close"], first


# For each step the rows that each of up to three workers touches: some of them twice, on one worker
# only, none at all, the same ones, so many that a bitmap is shorter, and with a NaN.
SPARSE_STEPS = [
    [[3, 9, 3], [9, 60], [9]],
    [[], [7, 7], []],
    [[], [], []],
    [[1, 2, 50], [2, 1, 50], [50, 1, 2]],
    [[*range(0, 64, 2)], [*range(1, 64, 2)], [63]],
    [[4], [8, 5], [4]],
]


@pytest.mark.parametrize("num_workers", [2, 3])
def test_sparse_gradients_and_a_tied_embedding(num_workers):
    results = probe("sparse", "identity", json.dumps(SPARSE_STEPS), num_workers=num_workers)
    for step, rows in enumerate(SPARSE_STEPS):
        table, tied = np.zeros(100, np.float32), np.zeros(64, np.float32)
        for worker in range(num_workers):
            value = np.float32(np.nan if step == 5 and worker else 1.0 + worker)
            np.add.at(table, rows[worker], value)
            np.add.at(tied, rows[worker], np.float32(1))
            tied += value
        touched = sorted({row for worker in range(num_workers) for row in rows[worker]})
        first, *others = [result["outcomes"][step] for result in results]
        assert first["indices"] == [touched, touched]
        for values, row_size in zip(first["values"], (6, 4), strict=True):
            actual = np.float32(values).reshape(-1, row_size)
            np.testing.assert_array_equal(
                actual, np.repeat(table[touched], row_size).reshape(actual.shape)
            )
        np.testing.assert_array_equal(np.float32(first["tied"]), tied)
        for other in others:
            assert str(other) == str(first)  # as text, where a NaN equals itself
    (plan,) = results[0]["plans"]
    assert "bucket 0: identity, 20,480 -> 20,480 bytes by all_gather: tied" in plan
    assert "row-sparse, bytes depend on the rows touched in a step: half (100 rows of 8 b" in plan
    assert "wide (100 rows of 24 bytes)" in plan


def test_compressed_sum_has_the_error_that_the_dropped_energy_predicts():
    result = probe("custom_loop", "fft:density=0.3,bits=12,mantissa_bits=8,chunk=4096")[0]
    expected = gradient(0, SHAPE) + gradient(1, SHAPE)
    error = np.float32(result["sums"][0]).reshape(SHAPE) - expected
    dropped = sum(dropped_energy(gradient(worker, SHAPE)) for worker in range(2))
    # The workers' errors are independent, so their energies add up but for twice their inner
    # product, whose standard deviation is 1 / sqrt(n) of that sum.
    assert np.sum(error**2) == pytest.approx(dropped, rel=5 / np.sqrt(error.size))
    for index, shape in ((1, (80,)), (2, ())):
        exact = gradient(0, shape) + gradient(1, shape)
        np.testing.assert_array_equal(np.float32(result["sums"][index]), exact.ravel())


def dropped_energy(value):
    spectrum = np.fft.rfft(value.reshape(2, 4096), norm="ortho")
    energy = np.abs(spectrum) ** 2
    energy[:, 1:-1] *= 2
    energy = np.sort(energy.ravel())
    return energy[: energy.size - int(np.ceil(0.3 * energy.size))].sum()


@pytest.mark.parametrize("nested", ["plain", "nested"])
def test_a_training_loop_of_one_s_own_is_compressed(nested):
    """The step a Python function, or a tf.function of its own."""
    first, second = probe("apply_gradients", "fft:density=0.1", nested)
    assert first["weights"] == second["weights"]
    assert first["last"] < first["first"] / 2
    assert len(first["plans"]) == 1
    assert "fft:density=0.1" in first["plans"][0]


@pytest.mark.parametrize(("spec", "num_workers"), [("identity", 2), ("none", 2), ("identity", 1)])
def test_several_devices_per_worker(spec, num_workers):
    results = probe("local_devices", spec, num_workers=num_workers)
    num_replicas = 2 * num_workers
    total = sum(gradient(i, (70, 80)).astype(np.float64) for i in range(num_replicas))
    for result in results:
        assert result["num_replicas"] == num_replicas
        for kernel in result["kernels"]:
            assert kernel == results[0]["kernels"][0]
            np.testing.assert_allclose(kernel, total.ravel(), rtol=1e-5, atol=1e-6)
        for table in result["tables"]:
            assert table == [1.0] * num_replicas + [0.0] * (9 - num_replicas)
        assert result["others"] == [sum(range(1, num_replicas + 1))] * 2
        assert result["index_sum"] == sum(range(num_replicas))


def test_epochs_neither_wait_nor_pile_up_threads():
    """What TensorFlow does when an iterator ends, and for every collective with a timeout."""
    for result in probe("epochs"):
        first_steps, seconds = result["first_steps"], result["seconds"]
        # Otherwise as long as the epoch before, or longer.
        assert all(
            first < 0.5 * epoch for first, epoch in zip(first_steps[1:], seconds, strict=False)
        )
        threads = result["num_threads"]
        assert threads[-1] - threads[0] < 150  # otherwise eight for each of 50 steps


def test_a_dropped_iterator_has_ended_when_the_next_one_starts():
    assert probe("shared_source", num_workers=1)[0]["errors"] == 0
