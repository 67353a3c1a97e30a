# SPDX-License-Identifier: Apache-2.0
"""Integer all-reduce against exact integers."""

import numpy as np
import pytest
from reduction import reduce_steps


def exchange(steps_of_worker, spec="identity"):
    """Returns, per worker, every step's sum and residuals after it."""

    outcomes = reduce_steps(
        spec,
        "integer",
        lambda worker, step: steps_of_worker[worker][step],
        num_workers=len(steps_of_worker),
        num_steps=len(steps_of_worker[0]),
    )
    return [steps for steps, _ in outcomes]


def oracle(values):
    """Python integers of any size: units by block, rounded halves to even, summed, scaled back."""
    num_workers = len(values)
    bits = 30 - int(np.ceil(np.log2(num_workers)))
    total = np.zeros(values[0].size, np.float32)
    for start in range(0, total.size, 256):
        part = slice(start, start + 256)
        largest = max(np.abs(value[part]).max() for value in values)
        exponent = max(int(np.frexp(largest)[1]), -96) if largest > 0 else -96
        sums = [0] * total[part].size
        for value in values:
            # TensorFlow takes denormal numbers for zeros.
            for i, x in enumerate(np.where(np.abs(value[part]) < 2.0**-126, 0, value[part])):
                integer = int(np.rint(np.ldexp(np.float64(x), bits - exponent)))
                assert abs(integer) <= 2**bits
                sums[i] += integer
        assert all(abs(s) < 2**31 for s in sums)
        total[part] = np.ldexp(np.float32(np.array(sums, np.float64)), exponent - bits)
    return total


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["normal", "heavy", "largest", "tiny", "zero"])
def test_the_sum_is_that_of_integers(num_workers, kind):
    size = 700
    values = []
    for worker in range(num_workers):
        rng = np.random.default_rng(worker)
        value = rng.normal(size=size)
        if kind == "heavy":
            value = rng.standard_t(1.2, size) * 10.0 ** rng.integers(-30, 30, size)
        if kind == "largest":  # all at the top of the range, with one sign: the worst for overflow
            value = np.full(size, np.nextafter(np.float32(2.0**100), np.float32(0)))
        if kind == "tiny":
            value = value * 1e-37
        if kind == "zero":
            value = value * 0
        values.append(value.astype(np.float32))
    for ((total, residuals),) in exchange([[value] for value in values]):
        np.testing.assert_array_equal(total, oracle(values), strict=True)
        assert not residuals


def test_powers_of_two_lose_nothing():
    """What natural compression sends, within 2^29 of the largest: the float64 sum, exactly."""
    rng = np.random.default_rng(3)
    values = [
        (rng.choice([-1.0, 1.0], 4000) * 2.0 ** rng.integers(-20, 1, 4000)).astype(np.float32)
        for _ in range(2)
    ]
    expected = np.sum(values, axis=0, dtype=np.float64)
    for ((total, _),) in exchange([[value] for value in values], "natural"):
        np.testing.assert_array_equal(total, expected.astype(np.float32))


@pytest.mark.parametrize("spec", ["onebit", "topk:density=0.1", "natural:error_feedback=true"])
def test_the_residual_holds_the_rounding_too(spec):
    num_steps, size = 5, 3000
    steps = [
        [
            np.random.default_rng([w, s]).normal(size=size).astype(np.float32)
            for s in range(num_steps)
        ]
        for w in range(3)
    ]
    outcomes = exchange(steps, spec)
    sent = sum(total.astype(np.float64) for total, _ in outcomes[0])
    left = sum(history[-1][1][0].astype(np.float64) for history in outcomes)
    meant = sum(value.astype(np.float64) for worker in steps for value in worker)
    bound = 64 * num_steps * np.finfo(np.float32).eps * np.abs(meant).max()
    np.testing.assert_allclose(sent + left, meant, rtol=0, atol=bound)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("spec", ["identity", "onebit"])
def test_what_is_not_finite_reaches_all(bad, spec):
    steps = [[np.ones(1000, np.float32) * (w + 1) for _ in range(3)] for w in range(2)]
    steps[1][1][777] = bad
    for history in exchange(steps, spec):
        assert not np.isfinite(history[1][0]).any()
        assert np.isfinite(history[2][0]).all()
        for before, after in zip(history[0][1], history[1][1], strict=True):
            np.testing.assert_array_equal(before, after)
