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
from tf_gradcomp.codecs.base import Draw
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
        key = (tuple(owners), tuple(variables))
        if key not in self._entries or not self._entries[key].is_alive():
            plan = plan_lib.make_plan(variables, self.policy, self.collectives.num_workers)
            require_agreement(self.collectives, "what to exchange for each variable", plan.facts())
            logging.info("Gradient exchange plan:\n%s", plan.summary())
            # The residuals of models that are gone would otherwise fill the memory.
            self._entries = {k: entry for k, entry in self._entries.items() if entry.is_alive()}
            exchanges = [
                _DenseExchange(bucket, self.collectives)
                if bucket.compression is None
                else _CompressedExchange(bucket, self.collectives, f"residual_{number}")
                for number, bucket in enumerate(plan.buckets)
            ]
            is_stochastic = any(exchange.is_stochastic for exchange in exchanges)
            counter = state.local_counter("exchanges") if is_stochastic else None
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
    """Compresses, exchanges and decompresses one bucket; holds its residual."""

    def __init__(self, bucket: plan_lib.Bucket, collectives: Collectives, name: str) -> None:
        assert bucket.compression is not None
        self.bucket = bucket
        self._codec = bucket.compression.build()
        self._layout = self._codec.transform.layout(bucket.num_elements)
        self._transport = AllGather(collectives)
        self.is_stochastic = self._codec.stochastic
        self.feedback = (
            error_feedback.ErrorFeedback(self._layout.shape, collectives.device, name)
            if bucket.compression.error_feedback
            else None
        )

    def __call__(self, gradients: Sequence[tf.Tensor], draw: Draw) -> _Reduced:
        transform = self._codec.transform
        coefficients = transform.forward(_pack(gradients, tf.float32))
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


class _DenseExchange:
    """Sums one bucket as it is."""

    is_stochastic = False

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
