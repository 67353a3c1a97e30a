# SPDX-License-Identifier: Apache-2.0
"""What a worker's exchanges remember from step to step, as bytes and back."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

RESIDUAL = "residual"
MOMENTUM = "momentum"
GLOBAL_MOMENTUM = "global_momentum"
VELOCITY = "velocity"
GRAM = "gram"
# How the names of arrays begin that differ from worker to worker, and whose sum is what matters.
OF_WORKERS = (RESIDUAL, MOMENTUM)
# Of those that all workers have in common, but for rounding where their machines differ.
ROUNDED = (GRAM,)

_FORMAT = 1
_HEADER = "header"


class BucketState(NamedTuple):
    """What the exchange of one bucket remembers.

    Attributes:
      variables: name and shape of each of its variables, in packed order.
      compression: its spec.
      transport: the name of its transport; empty for low-rank methods.
      arrays: what it remembers, by name.
    """

    variables: tuple[tuple[str, tuple[int, ...]], ...]
    compression: str
    transport: str
    arrays: Mapping[str, np.ndarray]

    @property
    def key(self) -> tuple[object, ...]:
        """What must be the same for the arrays to mean the same; a transport may change."""
        return self.variables, self.compression


class PlanState(NamedTuple):
    """What the exchanges of one plan remember.

    Attributes:
      variables: the names of all its variables.
      num_exchanges: exchanges so far.
      buckets: those that remember anything.
      elsewhere: positions of the variables of which other plans may hold what is left over.
    """

    variables: tuple[str, ...]
    num_exchanges: int
    buckets: tuple[BucketState, ...]
    elsewhere: tuple[int, ...] = ()


class WorkerState(NamedTuple):
    """What the exchanges of one worker remember.

    Attributes:
      num_workers: number of workers when it was saved.
      worker_index: which of them it belonged to.
      plans: one for each set of variables that was trained.
    """

    num_workers: int
    worker_index: int
    plans: tuple[PlanState, ...]


class Share(NamedTuple):
    """What an exchange remembered on one worker, maybe of a cluster of another size.

    Attributes:
      num_workers: number of workers there.
      worker_index: index of that worker.
      transport: the transport of its bucket.
      arrays: what it remembered, by name.
    """

    num_workers: int
    worker_index: int
    transport: str
    arrays: Mapping[str, np.ndarray]


class SavedStates:
    """States that wait for the exchanges that they belong to.

    Plans are told apart by their variables' names, and if these are the same by their order.
    """

    def __init__(self, states: Sequence[WorkerState]) -> None:
        """Takes the states of workers that one worker now stands for; all had the same plans."""
        plans = zip(*(state.plans for state in states), strict=True)
        self._waiting = [SavedPlan(list(zip(states, parts, strict=True))) for parts in plans]

    def __len__(self) -> int:
        """How many plans wait."""
        return len(self._waiting)

    def buckets_of(self, variables: tuple[str, ...]) -> tuple[BucketState, ...]:
        """Returns the buckets that ``take`` would find something for."""
        plan = next((plan for plan in self._waiting if plan.variables == variables), None)
        return () if plan is None else plan.parts[0][1].buckets

    def take(self, variables: tuple[str, ...]) -> SavedPlan | None:
        """Returns what was saved for a plan of these variables, once."""
        for plan in self._waiting:
            if plan.variables == variables:
                self._waiting.remove(plan)
                return plan
        return None

    def waiting(self) -> list[PlanState]:
        """Returns what no exchange has asked for yet, if it belonged to a single worker."""
        return [plan.parts[0][1] for plan in self._waiting if len(plan.parts) == 1]


class SavedPlan:
    """What was saved for one plan, on one or more workers.

    Attributes:
      parts: the state of each of these workers, and what it holds of the plan.
    """

    def __init__(self, parts: Sequence[tuple[WorkerState, PlanState]]) -> None:
        self.parts = parts

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of its variables."""
        return self.parts[0][1].variables

    @property
    def num_exchanges(self) -> int:
        """Exchanges so far."""
        return self.parts[0][1].num_exchanges

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """Positions of the variables of which other plans may hold what is left over."""
        return self.parts[0][1].elsewhere

    def keys(self) -> list[tuple[tuple[object, ...], str]]:
        """Returns what ``BucketState.key`` it has something for, and a description of each."""
        return [
            (b.key, f"{', '.join(name for name, _ in b.variables)} with {b.compression}")
            for b in self.parts[0][1].buckets
        ]

    def shares(self, key: tuple[object, ...]) -> list[Share]:
        """Returns what was saved for the bucket with this ``BucketState.key``; may be nothing."""
        return [
            Share(state.num_workers, state.worker_index, bucket.transport, bucket.arrays)
            for state, plan in self.parts
            for bucket in plan.buckets
            if bucket.key == key
        ]


def in_common(state: WorkerState) -> WorkerState:
    """Returns a state with zeros for what differs from worker to worker."""
    plans = []
    for plan in state.plans:
        buckets = []
        for bucket in plan.buckets:
            arrays = {
                name: np.zeros_like(array) if name.startswith(OF_WORKERS) else array
                for name, array in bucket.arrays.items()
            }
            buckets.append(bucket._replace(arrays=arrays))
        plans.append(plan._replace(buckets=tuple(buckets)))
    return state._replace(plans=tuple(plans))


def to_bytes(state: WorkerState) -> bytes:
    """Serializes a state: NumPy's archive, with a JSON header beside the arrays."""
    arrays: dict[str, Any] = {}
    plans = []
    for plan in state.plans:
        buckets = []
        for bucket in plan.buckets:
            names = {name: f"array_{len(arrays) + i}" for i, name in enumerate(bucket.arrays)}
            arrays.update({names[name]: array for name, array in bucket.arrays.items()})
            buckets.append({**bucket._asdict(), "arrays": names})
        plans.append({**plan._asdict(), "buckets": buckets})
    header = json.dumps({"format": _FORMAT, **state._asdict(), "plans": plans})
    arrays[_HEADER] = np.frombuffer(header.encode(), np.uint8)
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def from_bytes(data: bytes) -> WorkerState:
    """Reads what ``to_bytes`` wrote.

    Raises:
      ValueError: it is no such state, or of a later format.
    """
    try:
        return _from_bytes(data)
    except (EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"these bytes are no state of exchanges: {error}") from None


def _from_bytes(data: bytes) -> WorkerState:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        header = json.loads(archive[_HEADER].tobytes())
        if header["format"] != _FORMAT:
            raise ValueError(
                f"the state of exchanges has format {header['format']}, but this version of "
                f"tf_gradcomp reads {_FORMAT}"
            )
        plans = [
            PlanState(
                tuple(plan["variables"]),
                plan["num_exchanges"],
                tuple(
                    BucketState(
                        tuple((name, tuple(shape)) for name, shape in bucket["variables"]),
                        bucket["compression"],
                        bucket["transport"],
                        {name: archive[member] for name, member in bucket["arrays"].items()},
                    )
                    for bucket in plan["buckets"]
                ),
                tuple(plan.get("elsewhere", ())),
            )
            for plan in header["plans"]
        ]
    return WorkerState(header["num_workers"], header["worker_index"], tuple(plans))
