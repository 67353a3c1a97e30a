# SPDX-License-Identifier: Apache-2.0
"""Says which workers do not answer, while TensorFlow waits for them and says nothing.

A worker that is waiting for others listens already, so whoever accepts no connection is missing.
TensorFlow holds Python's lock as long as it waits, so that no thread could say anything: this file
is run as a program, too, as a process of its own. It therefore imports the standard library alone.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

FIRST_SECONDS = 10.0  # a start takes less, as a rule
_LONGEST_SECONDS = 300.0  # between two messages, whose intervals double
_CONNECT_SECONDS = 3.0
_MAX_NAMED = 8


def unanswered(addresses: Mapping[str, str]) -> dict[str, str]:
    """Returns those of the ``host:port`` addresses, by name, that accept no connection.

    Each with the reason, such as ``"worker 1": "host1:2222 (Connection refused)"``.
    """
    if not addresses:
        return {}
    with concurrent.futures.ThreadPoolExecutor(min(64, len(addresses))) as pool:
        reasons = dict(zip(addresses, pool.map(_refusal, addresses.values()), strict=True))
    return {name: f"{addresses[name]} ({why})" for name, why in reasons.items() if why}


def listed(missing: Mapping[str, str]) -> str:
    """Says who is missing, and where: "worker 1 at host1:2222 (Connection refused), ..."."""
    named = [f"{name} at {where}" for name, where in missing.items()]
    rest = len(named) - _MAX_NAMED
    return ", ".join(named[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def is_port_in_use(address: str) -> bool:
    """Whether a process listens at the port of ``host:port`` on this machine."""
    try:
        with socket.create_server(("", int(address.rpartition(":")[2]))):
            return False
    except OSError as error:
        return error.errno == errno.EADDRINUSE


@contextlib.contextmanager
def missing_named(addresses: Mapping[str, str], after: float = FIRST_SECONDS) -> Iterator[None]:
    """While the context lasts, names on stderr the workers that do not answer.

    First after a while, then at growing intervals. Costs one idle process.

    Args:
      addresses: ``host:port`` of every other worker, by its name.
      after: seconds to the first message.
    """
    if not addresses or not sys.executable or getattr(sys, "frozen", False):
        yield
        return
    command = [sys.executable, "-S", "-P", __file__, json.dumps(addresses), str(after)]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, close_fds=True
        )
    except OSError:  # too many processes, say: no reason not to train
        yield
        return
    try:
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _refusal(address: str) -> str:
    """Why an address accepts no connection; empty if it does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _message(addresses: Mapping[str, str], seconds: float) -> str:
    missing = unanswered(addresses)
    if missing:
        return (
            f"after {seconds:.0f} s still waiting for {listed(missing)}. Start every worker, all "
            f"with the same addresses."
        )
    return (
        f"after {seconds:.0f} s still waiting, although something answers at the addresses of all "
        f"workers. Are all of it workers of this run, each with an index of its own?"
    )


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the worker's business
    addresses, pause = json.loads(sys.argv[1]), float(sys.argv[2])
    started = time.monotonic()
    # The pipe ends with the worker, however it ends.
    while not select.select([sys.stdin], [], [], pause)[0]:
        message = _message(addresses, time.monotonic() - started)
        print(f"tf_gradcomp: {message}", file=sys.stderr, flush=True)
        pause = min(2 * pause, _LONGEST_SECONDS)


if __name__ == "__main__":
    _main()
