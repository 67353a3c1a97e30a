# SPDX-License-Identifier: Apache-2.0
"""Runs the command line as users do: real processes, in an empty directory, without TensorFlow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).resolve().parents[2]
_LIMIT_SECONDS = 120  # a hang fails; importing TensorFlow on a busy machine does not


class CommandLine:
    """`tf-gradcomp`, run in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []

    def script(self, *parts: str, name: str = "train.py") -> str:
        """Writes a script from its parts; the names most scripts need are imported in it."""
        head = "import json, os, signal, subprocess, sys, time\n"
        head += "INDEX = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        text = head + "".join(textwrap.dedent(part) for part in parts)
        (self.directory / name).write_text(text, encoding="utf-8")
        return name

    def start(
        self, *arguments: str, ignore: signal.Signals | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Starts `tf-gradcomp` with the signals' default actions, except an ignored one."""
        environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
        environment.pop("TF_NUM_INTRAOP_THREADS", None)
        paths = [variables.pop("PYTHONPATH", ""), str(_CHECKOUT)]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)

        def set_signals() -> None:
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(signum, signal.SIG_IGN if signum == ignore else signal.SIG_DFL)

        process = subprocess.Popen(
            [sys.executable, "-m", "tf_gradcomp", *arguments],
            cwd=self.directory,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # as a shell's job has its own process group
            preexec_fn=set_signals,
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        """Runs to the end; returns exit code, stdout and stderr."""
        return self.finish(self.start(*arguments, **variables))

    def finish(self, process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=_LIMIT_SECONDS)
        return process.returncode, out.decode("utf-8"), err.decode("utf-8")


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[CommandLine]:
    command_line = CommandLine(tmp_path)
    yield command_line
    for process in command_line.processes:
        process.kill()
        process.communicate()


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie, which only waits for its parent, does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def still_running(pids: list[int], seconds: float) -> list[int]:
    """The processes that run on after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while running := [pid for pid in pids if is_running(pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return running


@pytest.fixture(name="still_running")
def still_running_fixture() -> object:
    return still_running
