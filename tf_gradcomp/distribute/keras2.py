# SPDX-License-Identifier: Apache-2.0
"""Adapter for tf-keras and Keras 2.15: marks the optimizers' all-reduce, checks ``compile``.

Their new and legacy optimizers alike, and those of tensorflow-addons, which derive from the
legacy ones, reduce gradients through the module function
``optimizers.utils.all_reduce_sum_gradients``.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import tensorflow as tf

from tf_gradcomp.distribute import compat, compile_check, gradient_scope

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
        compressed = gradient_scope.is_compressed(tf.distribute.get_strategy())
        if not compressed or tf.distribute.get_replica_context() is None:
            return original(grads_and_vars)
        pairs = list(grads_and_vars)
        filter_empty(pairs)
        return gradient_scope.reduce_pairs(pairs, names={})

    utils = compat.require(f"{package}.src.optimizers", "utils", package, SUPPORTED)
    utils.all_reduce_sum_gradients = all_reduce_sum_gradients
    compile_check.install(model_class)


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
