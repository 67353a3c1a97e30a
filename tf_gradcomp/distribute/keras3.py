# SPDX-License-Identifier: Apache-2.0
"""Adapter for Keras 3: marks the optimizer's all-reduce, and mends what several workers break.

- Keras 3 reduces gradients in the private ``TFOptimizer._all_reduce_sum_gradients`` and offers
  no public way to say that a reduction is one of gradients.
- Its BatchNormalization leaves every worker with moving averages of its own data; Keras 2 keeps
  their mean over all replicas, which is what is done here too.
- Its LossScaleOptimizer decides on each worker alone whether to skip a step. A worker that skips
  alone leaves the others waiting for its gradients.
- To learn the shapes of its input it averages a batch of data over all workers: needless, and
  fatal when workers' batches differ in size.
"""

from __future__ import annotations

import contextvars
import functools
from types import ModuleType
from typing import Any

import tensorflow as tf
from absl import logging

from tf_gradcomp.distribute import compat, compile_check, gradient_scope, optimizer_check

MIN_VERSION = (3, 5)
TESTED_VERSION = (3, 15)
SUPPORTED = "Keras 3.5 and newer"


def install(keras: ModuleType) -> None:
    """Wraps methods of an imported Keras 3, for good.

    The wrappers do nothing unless the current strategy compresses.

    Raises:
      RuntimeError: the version is too old to be used at all.
    """
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version < MIN_VERSION:
        raise RuntimeError(
            f"Keras {keras.__version__} sums gradients wrongly under a multi-worker strategy; "
            "run: pip install --upgrade 'keras>=3.5'"
        )
    if version < TESTED_VERSION:
        logging.warning(
            "Keras %s is older than %d.%d, with which tf_gradcomp is tested. Gradients are summed "
            "right, but some older versions report each worker's own metrics: do not let callbacks "
            "decide by them, as EarlyStopping does.",
            keras.__version__,
            *TESTED_VERSION,
        )
    name = "keras.src.backend.tensorflow.optimizer"
    optimizer_class = compat.require(name, "TFOptimizer", "keras", SUPPORTED)
    compat.require(name, "TFOptimizer._all_reduce_sum_gradients", "keras", SUPPORTED)
    filter_empty = compat.require(name, "filter_empty_gradients", "keras", SUPPORTED)
    trainer_class = compat.require(
        "keras.src.backend.tensorflow.trainer", "TensorFlowTrainer", "keras", SUPPORTED
    )
    base_trainer_class = compat.require("keras.src.trainers.trainer", "Trainer", "keras", SUPPORTED)
    loss_scale_class = compat.require(
        "keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer", "keras", SUPPORTED
    )
    batch_normalization_class = compat.require(
        "keras.src.layers.normalization.batch_normalization",
        "BatchNormalization",
        "keras",
        SUPPORTED,
    )

    _mark_gradients(optimizer_class, filter_empty)
    _agree_on_overflow(loss_scale_class)
    _average_statistics(batch_normalization_class)
    _build_from_local_data(trainer_class)
    # On the class that defines it: Keras takes a `compile` of any other for a custom one, which it
    # does not call when it loads a model.
    compile_check.install(base_trainer_class)


def _mark_gradients(optimizer_class: Any, filter_empty: Any) -> None:
    original = optimizer_class._all_reduce_sum_gradients

    @functools.wraps(original)
    def all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        strategy = tf.distribute.get_strategy()
        compressed = gradient_scope.is_compressed(strategy)
        if not compressed or tf.distribute.get_replica_context() is None:
            return original(self, grads_and_vars)
        optimizer_check.require_no_momentum(self, strategy.policy)
        pairs = list(grads_and_vars)
        filter_empty(pairs)
        names = {
            gradient_scope.variable_key(variable): variable.path
            for variable in getattr(self, "_trainable_variables", [])
            if hasattr(variable, "path")  # a plain tf.Variable has its own name only
        }
        learning_rate = None
        if strategy.policy.lr_correction:
            learning_rate = tf.cast(tf.convert_to_tensor(self.learning_rate), tf.float32)
        return gradient_scope.reduce_pairs(pairs, names, learning_rate)

    optimizer_class._all_reduce_sum_gradients = all_reduce_sum_gradients


def _agree_on_overflow(loss_scale_class: Any) -> None:
    """Lets all workers skip a step when one has an Inf or NaN in its scaled gradients."""
    original = loss_scale_class.check_finite

    @functools.wraps(original)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = original(self, grads)
        context = tf.distribute.get_replica_context()
        if context is None or not gradient_scope.is_compressed(tf.distribute.get_strategy()):
            return finite
        overflows = context.all_reduce(
            tf.distribute.ReduceOp.SUM, 1.0 - tf.cast(finite, tf.float32)
        )
        return tf.equal(overflows, 0.0)

    loss_scale_class.check_finite = check_finite


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


def trackables(model: Any) -> dict[str, Any]:
    """Returns what a checkpoint must hold of a compiled model, its optimizer and seeds included."""
    if not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    return {
        "model": [variable.value for variable in model.variables],
        "optimizer": [variable.value for variable in model.optimizer.variables],
    }


def start_at(model: Any, epoch: int | None) -> None:
    """Lets ``fit``, which has begun, start at an epoch; ``None`` for the one it was called with."""
    if not hasattr(model, "_initial_epoch"):
        raise ImportError(f"tf_gradcomp needs Model._initial_epoch; supported: {SUPPORTED}")
    model._initial_epoch = epoch
