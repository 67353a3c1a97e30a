# SPDX-License-Identifier: Apache-2.0
"""What an exchange costs: work on each worker, and messages in an alpha-beta model of the network.

Source of the model: Hockney, "The Communication Challenge for MPP: Intel Paragon and Meiko CS-2",
Parallel Computing 20 (1994): a message takes a latency, and its bytes over a bandwidth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tf_gradcomp.transports.base import Message

if TYPE_CHECKING:
    from tf_gradcomp.plan import Bucket
    from tf_gradcomp.policy import VariableInfo

BYTES_PER_WORD = 4


class Link(NamedTuple):
    """What one kind of collective costs.

    Attributes:
      latency: seconds that it takes with next to no bytes.
      bandwidth: bytes that a worker sends in a second.
    """

    latency: float
    bandwidth: float

    def __str__(self) -> str:
        return f"{1e3 * self.latency:.2f} ms + {self.bandwidth / 1e6:,.0f} MB/s"


@dataclasses.dataclass(frozen=True)
class Network:
    """The network between the workers.

    Attributes:
      gather: of all-gather and all-to-all.
      reduce: of all-reduce.
      measured: whether these are figures of the network in use.
    """

    gather: Link
    reduce: Link
    measured: bool

    def seconds(self, messages: Sequence[Message]) -> float:
        """Returns the time of collectives, one after the other."""
        total = 0.0
        for message in messages:
            link = self.reduce if message.collective == "all_reduce" else self.gather
            total += link.latency + message.words * BYTES_PER_WORD / link.bandwidth
        return total

    def __str__(self) -> str:
        how = "measured" if self.measured else "assumed"
        return f"all-gather {self.gather}, all-reduce {self.reduce} ({how})"


class Estimate(NamedTuple):
    """How long an exchange of a bucket would take, if nothing else went on.

    Attributes:
      how: the transport, or "dense".
      work: seconds of work on a worker: packing, encoding, decoding, and so on.
      network: seconds of its messages.
    """

    how: str
    work: float
    network: float

    @property
    def total(self) -> float:
        """Seconds of both."""
        return self.work + self.network

    def __str__(self) -> str:
        parts = f" (work {1e3 * self.work:.2f})" if self.work else ""
        return f"{self.how} {1e3 * self.total:.2f} ms{parts}"


class Costs(Protocol):
    """Where estimates get their figures from; the same figures on all workers.

    Attributes:
      network: the network.
    """

    @property
    def network(self) -> Network: ...

    def measure_again(self) -> None:
        """Measures the network again, which may have changed; all workers together."""
        ...

    def work(
        self, variables: Sequence[VariableInfo], bucket: Bucket, density: float | None = None
    ) -> float:
        """Returns the seconds of work that an exchange takes on a worker.

        Args:
          variables: those of the plan.
          bucket: a compressed one, of some of them.
          density: in place of the codec's own.
        """
        ...


class AssumedCosts:
    """Figures that hold anywhere: messages cost their bytes, and nothing else counts."""

    network = Network(Link(0.0, 125e6), Link(0.0, 125e6), measured=False)

    def measure_again(self) -> None:
        """Does nothing."""

    def work(
        self, variables: Sequence[VariableInfo], bucket: Bucket, density: float | None = None
    ) -> float:
        """Returns 0."""
        return 0.0
