# SPDX-License-Identifier: Apache-2.0
"""Top-k: keep the items of largest magnitude."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.ops import positions as positions_ops
from tf_gradcomp.ops import top_k as top_k_ops
from tf_gradcomp.ops import top_k_chunked as top_k_chunked_ops
from tf_gradcomp.ops.counts import Count


@dataclasses.dataclass(frozen=True)
class TopK(base.Sparsifier):
    """Keeps the ``k = ceil(density * N)`` items of largest magnitude in the bucket, exactly.

    Complex items and blocks rank by their Euclidean norm, and spectral bins that stand for a
    conjugate pair count twice their energy, so that by Parseval's identity the kept items hold the
    largest possible share of the gradient's energy. Ties go to the lowest index. Biased: use error
    feedback.

    Attributes:
      density: share of the items kept, in (0, 1], or a float64 scalar tensor. SuperNeurons' theta
        is ``1 - density``.

    Raises:
      ValueError: ``density`` is outside (0, 1].
    """

    density: float | tf.Tensor = 0.01
    biased: ClassVar[bool] = True
    adjustable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        base.check_density("top-k", self.density)

    def at(self, density: tf.Tensor) -> TopK:
        return dataclasses.replace(self, density=density)

    def num_kept(self, layout: base.Layout) -> Count:
        return num_kept(self.density, layout.num_items)

    def num_words(self, layout: base.Layout) -> int:
        return positions_ops.num_words(layout.num_items, self.num_kept(layout))

    def select(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> base.Selected:
        num_kept, row_length = self.num_kept(layout), layout.row_length
        if residual is None:
            selected = top_k_ops.top_k_select(coefficients, num_kept, row_length)
            return base.Selected(*selected, coefficients)
        return base.Selected(
            *top_k_ops.top_k_select_sum(coefficients, residual, num_kept, row_length)
        )

    def replace(self, total: tf.Tensor, positions: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        return positions_ops.positions_replace(total, positions, kept)

    def sum(
        self, positions: tf.Tensor, kept: tf.Tensor, layout: base.Layout, draw: base.Draw
    ) -> tf.Tensor:
        return positions_ops.positions_sum(positions, kept, layout.num_items)


@dataclasses.dataclass(frozen=True)
class ChunkedTopK(TopK):
    """Top-k, of the whole bucket or of every chunk of it.

    Attributes:
      density: as for ``TopK``.
      chunk: 0 for the whole bucket, or a power of two from 64 to 65536: of every ``chunk``
        consecutive items the ``ceil(density * chunk)`` largest are kept, and as large a share of a
        last, shorter chunk. Real items only.

    Raises:
      ValueError: a field is out of range.
    """

    chunk: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        base.check_integer("top-k", "chunk", self.chunk)
        low, high = top_k_chunked_ops.MIN_CHUNK, top_k_chunked_ops.MAX_CHUNK
        if self.chunk and (not low <= self.chunk <= high or self.chunk & (self.chunk - 1)):
            raise ValueError(
                f"top-k: chunk must be 0 or a power of two from {low} to {high}, got {self.chunk}"
            )

    def num_kept(self, layout: base.Layout) -> Count:
        if not self.chunk:
            return super().num_kept(layout)
        count, last_count = self._counts(layout)
        return layout.num_items // self.chunk * count + last_count

    def select(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> base.Selected:
        if not self.chunk:
            return super().select(coefficients, residual, layout, draw)
        total = base.add_residual(coefficients, residual)
        selected = top_k_chunked_ops.top_k_chunked_select(total, self.chunk, *self._counts(layout))
        return base.Selected(*selected, total)

    def _counts(self, layout: base.Layout) -> tuple[Count, Count]:
        """Returns how many items of a chunk are kept, and how many of a last, shorter one."""
        rest = layout.num_items % self.chunk
        return num_kept(self.density, self.chunk), num_kept(self.density, rest) if rest else 0


def num_kept(density: float | tf.Tensor, num_items: int) -> Count:
    """Returns how many items a density means, at least one.

    Args:
      density: share of them, in (0, 1]. A tensor must be of type float64.
      num_items: number of items.
    """
    with tf.device("CPU:0"):  # which is where numbers of items are needed
        share = density * num_items
        whole = share // 1
        # Rounded to 6 decimals: 0.07 * 100 = 7.000000000000001 must not keep 8 of 100.
        has_rest = share - whole > 0.5e-6
        if tf.is_tensor(density):
            return tf.maximum(tf.cast(whole, tf.int64) + tf.cast(has_rest, tf.int64), 1)
        return max(1, int(whole) + has_rest)
