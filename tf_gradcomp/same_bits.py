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
    gathered = collectives.all_gather(tf.stack(list(map(_checksum, tensors))))
    return tf.reduce_all(tf.equal(gathered, gathered[:1]), axis=0)


def of_worker_0(collectives: Collectives, tensor: tf.Tensor) -> tf.Tensor:
    """Returns worker 0's tensor, on all workers: the sum of it and zeros."""
    is_source = collectives.worker_index == 0
    return collectives.all_reduce(tensor if is_source else tf.zeros_like(tensor))


def _checksum(tensor: tf.Tensor) -> tf.Tensor:
    """Returns an int32 scalar: the sum, modulo 2^32, of the words of a tensor times odd numbers.

    A plain sum is the same if elements trade places, or if an even number of them change their
    signs, as eigenvectors do. So words count by their places, and the sign among the lower bits.
    """
    if tensor.dtype.size < tf.int32.size:
        words = tf.cast(
            tf.bitcast(tensor, {1: tf.uint8, 2: tf.uint16}[tensor.dtype.size]), tf.int32
        )
    else:
        words = tf.bitcast(tensor, tf.int32)
    words = tf.reshape(words, [-1])
    # As unsigned words: shifting in the sign would make a word and its complement alike.
    unsigned = tf.bitcast(words, tf.uint32)
    mixed = tf.bitcast(
        unsigned ^ tf.bitwise.right_shift(unsigned, tf.constant(15, tf.uint32)), tf.int32
    )
    return tf.reduce_sum(mixed * (2 * tf.range(tf.size(words)) + 1))
