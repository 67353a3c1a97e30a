# SPDX-License-Identifier: Apache-2.0
"""Refuses what cannot work when ``model.compile`` is called, before any step is traced."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import tensorflow as tf

from tf_gradcomp.distribute import gradient_scope, optimizer_check

JIT_COMPILE_MESSAGE = (
    "jit_compile=True does not work with compressed gradients: the codec's operations have no XLA "
    "kernels. Compile the model with jit_compile=False (XLA can still compile parts of a "
    "model: wrap them in tf.function(jit_compile=True))."
)


MADE_OUTSIDE_MESSAGE = (
    "the model was made outside of strategy.scope(): its variables belong to this worker alone, "
    "and each worker would train by itself. Build the model inside of the scope, and compile it "
    "there or after it."
)


def install(model_class: Any) -> None:
    """Wraps ``model_class.compile``, where ``model_class`` is a Keras class."""
    original = model_class.compile
    signature = inspect.signature(original)

    @functools.wraps(original)
    def checked_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = getattr(self, "distribute_strategy", None) or tf.distribute.get_strategy()
        if gradient_scope.is_compressed(strategy) and not strategy.policy.is_dense:
            arguments = signature.bind(self, *args, **kwargs).arguments
            if arguments.get("jit_compile") is True:
                raise ValueError(JIT_COMPILE_MESSAGE)
        if gradient_scope.is_compressed(strategy) and _is_made_outside(self, strategy):
            raise ValueError(MADE_OUTSIDE_MESSAGE)
        result = original(self, *args, **kwargs)
        if gradient_scope.is_compressed(strategy):
            optimizer_check.require_no_momentum(getattr(self, "optimizer", None), strategy.policy)
        return result

    model_class.compile = checked_compile


def _is_made_outside(model: Any, strategy: Any) -> bool:
    """Whether a model has variables, and none of them was made in the strategy's scope."""
    weights = model.weights if getattr(model, "built", False) else []
    variables = [gradient_scope.tensorflow_variable(weight) for weight in weights]
    return bool(variables) and not any(
        strategy.extended.variable_created_in_scope(variable) for variable in variables
    )
