# SPDX-License-Identifier: Apache-2.0
"""The corridor: from one worker's gradients to the sum of all workers' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf
from absl import logging

from tf_gradcomp import plan as plan_lib
from tf_gradcomp.agreement import require_agreement
from tf_gradcomp.feedback import error_feedback
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.transports.all_gather import AllGather
from tf_gradcomp.transports.dense import Dense


class Collectives(Protocol):
    """What a reducer needs of the network; see ``distribute.collectives``."""

    num_workers: int
    worker_index: int
    device: str

    def all_gather(self, words: tf.Tensor) -> tf.Tensor: ...

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor: ...

    def gather_text(self, text: str) -> list[str]: ...


class GradientReducer:
    """Sums gradients over the workers, bucket by bucket, as a policy says.

    For every set of variables, the first call makes a plan and compares it with the other
    workers'; later calls, from retraced or other functions, use the same plan and residuals.

    Attributes:
      policy: decides how each variable is compressed.
      collectives: the network.
      plans: the plans in use, in the order in which they were made.
    """

    def __init__(self, policy: Policy, collectives: Collectives) -> None:
        self.policy = policy
        self.plans: list[plan_lib.Plan] = []
        self.collectives = collectives
        self._exchanges: dict[tuple[str, ...], list[_CompressedExchange | _DenseExchange]] = {}

    def reduce(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[VariableInfo],
        key: tuple[str, ...],
    ) -> list[tf.Tensor]:
        """Sums gradients over the workers.

        An Inf or NaN on any worker reaches all workers in its bucket; the residuals of all
        buckets then stay as they were before the step, for such a step should be skipped.

        Args:
          gradients: dense tensors of static shape.
          variables: what is known of the variable of each.
          key: identity of the set of variables, in order.

        Returns:
          The sums, shaped and typed like ``gradients``; the same bits on every worker.

        Raises:
          PlanMismatchError: the workers' plans differ.
        """
        sums: dict[int, tf.Tensor] = {}
        finite = []
        updates = []
        with tf.device(self.collectives.device):
            for exchange in self._exchanges_for(variables, key):
                indices = exchange.bucket.indices
                reduced = exchange([gradients[index] for index in indices])
                sums.update(zip(indices, reduced.gradients, strict=True))
                finite.append(reduced.finite)
                if reduced.update is not None:
                    updates.append(reduced.update)
            error_feedback.commit(tf.reduce_all(tf.stack(finite)), updates)
        return [sums[index] for index in range(len(gradients))]

    def _exchanges_for(
        self, variables: Sequence[VariableInfo], key: tuple[str, ...]
    ) -> list[_CompressedExchange | _DenseExchange]:
        if key not in self._exchanges:
            plan = plan_lib.make_plan(variables, self.policy)
            require_agreement(
                self.collectives, "what to exchange for each variable", plan.describe()
            )
            self._exchanges[key] = [
                _DenseExchange(bucket, self.collectives)
                if bucket.compression is None
                else _CompressedExchange(bucket, self.collectives, f"residual_{number}")
                for number, bucket in enumerate(plan.buckets)
            ]
            self.plans.append(plan)
            logging.info("Gradient exchange plan:\n%s", plan.summary())
        return self._exchanges[key]


class _Reduced(NamedTuple):
    """The outcome of one bucket's exchange.

    Attributes:
      gradients: the sums.
      finite: bool scalar: no worker's gradient held an Inf or NaN.
      update: the residual to store, and where, if the step is kept.
    """

    gradients: list[tf.Tensor]
    finite: tf.Tensor
    update: error_feedback.Update | None = None


class _CompressedExchange:
    """Compresses, exchanges and decompresses one bucket; holds its residual."""

    def __init__(self, bucket: plan_lib.Bucket, collectives: Collectives, name: str) -> None:
        assert bucket.compression is not None
        self.bucket = bucket
        self._codec = bucket.compression.build()
        self._layout = self._codec.transform.layout(bucket.num_elements)
        self._transport = AllGather(collectives)
        self.feedback = (
            error_feedback.ErrorFeedback(self._layout.shape, name)
            if bucket.compression.error_feedback
            else None
        )

    def __call__(self, gradients: Sequence[tf.Tensor]) -> _Reduced:
        transform = self._codec.transform
        coefficients = transform.forward(_pack(gradients, tf.float32))
        if self.feedback is not None:
            coefficients = self.feedback.compensate(coefficients)
        encoded = self._codec.encode(coefficients, self._layout)
        payloads = self._transport.exchange(encoded.payload)
        total, finite = self._codec.decode_sum(payloads, self._layout)
        bucket = transform.inverse(total, self.bucket.num_elements)
        update = None if self.feedback is None else (self.feedback, encoded.residual)
        return _Reduced(_unpack(bucket, gradients), finite, update)


class _DenseExchange:
    """Sums one bucket as it is."""

    def __init__(self, bucket: plan_lib.Bucket, collectives: Collectives) -> None:
        self.bucket = bucket
        self._transport = Dense(collectives)

    def __call__(self, gradients: Sequence[tf.Tensor]) -> _Reduced:
        total = self._transport.sum(_pack(gradients, gradients[0].dtype))
        can_be_infinite = total.dtype.is_floating
        finite = tf.reduce_all(tf.math.is_finite(total)) if can_be_infinite else tf.constant(True)
        return _Reduced(_unpack(total, gradients), finite)


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
