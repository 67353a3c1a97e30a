# SPDX-License-Identifier: Apache-2.0
"""Workers compare what must be the same on all of them before anything depends on it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol


class PlanMismatchError(RuntimeError):
    """Workers would exchange payloads that they do not read alike."""


class _Gatherer(Protocol):
    worker_index: int

    def gather_text(self, text: str) -> list[str]: ...


def require_agreement(collectives: _Gatherer, subject: str, lines: Sequence[str]) -> None:
    """Raises the same error on every worker unless all workers pass the same lines.

    Only a hash travels, unless there is a difference to report.

    Args:
      collectives: gathers texts from all workers.
      subject: what is compared, for the message.
      lines: one fact per line; line ``i`` is about the same thing on every worker.

    Raises:
      PlanMismatchError: names the first line that differs, and every worker's version of it.
    """
    text = "\n".join(lines)
    digests = collectives.gather_text(hashlib.sha256(text.encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    versions = [version.split("\n") for version in collectives.gather_text(text)]
    raise PlanMismatchError(_report(subject, versions, collectives.worker_index))


def _report(subject: str, versions: list[list[str]], worker_index: int) -> str:
    longest = max(map(len, versions))
    for number in range(longest):
        row = [lines[number] if number < len(lines) else "nothing" for lines in versions]
        if len(set(row)) > 1:
            break
    who: dict[str, list[int]] = {}
    for worker, line in enumerate(row):
        who.setdefault(line, []).append(worker)
    facts = "; ".join(
        f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}: {line}"
        for line, workers in who.items()
    )
    return (
        f"The workers do not agree on {subject}. First difference: {facts}. "
        f"This is worker {worker_index}. Start all workers with the same program, the same "
        f"arguments and the same versions."
    )
