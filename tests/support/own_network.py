# SPDX-License-Identifier: Apache-2.0
"""Programs in a network of their own, so that nothing else is counted there."""

from __future__ import annotations

import functools
import subprocess

# A network and a /sys of the process' own; "$@" is the command that follows.
_OWN_NETWORK = (
    *("unshare", "--map-root-user", "--net", "--mount", "sh", "-c"),
    'mount -t sysfs none /sys && ip link set lo up && exec "$@"',
    "sh",
)


@functools.cache
def prefix() -> tuple[str, ...]:
    """The command that gives another one its own network; nothing where that is not allowed."""
    try:
        usable = not subprocess.run([*_OWN_NETWORK, "true"], capture_output=True).returncode
    except FileNotFoundError:
        usable = False
    return _OWN_NETWORK if usable else ()
