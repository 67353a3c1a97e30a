# SPDX-License-Identifier: Apache-2.0
"""Adapter for tf-keras and Keras 2.15: marks the optimizers' all-reduce, checks ``compile``.

Their new and legacy optimizers alike, and those of tensorflow-addons, which derive from the
legacy ones, reduce gradients through the module function
``optimizers.utils.all_reduce_sum_gradients``.
"""

from __future__ import annotations

import contextvars
import functools
from types import ModuleType
from typing import Any

import tensorflow as tf

from tf_gradcomp.distribute import compat, compile_check, gradient_scope, optimizer_check

SUPPORTED = "Keras 2.15, tf-keras 2.15 and newer"


def install(keras: ModuleType) -> None:
    """Wraps the optimizers' reduction and ``compile`` of an imported Keras 2, for good.

    The wrappers do nothing unless the current strategy compresses.

    Args:
      keras: the package ``tf_keras``, or ``keras`` of version 2.
    """
    package = keras.__name__
    utils_name = f"{package}.src.optimizers.utils"
    original = compat.require(utils_name, "all_reduce_sum_gradients", package, SUPPORTED)
    filter_empty = compat.require(utils_name, "filter_empty_gradients", package, SUPPORTED)
    model_class = compat.require(f"{package}.src.engine.training", "Model", package, SUPPORTED)

    @functools.wraps(original)
    def all_reduce_sum_gradients(grads_and_vars: Any) -> Any:
        strategy = tf.distribute.get_strategy()
        compressed = gradient_scope.is_compressed(strategy)
        if not compressed or tf.distribute.get_replica_context() is None:
            return original(grads_and_vars)
        optimizer, learning_rate = _reducing.get(), None
        optimizer_check.require_no_momentum(optimizer, strategy.policy)
        if optimizer is not None and strategy.policy.lr_correction:
            learning_rate = _learning_rate(optimizer)
        pairs = list(grads_and_vars)
        filter_empty(pairs)
        return gradient_scope.reduce_pairs(pairs, {}, learning_rate)

    utils = compat.require(f"{package}.src.optimizers", "utils", package, SUPPORTED)
    utils.all_reduce_sum_gradients = all_reduce_sum_gradients
    optimizers = f"{package}.src.optimizers"
    _remember_optimizer(f"{optimizers}.optimizer", "Optimizer", "aggregate_gradients", package)
    legacy = f"{optimizers}.legacy.optimizer_v2"
    compat.require(legacy, "OptimizerV2._decayed_lr", package, SUPPORTED)
    _remember_optimizer(legacy, "OptimizerV2", "_aggregate_gradients", package)
    compile_check.install(model_class)


# Whose gradients are being reduced: Keras' function is not told.
_reducing: contextvars.ContextVar[Any] = contextvars.ContextVar("_reducing", default=None)


def _remember_optimizer(module: str, class_name: str, method: str, package: str) -> None:
    """Wraps the method of an optimizer that reduces gradients."""
    original = compat.require(module, f"{class_name}.{method}", package, SUPPORTED)

    @functools.wraps(original)
    def aggregate(self: Any, grads_and_vars: Any) -> Any:
        token = _reducing.set(self)
        try:
            return original(self, grads_and_vars)
        finally:
            _reducing.reset(token)

    setattr(compat.require(module, class_name, package, SUPPORTED), method, aggregate)


def _learning_rate(optimizer: Any) -> tf.Tensor:
    """Returns the learning rate that an optimizer is about to use, a float32 scalar."""
    optimizer = optimizer_check.innermost(optimizer)
    if hasattr(optimizer, "_decayed_lr"):  # legacy
        return tf.cast(optimizer._decayed_lr(tf.float32), tf.float32)
    rate = optimizer._learning_rate
    return tf.cast(rate(optimizer.iterations) if callable(rate) else rate, tf.float32)


def trackables(model: Any) -> dict[str, Any]:
    """Returns what a checkpoint must hold of a compiled model, its optimizer and seeds included."""
    # Keras leaves these out of checkpoints. Without `enable_tf_random_generator` there are none:
    # the states are then in TensorFlow's kernels, out of reach.
    generators = [getattr(layer, "_random_generator", None) for layer in model._flatten_layers()]
    seeds = [getattr(generator, "_generator", None) for generator in generators]
    return {
        "model": model,
        "optimizer": model.optimizer,
        "seeds": [seed for seed in seeds if seed is not None],
    }


class _StartingEpoch:
    """Answers the question that ``fit`` asks of Keras' own backup."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: Any, initial_epoch: int, mode: Any
    ) -> tuple[int, int]:
        return self._epoch, 0


def start_at(model: Any, epoch: int | None) -> None:
    """Lets ``fit``, which has begun, start at an epoch; ``None`` for the one it was called with."""
    if not hasattr(model, "_training_state"):
        raise ImportError(f"tf_gradcomp needs Model._training_state; supported: {SUPPORTED}")
    model._training_state = None if epoch is None else _StartingEpoch(epoch)
