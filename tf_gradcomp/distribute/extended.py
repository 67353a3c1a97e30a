# SPDX-License-Identifier: Apache-2.0
"""The strategy's extended object: TensorFlow's own, with our cross-device ops."""

from __future__ import annotations

import errno
import os
from typing import Any

import tensorflow as tf

from tf_gradcomp import cluster, lost_workers, reachability
from tf_gradcomp.agreement import Fact, require_agreement
from tf_gradcomp.distribute import compat, gradient_scope, iterators, keras_adapters
from tf_gradcomp.distribute.cross_device_ops import CompressedCollectiveAllReduce
from tf_gradcomp.drift import DriftCheck
from tf_gradcomp.policy import Policy
from tf_gradcomp.reducer import GradientReducer
from tf_gradcomp.version import WIRE_FORMAT_VERSION, __version__

DEFAULT_TIMEOUT_SECONDS = 60.0
MAX_TIMEOUT_SECONDS = 1e6


class CompressedExtended(compat.CollectiveAllReduceExtended):
    """``CollectiveAllReduceExtended`` that holds a ``CompressedCollectiveAllReduce``."""

    compresses_gradients = True
    _cross_device_ops: CompressedCollectiveAllReduce

    def __init__(
        self,
        container_strategy: Any,
        policy: Policy,
        drift_check: DriftCheck | None,
        cluster_resolver: Any,
        communication_options: compat.Options | None,
    ) -> None:
        self._policy = policy
        self._drift_check = drift_check
        if cluster_resolver is None:
            cluster.check_tf_config(os.environ)
        super().__init__(
            container_strategy, cluster_resolver, _strategy_options(communication_options)
        )

    def _initialize_strategy(self, cluster_resolver: Any, devices: Any) -> None:
        self._join_cluster(cluster_resolver, devices)
        compat.check_object(self, "CollectiveAllReduceExtended")
        stock: Any = self._cross_device_ops
        compat.check_object(stock, "CollectiveAllReduce")
        self._cross_device_ops = CompressedCollectiveAllReduce(
            self._policy,
            self._drift_check,
            self._id_in_cluster,
            stock._devices,
            stock._group_size,
            self._communication_options,
            self._collective_keys,
        )
        if self.reducer is not None:
            # Compared now, so that a difference shows before data are read or models built.
            require_agreement(
                self.reducer.collectives,
                "versions and compression",
                [
                    Fact("tf_gradcomp", __version__),
                    Fact("wire format", str(WIRE_FORMAT_VERSION)),
                    Fact("TensorFlow", tf.__version__),
                    Fact("devices per worker", str(len(stock._devices))),
                    Fact("compression", str(self._policy)),
                    Fact("drift check", str(self._drift_check)),
                ],
            )

    def _join_cluster(self, cluster_resolver: Any, devices: Any) -> None:
        """Lets TensorFlow start its server and wait for all workers, and explains what fails."""
        members = cluster.from_resolver(cluster_resolver)
        if members is None:
            super()._initialize_strategy(cluster_resolver, devices)
            return
        if members.others:
            lost_workers.explain_uncaught(members)
        try:
            with reachability.missing_named(members.others):
                super()._initialize_strategy(cluster_resolver, devices)
        except tf.errors.UnknownError as error:
            address = members.addresses[members.own]
            if not reachability.is_port_in_use(address):
                raise
            raise OSError(
                errno.EADDRINUSE,
                f"{members.own} cannot listen at {address}, for another process does. Does a "
                f"worker of an earlier run still run there, or another with the same index?",
            ) from error

    @property
    def reducer(self) -> GradientReducer | None:
        """Exchanges the gradients; ``None`` if there is nothing to do, with a single worker."""
        return self._cross_device_ops.reducer

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        # A program may import a Keras after it has made the strategy.
        keras_adapters.ensure_installed()
        is_function = isinstance(fn, tf.types.experimental.GenericFunction)
        if len(self._devices) > 1 or is_function:
            return super()._call_for_each_replica(fn, args, kwargs)
        # TensorFlow runs replicas in threads, which meet where they are reduced; that must not be
        # inside of a tf.cond, where Keras 3 puts the reduction when it accumulates gradients or
        # scales losses. A worker's only replica has none to meet and can run right here. (For a
        # tf.function, TensorFlow moves the replicas into it.)
        replica_id = self._get_replica_id_in_sync_group(0)
        with (
            tf.device(self._devices[0]),
            tf.distribute.ReplicaContext(self._container_strategy(), replica_id),
        ):
            return fn(*compat.select_replica(0, args), **compat.select_replica(0, kwargs))

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        distributed = super()._experimental_distribute_dataset(dataset, options)
        return iterators.drop_iterators_in_background(distributed)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        distributed = super()._distribute_datasets_from_function(dataset_fn, options)
        return iterators.drop_iterators_in_background(distributed)


def _strategy_options(given: compat.Options | None) -> gradient_scope.StrategyOptions:
    """Returns the given options with a timeout, which is off in TensorFlow by default."""
    if given is None:
        return gradient_scope.StrategyOptions(timeout_seconds=DEFAULT_TIMEOUT_SECONDS)
    if not isinstance(given, compat.Options):
        raise ValueError(
            "communication_options must be a tf.distribute.experimental.CommunicationOptions, "
            f"got {given!r}"
        )
    timeout = given.timeout_seconds
    if timeout is not None and not 0 <= timeout <= MAX_TIMEOUT_SECONDS:
        raise ValueError(
            f"communication_options: timeout_seconds must be from 0 (none) to "
            f"{MAX_TIMEOUT_SECONDS:g}, got {timeout!r}"
        )
    return gradient_scope.StrategyOptions(
        bytes_per_pack=given.bytes_per_pack,
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout,
        implementation=given.implementation,
    )
