# SPDX-License-Identifier: Apache-2.0
"""Deadlines for collectives.

TensorFlow's own timeout starts two threads per collective, which sleep until the time is over
however soon the collective is done: at eight steps a second and one minute, thousands of them.
Here one thread watches all.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>DeadlineStart")
tf.no_gradient("Gradcomp>DeadlineStop")


def within_deadline(
    launch: Callable[[], tf.Tensor],
    input_tensor: tf.Tensor,
    ordering: tf.Tensor,
    timeout_seconds: float,
    what: str,
) -> tf.Tensor:
    """Runs a collective that is aborted, with all others, when it takes too long.

    The time runs from when the input is there, and what was launched before with the same
    ``ordering`` is done, to when the output is. On the current device.

    Args:
      launch: makes the collective; returns its output, of any shape and dtype.
      input_tensor: what the collective waits for before it starts, of any shape and dtype.
      ordering: resource scalar that the collective uses, too.
      timeout_seconds: the time allowed, > 0.
      what: what takes too long, for the error's message.

    Returns:
      The output of ``launch``.

    Raises:
      tf.errors.DeadlineExceededError: when run, if it takes longer.
      tf.errors.FailedPreconditionError: outside of a ``tf.function``.
      tf.errors.InvalidArgumentError: ``timeout_seconds`` is not positive.
    """
    ops = loader.load()
    with tf.control_dependencies([input_tensor]):
        armed = ops.gradcomp_deadline_start(
            ordering=ordering, timeout_seconds=timeout_seconds, what=what
        )
    with tf.control_dependencies([armed]):
        result = launch()
    with tf.control_dependencies([result]):
        ops.gradcomp_deadline_stop(ordering=ordering, armed=armed)
    return result
