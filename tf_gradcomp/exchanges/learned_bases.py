# SPDX-License-Identifier: Apache-2.0
"""The learned bases of one bucket, from the sums that all workers have in common.

Nothing about a basis has to be sent: every worker has the same sums, and makes the same of them.
Where that is not so, for machines differ, all take worker 0's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.codecs import learned_basis
from tf_gradcomp.codecs.learned_basis import Rotation, Side
from tf_gradcomp.costs import BYTES_PER_WORD
from tf_gradcomp.exchange_state import GRAM
from tf_gradcomp.exchanges.base import all_finite
from tf_gradcomp.same_bits import of_worker_0, same_everywhere
from tf_gradcomp.transports.base import Collectives

PERIOD = 20  # exchanges between two bases
DECAY = 0.95  # of what earlier gradients count, at each exchange


class LearnedBases:
    """Bases of the sides of a bucket's variables, and the Gram matrices that tell them.

    Attributes:
      memory: what is remembered from step to step, by name.
    """

    def __init__(self, sides: Sequence[Side | None], collectives: Collectives) -> None:
        """Makes bases that are the identity.

        Args:
          sides: of each variable; ``None`` where no basis is learned.
          collectives: the network.
        """
        self._sides = tuple(sides)
        self._collectives = collectives
        blocks = [size for side in sides if side for size in side.blocks()]
        device = collectives.device
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

    def current(self) -> list[list[Rotation]]:
        """Returns the bases in use: for each variable, one for each block; none without a side."""
        return self._by_variable(self._read())

    def following(
        self, samples: Sequence[tf.Tensor], step: tf.Tensor
    ) -> tuple[list[list[Rotation]], tf.Tensor, list[state.Update], tf.Tensor]:
        """Learns from the exchange at hand.

        Args:
          samples: of the sums of variables with a side, ``Transform.samples``.
          step: int32 scalar, the number of the exchange.

        Returns:
          The bases for the next exchange, and whether they are still those in use, a bool scalar;
          the state to store if the step is kept; and the bytes that this worker has contributed to
          agree on it, an int64 scalar.
        """
        sides = [side for side in self._sides if side is not None]
        found = [
            gram for side, sample in zip(sides, samples, strict=True) for gram in side.grams(sample)
        ]
        grams = [
            _averaged(variable.read_value(), gram)
            for variable, gram in zip(self._grams, found, strict=True)
        ]
        old = self._read()
        none_sent = tf.constant(0, tf.int64)
        is_due = tf.equal(step % PERIOD, 0)
        *new, num_bytes = tf.cond(
            is_due, lambda: self._learned(grams, old), lambda: [*map(tf.identity, old), none_sent]
        )
        variables = [*self._lefts, *self._rights, *self._grams]
        updates = list(zip(variables, [*new, *grams], strict=True))
        return self._by_variable(new), ~is_due, updates, num_bytes

    def _learned(self, grams: list[tf.Tensor], old: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns new factors, the same on all workers, and the bytes that this took to agree."""
        own = tf.numpy_function(_leading, [*grams, *old], [tf.float32] * len(old), stateful=False)
        own = [tf.ensure_shape(new, tensor.shape) for new, tensor in zip(own, old, strict=True)]
        with tf.device(self._collectives.device):
            own = list(map(tf.identity, own))
            same = tf.reduce_all(same_everywhere(self._collectives, own))
            checked = BYTES_PER_WORD * len(own)
            sent = BYTES_PER_WORD * sum(tensor.shape.num_elements() for tensor in own)

            def agreed() -> list[tf.Tensor]:
                packed = tf.concat([tf.reshape(tensor, [-1]) for tensor in own], 0)
                parts = tf.split(
                    of_worker_0(self._collectives, packed),
                    [tensor.shape.num_elements() for tensor in own],
                )
                return [
                    tf.reshape(part, tensor.shape) for part, tensor in zip(parts, own, strict=True)
                ]

            return tf.cond(
                same,
                lambda: [*map(tf.identity, own), tf.constant(checked, tf.int64)],
                lambda: [*agreed(), tf.constant(checked + sent, tf.int64)],
            )

    def _read(self) -> list[tf.Tensor]:
        """Returns the factors of all blocks: first all ``left``, then all ``right``."""
        return [variable.read_value() for variable in [*self._lefts, *self._rights]]

    def _by_variable(self, factors: Sequence[tf.Tensor]) -> list[list[Rotation]]:
        blocks = iter(map(Rotation, factors[: len(self._lefts)], factors[len(self._lefts) :]))
        return [
            [] if side is None else [next(blocks) for _ in side.blocks()] for side in self._sides
        ]


def _averaged(before: tf.Tensor, gram: tf.Tensor) -> tf.Tensor:
    """Returns the next Gram matrix. One beyond float32 is left out: it would never fade."""
    faded = DECAY * before
    total = faded + gram
    return tf.where(all_finite([total]), total, faded)


def _leading(*arrays: np.ndarray) -> list[np.ndarray]:
    """Returns all ``left`` and all ``right``, given Gram matrices and the factors in use."""
    number = len(arrays) // 3
    grams, lefts, rights = arrays[:number], arrays[number : 2 * number], arrays[2 * number :]
    found = [
        learned_basis.leading_rotation(gram, left.shape[1]) or (left, right)
        for gram, left, right in zip(grams, lefts, rights, strict=True)
    ]
    return [left for left, _ in found] + [right for _, right in found]
