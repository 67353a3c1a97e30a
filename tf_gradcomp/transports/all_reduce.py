# SPDX-License-Identifier: Apache-2.0
"""All-reduce: payloads that are numbers are summed as they are, in their own type.

With 16-bit numbers this is what other libraries call fp16 compression, and what everything else
should be compared with: Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in
TensorFlow" (arXiv 1802.05799), and its ``Compression.fp16``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_gradcomp.transports.base import Coder, Message, PayloadSize, Summed
from tf_gradcomp.transports.dense import Dense
from tf_gradcomp.transports.whole_bucket import WholeBucket


class AllReduce(WholeBucket):
    """One all-reduce of what payloads hold: 16-bit numbers, or float32 as it is.

    What a worker sends does not grow with the number of workers. But sums are taken in the type of
    the numbers: each addition rounds to it, and no residual holds what that loses.

    float16 ends at 65504. Workers therefore encode their share of a mean, gradients divided by the
    least power of two ``P >= W``. So no sum overflows, in whatever order it is taken, unless a
    gradient is beyond 65504 itself. An overflow counts as an Inf of the gradients. For each factor
    of two a small gradient, below ``2^-14 P``, loses a bit to denormals, and one below
    ``2^-25 P`` becomes zero: to come again with error feedback. bfloat16 has the range of float32
    and needs none of that.
    """

    needs_gain = True
    needs_addable = True

    @staticmethod
    def payload_words(shard: PayloadSize, num_workers: int) -> float:
        """Returns the words of its payload; the header, if there is one, stays here."""
        return shard.num_words

    @staticmethod
    def messages(shard: PayloadSize, num_workers: int) -> list[Message]:
        """Returns its only one."""
        return [Dense.message(shard.num_words, num_workers)]

    def sum(self, coder: Coder, coefficients: tf.Tensor, residuals: Sequence[tf.Tensor]) -> Summed:
        """Sums coefficients over the workers; see ``Transport``."""
        exponent = 0
        if coder.addable == tf.float16:
            exponent = math.ceil(math.log2(self._collectives.num_workers))
        residual = _scale(residuals[0], -exponent) if residuals else None
        payload, lost = coder.encode(0, _scale(coefficients, -exponent), residual)
        numbers = self._collectives.all_reduce(coder.addends(payload))
        finite = tf.reduce_all(tf.math.is_finite(numbers))
        total = _scale(tf.cast(numbers, tf.float32), exponent)
        return Summed(total, finite, [] if lost is None else [_scale(lost, exponent)])


def _scale(values: tf.Tensor, exponent: int) -> tf.Tensor:
    """Returns ``2^exponent * values``; a product with 1 would take denormal numbers for zeros."""
    return np.float32(2.0**exponent) * values if exponent else values
