# SPDX-License-Identifier: Apache-2.0
"""Kills the workers when the launcher dies without ending them, as from SIGKILL.

Two nets, since each has a hole. The guardian is a process of its own that reads a pipe only the
launcher keeps open: end of file means the launcher is gone, and it kills each worker's whole
process group, on any Unix. But it shows the launcher's command line, so `pkill -9 -f` by name hits
both. On Linux the kernel kills each worker when its parent dies (PR_SET_PDEATHSIG), which nothing
can prevent, but which does not reach the worker's own children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def receive_orphans() -> None:
    """Makes this process the parent of its descendants' orphans, where the system can (Linux).

    Else the system's first process is, and a process group seems to live on until that one reaps
    its dead: late, or never in many a container.
    """
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Guardian:
    """The guardian process, seen from the launcher.

    Make it before the workers, from the main thread of a process without other threads: it forks,
    and PR_SET_PDEATHSIG fires when the *thread* that started the worker ends.
    """

    def __init__(self) -> None:
        self._launcher_pid = os.getpid()
        read_end, self._write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write_end)
                _guard(read_end)
            finally:
                os._exit(0)
        os.close(read_end)

    def adopt_me(self) -> None:
        """To be called in the worker, as leader of its process group, before it runs its program.

        The worker names itself, and holds the pipe open until then: however early the launcher
        dies, the guardian reads the name before it sees the end of file.
        """
        os.write(self._write_end, b"+%d\n" % os.getpid())
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != self._launcher_pid:  # it died before the request was in place
                os._exit(1)

    def release(self, group: int) -> None:
        """Forgets a process group that is empty, whose number may come to mean another one."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_end, b"-%d\n" % group)

    def close(self) -> None:
        """Ends the guardian without harm to any worker."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._write_end)


def _guard(read_end: int) -> None:
    os.setsid()  # Ctrl-C in the terminal is the launcher's business
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # so that a reader of the launcher's output sees its end
        os.dup2(null, descriptor)

    groups: set[int] = set()
    with open(read_end, encoding="ascii") as pipe:
        for line in pipe:
            if line.startswith("+"):
                groups.add(int(line))
            else:
                groups.discard(-int(line))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
