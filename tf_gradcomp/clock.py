# SPDX-License-Identifier: Apache-2.0
"""A clock in the graph: when tensors are computed in a step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_gradcomp import state


@tf.function(autograph=False)
def _set_to_now(variable: tf.Variable) -> None:
    """Asks for the time in a function of its own: TensorFlow would put such questions in order."""
    variable.assign(tf.timestamp())


class Clock:
    """Notes the seconds from the start of a step until each of some tensors is there."""

    def __init__(self, num_tensors: int) -> None:
        self._start, *self._times = (
            # Each has a variable of its own, lest one waits for another.
            state.host_zeros((), "time", tf.float64)
            for _ in range(1 + num_tensors)
        )

    def start(self) -> None:
        """Notes the time as soon as the graph runs."""
        with tf.device("CPU:0"):
            _set_to_now(self._start)

    def note(self, position: int, gradient: tf.Tensor | tf.IndexedSlices) -> None:
        """Notes the time when a gradient is there."""
        values: Any = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        # An element of it, in host memory, is there when a GPU has computed it, not when it has
        # only been told to.
        element = tf.reshape(values, [-1])[:1]
        with tf.device("CPU:0"), tf.control_dependencies([tf.identity(element)]):
            _set_to_now(self._times[position])

    def read(self) -> tf.Tensor:
        """Returns the seconds of each tensor of this step, float64 ``[num_tensors]``."""
        return tf.stack([time.read_value() for time in self._times]) - self._start.read_value()
