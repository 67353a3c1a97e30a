# SPDX-License-Identifier: Apache-2.0
"""Workers compare what must be the same on all of them before anything depends on it."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import NamedTuple

from tf_gradcomp.transports.base import Collectives


class PlanMismatchError(RuntimeError):
    """Workers would exchange payloads that they do not read alike."""


class Fact(NamedTuple):
    """Something that must be the same on all workers.

    Attributes:
      label: what it is about, for messages; may differ between workers.
      value: what is compared.
    """

    label: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}: {self.value}"


def require_agreement(collectives: Collectives, subject: str, facts: Sequence[Fact]) -> None:
    """Raises the same error on every worker unless all workers pass facts of the same values.

    Only a hash travels, unless there is a difference to report.

    Args:
      collectives: gathers texts from all workers.
      subject: what is compared, for the message.
      facts: fact ``i`` is about the same thing on every worker.

    Raises:
      PlanMismatchError: names the first fact that differs, and every worker's version of it.
    """
    text = json.dumps([fact.value for fact in facts])
    digests = collectives.gather_text(hashlib.sha256(text.encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    gathered = collectives.gather_text(json.dumps(facts))
    versions = [[Fact(*fact) for fact in json.loads(version)] for version in gathered]
    raise PlanMismatchError(_report(subject, versions, collectives.worker_index))


def _report(subject: str, versions: list[list[Fact]], worker_index: int) -> str:
    rows = itertools.zip_longest(*versions)
    row = next(row for row in rows if len({fact and fact.value for fact in row}) > 1)
    who: dict[str, list[int]] = {}
    for worker, fact in enumerate(row):
        who.setdefault(str(fact) if fact else "nothing", []).append(worker)
    differences = "; ".join(
        f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}: {fact}"
        for fact, workers in who.items()
    )
    return (
        f"The workers do not agree on {subject}. First difference: {differences}. "
        f"This is worker {worker_index}. Start all workers with the same program, the same "
        f"arguments and the same versions."
    )
