# SPDX-License-Identifier: Apache-2.0
"""Versions. Workers compare both before they exchange anything."""

__version__ = "0.1.0"

# Of custom_ops/core/FORMAT.md: raised whenever a payload is read differently.
WIRE_FORMAT_VERSION = 2
