# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding of a step's gradients, each alone, for `tf-gradcomp bench network`."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.codecs.base import Draw
from tf_gradcomp.exchanges import Reduced, make_exchange
from tf_gradcomp.plan import Plan
from tf_gradcomp.transports.base import Collectives


class Parts:
    """The exchanges of a plan, with state of their own, cut where payloads are gathered.

    What does not gather payloads has nothing to decode: a low-rank method's whole work, and the
    packing of dense gradients, count as encoding.
    """

    def __init__(self, plan: Plan, collectives: Collectives) -> None:
        self._network = _CutNetwork(collectives)
        numbers = range(len(plan.buckets))
        self._exchanges = [make_exchange(plan, number, self._network) for number in numbers]
        # An argument: as a constant, it would let TensorFlow remove the condition in `commit`.
        self._finite = tf.constant(True)
        self._encode = tf.function(self._encode_step, autograph=False)
        self._decode = tf.function(self._decode_step, autograph=False)

    def encode(self, gradients: Sequence[tf.Tensor], step: tf.Tensor) -> list[tf.Tensor]:
        """Goes from gradients to payloads, and stores residuals.

        Args:
          gradients: dense gradients, in the plan's order.
          step: int32 scalar, counts from 1.

        Returns:
          The int32 `[m]` payload of each bucket that is compressed by a codec.
        """
        payloads, _ = self._encode(list(gradients), step, self._finite)
        return payloads

    def decode(
        self,
        gradients: Sequence[tf.Tensor],
        payloads: Sequence[tf.Tensor],
        step: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Goes from all workers' payloads, int32 `[W, m]` each, to the sums of those buckets."""
        return self._decode(list(gradients), list(payloads), step)

    def _encode_step(
        self, gradients: list[tf.Tensor], step: tf.Tensor, finite: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        payloads: list[tf.Tensor] = []
        others: list[tf.Tensor] = []
        updates: list[state.Update] = []
        for number in range(len(self._exchanges)):
            reduced, sent = self._exchange(number, gradients, step, None)
            payloads += [] if sent is None else [sent]
            others += reduced.gradients if sent is None else []
            updates.extend(reduced.updates)
        if updates:
            state.commit(finite, updates)
        return payloads, others

    def _decode_step(
        self, gradients: list[tf.Tensor], payloads: list[tf.Tensor], step: tf.Tensor
    ) -> list[tf.Tensor]:
        waiting = list(payloads)
        sums = []
        for number in range(len(self._exchanges)):
            received = waiting[0] if waiting else None
            reduced, sent = self._exchange(number, gradients, step, received)
            if sent is not None:
                del waiting[0]
                sums += reduced.gradients
        return sums

    def _exchange(
        self,
        number: int,
        gradients: Sequence[tf.Tensor],
        step: tf.Tensor,
        received: tf.Tensor | None,
    ) -> tuple[Reduced, tf.Tensor | None]:
        """Returns a bucket's outcome, and the payload that it gathered, if any."""
        self._network.sent, self._network.received = None, received
        exchange = self._exchanges[number]
        draw = Draw(number, self._network.worker_index, step)
        reduced = exchange([gradients[index] for index in exchange.bucket.indices], draw)
        return reduced, self._network.sent


class _CutNetwork:
    """Collectives that take what is sent, and hand out what they are told; others do nothing."""

    def __init__(self, collectives: Collectives) -> None:
        self.num_workers = collectives.num_workers
        self.worker_index = collectives.worker_index
        self.device = collectives.device
        self.sent: tf.Tensor | None = None
        self.received: tf.Tensor | None = None

    def all_gather(self, words: tf.Tensor) -> tf.Tensor:
        assert self.sent is None, "an exchange gathers one payload"
        self.sent = words
        return tf.stack([words] * self.num_workers) if self.received is None else self.received

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.identity(tensor)

    def gather_text(self, text: str) -> list[str]:
        return [text] * self.num_workers
