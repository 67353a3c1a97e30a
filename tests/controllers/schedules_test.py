# SPDX-License-Identifier: Apache-2.0
"""Schedules against the papers, and what workers rely on: the same bits, whatever the step."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.controllers.schedules import Growth, Highest, WarmUp, as_scheduled

LAST_STEP = 2**31 - 1


def densities(schedule, steps):
    values = [schedule(tf.constant(step)) for step in steps]
    assert all(value.dtype == tf.float64 and value.shape == () for value in values)
    return [float(value) for value in values]


def test_warm_up_has_the_paper_s_sparsities():
    """Section 3.3: 75 %, 93.75 %, 98.4375 %, 99.6 %, 99.9 %, of which the first four warm up."""
    found = densities(WarmUp(0.001, 400), [1, 100, 101, 200, 201, 300, 301, 400, 401, LAST_STEP])
    sparsities = [round(100 * (1 - density), 4) for density in found]
    assert sparsities[::2] == [75, 93.75, 98.4375, 99.6094, 99.9]
    assert sparsities[1::2] == sparsities[::2]


@pytest.mark.parametrize(
    ("density", "stages"),
    [(0.2499, [0.25]), (0.15, [0.25]), (0.0625, [0.25]), (0.06, [0.25, 0.0625]), (0.25, [])],
)
def test_stages_are_the_powers_of_a_quarter_above_the_density(density, stages):
    assert WarmUp(density, 1).densities == [*stages, density]


@pytest.mark.parametrize("num_exchanges", [1, 2, 3, 4, 5, 7, 30, LAST_STEP])
def test_stages_are_of_equal_length_and_end_in_time(num_exchanges):
    schedule = WarmUp(0.01, num_exchanges)
    steps = sorted({1, 2, 3, num_exchanges // 3, num_exchanges // 2, num_exchanges})
    for step, density in zip(steps[1:], densities(schedule, steps[1:]), strict=True):
        stage = min(3, Fraction(3 * (step - 1), num_exchanges).__floor__())
        assert density == [0.25, 0.0625, 0.015625, 0.01][stage]
    if num_exchanges < LAST_STEP:
        assert densities(schedule, [num_exchanges + 1]) == [0.01]


def test_growth_drops_a_share_that_falls_as_one_over_the_step():
    steps = [1, 99, 100, 101, 150, 200, 10_000, LAST_STEP]
    found = densities(Growth(0.15, 100), steps)
    assert found[:3] == [0.15] * 3  # its very bits: the numbers of items must be the static ones
    for step, density in zip(steps, found, strict=True):
        # A few roundings of numbers below 1.
        dropped = (1 - 0.15) * min(1, 100 / step)
        assert 1 - density == pytest.approx(dropped, rel=0, abs=4 * np.finfo(float).eps)
    assert found == sorted(found)
    assert found[-1] < 1


def test_growth_uses_what_is_rounded_alike_everywhere():
    """Each operation correctly rounded, as IEEE 754 says, and in this order."""

    def rounded(exact):
        return float(exact)  # of a fraction, to nearest

    for step in [7, 8, 9, 1000, 12_345_678]:
        theta = rounded(1 - Fraction(0.3))
        dropped = rounded(Fraction(rounded(Fraction(theta) * 6)) / step)
        expected = rounded(1 - Fraction(dropped))
        assert densities(Growth(0.3, 6), [step]) == [expected]


def test_the_highest_of_several():
    schedule = Highest((WarmUp(0.01, 30), Growth(0.01, 1000)))
    assert densities(schedule, [1, 11, 31, 1000]) == [0.25, 0.0625, 0.01, 0.01]
    assert densities(schedule, [2000])[0] == pytest.approx(0.505)


def test_a_schedule_is_not_traced_again():
    schedule = tf.function(Highest((WarmUp(0.001, 400), Growth(0.001, 600))))
    found = [float(schedule(tf.constant(step))) for step in range(1, 1001)]
    assert len(set(found)) == 5 + 400
    assert schedule.experimental_get_tracing_count() == 1


def test_a_table_need_not_be_longer_than_training():
    """Exchanges are asked for ahead; what fails for one keeps the value before."""
    table = [0.5, 0.25, 0.125]
    values = as_scheduled(lambda step: table[step]).values(tf.range(1, 6))
    assert values.numpy().tolist() == [0.5, 0.25, 0.125, 0.125, 0.125]


def test_a_function_that_fails_at_once_has_no_value():
    def fails(step):
        if step:
            raise RuntimeError
        return 0.5

    assert np.isnan(as_scheduled(fails).values(tf.range(2, 4)).numpy()).all()
