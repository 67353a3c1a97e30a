# SPDX-License-Identifier: Apache-2.0
"""Thresholds: keep what is large enough, however much that is, up to a capacity.

Every worker keeps as many items as reach its threshold. As payloads have a fixed size, the plan
reserves room for ``capacity``; if more items reach it, the largest are kept.

Sources: Dutta et al., "On the Discrepancy between the Theoretical Analysis and Practical
Implementations of Compressed Communication for Distributed Deep Learning", AAAI 2020 (the fixed
and the adaptive threshold); Lin et al., "Deep Gradient Compression", ICLR 2018 (the sampled one);
Abdelmoniem et al., "SIDCo: An Efficient Statistical-based Gradient Compression Technique", MLSys
2021 (the fitted one).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar

import tensorflow as tf

from tf_gradcomp.codecs import base, top_k
from tf_gradcomp.ops import positions as positions_ops
from tf_gradcomp.ops import sidco as sidco_ops
from tf_gradcomp.ops import threshold as threshold_ops

# The numbers of items, over the number aimed at, that Deep Gradient Compression bears with.
_SLACK = 1.3
_LEAST = 0.8


class _Threshold(base.Sparsifier):
    """Keeps the items that reach a threshold."""

    biased: ClassVar[bool] = True

    @abc.abstractmethod
    def num_kept(self, layout: base.Layout) -> int: ...

    @abc.abstractmethod
    def _threshold(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> tf.Tensor:
        """Returns the threshold for ``coefficients + residual``, a float32 scalar >= 0.

        Unless it can do without the sum of all, a class is a ``_ThresholdOfTotal``, and then
        there is no residual.
        """

    def num_words(self, layout: base.Layout) -> int:
        return positions_ops.num_words(layout.num_items, self.num_kept(layout), counted=True)

    def select(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> base.Selected:
        threshold = self._threshold(coefficients, residual, layout, draw)
        num_kept, row_length = self.num_kept(layout), layout.row_length
        if residual is None:
            selected = threshold_ops.threshold_select(coefficients, threshold, num_kept, row_length)
            return base.Selected(*selected, coefficients)
        return base.Selected(
            *threshold_ops.threshold_select_sum(
                coefficients, residual, threshold, num_kept, row_length
            )
        )

    def replace(self, total: tf.Tensor, positions: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        return positions_ops.positions_replace(total, positions, kept, counted=True)

    def sum(
        self, positions: tf.Tensor, kept: tf.Tensor, layout: base.Layout, draw: base.Draw
    ) -> tf.Tensor:
        return positions_ops.positions_sum(positions, kept, layout.num_items, counted=True)


@dataclasses.dataclass(frozen=True)
class Threshold(_Threshold):
    """Keeps the items of a magnitude of at least ``threshold`` (Threshold-v).

    Attributes:
      threshold: the magnitude v, >= 0, in units of the gradient as it is exchanged: under loss
        scaling with tf-keras, of the scaled one. For blocks, of their Euclidean norm.
      capacity: largest share of the items kept, in (0, 1].

    Raises:
      ValueError: a field is out of range.
    """

    threshold: float = 1e-3
    capacity: float = 0.1

    def __post_init__(self) -> None:
        base.check_range("threshold", "threshold", self.threshold, 0.0, 3e38, low_open=False)
        base.check_range("threshold", "capacity", self.capacity, 0, 1.0, low_open=True)

    def num_kept(self, layout: base.Layout) -> int:
        return top_k.num_kept(self.capacity, layout.num_items)

    def _threshold(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> tf.Tensor:
        return tf.constant(self.threshold, tf.float32)


class _ThresholdOfTotal(_Threshold):
    """One that needs the sum of the coefficients and the residual to tell the threshold."""

    def select(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> base.Selected:
        return super().select(base.add_residual(coefficients, residual), None, layout, draw)


@dataclasses.dataclass(frozen=True)
class AdaptiveThreshold(_ThresholdOfTotal):
    """Keeps the items of at least ``ratio`` times the largest magnitude.

    Attributes:
      ratio: of the threshold to the largest magnitude, in (0, 1].
      capacity: largest share of the items kept, in (0, 1].

    Raises:
      ValueError: a field is out of range.
    """

    ratio: float = 0.5
    capacity: float = 0.1

    def __post_init__(self) -> None:
        base.check_range("adaptive threshold", "ratio", self.ratio, 0, 1.0, low_open=True)
        base.check_range("adaptive threshold", "capacity", self.capacity, 0, 1.0, low_open=True)

    def num_kept(self, layout: base.Layout) -> int:
        return top_k.num_kept(self.capacity, layout.num_items)

    def _threshold(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> tf.Tensor:
        magnitude = coefficients if layout.components == 1 else tf.norm(coefficients, axis=-1)
        largest = tf.maximum(tf.reduce_max(magnitude), -tf.reduce_min(magnitude))
        # What is not finite reaches any threshold.
        return self.ratio * tf.where(tf.math.is_finite(largest), largest, 0.0)


@dataclasses.dataclass(frozen=True)
class SampledThreshold(_ThresholdOfTotal):
    """Keeps about ``density * N`` items: those beyond a quantile of a random sample.

    From 0.8 to 1.3 times as many: where the sample misleads, the largest that there is room for.

    Attributes:
      density: share of the items aimed at, in (0, 1].
      seed: of the random numbers.

    Raises:
      ValueError: a field is out of range.
    """

    density: float = 0.01
    seed: int = 0
    stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        base.check_range("sampled threshold", "density", self.density, 0, 1.0, low_open=True)
        base.check_seed("sampled threshold", self.seed)

    def num_kept(self, layout: base.Layout) -> int:
        return top_k.num_kept(min(1.0, _SLACK * self.density), layout.num_items)

    def _threshold(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> tf.Tensor:
        num_items = layout.num_items
        count = top_k.num_kept(self.density, num_items)
        # A rank of 100 in the sample varies by a tenth: one sample in 50 misleads. The paper makes
        # do with a rank of 2.
        enough = max(math.ceil(0.01 * num_items), math.ceil(100 / self.density))
        key = draw.own_key(self.seed, part=1)
        return threshold_ops.sampled_threshold(
            coefficients, key, count, min(num_items, enough), layout.row_length
        )

    def select(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> base.Selected:
        positions, kept, total = super().select(coefficients, residual, layout, draw)
        least = math.floor(_LEAST * top_k.num_kept(self.density, layout.num_items))
        # The payload has its size anyway, so that the largest items that fit into it cost no more.
        positions, kept = tf.cond(
            positions[0] < least,
            lambda: threshold_ops.threshold_select(
                total, 0.0, self.num_kept(layout), layout.row_length
            ),
            lambda: (positions, kept),
        )
        return base.Selected(positions, kept, total)


@dataclasses.dataclass(frozen=True)
class SIDCo(_Threshold):
    """Keeps about ``density * N`` items: those beyond a quantile of a fitted distribution.

    Attributes:
      density: share of the items aimed at, in (0, 1].
      stages: number M of fits in which to approach the density, 1..10; more are made where these
        miss it.
      fit: ``"exponential"``, ``"pareto"`` (generalised) or ``"gamma_pareto"`` (gamma first).

    Raises:
      ValueError: a field is out of range.
    """

    density: float = 0.01
    stages: int = 3
    fit: str = "gamma_pareto"

    def __post_init__(self) -> None:
        base.check_range("sidco", "density", self.density, 0, 1.0, low_open=True)
        base.check_range("sidco", "stages", self.stages, 1, 10, low_open=False)
        if self.fit not in sidco_ops.FITS:
            raise ValueError(
                f"sidco: fit must be one of {', '.join(sidco_ops.FITS)}, got {self.fit!r}"
            )

    def num_kept(self, layout: base.Layout) -> int:
        return top_k.num_kept(min(1.0, _SLACK * self.density), layout.num_items)

    def _threshold(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: base.Layout,
        draw: base.Draw,
    ) -> tf.Tensor:
        return sidco_ops.sidco_threshold(
            coefficients, self.density, self.stages, self.fit, layout.row_length, residual
        )
