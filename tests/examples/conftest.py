# SPDX-License-Identifier: Apache-2.0
"""Puts the examples on the import path, as running one of them does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
