# SPDX-License-Identifier: Apache-2.0
"""Workers as threads of one process, with collectives that need no network."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf


class _Meeting:
    """Where the workers of one cluster hand over what they contribute."""

    def __init__(self, num_workers: int) -> None:
        self._changed = threading.Condition()
        self._rounds: list[dict[int, Any]] = []
        self._num_workers = num_workers
        self._next_round = [0] * num_workers
        self._failed = False

    def exchange(self, worker_index: int, contribution: Any) -> list[Any]:
        with self._changed:
            number = self._next_round[worker_index]
            self._next_round[worker_index] += 1
            if number == len(self._rounds):
                self._rounds.append({})
            gathered = self._rounds[number]
            gathered[worker_index] = contribution
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: len(gathered) == self._num_workers or self._failed, timeout=30
            )
            assert len(gathered) == self._num_workers, "another worker failed or never came"
            return [gathered[index] for index in range(self._num_workers)]

    def fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()


class LoopbackCollectives:
    """What a reducer needs of the network, in eager mode."""

    device = "/device:CPU:0"

    def __init__(self, meeting: _Meeting, worker_index: int, num_workers: int) -> None:
        self._meeting = meeting
        self.worker_index = worker_index
        self.num_workers = num_workers
        self.words_sent = 0
        self.words_reduced = 0.0  # a number of 16 bits is half a word

    def all_gather(self, words: tf.Tensor) -> tf.Tensor:
        self.words_sent += int(words.shape[0])
        rows = self._meeting.exchange(self.worker_index, words.numpy())
        return tf.constant(np.stack(rows))

    def all_to_all(self, words: tf.Tensor) -> tf.Tensor:
        self.words_sent += int(tf.size(words))
        sent = self._meeting.exchange(self.worker_index, words.numpy())
        return tf.constant(np.stack([rows[self.worker_index] for rows in sent]))

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        self.words_reduced += int(tf.size(tensor)) * tensor.dtype.size / 4
        rows = self._meeting.exchange(self.worker_index, tensor.numpy())
        # One by one, each sum rounded to the type; np.sum does as it likes.
        with np.errstate(over="ignore"):
            return tf.constant(functools.reduce(operator.add, rows))

    def gather_text(self, text: str) -> list[str]:
        return self._meeting.exchange(self.worker_index, text)


def run_workers(num_workers: int, work: Callable[[LoopbackCollectives], Any]) -> list[Any]:
    """Runs ``work`` once per worker, at the same time, and returns the results in order."""
    meeting = _Meeting(num_workers)

    def run(index: int) -> Any:
        try:
            return work(LoopbackCollectives(meeting, index, num_workers))
        except BaseException:
            meeting.fail()
            raise

    with ThreadPoolExecutor(num_workers) as pool:
        futures = [pool.submit(run, index) for index in range(num_workers)]
    return [future.result() for future in futures]
