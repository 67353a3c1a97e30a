# SPDX-License-Identifier: Apache-2.0
"""LAGS-SGD: as much of each layer is sent as back-propagation of the layers below it hides.

Gradients of the last layers are there first, and travel while those below are still computed.
So the density of each bucket is the highest one with which its exchange is over when the next
bucket is there. What that takes is measured once, over the first period. What it comes to is
measured, too, against steps with the codec's own density in between: densities that make steps
slower are given up.

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
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from numpy.lib.stride_tricks import sliding_window_view

from tf_gradcomp import specs
from tf_gradcomp.controllers import base

PROFILE_FORMAT = 1
_MAX_RATIO = 1e9  # more elements than any bucket has
# Shares of the hiding time that are tried, one after the other.
_SHARES = (1.0, 0.5, 0.25, 0.125)
_NOTICEABLE = 1.02  # more time than this factor is no noise
# Which exchanges of a check have the densities that are tried, again and again. The next but one to
# each has the other densities: so what makes every second step longer does so to both alike.
_ORDER = (True, False, False, True)
_RUN = 4  # steps that are compared with each other: two with each of two densities
# What the period at hand is for: to measure ready times, or to check a share.
_STAGES = ("measuring", "checking", "done")


@dataclasses.dataclass(frozen=True)
class Lags(base.Controller):
    """Chooses densities with which exchanges are hidden under back-propagation.

    In the first period, each bucket has the codec's own density, and it is measured when gradients
    are ready. That decides on densities. In the next period, half of the exchanges have them, and
    those in between the codec's own. If steps with them are noticeably longer, half of the hiding
    time decides, then a quarter and an eighth, each checked in a period; if these are of no use
    either, the codec's own density comes back. The densities then stay, for all exchanges, until
    the state is set to that of the start again.

    A profile tells how variables are merged to buckets, which is fixed before anything is measured.
    A file that lacks any of the variables is not used.

    Attributes:
      period: exchanges over which times are measured, at least 5: a step ends when the next one
        starts, and there must be two steps with either densities, lest a slow one decides. The more
        there are, the less noise matters; `docs/methods/lags.md` has figures.
      max_ratio: a bucket of ``n`` elements keeps at least ``n / max_ratio`` of them, even if that
        is not hidden; from 1 to 1e9.
      profile: path of a file with ready times, as ``profile_text`` writes it; empty for none. It
        is read when the object is made. Objects are equal if their paths are.

    Raises:
      ValueError: a field is out of range, or the file is not a profile.
    """

    period: int = 48
    max_ratio: float = 1000.0
    profile: str = ""

    statistics = (base.READY, base.STEP)
    checks_assumption = True

    def __post_init__(self) -> None:
        if isinstance(self.period, bool) or not isinstance(self.period, int) or self.period <= _RUN:
            raise ValueError(
                f"lags: period must be an integer, at least {_RUN + 1}, got {self.period!r}"
            )
        if not _is_number(self.max_ratio) or not 1 <= self.max_ratio <= _MAX_RATIO:
            raise ValueError(
                f"lags: max_ratio must be a number in [1, 1e9], got {self.max_ratio!r}"
            )
        object.__setattr__(self, "max_ratio", float(self.max_ratio))
        path: Any = self.profile
        if path is None or isinstance(path, os.PathLike):
            object.__setattr__(self, "profile", "" if path is None else os.fspath(path))
        if not isinstance(self.profile, str):
            raise ValueError(f"lags: profile must be a path, a string, got {self.profile!r}")
        if self.profile and not _is_readable_in_specs(self.profile):
            raise ValueError(
                f"lags: profile must be a path that specs can hold, without commas, parentheses, "
                f"line breaks or spaces around it, and no number, true, false or none, got "
                f"{self.profile!r}: give the file another name"
            )
        _ = self.ready_seconds  # reads the file

    @functools.cached_property
    def ready_seconds(self) -> Mapping[str, float]:
        """Seconds of the profile by variable; empty without one."""
        return read_profile(self.profile) if self.profile else {}

    def start(self, setting: base.Setting) -> base.Decision:
        ready = np.zeros(len(setting.variables))
        state = _State("measuring", 0.0, 0.0, 0.0, 0.0, ready, self._own_densities(setting))
        return self._decision(setting, state)

    def decide(
        self, setting: base.Setting, state: np.ndarray, measured: Mapping[str, np.ndarray]
    ) -> base.Decision:
        known = _State.unpack(setting, state)
        if known.stage == "measuring":
            known = known._replace(ready=np.median(measured[base.READY], axis=0))
            known = self._with_first_of(setting, known, _SHARES)
        elif known.stage == "checking":
            tried, own = compared_seconds(measured[base.STEP], self._is_tried()[:-1])
            known = known._replace(checked_share=known.share, own_seconds=own, step_seconds=tried)
            if known.is_slower:
                smaller = _SHARES[_SHARES.index(known.share) + 1 :]
                known = self._with_first_of(setting, known, smaller)
            else:
                known = known._replace(stage="done")
        return self._decision(setting, known)

    def report(self, setting: base.Setting, state: np.ndarray) -> str:
        found = report(setting, state)
        return "" if found is None else found.text(setting)

    def profile_text(self, setting: base.Setting, state: np.ndarray) -> str:
        is_measured = _State.unpack(setting, state).stage != "measuring"
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
        if not self.profile:
            return None
        lacking = [name for name in variables if name not in self.ready_seconds]
        if lacking:
            logging.warning(
                "LAGS' profile %r is not used for %d variables, because it lacks %d of them, such "
                "as %s: it must be of the same model, with the same names.",
                self.profile,
                len(variables),
                len(lacking),
                lacking[0],
            )
            return None
        return np.array([self.ready_seconds[name] for name in variables])

    def _with_first_of(
        self, setting: base.Setting, known: _State, shares: Sequence[float]
    ) -> _State:
        """Returns the state with other densities, of the first share that has any, to check them.

        Without any, and where they are the codec's own, those stay.
        """
        own = self._own_densities(setting)
        hiding = hiding_seconds(bucket_ready(setting, known.ready))
        for share in shares:
            densities = hidden_densities(
                share * hiding,
                setting.bucket_sizes(),
                setting.work_seconds,
                setting.message_seconds,
                self.max_ratio,
            )
            if np.array_equal(densities, own):
                break
            if not np.array_equal(densities, known.densities):
                return known._replace(stage="checking", share=share, densities=densities)
        return known._replace(stage="done", share=0.0, densities=own)

    def _own_densities(self, setting: base.Setting) -> np.ndarray:
        return np.full(len(setting.buckets), float(setting.density))

    def _is_tried(self) -> np.ndarray:
        """Returns whether each exchange of a check has the densities that are tried."""
        return np.resize(_ORDER, self.period)

    def _decision(self, setting: base.Setting, state: _State) -> base.Decision:
        rows = np.tile(state.densities, (self.period, 1))
        if state.stage == "checking":
            rows[~self._is_tried()] = self._own_densities(setting)
        return base.Decision(state.pack(), rows, state.stage == "done")


class _State(NamedTuple):
    """What is remembered.

    Attributes:
      stage: one of ``_STAGES``.
      share: of the hiding time, one of ``_SHARES``, with which densities were chosen; 0 for the
        codec's own density.
      checked_share: that of the densities that were checked last; 0 before any were.
      own_seconds: what steps with the codec's own density took beside these; 0 before any.
      step_seconds: what steps with these took; 0 before any.
      ready: float64 ``[V]``, seconds; 0 before they are measured.
      densities: float64 ``[B]``.
    """

    stage: str
    share: float
    checked_share: float
    own_seconds: float
    step_seconds: float
    ready: np.ndarray
    densities: np.ndarray

    @property
    def is_slower(self) -> bool:
        """Whether steps with the densities that were checked last are noticeably longer."""
        return self.step_seconds > _NOTICEABLE * self.own_seconds

    def pack(self) -> np.ndarray:
        """Returns all of it, float64 ``[5 + V + B]``."""
        stage, *figures, ready, densities = self
        return np.concatenate([[_STAGES.index(stage), *figures], ready, densities])

    @classmethod
    def unpack(cls, setting: base.Setting, state: np.ndarray) -> _State:
        """Returns what ``pack`` has packed.

        Raises:
          ValueError: it is of other variables or buckets.
        """
        num_variables, num_buckets = len(setting.variables), len(setting.buckets)
        if np.shape(state) != (5 + num_variables + num_buckets,):
            raise ValueError(
                f"lags: a state of {num_variables} variables in {num_buckets} buckets has "
                f"{5 + num_variables + num_buckets} numbers, got an array of shape "
                f"{np.shape(state)}"
            )
        stage, share, checked, own_seconds, step_seconds = map(float, state[:5])
        ready, densities = np.split(state[5:], [num_variables])
        return cls(_STAGES[int(stage)], share, checked, own_seconds, step_seconds, ready, densities)


# --- Checks --------------------------------------------------------------------------------------


def compared_seconds(steps: np.ndarray, is_tried: np.ndarray) -> tuple[float, float]:
    """Returns what steps take with the densities that are tried, and with the codec's own.

    In each run of four steps that follow each other there are two of each. The shorter ones of
    these are compared, as whatever else goes on can only make a step longer. The median over all
    runs counts, so that it does not matter where steps become slower or quicker in the course of
    the period, either.

    Args:
      steps: float64 ``[N]``, seconds; at least 4 of them.
      is_tried: bool ``[N]``, which steps had the densities that are tried.
    """
    runs, of_tried = (sliding_window_view(values, _RUN) for values in (steps, is_tried))
    tried = np.min(runs, axis=1, where=of_tried, initial=np.inf)
    own = np.min(runs, axis=1, where=~of_tried, initial=np.inf)
    own_seconds = float(np.median(own))
    return own_seconds + float(np.median(tried - own)), own_seconds


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

    allows: the largest of all ``k`` from ``n / max_ratio`` to ``n``. If none is hidden it is the
    smallest, or ``n`` if that takes no longer, as it may where gradients are sent as they are. The
    density is ``k / n``, rounded such that ``ceil(density * n)`` is ``k``.

    Source: Shi et al., ECAI 2020, whose aim this is. The formula is a reconstruction.

    Args:
      hiding: seconds that hide the exchange of each bucket.
      sizes: elements of each bucket, at least 1.
      work_seconds: as in ``Setting``.
      message_seconds: as in ``Setting``.
      max_ratio: at least 1.
    """

    def seconds(b: int, density: float) -> float:
        return message_seconds(b, density) + work_seconds(b, density)

    densities = [
        _highest_hidden(
            size, math.ceil(size / max_ratio), float(hiding[b]), functools.partial(seconds, b)
        )
        for b, size in enumerate(sizes)
    ]
    return np.array(densities, np.float64)


def _highest_hidden(
    size: int, least: int, hiding: float, seconds: Callable[[float], float]
) -> float:
    """Returns the density of the largest hidden count from ``least`` to ``size``; see above.

    What costs more is not hidden either: so bisection finds it, with some 30 questions. Seconds may
    fall only where gradients are sent as they are, which all of them are then: if that is not
    hidden, no count from there on is.
    """
    all_of_it = seconds(1.0)
    if all_of_it <= hiding:
        return 1.0
    hidden, too_many = least, size
    least_seconds = seconds(_share(least, size))
    if least_seconds > hiding:
        return 1.0 if all_of_it <= least_seconds else _share(least, size)
    while too_many - hidden > 1:
        middle = (hidden + too_many) // 2
        if seconds(_share(middle, size)) <= hiding:
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
      hiding: seconds of back-propagation from its being there to the next bucket's; the share of
        them that is used.
      work: seconds of work in its exchange.
      message: seconds of its messages, with its density.
      density: its density.
      is_hidden: whether work and messages fit into ``hiding``.
    """

    hiding: float
    work: float
    message: float
    density: float
    is_hidden: bool


class Report(NamedTuple):
    """What was decided, what it should gain by the model, and what it does.

    Attributes:
      share: of the hiding time, with which densities were chosen; 0 for the codec's own density.
      checked_share: that of the densities that were checked last; 0 if none were.
      own_seconds: what a step took with the codec's own density, in the same period; 0 if none.
      step_seconds: what a step took with the densities that were checked last; 0 if none were.
      is_done: whether the densities stay as they are, or are checked next.
      buckets: of each bucket, in the order of exchange.
      largest_speedup: that of ``largest_speedup``. The time until the first bucket is there
        counts as the forward pass, and the time from then to the last one as back-propagation.
      dense_speedup: how much later the last exchange would be over if all were dense, without
        any work on them; a ratio of times since the start of the step.
    """

    share: float
    checked_share: float
    own_seconds: float
    step_seconds: float
    is_done: bool
    buckets: tuple[BucketReport, ...]
    largest_speedup: float
    dense_speedup: float

    def text(self, setting: base.Setting) -> str:
        """Returns a table for people."""
        own = f"a density of {setting.density:.3g} for all"
        if self.is_done and not self.checked_share:
            return f"LAGS: {own} is what the hiding time asks for, and stays"
        compared = (
            f"LAGS: with {self.checked_share:.3g} of the hiding time a step took "
            f"{1e3 * self.step_seconds:.1f} ms, with {own} in the same period "
            f"{1e3 * self.own_seconds:.1f} ms"
        )
        if self.is_done:
            return f"{compared}; {'these' if self.share else 'the latter'} densities stay"
        lines = [compared] if self.checked_share else []
        lines.append(
            f"LAGS, with {self.share:.3g} of the hiding time; a bucket's exchange and what hides "
            "it, in ms:"
        )
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
    known = _State.unpack(setting, state)
    if known.stage == "measuring":
        return None
    densities = known.densities
    ready = bucket_ready(setting, known.ready)
    numbers = range(len(setting.buckets))
    messages = [setting.message_seconds(b, float(densities[b])) for b in numbers]
    work = [setting.work_seconds(b, float(densities[b])) for b in numbers]
    hiding = [float(seconds) for seconds in (known.share or 1.0) * hiding_seconds(ready)]
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
        known.share,
        known.checked_share,
        known.own_seconds,
        known.step_seconds,
        known.stage == "done",
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
    known = _State.unpack(setting, state)
    if known.stage == "measuring":
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
    return _as_profile(dict(zip(names, map(float, known.ready), strict=True)))


def joined_profiles(texts: Sequence[str]) -> str:
    """Returns a profile of all variables that any of some profiles has; empty if there is none.

    Args:
      texts: as those of ``profile_text``; where two have a variable, the later one counts.
    """
    seconds: dict[str, float] = {}
    for text in texts:
        seconds |= json.loads(text)["ready_seconds"]
    return _as_profile(seconds) if seconds else ""


def _as_profile(seconds: Mapping[str, float]) -> str:
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


def _is_readable_in_specs(path: str) -> bool:
    """Whether a path is the same after it was written into a spec and read from it."""
    if set(path).intersection("()\r\n"):
        return False
    try:
        return specs.parse_fields(specs.format_fields([("profile", path)])) == {"profile": path}
    except ValueError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
