# SPDX-License-Identifier: Apache-2.0
"""Runs a program as the workers of a cluster: real processes, real sockets on loopback."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
    addresses: Sequence[str] | None = None,
    chief: bool = False,
) -> list[Outcome]:
    """Runs ``programs/<program>.py`` on every worker and waits for all to end.

    Args:
      program: name of the program.
      arguments: the same for all workers, or one sequence per worker.
      num_workers: number of workers.
      timeout: seconds after which what still runs is killed.
      addresses: where the workers listen; ``None`` for free ports.
      chief: whether TF_CONFIG calls the first of them the chief.
    """
    per_worker = (
        [list(a) for a in arguments]
        if arguments and not isinstance(arguments[0], str)
        else [list(arguments)] * num_workers
    )
    addresses = list(addresses or _free_addresses(num_workers))
    started = time.monotonic()
    zygote = _zygote()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"{index}.log" for index in range(num_workers)]
        running: list[int] = []
        outcomes = []
        try:
            for index, output in enumerate(outputs):
                output.touch()
                config = _tf_config(addresses, index, chief)
                environment = {**_environment(), "TF_CONFIG": json.dumps(config)}
                path = str(PROGRAMS / f"{program}.py")
                running.append(zygote.start(path, per_worker[index], environment, output))
            for output in outputs:
                code = zygote.wait(running[0], started + timeout - time.monotonic())
                del running[0]
                seconds = time.monotonic() - started
                outcomes.append(Outcome(code, output.read_text(errors="replace"), seconds))
        finally:
            for pid in running:
                _kill(pid)
    return outcomes


def _tf_config(addresses: list[str], index: int, chief: bool) -> dict[str, Any]:
    if not chief:
        return {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    task = {"type": "worker", "index": index - 1} if index else {"type": "chief", "index": 0}
    return {"cluster": {"chief": addresses[:1], "worker": addresses[1:]}, "task": task}


def _kill(worker: int) -> None:
    """Kills a worker and what it has started; it may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)


def _environment() -> dict[str, str]:
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
    }


class _Zygote:
    """The process that forks the workers; see ``worker_zygote``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker_zygote.py"))],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._received = b""
        self._codes: dict[int, int] = {}
        atexit.register(self._process.stdin.close)

    def start(
        self, program: str, arguments: list[str], environment: dict[str, str], output: Path
    ) -> int:
        """Starts a worker and returns its process id."""
        request = {
            "program": program,
            "arguments": arguments,
            "environment": environment,
            "output": str(output),
        }
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        while True:
            answer = self._next_answer(timeout=60)
            assert answer is not None, "the process that starts workers does not answer"
            if "code" not in answer:
                return answer["pid"]

    def wait(self, pid: int, timeout: float) -> int | None:
        """Returns a worker's exit code; after the time is up, kills it and returns ``None``."""
        deadline = time.monotonic() + timeout
        while pid not in self._codes:
            if self._next_answer(deadline - time.monotonic()) is None:
                _kill(pid)
                while pid not in self._codes:
                    assert self._next_answer(timeout=60) is not None
                return None
        return self._codes.pop(pid)

    def _next_answer(self, timeout: float) -> dict[str, int] | None:
        """Returns the next answer, ``None`` if there is none in time."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._received:
            waiting = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], waiting)[0]:
                return None
            received = os.read(self._process.stdout.fileno(), 65536)
            assert received, "the process that starts workers has ended"
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        answer = json.loads(line)
        if "code" in answer:
            self._codes[answer["pid"]] = answer["code"]
        return answer


@functools.cache
def _zygote() -> _Zygote:
    return _Zygote()


def _free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()
