# SPDX-License-Identifier: Apache-2.0
"""Controllers by name."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tf_gradcomp import specs
from tf_gradcomp.controllers.base import Controller
from tf_gradcomp.controllers.lags import Lags
from tf_gradcomp.controllers.layer_window import LayerWindow

_CONTROLLERS: dict[str, type[Controller]] = {"lags": Lags, "layer_window": LayerWindow}


def from_spec(spec: str) -> Controller:
    """Reads ``name`` or ``name(field=value,field=value)``.

    Raises:
      ValueError: no controller has that name, or a field has a bad value.
    """
    match = re.fullmatch(r"(\w+)(?:\((.*)\))?", spec.strip())
    if match is None or match[1] not in _CONTROLLERS:
        known = ", ".join(_CONTROLLERS)
        raise ValueError(
            f"controller must be none or one of {known}, with or without fields in parentheses, "
            f"got {spec!r}"
        )
    kind: Any = _CONTROLLERS[match[1]]
    fields = specs.parse_fields(match[2] or "")
    known_fields = [field.name for field in dataclasses.fields(kind) if field.init]
    for key in fields:
        if key not in known_fields:
            raise ValueError(
                f"controller {match[1]!r} has no field {key!r}; its fields: "
                f"{', '.join(known_fields)}"
            )
    controller: Controller = kind(**fields)
    return controller


def to_spec(controller: Controller) -> str:
    """Returns the shortest text that ``from_spec`` reads as an equal controller.

    One of another class is only described: no spec can say it.
    """
    name = next((n for n, kind in _CONTROLLERS.items() if type(controller) is kind), None)
    if name is None:
        return repr(controller)
    fields = dataclasses.fields(controller)  # type: ignore[arg-type]
    values = [
        (field.name, getattr(controller, field.name))
        for field in fields
        if field.init and getattr(controller, field.name) != field.default
    ]
    return f"{name}({specs.format_fields(values)})" if values else name
