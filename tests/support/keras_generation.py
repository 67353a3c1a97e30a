# SPDX-License-Identifier: Apache-2.0
"""Which Keras the tests run on."""

from __future__ import annotations

import importlib

import tensorflow as tf

# Neither tf-keras nor Keras 2 shows a version at tf.keras itself.
_package = importlib.import_module(tf.keras.Model.__module__.partition(".")[0])
IS_KERAS3: bool = _package.__version__.startswith("3.")
