# SPDX-License-Identifier: Apache-2.0
"""Moments of magnitudes: what distributions are fitted to."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>MagnitudeMoments")


class MagnitudeMoments(NamedTuple):
    """Moments of some magnitudes y; float64 scalars, all zero if there are none."""

    count: tf.Tensor
    minimum: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor
    """Mean of (y - mean)^2."""
    mean_log: tf.Tensor
    """Mean of the natural logarithm of y."""


def magnitude_moments(
    values: tf.Tensor,
    bound: float | tf.Tensor = 0.0,
    row_length: int = 0,
    name: str | None = None,
) -> MagnitudeMoments:
    """Moments of the magnitudes that are finite and above a bound, in one pass.

    Sums are taken in float64 in a fixed order, so the bits depend on neither threads nor
    instruction set. Not differentiable.

    Args:
      values: float32 `[n]` real or `[n, 2]` complex items (real part first). The magnitude of a
        complex item is `sqrt(w * (re^2 + im^2))`, w = 2 for bins that stand for a conjugate pair;
        that of items of more components, `[n, c]`, is their Euclidean norm.
      bound: float64 scalar >= 0. A bound of 0 leaves out the zeros.
      row_length: L >= 0, as in `top_k.top_k_select`.
      name: name of the operation.

    Raises:
      tf.errors.InvalidArgumentError: a shape, `bound` or `row_length` is outside these limits.
    """
    # A Python number goes to float64 at once; tf.cast would take it through float32.
    bound = tf.cast(bound, tf.float64) if tf.is_tensor(bound) else tf.constant(bound, tf.float64)
    moments = loader.load().gradcomp_magnitude_moments(
        values=values, bound=bound, row_length=row_length, name=name
    )
    return MagnitudeMoments(*tf.unstack(moments))
