# SPDX-License-Identifier: Apache-2.0
"""Error feedback: what one step could not send is added to what the next one says.

Source: Seide et al., "1-Bit Stochastic Gradient Descent", INTERSPEECH 2014; for compression in
general Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019 (arXiv 1901.09847).
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.compression import Compression
from tf_gradcomp.exchange_state import RESIDUAL
from tf_gradcomp.feedback.rate_correction import RateCorrection


class ErrorFeedback:
    """The residuals of one bucket, and the learning rate at which they were left if that matters.

    Attributes:
      residuals: what payloads lost; empty where the compression has no error feedback.
    """

    def __init__(
        self, compression: Compression, shapes: Sequence[tuple[int, ...]], device: str
    ) -> None:
        """Makes residuals of zeros.

        Args:
          compression: says whether there are any.
          shapes: their shapes.
          device: where they live.
        """
        self.residuals = [
            state.local_zeros(shape, device, RESIDUAL)
            for shape in (shapes if compression.error_feedback else ())
        ]
        self._rate = RateCorrection() if compression.lr_correction else None

    @property
    def memory(self) -> dict[str, tf.Variable]:
        """What is remembered from step to step, by name."""
        rate = {} if self._rate is None else {"learning_rate": self._rate.variable}
        return state.by_name(RESIDUAL, self.residuals) | rate

    def repaid(self, learning_rate: tf.Tensor | None) -> list[tf.Tensor]:
        """Returns what to add to this step's gradients, one tensor for each residual.

        Args:
          learning_rate: float32 scalar, that of this step; ``None`` if it is not known.

        Raises:
          ValueError: the learning rate is needed.
        """
        values = [residual.read_value() for residual in self.residuals]
        if self._rate is None:
            return values
        if learning_rate is None:
            raise ValueError(
                "lr_correction needs the learning rate, which is not known here: give it to "
                "all_reduce_gradients, or let a Keras optimizer reduce the gradients"
            )
        scale = self._rate.scale(learning_rate)
        return [scale * value for value in values]

    def left(self, lost: Sequence[tf.Tensor], learning_rate: tf.Tensor | None) -> list[tf.Tensor]:
        """Returns what is left over after this step, one tensor for each residual.

        Args:
          lost: what the step has lost, with what was repaid. If it updates nothing, what was left
            before it still is.
          learning_rate: as in ``repaid``.
        """
        if self._rate is None or learning_rate is None:
            return list(lost)
        return tf.cond(
            self._rate.updates(learning_rate),
            lambda: list(map(tf.identity, lost)),
            lambda: [residual.read_value() for residual in self.residuals],
        )

    def following(
        self, left: Sequence[tf.Tensor], learning_rate: tf.Tensor | None
    ) -> list[state.Update]:
        """Returns the next state, if that much is ``left``."""
        updates: list[state.Update] = list(zip(self.residuals, left, strict=True))
        if self._rate is not None and learning_rate is not None:
            updates.append((self._rate.variable, self._rate.following(learning_rate)))
        return updates

    def in_updates(self, residual: tf.Tensor) -> tf.Tensor:
        """Multiplies what is left over by its learning rate, if that matters."""
        return residual if self._rate is None else residual * self._rate.unit()

    def in_gradients(self, updates: tf.Tensor) -> tf.Tensor:
        """Undoes ``in_updates``. Where the learning rate is not known, it is 1 from now on."""
        if self._rate is None:
            return updates
        self._rate.variable.assign(self._rate.unit())
        return updates / self._rate.unit()
