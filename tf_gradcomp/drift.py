# SPDX-License-Identifier: Apache-2.0
"""Watches that all workers keep the same weights.

Workers that apply the same sums stay equal without sending weights. But each decodes for itself,
and what differs in one bit, by another processor's arithmetic or a faulty one's, stays in the
weights.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_gradcomp.plan import Plan
from tf_gradcomp.same_bits import of_worker_0, same_everywhere
from tf_gradcomp.transports.base import Collectives
from tf_gradcomp.weights import local_copies, read_weight, write_copy

STOP, RESYNC = "stop", "resync"
_ACTIONS = (STOP, RESYNC)


@dataclasses.dataclass(frozen=True)
class DriftCheck:
    """How often workers compare their weights, and what follows if they differ.

    Attributes:
      every: exchanges between two comparisons; the first one is in the first exchange, and all
        are of the weights before the step's update.
      action: ``"stop"``: all workers stop with ``tf.errors.InvalidArgumentError``, which names the
        variables and their buckets. ``"resync"``: all take worker 0's weights, and it is logged;
        the states of optimizers stay as they are.

    Raises:
      ValueError: a field has a bad value.
    """

    every: int = 100
    action: str = STOP

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be an integer of at least 1, got {self.every!r}")
        if self.action not in _ACTIONS:
            raise ValueError(f"action must be one of {', '.join(_ACTIONS)}, got {self.action!r}")


class DriftWatch:
    """Compares the weights of one plan's variables, now and then.

    Each worker sends four bytes a variable. Sums of bits, taken as integers, differ whenever a
    single bit does.
    """

    def __init__(
        self,
        plan: Plan,
        owners: Sequence[weakref.ref[Any]],
        collectives: Collectives,
        check: DriftCheck,
    ) -> None:
        bucket_of = {i: number for number, b in enumerate(plan.buckets) for i in b.indices}
        self._labels = [
            f"{variable.name} (bucket {bucket_of[i]}, {plan.buckets[bucket_of[i]].how})"
            for i, variable in enumerate(plan.variables)
        ]
        self._owners = owners
        self._collectives = collectives
        self._check = check

    def __call__(self, step: tf.Tensor) -> None:
        """Compares if it is time to.

        Args:
          step: int32 scalar, the number of the exchange that is to come, from 1.
        """
        is_due = tf.equal((step - 1) % self._check.every, 0)
        with tf.name_scope("drift_check"):
            tf.cond(is_due, lambda: self._compare(step), tf.no_op)

    def _compare(self, step: tf.Tensor) -> tf.Operation:
        weights = [read_weight(owner()) for owner in self._owners]
        same = same_everywhere(self._collectives, weights)
        names = tf.strings.reduce_join(
            tf.boolean_mask(tf.constant(self._labels), ~same), separator=", "
        )
        message = tf.strings.join(
            [
                "The workers' weights differ before exchange ",
                tf.strings.as_string(step),
                ": ",
                names,
            ]
        )
        all_same = tf.reduce_all(same)
        if self._check.action == RESYNC:
            return tf.cond(all_same, tf.no_op, lambda: self._resync(message, weights))
        advice = (
            "Workers must begin with equal weights, and run the same versions on equal machines; "
            "a faulty one must go. DriftCheck(action='resync') goes on with worker 0's weights."
        )
        return tf.debugging.Assert(all_same, [message, advice])

    def _resync(self, message: tf.Tensor, weights: Sequence[tf.Tensor]) -> tf.Operation:
        tf.print("WARNING:", message, "; all take those of worker 0.")
        updates = []
        for owner, weight in zip(self._owners, weights, strict=True):
            theirs = of_worker_0(self._collectives, weight)
            updates += [write_copy(copy, theirs) for copy in local_copies(owner())]
        return tf.group(*updates)
