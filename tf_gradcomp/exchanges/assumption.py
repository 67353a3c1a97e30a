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

import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.controllers.view_choice import is_due
from tf_gradcomp.transports.base import Collectives


class Assumption:
    """The last delta of one bucket.

    It takes two exchanges of dense gradients, so it is measured at the exchanges of
    ``view_choice.is_due`` only: ever less often.

    Attributes:
      delta: float64 variable; 0 where nothing was dropped, or not measured yet.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self.delta = state.host_zeros((), "delta", tf.float64)

    def check(self, step: tf.Tensor, meant: tf.Tensor, lost: tf.Tensor, density: tf.Tensor) -> None:
        """Measures if it is time to.

        Args:
          step: int32 scalar, the number of the exchange.
          meant: float32, this worker's coefficients and what was left over.
          lost: float32 of the same shape: what is left over now.
          density: float64 scalar, the share of the items that this worker sends.
        """

        def measure() -> tf.Tensor:
            whole, dropped = map(self._energy_of_sum, (meant, lost))
            expected = (1 - density) * whole
            return self.delta.assign(tf.math.divide_no_nan(dropped, expected))

        tf.cond(is_due(step), measure, self.delta.read_value)

    def _energy_of_sum(self, coefficients: tf.Tensor) -> tf.Tensor:
        total = self._collectives.all_reduce(coefficients)
        return tf.cast(tf.reduce_sum(tf.square(total)), tf.float64)
