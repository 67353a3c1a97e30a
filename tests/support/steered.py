# SPDX-License-Identifier: Apache-2.0
"""Exchanges that are told what to send: a controller that follows a script, and workers for it."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.compression import Compression
from tf_gradcomp.controllers import registry
from tf_gradcomp.controllers.base import Controller, Decision, Setting
from tf_gradcomp.costs import Costs
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer
from tf_gradcomp.transports.base import Collectives

INFOS = [
    VariableInfo("a", (40, 30), "float32"),
    VariableInfo("b", (500,), "float32"),
    VariableInfo("c", (30, 50), "float32"),
]


def rows(seed: int, number: int, period: int, num_buckets: int) -> np.ndarray:
    """Returns what a script says of a period: all, nothing, and densities in between."""
    rng = np.random.default_rng([seed, number])
    return rng.choice([0.0, 0.0, 1e-9, 0.03, 0.37, 0.5, 1.0], (period, num_buckets))


@dataclasses.dataclass(frozen=True)
class Scripted(Controller):
    """Decides as ``rows`` says, and remembers how often it has, and what it was told.

    Attributes:
      seed: of the script.
      period: exchanges between two decisions.
      least: the least density.
      bias: added to the seed, and known to nobody: for one worker that decides differently.
    """

    seed: int = 0
    period: int = 3
    least: float = 0.0
    bias: int = dataclasses.field(default=0, init=False, repr=False, compare=False)

    withholds = True
    statistics = ()

    def start(self, setting: Setting) -> Decision:
        return self._decision(setting, np.zeros(2))

    def decide(
        self, setting: Setting, state: np.ndarray, measured: Mapping[str, np.ndarray]
    ) -> Decision:
        return self._decision(setting, state + [1, 0.125])

    def _decision(self, setting: Setting, state: np.ndarray) -> Decision:
        densities = rows(self.seed + self.bias, int(state[0]), self.period, len(setting.buckets))
        return Decision(state, np.maximum(densities, self.least))


@dataclasses.dataclass(frozen=True)
class Sending(Scripted):
    """The same of one that withholds nothing."""

    least: float = 1e-6
    withholds = False


def biased(controller: Scripted, bias: int) -> Scripted:
    """Returns one that decides differently, and is equal to it."""
    other = dataclasses.replace(controller)
    object.__setattr__(other, "bias", bias)
    return other


@pytest.fixture(autouse=True)
def known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets specs name the controllers of this file."""
    monkeypatch.setitem(registry._CONTROLLERS, "scripted", Scripted)
    monkeypatch.setitem(registry._CONTROLLERS, "sending", Sending)


def gradient(worker: int, step: int, info: VariableInfo) -> np.ndarray:
    """Returns a worker's gradient of a variable, of heavy tails."""
    rng = np.random.default_rng([worker, step, info.num_elements])
    return rng.standard_t(3, size=info.shape).astype(info.dtype)


def rate(step: int) -> float:
    """Returns the learning rate of a step, the first of which is 1."""
    return [0.5, 0.25, 1.0][step % 3]


class Job:
    """One worker's training, as far as exchanges go."""

    def __init__(
        self,
        collectives: Collectives,
        compression: str | Compression,
        infos: Sequence[VariableInfo] = INFOS,
        costs: Costs | None = None,
    ) -> None:
        self.collectives = collectives
        self.infos = list(infos)
        self.weights = {info.name: tf.Variable(tf.ones(info.shape, info.dtype)) for info in infos}
        self.reducer = GradientReducer(Policy("none", (("*", compression),)), collectives, costs)

    def reduce(self, gradients: Sequence[Any], infos: Sequence[VariableInfo], step: int) -> Any:
        owners = {info.name: weakref.ref(self.weights[info.name]) for info in infos}
        return self.reducer.reduce(gradients, infos, owners, learning_rate=tf.constant(rate(step)))

    def step(
        self,
        step: int,
        spoil: Callable[[int, int, list[np.ndarray]], None] | None = None,
        names: str = "abc",
    ) -> dict[str, np.ndarray]:
        """Returns the sums of the step of this number, by variable."""
        infos = [info for info in self.infos if info.name in names]
        worker = self.collectives.worker_index
        values = [gradient(worker, step, info) for info in infos]
        if spoil is not None:
            spoil(worker, step, values)
        sums = self.reduce(list(map(tf.constant, values)), infos, step)
        return {info.name: total.numpy() for info, total in zip(infos, sums, strict=True)}

    def steps(self, *numbers: int) -> list[dict[str, np.ndarray]]:
        """Returns those of several."""
        return [self.step(number) for number in numbers]

    @property
    def exchanges(self) -> list[Any]:
        """All exchanges of all plans."""
        return [e for entry in self.reducer._entries.values() for e in entry.exchanges]

    def densities(self) -> dict[str, float]:
        """Returns what is decided on the next exchange, by variable."""
        return {name: d["density"] for name, d in self.reducer.decisions().items()}

    def left(self) -> dict[str, np.ndarray]:
        """Returns what residuals hold of each variable, in units of updates."""
        left: dict[str, np.ndarray] = {}
        for exchange in self.exchanges:
            indices, parts = exchange.bucket.indices, exchange.left_over()
            for index, part in zip(indices, parts, strict=False):
                name = self.infos[index].name
                left[name] = part.numpy().astype(np.float64)
        return left

    def memory(self) -> dict[str, np.ndarray]:
        """Returns all that exchanges remember, but for what was decided."""
        return {
            f"{number}/{name}": variable.numpy()
            for number, exchange in enumerate(self.exchanges)
            for name, variable in exchange.memory.items()
        }
