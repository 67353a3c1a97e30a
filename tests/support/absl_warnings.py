# SPDX-License-Identifier: Apache-2.0
"""What is logged as a warning."""

import logging
from collections.abc import Callable
from typing import Any

from absl import logging as absl_logging


def warnings_of(caplog: Any, action: Callable[[], object]) -> str:
    """Runs an action and returns what it has logged, with pytest's ``caplog``."""
    absl_logging.get_absl_logger().addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, logger="absl"):
            action()
    finally:
        absl_logging.get_absl_logger().removeHandler(caplog.handler)
    return caplog.text
