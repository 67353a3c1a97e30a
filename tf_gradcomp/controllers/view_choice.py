# SPDX-License-Identifier: Apache-2.0
"""Chooses the view in which each variable's gradient is sparsified, by the energy it keeps.

Which axis of a gradient is worth transforming depends on the layer and changes as training goes
on, quickly at first and ever more slowly. So the candidates are compared four times in every
doubling of the number of exchanges: often when it matters, and at a cost that vanishes.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

# Candidate 0 is no view at all, which costs no time: another must keep noticeably more. So must
# one with a learned basis, compared with those without: that takes more operations again.
ADVANTAGE = 1.05
# A change rounds the residual once more: not for differences that the next batch may undo.
NOTICEABLE = 1.01


def is_due(step: tf.Tensor) -> tf.Tensor:
    """Returns whether the candidates are compared at an exchange.

    Args:
      step: int32 scalar, the number of the exchange, from 1.

    Returns:
      A bool scalar, true at 1, 2, ..., 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, ...
    """
    ones = step
    for shift in (1, 2, 4, 8, 16):
        ones |= tf.bitwise.right_shift(ones, shift)
    # The next power of two less 1. A step is due if it has no bits but its three highest.
    return tf.equal(step & tf.bitwise.right_shift(ones, 3), 0)


def choose(
    energies: tf.Tensor, current: tf.Tensor, learned: Sequence[Sequence[bool]] | None = None
) -> tf.Tensor:
    """Returns the candidate that each variable should use, int32 ``[V]``.

    Args:
      energies: float64 ``[V, C]``, the energy that each candidate would keep, summed over the
        workers. If any is not finite, the step is going to be skipped and nothing changes.
        Candidate 0 is preferred to others that keep only a little more.
      current: int32 ``[V]``, the candidates in use. They stay unless another keeps noticeably
        more.
      learned: which candidates have a learned basis, ``[V, C]``; ``None`` for none of them. They
        must keep noticeably more than those without, candidate 0 and others alike.
    """
    if learned is not None:
        energies /= tf.where(tf.constant(learned), tf.constant(ADVANTAGE, tf.float64), 1.0)
    energies = tf.concat([energies[:, :1] * ADVANTAGE, energies[:, 1:]], axis=1)
    kept = tf.gather(energies, current, batch_dims=1)
    margin = tf.where(current == 0, tf.constant(1, tf.float64), NOTICEABLE)
    is_better = tf.reduce_max(energies, axis=1) > margin * kept
    is_valid = tf.reduce_all(tf.math.is_finite(energies))
    best = tf.argmax(energies, axis=1, output_type=tf.int32)
    return tf.where(is_better & is_valid, best, current)
