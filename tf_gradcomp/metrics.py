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
_COUNTERS = Path("/proc/net/dev")  # unlike /sys/class/net, of the process' network namespace
_SENT_BYTES_COLUMN = 8  # eight columns about receiving come first


class WireCounter:
    """Bytes sent through the interface that leads to the other workers.

    Everything sent on that interface counts, headers and other programs' traffic included: this
    is what the network carries. Workers on one host share an interface, so the count is
    divided by their number.

    Attributes:
      interface: name of the interface, such as ``"lo"`` or ``"eth0"``; ``None`` if it cannot be
        told (no TF_CONFIG, not Linux), and nothing is counted then.
      num_sharing: workers of the cluster on this interface.
    """

    def __init__(self) -> None:
        can_count = _COUNTERS.is_file()
        self.interface, self.num_sharing = _cluster_interface() if can_count else (None, 1)
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
        for line in _COUNTERS.read_text(encoding="ascii").splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == self.interface:
                return int(counters.split()[_SENT_BYTES_COLUMN])
        raise OSError(f"interface {self.interface} is gone")


def _cluster_interface() -> tuple[str | None, int]:
    """Returns the interface that leads to the other workers, and how many workers use it."""
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        addresses = [a for job in ("chief", "worker") for a in config["cluster"].get(job, [])]
        hosts = [_resolve(address) for address in addresses]
    except (KeyError, ValueError, TypeError, AttributeError, OSError):
        return None, 1
    interfaces = _interfaces()
    remote = [ip for ip in hosts if ip not in interfaces and not _is_loopback(ip)]
    if not remote:
        # All workers are on this machine, where even its outer address is reached by loopback.
        return (_LOOPBACK if _LOOPBACK in interfaces.values() else None), max(1, len(hosts))
    return interfaces.get(_source_address(remote[0])), max(1, len(hosts) - len(remote))


def _resolve(address: str) -> str:
    """Returns the IP address of the host of ``host:port``."""
    host = address.rpartition(":")[0].strip("[]")
    return str(socket.getaddrinfo(host, None)[0][4][0])


def _is_loopback(ip: str) -> bool:
    return ip.startswith("127.") or ip == "::1"


def _source_address(ip: str) -> str:
    """Returns this machine's address on the way to another one; sends nothing."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((ip, 9))
        return str(probe.getsockname()[0])


def _interfaces() -> dict[str, str]:
    """Returns the name of the interface of each of this machine's IPv4 addresses."""
    names = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            names[socket.inet_ntoa(reply[20:24])] = name
    return names
