# SPDX-License-Identifier: Apache-2.0
"""Carries decisions to exchanges: what is sent of each bucket, period by period, without retracing.

Decisions of a period are rows of a table, which is a variable. Before the period begins, they are
made by Python code or by functions in the graph, and worker 0 sends its own to all: workers need
not compute the same bits.
"""

from __future__ import annotations

import abc
import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from absl import logging

from tf_gradcomp import state
from tf_gradcomp.clock import Clock
from tf_gradcomp.compression import Compression
from tf_gradcomp.controllers.base import CHANGE, READY, STEP, Controller, Decision, Setting
from tf_gradcomp.costs import Costs
from tf_gradcomp.exchange_state import Share
from tf_gradcomp.exchanges.base import Chosen, restore
from tf_gradcomp.plan import Plan, dense_beyond, messages_at
from tf_gradcomp.transports.base import Collectives, Message
from tf_gradcomp.weights import read_weight

SCHEDULE_PERIOD = 128
# No bucket has so many items that this share is more than one of them.
_LEAST_DENSITY = 1e-12
# Work is measured with the codec's density and one higher by this factor, and grows evenly.
_HIGHER = 20


class Steering(abc.ABC):
    """Decides on the exchanges of all buckets of one compression.

    Attributes:
      kind: what its decisions are called where they are saved.
      numbers: those of its buckets in the plan.
      memory: what is remembered from step to step, by name; the same on all workers.
    """

    kind: ClassVar[str]

    def __init__(self, numbers: Sequence[int], period: int, collectives: Collectives) -> None:
        self.numbers = tuple(numbers)
        self._period = period
        self._collectives = collectives
        # Exchanges of the period at hand so far: the row of the next one.
        self._done = state.host_zeros((), "done")
        self.memory: dict[str, tf.Variable] = {"done": self._done}

    @property
    def needs_times(self) -> bool:
        """Whether it decides by times, and so should begin anew when these are measured again."""
        return False

    @abc.abstractmethod
    def chosen(self) -> list[Chosen]:
        """Returns what is decided on the exchange at hand, for each of ``numbers``."""

    def restore(self, shares: Sequence[Share]) -> None:
        """Goes on from what was remembered elsewhere, once it has begun with what is at hand.

        See ``CompressedExchange``.
        """
        restore(self.memory, shares)

    @abc.abstractmethod
    def decisions(self) -> list[dict[str, float]]:
        """Returns what is decided on the next exchange, for each of ``numbers``.

        Reads the state, so not while a graph is traced.
        """

    def begin(self, num_exchanges: int) -> None:
        """Begins anew with a whole period from the next exchange on, eagerly; all workers together.

        Args:
          num_exchanges: exchanges so far.
        """
        self._done.assign(0)
        self._start(num_exchanges)

    @abc.abstractmethod
    def _start(self, num_exchanges: int) -> None:
        """Decides on a first period."""

    def forget_weights(self) -> None:
        """Lets later weights be compared with those of now, eagerly; by default none are."""
        return

    def start_step(self) -> None:
        """Takes note that a step has begun; by default there is nothing to note."""
        return

    def note(self, gradients: Sequence[Any]) -> None:
        """Takes note of when gradients can be exchanged, if that matters.

        Args:
          gradients: those of the plan's variables, as they are exchanged.
        """
        return

    def end_step(self, step: tf.Tensor) -> None:
        """Takes note that the exchange of this number has happened, and decides if it is time to.

        Args:
          step: int32 scalar, the number of the exchange.
        """
        with tf.device("CPU:0"), tf.name_scope("steering"):
            done = self._done.read_value() + 1
            is_last = tf.equal(done, self._period)
            tf.cond(is_last & self._decides(), lambda: self._decide(step), tf.no_op)
            self._done.assign(tf.where(is_last, 0, done))

    def _decides(self) -> tf.Tensor:
        """Returns whether there is anything to decide at the end of a period, a bool scalar."""
        return tf.constant(True)

    @abc.abstractmethod
    def _decide(self, step: tf.Tensor) -> tf.Operation:
        """Stores the decisions on the period that begins after this exchange."""

    def _row(self, table: tf.Variable) -> tf.Tensor:
        return tf.gather(table.read_value(), self._done.read_value())

    def _agreed(self, values: tf.Tensor) -> tf.Tensor:
        """Returns worker 0's values, a vector of static size."""
        with tf.device(self._collectives.device):
            return self._collectives.all_gather(values)[0]


class ScheduledSteering(Steering):
    """The values of a compression's ``schedules.Scheduled``."""

    kind = "schedules"

    def __init__(
        self, compression: Compression, numbers: Sequence[int], collectives: Collectives
    ) -> None:
        super().__init__(numbers, SCHEDULE_PERIOD, collectives)
        self._scheduled = compression.scheduled
        self._ranges = {"density": (_LEAST_DENSITY, 1.0), "bits": compression.bits_range}
        self._tables = {
            name: state.host_zeros((SCHEDULE_PERIOD,), name, tf.float64) for name in self._scheduled
        }
        self.memory |= self._tables

    def _start(self, num_exchanges: int) -> None:
        for name, scheduled in self._scheduled.items():
            self._tables[name].assign(tf.fill([SCHEDULE_PERIOD], np.float64(scheduled.first)))
        self._store(tf.constant(num_exchanges))

    def chosen(self) -> list[Chosen]:
        found = {name: self._row(table) for name, table in self._tables.items()}
        if "bits" in found:
            found["bits"] = tf.cast(found["bits"], tf.int32)
        return [Chosen(**found)] * len(self.numbers)

    def decisions(self) -> list[dict[str, float]]:
        row = int(self._done)
        found = {name: float(table.numpy()[row]) for name, table in self._tables.items()}
        return [found] * len(self.numbers)

    def _decide(self, step: tf.Tensor) -> tf.Operation:
        return self._store(step)

    def _store(self, step: tf.Tensor) -> tf.Operation:
        steps = step + 1 + tf.range(self._period)
        values = []
        for name, scheduled in self._scheduled.items():
            value = scheduled.values(steps)
            # What is no number must not become a number of items or bits: what held last, then.
            is_number = ~tf.math.is_nan(value)
            value = tf.where(is_number, value, self._tables[name].read_value()[-1])
            least, most = self._ranges[name]
            value = tf.clip_by_value(value, np.float64(least), np.float64(most))
            values.append(tf.round(value) if name == "bits" else value)
        agreed = tf.split(self._agreed(tf.concat(values, 0)), len(values))
        pairs = zip(self._tables.values(), agreed, strict=True)
        return tf.group(*[table.assign(values) for table, values in pairs])


class ControlledSteering(Steering):
    """The decisions of a compression's controller, and what it asks to be measured."""

    kind = "decisions"

    def __init__(
        self,
        plan: Plan,
        compression: Compression,
        numbers: Sequence[int],
        owners: Sequence[weakref.ref[Any]],
        collectives: Collectives,
        costs: Costs,
    ) -> None:
        assert compression.controller is not None
        self._controller: Controller = compression.controller
        super().__init__(numbers, self._controller.period, collectives)
        self._plan = plan
        self._costs = costs
        indices = [index for number in numbers for index in plan.buckets[number].indices]
        self._indices = indices
        self._setting = self._make_setting(dict(compression.params).get("density", 1.0))
        self._owners = [owners[index] for index in indices]
        decision = self._checked(self._controller.start(self._setting))
        self._first: Decision | None = decision
        self._state = state.host_zeros(decision.state.shape, "controller", tf.float64)
        self._densities = state.host_zeros(decision.densities.shape, "densities", tf.float64)
        self._final = state.host_zeros((), "final", tf.float64)
        self.memory |= {
            "controller": self._state,
            "densities": self._densities,
            "final": self._final,
        }
        statistics = self._controller.statistics
        self._clock = None
        self._has_warned = False
        if self.needs_times:
            # Of each exchange of the period, what the clock has read. Not remembered: it is
            # another on each worker, and of another run's machines.
            shape = (self._period, 1 + len(indices))
            self._times = state.host_zeros(shape, "times", tf.float64)
            if costs.network.measured:
                self._clock = Clock(len(indices), collectives.device)
            else:
                self._warn_of_no_times("Under op determinism", "could differ from run to run")
        self._before: list[tf.Variable] = []
        if CHANGE in statistics:
            self._before = [
                state.local_zeros(plan.variables[i].shape, collectives.device, "weights_before")
                for i in indices
            ]
            self.memory |= state.by_name("weights_before", self._before)

    def _warn_of_no_times(self, when: str, why: str) -> None:
        logging.warning(
            "%s times are not measured, for what is decided by them %s: %s goes on as it begins.",
            when,
            why,
            type(self._controller).__name__,
        )

    def _make_setting(self, density: float) -> Setting:
        variables, buckets = self._plan.variables, [self._plan.buckets[n] for n in self.numbers]
        ends = np.cumsum([len(bucket.indices) for bucket in buckets])
        starts = [0, *ends[:-1]]
        num_workers = self._collectives.num_workers

        @functools.cache
        def messages(number: int, density: float) -> list[Message]:
            return messages_at(variables, buckets[number], density, num_workers)

        def message_seconds(number: int, density: float) -> float:
            return self._costs.network.seconds(messages(number, density))

        # Measured now, when all workers do; decisions are made in between.
        at_own = [bucket.estimates[0].work for bucket in buckets]
        at_high, sparse_to = at_own, [math.inf] * len(buckets)
        high = min(1.0, _HIGHER * density)
        if self._controller.adjusts:
            at_high = [self._costs.work(variables, bucket, high) for bucket in buckets]
            sparse_to = [dense_beyond(variables, bucket, num_workers) for bucket in buckets]

        def work_seconds(number: int, share: float) -> float:
            if share > sparse_to[number]:
                return 0.0
            growth = max(0.0, at_high[number] - at_own[number]) / max(high - density, 1e-9)
            return at_own[number] + growth * max(share - density, 0.0)

        return Setting(
            variables=tuple(variables[index].name for index in self._indices),
            sizes=tuple(variables[index].num_elements for index in self._indices),
            buckets=tuple(tuple(range(*span)) for span in zip(starts, ends, strict=True)),
            density=density,
            work_seconds=work_seconds,
            message_seconds=message_seconds,
        )

    @property
    def needs_times(self) -> bool:
        return not {READY, STEP}.isdisjoint(self._controller.statistics)

    def _start(self, num_exchanges: int) -> None:
        decision = self._first or self._checked(self._controller.start(self._setting))
        self._first = None
        self._store(*map(tf.constant, _as_doubles(decision)))
        self._forget_times()
        self.forget_weights()

    def forget_weights(self) -> None:
        for before, owner in zip(self._before, self._owners, strict=False):
            before.assign(tf.cast(read_weight(owner()), tf.float32))

    def restore(self, shares: Sequence[Share]) -> None:
        num_workers = self._collectives.num_workers
        if self.needs_times and shares[0].num_workers != num_workers:
            logging.warning(
                "%s had decided by times that were measured with %d workers, and begins anew with "
                "%d.",
                type(self._controller).__name__,
                shares[0].num_workers,
                num_workers,
            )
            return
        super().restore(shares)
        self._forget_times()

    def _forget_times(self) -> None:
        if self.needs_times:
            self._times.assign(tf.fill(self._times.shape, np.float64("nan")))

    def chosen(self) -> list[Chosen]:
        row = self._row(self._densities)
        return [Chosen(row[position]) for position in range(len(self.numbers))]

    def decisions(self) -> list[dict[str, float]]:
        row = self._densities.numpy()[int(self._done)]
        return [{"density": density} for density in row.tolist()]

    def profile(self) -> str:
        """Returns what the controller has measured, for ``Lags.profile``; empty if nothing."""
        return self._controller.profile_text(self._setting, self._state.numpy())

    def start_step(self) -> None:
        if self._clock is None:
            return
        if tf.executing_eagerly() and not self._has_warned:
            self._warn_of_no_times("In a step that runs eagerly", "would be noise")
            self._has_warned = True
        self._clock.start()

    def note(self, gradients: Sequence[Any]) -> None:
        if self._clock is not None:
            for position, index in enumerate(self._indices):
                self._clock.note(position, gradients[index])

    def end_step(self, step: tf.Tensor) -> None:
        if self._clock is not None:
            with tf.device("CPU:0"):
                row = [[self._done.read_value()]]
                self._times.scatter_nd_update(row, [self._clock.read()])
        super().end_step(step)

    def _decides(self) -> tf.Tensor:
        if self.needs_times and self._clock is None:
            return tf.constant(False)  # these will never be known
        return tf.equal(self._final.read_value(), 0)

    def _decide(self, step: tf.Tensor) -> tf.Operation:
        measured = self._measured()
        shapes = [self._state.shape, self._densities.shape, self._final.shape]
        decided = tf.numpy_function(
            self._decide_in_python,
            [self._state.read_value(), self._densities.read_value(), *measured.values()],
            [tf.float64] * len(shapes),
        )
        return self._store(*map(tf.ensure_shape, decided, shapes))

    def _measured(self) -> dict[str, tf.Tensor]:
        """Returns what the controller has asked for; see ``controllers.base``."""
        known: dict[str, tf.Tensor] = {}
        if self.needs_times:
            times = self._times.read_value()
            starts = times[:, 0]
            flat = tf.concat([starts[1:] - starts[:-1], tf.reshape(times[:, 1:], [-1])], 0)
            with tf.device(self._collectives.device):
                slowest = tf.reduce_max(self._collectives.all_gather(flat), axis=0)
            known[STEP] = slowest[: self._period - 1]
            known[READY] = tf.reshape(slowest[self._period - 1 :], times[:, 1:].shape)
        if CHANGE in self._controller.statistics:
            known[CHANGE] = self._change()
        return {statistic: known[statistic] for statistic in self._controller.statistics}

    def _change(self) -> tf.Tensor:
        """Returns the ``CHANGE`` of each bucket's weights, and begins anew."""
        with tf.device(self._collectives.device):
            weights = [tf.cast(read_weight(owner()), tf.float32) for owner in self._owners]
            squares: list[tuple[tf.Tensor, tf.Tensor, tf.Tensor]] = []
            for weight, before in zip(weights, self._before, strict=True):
                old = before.read_value()
                parts = (weight - old, old, weight)
                squares.append(tuple(tf.reduce_sum(tf.square(part)) for part in parts))
        with tf.control_dependencies(tf.nest.flatten(squares)):
            for weight, before in zip(weights, self._before, strict=True):
                before.assign(weight)
        changes = []
        for bucket in self._setting.buckets:
            sums = (tf.add_n(parts) for parts in zip(*(squares[i] for i in bucket), strict=True))
            moved, old, new = (tf.sqrt(tf.cast(total, tf.float64)) for total in sums)
            # The larger norm: weights that start at zero change by 1, and not without bounds.
            changes.append(tf.math.divide_no_nan(moved, tf.maximum(old, new)))
        # Weights that are no numbers have not changed in any way that matters.
        return tf.stack([tf.where(tf.math.is_finite(c), c, np.float64(0)) for c in changes])

    def _decide_in_python(
        self, old_state: np.ndarray, densities: np.ndarray, *measured: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        if not all(np.isfinite(values).all() for values in measured):
            # Times of a part of the period.
            return _as_doubles(Decision(old_state, densities))
        names = self._controller.statistics
        decision = self._controller.decide(
            self._setting, old_state, dict(zip(names, measured, strict=True))
        )
        decision = self._checked(decision)
        if self._collectives.worker_index == 0 and not np.array_equal(decision.state, old_state):
            report = self._controller.report(self._setting, decision.state)
            if report and report != self._controller.report(self._setting, old_state):
                logging.info("%s", report)
        return _as_doubles(decision)

    def _checked(self, decision: Decision) -> Decision:
        """Returns a decision as arrays of doubles, once it is one."""
        decided = np.asarray(decision.densities, np.float64)
        shape = (self._period, len(self.numbers))
        own, controller = self._setting.density, self._controller
        is_allowed = (decided > 0) & (decided <= 1) if controller.adjusts else decided == own
        allowed = "from above 0 to 1" if controller.adjusts else f"of {own}"
        if controller.withholds:
            is_allowed |= decided == 0
            allowed += ", or 0,"
        if decided.shape != shape or not is_allowed.all():
            raise ValueError(
                f"{type(controller).__name__} must decide on densities {allowed} in an array of "
                f"shape {shape}, got {decided}"
            )
        return decision._replace(state=np.asarray(decision.state, np.float64), densities=decided)

    def _store(self, *decided: tf.Tensor) -> tf.Operation:
        """Stores what worker 0 has decided, as ``_as_doubles`` returns it."""
        flat = self._agreed(tf.concat([tf.reshape(tensor, [-1]) for tensor in decided], 0))
        parts = tf.split(flat, [tensor.shape.num_elements() for tensor in decided])
        tables = (self._state, self._densities, self._final)
        return tf.group(
            *[
                table.assign(tf.reshape(part, table.shape))
                for table, part in zip(tables, parts, strict=True)
            ]
        )


def _as_doubles(decision: Decision) -> tuple[np.ndarray, ...]:
    return decision.state, decision.densities, np.array(decision.final, np.float64)


def make_steerings(
    plan: Plan, owners: Sequence[weakref.ref[Any]], collectives: Collectives, costs: Costs
) -> list[Steering]:
    """Makes what decides on the exchanges of a plan, for each compression that needs any."""
    numbers: dict[Compression, list[int]] = {}
    for number, bucket in enumerate(plan.buckets):
        if bucket.compression is not None:
            numbers.setdefault(bucket.compression, []).append(number)
    steerings: list[Steering] = []
    for compression, own in numbers.items():
        if compression.controller is not None:
            steerings.append(ControlledSteering(plan, compression, own, owners, collectives, costs))
        if compression.scheduled:
            steerings.append(ScheduledSteering(compression, own, collectives))
    return steerings
