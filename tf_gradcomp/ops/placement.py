# SPDX-License-Identifier: Apache-2.0
"""Which device an op runs on, where not every device has a kernel for it."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import tensorflow as tf


def for_items(
    items: tf.Tensor, leading: int, counted: bool = False
) -> AbstractContextManager[object]:
    """A scope in which an op that takes items finds a kernel.

    The GPU kernels take real and complex items, and positions blocks that are not counted.

    Args:
      items: a tensor of items, real ones if it has `leading` dimensions.
      leading: number of dimensions before that of the components.
      counted: whether their positions block is a counted one.
    """
    shape = items.shape
    is_wide = shape.rank == leading + 1 and shape[-1] not in (None, 2)
    return tf.device("CPU:0") if counted or is_wide else contextlib.nullcontext()
