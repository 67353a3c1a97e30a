# SPDX-License-Identifier: Apache-2.0
"""Runs a program as the workers of a cluster: real processes, real sockets on loopback."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[1] / "distributed" / "programs"
ROOT = Path(__file__).parents[2]
RESULT_MARK = "RESULT "


@dataclasses.dataclass
class Outcome:
    """How one worker ended.

    Attributes:
      code: exit code, negative for a signal, ``None`` if it was still running at the deadline.
      output: standard output and error.
      seconds: time from the start of the cluster to its end.
    """

    code: int | None
    output: str
    seconds: float

    @property
    def result(self) -> dict[str, Any]:
        """What the program reported with ``report``."""
        lines = [line for line in self.output.splitlines() if line.startswith(RESULT_MARK)]
        assert self.code == 0 and lines, f"worker ended with {self.code}:\n{self.output[-6000:]}"
        return json.loads(lines[-1].removeprefix(RESULT_MARK))


def report(**figures: Any) -> None:
    """Called by a program: hands figures to the test."""
    print(RESULT_MARK + json.dumps(figures), flush=True)


def run_cluster(
    program: str,
    arguments: Sequence[str] | Sequence[Sequence[str]] = (),
    *,
    num_workers: int = 2,
    timeout: float = 120,
    environments: Sequence[Mapping[str, str]] | None = None,
    start: Sequence[bool] | None = None,
) -> list[Outcome]:
    """Runs ``programs/<program>.py`` on every worker and waits for all to end.

    Args:
      program: name of the program.
      arguments: the same for all workers, or one sequence per worker.
      num_workers: number of workers.
      timeout: seconds after which what still runs is killed.
      environments: extra environment variables, one mapping per worker.
      start: which workers to start at all.
    """
    per_worker = (
        [list(a) for a in arguments]
        if arguments and not isinstance(arguments[0], str)
        else [list(arguments)] * num_workers
    )
    addresses = _free_addresses(num_workers)
    started = time.monotonic()
    processes: list[tuple[subprocess.Popen[bytes], Any] | None] = []
    for index in range(num_workers):
        if start is not None and not start[index]:
            processes.append(None)
            continue
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_NUM_INTRAOP_THREADS": "1",
            **os.environ,
            **(environments[index] if environments else {}),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            ),
        }
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when its worker has ended
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / f"{program}.py"), *per_worker[index]],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        processes.append((process, output))
    outcomes = []
    for entry in processes:
        if entry is None:
            outcomes.append(Outcome(None, "not started", 0.0))
            continue
        process, output = entry
        try:
            code: int | None = process.wait(max(0.1, started + timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        seconds = time.monotonic() - started
        output.seek(0)
        outcomes.append(Outcome(code, output.read().decode(errors="replace"), seconds))
        output.close()
    return outcomes


def _free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()
