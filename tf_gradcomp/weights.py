# SPDX-License-Identifier: Apache-2.0
"""This worker's copies of a model's variables, behind the back of gradient tapes.

For these a reduction of gradients is a function of gradients alone: TensorFlow refuses one that
seems to depend on variables.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def local_copies(variable: Any) -> tuple[Any, ...]:
    """Returns this worker's copies of a variable, one for each device."""
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    return variable.values if is_distributed else (variable,)


def read_weight(variable: Any) -> tf.Tensor:
    """Reads the first of this worker's copies of a variable."""
    copy = local_copies(variable)[0]
    return tf.raw_ops.ReadVariableOp(resource=copy.handle, dtype=copy.dtype)


def write_copy(copy: tf.Variable, value: tf.Tensor) -> tf.Operation:
    """Writes one copy of a variable."""
    return tf.raw_ops.AssignVariableOp(resource=copy.handle, value=value)
