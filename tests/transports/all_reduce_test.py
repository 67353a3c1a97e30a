# SPDX-License-Identifier: Apache-2.0
"""All-reduce of payloads against sums in their type, rounded step by step."""

import functools
import math
import operator

import numpy as np
import pytest
import tensorflow as tf
from reduction import reduce_steps

DTYPES = {"identity": np.float32, "float16": np.float16, "bfloat16": tf.bfloat16.as_numpy_dtype}


def gradient(worker, step, size):
    """Of very different magnitudes: below 2^-24 and up to some hundreds."""
    rng = np.random.default_rng([worker, step, size])
    return (rng.normal(size=size) * 10.0 ** rng.uniform(-9, 2, size)).astype(np.float32)


def exchange(spec, values_of, num_workers, num_steps=1):
    """Returns, per worker, every step's sum and residuals after it."""
    return [
        steps for steps, _ in reduce_steps(spec, "all_reduce", values_of, num_workers, num_steps)
    ]


def oracle(dtype, values_of, num_workers, num_steps):
    """Returns every step's sum, and the workers' residuals after it.

    float16 codes shares of a mean, of the next power of two workers, and sums in worker order.
    """
    share = np.float32(1)
    if dtype == np.float16:
        share = np.float32(2.0 ** -math.ceil(math.log2(num_workers)))
    residuals = [np.float32(0)] * num_workers
    steps = []
    for step in range(num_steps):
        meant = [
            share * values_of(worker, step) + share * residuals[worker]
            for worker in range(num_workers)
        ]
        codes = [m.astype(dtype) for m in meant]
        residuals = [
            (m - code.astype(np.float32)) / share for m, code in zip(meant, codes, strict=True)
        ]
        total = functools.reduce(operator.add, codes)
        assert total.dtype == dtype
        steps.append((total.astype(np.float32) / share, residuals))
    return steps


@pytest.mark.parametrize("num_workers", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [5, 1000, 4097])
@pytest.mark.parametrize("codec", DTYPES)
def test_the_sum_is_that_of_numbers_of_the_type(codec, size, num_workers):
    num_steps = 3

    def values_of(worker, step):
        return gradient(worker, step, size)

    expected = oracle(DTYPES[codec], values_of, num_workers, num_steps)
    outcomes = exchange(f"{codec}:error_feedback=true", values_of, num_workers, num_steps)
    for worker, steps in enumerate(outcomes):
        for (total, (residual,)), (right_total, right) in zip(steps, expected, strict=True):
            np.testing.assert_array_equal(total, right_total, strict=True)
            np.testing.assert_array_equal(residual, right[worker], strict=True)
    assert codec == "identity" or np.any(outcomes[0][-1][1][0])


def test_denormal_float32_numbers_arrive():
    values = [np.float32(2.0**-149) * np.arange(6, dtype=np.float32), np.zeros(6, np.float32)]
    for ((total, residuals),) in exchange("identity", lambda worker, step: values[worker], 2):
        assert total.tobytes() == values[0].tobytes()
        assert not residuals


@pytest.mark.parametrize("codec", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [1000, 1001])
def test_only_16_bits_a_value_travel(codec, size):
    outcomes = reduce_steps(codec, "all_reduce", lambda worker, step: gradient(worker, 0, size), 2)
    for _, collectives in outcomes:
        assert collectives.words_reduced == size / 2
        assert collectives.words_sent == 0


@pytest.mark.parametrize("codec", ["float16", "bfloat16"])
def test_where_sums_are_exact_residuals_hold_all_that_was_not_sent(codec):
    """Each element is zero on all workers but one, so nothing but the codec rounds."""
    size, num_steps, num_workers = 3000, 8, 3

    def values_of(worker, step):
        return gradient(worker, step, size) * (np.arange(size) % num_workers == worker)

    outcomes = exchange(codec, values_of, num_workers, num_steps)
    sent = sum(total.astype(np.float64) for total, _ in outcomes[0])
    left = sum(steps[-1][1][0].astype(np.float64) for steps in outcomes)
    meant = sum(
        values_of(worker, step).astype(np.float64)
        for worker in range(num_workers)
        for step in range(num_steps)
    )
    # float32 rounds once a step, where the residual is added.
    bound = num_steps * np.finfo(np.float32).eps * np.abs(meant).max()
    np.testing.assert_allclose(sent + left, meant, rtol=0, atol=bound)
    assert np.abs(left).max() > 10 * bound


@pytest.mark.parametrize("num_workers", [2, 3, 4, 5, 8])
def test_sums_beyond_the_range_of_float16_arrive(num_workers):
    largest = np.float32(65504)
    for ((total, _),) in exchange("float16", lambda worker, step: np.full(9, largest), num_workers):
        # Each of the additions rounds once.
        bound = (num_workers - 1) * 2.0**-11 * num_workers * largest
        np.testing.assert_allclose(total, np.full(9, num_workers * largest), rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("codec", "bad"),
    [
        ("identity", np.nan),
        ("float16", np.nan),
        ("float16", -np.inf),
        ("float16", 3e5),  # whose sum is beyond float16, although it is one of means
        ("bfloat16", np.inf),
    ],
)
def test_what_is_not_finite_reaches_all_and_leaves_the_residuals(codec, bad):
    def values_of(worker, step):
        value = gradient(worker, step, 1000)
        if step == 1 and (worker == 1 or np.isfinite(bad)):
            value[777] = bad
        return value

    for steps in exchange(codec, values_of, 2, 3):
        # What loses nothing keeps the other elements, as TensorFlow's own sum does.
        finite = np.isfinite(steps[1][0])
        assert list(np.flatnonzero(~finite)) == [777] if codec == "identity" else not finite.any()
        assert np.isfinite(steps[2][0]).all()
        for before, after in zip(steps[0][1], steps[1][1], strict=True):
            np.testing.assert_array_equal(before, after)
