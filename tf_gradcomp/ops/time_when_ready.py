# SPDX-License-Identifier: Apache-2.0
"""When tensors are there."""

from __future__ import annotations

import tensorflow as tf

from tf_gradcomp.ops import loader

tf.no_gradient("Gradcomp>TimeWhenReady")


def time_when_ready(tensor: tf.Tensor) -> tf.Tensor:
    """Returns when a tensor was there, in seconds as those of ``tf.timestamp``: a float64 scalar.

    In a graph, asking makes nothing wait for anything else, as ``tf.timestamp`` would.

    Args:
      tensor: of any type, in host memory; of one that is elsewhere, all would be copied.
    """
    with tf.device("CPU:0"):
        return loader.load().gradcomp_time_when_ready(tensor=tensor)
