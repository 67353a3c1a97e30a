# SPDX-License-Identifier: Apache-2.0
"""What benchmarks print and write: a table for people, and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_gradcomp.cli.refusal import Refusal


def check_json_path(path: Path | None) -> None:
    """Refuses a file that could not be written: before a minute of measuring, and not after."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise Refusal(f"--json {path}: not a file in an existing folder")


def write_json(path: Path, results: Sequence[Any]) -> None:
    """Writes dataclass instances as a list of objects.

    Raises:
      OSError: the file cannot be written.
    """
    text = json.dumps([dataclasses.asdict(result) for result in results], indent=2)
    path.write_text(text + "\n", encoding="utf-8")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligns the cells of rows: the first column to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *figures in rows:
        cells = [f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:<{widths[0]}}", *cells]).rstrip())
    return "\n".join(lines)
