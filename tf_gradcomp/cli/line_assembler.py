# SPDX-License-Identifier: Apache-2.0
"""Makes whole lines of a process' output."""

from __future__ import annotations

import codecs
import re

MAX_LINE = 1 << 20  # characters; a longer line is cut in pieces, to bound memory

_REDRAW = re.compile(r"[\r\b]+")


class LineAssembler:
    """Turns bytes, as they come, into the lines they would leave on a terminal.

    A progress bar that redraws itself with carriage returns or backspaces leaves its last state.
    Bytes that are no UTF-8 become U+FFFD. Only a line feed ends a line.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """Returns the lines completed by `data`; with `final`, also what is left of a last one."""
        text = self._partial + self._decoder.decode(data, final)
        *lines, partial = text.split("\n")
        if _REDRAW.search(partial):  # keep what a line feed would show, or hours of redraws pile up
            ends_in_redraw = partial[-1] in "\r\b"
            partial = _last_drawn(partial) + ("\r" if ends_in_redraw else "")
        if partial and (final or len(partial) >= MAX_LINE):
            lines.append(partial)
            partial = ""
        self._partial = partial
        return [_last_drawn(line) for line in lines]


def _last_drawn(line: str) -> str:
    if "\r" not in line and "\b" not in line:
        return line
    return next((part for part in reversed(_REDRAW.split(line)) if part), "")
