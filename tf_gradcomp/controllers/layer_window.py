# SPDX-License-Identifier: Apache-2.0
"""Sends some layers of a step and withholds the others: a window that slides over the layers.

Source: Hu et al., HPCC 2022, DOI 10.1109/hpcc-dss-smartcity-dependsys57074.2022.00209. Only its
abstract is at hand: layers learn at different speed, and a window that slides over them, and
follows how their parameters change, selects those to send. How it does is this project's own; the
random picks are those of the same group's earlier code, LR-SGD. See ``docs/methods``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_gradcomp.controllers.base import CHANGE, Controller, Decision, Setting

PICKS = ("window", "uniform", "arcsine")
SMOOTHING = 0.9  # of scores, from one period to the next
ACTIVE = 0.1  # a layer is settled if its score is less than this share of the highest
WINDOW_SHARE = 0.6  # share of the active layers' scores that a window holds
_UNMEASURED = -1.0
_LAST_SEED = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class LayerWindow(Controller):
    """Sends the buckets in a window, with the codec's own density, and withholds the others.

    A bucket's **score** is how fast its weights change, relative to their norm. From the input on,
    buckets of a tenth of the highest score or less have settled; the window slides over all from
    the first one that has not, again and again. It is as wide as holds 0.6 of their scores, and
    slides by half its width.

    An exchange may send what ``budget`` lets it. A bucket of more than that is sent too, and later
    exchanges pay for it: until then they send only those that half of their budget pays for. In a
    window, what was withheld for longest goes first. Patience has the last word: if ``budget`` is
    too small to send every bucket once in ``patience`` exchanges, more is sent than ``budget``.

    Attributes:
      period: exchanges between two updates of the scores, at least 1.
      budget: share of the elements of all buckets that an exchange sends at most, on average, in
        (0, 1].
      patience: every bucket is sent at least once in so many exchanges, at least 1. ``None`` is
        ``ceil(4 / budget)``, which takes no more than half of the budget.
      pick: what is sent: ``"window"``, or at random ``"uniform"``, a share ``budget`` of the
        buckets, or ``"arcsine"``, as many draws that prefer the first and the last layers.
      seed: of the random picks, from 0 to 2^31 - 1.

    Raises:
      ValueError: a field is out of range.
    """

    period: int = 100
    budget: float = 0.2
    patience: int | None = None
    pick: str = "window"
    seed: int = 0

    withholds = True
    adjusts = False

    def __post_init__(self) -> None:
        _check_integer("period", self.period, 1)
        budget = self.budget
        is_number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
        if not (is_number and 0 < budget <= 1):
            raise ValueError(f"layer_window: budget must be in (0, 1], got {budget!r}")
        if self.patience is not None:
            _check_integer("patience", self.patience, 1)
        if self.pick not in PICKS:
            raise ValueError(
                f"layer_window: pick must be one of {', '.join(PICKS)}, got {self.pick!r}"
            )
        _check_integer("seed", self.seed, 0, _LAST_SEED)

    @property
    def statistics(self) -> tuple[str, ...]:
        """What is to be measured: nothing for random picks."""
        return (CHANGE,) if self.pick == "window" else ()

    @property
    def max_gap(self) -> int:
        """The most exchanges from one in which a bucket is sent to the next: the patience."""
        return math.ceil(4 / self.budget) if self.patience is None else self.patience

    def start(self, setting: Setting) -> Decision:
        num_buckets = len(setting.buckets)
        return self._plan(
            setting,
            _State(
                scores=np.full(num_buckets, _UNMEASURED),
                staleness=np.zeros(num_buckets),
                delivered=np.zeros(num_buckets),
                arriving=np.zeros(num_buckets),
            ),
        )

    def decide(
        self, setting: Setting, state: np.ndarray, measured: Mapping[str, np.ndarray]
    ) -> Decision:
        now = _State.unpack(state, len(setting.buckets))
        if self.pick == "window":
            now.scores = _updated(now, measured[CHANGE][::-1])
        return self._plan(setting, now)

    def _plan(self, setting: Setting, state: _State) -> Decision:
        """Returns what is sent in the next period, and the state at its end."""
        sizes = np.array(setting.bucket_sizes()[::-1], np.float64)
        income = self.budget * sizes.sum()
        draw = self._draw(state)
        state.delivered = np.zeros(len(sizes))
        is_sent = np.zeros((self.period, len(sizes)), bool)
        for sent in is_sent:
            state.delivered += state.arriving
            # What an exchange does not spend is lost, so that no later one sends much more.
            state.credit = min(state.credit, 0.0) + income
            sent[_due(state.staleness, self.max_gap)] = True
            # Where patience asks for more than the budget, debts do not grow for ever.
            state.credit = max(state.credit - sizes[sent].sum(), -sizes.sum())
            if draw is None:
                self._send_window(state, sizes, sent, income)
            elif state.credit > 0:
                drawn = np.setdiff1d(draw(), np.flatnonzero(sent))
                sent[drawn] = True
                state.credit -= sizes[drawn].sum()
            state.arriving = np.where(sent, state.staleness + 1, 0)
            state.staleness = np.where(sent, 0, state.staleness + 1)
        state.periods += 1
        # Back to the order of exchange.
        return Decision(state.pack(), is_sent[:, ::-1] * setting.density)

    def _send_window(
        self, state: _State, sizes: np.ndarray, sent: np.ndarray, income: float
    ) -> None:
        """Marks what an exchange sends of the window, pays for it, and slides the window."""
        window = _window(state)
        stalest_first = window[np.argsort(-state.staleness[window], kind="stable")]
        small = income / 2
        for layer in stalest_first:
            if not sent[layer] and (state.credit > 0 or sizes[layer] <= small):
                sent[layer] = True
                state.credit -= sizes[layer]
                small -= sizes[layer]
        # It waits for what was withheld for longest, so that no layer is passed by every time.
        if sent[stalest_first[0]]:
            state.start = int(window[0]) + max(1, len(window) // 2)

    def _draw(self, state: _State) -> Callable[[], np.ndarray] | None:
        """Returns what draws layers at random in a period; ``None`` with a window."""
        if self.pick == "window":
            return None
        generator = np.random.Generator(
            np.random.Philox(key=np.array([self.seed, state.periods], np.uint64))
        )
        num_layers = len(state.staleness)
        num_picked = max(1, round(self.budget * num_layers))

        def draw() -> np.ndarray:
            if self.pick == "uniform":
                return generator.choice(num_layers, num_picked, replace=False)
            return _arcsine(generator.random(num_picked), num_layers)

        return draw


@dataclasses.dataclass
class _State:
    """What is remembered. Layers are buckets in forward order, the input's first.

    Attributes:
      scores: float64 ``[B]``, smoothed; ``_UNMEASURED`` for a layer that was never sent.
      staleness: float64 ``[B]``, exchanges since the last one that sent the layer.
      delivered: float64 ``[B]``, how many exchanges' gradients are in the change of the weights
        over the period: all that it sends but for the last exchange, and those of the one before
        it. An exchange's update comes after it.
      arriving: float64 ``[B]``, how many the last exchange of the period brings.
      start: the layer at which the window begins; one past the last wraps around.
      credit: elements that may still be sent; negative if they have been, in advance.
      periods: how many were planned.
    """

    scores: np.ndarray
    staleness: np.ndarray
    delivered: np.ndarray
    arriving: np.ndarray
    start: int = 0
    credit: float = 0.0
    periods: int = 0

    def pack(self) -> np.ndarray:
        """Returns it as float64 ``[4 B + 3]``."""
        vectors = [self.scores, self.staleness, self.delivered, self.arriving]
        return np.concatenate([*vectors, [self.start, self.credit, self.periods]])

    @classmethod
    def unpack(cls, packed: np.ndarray, num_layers: int) -> _State:
        """Returns what ``pack`` has packed."""
        if packed.shape != (4 * num_layers + 3,):
            raise ValueError(
                f"layer_window: the state of {num_layers} buckets has shape "
                f"({4 * num_layers + 3},), got {packed.shape}; it is that of another plan"
            )
        start, credit, periods = packed[-3:]
        scores, staleness, delivered, arriving = packed[:-3].reshape(4, num_layers)
        return cls(scores, staleness, delivered, arriving, int(start), float(credit), int(periods))


def _updated(state: _State, change: np.ndarray) -> np.ndarray:
    """Returns the scores after a period in which layers have changed by ``change``.

    A layer changes by the gradients that reach it, those of the exchanges since it was last sent:
    the score is the change for each of them, whether they came one by one or as a sum. Layers that
    none have reached have not shown how fast they change, so they keep their score.
    """
    speed = change / np.maximum(state.delivered, 1)
    smoothed = SMOOTHING * state.scores + (1 - SMOOTHING) * speed
    scores = np.where(state.scores == _UNMEASURED, speed, smoothed)
    return np.where(state.delivered > 0, scores, state.scores)


def _window(state: _State) -> np.ndarray:
    """Returns the layers of the window, from its first one on."""
    # Layers without a score may be as fast as any.
    highest = state.scores.max()
    if highest <= 0:
        scores = np.ones_like(state.scores)
    else:
        scores = np.where(state.scores == _UNMEASURED, highest, state.scores)
    front = int(np.argmax(scores >= ACTIVE * scores.max()))
    start = state.start if front <= state.start < len(scores) else front
    layers = np.concatenate([np.arange(start, len(scores)), np.arange(front, start)])
    sums = np.cumsum(scores[layers])
    width = 1 + int(np.argmax(sums >= WINDOW_SHARE * sums[-1]))
    return layers[:width]


def _due(staleness: np.ndarray, max_gap: int) -> np.ndarray:
    """Returns the layers that patience sends now, only such as have used half of it.

    If all had to be sent within half of ``max_gap``, that would be ``at_once`` in an exchange. No
    exchange has to send more than those: where many are due at about the same time, the first go
    early. (It is the rule of the earliest deadline: the i-th must be able to wait for those
    before it.)
    """
    at_once = -(-2 * len(staleness) // max_gap)
    layers = np.argsort(-staleness, kind="stable")
    can_wait = max_gap - 1 - staleness[layers]
    must_go = np.flatnonzero(can_wait <= np.arange(len(layers)) // at_once)
    return layers[: min(at_once, must_go[-1] + 1)] if must_go.size else layers[:0]


def _arcsine(uniform: np.ndarray, num_layers: int) -> np.ndarray:
    """Returns the layers, each once, of numbers in [0, 1): LR-SGD's ``floor((sin x + 1) / 2 L)``.

    x is uniform between -pi/2 and pi/2.
    """
    sine = np.sin(np.pi * (uniform - 0.5))
    return np.unique(np.minimum((sine + 1) / 2 * num_layers, num_layers - 1).astype(np.int64))


def _check_integer(field: str, value: Any, low: int, high: float = math.inf) -> None:
    """Raises ValueError unless ``value`` is an integer from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        allowed = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ValueError(f"layer_window: {field} must be an integer {allowed}, got {value!r}")
