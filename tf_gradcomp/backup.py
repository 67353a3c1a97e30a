# SPDX-License-Identifier: Apache-2.0
"""Backups of all workers in one folder: which are complete, and which one to go on from."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from tf_gradcomp.transports.base import Collectives

_KEPT = 2  # a worker may end between another worker's backup and its own
_NAME = "step"
_FOLDER = re.compile(r"worker-(\d+)-of-(\d+)")
_INDEX = re.compile(rf"{_NAME}-(\d+)\.index")
_FILE = re.compile(rf"{_NAME}-(\d+)\.")


class Backup(NamedTuple):
    """A backup that all workers of a cluster have made at the same step.

    Attributes:
      step: that step.
      num_workers: number of workers of that cluster.
    """

    step: int
    num_workers: int


class BackupFolder:
    """A folder with a subfolder for each worker, ``worker-<index>-of-<number>``.

    Workers may share it, or have one each, on disks of their own. If another number of workers is
    to go on from it, all of them must see all subfolders.

    Attributes:
      num_workers: number of workers now.
    """

    def __init__(self, path: str | os.PathLike[str], collectives: Collectives | None) -> None:
        """Creates nothing yet.

        Args:
          path: the folder.
          collectives: of the workers; ``None`` with a single one.
        """
        self._path = Path(path)
        self._collectives = collectives
        self.num_workers = 1 if collectives is None else collectives.num_workers
        self._worker_index = 0 if collectives is None else collectives.worker_index

    def manager(self, checkpoint: tf.train.Checkpoint) -> tf.train.CheckpointManager:
        """Returns what writes this worker's backups, each whole or not at all."""
        folder = self._folder(self.num_workers, self._worker_index)
        return tf.train.CheckpointManager(checkpoint, folder, _KEPT, checkpoint_name=_NAME)

    def checkpoints(self, backup: Backup) -> list[str]:
        """Returns the paths of a backup, in worker order."""
        return [
            os.path.join(self._folder(backup.num_workers, index), f"{_NAME}-{backup.step}")
            for index in range(backup.num_workers)
        ]

    def own_checkpoint(self, backup: Backup) -> str:
        """Returns the path of this worker's, of a backup by as many workers as there are now."""
        return self.checkpoints(backup)[self._worker_index]

    def prepare(self) -> None:
        """Makes this worker's folder, and sees that it can be written to.

        Raises:
          OSError: it cannot; now, and not after an epoch.
        """
        folder = self._folder(self.num_workers, self._worker_index)
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass

    def newest(self) -> Backup | None:
        """Returns the last backup that can be gone on from, the same on all workers.

        ``None`` if there is none yet: no backup at all, or the first one of which a worker ended
        before it had made its own.

        Raises:
          ValueError: there are backups, but none that is complete.
        """
        seen = self._seen()
        own = json.dumps([sorted(self._usable(seen)), sorted(self._steps(seen))])
        texts = [own] if self._collectives is None else self._collectives.gather_text(own)
        found = [json.loads(text) for text in texts]
        common = set.intersection(*({Backup(*pair) for pair in usable} for usable, _ in found))
        if common:
            return max(common, key=lambda b: (b.step, b.num_workers == self.num_workers))
        steps = set().union(*(steps for _, steps in found))
        if len(steps) > 1:
            what = "; ".join(f"worker {i} sees steps {s}" for i, (_, s) in enumerate(found))
            raise ValueError(
                f"{self._path} holds backups, but none of one step by all workers of a cluster: "
                f"{what}. Put back what is missing, or start as many workers as have made them; "
                "to begin anew, delete them or give another backup_dir."
            )
        if steps:
            logging.warning(
                "Training begins anew: the backup of step %d in %s is not of all workers.",
                *steps,
                self._path,
            )
        return None

    def forget_after(self, backup: Backup | None) -> None:
        """Deletes later backups than that which training goes on from, or all if it begins anew.

        They belong to a run that ended before all workers had made them, and would be taken for
        this run's. A worker deletes its own, and worker 0 those of other numbers of workers, too,
        unless training begins anew: to start too few by mistake must cost nothing.
        """
        step = 0 if backup is None else backup.step
        is_first = backup is not None and self._worker_index == 0
        for folder, num_workers, index in self._folders():
            others = num_workers != self.num_workers and is_first
            if others or (num_workers, index) == (self.num_workers, self._worker_index):
                for name in _list(folder):
                    match = _FILE.match(name)
                    if match and int(match[1]) > step:
                        (folder / name).unlink(missing_ok=True)

    def delete(self) -> None:
        """Deletes this worker's backups, and on worker 0 those of other numbers of workers.

        All workers must call it together: none of them needs the backups any more.
        """
        if self._collectives is not None:
            self._collectives.gather_text("done")
        for folder, num_workers, index in self._folders():
            others = num_workers != self.num_workers and self._worker_index == 0
            if others or (num_workers, index) == (self.num_workers, self._worker_index):
                shutil.rmtree(folder, ignore_errors=True)

    def _seen(self) -> dict[int, dict[int, set[int]]]:
        """The steps of all backups that this worker can see, by number of workers and worker."""
        seen: dict[int, dict[int, set[int]]] = {}
        for folder, num_workers, index in self._folders():
            matches = (_INDEX.fullmatch(name) for name in _list(folder))
            seen.setdefault(num_workers, {})[index] = {int(m[1]) for m in matches if m}
        return seen

    def _usable(self, seen: dict[int, dict[int, set[int]]]) -> Iterable[Backup]:
        """What this worker could go on from, as far as it can see."""
        for num_workers, of_worker in seen.items():
            if num_workers == self.num_workers:
                complete = of_worker.get(self._worker_index, set())
            else:
                complete = set.intersection(
                    *(of_worker.get(index, set()) for index in range(num_workers))
                )
            yield from (Backup(step, num_workers) for step in complete)

    @staticmethod
    def _steps(seen: dict[int, dict[int, set[int]]]) -> set[int]:
        return {
            step for of_worker in seen.values() for steps in of_worker.values() for step in steps
        }

    def _folders(self) -> Iterable[tuple[Path, int, int]]:
        """Yields every worker's folder, with the number of workers and its index."""
        if not self._path.is_dir():
            return
        for folder in list(self._path.iterdir()):
            match = _FOLDER.fullmatch(folder.name)
            if match and folder.is_dir():
                yield folder, int(match[2]), int(match[1])

    def _folder(self, num_workers: int, index: int) -> str:
        return os.fspath(self._path / f"worker-{index}-of-{num_workers}")


def _list(folder: Path) -> list[str]:
    """Returns the names of a folder's files; none if another worker has just deleted it."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
