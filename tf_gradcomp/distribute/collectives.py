# SPDX-License-Identifier: Apache-2.0
"""The collectives that gradients travel on: one participant per worker."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.distribute.replica_launcher import ReplicaLauncher


class Collectives:
    """TensorFlow's collectives over all workers, on the first local device of each.

    Attributes:
      num_workers: number W of workers.
      worker_index: index of this worker, 0..W-1.
      device: device on which payloads are made and collectives run.
    """

    def __init__(
        self,
        launcher: ReplicaLauncher,
        num_workers: int,
        worker_index: int,
        device: str,
    ) -> None:
        self._launcher = launcher
        self.num_workers = num_workers
        self.worker_index = worker_index
        self.device = device

    def all_gather(self, words: tf.Tensor) -> tf.Tensor:
        """Gathers ``[m]`` of every worker, of the same ``m`` on all, to ``[W, m]``.

        Args:
          words: int32, int64, float16, float32 or float64.
        """
        gathered = self._launcher._all_gather(words, None)
        size = -1 if words.shape[0] is None else words.shape[0]
        return tf.reshape(gathered, (self.num_workers, size))

    def all_to_all(self, words: tf.Tensor) -> tf.Tensor:
        """Sends row ``v`` of int32 ``[W, m]`` to worker ``v``; row ``v`` of the result is its."""
        return self._launcher.all_to_all(words)

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Sums a dense tensor over the workers with TensorFlow's all-reduce."""
        return self._launcher.all_reduce(tensor, None, None)

    def gather_text(self, text: str) -> list[str]:
        """Gathers a text of any length from every worker, now, also while a graph is traced.

        Every worker must call it at the same point of its program.

        Returns:
          The texts in worker order.
        """
        data = text.encode()
        with tf.init_scope(), tf.device(self.device):
            lengths = self.all_gather(tf.constant([len(data)], tf.int32)).numpy()[:, 0]
            padded = list(data) + [0] * (int(lengths.max()) - len(data))
            rows = self.all_gather(tf.constant(padded, tf.int32)).numpy()
        return [
            bytes(row[:length].tolist()).decode() for row, length in zip(rows, lengths, strict=True)
        ]
