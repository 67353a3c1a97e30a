# SPDX-License-Identifier: Apache-2.0
"""One-line specs, ``name`` or ``name:key=value,key=value``, and the values in them.

A value may itself be such a spec, with its fields in parentheses: ``name(key=value,key=value)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def parse_fields(text: str) -> dict[str, Any]:
    """Reads ``key=value,key=value``.

    Values are numbers, ``true``, ``false``, ``none`` or words.

    Raises:
      ValueError: the text cannot be read.
    """
    values: dict[str, Any] = {}
    # Not the commas in parentheses.
    for item in filter(None, (part.strip() for part in re.split(r",(?![^(]*\))", text))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"expected key=value, got {item!r}")
        if key in values:
            raise ValueError(f"{key!r} is given twice")
        values[key] = _parse_value(value)
    return values


def format_fields(fields: Iterable[tuple[str, Any]]) -> str:
    """Returns the text that ``parse_fields`` reads as these fields."""
    return ",".join(f"{key}={_format_value(value)}" for key, value in fields)


def _parse_value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _format_value(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
