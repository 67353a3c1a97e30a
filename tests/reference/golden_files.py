# SPDX-License-Identifier: Apache-2.0
"""Reads and writes golden vectors: JSON, every 32-bit word as eight hex digits, eight to a line."""

import json
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "golden"


def to_hex(array: np.ndarray) -> list[str]:
    """32-bit words of any type -> lines of hex."""
    words = [f"{word:08x}" for word in np.ascontiguousarray(array).reshape(-1).view("<u4")]
    return [" ".join(words[i : i + 8]) for i in range(0, len(words), 8)]


def from_hex(lines: list[str], dtype: type = np.uint32) -> np.ndarray:
    """Lines of hex -> flat array of a 32-bit type."""
    return np.array([int(word, 16) for word in " ".join(lines).split()], "<u4").view(dtype)


def read(part: str, name: str) -> dict[str, Any]:
    return json.loads((FOLDER / part / f"{name}.json").read_text())


def write(part: str, name: str, **fields: Any) -> None:
    (FOLDER / part).mkdir(exist_ok=True)
    (FOLDER / part / f"{name}.json").write_text(json.dumps(fields, indent=1) + "\n")


def sparse_to_fields(items: np.ndarray) -> dict[str, Any]:
    """float32 [n] or [n, c] -> fields that list only the items other than +0."""
    patterns = items.view(np.uint32).reshape(items.shape[0], -1)
    present = np.flatnonzero(patterns.any(axis=1))
    return {
        "size": items.shape[0],
        "components": patterns.shape[1],
        "indices": " ".join(map(str, present)),
        "items": to_hex(patterns[present]),
    }


def sparse_from_fields(fields: dict[str, Any]) -> np.ndarray:
    items = np.zeros((fields["size"], fields["components"]), np.float32)
    indices = [int(i) for i in fields["indices"].split()]
    items[indices] = from_hex(fields["items"], np.float32).reshape(-1, fields["components"])
    return items if fields["components"] > 1 else items[:, 0]
