# SPDX-License-Identifier: Apache-2.0
"""magnitude_moments against exact sums of the same magnitudes."""

import numpy as np
import pytest
import tensorflow as tf
import threshold_reference
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops.magnitude_moments import magnitude_moments

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)


def assert_moments(items: np.ndarray, bound: float = 0.0, row_length: int = 0) -> None:
    actual = [float(m) for m in magnitude_moments(items, bound, row_length)]
    expected = threshold_reference.moments(items, bound, row_length)
    assert actual[:2] == expected[:2]  # count and minimum are exact
    # 256 additions a lane, then 64 lanes and few blocks: some 400 roundings of a sum at most.
    np.testing.assert_allclose(actual[2], expected[2], rtol=1e-13)
    excess = expected[2] - bound
    np.testing.assert_allclose(actual[3], expected[3], rtol=1e-12, atol=1e-12 * excess**2)
    np.testing.assert_allclose(actual[4], expected[4], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", [*SIZES, 511, 512, 513, 16383, 16384, 16385])
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_sizes(n, components, rng):
    items = sample("gauss", (n, *components), rng)
    for bound in (0.0, 0.5, 2.5, 100.0):
        assert_moments(items, bound)


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_kinds_of_values(kind, components, rng):
    items = sample(kind, (20_011, *components), rng)
    y = threshold_reference.magnitudes(items)
    for bound in (0.0, float(np.nanquantile(y, 0.75)), float(np.nanquantile(y, 0.9))):
        assert_moments(items, bound if np.isfinite(bound) else 1.0)


@pytest.mark.parametrize("row_length", [1, 2, 3, 4, 5, 64, 65, 4096, 4097])
def test_conjugate_pairs_count_twice(row_length, rng):
    items = sample("gauss", (40 * (row_length // 2 + 1), 2), rng)
    assert_moments(items, 0.3, row_length)


def test_equal_values_have_no_variance():
    for value in (0.1, 3e-45, 3e38):
        items = np.full(10_000, value, np.float32)
        moments = magnitude_moments(items)
        assert float(moments.mean) == pytest.approx(float(items[0]), rel=1e-15)
        assert 0 <= float(moments.variance) <= 1e-14 * float(items[0]) ** 2


def test_nothing_above_the_bound():
    for items in (np.zeros(0, np.float32), np.zeros(100, np.float32), np.float32([np.inf, np.nan])):
        assert [float(m) for m in magnitude_moments(items)] == [0.0] * 5
    assert float(magnitude_moments(np.ones(5, np.float32), np.inf).count) == 0


@pytest.mark.parametrize(
    ("shape", "bound", "row_length", "named"),
    [
        ((10,), -1.0, 0, "bound"),
        ((10,), np.nan, 0, "bound"),
        ((10,), [1.0], 0, "rank"),
        ((10,), 1.0, 8, "row_length"),
        ((2, 65537), 1.0, 0, "values|components"),
        ((2, 3, 1), 1.0, 0, "values|rank"),
    ],
)
def test_bad_arguments_are_named(shape, bound, row_length, named):
    with pytest.raises(BAD_ARGUMENT, match=named):
        magnitude_moments(np.zeros(shape, np.float32), bound, row_length)
