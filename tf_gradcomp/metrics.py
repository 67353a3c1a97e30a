# SPDX-License-Identifier: Apache-2.0
"""What a run sent, counted by the operating system at the network interface."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915  # ioctl(2) request: IPv4 address of an interface
_LOOPBACK = "lo"
_SENT_BYTES_COLUMN = 8  # of /proc/net/dev: eight columns about receiving come first


class WireCounter:
    """Bytes sent through the interface that this worker's cluster address belongs to.

    Everything sent on that interface counts, headers and other programs' traffic included: this
    is what the network carries. Workers on one host share an interface, so the count is
    divided by their number.

    Attributes:
      interface: name of the interface, such as ``"lo"`` or ``"eth0"``; ``None`` if it cannot be
        told (no TF_CONFIG, not Linux), and nothing is counted then.
      num_sharing: workers of the cluster on this interface.
    """

    def __init__(self) -> None:
        self.interface, self.num_sharing = _cluster_interface()
        self._start = self._read()

    def restart(self) -> None:
        """Starts counting from zero."""
        self._start = self._read()

    def bytes_sent(self) -> float | None:
        """Returns the bytes sent per worker since the start, ``None`` if not counted."""
        if self.interface is None:
            return None
        return (self._read() - self._start) / self.num_sharing

    def _read(self) -> int:
        if self.interface is None:
            return 0
        # Unlike /sys/class/net, this is always about the process' own network namespace.
        for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == self.interface:
                return int(counters.split()[_SENT_BYTES_COLUMN])
        raise OSError(f"interface {self.interface} is gone")


def _cluster_interface() -> tuple[str | None, int]:
    """Returns the interface of this worker's address, and how many workers use it."""
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        task = config["task"]
        own = config["cluster"][task["type"]][int(task["index"])]
        addresses = [a for job in ("chief", "worker") for a in config["cluster"].get(job, [])]
    except (KeyError, IndexError, ValueError, TypeError):
        return None, 1
    interface = _interface_of(own)
    if interface is None:
        return None, 1
    return interface, sum(_interface_of(address) == interface for address in addresses)


def _interface_of(address: str) -> str | None:
    """Returns the local interface that has the host of ``host:port``, ``None`` if none has."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        ip = str(socket.getaddrinfo(host, None)[0][4][0])
    except OSError:
        return None
    if ip.startswith("127.") or ip == "::1":
        return _LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(reply[20:24]) == ip:
                return name
    return None
