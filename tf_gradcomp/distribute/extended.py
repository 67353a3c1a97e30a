# SPDX-License-Identifier: Apache-2.0
"""The strategy's extended object: TensorFlow's own, with our cross-device ops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_gradcomp.agreement import require_agreement
from tf_gradcomp.distribute import compat, gradient_scope, keras_adapters
from tf_gradcomp.distribute.cross_device_ops import CompressedCollectiveAllReduce
from tf_gradcomp.policy import Policy
from tf_gradcomp.reducer import GradientReducer
from tf_gradcomp.version import WIRE_FORMAT_VERSION, __version__

DEFAULT_TIMEOUT_SECONDS = 60.0


class CompressedExtended(compat.CollectiveAllReduceExtended):
    """``CollectiveAllReduceExtended`` that holds a ``CompressedCollectiveAllReduce``."""

    compresses_gradients = True
    _cross_device_ops: CompressedCollectiveAllReduce

    def __init__(
        self,
        container_strategy: Any,
        policy: Policy,
        cluster_resolver: Any,
        communication_options: compat.Options | None,
    ) -> None:
        self._policy = policy
        super().__init__(
            container_strategy, cluster_resolver, _strategy_options(communication_options)
        )

    def _initialize_strategy(self, cluster_resolver: Any, devices: Any) -> None:
        super()._initialize_strategy(cluster_resolver, devices)
        stock: Any = self._cross_device_ops
        self._cross_device_ops = CompressedCollectiveAllReduce(
            self._policy,
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
                    f"tf_gradcomp {__version__}",
                    f"wire format {WIRE_FORMAT_VERSION}",
                    f"TensorFlow {tf.__version__}",
                    f"devices per worker {len(stock._devices)}",
                    f"compression {self._policy}",
                ],
            )

    @property
    def reducer(self) -> GradientReducer | None:
        """Exchanges the gradients; ``None`` with a single worker."""
        return self._cross_device_ops.reducer

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        # A program may import a Keras after it has made the strategy.
        keras_adapters.ensure_installed()
        return super()._call_for_each_replica(fn, args, kwargs)

    def _use_merge_call(self) -> bool:
        # With one device a worker, replicas need not meet in a cross-replica context to be
        # reduced. Not doing so lets gradients be reduced inside of a tf.cond, where merge_call
        # is not allowed and where Keras 3 puts the reduction when it accumulates gradients.
        return len(self._devices) > 1 and super()._use_merge_call()


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
    return gradient_scope.StrategyOptions(
        bytes_per_pack=given.bytes_per_pack,
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout,
        implementation=given.implementation,
    )
