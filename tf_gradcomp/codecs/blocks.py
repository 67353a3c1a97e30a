# SPDX-License-Identifier: Apache-2.0
"""Blocks: neighbouring elements that are kept or dropped together.

Source: Fei et al., "Efficient Sparse Collective Communication and its Application to Accelerate
Distributed Deep Learning" (OmniReduce), SIGCOMM 2021 (DOI 10.1145/3452296.3472904), whose block
top-k, block random-k and block threshold are the sparsifiers of this package after this transform.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_gradcomp.codecs import base

MIN_BLOCK = 8
MAX_BLOCK = 65536


@dataclasses.dataclass(frozen=True)
class Blocks(base.Transform):
    """Cuts a bucket into blocks, each one item of ``block`` components.

    Item ``i`` holds the elements ``i * block`` to ``(i + 1) * block - 1``; the last one is padded
    with zeros. Sparsifiers rank it by its Euclidean norm.

    Attributes:
      block: elements of a block, 8 to 65536.

    Raises:
      ValueError: ``block`` is out of range.
    """

    block: int = 256

    def __post_init__(self) -> None:
        base.check_range("blocks", "block", self.block, MIN_BLOCK, MAX_BLOCK, low_open=False)

    def layout(self, num_elements: int) -> base.Layout:
        return base.Layout(-(-num_elements // self.block), components=self.block)

    def forward(self, bucket: tf.Tensor) -> tf.Tensor:
        padding = -bucket.shape[0] % self.block
        if padding:
            bucket = tf.pad(bucket, [[0, padding]])
        return tf.reshape(bucket, [-1, self.block])

    def inverse(self, coefficients: tf.Tensor, num_elements: int) -> tf.Tensor:
        return tf.reshape(coefficients, [-1])[:num_elements]
