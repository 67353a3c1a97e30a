# SPDX-License-Identifier: Apache-2.0
"""State that belongs to one worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from tf_gradcomp.distribute import compat


def local_zeros(
    shape: tuple[int, ...], device: str, name: str, dtype: tf.DType = tf.float32
) -> tf.Variable:
    """Makes a variable of zeros that is neither mirrored nor broadcast.

    Args:
      shape: its static shape.
      device: where it lives.
      name: its name.
      dtype: its type.
    """
    return compat.local_variable(lambda: tf.zeros(shape, dtype), device, name)


def host_zeros(shape: tuple[int, ...], name: str, dtype: tf.DType = tf.int32) -> tf.Variable:
    """Makes a variable of zeros like ``local_zeros``, in host memory.

    Args:
      shape: its static shape.
      name: its name.
      dtype: its type.
    """
    return compat.local_variable(lambda: tf.zeros(shape, dtype), "CPU:0", name)


def by_name(name: str, variables: Sequence[tf.Variable]) -> dict[str, tf.Variable]:
    """Returns variables by that name and their number."""
    return {f"{name}_{number}": variable for number, variable in enumerate(variables)}


Update: TypeAlias = tuple[tf.Variable, tf.Tensor]


def commit(finite: tf.Tensor, updates: Sequence[Update]) -> None:
    """Stores new values, or none of them.

    Args:
      finite: bool scalar, equal on all workers. When false, a step with an Inf or NaN in any
        bucket, every variable keeps its value: the step is going to be skipped.
      updates: pairs of variable and new value.
    """

    def store_all() -> tf.Operation | None:
        return tf.group(*[variable.assign(value) for variable, value in updates])

    tf.cond(finite, store_all, tf.no_op)
