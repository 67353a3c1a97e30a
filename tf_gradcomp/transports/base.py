# SPDX-License-Identifier: Apache-2.0
"""What transports, and all else that talks to other workers, need of the network and of codecs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

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
        """Gathers ``[m]`` of every worker to ``[W, m]``, in worker order.

        Args:
          words: int32, int64, float16, float32 or float64; ``m`` need not be static.
        """
        ...

    def all_to_all(self, words: tf.Tensor) -> tf.Tensor:
        """Sends row ``v`` of int32 ``[W, m]`` to worker ``v``.

        Returns:
          int32 ``[W, m]``: row ``v`` is what worker ``v`` sent here.
        """
        ...

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum of all workers' tensors, the same bits on every worker."""
        ...

    def gather_text(self, text: str) -> list[str]:
        """Gathers a text of any length from every worker, at once, in worker order."""
        ...


class Coder(Protocol):
    """A codec at work on one bucket, cut into equal shards of ``shape`` each.

    Attributes:
      shape: static shape of a shard's coefficients, ``[N]`` or ``[N, c]``.
      lossless: whether what is decoded has the bits that were encoded.
      addable: type of the numbers that a payload is, if ``addends`` can tell them; else ``None``.
    """

    shape: tuple[int, ...]
    lossless: bool
    addable: tf.DType | None

    def encode(
        self, shard: int, coefficients: tf.Tensor, residual: tf.Tensor | None, second: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Encodes a shard.

        Args:
          shard: its number.
          coefficients: this worker's, or a sum.
          residual: what was left over from the step before; ``None`` without error feedback.
          second: whether these are sums of what has been encoded once: their random numbers are
            then others.

        Returns:
          The payload, int32 ``[m]``, and the new residual.
        """
        ...

    def decode_sum(self, shard: int, payloads: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Decodes int32 ``[V, m]``, payloads of one shard, and adds them up in order.

        Returns:
          The sum, and a bool scalar: whether all that was encoded was finite. If it was not, the
          sum means nothing.
        """
        ...

    def addends(self, payload: tf.Tensor) -> tf.Tensor:
        """Returns the numbers that a shard's payload is, in its shape; of the type ``addable``.

        If an Inf or NaN was encoded, there is one among them.
        """
        ...


class Summed(NamedTuple):
    """What an exchange of coefficients comes to.

    Attributes:
      total: their sum over the workers; the same bits on every worker.
      finite: bool scalar: whether all workers' coefficients were. If not, the sum means nothing.
      residuals: the new residuals, if there were any.
    """

    total: tf.Tensor
    finite: tf.Tensor
    residuals: Sequence[tf.Tensor]


class PayloadSize(NamedTuple):
    """How large a shard and its payload are.

    Attributes:
      num_words: 32-bit words of the payload.
      num_items: items of the shard's coefficients.
      components: float32 values of an item.
      density: share of the items that the payload has room for, in (0, 1].
    """

    num_words: int
    num_items: int
    components: int
    density: float


class Message(NamedTuple):
    """A collective of an exchange.

    Attributes:
      collective: the method of ``Collectives`` that carries it.
      words: 32-bit words that a worker sends for it, its own and others' passed on.
    """

    collective: str
    words: float


class Transport(Protocol):
    """A way for payloads to become the sum on every worker. It holds no state.

    Attributes:
      needs_gain: whether gradients are sent dense where it would not send less. Not for those
        that have another purpose, or of which nobody knows before what they send.
      needs_addable: whether it is only for codecs whose payloads are numbers to add up.
    """

    needs_gain: bool
    needs_addable: bool

    def __init__(self, collectives: Collectives) -> None: ...

    @staticmethod
    def num_shards(num_workers: int) -> int:
        """Returns how many shards a bucket is cut into."""
        ...

    @staticmethod
    def payload_words(shard: PayloadSize, num_workers: int) -> float:
        """Returns the words that one worker contributes to an exchange, or an estimate."""
        ...

    @staticmethod
    def messages(shard: PayloadSize, num_workers: int) -> list[Message]:
        """Returns the collectives of an exchange, or an estimate."""
        ...

    def residual_shapes(
        self, shape: tuple[int, ...], shard_shape: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        """Returns the shapes of the residuals that error feedback keeps.

        Args:
          shape: that of a bucket's coefficients; the first residual's, too.
          shard_shape: that of a shard's coefficients.
        """
        ...

    @staticmethod
    def merge(residuals: Sequence[tf.Tensor], worker_index: int) -> tf.Tensor:
        """Returns a first residual that stands for all, if the others are zero from now on."""
        ...

    def sum(self, coder: Coder, coefficients: tf.Tensor, residuals: Sequence[tf.Tensor]) -> Summed:
        """Sums coefficients over the workers.

        Args:
          coder: encodes and decodes shards.
          coefficients: float32, of static shape: all shards, of which the last ones may be cut
            short or missing.
          residuals: those of the step before, of ``residual_shapes()``; none without error
            feedback.
        """
        ...


def cut(coefficients: tf.Tensor, num_shards: int, shard_shape: tuple[int, ...]) -> list[tf.Tensor]:
    """Cuts coefficients into equal shards, after as many zeros as that takes."""
    missing = num_shards * shard_shape[0] - coefficients.shape[0]
    if missing:
        paddings = [[0, missing]] + [[0, 0]] * (len(shard_shape) - 1)
        coefficients = tf.pad(coefficients, paddings)
    return [coefficients] if num_shards == 1 else tf.split(coefficients, num_shards)


def join(shards: Sequence[tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    """Joins what ``cut`` has made of a tensor like ``like``."""
    return shards[0] if len(shards) == 1 else tf.concat(shards, axis=0)[: like.shape[0]]
