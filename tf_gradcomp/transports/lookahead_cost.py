# SPDX-License-Identifier: Apache-2.0
"""What OmniReduce's look-ahead protocol costs, from densities alone.

The formulas are those of large tensors, derived from the protocol that `lookahead_model` follows
block by block. They leave out offsets, headers, and the first block of each lane, which is sent
even if it is zero.

Source: Fei et al., "Efficient Sparse Collective Communication and its Application to Accelerate
Distributed Deep Learning" (OmniReduce), SIGCOMM 2021 (DOI 10.1145/3452296.3472904), for the
protocol.
"""

from __future__ import annotations

import dataclasses
import math

from tf_gradcomp.transports.lookahead_model import check_integer


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a worker sends and receives, in bytes of elements, and how much faster than a ring.

    Attributes:
      up_bytes: from a worker to all aggregators.
      down_bytes: from all aggregators to a worker.
      speed_up: time of ring all-reduce over that of the protocol, where links are full-duplex and
        as fast everywhere and nothing else takes time. It is 0 for one worker, whose ring is free.
    """

    up_bytes: float
    down_bytes: float
    speed_up: float


def estimate(
    dense_bytes: float,
    num_workers: int,
    density: float,
    union_density: float | None = None,
    aggregators: int | None = None,
) -> Estimate:
    """Predicts the traffic of large tensors from densities alone.

    Of S dense bytes, S D go up and S D_u down. The link of an aggregator carries
    ``num_workers / aggregators`` times as much each way, that of a worker in a ring
    ``2 (W - 1) / W`` S.

    Args:
      dense_bytes: bytes of the tensor.
      num_workers: number W of workers.
      density: share D of each worker's blocks that are not zero, in (0, 1].
      union_density: share D_u of the blocks that are not zero on any worker, in [D, 1]. None means
        that of workers independent of each other.
      aggregators: number of aggregators, with links of their own. None means one for each worker.

    Raises:
      ValueError: a number is out of range.
    """
    check_integer("num_workers", num_workers, low=1)
    if not (math.isfinite(dense_bytes) and dense_bytes >= 0):
        raise ValueError(f"dense_bytes must be finite and at least 0, got {dense_bytes!r}")
    _check_density("density", density)
    if union_density is None:
        union_density = independent_union_density(density, num_workers)
    elif not density <= union_density <= 1:
        raise ValueError(f"union_density must be in [{density}, 1], got {union_density!r}")
    if aggregators is None:
        aggregators = num_workers
    check_integer("aggregators", aggregators, low=1)
    busiest = union_density * max(1.0, num_workers / aggregators)
    return Estimate(
        up_bytes=dense_bytes * density,
        down_bytes=dense_bytes * union_density,
        speed_up=2 * (num_workers - 1) / num_workers / busiest,
    )


def independent_union_density(density: float, num_workers: int) -> float:
    """Returns the share of blocks that are not zero on any of the workers, if they are independent.

    Raises:
      ValueError: ``density`` is not in (0, 1], or ``num_workers`` not an integer from 1.
    """
    _check_density("density", density)
    check_integer("num_workers", num_workers, low=1)
    return 1 - (1 - density) ** num_workers


def independent_block_density(element_density: float, block_size: int) -> float:
    """Returns the share of blocks that are not zero, if elements are so independently.

    Raises:
      ValueError: ``element_density`` is not in (0, 1], or ``block_size`` not an integer from 1.
    """
    _check_density("element_density", element_density)
    check_integer("block_size", block_size, low=1)
    return 1 - (1 - element_density) ** block_size


def _check_density(field: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{field} must be in (0, 1], got {value!r}")
