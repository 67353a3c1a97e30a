# SPDX-License-Identifier: Apache-2.0
"""SIDCo: thresholds from distributions that are fitted to the magnitudes, in several stages.

Source: Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for
Distributed Training Systems" (SIDCo), MLSys 2021, and its code. docs/methods/sidco.md has the
formulas, how many stages there are, and what differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_gradcomp.ops.magnitude_moments import MagnitudeMoments, magnitude_moments

FITS = ("exponential", "pareto", "gamma_pareto")
"""The distribution of the first stage, then that of later ones where they differ."""

SAMPLE_ITEMS = 1 << 18
"""Moments are those of about so many items: more would cost time and hardly change a fit."""

SAMPLE_RUN = 32
"""Neighbouring items that are sampled together."""

MIN_STRATA = 256
"""Places to sample from; where runs are too long for so many, all items are fitted."""

MIN_SELECTED = 1000
"""Items of the sample that should reach the threshold: more are sampled at low densities."""

MIN_NONZERO = 1 / 64
"""Where a smaller share of the sample than this differs from zero, all items are fitted."""

FIRST_RATIO = 0.25
"""The share of the magnitudes that the first of several stages keeps."""

TOLERANCE = 0.1
"""By how much of the number wanted the items of the sample that pass may be off."""

MAX_STAGES = 16
"""For values that no threshold parts well, such as equal ones. Five stages are usual."""

NEWTON_STEPS = 8
"""From the start below, the quantile is then exact to better than 1e-9 for shapes 0.05 to 1e5."""


def sidco_threshold(
    values: tf.Tensor,
    density: float | tf.Tensor,
    stages: int | tf.Tensor = 3,
    fit: str = "gamma_pareto",
    row_length: int = 0,
    residual: tf.Tensor | None = None,
) -> tf.Tensor:
    """The threshold that a share `density` of the items reaches, according to fits.

    Stage 1 fits a distribution to all magnitudes but zeros and takes the quantile that a quarter of
    them exceed; each later stage fits the magnitudes above the last threshold and lets a share of
    them pass such that `density` is left after `stages` of them. Each counts what really passes:
    the next aims at what is then missing, and goes back if too few passed, until the number is off
    by no more than `TOLERANCE`. Of more than twice `SAMPLE_ITEMS` items, a sample is fitted and
    counted. Not differentiable.

    Args:
      values: float32 `[n]` real or `[n, 2]` complex items (real part first), n >= 1.
      density: share of the n items wanted, in (0, 1].
      stages: int scalar M >= 1, in how many steps to approach the density; in one where it exceeds
        a quarter of the items that are not zero.
      fit: one of `FITS`. Pareto is the generalised Pareto distribution.
      row_length: L >= 0, as in `top_k.top_k_select`.
      residual: float32 of the same shape, to be added to the values; only where they are sampled.

    Returns:
      float32 scalar for `threshold.threshold_select`; Inf if no item is finite and not zero.

    Raises:
      ValueError: `fit` is unknown, or `density` a number outside (0, 1].
      tf.errors.InvalidArgumentError: a shape or `row_length` is outside these limits.
    """
    if fit not in FITS:
        raise ValueError(f"fit must be one of {', '.join(FITS)}, got {fit!r}")
    if not tf.is_tensor(density) and not 0 < density <= 1:
        raise ValueError(f"density must be in (0, 1], got {density!r}")
    parts = [tf.convert_to_tensor(part) for part in (values, residual) if part is not None]
    samples = [_sample(part, density, row_length) for part in parts]
    sample = tf.add_n(samples)
    moments = magnitude_moments(sample, 0.0, row_length)

    def fit_to(items: tf.Tensor, moments: MagnitudeMoments) -> tf.Tensor:
        return _fitted_threshold(items, moments, density, stages, fit, row_length)

    def fit_to_all() -> tf.Tensor:
        items = tf.add_n(parts)
        return fit_to(items, magnitude_moments(items, 0.0, row_length))

    if samples[0] is parts[0]:
        return fit_to(sample, moments)
    # Of values that are nearly all zero, a sample may hold none that counts.
    return tf.cond(
        moments.count >= MIN_NONZERO * sample.shape[0], lambda: fit_to(sample, moments), fit_to_all
    )


def _sample(values: tf.Tensor, density: float | tf.Tensor, row_length: int) -> tf.Tensor:
    """Returns all items if they are few, else one run of items from each of many equal strata.

    Places in the strata are scrambled but fixed, so that no period in the items meets one of the
    sample. Strata end within runs, so that they can be equal and leave no tail: the small tensors
    at the end of a bucket may hold most of its large values. Runs are whole rows if the items are
    bins of rows, which rank by their place in them.
    """
    if tf.is_tensor(density) or values.shape[0] is None:
        return values
    run = row_length // 2 + 1 if row_length else SAMPLE_RUN
    num_strata = max(SAMPLE_ITEMS, math.ceil(MIN_SELECTED / density)) // run
    num_runs = values.shape[0] // run
    if num_strata < MIN_STRATA or num_runs < 2 * num_strata:
        return values
    floats = run * values.shape[1:].num_elements()
    runs = tf.reshape(values[: num_runs * run], [-1, floats])
    strata = np.arange(num_strata)
    places = strata * 0x9E3779B9 % 2**32 / 2**32
    chosen = ((strata + places) * (num_runs / num_strata)).astype(np.int64)
    return tf.reshape(tf.gather(runs, chosen), [num_strata * run, *values.shape[1:]])


class _Search(NamedTuple):
    """What the stages have found: too many items are `above`, too few exceed `upper`."""

    stages: tf.Tensor
    """Steps in which to get from those to the density."""
    above: MagnitudeMoments
    upper: tf.Tensor
    upper_count: tf.Tensor
    bound: tf.Tensor
    """To be tried next, or found."""
    found: tf.Tensor


def _fitted_threshold(
    values: tf.Tensor,
    moments: MagnitudeMoments,
    density: float | tf.Tensor,
    stages: int | tf.Tensor,
    fit: str,
    row_length: int,
) -> tf.Tensor:
    """Returns the threshold by fits to all of the items, which have these moments but for zeros."""
    first_fit, later_fit = _FAMILIES[fit]
    size = tf.cast(tf.shape(values, tf.int64)[0], tf.float64)
    wanted = tf.maximum(_float64(density) * size, 1.0)
    # A number of items cannot come closer than a half.
    margin = tf.maximum(TOLERANCE * wanted, 0.5)

    def unfinished(search: _Search) -> tf.Tensor:
        # Of equal magnitudes no threshold lets some pass.
        return tf.logical_and(tf.logical_not(search.found), search.above.minimum < search.upper)

    def next_stage(search: _Search) -> tuple[_Search]:
        passed = magnitude_moments(values, search.bound, row_length)
        found = tf.abs(passed.count - wanted) <= margin
        enough = passed.count >= wanted
        above = MagnitudeMoments(*_where(enough, passed, search.above))
        upper, upper_count = _where(
            enough, [search.upper, search.upper_count], [search.bound, passed.count]
        )
        stages = tf.where(enough, tf.maximum(search.stages - 1.0, 1.0), search.stages)
        fitted = later_fit(above, tf.pow(wanted / above.count, 1.0 / stages))
        # Where that is beyond what let too few pass: the exponential tail through both counts.
        decline = tf.math.log(above.count / tf.maximum(upper_count, 0.5))
        way = tf.math.log(above.count / wanted) / decline
        between = above.minimum + (upper - above.minimum) * way
        bound = tf.where(fitted < upper, fitted, between)
        bound = tf.where(found, search.bound, bound)
        return (_Search(stages, above, upper, upper_count, bound, found),)

    ratio = tf.minimum(wanted / tf.maximum(moments.count, 1.0), 1.0)
    stages = tf.where(ratio < FIRST_RATIO, tf.cast(stages, tf.float64), 1.0)
    first_ratio = tf.where(stages > 1.0, tf.constant(FIRST_RATIO, tf.float64), ratio)
    zero = tf.zeros([], tf.float64)
    # The zeros are below the smallest magnitude of stage 1: the fit starts from zero.
    bound = first_fit(moments._replace(minimum=zero), first_ratio)
    largest = tf.constant(tf.float32.max, tf.float64)
    search = _Search(stages, moments, largest, zero, bound, tf.constant(False))
    (search,) = tf.while_loop(
        unfinished, next_stage, (search,), maximum_iterations=tf.where(ratio < 1.0, MAX_STAGES, 0)
    )
    # If there is no such threshold, too many pass: the capacity then lets the largest through.
    bound = tf.where(search.found, search.bound, search.above.minimum)
    infinity = tf.constant(math.inf, tf.float64)
    return tf.cast(tf.where(moments.count > 0, bound, infinity), tf.float32)


def _where(
    condition: tf.Tensor, if_true: Sequence[tf.Tensor], if_false: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    return [tf.where(condition, a, b) for a, b in zip(if_true, if_false, strict=True)]


def _float64(number: float | tf.Tensor) -> tf.Tensor:
    """A Python number goes to float64 at once; tf.cast would take it through float32."""
    return tf.cast(number, tf.float64) if tf.is_tensor(number) else tf.constant(number, tf.float64)


def _exponential(moments: MagnitudeMoments, ratio: tf.Tensor) -> tf.Tensor:
    """Where a share `ratio` of an exponential distribution from the minimum on is above."""
    return moments.minimum - (moments.mean - moments.minimum) * tf.math.log(ratio)


def _pareto(moments: MagnitudeMoments, ratio: tf.Tensor) -> tf.Tensor:
    """The same for the generalised Pareto distribution with these moments, of shape -k."""
    mean = moments.mean - moments.minimum
    # Equal magnitudes: no tail to fit, so that the quantile is the minimum itself.
    spread = tf.logical_and(mean > 0.0, moments.variance > 0.0)
    squares = mean * mean / tf.where(spread, moments.variance, tf.ones_like(mean))
    k = 0.5 * (squares - 1.0)
    scale = 0.5 * mean * (squares + 1.0)
    log_ratio = tf.math.log(ratio)
    # (1 - ratio^k) / k, which is -log(ratio) at k = 0: an exponential distribution.
    small = tf.abs(k) < 1e-12
    steps = -tf.math.expm1(k * log_ratio) / tf.where(small, tf.ones_like(k), k)
    steps = tf.where(small, -log_ratio, steps)
    return moments.minimum + tf.where(spread, scale * steps, tf.zeros_like(mean))


def _gamma(moments: MagnitudeMoments, ratio: tf.Tensor) -> tf.Tensor:
    """The same for the gamma distribution with this mean and mean logarithm.

    The shape is Minka's closed-form approximation of the maximum-likelihood one.
    """
    # The difference of the two is 0 for equal magnitudes, which then have a very large shape.
    s = tf.maximum(tf.math.log(moments.mean) - moments.mean_log, 1e-6)
    shape = (3.0 - s + tf.sqrt((s - 3.0) ** 2 + 24.0 * s)) / (12.0 * s)
    return moments.mean / shape * gamma_upper_quantile(shape, ratio)


def gamma_upper_quantile(shape: tf.Tensor, ratio: tf.Tensor) -> tf.Tensor:
    """The x with Q(shape, x) = ratio, Q the regularised upper incomplete gamma function.

    Newton's method for log Q as a function of u = log x. That function is concave, so the steps
    never cross the root once they are beyond it, and the start is: by the bound of Laurent and
    Massart (2000), at most a share `exp(-t)` exceeds `shape + sqrt(2 * shape * t) + t`.

    Args:
      shape: float64 scalar > 0.
      ratio: float64 scalar in (0, 1].

    Returns:
      float64 scalar; 0 for ratio 1.
    """
    t = -tf.math.log(ratio)
    u = tf.math.log(shape + tf.sqrt(2.0 * shape * t) + t)
    for _ in range(NEWTON_STEPS):
        x = tf.exp(u)
        above = tf.math.igammac(shape, x)
        slope = tf.exp(shape * u - x - tf.math.lgamma(shape)) / above
        u += (tf.math.log(above) + t) / slope
    return tf.where(t > 0.0, tf.exp(u), tf.zeros_like(u))


_FAMILIES = {
    "exponential": (_exponential, _exponential),
    "pareto": (_pareto, _pareto),
    "gamma_pareto": (_gamma, _pareto),
}
"""The fits of the first stage and of later ones."""
