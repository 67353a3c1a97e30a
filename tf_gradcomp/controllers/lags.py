# SPDX-License-Identifier: Apache-2.0
"""LAGS-SGD: as much of each layer is sent as back-propagation of the layers below it hides.

Gradients of the last layers are there first, and travel while those below are still computed.
So the density of each bucket is the highest one with which its exchange is over when the next
bucket is there. What that takes is measured once, over the first period, or read from a file.

Source: Shi et al., "Layer-wise Adaptive Gradient Sparsification for Distributed Deep Learning
with Convergence Guarantees", ECAI 2020, arXiv 1911.08727. Merging is that of Shi et al.,
"Communication-Efficient Distributed Deep Learning with Merged Gradient Sparsification on GPUs",
INFOCOM 2020. `docs/methods/lags.md` says what of this is reconstructed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_gradcomp.controllers import base

PROFILE_FORMAT = 1
_MAX_RATIO = 1e9  # more elements than any bucket has
# Where ready times are from.
_SOURCES = ("none", "profile", "measured")


@dataclasses.dataclass(frozen=True)
class Lags(base.Controller):
    """Chooses densities with which exchanges are hidden under back-propagation.

    Until there are ready times, each bucket has the codec's own density. A profile gives densities
    to the first period, and tells how variables are merged to buckets; a file that lacks any of the
    variables is not used. After the first period the measured times decide in either case, and
    the densities stay as they are then, until the state is set to that of the start again.

    Attributes:
      period: exchanges over which ready times are measured, at least 1. The median counts, so that
        from 3 on a slow first exchange does not matter.
      max_ratio: a bucket of ``n`` elements keeps at least ``n / max_ratio`` of them, even if that
        is not hidden; from 1 to 1e9.
      profile: path of a file with ready times, as ``profile_text`` writes it; empty for none. It
        is read when the object is made. Objects are equal if their paths are.

    Raises:
      ValueError: a field is out of range, or the file is not a profile.
    """

    period: int = 20
    max_ratio: float = 1000.0
    profile: str = ""

    statistics = (base.READY,)
    checks_assumption = True

    def __post_init__(self) -> None:
        if isinstance(self.period, bool) or not isinstance(self.period, int) or self.period < 1:
            raise ValueError(f"lags: period must be an integer, at least 1, got {self.period!r}")
        if not _is_number(self.max_ratio) or not 1 <= self.max_ratio <= _MAX_RATIO:
            raise ValueError(
                f"lags: max_ratio must be a number in [1, 1e9], got {self.max_ratio!r}"
            )
        object.__setattr__(self, "max_ratio", float(self.max_ratio))
        if not isinstance(self.profile, str):
            raise ValueError(f"lags: profile must be a path, a string, got {self.profile!r}")
        _ = self.ready_seconds  # reads the file

    @functools.cached_property
    def ready_seconds(self) -> Mapping[str, float]:
        """Seconds of the profile by variable; empty without one."""
        return read_profile(self.profile) if self.profile else {}

    def start(self, setting: base.Setting) -> base.Decision:
        ready = self._profile_of(setting.variables)
        if ready is not None:
            return self._decision(setting, "profile", ready)
        densities = np.full(len(setting.buckets), float(setting.density))
        state = _State("none", np.zeros(len(setting.variables)), densities)
        return base.Decision(state.pack(), self._rows(densities))

    def decide(
        self, setting: base.Setting, state: np.ndarray, measured: Mapping[str, np.ndarray]
    ) -> base.Decision:
        known = _State.unpack(setting, state)
        if known.source == "measured":
            return base.Decision(known.pack(), self._rows(known.densities))
        return self._decision(setting, "measured", np.median(measured[base.READY], axis=0))

    def report(self, setting: base.Setting, state: np.ndarray) -> str:
        found = report(setting, state)
        return "" if found is None else found.text(setting)

    def profile_text(self, setting: base.Setting, state: np.ndarray) -> str:
        is_measured = _State.unpack(setting, state).source == "measured"
        return profile_text(setting, state) if is_measured else ""

    def groups(
        self,
        variables: Sequence[str],
        density: float,
        work: Callable[[Sequence[int]], float],
        message_seconds: Callable[[Sequence[int], float], float],
    ) -> list[list[int]] | None:
        """Returns which variables should share a bucket, by ``merged``, if the profile has them."""
        ready = self._profile_of(variables)
        if ready is None:
            return None
        return merged(ready, work, lambda indices: message_seconds(indices, density))

    def _profile_of(self, variables: Sequence[str]) -> np.ndarray | None:
        """Returns the profile's ready times of variables, if it has all of them."""
        if not self.profile or any(name not in self.ready_seconds for name in variables):
            return None
        return np.array([self.ready_seconds[name] for name in variables])

    def _decision(self, setting: base.Setting, source: str, ready: np.ndarray) -> base.Decision:
        densities = hidden_densities(
            hiding_seconds(bucket_ready(setting, ready)),
            setting.bucket_sizes(),
            setting.work_seconds,
            setting.message_seconds,
            self.max_ratio,
        )
        return base.Decision(_State(source, ready, densities).pack(), self._rows(densities))

    def _rows(self, densities: np.ndarray) -> np.ndarray:
        return np.tile(densities, (self.period, 1))


class _State(NamedTuple):
    """What is remembered.

    Attributes:
      source: where the ready times are from, one of ``_SOURCES``.
      ready: float64 ``[V]``, seconds; 0 if there are none.
      densities: float64 ``[B]``.
    """

    source: str
    ready: np.ndarray
    densities: np.ndarray

    def pack(self) -> np.ndarray:
        """Returns all of it, float64 ``[1 + V + B]``."""
        return np.concatenate([[_SOURCES.index(self.source)], self.ready, self.densities])

    @classmethod
    def unpack(cls, setting: base.Setting, state: np.ndarray) -> _State:
        """Returns what ``pack`` has packed."""
        source, ready, densities = np.split(state, [1, 1 + len(setting.variables)])
        return cls(_SOURCES[int(source[0])], ready, densities)


# --- Densities -----------------------------------------------------------------------------------


def bucket_ready(setting: base.Setting, ready: np.ndarray) -> np.ndarray:
    """Returns when each bucket can be exchanged: float64 ``[B]``, seconds, never falling.

    That is when all gradients of it are there, and all of the buckets that go first.

    Args:
      setting: has the buckets.
      ready: float64 ``[V]``, when each variable's gradient is there.
    """
    latest = [max(ready[index] for index in bucket) for bucket in setting.buckets]
    return np.maximum.accumulate(np.array(latest, np.float64))


def hiding_seconds(ready: np.ndarray) -> np.ndarray:
    """Returns how long back-propagation goes on until the next bucket is there: float64 ``[B]``.

    Nothing hides the last one.

    Args:
      ready: float64 ``[B]``, when buckets are there; never falling.
    """
    return np.append(np.diff(ready), 0.0)


def hidden_densities(
    hiding: Sequence[float] | np.ndarray,
    sizes: Sequence[int],
    work_seconds: Callable[[int, float], float],
    message_seconds: Callable[[int, float], float],
    max_ratio: float,
) -> np.ndarray:
    """Returns for each bucket the highest density that is hidden: float64 ``[B]``.

    Of the ``n`` elements of bucket ``b`` as many are kept, ``k``, as

        message_seconds(b, k / n) + work_seconds(b, k / n) <= hiding[b]

    allows: the largest of all ``k`` from ``n / max_ratio`` to ``n``, or the smallest if none is
    hidden. The density is ``k / n``, rounded such that ``ceil(density * n)`` is ``k``.

    Source: Shi et al., ECAI 2020, whose aim this is. The formula is a reconstruction.

    Args:
      hiding: seconds that hide the exchange of each bucket.
      sizes: elements of each bucket, at least 1.
      work_seconds: as in ``Setting``.
      message_seconds: as in ``Setting``.
      max_ratio: at least 1.
    """

    def is_hidden(b: int, density: float) -> bool:
        return bool(message_seconds(b, density) + work_seconds(b, density) <= hiding[b])

    densities = [
        _highest_hidden(size, math.ceil(size / max_ratio), functools.partial(is_hidden, b))
        for b, size in enumerate(sizes)
    ]
    return np.array(densities, np.float64)


def _highest_hidden(size: int, least: int, is_hidden: Callable[[float], bool]) -> float:
    """Returns the density of the largest hidden count from ``least`` to ``size``, or of ``least``.

    What costs more is not hidden either: so bisection finds it, with some 30 questions.
    """
    if is_hidden(1.0):
        return 1.0
    hidden, too_many = least, size
    if not is_hidden(_share(hidden, size)):
        return _share(hidden, size)
    while too_many - hidden > 1:
        middle = (hidden + too_many) // 2
        if is_hidden(_share(middle, size)):
            hidden = middle
        else:
            too_many = middle
    return _share(hidden, size)


def _share(count: int, size: int) -> float:
    """Returns the density that means ``count`` of ``size`` elements, whoever rounds up."""
    density = count / size
    # The product may be rounded to just above the count, of which the next integer is too many.
    return math.nextafter(density, 0.0) if density * size > count else density


# --- Merging -------------------------------------------------------------------------------------


def merged(
    ready: Sequence[float] | np.ndarray,
    work: Callable[[Sequence[int]], float],
    message_seconds: Callable[[Sequence[int]], float],
) -> list[list[int]]:
    """Returns which layers are exchanged together, in the order of exchange.

    The layers are walked in that order. Those since the last cut are one exchange, the open one,
    and the next layer joins it if that saves more time than it makes the open one wait:

        wait = start of the exchange of both together - start of the open one
        save = seconds of the open one's messages + those of the next - those of both together

    An exchange starts when the one before is over, and its own layers are there and worked on. So
    the merged one ends earlier than the two would, and none of the later ones ends later: the last
    exchange is never over later than without merging. It need not be the best of all
    partitions, for layers are looked at one by one.

    Source: Shi et al., INFOCOM 2020, and its code, which takes the work of the next layer off the
    waiting time: merging can then lose. It also lets back-propagation pause for the work.

    Args:
      ready: seconds until the gradient of each layer is there, in the order of exchange.
      work: from positions of layers to the seconds of work in an exchange of them.
      message_seconds: from such positions to the seconds of its messages.
    """
    groups: list[list[int]] = []
    end = 0.0  # of the exchange before the open one

    def start(indices: list[int]) -> float:
        return max(max(ready[index] for index in indices) + work(indices), end)

    for index in range(len(ready)):
        if groups:
            opened, both = groups[-1], [*groups[-1], index]
            wait = start(both) - start(opened)
            save = message_seconds(opened) + message_seconds([index]) - message_seconds(both)
            if wait < save:
                groups[-1] = both
                continue
            end = start(opened) + message_seconds(opened)
        groups.append([index])
    return groups


# --- What is gained ------------------------------------------------------------------------------


def largest_speedup(forward: float, backward: float, communication: float) -> float:
    """Returns what overlap can gain at most: a step without any, over one where all overlaps.

        (t_f + t_b + t_c) / (t_f + max(t_b, t_c)) = 1 + 1 / (t_f / min(t_b, t_c) + max(r, 1 / r))

    with ``r = t_c / t_b``. It is largest if both take equally long, and at most 2.

    Args:
      forward: seconds of the forward pass, t_f.
      backward: seconds of back-propagation, t_b.
      communication: seconds of all messages, t_c.
    """
    overlapped = forward + max(backward, communication)
    return (forward + backward + communication) / overlapped if overlapped else 1.0


def exchange_ends(
    ready: Sequence[float] | np.ndarray,
    work: Sequence[float],
    messages: Sequence[float],
) -> np.ndarray:
    """Returns when the exchange of each bucket is over: float64 ``[B]``, seconds.

    Messages go one after the other, each when the work on its bucket is done; that begins when the
    bucket is there, and goes on beside back-propagation.

    Args:
      ready: when each bucket is there.
      work: seconds of work on each.
      messages: seconds of the messages of each.
    """
    ends, end = [], 0.0
    for there, worked, sent in zip(ready, work, messages, strict=True):
        end = max(there + worked, end) + sent
        ends.append(end)
    return np.array(ends)


class BucketReport(NamedTuple):
    """What was decided on a bucket, and why.

    Attributes:
      hiding: seconds of back-propagation from its being there to the next bucket's.
      work: seconds of work in its exchange.
      message: seconds of its messages, with its density.
      density: its density.
      is_hidden: whether work and messages fit into ``hiding``. If not, the density is the least.
    """

    hiding: float
    work: float
    message: float
    density: float
    is_hidden: bool


class Report(NamedTuple):
    """What was decided, and what it should gain. All figures are of the model, none is measured.

    Attributes:
      source: where the ready times are from, "profile" or "measured".
      buckets: of each bucket, in the order of exchange.
      largest_speedup: that of ``largest_speedup``. The time until the first bucket is there
        counts as the forward pass, and the time from then to the last one as back-propagation.
      dense_speedup: how much later the last exchange would be over if all were dense, without
        any work on them; a ratio of times since the start of the step.
    """

    source: str
    buckets: tuple[BucketReport, ...]
    largest_speedup: float
    dense_speedup: float

    def text(self, setting: base.Setting) -> str:
        """Returns a table for people."""
        lines = [f"LAGS, by {self.source} times; a bucket's exchange and what hides it, in ms:"]
        for members, bucket in zip(setting.buckets, self.buckets, strict=True):
            names = ", ".join(setting.variables[index] for index in members)
            lines.append(
                f"density {bucket.density:.3g}: work {1e3 * bucket.work:.2f} and messages "
                f"{1e3 * bucket.message:.2f} {'within' if bucket.is_hidden else 'not within'} "
                f"{1e3 * bucket.hiding:.2f}: {names}"
            )
        lines.append(
            f"overlap gains at most a factor of {self.largest_speedup:.2f} (S_max); the last "
            f"exchange is over {self.dense_speedup:.2f} times earlier than if all were dense"
        )
        return "\n".join(lines)


def report(setting: base.Setting, state: np.ndarray) -> Report | None:
    """Returns what was decided; ``None`` if there were no ready times to decide by.

    Args:
      setting: what was decided on.
      state: that of the decision.
    """
    source, variable_ready, densities = _State.unpack(setting, state)
    if source == "none":
        return None
    ready = bucket_ready(setting, variable_ready)
    numbers = range(len(setting.buckets))
    messages = [setting.message_seconds(b, float(densities[b])) for b in numbers]
    work = [setting.work_seconds(b, float(densities[b])) for b in numbers]
    hiding = [float(seconds) for seconds in hiding_seconds(ready)]
    buckets = tuple(
        BucketReport(
            hiding[b],
            work[b],
            messages[b],
            float(densities[b]),
            messages[b] + work[b] <= hiding[b],
        )
        for b in numbers
    )
    end = exchange_ends(ready, work, messages)[-1]
    dense = [setting.message_seconds(b, 1.0) for b in numbers]
    dense_end = exchange_ends(ready, [0.0] * len(dense), dense)[-1]
    return Report(
        source,
        buckets,
        largest_speedup(float(ready[0]), float(ready[-1] - ready[0]), sum(messages)),
        float(dense_end / end) if end else 1.0,
    )


# --- Profiles ------------------------------------------------------------------------------------


def profile_text(setting: base.Setting, state: np.ndarray) -> str:
    """Returns the ready times of a state as the text of a profile, a JSON object.

        {"format": 1, "ready_seconds": {"dense_1/kernel": 0.25, "dense/kernel": 0.5}}

    Args:
      setting: what the state is of.
      state: as ``decide`` returns it.

    Raises:
      ValueError: the state has no ready times, or two variables have the same name.
    """
    source, ready, _ = _State.unpack(setting, state)
    if source == "none":
        raise ValueError(
            "lags: there is no profile to write yet, ready times are measured in the first period"
        )
    names = setting.variables
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"lags: a profile tells variables by their names, but {name!r} names "
                f"{names.count(name)} of them"
            )
    seconds = dict(zip(names, map(float, ready), strict=True))
    return json.dumps({"format": PROFILE_FORMAT, "ready_seconds": seconds}, indent=2) + "\n"


def read_profile(path: str) -> dict[str, float]:
    """Returns the seconds of a profile by the names of variables.

    Args:
      path: of a file, with a text as that of ``profile_text``.

    Raises:
      ValueError: it cannot be read, or it is not a profile.
    """

    def wrong(what: str) -> ValueError:
        return ValueError(f"lags: profile {path!r}: {what}")

    try:
        with open(path, encoding="utf-8") as file:
            profile = json.load(file)
    except OSError as error:
        raise wrong(f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise wrong(f"it is not JSON ({error})") from None
    if not isinstance(profile, dict):
        raise wrong("it must be a JSON object")
    version = profile.get("format")
    if version != PROFILE_FORMAT or isinstance(version, bool):
        raise wrong(f"'format' must be {PROFILE_FORMAT}, got {version!r}")
    seconds = profile.get("ready_seconds")
    if not isinstance(seconds, dict) or not seconds:
        raise wrong(f"'ready_seconds' must be an object of seconds by variable, got {seconds!r}")
    for name, value in seconds.items():
        if not _is_number(value) or not 0 <= value <= sys.float_info.max:
            raise wrong(f"'ready_seconds' of {name!r} must be a number, at least 0, got {value!r}")
    return {name: float(value) for name, value in seconds.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
