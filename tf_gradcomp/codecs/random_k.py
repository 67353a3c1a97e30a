# SPDX-License-Identifier: Apache-2.0
"""Random-k: items drawn alike on all workers, so that no positions travel.

Source: as an operator of distributed SGD with memory, Stich et al., "Sparsified SGD with Memory",
NeurIPS 2018 (arXiv 1809.07599). The draw, one item from each of k strata, is this project's own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base, top_k
from tf_gradcomp.ops import positions as positions_ops
from tf_gradcomp.ops import random_k as random_k_ops
from tf_gradcomp.ops import threshold as threshold_ops
from tf_gradcomp.ops.counts import Count


@dataclasses.dataclass(frozen=True)
class RandomK(base.Sparsifier):
    """Keeps one item of each of ``k = ceil(density * N)`` strata of neighbours, drawn at random.

    Without error feedback, what is kept is multiplied by the size of its stratum: unbiased, with
    a variance of at most ``ceil(N / k) - 1`` times the gradient's energy.

    The draw follows from the number of the exchange, which travels in place of the positions, so
    that a worker that is out of step is an error and not a wrong sum.

    Attributes:
      density: share of the items kept, in (0, 1], or a float64 scalar tensor.
      seed: of the random numbers.

    Raises:
      ValueError: a field is out of range.
    """

    density: float | tf.Tensor = 0.01
    seed: int = 0
    biased: ClassVar[bool] = True
    stochastic: ClassVar[bool] = True
    adjustable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        base.check_density("random-k", self.density)
        base.check_seed("random-k", self.seed)

    def at(self, density: tf.Tensor) -> RandomK:
        return dataclasses.replace(self, density=density)

    def num_kept(self, layout: base.Layout) -> Count:
        return top_k.num_kept(self.density, layout.num_items)

    def num_words(self, layout: base.Layout) -> int:
        return 1

    def sent(self, positions: tf.Tensor) -> tf.Tensor:
        return positions[:1]

    def select(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> base.Selected:
        positions = self._positions(layout, draw)
        num_kept = self.num_kept(layout)
        total = base.add_residual(coefficients, residual)
        kept = positions_ops.positions_gather(total, positions, num_kept)
        if residual is None:
            kept = random_k_ops.random_k_scale(kept, layout.num_items)
        # An Inf or NaN must show, drawn or not. It reaches any threshold.
        block, _ = threshold_ops.threshold_select(total, math.inf, 1, layout.row_length)
        kept = tf.where(block[0] > 0, float("nan"), kept)
        # Once all have read the total, what replaces items can take over its memory.
        with tf.control_dependencies([kept]):
            sent = tf.concat([draw.step[tf.newaxis], positions], axis=0)
        return base.Selected(sent, kept, total)

    def replace(self, total: tf.Tensor, positions: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        return positions_ops.positions_replace(total, positions[1:], kept)

    def sum(
        self, positions: tf.Tensor, kept: tf.Tensor, layout: base.Layout, draw: base.Draw
    ) -> tf.Tensor:
        in_step = tf.debugging.assert_equal(
            positions[:, 0],
            draw.step,
            "random-k: workers are at different exchanges; start all with the same program",
        )
        with tf.control_dependencies([in_step] if in_step is not None else []):
            # All kept the same items: add up their values, then place them once.
            total = base.sum_in_order(kept)
        return positions_ops.positions_sum(
            self._positions(layout, draw)[tf.newaxis], total[tf.newaxis], layout.num_items
        )

    def _positions(self, layout: base.Layout, draw: base.Draw) -> tf.Tensor:
        return random_k_ops.random_k_positions(
            draw.shared_key(self.seed), layout.num_items, self.num_kept(layout)
        )
