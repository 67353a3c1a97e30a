# SPDX-License-Identifier: Apache-2.0
"""What OmniReduce's look-ahead protocol would send: messages, bytes and rounds, without a network.

A tensor is cut into blocks, of which only those that are not zero travel. Block ``b`` belongs to
lane ``b mod lanes``, and a lane works on one block at a time. Whoever sends a block says which one
of the lane it has next, so that the aggregator, which knows the smallest of these, skips what is
zero everywhere and knows for whom to wait. Neighbouring lanes share a slot, whose blocks travel in
one message; slot ``s`` belongs to aggregator ``s mod aggregators``.

Source: Fei et al., "Efficient Sparse Collective Communication and its Application to Accelerate
Distributed Deep Learning" (OmniReduce), SIGCOMM 2021 (DOI 10.1145/3452296.3472904), with slots and
messages as in the RDMA implementation of github.com/sands-lab/omnireduce. There, each thread treats
a part of the tensor in this way, and a first message is padded to all its lanes even if the tensor
ends before; here all lanes share the tensor, and a lane without blocks is silent.
"""

from __future__ import annotations

import dataclasses

import numpy as np

NEXT_BYTES = 4  # of the offset that goes with each block


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How the blocks travel.

    Attributes:
      block_size: elements of a block.
      lanes: number of blocks that are on their way at once; a multiple of ``blocks_per_message``.
      blocks_per_message: blocks fused in one message, each of a lane of its own.
      aggregators: number of aggregators, at most one for each slot of ``blocks_per_message`` lanes.
      element_bytes: bytes of an element.
      header_bytes: bytes of a message besides blocks and offsets. The default is the immediate of
        an RDMA write (type, number of blocks, slot); add what the network adds.

    Raises:
      ValueError: a number is not an integer, out of range, or does not fit to another.
    """

    block_size: int = 256
    lanes: int = 8
    blocks_per_message: int = 1
    aggregators: int = 1
    element_bytes: int = 4
    header_bytes: int = 4

    def __post_init__(self) -> None:
        for field, value in dataclasses.asdict(self).items():
            check_integer(field, value, low=0 if field == "header_bytes" else 1)
        slots, rest = divmod(self.lanes, self.blocks_per_message)
        if rest or slots < self.aggregators:
            raise ValueError(
                f"lanes must be a multiple of blocks_per_message = {self.blocks_per_message}, "
                f"with so many for each of aggregators = {self.aggregators}, got {self.lanes}"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class Traffic:
    """What one direction carries between W workers and A aggregators.

    Summed over axis 1 it is what each worker has on its link, over axis 0 each aggregator.

    Attributes:
      messages: int64 ``[W, A]``.
      bytes: int64 ``[W, A]``, of blocks (whole ones, even the last), offsets and headers.
    """

    messages: np.ndarray
    bytes: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """One all-reduce by the protocol.

    Attributes:
      sent: of each worker, int64 numbers of the blocks that it sends, in order. That of blocks in
        different slots, which do not wait for each other, is as on a network without delays.
      received: int64 numbers of the blocks that every worker receives, in order.
      rounds: blocks of the longest lane: the exchange takes so many round trips.
      up: from workers to aggregators.
      down: from aggregators to workers.
    """

    sent: tuple[np.ndarray, ...]
    received: np.ndarray
    rounds: int
    up: Traffic
    down: Traffic


def simulate(protocol: Protocol, bitmaps: np.ndarray) -> Exchange:
    """Follows the protocol from the first message to the last.

    Args:
      protocol: how the blocks travel.
      bitmaps: bool ``[W, blocks]``, true for the blocks of each worker that are not zero.

    Raises:
      ValueError: ``bitmaps`` has another dtype or shape, or is empty.
    """
    if bitmaps.ndim != 2 or bitmaps.dtype != np.bool_ or not bitmaps.size:
        raise ValueError(
            "bitmaps must be bool [workers, blocks], at least one of each, "
            f"got {bitmaps.dtype} {list(bitmaps.shape)}"
        )
    following = _following(bitmaps, protocol.lanes)
    lane = np.arange(following.shape[2])
    end = len(following[0]) - 1
    # Row of the lane's block, and of the next one that each worker announced. All are at the first.
    current = np.zeros(lane.size, np.int64)
    announced = np.zeros((len(bitmaps), lane.size), np.int64)
    history = []
    while (current < end).any():
        # Workers: whoever announced the current block sends it, and what it has after it.
        sending = (announced == current) & (current < end)
        after = following[:, np.minimum(current + 1, end), lane]
        announced = np.where(sending, after, announced)
        history.append((current, sending))
        # Aggregators: nobody has anything before the smallest of what was announced.
        current = announced.min(axis=0)

    rows, up = (np.stack(values) for values in zip(*history, strict=True))
    is_open = rows < end
    blocks = rows * lane.size + lane
    down = np.broadcast_to(is_open[:, np.newaxis], up.shape)
    return Exchange(
        sent=tuple(blocks[sending] for sending in up.swapaxes(0, 1)),
        received=blocks[is_open],
        rounds=len(history),
        up=_traffic(protocol, up),
        down=_traffic(protocol, down),
    )


def all_reduce(protocol: Protocol, tensors: np.ndarray) -> tuple[np.ndarray, Exchange]:
    """Sums the workers' tensors by the protocol, from the blocks that were sent and no others.

    Args:
      protocol: how the blocks travel; its ``element_bytes`` need not be those of ``tensors``.
      tensors: ``[W, n]`` of any numeric dtype.

    Returns:
      ``[n]``, of the same dtype, summed in worker order, and the exchange.

    Raises:
      ValueError: ``tensors`` has another shape or is empty.
    """
    if tensors.ndim != 2 or not tensors.size:
        raise ValueError(
            f"tensors must be [workers, n], at least one of each, got {list(tensors.shape)}"
        )
    num_workers, num_elements = tensors.shape
    padded = np.pad(tensors, [(0, 0), (0, -num_elements % protocol.block_size)])
    values = padded.reshape(num_workers, -1, protocol.block_size)
    exchange = simulate(protocol, (values != 0).any(axis=2))
    total = np.zeros_like(values[0])
    for own, blocks in zip(values, exchange.sent, strict=True):
        total[blocks] += own[blocks]
    return total.reshape(-1)[:num_elements], exchange


def _following(bitmaps: np.ndarray, lanes: int) -> np.ndarray:
    """Returns where each worker's next block is, int64 ``[W, rows + 1, used lanes]``.

    That is the first row of the lane, from the given one, that is not zero; ``rows`` if none is.
    """
    num_workers, num_blocks = bitmaps.shape
    lanes = min(lanes, num_blocks)
    rows = -(-num_blocks // lanes)
    grid = np.pad(bitmaps, [(0, 0), (0, rows * lanes - num_blocks + lanes)])
    grid = grid.reshape(num_workers, rows + 1, lanes)
    here = np.where(grid, np.arange(rows + 1)[:, np.newaxis], rows)
    return np.minimum.accumulate(here[:, ::-1], axis=1)[:, ::-1]


def _traffic(protocol: Protocol, sending: np.ndarray) -> Traffic:
    """Counts what was sent, bool ``[rounds, W, lanes]``: a slot's blocks of a round are a message.

    Its aggregator answers when all its lanes are complete, so they advance together.
    """
    slots = np.arange(0, sending.shape[2], protocol.blocks_per_message)
    fused = np.add.reduceat(sending, slots, axis=2, dtype=np.int64)
    messages = (fused > 0).sum(axis=0)
    block_bytes = protocol.block_size * protocol.element_bytes + NEXT_BYTES
    num_bytes = messages * protocol.header_bytes + fused.sum(axis=0) * block_bytes
    aggregator = np.arange(protocol.aggregators)
    is_owner = np.arange(slots.size)[:, np.newaxis] % protocol.aggregators == aggregator
    return Traffic(messages @ is_owner, num_bytes @ is_owner)


def check_integer(field: str, value: int, low: int) -> None:
    """Raises ValueError unless ``value`` is an integer from ``low``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{field} must be an integer, at least {low}, got {value!r}")
