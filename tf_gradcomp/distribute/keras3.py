# SPDX-License-Identifier: Apache-2.0
"""Adapter for Keras 3: marks the optimizer's all-reduce, and mends what several workers break.

- Keras 3 reduces gradients in the private ``TFOptimizer._all_reduce_sum_gradients`` and offers
  no public way to say that a reduction is one of gradients.
- Its BatchNormalization leaves every worker with moving averages of its own data; Keras 2 keeps
  their mean over all replicas, which is what is done here too.
- To learn the shapes of its input it averages a batch of data over all workers: needless, and
  fatal when workers' batches differ in size.
"""

from __future__ import annotations

import contextvars
import functools
from types import ModuleType
from typing import Any

import tensorflow as tf

from tf_gradcomp.distribute import compat, compile_check, gradient_scope

MIN_VERSION = (3, 5)
SUPPORTED = "Keras 3.5 and newer"


def install(keras: ModuleType) -> None:
    """Wraps methods of an imported Keras 3, for good.

    The wrappers do nothing unless the current strategy compresses.
    """
    name = "keras.src.backend.tensorflow.optimizer"
    optimizer_class = compat.require(name, "TFOptimizer", "keras", SUPPORTED)
    compat.require(name, "TFOptimizer._all_reduce_sum_gradients", "keras", SUPPORTED)
    filter_empty = compat.require(name, "filter_empty_gradients", "keras", SUPPORTED)
    trainer_class = compat.require(
        "keras.src.backend.tensorflow.trainer", "TensorFlowTrainer", "keras", SUPPORTED
    )
    batch_normalization_class = compat.require(
        "keras.src.layers.normalization.batch_normalization",
        "BatchNormalization",
        "keras",
        SUPPORTED,
    )

    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    too_old = None
    if version < MIN_VERSION:
        too_old = (
            f"Keras {keras.__version__} sums gradients wrongly under a multi-worker strategy; "
            "run: pip install --upgrade 'keras>=3.5'"
        )

    _mark_gradients(optimizer_class, filter_empty, too_old)
    _average_statistics(batch_normalization_class)
    _build_from_local_data(trainer_class)
    compile_check.install(trainer_class, too_old)


def _mark_gradients(optimizer_class: Any, filter_empty: Any, too_old: str | None) -> None:
    original = optimizer_class._all_reduce_sum_gradients

    @functools.wraps(original)
    def all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        compressed = gradient_scope.is_compressed(tf.distribute.get_strategy())
        if not compressed or tf.distribute.get_replica_context() is None:
            return original(self, grads_and_vars)
        if too_old:
            raise RuntimeError(too_old)
        pairs = list(grads_and_vars)
        filter_empty(pairs)
        names = {
            gradient_scope.variable_key(variable): variable.path
            for variable in getattr(self, "_trainable_variables", [])
        }
        return gradient_scope.reduce_pairs(pairs, names)

    optimizer_class._all_reduce_sum_gradients = all_reduce_sum_gradients


def _average_statistics(layer_class: Any) -> None:
    """Makes a layer's non-trainable variables read as their mean over all replicas.

    Each replica updates its own during training, which costs no communication; the mean is taken
    when they are read outside of a training step, by ``get_weights`` or when saving.
    """
    original = layer_class.build

    def mean_on_read(next_creator: Any, **kwargs: Any) -> Any:
        if not kwargs.get("trainable"):
            kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
            kwargs["aggregation"] = tf.VariableAggregation.MEAN
        return next_creator(**kwargs)

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not gradient_scope.is_compressed(tf.distribute.get_strategy()):
            return original(self, *args, **kwargs)
        with tf.variable_creator_scope(mean_on_read):
            return original(self, *args, **kwargs)

    layer_class.build = build


def _build_from_local_data(trainer_class: Any) -> None:
    """Lets a model learn its shapes from this worker's first batch."""
    original = getattr(trainer_class, "_maybe_symbolic_build", None)
    if original is None:
        return

    @functools.wraps(original)
    def maybe_symbolic_build(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _learning_shapes.set(True)
        try:
            return original(self, *args, **kwargs)
        finally:
            _learning_shapes.reset(token)

    trainer_class._maybe_symbolic_build = maybe_symbolic_build


_learning_shapes: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "_learning_shapes", default=False
)


def is_learning_shapes() -> bool:
    """Whether Keras is reducing a batch of data of which it only wants the shapes."""
    return _learning_shapes.get()
