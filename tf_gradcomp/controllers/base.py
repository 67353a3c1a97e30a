# SPDX-License-Identifier: Apache-2.0
"""What controllers are given, and what they decide: numbers and NumPy arrays, no tensors.

A controller chooses how much of each bucket is sent. It looks at what was measured in a **period**,
a number of exchanges, and decides on all exchanges of the next one. It is plain data, a frozen
dataclass that is validated when it is made; what it remembers is an array that it returns and is
given again, so that it can be saved with the rest.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

# Seconds from the start of a step until a variable's gradient is there, on the slowest worker:
# float64 [period, V].
READY = "ready"
# Seconds from the start of each step of the period to the start of the next one in it, on the
# slowest worker: float64 [period - 1].
STEP = "step"
# How much the weights x of each bucket's variables differ from those at the last decision, x':
# |x - x'| / max(|x|, |x'|), from 0 to 2; 0 where both are 0, or not all are numbers. Float64 [B].
# They are compared in the last exchange of a period, before its update: that counts in the next.
CHANGE = "change"


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a controller decides on.

    Variables and buckets are in the order of exchange: that in which back-propagation finishes
    gradients, which begins with the last layer.

    Attributes:
      variables: names of the V variables.
      sizes: elements of each variable.
      buckets: positions of the variables of each of the B buckets; together all of them.
      density: the codec's own density, in (0, 1]; 1 for one that keeps all items.
      work_seconds: from the number of a bucket and a density to the seconds of packing, encoding,
        decoding and so on in its exchange, on the slowest worker. It does not fall as the density
        grows, but to 0 where gradients are sent as they are.
      message_seconds: from the number of a bucket and a density to the seconds that the messages
        of its exchange take, if nothing else went on. It does not fall as the density grows, but
        where gradients are sent as they are: fewer words decide on that, and an all-reduce of more
        of them may be quicker than an all-gather.
    """

    variables: tuple[str, ...]
    sizes: tuple[int, ...]
    buckets: tuple[tuple[int, ...], ...]
    density: float
    work_seconds: Callable[[int, float], float]
    message_seconds: Callable[[int, float], float]

    def bucket_sizes(self) -> list[int]:
        """Returns the elements of each bucket."""
        return [sum(self.sizes[index] for index in bucket) for bucket in self.buckets]


class Decision(NamedTuple):
    """What a controller has decided.

    Attributes:
      state: float64 ``[S]``, what it wants to remember; ``S`` is the same at each decision.
      densities: float64 ``[period, B]``: row ``i`` for the exchange ``i`` of the next period. 0
        sends nothing of the bucket, and keeps it for later; ``Setting.density`` is the codec's
        own. Where sending all as it is takes no more words, that is done.
      final: whether this holds from now on: nothing more is then measured or decided, until the
        controller starts again.
    """

    state: np.ndarray
    densities: np.ndarray
    final: bool = False


class Controller(abc.ABC):
    """Chooses densities from what was measured.

    Attributes:
      withholds: whether it may send nothing of a bucket.
      adjusts: whether it chooses densities other than 0 and the codec's own.
      checks_assumption: whether to measure what sending few items costs; see
        ``exchanges/assumption.py``.
      period: exchanges between two decisions.
    """

    withholds: ClassVar[bool] = False
    adjusts: ClassVar[bool] = True
    checks_assumption: ClassVar[bool] = False
    period: int

    @property
    @abc.abstractmethod
    def statistics(self) -> tuple[str, ...]:
        """What is to be measured, of ``READY``, ``STEP`` and ``CHANGE``."""

    def report(self, setting: Setting, state: np.ndarray) -> str:
        """Returns what a decision comes to, for people; empty if there is nothing to tell."""
        return ""

    def profile_text(self, setting: Setting, state: np.ndarray) -> str:
        """Returns what it has measured, as a file that a later run can begin with; or nothing."""
        return ""

    @abc.abstractmethod
    def start(self, setting: Setting) -> Decision:
        """Decides on the first period, before anything is measured."""

    @abc.abstractmethod
    def decide(
        self, setting: Setting, state: np.ndarray, measured: Mapping[str, np.ndarray]
    ) -> Decision:
        """Decides on the next period.

        What one worker decides holds for all, so it need not have the same bits on all of them.

        Args:
          setting: what it decides on.
          state: what it has decided to remember.
          measured: of each of ``statistics``, what it was in the last period; finite.
        """

    def groups(
        self,
        variables: Sequence[str],
        density: float,
        work: Callable[[Sequence[int]], float],
        message_seconds: Callable[[Sequence[int], float], float],
    ) -> list[list[int]] | None:
        """Returns which variables should share a bucket; ``None`` leaves it to the scope.

        Args:
          variables: names, in the order of exchange.
          density: the codec's own.
          work: from positions of variables that share a bucket to the seconds of its work.
          message_seconds: from such positions and a density to the seconds of its messages.
        """
        return None
