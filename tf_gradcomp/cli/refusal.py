# SPDX-License-Identifier: Apache-2.0
"""How a subcommand says that it cannot be run as given."""

from __future__ import annotations

REFUSED = 2  # exit code, as argparse's


class Refusal(Exception):
    """The command cannot be run as given; the message says why, in one line."""
