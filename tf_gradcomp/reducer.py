# SPDX-License-Identifier: Apache-2.0
"""The corridor: from one worker's gradients to the sum of all workers' gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from absl import logging

from tf_gradcomp import plan as plan_lib
from tf_gradcomp import state
from tf_gradcomp.agreement import require_agreement
from tf_gradcomp.codecs.base import Draw, Transform, VariableShape
from tf_gradcomp.controllers import view_choice
from tf_gradcomp.feedback import error_feedback
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.transports.all_gather import AllGather
from tf_gradcomp.transports.base import Collectives
from tf_gradcomp.transports.dense import Dense


class GradientReducer:
    """Sums gradients over the workers, bucket by bucket, as a policy says.

    For every set of variables, the first call makes a plan and compares it with the other
    workers'; later calls, from retraced or other functions, use the same plan and residuals.
    They live as long as the variables.

    Attributes:
      policy: decides how each variable is compressed.
      collectives: the network.
    """

    def __init__(self, policy: Policy, collectives: Collectives) -> None:
        self.policy = policy
        self.collectives = collectives
        self._entries: dict[tuple[_Identity, tuple[VariableInfo, ...]], _Entry] = {}

    @property
    def plans(self) -> list[plan_lib.Plan]:
        """The plans in use, in the order in which they were made."""
        return [entry.plan for entry in self._entries.values() if entry.is_alive()]

    def plans_of(self, keys: Collection[str]) -> list[plan_lib.Plan]:
        """Returns the plans for some or all of the variables with these keys."""
        return [
            entry.plan
            for (identity, _), entry in self._entries.items()
            if entry.is_alive() and all(key in keys for key in identity)
        ]

    def views(self) -> dict[str, str]:
        """Returns the view in which each variable's gradient is sparsified, by its name."""
        return {
            name: view
            for entry in self._entries.values()
            if entry.is_alive()
            for exchange in entry.exchanges
            if isinstance(exchange, _CompressedExchange)
            for name, view in exchange.views().items()
        }

    def reduce(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[VariableInfo],
        owners: Mapping[str, weakref.ref[Any]],
        others: Sequence[tf.Tensor] = (),
    ) -> list[tf.Tensor]:
        """Sums gradients over the workers.

        An Inf or NaN on any worker makes its whole bucket NaN on all workers; the residuals of
        all buckets then stay as they were before the step, for such a step should be skipped.

        Args:
          gradients: dense tensors of static shape.
          variables: what is known of the variable of each.
          owners: the key of each variable, in order, and the variable itself.
          others: sums of further gradients of the step, which have travelled another way. An
            Inf or NaN in them counts as well.

        Returns:
          The sums, shaped and typed like ``gradients``; the same bits on every worker.

        Raises:
          PlanMismatchError: the workers' plans differ.
        """
        sums: dict[int, tf.Tensor] = {}
        finite: list[Callable[[], tf.Tensor]] = [lambda: _all_finite(others)]
        updates = []
        with tf.device(self.collectives.device):
            entry = self._entry_for(variables, owners)
            # After the gradients: a call that finds no more data must not count as an exchange.
            with tf.control_dependencies(gradients):
                step = entry.next_step()
            for number, exchange in enumerate(entry.exchanges):
                indices = exchange.bucket.indices
                draw = Draw(number, self.collectives.worker_index, step)
                # The name is what an error of a collective shows.
                with tf.name_scope(f"gradient_exchange_bucket_{number}"):
                    reduced = exchange([gradients[index] for index in indices], draw)
                sums.update(zip(indices, reduced.gradients, strict=True))
                finite.append(reduced.finite)
                if reduced.update is not None:
                    updates.append(reduced.update)
            if updates:
                error_feedback.commit(tf.reduce_all([check() for check in finite]), updates)
        return [sums[index] for index in range(len(gradients))]

    def _entry_for(
        self, variables: Sequence[VariableInfo], owners: Mapping[str, weakref.ref[Any]]
    ) -> _Entry:
        # What a Flatten hid is known in some graphs and not in others: the first one decides.
        key = (tuple(owners), tuple(variable._replace(hidden=()) for variable in variables))
        if key not in self._entries or not self._entries[key].is_alive():
            plan = plan_lib.make_plan(variables, self.policy, self.collectives.num_workers)
            require_agreement(self.collectives, "what to exchange for each variable", plan.facts())
            logging.info("Gradient exchange plan:\n%s", plan.summary())
            # The residuals of models that are gone would otherwise fill the memory.
            self._entries = {k: entry for k, entry in self._entries.items() if entry.is_alive()}
            exchanges = [
                _DenseExchange(bucket, self.collectives)
                if bucket.compression is None
                else _CompressedExchange(plan, number, self.collectives)
                for number, bucket in enumerate(plan.buckets)
            ]
            needs_counter = any(exchange.needs_step for exchange in exchanges)
            counter = state.local_integers((), "exchanges") if needs_counter else None
            self._entries[key] = _Entry(plan, exchanges, counter, tuple(owners.values()))
        return self._entries[key]


_Identity: TypeAlias = tuple[str, ...]


class _Entry(NamedTuple):
    """What is kept for one set of variables."""

    plan: plan_lib.Plan
    exchanges: list[_CompressedExchange | _DenseExchange]
    counter: tf.Variable | None
    owners: tuple[weakref.ref[Any], ...]

    def is_alive(self) -> bool:
        """Whether all of the variables still exist."""
        return all(owner() is not None for owner in self.owners)

    def next_step(self) -> tf.Tensor:
        """Returns the number of this exchange, an int32 scalar; 0 if nothing depends on it."""
        if self.counter is None:
            return tf.constant(0)
        with tf.device(self.counter.device):
            return self.counter.assign_add(1).read_value()


class _Reduced(NamedTuple):
    """The outcome of one bucket's exchange.

    Attributes:
      gradients: the sums.
      finite: makes a bool scalar: whether no worker's gradient held an Inf or NaN, and no sum
        became one when cast to the gradient's type. Only called if it is needed.
      update: the residual to store, and where, if the step is kept.
    """

    gradients: list[tf.Tensor]
    finite: Callable[[], tf.Tensor]
    update: error_feedback.Update | None = None


class _CompressedExchange:
    """Compresses, exchanges and decompresses one bucket; holds its state.

    Attributes:
      bucket: which gradients it exchanges.
      needs_step: whether the number of the exchange matters.
      feedback: the residual; ``None`` without error feedback.
    """

    def __init__(self, plan: plan_lib.Plan, number: int, collectives: Collectives) -> None:
        self.bucket = plan.buckets[number]
        compression = self.bucket.compression
        assert compression is not None
        self._codec = compression.build()
        self._variables = [plan.variables[index] for index in self.bucket.indices]
        self._transform = self._codec.transform.fit(
            [VariableShape(variable.shape, variable.hidden) for variable in self._variables]
        )
        self._layout = self._transform.layout(self.bucket.num_elements)
        self._collectives = collectives
        self._transport = AllGather(collectives)
        is_adaptive = any(len(names) > 1 for names in self._transform.candidates)
        self._choice = (
            state.local_integers((len(self._variables),), f"view_{number}") if is_adaptive else None
        )
        self.needs_step = self._codec.stochastic or is_adaptive
        self.feedback = (
            error_feedback.ErrorFeedback(
                self._layout.shape, collectives.device, f"residual_{number}"
            )
            if compression.error_feedback
            else None
        )

    def views(self) -> dict[str, str]:
        """Returns the view that each variable is sparsified in, where there is a choice of views.

        Reads the state, so not while a graph is traced.
        """
        candidates = self._transform.candidates
        choice = [0] * len(candidates) if self._choice is None else self._choice.numpy()
        return {
            variable.name: names[index]
            for variable, names, index in zip(self._variables, candidates, choice, strict=False)
        }

    def __call__(self, gradients: Sequence[tf.Tensor], draw: Draw) -> _Reduced:
        packed = _pack(gradients, tf.float32)
        transform = self._current_transform(packed, draw.step)
        coefficients = transform.forward(packed)
        residual = None if self.feedback is None else self.feedback.residual.read_value()
        encoded = self._codec.encode(coefficients, residual, self._layout, draw)
        payloads = self._transport.exchange(encoded.payload)
        total, payloads_finite = self._codec.decode_sum(payloads, self._layout, draw)
        bucket = transform.inverse(total, self.bucket.num_elements)
        if not self._codec.lossless:
            # Bits of a payload that is not finite say nothing about any element of the bucket.
            bucket = tf.cond(
                payloads_finite, lambda: bucket, lambda: tf.fill(bucket.shape, np.float32("nan"))
            )
        sums = _unpack(bucket, gradients)
        narrow = [total for total in sums if total.dtype.size < tf.float32.size]
        update = None
        if self.feedback is not None:
            assert encoded.residual is not None
            update = (self.feedback, encoded.residual)
        return _Reduced(sums, lambda: payloads_finite & _all_finite(narrow), update)

    def _current_transform(self, packed: tf.Tensor, step: tf.Tensor) -> Transform:
        """Returns the transform to use, after comparing its candidates if that is due."""
        if self._choice is None:
            return self._transform
        tf.cond(view_choice.is_due(step), lambda: self._compare_views(packed), tf.no_op)
        return self._transform.at(self._choice.read_value())

    def _compare_views(self, packed: tf.Tensor) -> tf.Operation | None:
        assert self._choice is not None
        density = self._codec.density(self._layout)
        energies = self._collectives.all_reduce(self._transform.kept_energy(packed, density))
        old = self._choice.read_value()
        new = view_choice.choose(energies, old)
        updates = [self._choice.assign(new)]
        if self.feedback is not None:
            # The residual stays the same gradient, seen in other views.
            elements = self._transform.at(old).inverse(
                self.feedback.residual.read_value(), self.bucket.num_elements
            )
            updates.append(self.feedback.residual.assign(self._transform.at(new).forward(elements)))
        return tf.group(*updates)


class _DenseExchange:
    """Sums one bucket as it is."""

    needs_step = False

    def __init__(self, bucket: plan_lib.Bucket, collectives: Collectives) -> None:
        self.bucket = bucket
        self._transport = Dense(collectives)

    def __call__(self, gradients: Sequence[tf.Tensor], draw: Draw) -> _Reduced:
        total = self._transport.sum(_pack(gradients, tf.as_dtype(self.bucket.dtype)))
        return _Reduced(_unpack(total, gradients), lambda: _all_finite([total]))


def _all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns a bool scalar; types that cannot hold an Inf or NaN are not looked at."""
    checks = [tf.reduce_all(tf.math.is_finite(t)) for t in tensors if t.dtype.is_floating]
    return tf.reduce_all(checks) if checks else tf.constant(True)


def _pack(gradients: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Flattens and concatenates gradients."""
    flat = [tf.reshape(tf.cast(gradient, dtype), [-1]) for gradient in gradients]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def _unpack(bucket: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts a bucket into tensors shaped and typed like those that were packed."""
    sizes = [gradient.shape.num_elements() for gradient in like]
    parts = [bucket] if len(sizes) == 1 else tf.split(bucket, sizes)
    return [
        tf.cast(tf.reshape(part, gradient.shape), gradient.dtype)
        for part, gradient in zip(parts, like, strict=True)
    ]
