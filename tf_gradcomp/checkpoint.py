# SPDX-License-Identifier: Apache-2.0
"""What exchanges remember, for ``tf.train.Checkpoint``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_gradcomp import exchange_state
from tf_gradcomp.distribute import gradient_scope
from tf_gradcomp.exchange_state import WorkerState


class ExchangeState(tf.train.experimental.PythonState):
    """The residuals, factors, views and counters of a strategy's exchanges, on this worker.

    Give it to a ``tf.train.Checkpoint`` beside model and optimizer:

    ```python
    exchange = tf_gradcomp.ExchangeState(strategy)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, exchange=exchange)
    ```

    It is a different state on every worker, so each writes and reads a checkpoint of its own. It
    can be restored before or after the first step. ``tf_gradcomp.callbacks.BackupAndRestore`` does
    all of this under ``model.fit``.

    Args:
      strategy: a ``CompressedMultiWorkerMirroredStrategy``.

    Raises:
      ValueError: it is another strategy.
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        if not gradient_scope.is_compressed(strategy):
            raise ValueError(
                "ExchangeState needs a CompressedMultiWorkerMirroredStrategy, "
                f"got {type(strategy).__name__}"
            )
        self._reducer = strategy.extended.reducer

    def serialize(self) -> bytes:
        """Returns this worker's state; with a single worker there is none."""
        if self._reducer is None:
            return exchange_state.to_bytes(WorkerState(1, 0, ()))
        return exchange_state.to_bytes(self._reducer.state())

    def deserialize(self, data: bytes) -> None:
        """Goes on from this worker's state."""
        state = exchange_state.from_bytes(data)
        if self._reducer is None:
            _warn_of_loss([state])
            return
        here = self._reducer.collectives
        if (state.num_workers, state.worker_index) != (here.num_workers, here.worker_index):
            logging.warning(
                "Worker %d of %d goes on from the residuals of worker %d of %d; those that no "
                "worker goes on from are lost. ExchangeState.resume_from shares out all of them.",
                here.worker_index,
                here.num_workers,
                state.worker_index,
                state.num_workers,
            )
        self._reducer.restore([state])

    def resume_from(
        self, checkpoints: Sequence[str | os.PathLike[str]], name: str = "exchange"
    ) -> None:
        """Goes on from the checkpoints of a cluster that may have had another size.

        What each old worker's residuals hold is given to one of the new ones, so that their sum,
        which is what training is yet to see of past gradients, stays what it was.

        Args:
          checkpoints: the paths that ``tf.train.Checkpoint.write`` or ``save`` returned on all
            old workers, of the same step, in worker order.
          name: name of this object in the checkpoint.

        Raises:
          ValueError: a checkpoint does not hold it, or they are not one of each worker and of one
            step.
        """
        if isinstance(checkpoints, str | os.PathLike) or not checkpoints:
            raise ValueError(
                f"checkpoints must be a list of paths, one of each worker, got {checkpoints!r}"
            )
        states = [_read(os.fspath(checkpoint), name) for checkpoint in checkpoints]
        _check_complete(states, checkpoints)
        if self._reducer is None:
            _warn_of_loss(states)
            return
        here = self._reducer.collectives
        own = range(here.worker_index, len(states), here.num_workers)
        if len(states) != here.num_workers:
            logging.warning(
                "The state of %d workers' exchanges is divided among %d workers: this one goes on "
                "from %s.",
                len(states),
                here.num_workers,
                " and ".join(f"that of worker {index}" for index in own) or "residuals of zeros",
            )
        mine = [states[index] for index in own]
        self._reducer.restore(mine or [exchange_state.in_common(states[0])])


def _check_complete(
    states: Sequence[WorkerState], checkpoints: Sequence[str | os.PathLike[str]]
) -> None:
    counts = [[plan.num_exchanges for plan in state.plans] for state in states]
    for index, (state, checkpoint) in enumerate(zip(states, checkpoints, strict=True)):
        if (state.num_workers, state.worker_index) != (len(states), index):
            raise ValueError(
                f"checkpoint {os.fspath(checkpoint)} is of worker {state.worker_index} of "
                f"{state.num_workers}, but was given as that of worker {index} of {len(states)}: "
                "give those of all workers, in order"
            )
        if counts[index] != counts[0]:
            raise ValueError(
                f"checkpoints {os.fspath(checkpoints[0])} and {os.fspath(checkpoint)} are not of "
                "the same step"
            )


def _warn_of_loss(states: Sequence[WorkerState]) -> None:
    if any(plan.buckets for state in states for plan in state.plans):
        logging.warning(
            "A single worker exchanges nothing: what the residuals of %d workers hold is lost.",
            states[0].num_workers,
        )


class Progress(tf.train.experimental.PythonState):
    """What is trained, and how far it has come.

    Attributes:
      description: what must be the same for a checkpoint to fit: label and value of each part.
      epoch: the epoch under way or, between epochs, the next one.
    """

    def __init__(self, description: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__()
        self.description = list(description)
        self.epoch = 0

    def serialize(self) -> bytes:
        """Returns it as JSON."""
        return json.dumps({"description": self.description, "epoch": self.epoch}).encode()

    def deserialize(self, data: bytes) -> None:
        """Reads what ``serialize`` returned."""
        values = json.loads(data)
        self.description = [(label, value) for label, value in values["description"]]
        self.epoch = values["epoch"]


class _Bytes(tf.train.experimental.PythonState):
    """What a checkpoint holds for an ``ExchangeState``, as it is."""

    data = b""

    def serialize(self) -> bytes:
        return self.data

    def deserialize(self, data: bytes) -> None:
        self.data = data


def _read(checkpoint: str, name: str) -> WorkerState:
    found = _Bytes()
    tf.train.Checkpoint(**{name: found}).read(checkpoint).expect_partial()
    if not found.data:
        raise ValueError(f"checkpoint {checkpoint} holds no ExchangeState by the name {name!r}")
    return exchange_state.from_bytes(found.data)
