# SPDX-License-Identifier: Apache-2.0
"""A network of limited rate on this machine: what `tf-gradcomp bench network` runs workers in.

Each worker has a network namespace, joined to a switch (a bridge in a namespace of its own) by a
veth pair whose two ends send at no more than the rate, as the two directions of a cable do. The
namespaces have no names and belong to processes that end when this one does, however it ends:
nothing needs to be cleaned up, nothing else on the machine is touched, and runs cannot collide.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from types import TracebackType

from tf_gradcomp.cli.refusal import Refusal

NAMESPACE_VARIABLE = "TF_GRADCOMP_NAMESPACE"
# A command behind this one runs in the namespace of the process with that number.
ENTER_NAMESPACE = (
    *("sh", "-c", f'exec nsenter --target "${NAMESPACE_VARIABLE}" --net -- "$@"'),
    "sh",
)

_INTERFACE = "eth0"
_PORT = 2222  # nobody else is there
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}

# tbf lets so much pass at once after a pause. It must outlast the time the shaper may come late,
# and no step should be able to hide much of its payload in it.
_BURST_SECONDS = 0.001
_MIN_BURST_BYTES = 16_384
_QUEUE_BYTES = 4 << 20  # as deep as a switch's: TCP slows down before it drops

_HELP = (
    "network namespaces need root: run the command as root, or behind `unshare --map-root-user` "
    "where the system allows that, or with --rate none, over loopback"
)


def burst_bytes(bits_per_second: float) -> int:
    """Bytes that may leave at once after a pause, at a rate."""
    return max(_MIN_BURST_BYTES, round(bits_per_second / 8 * _BURST_SECONDS))


class ShapedNetwork:
    """As many hosts as there are workers, each behind a cable of the same rate.

    A context manager: the network exists inside of it.

    Attributes:
      addresses: `host:port` of each worker.
      environments: the variable that `ENTER_NAMESPACE` wants, for each worker.
    """

    def __init__(self, num_workers: int, bits_per_second: float) -> None:
        self.addresses = [f"10.0.0.{index + 1}:{_PORT}" for index in range(num_workers)]
        self.environments: list[dict[str, str]] = []
        self._rate = bits_per_second
        self._namespaces = contextlib.ExitStack()

    def __enter__(self) -> ShapedNetwork:
        """Builds the network.

        Raises:
          Refusal: the system lacks a tool, or does not let this process do it.
        """
        for tool, package in _TOOLS.items():
            if shutil.which(tool) is None:
                raise Refusal(f"{tool} is missing: install {package}, or give --rate none")
        with contextlib.ExitStack() as namespaces:
            switch = namespaces.enter_context(_Namespace())
            switch.ip("link add bridge type bridge", "link set bridge up")
            for index, address in enumerate(self.addresses):
                worker = namespaces.enter_context(_Namespace())
                port = f"port{index}"
                switch.ip(
                    f"link add {port} type veth peer name {_INTERFACE} netns {worker.pid}",
                    f"link set {port} master bridge up",
                )
                worker.ip(
                    f"address add {address.partition(':')[0]}/24 dev {_INTERFACE}",
                    f"link set {_INTERFACE} up",
                    "link set lo up",
                )
                worker.limit_rate(_INTERFACE, self._rate)
                switch.limit_rate(port, self._rate)
                self.environments.append({NAMESPACE_VARIABLE: str(worker.pid)})
            self._namespaces = namespaces.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._namespaces.close()


class _Namespace:
    """A network namespace, and the process that keeps it.

    That process is `cat` on a pipe which this process holds open.

    Attributes:
      pid: number of the process.
    """

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is not for it: workers may still need the network
        )
        self.pid = self._holder.pid

    def __enter__(self) -> _Namespace:
        assert self._holder.stdin and self._holder.stdout and self._holder.stderr
        with contextlib.suppress(BrokenPipeError):
            self._holder.stdin.write(b"\n")
        if not self._holder.stdout.read(1):  # an echo comes once `cat` runs, in the namespace
            reason = self._holder.stderr.read().decode(errors="replace").strip()
            self._close()
            raise Refusal(f"{reason}; {_HELP}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def ip(self, *commands: str) -> None:
        """Runs commands of `ip` in the namespace."""
        self._run(["ip", "-batch", "-"], "\n".join(commands))

    def limit_rate(self, interface: str, bits_per_second: float) -> None:
        """Limits what an interface sends."""
        shaper = f"tbf rate {bits_per_second:.0f}bit burst {burst_bytes(bits_per_second)}b"
        options = f"{shaper} limit {_QUEUE_BYTES}b".split()
        self._run(["tc", "qdisc", "add", "dev", interface, "root", *options])

    def _run(self, command: list[str], text: str = "") -> None:
        process = subprocess.run(
            ["nsenter", "--target", str(self.pid), "--net", "--", *command],
            input=text,
            capture_output=True,
            text=True,
        )
        if process.returncode:
            reason = " ".join(process.stderr.split())
            raise Refusal(f"`{' '.join(command)}` failed ({reason}); {_HELP}")

    def _close(self) -> None:
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            assert pipe is not None
            pipe.close()
        self._holder.wait()
