# SPDX-License-Identifier: Apache-2.0
"""The strategy: what a user puts in place of ``tf.distribute.MultiWorkerMirroredStrategy``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_gradcomp.compression import Compression
from tf_gradcomp.distribute import extended, keras3, keras_adapters
from tf_gradcomp.drift import DriftCheck
from tf_gradcomp.ops import loader
from tf_gradcomp.plan import Plan
from tf_gradcomp.policy import Policy, as_policy


class CompressedMultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """Synchronous multi-worker training that exchanges compressed gradients.

    Used like ``tf.distribute.MultiWorkerMirroredStrategy``, with TF_CONFIG set for every worker:

    ```python
    strategy = tf_gradcomp.CompressedMultiWorkerMirroredStrategy("fft:density=0.15")
    with strategy.scope():
        model = build_model()
        model.compile(optimizer="sgd", loss=..., metrics=...)
    model.fit(dataset, epochs=3)
    ```

    Only the optimizer's gradients are compressed. Metrics, losses and batch statistics are
    reduced by TensorFlow as ever. Without TF_CONFIG, or with a single worker, there is nothing
    to exchange and the strategy behaves like the stock one.

    ``fit``, ``evaluate`` and ``predict`` of Keras 3 (3.5 or newer) work under it, which they do
    not under the stock strategy.

    Args:
      compression: a spec (``"fft"``, ``"fft:density=0.1,bits=8"``), a ``Compression``, a
        ``Policy`` that gives different variables different compressions, or ``None`` for dense
        gradients.
      cluster_resolver: as in TensorFlow; by default reads TF_CONFIG.
      communication_options: a ``tf.distribute.experimental.CommunicationOptions``. A timeout is
        on by default: a collective that takes over 60 seconds fails with
        ``tf.errors.DeadlineExceededError`` instead of hanging. Set ``timeout_seconds`` to
        change it; zero turns it off.
      drift_check: how often workers compare their weights, and what follows if these differ;
        ``None`` for never.

    Raises:
      ValueError: the compression, the options or TF_CONFIG are not valid.
      OSError: another process listens at this worker's port.
      ImportError: the native library does not fit, or Keras or TensorFlow lacks what is needed.
      RuntimeError: the Keras in use is older than 3.5, and not Keras 2.15.
      PlanMismatchError: other workers run another version or compression.
    """

    def __init__(
        self,
        compression: Policy | Compression | str | None = "fft",
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        drift_check: DriftCheck | None = DriftCheck(),  # noqa: B008 - it cannot be changed
    ) -> None:
        if drift_check is not None and not isinstance(drift_check, DriftCheck):
            raise ValueError(f"drift_check must be a DriftCheck or None, got {drift_check!r}")
        policy = as_policy(compression)
        loader.load()
        keras_adapters.load_active_keras()
        keras_adapters.ensure_installed()
        # The parent's constructor would make the stock extended object, so it is passed over.
        tf.distribute.Strategy.__init__(
            self,
            extended.CompressedExtended(
                self, policy, drift_check, cluster_resolver, communication_options
            ),
        )
        policy.check_schedules()
        self._policy = policy

    @property
    def policy(self) -> Policy:
        """How each variable is compressed."""
        return self._policy

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What is exchanged in a step: one plan for each set of variables trained so far."""
        reducer = self.extended.reducer
        return () if reducer is None else tuple(reducer.plans)

    @property
    def views(self) -> dict[str, str]:
        """The view in which each variable's gradient is sparsified, by the variable's name.

        Only variables whose codec has a ``view`` are listed. With ``view=auto`` it may change
        from step to step, and less and less often; it is the same on all workers.
        """
        reducer = self.extended.reducer
        return {} if reducer is None else reducer.views()

    @property
    def decisions(self) -> dict[str, dict[str, float]]:
        """What is decided on the next exchange, by the variable's name.

        ``"density"`` is the share of the items to be sent, 0 for a gradient that is kept for later,
        and ``"bits"`` those of a value. Only variables of which either changes from exchange to
        exchange are listed. As long as ``start_after`` has gradients sent as they are, that is
        ``{"density": 1.0}`` with every codec, also with one that has no density; such a one is no
        longer listed then, unless its bits change. The same on all workers.

        Where several plans have a variable, as when layers are frozen and thawed, it is the one
        traced last that counts, here and for ``views`` and ``deltas``.
        """
        reducer = self.extended.reducer
        return {} if reducer is None else reducer.decisions()

    @property
    def deltas(self) -> dict[str, float]:
        """How LAGS' assumption holds, by the variable's name: at most 1 where it does.

        The last values measured; see docs/methods/lags.md.
        """
        reducer = self.extended.reducer
        return {} if reducer is None else reducer.deltas()

    def save_profile(self, path: str | os.PathLike[str]) -> None:
        """Saves what LAGS has measured, for ``methods.lags(profile=path)`` in a later run.

        It has the variables of all models, and of all compressions with LAGS.

        Args:
          path: of the file, which each worker that calls this writes.

        Raises:
          ValueError: nothing is measured yet.
          OSError: the file cannot be written.
        """
        reducer = self.extended.reducer
        text = "" if reducer is None else reducer.profile()
        if not text:
            raise ValueError(
                "there is no profile to save: no controller has measured anything yet, which LAGS "
                "does in its first period"
            )
        Path(path).write_text(text, encoding="utf-8")

    def measure_again(self) -> None:
        """Measures the network again, and lets controllers that decide by times begin anew.

        All workers must call it between the same two steps.
        """
        if self.extended.reducer is not None:
            self.extended.reducer.measure_again()

    def scope(self) -> Any:
        """Returns a context manager that makes this strategy current; see TensorFlow."""
        keras_adapters.ensure_installed()
        return super().scope()

    @tf.autograph.experimental.do_not_convert
    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Reduces values over all replicas; see TensorFlow.

        Takes a structure of values where TensorFlow takes one value, and takes ``axis=0`` of
        scalars for ``axis=None``: Keras 3 asks for both.
        """
        if keras3.is_learning_shapes():
            return tf.nest.map_structure(
                lambda leaf: self.experimental_local_results(leaf)[0], value
            )
        leaves = tf.nest.flatten(value)
        if len(leaves) != 1 or leaves[0] is not value:
            return tf.nest.map_structure(lambda leaf: self.reduce(reduce_op, leaf, axis), value)
        if axis is not None:
            replicas = self.experimental_local_results(value)
            if all(tf.convert_to_tensor(replica).shape.rank == 0 for replica in replicas):
                axis = None
        return super().reduce(reduce_op, value, axis)
