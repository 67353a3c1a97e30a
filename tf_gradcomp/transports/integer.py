# SPDX-License-Identifier: Apache-2.0
"""Integer all-reduce: values as 32-bit integers, which any adder in a network can sum.

Source: Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation"
(SwitchML), NSDI 2021, for a scale that the workers share; Horvath et al., "Natural Compression
for Distributed Deep Learning" (arXiv 1905.10988), for powers of two that such adders sum exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_gradcomp.transports.base import Coder, Collectives, Message, PayloadSize, Summed
from tf_gradcomp.transports.dense import Dense
from tf_gradcomp.transports.whole_bucket import WholeBucket

_BLOCK_SIZE = 256  # values that share an exponent
_SMALLEST_EXPONENT = -96  # no unit is smaller than 2^-126, the least normal number
_NON_FINITE = 1 << 20  # an exponent that no block has


class Integer(WholeBucket):
    """Sums what the workers' payloads decode to, as integers in units that the workers share.

    Values of a block are multiples of ``2^(e - b)``, rounded to the nearest: ``2^e`` is the least
    power of two above all workers' magnitudes in the block, or ``2^-96`` if that is more, and
    ``b = 30 - ceil(log2 W)``, so that no sum of ``W`` integers overflows. Sums of integers are
    exact, in whatever order. So is all of what ``natural`` sends, down to ``2^-b`` of a block's
    largest value.

    An all-gather of exponents, and an all-reduce of as many words as there are values: on a ring
    of workers that saves nothing. It is for networks that add, or to see what these would do.
    """

    needs_gain = False

    @staticmethod
    def payload_words(shard: PayloadSize, num_workers: int) -> float:
        """Returns the words of integers and exponents."""
        return shard.num_items * shard.components * (1 + 1 / _BLOCK_SIZE)

    @staticmethod
    def messages(shard: PayloadSize, num_workers: int) -> list[Message]:
        """Returns that of the exponents and that of the integers."""
        num_values = shard.num_items * shard.components
        return [
            Message("all_gather", num_values * (num_workers - 1) / _BLOCK_SIZE),
            Dense.message(num_values, num_workers),
        ]

    def __init__(self, collectives: Collectives) -> None:
        super().__init__(collectives)
        self._bits = 30 - math.ceil(math.log2(collectives.num_workers))

    def sum(self, coder: Coder, coefficients: tf.Tensor, residuals: Sequence[tf.Tensor]) -> Summed:
        """Sums coefficients over the workers; see ``Transport``."""
        payload, lost = coder.encode(0, coefficients, residuals[0] if residuals else None)
        own, own_finite = coder.decode_sum(0, payload[tf.newaxis])
        blocks = _to_blocks(own)
        exponents = tf.where(own_finite, _exponents(blocks), _NON_FINITE)
        shared = tf.reduce_max(self._collectives.all_gather(exponents), axis=0)
        finite = tf.reduce_max(shared) < _NON_FINITE
        # Where the integers mean nothing, any units will do.
        unit_exponents = tf.where(finite, shared, 0) - self._bits
        integers = tf.cast(tf.round(blocks * _powers_of_two(-unit_exponents)), tf.int32)
        units = _powers_of_two(unit_exponents)
        total = tf.cast(self._collectives.all_reduce(integers), tf.float32) * units
        total = tf.where(finite, total, np.float32("nan"))
        finite &= tf.reduce_all(tf.math.is_finite(total))
        if lost is None:
            return Summed(_from_blocks(total, own), finite, [])
        rounding = _from_blocks(blocks - tf.cast(integers, tf.float32) * units, own)
        return Summed(_from_blocks(total, own), finite, [lost + rounding])


def _to_blocks(values: tf.Tensor) -> tf.Tensor:
    """Maps float32 of static shape to ``[blocks, _BLOCK_SIZE]``, with zeros at the end."""
    flat = tf.reshape(values, [-1])
    missing = -flat.shape[0] % _BLOCK_SIZE
    return tf.reshape(tf.pad(flat, [[0, missing]]) if missing else flat, [-1, _BLOCK_SIZE])


def _from_blocks(blocks: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(blocks, [-1])
    return tf.reshape(flat[: int(np.prod(like.shape))], like.shape)


def _exponents(blocks: tf.Tensor) -> tf.Tensor:
    """Returns int32 ``[blocks]``: e of the least power of two 2^e above all magnitudes."""
    largest = tf.reduce_max(tf.abs(blocks), axis=1)
    biased = tf.bitwise.right_shift(tf.bitcast(largest, tf.int32), 23)
    exponents = tf.maximum(biased - 126, _SMALLEST_EXPONENT)
    is_finite = tf.reduce_all(tf.math.is_finite(blocks), axis=1)
    return tf.where(is_finite, exponents, _NON_FINITE)


def _powers_of_two(exponents: tf.Tensor) -> tf.Tensor:
    """Maps int32 ``[blocks]``, each in -126..127, to float32 ``[blocks, 1]``."""
    return tf.bitcast(tf.bitwise.left_shift(exponents + 127, 23), tf.float32)[:, tf.newaxis]
