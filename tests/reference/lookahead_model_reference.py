# SPDX-License-Identifier: Apache-2.0
"""Oracle of the look-ahead protocol (OmniReduce, SIGCOMM 2021), one message at a time.

Messages take any time: the next one to arrive is drawn at random, in order on each connection only.
"""

import math
import random
from collections import defaultdict, deque

Bitmaps = list[list[bool]]


def next_nonzero(flags: list[bool], block: int, lanes: int) -> float:
    """The worker's next block of the lane that is not zero, or infinity."""
    return next((b for b in range(block + lanes, len(flags), lanes) if flags[b]), math.inf)


def all_reduce(
    bitmaps: Bitmaps, values: list[list[int]], lanes: int, fused: int, seed: int
) -> tuple[list, list[list[int]]]:
    """-> messages (direction, worker, slot, blocks) as they arrive, and the sums on each worker.

    A slot is ``fused`` lanes. Each block has one value.
    """
    rng = random.Random(seed)
    num_workers, num_blocks = len(bitmaps), len(bitmaps[0])
    used = range(min(lanes, num_blocks))
    current = list(used)  # of each lane, at its aggregator
    table = [[lane] * num_workers for lane in used]
    pool = [0] * num_blocks
    complete = defaultdict(dict)  # slot -> block -> next
    unfinished = defaultdict(set)
    results = [[0] * num_blocks for _ in bitmaps]
    connections = defaultdict(deque)
    log = []

    def send_up(worker: int, slot: int, blocks: list[int]) -> None:
        flags = bitmaps[worker]
        if blocks:
            message = [(b, next_nonzero(flags, b, lanes)) for b in blocks]
            connections["up", worker, slot].append(message)

    for lane in used:
        unfinished[lane // fused].add(lane)
    for worker in range(num_workers):
        for slot, slot_lanes in unfinished.items():
            send_up(worker, slot, sorted(slot_lanes))

    while connections:
        direction, worker, slot = connection = rng.choice(sorted(connections))
        message = connections[connection].popleft()
        if not connections[connection]:
            del connections[connection]
        log.append((direction, worker, slot, [block for block, _ in message]))
        if direction == "down":
            for block, _ in message:
                results[worker][block] = pool[block]
            send_up(worker, slot, [b for _, b in message if b < math.inf and bitmaps[worker][b]])
            continue
        for block, following in message:
            lane = block % lanes
            assert block == current[lane]
            pool[block] += values[worker][block]
            table[lane][worker] = following
            if block < min(table[lane]):
                complete[slot][block] = min(table[lane])
        if len(complete[slot]) == len(unfinished[slot]):
            answer = sorted(complete.pop(slot).items(), key=lambda item: item[0] % lanes)
            for block, following in answer:
                current[block % lanes] = following
                if following == math.inf:
                    unfinished[slot].remove(block % lanes)
            for other in range(num_workers):
                connections["down", other, slot].append(answer)
    assert not any(unfinished.values())
    return log, results
