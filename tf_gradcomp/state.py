# SPDX-License-Identifier: Apache-2.0
"""State that belongs to one worker."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.distribute import compat


def local_zeros(shape: tuple[int, ...], device: str, name: str) -> tf.Variable:
    """Makes a float32 variable of zeros that is neither mirrored nor broadcast.

    Args:
      shape: its static shape.
      device: where it lives.
      name: its name.
    """
    return compat.local_variable(lambda: tf.zeros(shape, tf.float32), device, name)


def local_counter(name: str) -> tf.Variable:
    """Makes an int32 scalar variable that starts at 0, in host memory.

    Args:
      name: its name.
    """
    return compat.local_variable(lambda: tf.constant(0, tf.int32), "CPU:0", name)
