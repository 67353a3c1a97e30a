# SPDX-License-Identifier: Apache-2.0
"""Who takes part in training, and whether TF_CONFIG says it rightly.

TensorFlow waits without a word, or trains alone, on much that is wrong with TF_CONFIG.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from absl import logging

_TRAINING_JOBS = ("chief", "worker")  # in the order in which workers are counted
_JOBS = (*_TRAINING_JOBS, "evaluator")
_EXAMPLE = (
    'for the first of two workers: {"cluster": {"worker": ["host0:2222", "host1:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
# The number of processes, set by what starts them.
_SIZE_VARIABLES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers that train together.

    Attributes:
      own: name of this process' task, such as ``"worker 0"``.
      addresses: ``host:port`` of all tasks that train, by name, in worker order.
    """

    own: str
    addresses: Mapping[str, str]

    @property
    def others(self) -> dict[str, str]:
        """The addresses of all tasks but this process' own."""
        return {name: address for name, address in self.addresses.items() if name != self.own}


def from_resolver(resolver: Any) -> Cluster | None:
    """Returns the cluster of a ``ClusterResolver``; ``None`` for a process that is not in it."""
    jobs = resolver.cluster_spec().as_dict()
    own = f"{resolver.task_type} {resolver.task_id}"
    addresses = {}
    for job in _TRAINING_JOBS:
        tasks = jobs.get(job, [])  # a dict by index where some are left out
        items = tasks.items() if isinstance(tasks, dict) else enumerate(tasks)
        addresses.update({f"{job} {index}": address for index, address in items})
    return Cluster(own, addresses) if own in addresses else None


def check_tf_config(environment: Mapping[str, str]) -> None:
    """Checks the TF_CONFIG of a process, before TensorFlow acts on it.

    Without TF_CONFIG the process trains alone. Warns if something seems to have started several.

    Raises:
      ValueError: says what is wrong, and what TF_CONFIG should look like.
    """
    text = environment.get("TF_CONFIG")
    config = {} if text is None else _parse(text)
    if "task" in config and "cluster" not in config:
        raise _wrong("there is a 'task', but no 'cluster'")
    if config.get("cluster"):
        jobs = _check_jobs(config["cluster"])
        _check_task(jobs, config.get("task"))
        return
    for name in _SIZE_VARIABLES:
        size = environment.get(name, "")
        if size.isdecimal() and int(size) > 1:
            logging.warning(
                "This process trains alone, for TF_CONFIG names no cluster; but %s=%s says that "
                "there are several processes. Give each of them a TF_CONFIG, %s. Or pass a "
                "cluster_resolver to the strategy.",
                name,
                size,
                _EXAMPLE,
            )
            return


def _parse(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _wrong(f"it is not JSON ({error}), got {text!r}") from None
    if not isinstance(config, dict):
        raise _wrong(f"it must be a JSON object, got {text!r}")
    return config


def _check_jobs(jobs: Any) -> dict[str, list[str]]:
    """Returns the jobs that have tasks."""
    if not isinstance(jobs, dict):
        raise _wrong(f"'cluster' must be an object, got {jobs!r}")
    jobs = {job: tasks for job, tasks in jobs.items() if tasks != []}
    if not jobs:
        raise _wrong("'cluster' lists no addresses")
    for job, tasks in jobs.items():
        if job not in _JOBS:
            raise _wrong(f"the jobs of 'cluster' must be of {', '.join(_JOBS)}, got {job!r}")
        if not isinstance(tasks, list):
            raise _wrong(f"'{job}' of 'cluster' must be a list of addresses, got {tasks!r}")
        for address in tasks:
            _check_address(job, address)
    names: dict[str, str] = {}
    for job in _TRAINING_JOBS:
        for index, address in enumerate(jobs.get(job, [])):
            name = f"{job} {index}"
            if address in names:
                raise _wrong(f"{names[address]} and {name} have the same address, {address!r}")
            names[address] = name
    if len(jobs.get("chief", [])) > 1:
        raise _wrong(f"there must be at most one chief, got {jobs['chief']!r}")
    return jobs


def _check_address(job: str, address: Any) -> None:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    is_open = ":" in host and not (host[0] == "[" and host[-1] == "]")  # IPv6 without brackets
    if not host or is_open or "/" in host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise _wrong(f"an address of '{job}' must be host:port, port in 1..65535, got {address!r}")


def _check_task(jobs: dict[str, list[str]], task: Any) -> None:
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        raise _wrong(f"'task' must hold the 'type' and 'index' of this process, got {task!r}")
    job, index = task["type"], str(task["index"])  # TensorFlow takes an index in quotes, too
    if job not in jobs:
        raise _wrong(f"the 'type' of 'task' must be of {', '.join(jobs)}, got {job!r}")
    if not index.isdecimal() or int(index) >= len(jobs[job]):
        last = len(jobs[job]) - 1
        raise _wrong(
            f"the 'index' of 'task' must be in 0..{last}, for '{job}' of 'cluster' has "
            f"{last + 1}, got {task['index']!r}"
        )


def _wrong(what: str) -> ValueError:
    return ValueError(f"TF_CONFIG: {what}. It should look like this, {_EXAMPLE}")
