# SPDX-License-Identifier: Apache-2.0
"""Marks the one all-reduce that carries gradients.

The cross-device ops of a strategy reduce gradients, metrics, losses and batch statistics
alike; only the optimizer's call may be compressed. The mark is a subclass of the communication
options, which TensorFlow hands from ``ReplicaContext.all_reduce`` down to the cross-device ops.
"""

from __future__ import annotations

import collections
import math
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tf_gradcomp.distribute import compat

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


class MarkedVariable(NamedTuple):
    """The variable that a gradient belongs to.

    Attributes:
      key: identity of the variable, the same in every replica on a worker; numbered, where a
        variable has several gradients.
      name: its path in the model if known, else its own name.
      owner: the variable, or what holds its replicas, without keeping it alive.
    """

    key: str
    name: str
    owner: weakref.ref[Any]


class GradientMark(NamedTuple):
    """What is known of gradients that are reduced.

    Attributes:
      variables: what they are gradients of, in order.
      learning_rate: float32 scalar, the optimizer's in this step; ``None`` if it is not known.
    """

    variables: tuple[MarkedVariable, ...]
    learning_rate: tf.Tensor | None


class GradientOptions(compat.Options):
    """Options of an all-reduce whose values are gradients."""

    def __init__(self, mark: GradientMark) -> None:
        super().__init__()
        self.mark = mark


class StrategyOptions(compat.Options):
    """The strategy's default options; merging keeps the mark that the stock class would drop."""

    def merge(self, options: compat.Options | None) -> compat.Options:
        merged = super().merge(options)
        if isinstance(options, GradientOptions):
            merged.mark = options.mark
        return merged


def mark_of(options: compat.Options | None) -> GradientMark | None:
    """Returns the mark of an all-reduce of gradients, ``None`` for any other."""
    return getattr(options, "mark", None)


def is_compressed(strategy: Any) -> bool:
    """Whether a strategy understands the mark."""
    return getattr(strategy.extended, "compresses_gradients", False)


@tf.autograph.experimental.do_not_convert
def all_reduce_gradients(
    grads_and_vars: Iterable[tuple[Gradient | None, Any]],
    learning_rate: tf.Tensor | float | None = None,
) -> list[tuple[Gradient | None, Any]]:
    """Sums gradients over all replicas, compressed as the strategy says.

    For training loops that use the sums themselves. A Keras optimizer's ``apply_gradients`` and
    ``model.fit`` do this on their own, and would add up once more what is given to them summed.
    Call it in a replica context, which means inside of ``strategy.run``, on every replica and with
    the same variables in the same order. Under another strategy the sum is TensorFlow's own.

    Args:
      grads_and_vars: pairs ``(gradient, variable)``; a gradient is a tensor of the variable's
        shape, a ``tf.IndexedSlices``, or ``None``.
      learning_rate: what the sums will be multiplied by; needed with ``lr_correction`` only.

    Returns:
      The pairs with summed gradients, ``None`` where there was none.

    Raises:
      RuntimeError: not in a replica context.
      ValueError: the learning rate is no scalar, or a number that is negative or not finite.
    """
    rate = None
    if learning_rate is not None:
        if isinstance(learning_rate, int | float) and not 0 <= learning_rate < math.inf:
            raise ValueError(f"learning_rate must be finite and >= 0, got {learning_rate!r}")
        rate = tf.cast(learning_rate, tf.float32)
        if rate.shape.rank != 0:
            raise ValueError(f"learning_rate must be a scalar, got shape {rate.shape}")
    return reduce_pairs(list(grads_and_vars), {}, rate)


def reduce_pairs(
    pairs: list[tuple[Gradient | None, Any]],
    names: Mapping[str, str],
    learning_rate: tf.Tensor | None,
) -> list[tuple[Gradient | None, Any]]:
    """``all_reduce_gradients`` with better names: a map from a variable's key to its path."""
    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError(
            "all_reduce_gradients must be called in a replica context: inside of strategy.run"
        )
    present = [index for index, (gradient, _) in enumerate(pairs) if gradient is not None]
    if not present:
        return pairs
    marked = []
    count: collections.Counter[str] = collections.Counter()
    for index in present:
        variable = pairs[index][1]
        key = variable_key(variable)
        own_name = getattr(variable, "path", None) or getattr(variable, "name", key)
        owner = weakref.ref(_all_replicas(variable))
        # Keras 2 has no paths, but names such as "dense/kernel:0", of TensorFlow's graphs.
        name = names.get(key, str(own_name)).removesuffix(":0")
        count[key] += 1
        if count[key] > 1:
            key = f"{key} #{count[key]}"
        marked.append(MarkedVariable(key, name, owner))
    reduced = context.all_reduce(
        tf.distribute.ReduceOp.SUM,
        [pairs[index][0] for index in present],
        options=GradientOptions(GradientMark(tuple(marked), learning_rate)),
    )
    for index, gradient in zip(present, reduced, strict=True):
        pairs[index] = (gradient, pairs[index][1])
    return pairs


def variable_key(variable: Any) -> str:
    """Returns an identity that holds on to nothing and is the same in every replica.

    Args:
      variable: a ``tf.Variable``, one of its replicas, or a Keras 3 variable.
    """
    variable = _all_replicas(variable)
    return getattr(variable, "_unique_id", None) or str(id(variable))


def tensorflow_variable(variable: Any) -> Any:
    """Returns the ``tf.Variable`` in a Keras 3 variable, or what is one itself."""
    is_of_keras3 = hasattr(variable, "path") and hasattr(variable, "value")
    return variable.value if is_of_keras3 else variable


def _all_replicas(variable: Any) -> Any:
    """Returns the object that stands for a variable in all replicas."""
    variable = tensorflow_variable(variable)
    container = getattr(variable, "_distributed_container", None)
    replicas = None if container is None else container()
    return variable if replicas is None else replicas
