# SPDX-License-Identifier: Apache-2.0
"""Lets transforms follow the gradients: views are compared, and bases learned.

Not for the exchange at hand: to compare views takes a message, for which encoding would have to
wait, and bases are learned from what was sent. And for all buckets together, when the last one has
been exchanged: a condition for each, with a message in it, would make the next exchange wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.codecs.learned_basis import Rotation
from tf_gradcomp.controllers import view_choice
from tf_gradcomp.exchanges.base import pack, split
from tf_gradcomp.exchanges.learned_bases import LearnedBases, learn, num_bytes
from tf_gradcomp.transports.base import Collectives


class Views(NamedTuple):
    """The views of a bucket's variables.

    Attributes:
      choice: the variable that has them, int32 ``[V]``.
      kept_energy: makes what candidates keep of this worker's gradients, float64 ``[V, C]``.
      learned: which candidates have a learned basis, ``[V, C]``.
    """

    choice: tf.Variable
    kept_energy: Callable[[], tf.Tensor]
    learned: Sequence[Sequence[bool]]


class Bases(NamedTuple):
    """The learned bases of a bucket's variables.

    Attributes:
      learned: has them.
      samples: what they are to learn from, ``Transform.samples``.
      sent: int64 variable: bytes that this worker has contributed so far.
    """

    learned: LearnedBases
    samples: Sequence[tf.Tensor]
    sent: tf.Variable


class Follower(NamedTuple):
    """The transform of a bucket, after its exchange.

    Attributes:
      views: what is chosen by comparing; ``None`` if nothing is.
      bases: what is learned; ``None`` if nothing is.
      move: makes the other state that changes with it, given the next views, the next bases of each
        variable, and a bool scalar that says whether both stay as they are.
    """

    views: Views | None
    bases: Bases | None
    move: Callable[
        [tf.Tensor | None, Sequence[Sequence[Rotation]], tf.Tensor], Sequence[state.Update]
    ]


def follow(
    followers: Sequence[Follower], step: tf.Tensor, collectives: Collectives
) -> list[state.Update]:
    """Returns the state to store if the step is kept, with transforms for the next exchange.

    Args:
      followers: at least one; those of the same buckets on all workers.
      step: int32 scalar, the number of the exchange.
      collectives: the network.
    """
    choices = iter(_next_views([f.views for f in followers if f.views], step, collectives))
    learning = [f.bases for f in followers if f.bases]
    grams = [bases.learned.averaged(bases.samples) for bases in learning]
    in_use = [bases.learned.current() for bases in learning]
    updates: list[state.Update] = []
    if learning:
        learned = learn(_flat(in_use), _flat(grams), step, collectives)
        blocks = iter(learned.bases)
        all_grams = iter(grams)
    for follower in followers:
        choice: tf.Tensor | None = None
        new: Sequence[Sequence[Rotation]] = ()
        stays = []
        if follower.views is not None:
            variable = follower.views.choice
            choice = next(choices)
            updates.append((variable, choice))
            stays.append(tf.reduce_all(tf.equal(choice, variable.read_value())))
        if follower.bases is not None:
            own_grams = next(all_grams)
            own = [next(blocks) for _ in own_grams]
            updates.extend(follower.bases.learned.updates(own, own_grams))
            with tf.device(follower.bases.sent.device):
                follower.bases.sent.assign_add(num_bytes(own, learned))
            new = follower.bases.learned.by_variable(own)
            stays.append(learned.are_same)
        updates.extend(follower.move(choice, new, tf.reduce_all(stays)))
    return updates


def _next_views(
    views: Sequence[Views], step: tf.Tensor, collectives: Collectives
) -> list[tf.Tensor]:
    """Returns the number of the view that each variable is to have: int32 ``[V]`` each."""
    if not views:
        return []
    current = [each.choice.read_value() for each in views]

    def compare() -> list[tf.Tensor]:
        energies = [each.kept_energy() for each in views]
        total = collectives.all_reduce(pack(energies, tf.float64))
        sums = split(total, [energy.shape for energy in energies])
        return [
            view_choice.choose(energy, choice, each.learned)
            for energy, choice, each in zip(sums, current, views, strict=True)
        ]

    return tf.cond(view_choice.is_due(step), compare, lambda: list(map(tf.identity, current)))


def _flat(lists: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    return [item for items in lists for item in items]
