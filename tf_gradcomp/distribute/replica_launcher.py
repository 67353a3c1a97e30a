# SPDX-License-Identifier: Apache-2.0
"""Launches collectives with keys and deadlines that hold in real training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_gradcomp.distribute import compat
from tf_gradcomp.ops.deadline import within_deadline

# TensorFlow's own keys count up from 100; these must never meet them.
_FIRST_KEY = 1 << 30


class ReplicaLauncher(compat.CollectiveReplicaLauncher):
    """``CollectiveReplicaLauncher`` that finds keys inside of loops, and watches time cheaply.

    Each run of a collective needs a key that is new, and the same on all workers. TensorFlow
    draws all keys of a function in Python when the function is called, and hands them in as hidden
    arguments. That fails when the function is called inside of another one's loop or branch, as
    Keras 3 does with ``steps_per_execution``: nothing is called from Python there. It also gives
    all iterations of a function's own loop one key, which serves as long as the shape is the same
    in all of them. In these two cases alone, a counter in a variable takes over. It counts alike on
    all workers as long as they run the same collectives in the same order; a step that fails
    halfway, as one that runs out of data may, would break that, which is why TensorFlow's way is
    kept wherever it works.

    TensorFlow's own timeout, which it calls a means of debugging, starts threads for every
    collective. It is left to collectives outside of a ``tf.function``.
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
        compat.check_object(self, "CollectiveReplicaLauncher")
        self._has_static_shape = True  # of what is being launched
        self._next_key = compat.local_variable(
            lambda: tf.constant(_FIRST_KEY, tf.int32), "CPU:0", "collective_key"
        )

    def all_reduce(
        self,
        input_tensor: tf.Tensor,
        control_input: Any = None,
        options: compat.Options | None = None,
    ) -> tf.Tensor:
        launch = super().all_reduce
        return self._launch(
            lambda options: launch(input_tensor, control_input, options), input_tensor, options
        )

    def _all_gather(self, input_tensor: tf.Tensor, options: compat.Options | None) -> tf.Tensor:
        launch = super()._all_gather
        return self._launch(lambda options: launch(input_tensor, options), input_tensor, options)

    def all_to_all(self, input_tensor: tf.Tensor) -> tf.Tensor:
        """Sends row ``i`` of a dense tensor to participant ``i``, and returns what came.

        TensorFlow's launcher has no method for this collective.
        """

        def launch(options: compat.Options) -> tf.Tensor:
            instance_key = self._next_instance_key()
            ordering = self._get_ordering_token()
            with tf.device(self._device):
                return tf.raw_ops.CollectiveAllToAllV2(
                    input=input_tensor,
                    group_size=self._group_size,
                    group_key=self._group_key,
                    instance_key=instance_key,
                    ordering_token=[] if ordering is None else [ordering],
                    communication_hint=options.implementation.value.lower(),
                    timeout_seconds=options.timeout_seconds,
                )

        return self._launch(launch, input_tensor, None)

    def _launch(
        self,
        launch: Callable[[compat.Options], tf.Tensor],
        input_tensor: tf.Tensor,
        options: compat.Options | None,
    ) -> tf.Tensor:
        options = self._options.merge(options)
        self._has_static_shape = input_tensor.shape.is_fully_defined()
        ordering = self._get_ordering_token()
        if not options.timeout_seconds or tf.executing_eagerly() or ordering is None:
            return launch(options)
        watched_elsewhere = compat.Options(timeout_seconds=0, implementation=options.implementation)
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        with tf.device(self._device):
            return within_deadline(
                lambda: launch(watched_elsewhere),
                input_tensor,
                ordering,
                options.timeout_seconds,
                f"The collective {scope or 'of a metric, loss, statistic or dataset'}",
            )

    def _next_instance_key(self) -> tf.Tensor:
        is_loop_with_varying_shape = not self._has_static_shape and _is_inside_of_control_flow()
        if not _is_called_inside_of_control_flow() and not is_loop_with_varying_shape:
            return super()._next_instance_key()
        with tf.device("CPU:0"):
            return self._next_key.assign_add(1).read_value()


def _is_inside_of_control_flow() -> bool:
    """Whether the current code is in a loop or branch of the function that is being traced."""
    return tf.inside_function() and _is_control_flow(tf.compat.v1.get_default_graph())


def _is_called_inside_of_control_flow() -> bool:
    """Whether a function around the current code is being called in a loop or branch."""
    if not tf.inside_function():
        return False
    graph = tf.compat.v1.get_default_graph()
    while _is_control_flow(graph):  # loops and branches of the function itself are no obstacle
        graph = graph.outer_graph
    graph = graph.outer_graph
    while graph is not None and not _is_control_flow(graph):
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def _is_control_flow(graph: Any) -> bool:
    return getattr(graph, "is_control_flow_graph", False)
