# SPDX-License-Identifier: Apache-2.0
"""The corridor: from one worker's gradients to the sum of all workers' gradients."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from absl import logging

from tf_gradcomp import plan as plan_lib
from tf_gradcomp import state
from tf_gradcomp.agreement import require_agreement
from tf_gradcomp.codecs.base import Draw
from tf_gradcomp.controllers import lags
from tf_gradcomp.costs import AssumedCosts, Costs
from tf_gradcomp.drift import DriftCheck, DriftWatch
from tf_gradcomp.exchange_state import (
    SavedStates,
    WorkerState,
)
from tf_gradcomp.exchanges import (
    CompressedExchange,
    RowSparseExchange,
    make_exchange,
)
from tf_gradcomp.exchanges.assumption import Assumption, Dropped
from tf_gradcomp.exchanges.base import Reduced, all_finite, nan_unless
from tf_gradcomp.exchanges.following import Follower, follow
from tf_gradcomp.plan_in_use import PlanInUse
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.steering import ControlledSteering, make_steerings
from tf_gradcomp.transports.base import Collectives


class GradientReducer:
    """Sums gradients over the workers, bucket by bucket, as a policy says.

    For every set of variables, the first call makes a plan and compares it with the other
    workers'; later calls, from retraced or other functions, use the same plan and residuals.
    They live as long as the variables. Where sets overlap, as when layers are frozen, what the
    residuals hold of a variable goes to the plan in use: when it is made, and when a function is
    traced that uses it again.

    Attributes:
      policy: decides how each variable is compressed.
      collectives: the network.
    """

    def __init__(
        self,
        policy: Policy,
        collectives: Collectives,
        costs: Costs | None = None,
        drift_check: DriftCheck | None = None,
        compress: bool = True,
    ) -> None:
        """Makes a reducer without plans.

        Args:
          policy: decides how each variable is compressed.
          collectives: the network.
          costs: what exchanges take there; by default their bytes.
          drift_check: whether and how workers compare their weights; by default they do not.
          compress: whether to compress anything at all. A single worker has nobody to send it to,
            but momentum and clipping all the same.
        """
        self.policy = policy
        self.collectives = collectives
        self._costs = costs
        self._compress = compress
        self._drift_check = drift_check
        self._saved = SavedStates(())
        self._num_traced = 0
        self._entries: dict[tuple[_Identity, tuple[VariableInfo, ...]], PlanInUse] = {}

    @property
    def plans(self) -> list[plan_lib.Plan]:
        """The plans in use, in the order in which they were made."""
        return [entry.plan for entry in self._alive(None)]

    def views(self, keys: Collection[str] | None = None) -> dict[str, str]:
        """Returns the view in which each variable's gradient is sparsified, by its name.

        Args:
          keys: the keys of the variables that matter; ``None`` for all.
        """
        return {
            name: view
            for entry in self._by_use(keys)
            for exchange in entry.exchanges
            if isinstance(exchange, CompressedExchange)
            for name, view in exchange.views().items()
        }

    def decisions(self, keys: Collection[str] | None = None) -> dict[str, dict[str, float]]:
        """Returns what is decided on the next exchange, by the variable's name.

        Args:
          keys: the keys of the variables that matter; ``None`` for all.
        """
        found: dict[str, dict[str, float]] = {}
        for entry in self._by_use(keys):
            for number, decision in entry.decisions().items():
                for index in entry.plan.buckets[number].indices:
                    found[entry.plan.variables[index].name] = decision
        return found

    def deltas(self, keys: Collection[str] | None = None) -> dict[str, float]:
        """Returns the last delta of ``Assumption`` by the variable's name, where it is measured.

        Args:
          keys: the keys of the variables that matter; ``None`` for all.
        """
        return {
            entry.plan.variables[index].name: delta
            for entry in self._by_use(keys)
            if entry.assumption is not None
            for number, delta in entry.assumption.deltas().items()
            for index in entry.plan.buckets[number].indices
        }

    def next_number(self, keys: Collection[str]) -> int:
        """Returns the number of the next exchange, from 1, of the plan that was traced last.

        Args:
          keys: the keys of the variables that matter.
        """
        entries = self._by_use(keys)
        return entries[-1].next_number if entries else 1

    def counted_bytes(self, keys: Collection[str]) -> list[tuple[plan_lib.Plan, int, int]]:
        """Returns for each plan the exchanges of this run, and the bytes that this worker has sent.

        Those of buckets of which the size of what is sent changes.

        Args:
          keys: the keys of the variables that matter.
        """
        return [
            (
                entry.plan,
                int(entry.counter) - entry.num_before,
                sum(
                    int(exchange.sent)
                    for exchange in entry.exchanges
                    if isinstance(exchange, CompressedExchange) and exchange.sent is not None
                ),
            )
            for entry in self._alive(keys)
        ]

    def profile(self) -> str:
        """Returns what controllers have measured, of all plans in use; empty if nothing.

        It is what a later run can begin with; see ``controllers.lags``. Of a variable that is in
        several plans, the one traced last counts.
        """
        texts = [
            steering.profile()
            for entry in self._by_use(None)
            for steering in entry.steerings
            if isinstance(steering, ControlledSteering)
        ]
        return lags.joined_profiles(list(filter(None, texts)))

    def measure_again(self) -> None:
        """Measures the network, and lets what decides by times begin anew; all workers together."""
        if self._costs is not None:
            self._costs.measure_again()
        with tf.init_scope(), tf.device(self.collectives.device):
            for entry in self._alive(None):
                for steering in entry.steerings:
                    if steering.needs_times:
                        steering.begin(int(entry.counter))

    def row_sparse_bytes(self, keys: Collection[str]) -> int:
        """Returns the bytes that this worker has sent so far for rows of sparse gradients.

        They are its payload, as for all else: how often it travels is up to the collective.

        Args:
          keys: the keys of the variables that matter.
        """
        return sum(
            int(exchange.sent)
            for entry in self._alive(keys)
            for exchange in entry.exchanges
            if isinstance(exchange, RowSparseExchange)
        )

    def state(self) -> WorkerState:
        """Returns what all exchanges of this worker remember."""
        plans = [entry.state() for entry in self._entries.values() if entry.is_alive()]
        plans += self._saved.waiting()
        return WorkerState(
            self.collectives.num_workers, self.collectives.worker_index, tuple(plans)
        )

    def restore(self, states: Sequence[WorkerState]) -> None:
        """Goes on from saved states, now or when the variables are first exchanged.

        What does not fit begins anew, with a warning: a plan that is made already keeps its
        buckets, even if a controller would leave those of a later one as they were saved. All
        workers must call it together.

        Args:
          states: of this worker; or, of a cluster of another size, those of its workers that this
            one stands for. Each is to be given to one worker.

        Raises:
          PlanMismatchError: what must be the same on all workers is not: their states are not of
            the same step.
        """
        self._saved = SavedStates(states)
        entries = [entry for entry in self._entries.values() if entry.is_alive()]
        with tf.device(self.collectives.device):
            for entry in entries:
                entry.restore(self._saved)
        require_agreement(
            self.collectives, "what to go on from", [entry.common_fact() for entry in entries]
        )

    def reduce(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[VariableInfo],
        owners: Mapping[str, weakref.ref[Any]],
        others: Sequence[tf.Tensor] = (),
        learning_rate: tf.Tensor | None = None,
    ) -> list[Gradient]:
        """Sums gradients over the workers.

        Sparse gradients stay sparse, with distinct ascending indices, unless the policy has a
        compression for them, or momentum. With momentum, sums of what the optimizer's velocity
        would be take the place of the gradients' sums.

        An Inf or NaN on any worker reaches all workers, and spoils its whole bucket unless that is
        exchanged without loss. In one that may be withheld it spoils all that may be: nobody but
        the worker with the Inf or NaN knows which it is in. The residuals and factors of all
        buckets then stay as they were before the step, for such a step should be skipped.

        Args:
          gradients: dense tensors of static shape, or ``tf.IndexedSlices``.
          variables: what is known of the variable of each.
          owners: the key of each variable, in order, and the variable itself.
          others: sums of further gradients of the step, which have travelled another way. An
            Inf or NaN in them counts as well.
          learning_rate: float32 scalar, the optimizer's in this step, if it is known.

        Returns:
          The sums, shaped and typed like ``gradients``; the same bits on every worker.

        Raises:
          PlanMismatchError: the workers' plans differ.
          ValueError: a compression needs the learning rate, and there is none.
        """
        sums: dict[int, Gradient] = {}
        finite: list[Callable[[], tf.Tensor]] = [lambda: all_finite(others)]
        updates: list[state.Update] = []
        with tf.device(self.collectives.device):
            entry = self._entry_for(variables, owners)
            step = entry.next_step()
            for steering in entry.steerings:
                steering.start_step()
            if self.policy.clip_norm is not None:
                bound = self.policy.clip_norm / math.sqrt(self.collectives.num_workers)
                gradients = _clipped(gradients, bound)
            for steering in entry.steerings:
                steering.note(gradients)
            chosen = entry.chosen()
            withheld: list[tuple[Sequence[int], Reduced]] = []
            dropped: list[Callable[[], Dropped]] = []
            followers: list[Follower] = []
            for number, exchange in enumerate(entry.exchanges):
                indices = exchange.bucket.indices
                members = [gradients[index] for index in indices]
                if not exchange.bucket.row_sparse:
                    members = list(map(_as_dense, members, [variables[i] for i in indices]))
                draw = Draw(number, self.collectives.worker_index, step)
                # The name is what an error of a collective shows.
                with tf.name_scope(f"gradient_exchange_bucket_{number}"):
                    reduced = exchange(members, draw, learning_rate, chosen.get(number))
                sums.update(zip(indices, reduced.gradients, strict=True))
                finite.append(reduced.finite)
                updates.extend(reduced.updates)
                if reduced.withholds:
                    withheld.append((indices, reduced))
                if reduced.dropped is not None:
                    dropped.append(reduced.dropped)
                if reduced.follower is not None:
                    followers.append(reduced.follower)
            if entry.assumption is not None:
                entry.assumption.check(step, dropped)
            if followers:
                with tf.name_scope("gradient_exchange_following"):
                    updates.extend(follow(followers, step, self.collectives))
            if withheld:
                is_finite = self._agree_on([reduced.finite() for _, reduced in withheld])
                finite.append(lambda: is_finite)
                for members_of, reduced in withheld:
                    sums.update(
                        zip(members_of, nan_unless(is_finite, reduced.gradients), strict=True)
                    )
            # The first buckets do not wait for all gradients, but these do: a call that finds no
            # more data is no exchange.
            with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
                entry.count_exchange()
                for steering in entry.steerings:
                    steering.end_step(step)
                if entry.drift_watch is not None:
                    entry.drift_watch(step)
            if updates:
                state.commit(tf.reduce_all([check() for check in finite]), updates)
        return [sums[index] for index in range(len(gradients))]

    def _alive(self, keys: Collection[str] | None) -> list[PlanInUse]:
        """Returns what is kept for some or all of the variables with these keys."""
        return [
            entry
            for (identity, _), entry in self._entries.items()
            if entry.is_alive() and (keys is None or all(key in keys for key in identity))
        ]

    def _by_use(self, keys: Collection[str] | None) -> list[PlanInUse]:
        """Returns the same as ``_alive``, the one traced last at the end."""
        return sorted(self._alive(keys), key=lambda entry: entry.last_traced)

    def _agree_on(self, conditions: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns whether all conditions, bool scalars, are met on all workers."""
        own = tf.cast(tf.reduce_all(conditions), tf.float32)
        with tf.name_scope("gradient_exchange_agreement"):
            count = self.collectives.all_reduce(own[tf.newaxis])[0]
        return tf.equal(count, self.collectives.num_workers)

    def _entry_for(
        self, variables: Sequence[VariableInfo], owners: Mapping[str, weakref.ref[Any]]
    ) -> PlanInUse:
        # What a Flatten hid is known in some graphs and not in others: the first one decides.
        key = (tuple(owners), tuple(variable._replace(hidden=()) for variable in variables))
        entry = self._entries.get(key)
        if entry is None or not entry.is_alive():
            self._drop_dead()
            entry = self._make_entry(variables, owners)
        if entry.elsewhere:
            with tf.init_scope(), tf.device(self.collectives.device):
                entry.forget_stale()
                for other in self._entries.values():
                    if other is not entry:
                        entry.take_over(other)
            entry.elsewhere = set()
            self._drop_dead()
        self._entries[key] = entry
        self._num_traced += 1
        entry.last_traced = self._num_traced
        return entry

    def _make_entry(
        self, variables: Sequence[VariableInfo], owners: Mapping[str, weakref.ref[Any]]
    ) -> PlanInUse:
        num_workers = self.collectives.num_workers
        # Before the plan, too: to make it workers exchange measurements, which must match.
        subject = "what to exchange for each variable"
        saved = self._saved.buckets_of(tuple(variable.name for variable in variables))
        facts = plan_lib.variable_facts(variables, self.policy, saved)
        require_agreement(self.collectives, subject, facts)
        plan = plan_lib.make_plan(
            variables, self.policy, num_workers, self._costs, self._compress, saved
        )
        require_agreement(self.collectives, subject, plan.facts())
        logging.info("Gradient exchange plan:\n%s", plan.summary())
        exchanges = [
            make_exchange(plan, number, self.collectives) for number in range(len(plan.buckets))
        ]
        counter = state.host_zeros((), "exchanges")
        checked = [
            number
            for number, exchange in enumerate(exchanges)
            if isinstance(exchange, CompressedExchange) and exchange.checks_assumption
        ]
        assumption = Assumption(checked, self.collectives) if checked else None
        watch = None
        if self._drift_check is not None:
            refs = tuple(owners.values())
            watch = DriftWatch(plan, refs, self.collectives, self._drift_check)
        costs = AssumedCosts() if self._costs is None else self._costs
        with tf.init_scope(), tf.device(self.collectives.device):
            steerings = make_steerings(plan, tuple(owners.values()), self.collectives, costs)
        entry = PlanInUse(
            plan, exchanges, steerings, counter, dict(owners), assumption, watch, set(owners)
        )
        with tf.init_scope(), tf.device(self.collectives.device):
            if self._saved:
                entry.restore(self._saved)
                for other in self._entries.values():
                    if other.has_exchanged():
                        # That is not in what was saved.
                        entry.elsewhere |= set(owners).intersection(other.owners)
            else:
                entry.begin(0)
            require_agreement(self.collectives, "what to go on from", [entry.common_fact()])
        return entry

    def _drop_dead(self) -> None:
        """Drops the residuals of models that are gone, which would otherwise fill the memory."""
        self._entries = {key: entry for key, entry in self._entries.items() if entry.is_of_use()}


Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
_Identity: TypeAlias = tuple[str, ...]


def _clipped(gradients: Sequence[Gradient], bound: float) -> list[Gradient]:
    """Scales gradients down so that their Euclidean norm, all in all, is at most ``bound``.

    If it is not finite, all become NaN: an Inf must not become a harmless zero.
    """
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    norm = tf.linalg.global_norm([tf.cast(value, tf.float32) for value in values])
    scale = tf.where(tf.math.is_finite(norm), bound / tf.maximum(norm, bound), np.float32("nan"))

    def scaled(gradient: Gradient) -> Gradient:
        if isinstance(gradient, tf.IndexedSlices):
            values = scaled(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient * tf.cast(scale, gradient.dtype)

    return list(map(scaled, gradients))


def _as_dense(gradient: Gradient, variable: VariableInfo) -> tf.Tensor:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    slices = tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(variable.shape))
    return tf.ensure_shape(tf.convert_to_tensor(slices), variable.shape)
