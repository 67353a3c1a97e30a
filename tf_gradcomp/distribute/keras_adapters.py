# SPDX-License-Identifier: Apache-2.0
"""Puts the right adapter on every Keras that is imported."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import tensorflow as tf

from tf_gradcomp.distribute import keras2, keras3

_installed: set[str] = set()


def load_active_keras() -> None:
    """Imports the Keras that ``tf.keras`` stands for, which TensorFlow does only when used.

    Its ``compile`` can then be checked even if a script first touches Keras after entering the
    strategy's scope. A program without Keras has none to load.
    """
    try:
        getattr(tf.keras, "__version__", None)
    except (ImportError, AttributeError):
        return


def ensure_installed() -> None:
    """Adapts each imported Keras once. Cheap when there is nothing to do.

    Raises:
      ImportError: a Keras version lacks a name that its adapter needs.
      RuntimeError: a Keras version is too old.
    """
    for name in ("keras", "tf_keras"):
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None)
        if name in _installed or version is None:
            continue
        (keras2 if version.startswith("2.") else keras3).install(module)
        _installed.add(name)


def adapter_of(model: Any) -> ModuleType:
    """Returns the adapter of the Keras that a model belongs to."""
    packages = [base.__module__.partition(".")[0] for base in type(model).__mro__]
    name = next(package for package in packages if package in ("keras", "tf_keras"))
    return keras2 if sys.modules[name].__version__.startswith("2.") else keras3
