# SPDX-License-Identifier: Apache-2.0
"""Bases that gradients themselves reveal: the directions in which they have most of their energy.

A variable is seen as a matrix, and the shorter of its sides gets an orthogonal basis that begins
with the leading eigenvectors of the Gram matrix of recent gradients: the sum of ``g g^T`` over
their columns (or rows) ``g``. Turned into it, a matrix has large entries for few directions, and
small ones for the rest. The basis is

    Q = I - left right,    left float32 [n, r], right float32 [r, n]

so that turning a matrix of ``m`` such columns takes ``4 m n r`` operations instead of ``2 m n n``,
and the other ``n - r`` directions stay as near to the axes as they can: neurons of which few are
active are worth keeping apart. A long side is cut into blocks with a basis each.

``docs/methods/learned_views.md`` has the mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Directions of a basis that are eigenvectors.
RANK = 32
# Elements of a side that share a basis.
MAX_BLOCK = 512
# Elements of a side, or of a block, of which eigenvectors are looked for among all.
MAX_EXACT = 128
# Directions that are looked for beside those of a basis.
_SPARE = 16
_NUM_ITERATIONS = 2
# Share of the largest eigenvalue below which a direction is noise.
_NEGLIGIBLE = 1e-6


class Side(NamedTuple):
    """The side of a matrix of which the basis is learned.

    Attributes:
      rows: rows of the matrix that a variable is seen as, in row-major order.
      columns: its columns.
      is_left: whether it is the side of the rows, so that ``Q^T G`` are the coefficients of ``G``,
        instead of ``G Q``.
    """

    rows: int
    columns: int
    is_left: bool

    @property
    def length(self) -> int:
        """Elements of the side, ``n``."""
        return self.rows if self.is_left else self.columns

    @property
    def across(self) -> int:
        """Elements of the other side, ``m``."""
        return self.columns if self.is_left else self.rows

    def blocks(self) -> list[int]:
        """Returns the sizes of the blocks of the side; they differ by one at most."""
        number = -(-self.length // MAX_BLOCK)
        size, num_longer = divmod(self.length, number)
        return [size + 1] * num_longer + [size] * (number - num_longer)

    def turn(
        self, matrix: tf.Tensor, rotations: Sequence[Rotation], inverse: bool = False
    ) -> tf.Tensor:
        """Maps a matrix to its coefficients, or back.

        Args:
          matrix: float32 ``[rows, columns]``; or a part of it, that has the side's whole length.
          rotations: the basis of each block.
          inverse: whether to map back.

        Returns:
          float32, of the same shape.
        """
        axis = 0 if self.is_left else 1
        blocks = self.blocks()
        parts = [matrix] if len(blocks) == 1 else tf.split(matrix, blocks, axis)
        turned = []
        for part, (left, right) in zip(parts, rotations, strict=True):
            # Q^T = I - right^T left^T
            first, second = (right, left) if inverse else (left, right)
            if self.is_left:
                inner = tf.matmul(first, part, transpose_a=not inverse)
                turned.append(part - tf.matmul(second, inner, transpose_a=not inverse))
            else:
                inner = tf.matmul(part, first, transpose_b=inverse)
                turned.append(part - tf.matmul(inner, second, transpose_b=inverse))
        return turned[0] if len(turned) == 1 else tf.concat(turned, axis)

    @property
    def num_sampled(self) -> int:
        """Columns, or rows, of a sample."""
        return -(-self.across // self._stride)

    @property
    def _stride(self) -> int:
        return min(max(1, max(self.blocks()) // RANK), self.across)

    def sample(self, matrix: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Returns some columns, or rows, that stand for all in a Gram matrix.

        One in ``n / RANK``, for blocks of ``n`` elements, others at each step: that takes half of
        the operations of a turn, and all have been among them after ``n / RANK`` steps.

        Args:
          matrix: float32 ``[rows, columns]``.
          step: int32 scalar, the number of the exchange.

        Returns:
          float32 ``[rows, num_sampled]`` or ``[num_sampled, columns]``.
        """
        if self._stride == 1:
            return matrix
        places = step % self._stride + self._stride * tf.range(self.num_sampled)
        # The last one may be beyond the end: it is one of the first then, again.
        return tf.gather(matrix, places % self.across, axis=1 if self.is_left else 0)

    def grams(self, sample: tf.Tensor) -> list[tf.Tensor]:
        """Returns the Gram matrix of each block of the side, float32 ``[n, n]``.

        Args:
          sample: what ``sample`` returns, mapped back.
        """
        axis = 0 if self.is_left else 1
        parts = tf.split(sample, self.blocks(), axis)
        return [
            tf.matmul(part, part, transpose_a=not self.is_left, transpose_b=self.is_left)
            for part in parts
        ]


class Rotation(NamedTuple):
    """An orthogonal matrix ``Q = I - left right``; zeros are the identity.

    Attributes:
      left: float32 ``[n, r]``.
      right: float32 ``[r, n]``.
    """

    left: tf.Tensor
    right: tf.Tensor


def rank_of(size: int) -> int:
    """Returns ``r`` for a block of ``size`` elements."""
    return min(RANK, size)


def side_of(shape: Sequence[int]) -> Side | None:
    """Returns the side of a variable of which a basis can be learned; ``None`` if there is none.

    A variable of three axes or more is cut into rows and columns where the matrix is nearest to a
    square, the last such place: ``(height, width, in, out)`` of a convolution between ``in`` and
    ``out`` unless it has few inputs, ``(width, heads, depth)`` of attention behind ``width``.

    Args:
      shape: the variable's.
    """
    sizes = [(math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in range(1, len(shape))]
    if not sizes or max(map(min, sizes)) < 2:
        return None
    rows, columns = max(reversed(sizes), key=min)
    return Side(rows, columns, is_left=rows < columns)


def leading_directions(gram: tf.Tensor, near: Rotation) -> tf.Tensor:
    """Returns the leading eigenvectors of a Gram matrix, on the CPU.

    Of a large one, what two steps of subspace iteration make of those that were found before and a
    few random columns, or more where fewer were found: a step leaves less of what has less energy.
    Directions that are still mixed then are told apart by the next ones. Source: Halko,
    Martinsson and Tropp, "Finding Structure with Randomness", SIAM Review 2011, algorithm 4.4.

    Args:
      gram: float32 ``[n, n]``, symmetric but for rounding.
      near: the rotation that began with the eigenvectors of an earlier one.

    Returns:
      float64 ``[n, r]``, orthonormal columns by falling energy. Those of no energy to speak of are
      zeros, and all are if the matrix is zero or not finite.
    """
    rank = near.left.shape[1]
    # Not NumPy: its threads wait for one another where other processes are busy.
    with tf.device("CPU:0"):
        matrix = tf.cast(gram, tf.float64)
        # Of NaN there are no eigenvectors, and looking for them ends the step.
        is_finite = tf.reduce_all(tf.math.is_finite(matrix))
        matrix = tf.where(is_finite, matrix, tf.zeros_like(matrix))
        if gram.shape[0] <= MAX_EXACT:
            values, directions = tf.linalg.eigh(matrix)
        else:
            subspace = _sketch(matrix, near)
            values, turn = tf.linalg.eigh(
                tf.matmul(subspace, tf.matmul(matrix, subspace), transpose_a=True)
            )
            directions = tf.matmul(subspace, turn)
        values, directions = values[::-1][:rank], directions[:, ::-1][:, :rank]
        return tf.where(values > _NEGLIGIBLE * values[0], directions, tf.zeros_like(directions))


def _sketch(matrix: tf.Tensor, near: Rotation) -> tf.Tensor:
    """Returns orthonormal columns that span the leading directions and some more, float64."""
    size, rank = near.left.shape
    before = tf.eye(size, rank) - tf.matmul(near.left, near.right[:, :rank])
    random = tf.random.stateless_normal([size, rank + _SPARE], [size, 0], dtype=tf.float64)
    # Where no direction is known, the axis in its place may be a dead element.
    is_known = tf.reduce_any(near.left != 0, axis=0)
    before = tf.where(is_known, tf.cast(before, tf.float64), random[:, :rank])
    subspace = tf.concat([before, random[:, rank:]], axis=1)
    for _ in range(_NUM_ITERATIONS):
        subspace = tf.linalg.qr(tf.matmul(matrix, subspace)).q
    return subspace


def rotation_of(directions: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns a rotation whose first columns are given ones.

    Args:
      directions: float64 ``[n, r]``, orthonormal columns, and zeros for those that do not count;
        columns and rows of zeros take their place.

    Returns:
      ``(left, right)``, as in ``Rotation``; ``None`` if no column counts.
    """
    leading = directions[:, directions.any(axis=0)]
    if not leading.shape[1]:
        return None
    left, right = completed(leading)
    missing = directions.shape[1] - leading.shape[1]
    return (
        np.pad(left, ((0, 0), (0, missing))).astype(np.float32),
        np.pad(right, ((0, missing), (0, 0))).astype(np.float32),
    )


def completed(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns an orthogonal ``I - left right`` that begins with given columns, but for their signs.

    With ``E`` the first ``r`` columns of the identity and ``V^T V = I``, this is orthogonal, and
    maps ``E`` to ``V``, as can be seen by multiplying out:

        Q = I - (V - E) (I - V_1^T)^-1 (V - E)^T,    V_1 = E^T V

    The inverse exists, and is small, if the signs of the columns are chosen while ``V_1`` is
    eliminated. Source: Ballard et al., "Reconstructing Householder Vectors from Tall-Skinny QR",
    IPDPS 2014, of which this is the matrix without its triangular factors.

    Args:
      columns: float64 ``[n, r]``, orthonormal.

    Returns:
      float64 ``[n, r]`` and ``[r, n]``.
    """
    rank = columns.shape[1]
    signs = np.ones(rank)
    rest = columns[:rank].copy()
    for i in range(rank):
        signs[i] = -1.0 if rest[i, i] >= 0 else 1.0
        rest[i, i] -= signs[i]
        rest[i + 1 :, i] /= rest[i, i]
        rest[i + 1 :, i + 1 :] -= np.outer(rest[i + 1 :, i], rest[i, i + 1 :])
    signed = columns * signs
    left = signed - np.eye(*columns.shape)
    return left, np.linalg.solve(np.eye(rank) - signed[:rank].T, left.T)
