# SPDX-License-Identifier: Apache-2.0
"""Runs worker processes side by side, merges their output line by line, and ends them together.

One thread and one loop: it waits for output, for signals and for the end of a child, all through
one selector. Each worker leads a process group of its own, so that a signal reaches its children
too, and so that Ctrl-C in the terminal reaches the launcher alone.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import IO

from tf_gradcomp.cli.guardian import Guardian, receive_orphans
from tf_gradcomp.cli.line_assembler import LineAssembler

TAIL_LINES = 20  # lines of a failed worker that are shown again
TAIL_WIDTH = 4096  # characters kept of each of them

# A failed worker takes the others down through broken collectives. They get this long to fail by
# themselves, with their own messages, before they are ended.
SETTLE_SECONDS = 0.5
# How long output is awaited from processes that left the worker's group, or outlive SIGKILL.
DRAIN_SECONDS = 1.0
# Signals closer together are one wish (`timeout` sends two); a later one means "at once".
REPEAT_SECONDS = 1.0

_TICK_SECONDS = 0.05
_READ_BYTES = 1 << 16


def say(message: str) -> None:
    """Prints a line of the launcher's own on stderr."""
    with contextlib.suppress(OSError):  # nobody reads it any more: not worth a training job
        print(f"tf-gradcomp launch: {message}", file=sys.stderr, flush=True)


def exit_status(returncode: int) -> int:
    """The shell's exit code for `subprocess`' return code: 128 + signal for a killed process."""
    return returncode if returncode >= 0 else 128 - returncode


def describe_exit(returncode: int) -> str:
    """Says how a process failed: "failed with exit code 3" or "was killed by SIGSEGV"."""
    if returncode >= 0:
        return f"failed with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:  # real-time signals have no name
        name = f"signal {-returncode}"
    hint = " (perhaps by the system, out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


class Worker:
    """One worker: its process, its group, and its output."""

    def __init__(
        self, index: int, prefix: str, process: subprocess.Popen[bytes], output: IO[bytes]
    ) -> None:
        self.index = index
        self.prefix = prefix
        self.process = process
        self.output = output
        self.assembler = LineAssembler()
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self.gone = False  # the process and all others in its group have ended

    @property
    def group(self) -> int:
        """Number of the process group."""
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """As `subprocess.Popen.returncode`; None while the process is not known to have ended."""
        return self.process.returncode


class WorkerGroup:
    """Runs one command in several environments and ends all when one fails.

    Args:
      command: program and arguments, the same for every worker.
      environments: one environment per worker.
      grace: seconds between SIGTERM and SIGKILL.
      out: file descriptor the workers' output goes to, each line whole and behind its worker's
        prefix.
      encoding: of `out`; characters it lacks are replaced.
      say: takes the messages about workers that fail or are ended, one line each.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        grace: float,
        out: int,
        encoding: str = "utf-8",
        say: Callable[[str], None] = say,
    ) -> None:
        self._say = say
        self._command = list(command)
        self._environments = environments
        self._grace = grace
        self._out = out
        self._encoding = encoding
        self._selector = selectors.DefaultSelector()
        self._workers: list[Worker] = []
        self._failures: list[Worker] = []  # in order of their ends; none that this class caused
        self._signals: list[int] = []
        self._first_signal_at = 0.0
        # Three moments of the ending, None while not yet fixed: to send SIGTERM, to send SIGKILL,
        # to stop waiting.
        self._term_at: float | None = None
        self._kill_at: float | None = None
        self._leave_at: float | None = None
        self._ending = False  # SIGTERM was sent

    def run(self) -> int:
        """Runs the workers to their end. Call it once, in a main thread without other threads.

        Returns:
          0 if every worker returned 0; 128 + signal if a signal to this process ended them; else
          the exit code of the worker that failed first (128 + signal if one killed it).

        Raises:
          OSError: a worker could not be started, or `out` not be written. No worker is left then.
        """
        receive_orphans()
        self._guardian = Guardian()
        try:
            with self._signals_caught():
                try:
                    self._start()
                    while not self._finished():
                        self._turn()
                finally:
                    self._abandon()
        finally:
            self._guardian.close()
        return self._verdict()

    @property
    def was_signalled(self) -> bool:
        """Whether a signal to this process ended the workers."""
        return bool(self._signals)

    @property
    def first_failure(self) -> str | None:
        """How the worker that failed first did: "worker 1 was killed by SIGSEGV"."""
        if not self._failures:
            return None
        first = self._failures[0]
        assert first.returncode is not None
        return f"worker {first.index} {describe_exit(first.returncode)}"

    # Starting.

    def _start(self) -> None:
        count = len(self._environments)
        width = len(str(count - 1))
        for index, environment in enumerate(self._environments):
            if self._signals:
                return
            # One pipe for stdout and stderr keeps their order. The program is Python, which reads
            # nothing from a terminal that it shares with others.
            process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                preexec_fn=self._guardian.adopt_me,  # safe: this process has one thread
            )
            assert process.stdout is not None
            worker = Worker(index, f"[worker {index:>{width}}] ", process, process.stdout)
            self._workers.append(worker)
            self._selector.register(worker.output, selectors.EVENT_READ, worker)

    @contextlib.contextmanager
    def _signals_caught(self) -> Iterator[None]:
        """Lets signals, SIGCHLD among them, wake the selector."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        self._selector.register(wake_read, selectors.EVENT_READ)
        previous_wakeup = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        previous = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None)}
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) != signal.SIG_IGN:  # `nohup` keeps its meaning
                previous[signum] = signal.signal(signum, self._on_signal)
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)
            signal.set_wakeup_fd(previous_wakeup)
            self._selector.close()
            os.close(wake_read)
            os.close(wake_write)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._signals:
            self._first_signal_at = now
        self._signals.append(signum)
        if now > self._first_signal_at + REPEAT_SECONDS:
            # Here and not in the loop: that may be stuck in a write which nobody reads.
            self._send(signal.SIGKILL)

    # Running.

    def _turn(self) -> None:
        """Waits for the next thing to happen and deals with it."""
        events = self._selector.select(_TICK_SECONDS if self._hurried() else None)
        self._reap()  # before the reading, which takes time: the order of ends says who was first
        for key, _ in events:
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, _READ_BYTES)
            else:
                self._read(key.data)
        self._advance(time.monotonic())

    def _hurried(self) -> bool:
        """Whether time matters now, or the ends of processes that are no children of this one."""
        return bool(self._signals or self._failures) or self._all_returned()

    def _all_returned(self) -> bool:
        return all(worker.returncode is not None for worker in self._workers)

    def _all_gone(self) -> bool:
        return all(worker.gone for worker in self._workers)

    def _finished(self) -> bool:
        if self._all_gone() and all(worker.output.closed for worker in self._workers):
            return True
        return self._leave_at is not None and time.monotonic() >= self._leave_at

    def _reap(self) -> None:
        for worker in self._workers:
            if worker.returncode is None:
                returncode = worker.process.poll()
                if returncode and not self._signals and not self._ending:
                    self._failures.append(worker)
            if worker.returncode is not None and not worker.gone and not _exists(worker.group):
                worker.gone = True
                self._guardian.release(worker.group)

    def _read(self, worker: Worker) -> None:
        data = os.read(worker.output.fileno(), _READ_BYTES)
        if not data:
            self._selector.unregister(worker.output)
            worker.output.close()
        self._emit(worker, worker.assembler.feed(data, final=not data))

    def _emit(self, worker: Worker, lines: list[str]) -> None:
        if not lines:
            return
        worker.tail.extend(line[:TAIL_WIDTH] for line in lines[-TAIL_LINES:])
        text = "".join(f"{worker.prefix}{line}\n" for line in lines)
        try:
            _write_all(self._out, text.encode(self._encoding, "replace"))
        except BrokenPipeError:
            # As for any program whose reader leaves (`| head`): it ends, as if by SIGPIPE.
            self._on_signal(signal.SIGPIPE, None)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._out)
            os.close(null)

    # Ending.

    def _advance(self, now: float) -> None:
        """Takes the steps of the ending that are due: settle, SIGTERM, grace, SIGKILL, leave."""
        if self._signals and not self._ending:
            self._term_at = now
        elif self._term_at is None and (self._failures or self._all_returned()):
            self._term_at = now + SETTLE_SECONDS
        if not self._ending and self._term_at is not None and now >= self._term_at:
            self._ending = True
            self._kill_at = now + self._grace
            self._announce_ending()
            self._send(signal.SIGTERM)
        if self._leave_at is None and self._all_gone():
            self._leave_at = now + DRAIN_SECONDS
        if self._leave_at is None and self._kill_at is not None and now >= self._kill_at:
            self._leave_at = now + DRAIN_SECONDS
            for worker in self._running():
                self._say(f"worker {worker.index} did not end within {self._grace:g} s; killing it")
            self._send(signal.SIGKILL)

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.returncode is None]

    def _announce_ending(self) -> None:
        running = self._running()
        if not running:
            return
        cause = signal.Signals(self._signals[0]).name if self._signals else self.first_failure
        self._say(f"{cause}; ending {len(running)} worker{'s' if len(running) > 1 else ''}")

    def _send(self, signum: int) -> None:
        for worker in self._workers:
            if not worker.gone:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.group, signum)

    def _abandon(self) -> None:
        """Leaves nothing behind, however the loop ended."""
        self._send(signal.SIGKILL)
        for worker in self._workers:
            if not worker.output.closed:
                with contextlib.suppress(OSError):  # may be what ended the loop
                    self._emit(worker, worker.assembler.feed(_held(worker.output), final=True))
                worker.output.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(timeout=DRAIN_SECONDS)

    def _verdict(self) -> int:
        """Reports the first failure, if any, and returns the exit code."""
        if self._failures:
            first, *others = self._failures
            assert first.returncode is not None
            for other in others:
                assert other.returncode is not None
                self._say(f"worker {other.index} {describe_exit(other.returncode)}, after that")
            if first.tail:
                self._say(f"{self.first_failure}; its last lines:")
                with contextlib.suppress(OSError):
                    for line in first.tail:
                        print(f"{first.prefix}{line}", file=sys.stderr)
                    sys.stderr.flush()
            else:
                self._say(f"{self.first_failure}; it printed nothing")
            return exit_status(first.returncode)
        if self._signals:
            return 128 + self._signals[0]
        return 0


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes all, although a signal (SIGCHLD comes often) may cut a write to a full pipe short."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody who shares the terminal made it so
            select.select([], [descriptor], [])


def _held(pipe: IO[bytes]) -> bytes:
    """What is in the pipe now; bounded, since somebody may go on writing."""
    os.set_blocking(pipe.fileno(), False)
    chunks: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(chunks) < 16:
            chunk = os.read(pipe.fileno(), _READ_BYTES)
            if not chunk:
                break
            chunks.append(chunk)
    return b"".join(chunks)


def _exists(group: int) -> bool:
    # The group's orphans are children of this process (receive_orphans), so it has to reap them.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
