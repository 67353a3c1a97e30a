# SPDX-License-Identifier: Apache-2.0
"""Schedules: what share of the items to keep, or how many bits to code them in, at which exchange.

Workers that know the number of the exchange have the same density without a message if a schedule
uses only what has the same bits on all machines: sums, products, quotients, but no powers. For any
other function there is ``Scheduled``, whose values worker 0 sends to all.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from absl import logging

# From the number of the exchange, an int32 scalar from 1, to the density, a float64 scalar.
Schedule: TypeAlias = Callable[[tf.Tensor], tf.Tensor]

FIRST_DENSITY = 0.25


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """Sends much at first: 1/4, 1/16, 1/64, ..., in stages of equal length, and then ``density``.

    There is a stage for each power of 1/4 that is more than ``density``. With a density of 0.001
    those are the paper's: 75 %, 93.75 %, 98.4375 % and 99.6 % are not sent, and then 99.9 %.

    Source: Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3.

    Attributes:
      density: the density from exchange ``num_exchanges + 1`` on, in (0, 1].
      num_exchanges: exchanges of all stages, at least 1.
    """

    density: float
    num_exchanges: int

    @property
    def densities(self) -> list[float]:
        """The density of each stage, and the one after them."""
        stages, density = [], FIRST_DENSITY
        while density > self.density:
            stages.append(density)
            density /= 4
        return [*stages, self.density]

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        densities = self.densities
        num_stages = len(densities) - 1
        stage = (tf.cast(step, tf.int64) - 1) * num_stages // self.num_exchanges
        return tf.gather(tf.constant(densities, tf.float64), tf.minimum(stage, num_stages))


@dataclasses.dataclass(frozen=True)
class Growth:
    """Drops ever less: from exchange ``after`` on, a share that falls like 1 / step.

    At exchange t the share ``theta_0 * min(1, after / t)`` is dropped, ``theta_0 = 1 - density``.

    Source: Wang et al., HPDC 2020 (see ``codecs/fft.py``), who prove convergence for a share theta
    that diminishes in training. How it does is this project's own.

    Attributes:
      density: the density up to exchange ``after``, in (0, 1].
      after: number of an exchange, at least 1.
    """

    density: float
    after: int

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        dropped = (1.0 - self.density) * self.after / tf.cast(step, tf.float64)
        return tf.where(step <= self.after, tf.constant(self.density, tf.float64), 1.0 - dropped)


@dataclasses.dataclass(frozen=True)
class Highest:
    """The highest density of any of several schedules.

    Attributes:
      schedules: at least one.
    """

    schedules: tuple[Schedule, ...]

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return functools.reduce(tf.maximum, [schedule(step) for schedule in self.schedules])


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """A parameter that any function of the number of exchanges gives.

    Attributes:
      text: what it is, for people and for comparisons between workers.
      function: from the number of exchanges so far, which begins at 0 as that of an optimizer's
        steps does, to the value.
      identity: what tells it from others with the same text; ``None`` if its text says all.
      is_keras: whether it is a Keras schedule, which takes a tensor; other functions take an
        integer. Those of Keras cannot be asked before a cluster is joined: they run TensorFlow's
        operations, and with the first one a program can no longer join.
    """

    text: str
    function: Callable[[Any], Any] = dataclasses.field(compare=False, repr=False)
    identity: Any = dataclasses.field(default=None, repr=False)
    is_keras: bool = False

    @functools.cached_property
    def first(self) -> float:
        """Its value at the first exchange."""
        try:
            if not self.is_keras:
                return float(self.function(0))
            with tf.init_scope():
                return float(self.function(tf.constant(0, tf.int64)))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the schedule {self} must take the number of exchanges so far and return a "
                f"number: {error}"
            ) from error

    def values(self, steps: tf.Tensor) -> tf.Tensor:
        """Returns the values at some exchanges, float64 ``[E]``.

        Args:
          steps: int32 ``[E]``, their numbers, from 1.
        """
        so_far = tf.cast(steps, tf.int64) - 1
        if self.is_keras:
            return tf.map_fn(
                lambda step: tf.cast(self.function(step), tf.float64),
                so_far,
                fn_output_signature=tf.float64,
            )

        def in_python(numbers: np.ndarray) -> np.ndarray:
            found: list[float] = []
            for number in numbers.tolist():
                try:
                    found.append(float(self.function(number)))
                except Exception as error:  # noqa: BLE001 - of a user's function, any may come
                    # It may be asked for exchanges that never come, as a table may not have them.
                    last = found[-1] if found else math.nan
                    logging.warning(
                        "The schedule %s has no value for exchange %d (%s: %s): from there on it "
                        "keeps %s.",
                        self,
                        number + 1,
                        type(error).__name__,
                        error,
                        "that of the exchange before" if found else "what it had",
                    )
                    return np.array(found + [last] * (len(numbers) - len(found)))
            return np.array(found)

        return tf.ensure_shape(tf.numpy_function(in_python, [so_far], tf.float64), steps.shape)

    def __str__(self) -> str:
        return self.text


def as_scheduled(function: Callable[[Any], Any]) -> Scheduled:
    """Wraps a ``keras.optimizers.schedules`` object, or any function of the exchanges so far.

    Raises:
      ValueError: it cannot be told from others, since it is not hashable.
    """
    if isinstance(function, Scheduled):
        return function
    is_keras = hasattr(function, "get_config")
    if not is_keras:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return Scheduled(f"{name}()", function, _identity(function))
    try:
        config = function.get_config()  # type: ignore[attr-defined]
    except NotImplementedError:  # Keras' own, which a class need not replace
        config = None
    fields = {k: _plain_text(value) for k, value in (config or {}).items() if k != "name"}
    # Workers compare the text: it must not have the addresses of objects.
    shown = ",".join(f"{key}={text}" for key, text in fields.items() if text is not None)
    says_all = config is not None and None not in fields.values()
    identity = None if says_all else _identity(function)
    return Scheduled(f"{type(function).__name__}({shown})", function, identity, is_keras=True)


def _identity(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    try:
        hash(function)
    except TypeError:
        raise ValueError(
            f"a schedule must be hashable, as a compression is, got {function!r}: give a function "
            "or, for instance, an object of a frozen dataclass"
        ) from None
    return function


def _plain_text(value: Any) -> str | None:
    """Returns what JSON could say as well as text, and ``None`` for anything else."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return None
    return str(value)
