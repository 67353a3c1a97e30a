# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding of a step's gradients, each alone, for `tf-gradcomp bench network`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.codecs.base import Draw
from tf_gradcomp.exchanges import Exchange, make_exchange
from tf_gradcomp.exchanges.base import Reduced
from tf_gradcomp.plan import Plan
from tf_gradcomp.transports.base import Collectives
from tf_gradcomp.transports.silent import SilentCollectives

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


class Parts:
    """The exchanges of a plan, with state of their own, cut where payloads are gathered.

    Only the transport `all_gather` has one place to cut. Of all other exchanges the whole work
    counts as encoding: of transports and low-rank methods that work between several messages, the
    packing of dense gradients, and the work on rows of sparse ones, as if all workers had the same.
    Where what is sent changes from exchange to exchange, it is what the codec has of its own.
    """

    def __init__(self, plan: Plan, collectives: Collectives) -> None:
        self._network = _CutCollectives(collectives)
        buckets = tuple(bucket.steady() for bucket in plan.buckets)
        plan = dataclasses.replace(plan, buckets=buckets)
        numbers = range(len(plan.buckets))
        self._exchanges = [make_exchange(plan, number, self._network) for number in numbers]
        # An argument: as a constant, it would let TensorFlow remove the condition in `commit`.
        self._finite = tf.constant(True)
        self._encode = tf.function(self._encode_step, autograph=False)
        self._decode = tf.function(self._decode_step, autograph=False)

    def encode(self, gradients: Sequence[Gradient], step: tf.Tensor) -> list[tf.Tensor]:
        """Goes from gradients to payloads, and stores residuals.

        Args:
          gradients: of all variables, in the plan's order.
          step: int32 scalar, counts from 1.

        Returns:
          The int32 `[m]` payload of each bucket that is cut.
        """
        payloads, _whole = self._encode(list(gradients), step, self._finite)
        return payloads

    def decode(
        self,
        gradients: Sequence[Gradient],
        payloads: Sequence[tf.Tensor],
        step: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Goes from all workers' payloads, int32 `[W, m]` each, to the sums of those buckets.

        What is chosen before encoding (views, now and then) is chosen here once more.
        """
        return self._decode(list(gradients), list(payloads), step)

    def _encode_step(
        self, gradients: list[Gradient], step: tf.Tensor, finite: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[Gradient]]:
        payloads: list[tf.Tensor] = []
        whole: list[Gradient] = []
        updates: list[state.Update] = []
        for number, exchange in enumerate(self._exchanges):
            reduced = self._exchange(number, gradients, step)
            if _is_cut(exchange):
                payloads.append(self._network.sent)
            else:
                whole += reduced.gradients
            updates.extend(reduced.updates)
        if updates:
            state.commit(finite, updates)
        return payloads, whole

    def _decode_step(
        self, gradients: list[Gradient], payloads: list[tf.Tensor], step: tf.Tensor
    ) -> list[tf.Tensor]:
        cut = [number for number, exchange in enumerate(self._exchanges) if _is_cut(exchange)]
        sums = []
        for number, received in zip(cut, payloads, strict=True):
            self._network.received = received
            sums += self._exchange(number, gradients, step).gradients
        self._network.received = None
        return sums

    def _exchange(self, number: int, gradients: Sequence[Gradient], step: tf.Tensor) -> Reduced:
        exchange = self._exchanges[number]
        draw = Draw(number, self._network.worker_index, step)
        own = [gradients[index] for index in exchange.bucket.indices]
        return exchange(own, draw, learning_rate=tf.constant(1.0))


def _is_cut(exchange: Exchange) -> bool:
    return exchange.bucket.transport == "all_gather"


class _CutCollectives(SilentCollectives):
    """Collectives that send nothing, and can be read and written where payloads are gathered.

    Attributes:
      sent: what was gathered last.
      received: what the next ones to gather get instead, if it is set.
    """

    def __init__(self, collectives: Collectives) -> None:
        super().__init__(collectives)
        self.sent: tf.Tensor | None = None
        self.received: tf.Tensor | None = None

    def all_gather(self, words: tf.Tensor) -> tf.Tensor:
        self.sent = words
        return super().all_gather(words) if self.received is None else self.received
