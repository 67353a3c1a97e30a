# SPDX-License-Identifier: Apache-2.0
"""Measures whether sending few items is as good as theory has it.

Convergence proofs of layer-wise sparsification assume of every layer that the items which the
workers drop weigh no more, in the sum of all workers, than those that a random choice of as many
would drop:

    delta = ||sum(meant) - sum(sent)||^2 / E||sum(meant) - random_k(sum(meant))||^2 <= 1

where the expectation is ``(1 - density) ||sum(meant)||^2``, and what a worker means to send is its
gradient and what was left over.

Source: Shi et al., "Layer-wise Adaptive Gradient Sparsification", ECAI 2020 (arXiv 1911.08727).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.controllers.view_choice import is_due
from tf_gradcomp.transports.base import Collectives

# A prime: a tensor's rows should not be as long, lest a heavy column meets itself.
_SKETCH_SIZE = 251


class Assumption:
    """The last delta of one bucket.

    The sums over the workers are never made: norms are those of sketches, of which 251 numbers
    each are sent (Alon, Matias and Szegedy, STOC 1996). An energy is thereby off by a factor with a
    standard deviation of 9 %, and exact for a bucket of no more items. It is measured at the
    exchanges of ``view_choice.is_due``: ever less often.

    Attributes:
      delta: float64 variable; 0 where nothing was dropped, or not measured yet.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self.delta = state.host_zeros((), "delta", tf.float64)

    def check(
        self,
        step: tf.Tensor,
        meant_and_lost: Callable[[], tuple[tf.Tensor, tf.Tensor]],
        density: tf.Tensor,
    ) -> None:
        """Measures if it is time to.

        Args:
          step: int32 scalar, the number of the exchange.
          meant_and_lost: makes this worker's coefficients and what was left over, float32, and what
            is left over now, of the same shape.
          density: float64 scalar, the share of the items that this worker sends.
        """

        def measure() -> tf.Tensor:
            flat = tf.stack([tf.reshape(tensor, [-1]) for tensor in meant_and_lost()])
            sketches = self._collectives.all_reduce(_sketches(flat, step))
            energies = tf.reduce_sum(tf.square(tf.cast(sketches, tf.float64)), axis=1)
            expected = (1 - density) * energies[0]
            new = tf.math.divide_no_nan(energies[1], expected)
            # A step that is not finite is going to be skipped, and says nothing.
            return self.delta.assign(tf.where(tf.math.is_finite(new), new, self.delta))

        with tf.name_scope("assumption"):
            tf.cond(is_due(step), measure, self.delta.read_value)


def _sketches(rows: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Returns float32 ``[R, _SKETCH_SIZE]``: sums of some items each, with signs drawn at random.

    Args:
      rows: float32 ``[R, n]``.
      step: the signs are those of this exchange, the same on all workers.
    """
    num_rows, size = rows.shape
    padded = tf.pad(rows, [[0, 0], [0, -size % _SKETCH_SIZE]])
    items = tf.reshape(padded, (num_rows, -1, _SKETCH_SIZE))
    coins = tf.random.stateless_uniform(items.shape[1:], (step, 0), 0, 2, tf.int32)
    return tf.reduce_sum(items * tf.cast(2 * coins - 1, tf.float32), axis=1)
