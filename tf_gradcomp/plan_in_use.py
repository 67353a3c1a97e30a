# SPDX-License-Identifier: Apache-2.0
"""A plan in use: its exchanges, and what these remember from step to step."""

from __future__ import annotations

import dataclasses
import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from absl import logging

from tf_gradcomp import plan as plan_lib
from tf_gradcomp.agreement import Fact
from tf_gradcomp.compression import Compression
from tf_gradcomp.drift import DriftWatch
from tf_gradcomp.exchange_state import (
    GLOBAL_MOMENTUM,
    MOMENTUM,
    OF_WORKERS,
    RESIDUAL,
    ROUNDED,
    VELOCITY,
    BucketState,
    PlanState,
    SavedStates,
)
from tf_gradcomp.exchanges import CompressedExchange, Exchange
from tf_gradcomp.exchanges.assumption import Assumption
from tf_gradcomp.exchanges.base import Chosen
from tf_gradcomp.steering import Steering

_Key: TypeAlias = tuple[tuple[tuple[str, tuple[int, ...]], ...], str]


@dataclasses.dataclass
class PlanInUse:
    """What is kept for one set of variables.

    Attributes:
      plan: how their gradients are exchanged.
      exchanges: one for each bucket.
      steerings: what decides on some of these.
      counter: int32 scalar, exchanges so far.
      owners: the key of each variable, in the plan's order, and the variable itself.
      assumption: measures what dropping items costs; ``None`` if nothing does.
      drift_watch: compares the workers' variables; ``None`` if nothing does.
      elsewhere: keys of the variables of which other plans may hold what is left over.
      num_before: exchanges before this process began with them.
      last_traced: of plans in use, the one traced last has the highest number.
    """

    plan: plan_lib.Plan
    exchanges: list[Exchange]
    steerings: list[Steering]
    counter: tf.Variable
    owners: dict[str, weakref.ref[Any]]
    assumption: Assumption | None
    drift_watch: DriftWatch | None
    elsewhere: set[str]
    num_before: int = 0
    last_traced: int = 0

    def has_exchanged(self) -> bool:
        """Whether this process has exchanged anything since it began with it, or restored it."""
        return int(self.counter) != self.num_before

    def is_alive(self) -> bool:
        """Whether all of the variables still exist."""
        return all(owner() is not None for owner in self.owners.values())

    def is_of_use(self) -> bool:
        """Whether it is alive, or has something left over of a variable that still exists."""
        return self.is_alive() or any(
            owner() is not None and key not in self.elsewhere for key, owner in self.owners.items()
        )

    def take_over(self, other: PlanInUse) -> None:
        """Moves what another plan's residuals hold of this one's variables to this one's.

        Each worker does so on its own: it takes no message, and leaves the sum of all as it was.
        """
        shared = {
            key
            for key, owner in other.owners.items()
            if owner() is not None and key in self.owners and self.owners[key]() is owner()
        }
        other.elsewhere |= shared
        takers = self._with_feedback()
        taken: dict[str, tf.Tensor] = {}
        stuck = []

        def take(key: str, part: tf.Tensor) -> tf.Tensor:
            if key in takers:
                taken[key] = part
                return tf.zeros_like(part)
            if np.any(part):
                stuck.append(key)
            return part

        other._change_left_over(shared, take)
        self._change_left_over(set(taken), lambda key, part: part + taken[key])
        if stuck:
            names = dict(zip(self.owners, self._names, strict=True))
            logging.warning(
                "What error feedback has yet to send of %s stays behind: with the variables that "
                "are trained now, their gradients are exchanged without it.",
                ", ".join(names[key] for key in stuck),
            )

    def forget_stale(self) -> None:
        """Forgets what is of before other plans trained the variables.

        That is momentum, and the weights with which later ones are to be compared.
        """
        for steering in self.steerings:
            steering.forget_weights()
        for exchange in self.exchanges:
            for name, variable in exchange.memory.items():
                if name.startswith((MOMENTUM, GLOBAL_MOMENTUM, VELOCITY)):
                    variable.assign(tf.zeros_like(variable))

    def _change_left_over(
        self, keys: set[str], change: Callable[[str, tf.Tensor], tf.Tensor]
    ) -> None:
        """Replaces what residuals hold of these variables by a function of it."""
        for exchange in self.exchanges:
            bucket_keys = self._keys_of(exchange)
            parts = [] if keys.isdisjoint(bucket_keys) else exchange.left_over()
            if parts:
                pairs = zip(bucket_keys, parts, strict=True)
                exchange.set_left_over([change(k, p) if k in keys else p for k, p in pairs])

    def _with_feedback(self) -> set[str]:
        """Returns the keys of the variables whose gradients leave residuals."""
        return {
            key
            for exchange in self.exchanges
            if any(name.startswith(RESIDUAL) for name in exchange.memory)
            for key in self._keys_of(exchange)
        }

    def _keys_of(self, exchange: Exchange) -> list[str]:
        keys = list(self.owners)
        return [keys[index] for index in exchange.bucket.indices]

    def chosen(self) -> dict[int, Chosen]:
        """Returns what steerings have decided on the exchange at hand, by numbers of buckets."""
        found: dict[int, Chosen] = {}
        with tf.device("CPU:0"):  # as all that becomes a number of items
            for steering in self.steerings:
                for number, chosen in zip(steering.numbers, steering.chosen(), strict=True):
                    more = {k: v for k, v in chosen._asdict().items() if v is not None}
                    found[number] = found.get(number, Chosen())._replace(**more)
        return found

    def decisions(self) -> dict[int, dict[str, float]]:
        """Returns what is decided on the next exchange of buckets, by their numbers."""
        step = self.next_number
        found: dict[int, dict[str, float]] = {}
        for steering in self.steerings:
            for number, decision in zip(steering.numbers, steering.decisions(), strict=True):
                found[number] = found.get(number, {}) | decision
        by_schedule: dict[Compression, float] = {}
        for number, bucket in enumerate(self.plan.buckets):
            compression = bucket.compression
            if compression is None or compression.density_schedule is None:
                continue
            if compression not in by_schedule:
                density = compression.density_schedule(tf.constant(step))
                by_schedule[compression] = float(density)
            found[number] = found.get(number, {}) | {"density": by_schedule[compression]}
        for number, bucket in enumerate(self.plan.buckets):
            if bucket.compression is None or not bucket.compression.start_after:
                continue
            own = dict(bucket.compression.params)
            if step <= bucket.compression.start_after:
                found[number] = {"density": 1.0}  # as it is, whatever else is decided
            elif "density" in own:
                found[number] = {"density": own["density"]} | found.get(number, {})
        return found

    def state(self) -> PlanState:
        """Returns what the exchanges remember."""
        buckets = [
            BucketState(*key, transport, {name: v.numpy() for name, v in part.memory.items()})
            for key, transport, part in self._parts()
            if part.memory
        ]
        elsewhere = (i for i, key in enumerate(self.owners) if key in self.elsewhere)
        return PlanState(self._names, int(self.counter), tuple(buckets), tuple(elsewhere))

    def begin(self, num_exchanges: int) -> None:
        """Begins with decisions, and to count; all workers together.

        Args:
          num_exchanges: exchanges so far.
        """
        self.num_before = num_exchanges
        self.counter.assign(num_exchanges)
        for steering in self.steerings:
            steering.begin(num_exchanges)

    def restore(self, saved: SavedStates) -> None:
        """Goes on from what was saved of these variables; what does not fit begins anew.

        It takes the messages of ``begin`` and no others, whatever was saved: workers may not have
        the same, which is found when they compare what they have.
        """
        plan = saved.take(self._names)
        self.begin(0 if plan is None else plan.num_exchanges)
        for exchange in self.exchanges:
            if isinstance(exchange, CompressedExchange) and exchange.sent is not None:
                exchange.sent.assign(0)  # as they are of the exchanges since
        if plan is not None:
            # As it was then: not to take over once more.
            keys = list(self.owners)
            self.elsewhere = {keys[index] for index in plan.elsewhere}
        dropped = {} if plan is None else dict(plan.keys())
        for key, _, part in self._parts():
            if not part.memory:
                continue
            dropped.pop(key, None)
            shares = [] if plan is None else plan.shares(key)
            if shares:
                part.restore(shares)
                continue
            if not isinstance(part, Steering):  # which has begun
                for variable in part.memory.values():
                    variable.assign(tf.zeros_like(variable))
            logging.warning(
                "Of what was saved, nothing fits the exchange by %s of %s: what it remembers, "
                "such as residuals and momentum, begins anew.",
                key[1],
                ", ".join(name for name, _ in key[0]),
            )
        for description in dropped.values():
            logging.warning("What was saved of %s is dropped: nothing takes it up.", description)

    def common_fact(self) -> Fact:
        """Returns what exchanges remember that must be the same on all workers."""
        digest = hashlib.sha256()
        for _, _, part in self._parts():
            for name, variable in part.memory.items():
                if not name.startswith((*OF_WORKERS, *ROUNDED)):
                    digest.update(name.encode() + variable.numpy().tobytes())
        label = f"exchanges of {self._names[0]} and {len(self._names) - 1} more variables"
        return Fact(label, f"{int(self.counter)} so far, state {digest.hexdigest()[:16]}")

    @property
    def next_number(self) -> int:
        """The number of the next exchange, from 1. Reads the state, so not in a graph."""
        return int(self.counter) + 1

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(variable.name for variable in self.plan.variables)

    def _parts(self) -> list[tuple[_Key, str, Exchange | Steering]]:
        """Returns all that remembers something, with its ``BucketState.key`` and transport."""
        buckets = [exchange.bucket for exchange in self.exchanges]
        parts: list[tuple[_Key, str, Exchange | Steering]] = [
            ((self._described(exchange.bucket.indices), exchange.bucket.how), transport, exchange)
            for exchange in self.exchanges
            for transport in [exchange.bucket.transport]
        ]
        for steering in self.steerings:
            indices = [index for number in steering.numbers for index in buckets[number].indices]
            # What is decided on buckets says nothing of others of the same variables.
            sizes = "+".join(str(len(buckets[number].indices)) for number in steering.numbers)
            how = f"{steering.kind} of {buckets[steering.numbers[0]].how} in buckets of {sizes}"
            parts.append(((self._described(indices), how), "", steering))
        return parts

    def _described(self, indices: Sequence[int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        variables = [self.plan.variables[index] for index in indices]
        return tuple((variable.name, variable.shape) for variable in variables)

    def next_step(self) -> tf.Tensor:
        """Returns the number of the next exchange, an int32 scalar, from 1."""
        with tf.device(self.counter.device):
            return self.counter.read_value() + 1

    def count_exchange(self) -> None:
        """Takes note that this exchange has happened."""
        with tf.device(self.counter.device):
            self.counter.assign_add(1)
