# SPDX-License-Identifier: Apache-2.0
"""Keras callbacks."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from typing import Any

import tensorflow as tf
from absl import logging

from tf_gradcomp import backup, checkpoint, metrics
from tf_gradcomp.distribute import gradient_scope, keras_adapters
from tf_gradcomp.plan import Plan
from tf_gradcomp.reducer import GradientReducer


class CompressionMonitor(tf.keras.callbacks.Callback):
    """Records what training sends and what a step costs, epoch by epoch.

    Worker 0 writes the figures to TensorBoard. Give it to ``model.fit`` on every worker.

    Where densities or bits change, they are written, too, with the number of the exchange from
    which on they hold: to TensorBoard and, of the last epoch, to ``decisions``. With
    ``steps_per_execution`` above 1 only those after the last step of each execution are seen.
    Exchanges are counted by the plan in use, which a restored state goes on with: a run that was
    interrupted goes on, too, and where other layers are trained than before, they begin at 1.

    Where the codec has views, the log says at the end of an epoch which view each variable has, if
    any has changed.

    Attributes:
      history: one dict per epoch, with

        - ``dense_bytes``: bytes of the gradients of one step, those exchanged row by row left out;
          0 in an epoch without an exchange,
        - ``payload_bytes``: bytes that one worker contributes to one step's exchange of these; the
          mean over the epoch, where they change from step to step,
        - ``compression_ratio``: the former over the latter,
        - ``row_sparse_bytes``: bytes that this worker contributes to a step's exchange of sparse
          gradients, which are those of the rows touched; the mean over the epoch,
        - ``sent_bytes``: bytes sent per worker and step, counted at the network interface
          (``None`` where they cannot be counted; see ``metrics.WireCounter``),
        - ``step_ms``: median time of a step in milliseconds, the first steps of the run (which
          trace and compile) left out.

      decisions: what has changed in the last epoch, as pairs of the number of an exchange and the
        part of ``strategy.decisions`` that is not as it was: by the variable's name, and empty for
        one of which nothing changes any more. The first pair of a run has all of them.

    Args:
      log_dir: folder for the TensorBoard log; ``None`` writes none.
    """

    WARM_UP_STEPS = 3

    def __init__(self, log_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.history: list[dict[str, float | None]] = []
        self._log_dir = log_dir
        self._writer: tf.summary.SummaryWriter | None = None
        self._counter = metrics.WireCounter()
        self._seen_steps = 0
        self._views: dict[str, str] = {}
        self.decisions: list[tuple[int, dict[str, dict[str, float]]]] = []
        self._known_decisions: dict[str, dict[str, float]] = {}
        self._counted_start: dict[Plan, tuple[int, int]] = {}
        self._exchanged: set[Plan] = set()
        self._reset()

    def _reset(self) -> None:
        self._step_ms: list[float] = []
        self._counted_steps = 0
        self._last_time: float | None = None
        self._last_batch = -1
        self._sent: float | None = None
        self._row_sparse_start = 0
        self._counter.restart()

    def on_train_begin(self, logs: Any = None) -> None:
        self._exchanged = set()
        if not gradient_scope.is_compressed(self.model.distribute_strategy):
            logging.warning(
                "CompressionMonitor: the model was not made inside of the scope of a "
                "CompressedMultiWorkerMirroredStrategy; no gradients are compressed, nor does it "
                "exchange any unless another strategy does: each worker may be training alone."
            )
        is_first = self.model.distribute_strategy.extended.should_save_summary
        if self._log_dir is not None and is_first and self._writer is None:
            self._writer = tf.summary.create_file_writer(os.fspath(self._log_dir))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._reset()
        self.decisions = []
        self._row_sparse_start = self._row_sparse_total()
        self._counted_start = {plan: (num, size) for plan, num, size in self._counted()}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With steps_per_execution above 1, `batch` advances by several.
        num_steps = batch - self._last_batch
        self._last_batch = batch
        self._seen_steps += num_steps
        now = time.perf_counter()
        if self._seen_steps <= self.WARM_UP_STEPS:
            self._counter.restart()
        else:
            self._counted_steps += num_steps
            if self._last_time is not None:
                self._step_ms += [(now - self._last_time) * 1e3 / num_steps] * num_steps
        self._note_decisions()
        self._last_time = time.perf_counter()  # what is noted is no part of the next step

    def on_test_begin(self, logs: Any = None) -> None:
        # An epoch may end with a validation, which sends what is not training's.
        self._sent = self._counter.bytes_sent()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        dense_bytes, payload_bytes = self._bytes_of_a_step()
        sent = self._counter.bytes_sent() if self._sent is None else self._sent
        figures: dict[str, float | None] = {
            "dense_bytes": dense_bytes,
            "payload_bytes": payload_bytes,
            "compression_ratio": dense_bytes / payload_bytes if payload_bytes else None,
            "row_sparse_bytes": self._row_sparse_bytes(),
            "sent_bytes": sent / self._counted_steps if sent and self._counted_steps else None,
            "step_ms": statistics.median(self._step_ms) if self._step_ms else None,
        }
        self.history.append(figures)
        self._log_views()
        if self._writer is not None:
            with self._writer.as_default():
                for name, value in figures.items():
                    if value is not None:
                        _write_scalar(f"compression/{name}", value, epoch)
                for variable, delta in self._deltas().items():
                    _write_scalar(f"delta/{variable}", delta, epoch)
                self._writer.flush()

    def _note_decisions(self) -> None:
        reducer = self._reducer()
        if reducer is None:
            return
        known, decisions = self._known_decisions, reducer.decisions(self._keys())
        self._known_decisions = decisions
        changed = {
            variable: decisions.get(variable, {})
            for variable in known | decisions
            if known.get(variable) != decisions.get(variable)
        }
        if not changed:
            return
        number = reducer.next_number(self._keys())
        self.decisions.append((number, changed))
        if self._writer is not None:
            with self._writer.as_default():
                for variable, decision in changed.items():
                    for name, value in decision.items():
                        if known.get(variable, {}).get(name) != value:
                            _write_scalar(f"{name}/{variable}", value, number)

    def _log_views(self) -> None:
        reducer = self._reducer()
        views = {} if reducer is None else reducer.views(self._keys())
        if views != self._views and set(views.values()) != {"identity"}:
            logging.info("Views: %s", ", ".join(f"{name}: {view}" for name, view in views.items()))
        self._views = views

    def on_train_end(self, logs: Any = None) -> None:
        reducer = self._reducer()
        if reducer is not None and not self._exchanged and self._seen_steps:
            logging.warning(
                "No gradient passed through the compressed exchange: was the model compiled with "
                "an optimizer from Keras, inside of strategy.scope()?"
            )
        buckets = [bucket for plan in self._exchanged for bucket in plan.buckets]
        is_all_dense = buckets and not any(b.compression or b.row_sparse for b in buckets)
        if reducer is not None and is_all_dense and not reducer.policy.is_dense:
            logging.warning(
                "CompressionMonitor: all gradients were sent as they are: no variable is one that "
                "the policy compresses (%s), or compression would not send less.",
                reducer.policy,
            )

    def _counted(self) -> list[tuple[Plan, int, int]]:
        reducer = self._reducer()
        return [] if reducer is None else reducer.counted_bytes(self._keys())

    def _bytes_of_a_step(self) -> tuple[int, int]:
        """Returns the bytes of a step's gradients and of their payloads, the mean if they change.

        Of plans that have exchanged anything in this epoch: others are of a time when other layers
        were trained.
        """
        dense_bytes = payload_bytes = 0
        for plan, num_exchanges, num_bytes in self._counted():
            before_exchanges, before_bytes = self._counted_start.get(plan, (0, 0))
            done = num_exchanges - before_exchanges
            if done:
                self._exchanged.add(plan)
                dense_bytes += plan.dense_bytes
                payload_bytes += sum(b.payload_bytes for b in plan.buckets if not b.changes)
                payload_bytes += round((num_bytes - before_bytes) / done)
        return dense_bytes, payload_bytes

    def _row_sparse_bytes(self) -> float | None:
        num_steps = self._last_batch + 1
        num_bytes = self._row_sparse_total() - self._row_sparse_start
        return num_bytes / num_steps if num_steps else None

    def _row_sparse_total(self) -> int:
        reducer = self._reducer()
        return 0 if reducer is None else reducer.row_sparse_bytes(self._keys())

    def _deltas(self) -> dict[str, float]:
        reducer = self._reducer()
        return {} if reducer is None else reducer.deltas(self._keys())

    def _reducer(self) -> GradientReducer | None:
        extended = self.model.distribute_strategy.extended
        is_compressed = gradient_scope.is_compressed(self.model.distribute_strategy)
        return extended.reducer if is_compressed else None

    def _keys(self) -> set[str]:
        """The keys of this model's variables; other models may train under the same strategy.

        Of all: ``compile`` has those that are trained, and ``trainable`` may have changed since.
        """
        return {gradient_scope.variable_key(v) for v in self.model.variables}


class BackupAndRestore(tf.keras.callbacks.Callback):
    """Keras' callback of that name, for workers that each have a state of their own.

    Every worker saves weights, optimizer, the states of random layers, the epoch, and what its
    exchanges remember, above all the residuals of error feedback: all in one file, which is
    there whole or not at all. When ``fit`` begins, all workers go on from the newest backup
    that all of them have. A run that was interrupted then ends with the weights of one that was
    not, bit for bit, if it is backed up after epochs and each sees the same data in both;
    docs/operations.md has the small print.

    Another number of workers can go on, too, if all of them see the folder: weights are those
    of worker 0, and the residuals are divided such that their sum stays, with a warning. What
    other callbacks remember, such as ``ReduceLROnPlateau``, begins anew.

    Give it to ``model.fit`` on every worker, of a model that is built and compiled inside of the
    strategy's scope.

    Args:
      backup_dir: folder for the backups, shared by all workers or not.
      save_freq: ``"epoch"``, or a number of steps. Keras cannot go on within an epoch: after a
        backup in the midst of one, that epoch begins again, with the weights saved.
      delete_checkpoint: whether to delete the backups when ``fit`` has ended.

    Raises:
      ValueError: ``save_freq`` is neither; or, when ``fit`` begins, the backup is of another model
        or optimizer, or there are backups of which none is complete.
      OSError: the backup cannot be read, or the folder not be written to.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        delete_checkpoint: bool = True,
    ) -> None:
        super().__init__()
        is_number = isinstance(save_freq, int) and not isinstance(save_freq, bool)
        if not backup_dir:
            raise ValueError(f"backup_dir must name a folder, got {backup_dir!r}")
        if save_freq != "epoch" and not (is_number and int(save_freq) >= 1):
            raise ValueError(
                f"save_freq must be 'epoch' or a number of steps of at least 1, got {save_freq!r}"
            )
        self._backup_dir = backup_dir
        self._steps_between = None if save_freq == "epoch" else int(save_freq)
        self._delete_checkpoint = delete_checkpoint

    def on_train_begin(self, logs: Any = None) -> None:
        strategy = self.model.distribute_strategy
        if not gradient_scope.is_compressed(strategy):
            raise RuntimeError(
                "BackupAndRestore: the model was not made inside of the scope of a "
                "CompressedMultiWorkerMirroredStrategy"
            )
        if not self.model.built:
            raise RuntimeError(
                "BackupAndRestore: build the model before fit, by an Input layer or a call, so "
                "that there are weights to restore"
            )
        reducer = strategy.extended.reducer
        collectives = None if reducer is None else reducer.collectives
        self._adapter = keras_adapters.adapter_of(self.model)
        self._adapter.start_at(self.model, None)  # whatever an earlier fit, that failed, has left
        self._folder = backup.BackupFolder(self._backup_dir, collectives)
        trackables = self._adapter.trackables(self.model)
        self._progress = checkpoint.Progress(_description(self.model))
        exchange = checkpoint.ExchangeState(strategy)
        self._steps = self._last_batch = 0
        newest = self._folder.newest()
        self._folder.prepare()
        self._folder.forget_after(newest)
        everything = tf.train.Checkpoint(**trackables, progress=self._progress, exchange=exchange)
        self._manager = self._folder.manager(everything)
        if newest is None:
            return
        if newest.num_workers == self._folder.num_workers:
            self._restore(everything, self._folder.own_checkpoint(newest))
        else:
            paths = self._folder.checkpoints(newest)
            shared = tf.train.Checkpoint(**trackables, progress=self._progress)
            self._restore(shared, paths[0])
            exchange.resume_from(paths)
        self._steps = newest.step
        self._adapter.start_at(self.model, self._progress.epoch)
        logging.info(
            "Training goes on at epoch %d, from the backup of step %d.",
            self._progress.epoch,
            newest.step,
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._progress.epoch = epoch
        self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        before = self._steps
        self._steps += batch - self._last_batch  # several, with steps_per_execution
        self._last_batch = batch
        every = self._steps_between
        if every is not None and before // every != self._steps // every:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._progress.epoch = epoch + 1
        if self._steps_between is None:
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        self._adapter.start_at(self.model, None)
        if self._delete_checkpoint:
            self._folder.delete()

    def _save(self) -> None:
        self._manager.save(checkpoint_number=self._steps)

    def _restore(self, target: tf.train.Checkpoint, path: str) -> None:
        try:
            self._check(path)
            target.restore(path).expect_partial().assert_existing_objects_matched()
        except (tf.errors.OpError, IndexError) as error:
            raise OSError(
                f"backup {path} cannot be read: {error}. Delete the files of that step on all "
                "workers, to go on from the backup before it."
            ) from error

    def _check(self, path: str) -> None:
        """Raises ValueError unless a backup is of such a model."""
        saved = checkpoint.Progress()
        tf.train.Checkpoint(progress=saved).restore(path).expect_partial()
        for there, here in itertools.zip_longest(saved.description, self._progress.description):
            if there is None or here is None or there[1] != here[1]:
                raise ValueError(
                    f"backup {path} is of another model or optimizer: it has {_said(there)}, and "
                    f"here is {_said(here)}. Delete the backup, or give another backup_dir."
                )


def _description(model: Any) -> list[tuple[str, str]]:
    """Returns what a backup must have in common with the model, with labels for people."""
    weights = [
        (getattr(weight, "path", weight.name), f"{tuple(weight.shape)}") for weight in model.weights
    ]
    return [*weights, ("optimizer", type(model.optimizer).__name__)]


def _said(part: tuple[str, str] | None) -> str:
    return "nothing more" if part is None else f"{part[0]}: {part[1]}"


def _write_scalar(name: str, value: float, step: int) -> None:
    # tf.summary.scalar is implemented by the tensorboard package, which may not be installed.
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
    )
    tf.summary.write(name, tf.constant(value, tf.float32), step=step, metadata=metadata)
