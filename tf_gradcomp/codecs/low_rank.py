# SPDX-License-Identifier: Apache-2.0
"""Low-rank factors of gradients: PowerSGD and ACP-SGD.

A gradient of shape ``[..., m]`` is seen as a matrix ``M`` of shape ``[n, m]``, and approximated by
``P Q^T`` with ``P`` of shape ``[n, r]`` and ``Q`` of shape ``[m, r]``. With one factor's columns
orthonormal and the same on all workers, the other one is linear in ``M``: its sum over the workers
is the factor of the sum.

Sources: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019 (arXiv 1905.13727), Algorithm 1. Zhang et al., "Evaluation and
Optimization of Gradient Compression for Distributed Deep Learning", ICDCS 2023 (ACP-SGD).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from tf_gradcomp.codecs import base

_EPSILON = float(np.finfo(np.float32).eps)
_MAX_RANK = 2**15
_VALUES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class _LowRank(base.LowRank):
    """What both methods share.

    Attributes:
      rank: r, columns of the factors.
      values: type of the numbers that factors travel as, ``"float32"`` or ``"bfloat16"``. What
        rounding takes from a worker's own factor is in its residual; each addition rounds, too.
      seed: seed of the directions that the factors start from.
    """

    rank: int = 4
    values: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        base.check_range("low rank", "rank", self.rank, 1, _MAX_RANK, low_open=False)
        base.check_seed("low rank", self.seed)
        if self.values not in _VALUES:
            raise ValueError(
                f"low rank: values must be one of {', '.join(_VALUES)}, got {self.values!r}"
            )

    def matrix_shape(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        if len(shape) < 2:
            return None
        n, m = math.prod(shape[:-1]), shape[-1]
        # Implies rank < min(n, m), without which there are no bases.
        return (n, m) if self.rank * (n + m) < n * m else None

    def message_words(self, shapes: Sequence[tuple[int, ...]]) -> list[float]:
        matrices = [self.matrix_shape(shape) for shape in shapes]
        raw = sum(
            math.prod(shape)
            for shape, matrix in zip(shapes, matrices, strict=True)
            if matrix is None
        )
        share = self.rank * self._dtype.size / 4
        first, *others = (share * size for size in self._factor_rows(filter(None, matrices)))
        if self._dtype == tf.float32:
            return [first + raw, *others]
        # Numbers of another type travel in a message of their own.
        return [words for words in (first, raw) if words] + others

    @abc.abstractmethod
    def _factor_rows(self, matrices: Iterable[tuple[int, int]]) -> list[float]:
        """Returns the rows of the factors that each message has, on average over exchanges."""

    @property
    def _dtype(self) -> tf.DType:
        return tf.as_dtype(self.values)

    def _bases(self, factors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [orthonormal(factor, self.seed) for factor in factors]

    def _in_messages(self, factors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.cast(factor, self._dtype) for factor in factors]


class PowerSGD(_LowRank):
    """One step of power iteration: two all-reduces, ``r (n + m)`` values a matrix.

    Keeps ``Q``, from which the next exchange goes on.
    """

    def _factor_rows(self, matrices: Iterable[tuple[int, int]]) -> list[float]:
        return [float(sum(sizes)) for sizes in zip(*matrices, strict=True)] or [0.0, 0.0]

    def factor_shapes(self, matrices: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(m, self.rank) for _, m in matrices]

    def sum(
        self,
        matrices: Sequence[tf.Tensor],
        raw: Sequence[tf.Tensor],
        factors: Sequence[tf.Tensor],
        step: tf.Tensor,
        all_reduce: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    ) -> base.LowRankSum:
        count = len(matrices)
        # The algorithm takes Q as it is. A basis of its columns leads to the same P up to the
        # choice of a basis, which is made anew below, and spares P the singular values' squares.
        lefts = self._in_messages(_left(matrices, self._bases(factors)))
        sums = all_reduce([*lefts, *raw])
        bases = self._bases(_in_float32(sums[:count]))
        own = self._in_messages(_right(matrices, bases))
        total = _in_float32(all_reduce(own))
        return base.LowRankSum(
            _product(bases, total), _product(bases, _in_float32(own)), sums[count:], total
        )


class ACPSGD(_LowRank):
    """Half a step of power iteration, ``P`` and ``Q`` in turn: one all-reduce, half the values.

    Keeps both factors. The one that an exchange does not sum is the basis for the other.
    """

    def _factor_rows(self, matrices: Iterable[tuple[int, int]]) -> list[float]:
        return [sum(n + m for n, m in matrices) / 2]

    def factor_shapes(self, matrices: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(n, self.rank) for n, _ in matrices] + [(m, self.rank) for _, m in matrices]

    def sum(
        self,
        matrices: Sequence[tf.Tensor],
        raw: Sequence[tf.Tensor],
        factors: Sequence[tf.Tensor],
        step: tf.Tensor,
        all_reduce: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    ) -> base.LowRankSum:
        count = len(matrices)
        left, right = list(factors[:count]), list(factors[count:])

        def sum_left() -> base.LowRankSum:
            bases = self._bases(right)
            own = self._in_messages(_left(matrices, bases))
            sums = all_reduce([*own, *raw])
            total = _in_float32(sums[:count])
            sent = _product(_in_float32(own), bases)
            return base.LowRankSum(_product(total, bases), sent, sums[count:], total + right)

        def sum_right() -> base.LowRankSum:
            bases = self._bases(left)
            own = self._in_messages(_right(matrices, bases))
            sums = all_reduce([*own, *raw])
            total = _in_float32(sums[:count])
            sent = _product(bases, _in_float32(own))
            return base.LowRankSum(_product(bases, total), sent, sums[count:], left + total)

        return tf.cond(step % 2 == 1, sum_left, sum_right)


def orthonormal(factor: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns an orthonormal basis of a space that contains the columns of a factor.

    Rounding decides about directions that the columns do not determine: those of a factor of lower
    rank, or all directions of one that is zero. To make them random ones, noise is added that is as
    small as rounding, relative to the largest value. Otherwise a gradient that has been zero, and
    of which the first rows and columns are still, would never be seen again.

    Args:
      factor: float32 ``[n, r]`` with ``r < n``.
      seed: seed of the noise.

    Returns:
      float32 ``[n, r]``; the same bits for the same factor. Holds a NaN if the factor was not
      finite.
    """
    noise = tf.random.stateless_normal(factor.shape, (seed, 0), alg="philox")
    largest = tf.reduce_max(tf.abs(factor))
    scaled = factor / tf.where(largest > 0, largest, 1.0)
    return tf.linalg.qr(scaled + _EPSILON * noise).q


def _in_float32(factors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.cast(factor, tf.float32) for factor in factors]


def _left(matrices: Sequence[tf.Tensor], bases: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns ``P = M Q`` of each."""
    return [tf.matmul(matrix, basis) for matrix, basis in zip(matrices, bases, strict=True)]


def _right(matrices: Sequence[tf.Tensor], bases: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns ``Q = M^T P`` of each."""
    return [
        tf.matmul(matrix, basis, transpose_a=True)
        for matrix, basis in zip(matrices, bases, strict=True)
    ]


def _product(left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns ``P Q^T`` of each."""
    return [tf.matmul(p, q, transpose_b=True) for p, q in zip(left, right, strict=True)]
