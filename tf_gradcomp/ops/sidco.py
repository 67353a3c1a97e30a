# SPDX-License-Identifier: Apache-2.0
"""SIDCo: thresholds from distributions that are fitted to the magnitudes, in several stages.

Source: Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for
Distributed Training Systems" (SIDCo), MLSys 2021, and its code. docs/methods/sidco.md has the
formulas and what differs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_gradcomp.ops.magnitude_moments import MagnitudeMoments, magnitude_moments

FITS = ("exponential", "pareto", "gamma_pareto")
"""The distribution of the first stage, then that of later ones where they differ."""

SAMPLE_ITEMS = 1 << 20
"""Moments are those of about so many items: more would cost time and hardly change a fit."""

SAMPLE_RUN = 64
"""Neighbouring items that are sampled together."""

MIN_STRATA = 256
"""Places to sample from; where runs are too long for so many, all items are fitted."""

MIN_SELECTED = 1000
"""Items of the sample that should reach the threshold: more are sampled at low densities."""

MIN_NONZERO = 1 / 64
"""Where a smaller share of the sample than this differs from zero, all items are fitted."""

FIRST_RATIO = 0.25
"""The share of the magnitudes that the first of several stages keeps."""

NEWTON_STEPS = 8
"""From the start below, the quantile is then exact to better than 1e-9 for shapes 0.05 to 1e5."""


def sidco_threshold(
    values: tf.Tensor,
    density: float | tf.Tensor,
    stages: int | tf.Tensor = 3,
    fit: str = "gamma_pareto",
    row_length: int = 0,
) -> tf.Tensor:
    """The threshold that a share `density` of the items reaches, according to fits.

    Stage 1 fits a distribution to all magnitudes but zeros and takes the quantile that a quarter of
    them exceed; each later stage fits the magnitudes above the last threshold and lets a share of
    them pass, the same in each, so that `density` is left in the end. Of more than `SAMPLE_ITEMS`
    items, a sample is fitted. Not differentiable.

    Args:
      values: float32 `[n]` real or `[n, 2]` complex items (real part first), n >= 1.
      density: share of the n items wanted, in (0, 1].
      stages: int scalar M >= 1; one stage is used where `density` exceeds a quarter of the items
        that are not zero.
      fit: one of `FITS`. Pareto is the generalised Pareto distribution.
      row_length: L >= 0, as in `top_k.top_k_select`.

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
    values = tf.convert_to_tensor(values)
    sample = _sample(values, density, row_length)
    if sample is values:
        return _fitted_threshold(values, density, stages, fit, row_length)
    # Of values that are nearly all zero, a sample may hold none that counts.
    nonzero = tf.math.count_nonzero(sample)
    return tf.cond(
        nonzero >= math.ceil(MIN_NONZERO * sample.shape[0]),
        lambda: _fitted_threshold(sample, density, stages, fit, row_length),
        lambda: _fitted_threshold(values, density, stages, fit, row_length),
    )


def _sample(values: tf.Tensor, density: float | tf.Tensor, row_length: int) -> tf.Tensor:
    """Returns all items if they are few, else one run of items from each of many equal strata.

    Places in the strata are scrambled but fixed, so that no period in the items meets one of the
    sample. Runs are whole rows if the items are bins of rows, which rank by their place in them.
    """
    if tf.is_tensor(density) or values.shape[0] is None:
        return values
    run = row_length // 2 + 1 if row_length else SAMPLE_RUN
    num_strata = max(SAMPLE_ITEMS, math.ceil(MIN_SELECTED / density)) // run
    stratum = values.shape[0] // run // max(1, num_strata)  # in runs
    if num_strata < MIN_STRATA or stratum < 2:
        return values
    floats = run * values.shape[1:].num_elements()
    runs = tf.reshape(values[: values.shape[0] // run * run], [-1, floats])
    strata = np.arange(num_strata)
    scrambled = strata * 0x9E3779B9 % 2**32
    chosen = tf.gather(runs, strata * stratum + (scrambled * stratum >> 32))
    return tf.reshape(chosen, [num_strata * run, *values.shape[1:]])


def _fitted_threshold(
    values: tf.Tensor,
    density: float | tf.Tensor,
    stages: int | tf.Tensor,
    fit: str,
    row_length: int,
) -> tf.Tensor:
    """Returns the threshold by fits to all of the items."""
    first_fit = {"exponential": _exponential, "pareto": _pareto, "gamma_pareto": _gamma}[fit]
    later_fit = _exponential if fit == "exponential" else _pareto
    stages = tf.cast(stages, tf.int32)
    density = _float64(density)
    size = tf.cast(tf.shape(values, tf.int64)[0], tf.float64)

    moments = magnitude_moments(values, 0.0, row_length)
    wanted = density * size / tf.maximum(moments.count, 1.0)
    wanted = tf.minimum(wanted, 1.0)
    several = tf.logical_and(stages > 1, wanted < FIRST_RATIO)
    first_ratio = tf.where(several, tf.constant(FIRST_RATIO, tf.float64), wanted)
    later_stages = tf.where(several, stages - 1, 0)
    later_ratio = tf.pow(
        wanted / first_ratio, 1.0 / tf.cast(tf.maximum(later_stages, 1), tf.float64)
    )
    # The zeros are below the smallest magnitude of stage 1: the fit starts from zero.
    bound = first_fit(moments._replace(minimum=tf.zeros([], tf.float64)), first_ratio)

    def next_stage(stage: tf.Tensor, bound: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        above = magnitude_moments(values, bound, row_length)
        fitted = later_fit(above, later_ratio)
        return stage + 1, tf.where(above.count > 0, fitted, bound)

    _, bound = tf.while_loop(
        lambda stage, _: stage < later_stages, next_stage, (tf.constant(0), bound)
    )
    infinity = tf.constant(math.inf, tf.float64)
    return tf.cast(tf.where(moments.count > 0, bound, infinity), tf.float32)


class StageControl(NamedTuple):
    """How many stages to use, and what is known from trying: plain numbers, to be saved as such."""

    stages: int = 3
    """M >= 1."""
    change: int = 0
    """The last change of M, 1 or -1; 0 if the share was right then."""
    deviation: float = math.inf
    """`abs(log(share))` before the last change; Inf if the share was right then."""


def adapt_stages(control: StageControl, achieved: float, density: float) -> StageControl:
    """The number of stages for the next steps; to be called every few steps.

    Args:
      control: what the last call returned.
      achieved: mean over the last steps (and over the workers, so that all decide alike) of the
        share of items that reached the threshold, >= 0.
      density: the share wanted, in (0, 1].

    Returns:
      The same number of stages if 0.8 to 1.2 times the share wanted passed. Else one more or fewer,
      within 1 and `ceil(log2(1 / density))`: first in SIDCo's direction, more if too few passed;
      then on in the same direction as long as that brings the share closer, else back.
    """
    share = achieved / density
    if 0.8 <= share <= 1.2:
        return StageControl(control.stages)
    deviation = abs(math.log(max(share, 1e-9)))
    if control.change == 0:
        change = 1 if share < 1 else -1
    else:
        change = control.change if deviation < control.deviation else -control.change
    most = max(1, math.ceil(-math.log2(density)))
    if not 1 <= control.stages + change <= most:
        change = -change
    stages = min(max(control.stages + change, 1), most)
    return StageControl(stages, change, deviation)


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
