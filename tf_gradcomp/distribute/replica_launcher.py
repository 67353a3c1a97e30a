# SPDX-License-Identifier: Apache-2.0
"""Launches collectives that also work in functions called inside of control flow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_gradcomp.distribute import compat

# Keys of collectives outside of functions count up from 100; these must never meet them.
_FIRST_KEY = 1 << 30


class ReplicaLauncher(compat.CollectiveReplicaLauncher):
    """``CollectiveReplicaLauncher`` whose keys are counted where collectives run.

    Each run of a collective needs a key that is new, and the same on all workers. TensorFlow
    draws it in Python when a function is called, and hands it in as a hidden argument. That
    fails when the function is called inside of another one's loop or branch, as Keras 3 does
    with ``steps_per_execution``: nothing is called from Python there. A counter in a variable
    counts alike on all workers, as they run the same collectives in the same order.
    """

    def __init__(
        self,
        group_key: int,
        group_size: int,
        collective_keys: Any,
        device: str,
        options: compat.Options,
    ) -> None:
        super().__init__(group_key, group_size, collective_keys, device, options)
        self._next_key = compat.local_variable(
            lambda: tf.constant(_FIRST_KEY, tf.int32), "CPU:0", "collective_key"
        )

    def _next_instance_key(self) -> tf.Tensor:
        if not tf.inside_function():
            return super()._next_instance_key()
        with tf.device("CPU:0"):
            return self._next_key.assign_add(1).read_value()
