# SPDX-License-Identifier: Apache-2.0
"""SIDCo's thresholds against fits in NumPy, and the shares they let pass against the published."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import threshold_reference
from sample_values import sample

from tf_gradcomp.ops import sidco
from tf_gradcomp.ops.magnitude_moments import magnitude_moments

DATA = {
    "gauss": lambda rng, n: rng.standard_normal(n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "student_t3": lambda rng, n: rng.standard_t(3, n),
}


@functools.cache
def items_of(data: str) -> np.ndarray:
    return DATA[data](np.random.default_rng(9), 2**21).astype(np.float32)


def achieved(items: np.ndarray, density: float, *args, row_length: int = 0) -> float:
    """The share of items that reach the threshold, over the share wanted."""
    t = sidco.sidco_threshold(items, density, *args, row_length=row_length)
    y = np.abs(items) if items.ndim == 1 else threshold_reference.magnitudes(items, row_length)
    return share_above(y, float(t), density)


def share_above(y: np.ndarray, t: float, density: float) -> float:
    return np.count_nonzero(y >= np.float32(t)) / y.size / density


def fitted_blindly(items: np.ndarray, density: float, stages: int, fit: str) -> float:
    """The threshold after a fixed number of stages of fixed ratios: the paper's, for one step."""
    first_fit, later_fit = sidco._FAMILIES[fit]
    first = density if stages == 1 else sidco.FIRST_RATIO
    moments = magnitude_moments(items)._replace(minimum=tf.zeros([], tf.float64))
    bound = first_fit(moments, tf.constant(first, tf.float64))
    for _ in range(stages - 1):
        ratio = tf.constant((density / first) ** (1 / (stages - 1)), tf.float64)
        bound = later_fit(magnitude_moments(items, bound), ratio)
    return float(bound)


# Shares measured with an independent implementation: density 0.001.
PUBLISHED = [
    ("gauss", "exponential", [0.00, 0.09, 0.69]),
    ("gauss", "pareto", [6.9, 1.21, 0.90]),
    ("gauss", "gamma_pareto", [None, 1.44, 1.04]),
    ("student_t3", "exponential", [4.7, 3.6, 1.14]),
    ("student_t3", "pareto", [1.37, 0.93, 0.91]),
]


@pytest.mark.parametrize(("data", "fit", "shares"), PUBLISHED, ids=lambda v: str(v))
def test_shares_after_blind_stages(data, fit, shares):
    items = items_of(data)
    for stages, share in enumerate(shares, 1):
        if share is not None:
            t = fitted_blindly(items, 0.001, stages, fit)
            # 2097 items pass, give or take 2 %, and the table has two digits.
            assert share_above(np.abs(items), t, 0.001) == pytest.approx(share, rel=0.12, abs=0.03)


@pytest.mark.parametrize("fit", sidco.FITS)
@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_every_fit_is_right_on_laplace(fit, density):
    """Magnitudes are exponential then, which all three families contain."""
    items = items_of("laplace")
    for stages in (1, 2, 3):
        t = fitted_blindly(items, density, stages, fit)
        assert share_above(np.abs(items), t, density) == pytest.approx(1, rel=0.12)


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("fit", sidco.FITS)
@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_within_a_fifth_whatever_the_fit(data, fit, density, stages):
    """A tenth is the tolerance of the stages; 1,000 of a sample are right to 3 %."""
    assert 0.8 <= achieved(items_of(data), density, stages, fit) <= 1.2


@pytest.mark.parametrize("fit", sidco.FITS)
@pytest.mark.parametrize(
    "items",
    [
        np.exp(3 * np.random.default_rng(1).standard_normal(100_000)),
        np.random.default_rng(2).standard_normal((500, 200)).ravel()
        * np.tile([1] * 199 + [1000], 500),
        np.random.default_rng(3).standard_cauchy(100_000),
        np.random.default_rng(4).random(100_000) + 100,
    ],
    ids=["log-normal", "two scales", "no mean", "far from zero"],
)
def test_a_tenth_of_items_that_fit_no_family(items, fit):
    for density in (0.1, 0.01, 0.001):
        assert achieved(np.float32(items), density, 3, fit) == pytest.approx(1, abs=0.1 + 1e-9)


def test_levels_that_no_threshold_parts_leave_too_many(rng):
    """Then the capacity keeps as many as it has room for; too few would be sent too late."""
    items = rng.choice([0.0, 1.0, 2.0], 100_000, p=[0.5, 0.4, 0.1]).astype(np.float32)
    for density, level in ((0.3, 1), (0.01, 2)):
        t = float(sidco.sidco_threshold(items, density))
        assert np.sum(items >= t) == np.sum(items >= level)


@pytest.mark.parametrize("density", [0.01, 0.0005])
@pytest.mark.parametrize("row_length", [0, 254])
def test_a_sample_stands_for_all(density, row_length, rng):
    """Layers of other scales, runs of zeros, and a period that strata of equal size could meet."""
    scales = np.repeat(np.exp(rng.normal(size=2**12)), 2**11) * np.tile([1, 1, 0, 4], 2**21)
    items = (scales * rng.standard_t(3, 2**23)).astype(np.float32)
    if row_length:
        items = items.reshape(-1, 2)[: 2**22]
    sampled = sidco.sidco_threshold(items, density, row_length=row_length)
    # With the density as a tensor, all items are fitted.
    exact = sidco.sidco_threshold(items, tf.constant(density, tf.float64), row_length=row_length)
    assert sampled != exact
    assert 0.8 <= achieved(items, density, row_length=row_length) <= 1.2


def test_a_small_tensor_at_the_end_of_a_bucket_is_sampled(rng):
    """Half of the items wanted are in the last hundredth, where equal whole strata left a rest."""
    size = 3_262_464
    items = rng.standard_normal(size).astype(np.float32)
    items[-size // 100 :] *= 30
    assert 0.8 <= achieved(items, 0.01) <= 1.2


def test_a_sample_of_zeros_stands_for_nothing():
    items = np.zeros(2**22, np.float32)
    items[:3] = 1, 2, 3
    assert sidco.sidco_threshold(items, 0.01) <= 1  # and so lets them pass


def fitted(y: np.ndarray, ratio: float, fit: str, minimum: float) -> float:
    """Stage quantiles from the published formulas, for magnitudes y from a minimum on."""
    mean, variance = (y - minimum).mean(), y.var()
    if fit == "exponential":
        return minimum - mean * np.log(ratio)
    k = 0.5 * (mean**2 / variance - 1)
    scale = 0.5 * mean * (mean**2 / variance + 1)
    return minimum + scale * (1 - ratio**k) / k


def searched(y: np.ndarray, wanted: float, stages: int, fit: str) -> float:
    """The stages of docs/methods/sidco.md, for magnitudes y > 0."""
    above, upper, upper_count = y, np.inf, 0
    bound = fitted(y, 0.25 if stages > 1 else wanted / y.size, fit, 0.0)
    while abs(np.count_nonzero(y > bound) - wanted) > 0.1 * wanted:
        passed = y[y > bound]
        if passed.size > wanted:
            above, stages = passed, max(stages - 1, 1)
        else:
            upper, upper_count = bound, passed.size
        bound = fitted(above, (wanted / above.size) ** (1 / stages), fit, above.min())
        if bound >= upper:
            way = np.log(above.size / wanted) / np.log(above.size / max(upper_count, 0.5))
            bound = above.min() + (upper - above.min()) * way
    return bound


@pytest.mark.parametrize("fit", ["exponential", "pareto"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("data", DATA)
def test_stages_follow_the_formulas(fit, stages, data, rng):
    items = DATA[data](rng, 100_003).astype(np.float32)
    y = np.abs(items.astype(np.float64))
    expected = searched(y[y > 0], 0.002 * y.size, stages, fit)
    assert float(sidco.sidco_threshold(items, 0.002, stages, fit)) == pytest.approx(expected, 1e-6)


@pytest.mark.parametrize("shape", [0.05, 0.3, 0.8, 1.0, 3.0, 200.0, 5e4])
@pytest.mark.parametrize("ratio", [0.9, 0.25, 0.01, 1e-5])
def test_gamma_quantile_is_the_inverse(shape, ratio):
    shape = tf.constant(shape, tf.float64)
    x = sidco.gamma_upper_quantile(shape, tf.constant(ratio, tf.float64))
    assert float(tf.math.igammac(shape, x)) == pytest.approx(ratio, rel=1e-8)


def test_gamma_fit_finds_a_gamma_distribution(rng):
    items = rng.gamma(0.4, 2.0, 2**21).astype(np.float32)
    assert achieved(items, 0.1, 1, "gamma_pareto") == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("fit", sidco.FITS)
def test_zeros_do_not_disturb_the_fit(fit, rng):
    """Of the items, nine in ten are zero: the share wanted is still one of all items."""
    items = DATA["laplace"](rng, 2**21).astype(np.float32) * (rng.random(2**21) < 0.1)
    assert achieved(items.astype(np.float32), 0.001, 2, fit) == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("fit", sidco.FITS)
def test_degenerate_values(fit):
    def threshold(values, density, stages):
        return float(sidco.sidco_threshold(np.float32(values), density, stages, fit))

    for stages in (1, 2, 4):
        assert threshold(np.zeros(100), 0.01, stages) == math.inf
        assert threshold([np.nan, np.inf, 0.0], 0.5, stages) == math.inf
        for values in ([3.0], [2.0, 2.0, 2.0, -2.0], [1.0, np.nan, 5.0], [1e-42, -1e-42], [3e38]):
            t = threshold(values, 0.3, stages)
            assert t >= 0 and not math.isnan(t)
        # More wanted than are not zero: everything passes that is not.
        assert threshold([0.0, 0.0, 0.0, 1.0, 2.0], 0.9, stages) <= 1.0


def test_scales_with_the_values(rng):
    items = sample("laplace", 100_000, rng)
    for fit in sidco.FITS:
        t = float(sidco.sidco_threshold(items, 0.01, 3, fit))
        scaled = float(sidco.sidco_threshold(items * np.float32(1024), 0.01, 3, fit))
        assert scaled == pytest.approx(1024 * t, rel=1e-6)


def test_spectra_are_weighted(rng):
    items = sample("gauss", (33 * 3000, 2), rng)
    assert achieved(items, 0.01, row_length=64) == pytest.approx(1, rel=0.1)


def test_graph_equals_eager_for_any_number_of_stages(rng):
    items = sample("gauss", 50_000, rng)
    graph = tf.function(
        lambda stages: sidco.sidco_threshold(items, 0.01, stages),
        input_signature=[tf.TensorSpec([], tf.int32)],
    )
    for stages in (1, 2, 5):
        assert graph(stages) == sidco.sidco_threshold(items, 0.01, stages)


def test_unknown_fit_is_named():
    with pytest.raises(ValueError, match="weibull"):
        sidco.sidco_threshold(np.ones(3, np.float32), 0.1, 1, "weibull")


@pytest.mark.parametrize("size", [5000, 3_000_000])  # fitted as they are, and sampled
def test_a_residual_is_added(size, rng):
    values, residual = (rng.standard_t(3, size).astype(np.float32) for _ in range(2))
    expected = float(sidco.sidco_threshold(values + residual, 0.01))
    assert float(sidco.sidco_threshold(values, 0.01, residual=residual)) == expected
