# SPDX-License-Identifier: Apache-2.0
"""Collectives that send nothing, for a single worker or to run what one does by itself."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.transports.base import Collectives


class SilentCollectives:
    """As if all workers said what this one says."""

    def __init__(self, collectives: Collectives) -> None:
        self.num_workers = collectives.num_workers
        self.worker_index = collectives.worker_index
        self.device = collectives.device

    def all_gather(self, words: tf.Tensor) -> tf.Tensor:
        """Returns what this worker contributes, ``W`` times."""
        return tf.stack([words] * self.num_workers)

    def all_to_all(self, words: tf.Tensor) -> tf.Tensor:
        """Returns the row that this worker sends itself, ``W`` times."""
        return tf.stack([words[self.worker_index]] * self.num_workers)

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns what this worker contributes, times ``W``."""
        return tf.cast(self.num_workers, tensor.dtype) * tensor

    def gather_text(self, text: str) -> list[str]:
        """Returns the text ``W`` times."""
        return [text] * self.num_workers
