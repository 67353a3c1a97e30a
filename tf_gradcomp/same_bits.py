# SPDX-License-Identifier: Apache-2.0
"""Whether tensors have the same bits on all workers, by checksums; and how they come to."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_gradcomp.transports.base import Collectives


def same_everywhere(collectives: Collectives, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns which of some tensors are the same on all workers, as far as a checksum tells.

    Args:
      collectives: gathers a word for each tensor.
      tensors: of any types; as many on all workers.

    Returns:
      A bool for each, the same on all workers.
    """
    gathered = collectives.all_gather(tf.stack(list(map(_sum_of_bits, tensors))))
    return tf.reduce_all(tf.equal(gathered, gathered[:1]), axis=0)


def of_worker_0(collectives: Collectives, tensor: tf.Tensor) -> tf.Tensor:
    """Returns worker 0's tensor, on all workers: the sum of it and zeros."""
    is_source = collectives.worker_index == 0
    return collectives.all_reduce(tensor if is_source else tf.zeros_like(tensor))


def _sum_of_bits(tensor: tf.Tensor) -> tf.Tensor:
    """Returns an int32 scalar: the sum, modulo 2^32, of a tensor's bits in words."""
    if tensor.dtype.size < tf.int32.size:
        words = tf.cast(
            tf.bitcast(tensor, {1: tf.uint8, 2: tf.uint16}[tensor.dtype.size]), tf.int32
        )
    else:
        words = tf.bitcast(tensor, tf.int32)
    return tf.reduce_sum(words)
