# SPDX-License-Identifier: Apache-2.0
"""Chooses the view in which each variable's gradient is sparsified, by the energy it keeps.

Which axis of a gradient is worth transforming depends on the layer and changes as training goes
on, quickly at first and ever more slowly. So the candidates are compared at exchanges 1, 2, 4, 8,
...: often when it matters, and at a cost that vanishes.
"""

from __future__ import annotations

import tensorflow as tf

# A change rounds the residual once more: not for differences that the next batch may undo.
NOTICEABLE = 1.01


def is_due(step: tf.Tensor) -> tf.Tensor:
    """Returns a bool scalar: whether the candidates are compared at exchange ``step``, from 1."""
    return tf.equal(step & (step - 1), 0)


def choose(energies: tf.Tensor, current: tf.Tensor) -> tf.Tensor:
    """Returns the candidate that each variable should use, int32 ``[V]``.

    Args:
      energies: float64 ``[V, C]``, the energy that each candidate would keep, summed over the
        workers. If any is not finite, the step is going to be skipped and nothing changes.
      current: int32 ``[V]``, the candidates in use. They stay unless another keeps noticeably
        more.
    """
    kept = tf.gather(energies, current, batch_dims=1)
    is_better = tf.reduce_max(energies, axis=1) > NOTICEABLE * kept
    is_valid = tf.reduce_all(tf.math.is_finite(energies))
    best = tf.argmax(energies, axis=1, output_type=tf.int32)
    return tf.where(is_better & is_valid, best, current)
