# SPDX-License-Identifier: Apache-2.0
"""A clock in the graph: when tensors are computed in a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_gradcomp import state


@tf.function(autograph=False)
def _set_to_now(variable: tf.Variable) -> None:
    """Asks for the time in a function of its own: TensorFlow would put such questions in order."""
    variable.assign(tf.timestamp())


class Clock:
    """Notes when a step starts, and the seconds from then until each of some tensors is there.

    Only in a graph: where operations run one by one, all gradients are there before any exchange.
    """

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
        if tf.executing_eagerly():
            return
        values: Any = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        # An element of it, in host memory, is there when a GPU has computed it, not when it has
        # only been told to.
        element = tf.reshape(values, [-1])[:1]
        with tf.device("CPU:0"), tf.control_dependencies([tf.identity(element)]):
            _set_to_now(self._times[position])

    def read(self) -> tf.Tensor:
        """Returns what was noted in this step, float64 ``[1 + num_tensors]``; NaN if nothing was.

        First when it started, in seconds since some fixed time, then the seconds of each tensor.
        """
        if tf.executing_eagerly():
            return tf.fill([1 + len(self._times)], np.float64("nan"))
        start = self._start.read_value()
        return tf.stack([start, *(time.read_value() - start for time in self._times)])
