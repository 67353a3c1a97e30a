# SPDX-License-Identifier: Apache-2.0
"""Block-sparse all-reduce: only blocks that are not zero on some worker travel.

Source: Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate
Distributed Deep Learning" (OmniReduce), SIGCOMM 2021. There, aggregators find the union of the
workers' blocks as they go (``lookahead_model``); here the workers compare bit masks first, and
TensorFlow's all-reduce carries the union.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_gradcomp.ops import nonzero_blocks as blocks_ops
from tf_gradcomp.transports import lookahead_cost
from tf_gradcomp.transports.base import Coder, Message, PayloadSize, Summed
from tf_gradcomp.transports.dense import Dense
from tf_gradcomp.transports.whole_bucket import WholeBucket

_BLOCK_SIZE = 256  # values, where items are no blocks themselves; the paper's choice
_MIN_BLOCK_SIZE = 32  # of items that are taken for blocks; a bit each should stay a small part
# Values that are packed while those before them travel.
_CHUNK_VALUES = 1 << 22
# A union of more blocks than this is not worth packing.
_DENSE_FROM = 0.9


class BlockSparse(WholeBucket):
    """Sums what the workers' payloads decode to, block by block, over those that are not zero.

    An all-gather of masks, one bit a block, and an all-reduce of the union's blocks, in parts where
    the bucket is large. Nothing is lost on the way: the sum is that of TensorFlow's all-reduce, the
    same bits on every worker. What is sent depends on the gradients; if nothing is zero, all
    travels, and the masks are what it costs.
    """

    needs_gain = False

    @staticmethod
    def payload_words(shard: PayloadSize, num_workers: int) -> float:
        """Returns the words of the mask and the union, if all items are kept independently.

        Payloads with room for all say nothing about what is zero: none of it, then.
        """
        block_size = _block_size(shard.components)
        items_a_block = max(1, block_size // shard.components)
        density = lookahead_cost.independent_block_density(shard.density, items_a_block)
        union = lookahead_cost.independent_union_density(density, num_workers)
        if union >= _DENSE_FROM:
            union = 1.0
        num_values = shard.num_items * shard.components
        return union * num_values + _mask_words(num_values, block_size)

    @staticmethod
    def messages(shard: PayloadSize, num_workers: int) -> list[Message]:
        """Returns that of the masks and, by the same estimate, that of the union's blocks."""
        num_values = shard.num_items * shard.components
        mask_words = _mask_words(num_values, _block_size(shard.components))
        blocks = BlockSparse.payload_words(shard, num_workers) - mask_words
        return [
            Message("all_gather", mask_words * (num_workers - 1.0)),
            Dense.message(blocks, num_workers),
        ]

    def sum(self, coder: Coder, coefficients: tf.Tensor, residuals: Sequence[tf.Tensor]) -> Summed:
        """Sums coefficients over the workers; see ``Transport``."""
        own, lost = coefficients, None
        if residuals or not coder.lossless:
            payload, lost = coder.encode(0, coefficients, residuals[0] if residuals else None)
            own, finite = coder.decode_sum(0, payload[tf.newaxis])
            # What is not finite must reach all workers, whatever the payload holds instead.
            own = tf.cond(finite, lambda: own, lambda: tf.fill(own.shape, np.float32("nan")))
        total = self._all_reduce(own)
        all_finite = tf.reduce_all(tf.math.is_finite(total))
        return Summed(total, all_finite, [] if lost is None else [lost])

    def _all_reduce(self, values: tf.Tensor) -> tf.Tensor:
        """Sums a tensor of static shape over the workers."""
        block_size = _block_size(values.shape[1] if len(values.shape) > 1 else 1)
        flat = tf.reshape(values, [-1])
        masks = self._collectives.all_gather(blocks_ops.nonzero_blocks(flat, block_size))
        union = functools.reduce(tf.bitwise.bitwise_or, tf.unstack(masks))
        num_blocks = tf.reduce_sum(tf.cast(tf.raw_ops.PopulationCount(x=union), tf.int32))
        is_dense = num_blocks * block_size >= int(_DENSE_FROM * flat.shape[0])
        total = tf.cond(
            is_dense,
            lambda: self._collectives.all_reduce(flat),
            lambda: self._all_reduce_union(flat, union, block_size),
        )
        return tf.reshape(total, values.shape)

    def _all_reduce_union(self, flat: tf.Tensor, union: tf.Tensor, block_size: int) -> tf.Tensor:
        chunk = -(-_CHUNK_VALUES // (32 * block_size)) * 32 * block_size  # whole words of the mask
        sums = []
        for start in range(0, flat.shape[0], chunk):
            part = flat[start : start + chunk]
            mask = union[start // (32 * block_size) :][: -(-part.shape[0] // (32 * block_size))]
            packed = blocks_ops.blocks_take(mask, part, block_size)
            reduced = self._collectives.all_reduce(packed)
            sums.append(blocks_ops.blocks_put(mask, reduced, part.shape[0]))
        return sums[0] if len(sums) == 1 else tf.concat(sums, axis=0)


def _block_size(components: int) -> int:
    return components if components >= _MIN_BLOCK_SIZE else _BLOCK_SIZE


def _mask_words(num_values: int, block_size: int) -> int:
    return -(-num_values // (32 * block_size))
