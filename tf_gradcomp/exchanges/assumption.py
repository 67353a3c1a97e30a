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

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.controllers.view_choice import is_due
from tf_gradcomp.transports.base import Collectives

# A prime: a tensor's rows should not be as long, lest a heavy column meets itself.
_SKETCH_SIZE = 251


class Dropped(NamedTuple):
    """What one worker dropped of a bucket.

    What the workers meant in all is ``total`` and all that they have lost. A worker's own is not
    here, for to keep it until the end of the step would keep its memory from being used again.

    Attributes:
      total: coefficients of what all workers have sent, float32; the same on all of them.
      lost: what is left over now on this worker, of the same shape.
      density: float64 scalar, the share of the items that it has sent.
    """

    total: tf.Tensor
    lost: tf.Tensor
    density: tf.Tensor


class Assumption:
    """The last delta of some buckets.

    What the workers lost is never summed: norms are those of sketches, of which 251 numbers each
    are sent (Alon, Matias and Szegedy, STOC 1996). An energy is thereby off by a factor with a
    standard deviation of 9 %, and exact for a bucket of no more items. It is measured at the
    exchanges of ``view_choice.is_due``: ever less often.

    All buckets are looked at when the last one has been exchanged, in one condition: one for each
    would make the next exchange wait.

    Attributes:
      numbers: those of the buckets in the plan.
    """

    def __init__(self, numbers: Sequence[int], collectives: Collectives) -> None:
        self.numbers = tuple(numbers)
        self._collectives = collectives
        self._deltas = state.host_zeros((len(self.numbers),), "deltas", tf.float64)

    def deltas(self) -> dict[int, float]:
        """Returns the last delta by the bucket's number.

        0 where nothing was dropped, or not measured yet. Reads the state, so not in a graph.
        """
        return dict(zip(self.numbers, self._deltas.numpy().tolist(), strict=True))

    def check(self, step: tf.Tensor, buckets: Sequence[Callable[[], Dropped]]) -> None:
        """Measures if it is time to.

        Args:
          step: int32 scalar, the number of the exchange.
          buckets: what was dropped of each of ``numbers``.
        """

        def measure() -> tf.Tensor:
            dropped = [bucket() for bucket in buckets]
            totals = tf.stack([_sketch(each.total, step) for each in dropped])
            lost = self._collectives.all_reduce(
                tf.stack([_sketch(each.lost, step) for each in dropped])
            )
            random = (1 - tf.stack([each.density for each in dropped])) * _energy(totals + lost)
            new = tf.math.divide_no_nan(_energy(lost), random)
            # A step that is not finite is going to be skipped, and says nothing.
            old = self._deltas.read_value()
            return self._deltas.assign(tf.where(tf.math.is_finite(new), new, old))

        with tf.name_scope("assumption"):
            tf.cond(is_due(step), measure, self._deltas.read_value)


def _sketch(values: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Returns float32 ``[_SKETCH_SIZE]``: sums of some items each, with signs drawn at random.

    Args:
      values: float32 of any shape.
      step: the signs are those of this exchange, the same on all workers.
    """
    row = tf.reshape(values, [-1])
    items = tf.reshape(tf.pad(row, [[0, -row.shape[0] % _SKETCH_SIZE]]), (-1, _SKETCH_SIZE))
    coins = tf.random.stateless_uniform(items.shape, (step, 0), 0, 2, tf.int32)
    return tf.reduce_sum(items * tf.cast(2 * coins - 1, tf.float32), axis=0)


def _energy(sketches: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(tf.cast(sketches, tf.float64)), axis=1)
