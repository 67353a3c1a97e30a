# SPDX-License-Identifier: Apache-2.0
"""Numbers of values: Python's integers, or tensors where they change from step to step."""

from __future__ import annotations

from typing import TypeAlias

import tensorflow as tf

# An int64 scalar if it is a tensor. Both know +, *, // and unary minus, and no more is needed to
# tell how many words a block takes.
Count: TypeAlias = int | tf.Tensor


def check_count(count: Count) -> None:
    """Raises ValueError if a count is negative; of a tensor, which the operations check, it is not.

    Args:
      count: a number of values.
    """
    if not tf.is_tensor(count) and count < 0:
        raise ValueError(f"count must be >= 0, got {count}")
