# SPDX-License-Identifier: Apache-2.0
"""Error feedback in units of steps rather than gradients.

A residual is what an update of an earlier step lacked. Sent later, it is multiplied by the learning
rate of then: after a decay it is repaid in part only, and after a warm-up too much.
"""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp import state

# A rate below this share of the last one counts as zero.
_NOTHING = 1e-6


class RateCorrection:
    """Multiplies residuals by the last learning rate over this one.

    A rate of zero, or of less than a millionth of the last one, updates nothing: residual and last
    rate stay as they are, and what was meant in such a step is worth nothing.

    Source: the corrected error feedback of BytePS-Compress; Zhong et al., "Compressed Communication
    for Distributed Training: Adaptive Methods and System" (arXiv 2105.07829).

    Attributes:
      variable: the learning rate of the last step that updated anything, 0 before the first one.
    """

    def __init__(self) -> None:
        self.variable = state.host_zeros((), "learning_rate", tf.float32)

    def updates(self, learning_rate: tf.Tensor) -> tf.Tensor:
        """Returns a bool scalar: whether a step with this rate changes any weight."""
        return learning_rate > _NOTHING * self.variable.read_value()

    def scale(self, learning_rate: tf.Tensor) -> tf.Tensor:
        """Returns what to multiply residuals by, a float32 scalar."""
        before = self.variable.read_value()
        known = (before > 0) & self.updates(learning_rate)
        return tf.where(known, before / tf.where(known, learning_rate, 1.0), 1.0)

    def unit(self) -> tf.Tensor:
        """Returns the learning rate that residuals are of; before the first one, 1."""
        before = self.variable.read_value()
        return tf.where(before > 0, before, 1.0)

    def following(self, learning_rate: tf.Tensor) -> tf.Tensor:
        """Returns the next state."""
        return tf.where(self.updates(learning_rate), learning_rate, self.variable.read_value())
