# SPDX-License-Identifier: Apache-2.0
"""A clock in the graph: when tensors are computed in a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.ops.time_when_ready import time_when_ready


class Clock:
    """Notes when a step starts, and the seconds from then until each of some tensors is there.

    Only in a graph: where operations run one by one, all gradients are there before any exchange.
    A step notes all of them, and reads what it has noted, in one graph.
    """

    def __init__(self, num_tensors: int, device: str) -> None:
        """Makes a clock.

        Args:
          num_tensors: how many are noted in each step.
          device: where they are computed.
        """
        # What is read from a variable is there when a step begins, and no sooner.
        self._there_at_start = state.host_zeros((), "there_at_start")
        self._started: tf.Tensor | None = None
        self._in_host_memory = tf.DeviceSpec.from_string(device).device_type == "CPU"
        self._noted: list[tf.Tensor | None] = [None] * num_tensors

    def start(self) -> None:
        """Notes the time as soon as the graph runs."""
        # What was noted when a function could not be traced to its end is of no use.
        self._noted = [None] * len(self._noted)
        if not tf.executing_eagerly():
            self._started = time_when_ready(self._there_at_start.read_value())

    def note(self, position: int, gradient: tf.Tensor | tf.IndexedSlices) -> None:
        """Notes the time when a gradient is there."""
        if tf.executing_eagerly():
            return
        values: Any = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        if not self._in_host_memory:
            # An element of it, in host memory, is there when a GPU has computed it, not when it has
            # only been told to.
            values = tf.reshape(values, [-1])[:1]
        self._noted[position] = time_when_ready(values)

    def read(self) -> tf.Tensor:
        """Returns what was noted in this step, float64 ``[1 + num_tensors]``; NaN if nothing was.

        First when it started, in seconds since some fixed time, then the seconds of each tensor.
        """
        noted, self._noted = self._noted, [None] * len(self._noted)
        times = [time for time in noted if time is not None]
        if not times:
            return tf.fill([1 + len(noted)], np.float64("nan"))
        assert len(times) == len(noted), "a step notes all tensors"
        assert self._started is not None, "a step starts before it notes anything"
        # On a busy machine some of what a step is given can be noted before its start is.
        start = tf.minimum(self._started, tf.reduce_min(times))
        return tf.concat([[start], tf.stack(times) - start], 0)
