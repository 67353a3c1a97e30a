# SPDX-License-Identifier: Apache-2.0
"""Refuses an optimizer whose momentum comes on top of that of compressed gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_gradcomp.policy import Policy

# As Keras and tensorflow-addons call it, SGD and the families of RMSprop and Adam.
_MOMENTA = ("momentum", "beta_1", "beta1")
# Optimizers that divide gradients by their size, without momentum of their own.
_NORMALIZING = {"Adadelta", "Adafactor", "Adagrad", "Ftrl", "FTRL", "RMSprop"}


def require_no_momentum(optimizer: Any, policy: Policy) -> None:
    """Raises unless momentum is applied once, by the exchange or by the optimizer.

    Args:
      optimizer: a Keras optimizer; ``None`` for none.
      policy: how gradients are compressed.

    Raises:
      ValueError: both have momentum, or the optimizer is none to which momentum can be added.
    """
    if not policy.momentum:
        return
    inner = innermost(optimizer)
    kinds = {base.__name__ for base in type(inner).__mro__} & _NORMALIZING
    if kinds:
        raise ValueError(
            f"the optimizer {type(inner).__name__} divides gradients by their size, which undoes "
            f"the momentum {policy.momentum:g} of compression. Use SGD(momentum=0), or compression "
            f"without momentum: {policy}"
        )
    for name in _MOMENTA:
        factor = getattr(inner, name, None)
        if factor is None or isinstance(factor, bool):
            continue
        with tf.init_scope():
            value = tf.convert_to_tensor(factor() if callable(factor) else factor).numpy()
        # What is made in a function has no value yet; the function will be traced again.
        if value.size and value:
            raise ValueError(
                f"the optimizer {type(optimizer).__name__} has {name}={value:.6g}, and "
                f"compression has momentum {policy.momentum:g} in its place: both would be "
                f"applied. Use SGD(momentum=0), or compression without momentum: {policy}"
            )


def innermost(optimizer: Any) -> Any:
    """Returns what an optimizer that scales losses or averages weights is wrapped around."""
    while True:
        inner = getattr(optimizer, "inner_optimizer", getattr(optimizer, "_optimizer", None))
        if inner is None:
            return optimizer
        optimizer = inner
