# SPDX-License-Identifier: Apache-2.0
"""Learned bases, from the sums that all workers have in common.

Nothing but a checksum has to be sent: every worker has the same sums, and makes the same of them.
Where that is not so, for machines differ, all take worker 0's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.codecs import learned_basis
from tf_gradcomp.codecs.learned_basis import Rotation, Side
from tf_gradcomp.costs import BYTES_PER_WORD
from tf_gradcomp.exchange_state import GRAM
from tf_gradcomp.exchanges.base import all_finite, pack, split
from tf_gradcomp.same_bits import of_worker_0, same_everywhere
from tf_gradcomp.transports.base import Collectives

PERIOD = 20  # exchanges between two bases
DECAY = 0.95  # of what earlier gradients count, at each exchange


class LearnedBases:
    """Bases of the sides of a bucket's variables, and the Gram matrices that tell them.

    Attributes:
      memory: what is remembered from step to step, by name.
    """

    def __init__(self, sides: Sequence[Side | None], device: str) -> None:
        """Makes bases that are the identity.

        Args:
          sides: of each variable; ``None`` where no basis is learned.
          device: where they live.
        """
        self._sides = tuple(sides)
        blocks = [size for side in sides if side for size in side.blocks()]
        ranks = list(map(learned_basis.rank_of, blocks))
        self._lefts = [
            state.local_zeros((n, r), device, "basis_left")
            for n, r in zip(blocks, ranks, strict=True)
        ]
        self._rights = [
            state.local_zeros((r, n), device, "basis_right")
            for n, r in zip(blocks, ranks, strict=True)
        ]
        self._grams = [state.local_zeros((n, n), device, GRAM) for n in blocks]
        self.memory: dict[str, tf.Variable] = (
            state.by_name("basis_left", self._lefts)
            | state.by_name("basis_right", self._rights)
            | state.by_name(GRAM, self._grams)
        )

    def current(self) -> list[Rotation]:
        """Returns the basis in use of each block of each side."""
        return [
            Rotation(left.read_value(), right.read_value())
            for left, right in zip(self._lefts, self._rights, strict=True)
        ]

    def averaged(self, samples: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the Gram matrix of each block of each side, with what was exchanged now.

        Args:
          samples: of the sums of variables with a side, ``Transform.samples``.
        """
        sides = [side for side in self._sides if side is not None]
        found = [
            gram for side, sample in zip(sides, samples, strict=True) for gram in side.grams(sample)
        ]
        return [
            _averaged(variable.read_value(), gram)
            for variable, gram in zip(self._grams, found, strict=True)
        ]

    def updates(self, bases: Sequence[Rotation], grams: Sequence[tf.Tensor]) -> list[state.Update]:
        """Returns what to store."""
        return [
            *zip(self._lefts, (basis.left for basis in bases), strict=True),
            *zip(self._rights, (basis.right for basis in bases), strict=True),
            *zip(self._grams, grams, strict=True),
        ]

    def by_variable(self, bases: Sequence[Rotation]) -> list[list[Rotation]]:
        """Returns the bases of each variable, one for each block; none without a side."""
        blocks = iter(bases)
        return [
            [] if side is None else [next(blocks) for _ in side.blocks()] for side in self._sides
        ]


class Learned(NamedTuple):
    """The outcome of learning.

    Attributes:
      bases: for the next exchange, as many as there were.
      are_same: bool scalar: whether these are still those in use.
      sent: bool scalar: whether machines differ, so that factors were sent.
    """

    bases: list[Rotation]
    are_same: tf.Tensor
    sent: tf.Tensor


def learn(
    bases: Sequence[Rotation],
    grams: Sequence[tf.Tensor],
    step: tf.Tensor,
    collectives: Collectives,
) -> Learned:
    """Makes bases from Gram matrices if it is time to, the same ones on all workers.

    Args:
      bases: those in use, of all blocks of all buckets.
      grams: float32 ``[n, n]`` of each.
      step: int32 scalar, the number of the exchange.
      collectives: the network.
    """
    old = [factor for basis in bases for factor in basis]

    def anew() -> list[tf.Tensor]:
        directions = [
            learned_basis.leading_directions(gram, basis)
            for gram, basis in zip(grams, bases, strict=True)
        ]
        own = tf.numpy_function(
            _rotations, [*directions, *old], [tf.float32] * len(old), stateful=False
        )
        with tf.device(collectives.device):
            own = [tf.ensure_shape(new, known.shape) for new, known in zip(own, old, strict=True)]
            same = tf.reduce_all(same_everywhere(collectives, own))
            agreed = tf.cond(
                same,
                lambda: list(map(tf.identity, own)),
                lambda: split(
                    of_worker_0(collectives, pack(own, tf.float32)), [new.shape for new in own]
                ),
            )
        return [*agreed, ~same]

    is_due = tf.equal(step % PERIOD, 0)
    *new, sent = tf.cond(is_due, anew, lambda: [*map(tf.identity, old), tf.constant(False)])
    pairs = zip(new[::2], new[1::2], strict=True)
    return Learned([Rotation(left, right) for left, right in pairs], ~is_due, sent)


def num_bytes(bases: Sequence[Rotation], learned: Learned) -> tf.Tensor:
    """Returns the bytes that this worker has contributed to agree on some bases: int64 scalar."""
    factors = [factor for basis in bases for factor in basis]
    words = sum(factor.shape.num_elements() for factor in factors)
    checked = tf.where(learned.are_same, 0, len(factors))
    return BYTES_PER_WORD * tf.cast(checked + tf.where(learned.sent, words, 0), tf.int64)


def _averaged(before: tf.Tensor, gram: tf.Tensor) -> tf.Tensor:
    """Returns the next Gram matrix. One beyond float32 is left out: it would never fade."""
    faded = DECAY * before
    total = faded + gram
    return tf.where(all_finite([total]), total, faded)


def _rotations(*arrays: np.ndarray) -> list[np.ndarray]:
    """Returns both factors of each new basis, given its directions and the factors in use."""
    number = len(arrays) // 3
    directions, lefts, rights = arrays[:number], arrays[number::2], arrays[number + 1 :: 2]
    found = [
        learned_basis.rotation_of(columns) or (left, right)
        for columns, left, right in zip(directions, lefts, rights, strict=True)
    ]
    return [factor for factors in found for factor in factors]
