# SPDX-License-Identifier: Apache-2.0
"""What transports, and all else that talks to other workers, need of the network."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf


class Collectives(Protocol):
    """Collectives with one participant per worker; ``distribute.collectives`` has TensorFlow's.

    Every worker must call the same methods in the same order, with equal shapes.

    Attributes:
      num_workers: number W of workers.
      worker_index: index of this worker, 0..W-1.
      device: device on which payloads are made and collectives run.
    """

    num_workers: int
    worker_index: int
    device: str

    def all_gather(self, words: tf.Tensor) -> tf.Tensor:
        """Gathers int32 ``[m]`` of every worker to int32 ``[W, m]``, in worker order."""
        ...

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum of all workers' tensors, the same bits on every worker."""
        ...

    def gather_text(self, text: str) -> list[str]:
        """Gathers a text of any length from every worker, at once, in worker order."""
        ...
