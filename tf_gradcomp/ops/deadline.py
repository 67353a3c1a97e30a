# SPDX-License-Identifier: Apache-2.0
"""A time limit for parts of a graph that wait for other workers.

TensorFlow's own limit (``timeout_seconds`` of its collectives) starts two threads per collective,
which sleep until the time is over however soon the collective is done: at eight steps a second
and a limit of one minute, thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>DeadlineStart")
tf.no_gradient("Gradcomp>DeadlineStop")


def within_deadline(
    launch: Callable[[], tf.Tensor], input_tensor: tf.Tensor, timeout_seconds: float
) -> tf.Tensor:
    """Runs a collective that is aborted, with all others, when it takes too long.

    The time runs from when the input is there to when the output is. Only inside of a
    ``tf.function``, and on the current device.

    Args:
      launch: makes the collective.
      input_tensor: what the collective waits for before it starts.
      timeout_seconds: the time allowed, > 0.

    Returns:
      The result of ``launch``.

    Raises:
      tf.errors.DeadlineExceededError: when run, if it takes longer.
    """
    ops = loader.load()
    with tf.control_dependencies([input_tensor]):
        ticket = ops.gradcomp_deadline_start(timeout_seconds=timeout_seconds, name="deadline")
    with tf.control_dependencies([ticket]):
        result = launch()
    with tf.control_dependencies([result]):
        ops.gradcomp_deadline_stop(ticket=ticket)
    return result
