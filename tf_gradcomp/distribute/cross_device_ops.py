# SPDX-License-Identifier: Apache-2.0
"""Cross-device ops that send gradients through the reducer, and all else as TensorFlow does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_gradcomp.distribute import collectives as collectives_lib
from tf_gradcomp.distribute import compat, gradient_scope
from tf_gradcomp.distribute.flattened_shape import flattened_shape
from tf_gradcomp.distribute.replica_launcher import ReplicaLauncher
from tf_gradcomp.drift import DriftCheck
from tf_gradcomp.measurement import MeasuredCosts
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer
from tf_gradcomp.transports.silent import SilentCollectives


class CompressedCollectiveAllReduce(compat.CollectiveAllReduce):
    """``CollectiveAllReduce`` whose marked all-reduces are compressed.

    An all-reduce is marked by its options (see ``gradient_scope``). Replicas on one worker are
    summed there first; one payload per worker is exchanged, and the result fans out again.
    Gradients of which no static shape is known, not even from their variable, are left to
    TensorFlow.

    Attributes:
      reducer: exchanges gradients; ``None`` if there is nothing to do, as with a single worker that
        leaves momentum and clipping to the optimizer.
    """

    def __init__(
        self,
        policy: Policy,
        drift_check: DriftCheck | None,
        worker_index: int,
        devices: tuple[str, ...],
        group_size: int,
        options: compat.Options,
        collective_keys: Any,
    ) -> None:
        super().__init__(devices, group_size, options, collective_keys)

        def make_launcher(group: tuple[str, ...], size: int, device: str) -> ReplicaLauncher:
            key = collective_keys.get_group_key(group)
            return ReplicaLauncher(key, size, collective_keys, device, options)

        self._launchers = [make_launcher(self._devices, group_size, d) for d in self._devices]
        num_workers = group_size // len(self._devices)
        self.reducer: GradientReducer | None = None
        if num_workers == 1 and not policy.momentum and policy.clip_norm is None:
            return
        device = self._devices[0]
        # One participant per worker. With one device a worker, that is its only launcher.
        self._worker_launcher = self._launchers[0]
        if len(self._devices) > 1:
            self._worker_launcher = make_launcher((device,), num_workers, device)
        collectives = collectives_lib.Collectives(
            self._worker_launcher, num_workers, worker_index, device
        )
        if num_workers == 1:
            alone = SilentCollectives(collectives)
            self.reducer = GradientReducer(policy, alone, compress=False)
            return
        self.reducer = GradientReducer(policy, collectives, MeasuredCosts(collectives), drift_check)

    def batch_reduce(
        self, reduce_op: Any, value_destination_pairs: Any, options: compat.Options | None = None
    ) -> Any:
        """Reduces values in batches; see TensorFlow, which skips it with a single replica."""
        mark = gradient_scope.mark_of(options)
        if self.reducer is None or mark is None or self._group_size > 1:
            return super().batch_reduce(reduce_op, value_destination_pairs, options)
        values = [
            value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value
            for value, _ in value_destination_pairs
        ]
        reduced = self._reduce_gradients(reduce_op, values, mark)
        return [compat.regroup((value,), wrap_class=compat.Mirrored) for value in reduced]

    def _all_reduce(
        self, reduce_op: Any, value: Any, replica_id: int, options: compat.Options
    ) -> Any:
        mark = gradient_scope.mark_of(options)
        if mark is None or self.reducer is None:
            return super()._all_reduce(reduce_op, value, replica_id, options)
        return tf.nest.pack_sequence_as(
            value, self._reduce_gradients(reduce_op, tf.nest.flatten(value), mark)
        )

    def _all_reduce_per_replica_values(
        self, reduce_op: Any, per_replica_values: Any, options: compat.Options
    ) -> list[Any]:
        mark = gradient_scope.mark_of(options)
        if mark is None or self.reducer is None or len(self._devices) == 1:
            return super()._all_reduce_per_replica_values(reduce_op, per_replica_values, options)
        with self._lock, tf.device(self._devices[0]):
            local_sums = [_sum_replicas(value.values) for value in per_replica_values]
            reduced = self._reduce_gradients(reduce_op, local_sums, mark)
        return [self._mirror(gradient) for gradient in reduced]

    def _reduce_gradients(
        self,
        reduce_op: Any,
        gradients: Sequence[gradient_scope.Gradient],
        mark: gradient_scope.GradientMark,
    ) -> list[gradient_scope.Gradient]:
        assert self.reducer is not None
        variables = mark.variables
        if len(gradients) != len(variables):
            raise ValueError(
                f"{len(gradients)} gradients are reduced for {len(variables)} variables; "
                "replicas must reduce the gradients of the same variables together"
            )
        gradients = list(gradients)
        results: list[Any] = [None] * len(gradients)
        planned: dict[int, VariableInfo] = {}
        others = []
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            info = _variable_info(gradient, variable)
            if info is not None:
                planned[index] = info
                if not isinstance(gradient, tf.IndexedSlices):
                    gradients[index] = tf.ensure_shape(gradient, info.shape)
                continue
            policy = self.reducer.policy
            if policy.momentum or policy.clip_norm is not None:
                raise ValueError(
                    f"the gradient of {variable.name} has no static shape, nor has the variable: "
                    f"it cannot have the momentum or clipping of the compression, {policy}"
                )
            logging.info("Gradient of %s has no static shape: sent as it is", variable.name)
            if isinstance(gradient, tf.IndexedSlices):
                results[index] = self._worker_launcher.all_reduce_indexed_slices(gradient)
                others.append(results[index].values)
            else:
                results[index] = self._worker_launcher.all_reduce(gradient)
                others.append(results[index])
        if planned:
            reduced = self.reducer.reduce(
                [gradients[i] for i in planned],
                list(planned.values()),
                {variables[i].key: variables[i].owner for i in planned},
                others,
                mark.learning_rate,
            )
            for index, gradient in zip(planned, reduced, strict=True):
                results[index] = gradient
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            results = [_scale(gradient, 1.0 / self._group_size) for gradient in results]
        return results

    def _mirror(self, gradient: gradient_scope.Gradient) -> Any:
        copies = []
        for device in self._devices:
            with tf.device(device):
                copies.append(tf.nest.map_structure(tf.identity, gradient, expand_composites=True))
        return compat.regroup(copies, wrap_class=compat.Mirrored)


def _sum_replicas(gradients: Sequence[gradient_scope.Gradient]) -> gradient_scope.Gradient:
    """Adds up the local replicas' gradients, in replica order."""
    if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        return tf.IndexedSlices(
            tf.concat([gradient.values for gradient in gradients], axis=0),
            tf.concat([gradient.indices for gradient in gradients], axis=0),
            gradients[0].dense_shape,
        )
    return tf.add_n(list(gradients))


def _scale(gradient: gradient_scope.Gradient, factor: float) -> gradient_scope.Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _variable_info(
    gradient: gradient_scope.Gradient, variable: gradient_scope.MarkedVariable
) -> VariableInfo | None:
    """Returns what is known of the variable, ``None`` if its shape is not."""
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    shape = gradient.shape
    if not shape.is_fully_defined():
        shape = getattr(variable.owner(), "shape", shape)
    if not shape.is_fully_defined():
        return None
    hidden = () if is_sparse else flattened_shape(gradient)
    name, dtype = variable.name, gradient.dtype.name
    return VariableInfo(name, tuple(shape.as_list()), dtype, hidden, is_sparse)
