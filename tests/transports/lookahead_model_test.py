# SPDX-License-Identifier: Apache-2.0
"""The look-ahead protocol: what is sent, what comes out, and what it is predicted to cost."""

import lookahead_model_reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_gradcomp.transports import lookahead_cost, lookahead_model
from tf_gradcomp.transports.lookahead_model import Protocol


def bitmaps_of(num_blocks: int, *nonzero: set[int]) -> np.ndarray:
    """Bool [W, num_blocks] from the numbers of each worker's blocks."""
    return np.array([[block in own for block in range(num_blocks)] for own in nonzero])


@st.composite
def cases(draw):
    """-> a protocol, the workers' bitmaps, and a generator for their values."""
    fused = draw(st.integers(1, 3))
    slots = draw(st.integers(1, 4))
    protocol = Protocol(
        block_size=draw(st.integers(1, 3)),
        lanes=fused * slots,
        blocks_per_message=fused,
        aggregators=draw(st.integers(1, slots)),
        element_bytes=draw(st.sampled_from([2, 4])),
        header_bytes=draw(st.integers(0, 9)),
    )
    num_workers = draw(st.integers(1, 4))
    num_blocks = draw(st.integers(1, 30))
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return protocol, rng.random([num_workers, num_blocks]) < density, rng


# One lane: both send 0 and learn of 3, which both send; worker 1 sends 5, worker 0 sends 6.
TRACE = bitmaps_of(7, {0, 3, 6}, {3, 5})


def test_the_worked_trace():
    exchange = lookahead_model.simulate(Protocol(block_size=256, lanes=1, header_bytes=4), TRACE)
    np.testing.assert_array_equal(exchange.sent, [[0, 3, 6], [0, 3, 5]])
    np.testing.assert_array_equal(exchange.received, [0, 3, 5, 6])
    assert exchange.rounds == 4
    np.testing.assert_array_equal(exchange.up.messages, [[3], [3]])
    np.testing.assert_array_equal(exchange.down.messages, [[4], [4]])
    np.testing.assert_array_equal(exchange.up.bytes, [[3 * 1032], [3 * 1032]])
    np.testing.assert_array_equal(exchange.down.bytes, [[4 * 1032], [4 * 1032]])


def test_fused_blocks_share_a_message_and_a_slot_waits_for_all_its_lanes():
    # Lanes {0, 2, 4, 6} and {1, 3, 5} in one slot: (0, 1), then (6, 3), then (-, 5).
    protocol = Protocol(block_size=1, lanes=2, blocks_per_message=2, header_bytes=100)
    exchange = lookahead_model.simulate(protocol, TRACE)
    np.testing.assert_array_equal(exchange.sent[0], [0, 1, 6, 3])
    np.testing.assert_array_equal(exchange.sent[1], [0, 1, 3, 5])
    np.testing.assert_array_equal(exchange.received, [0, 1, 6, 3, 5])
    assert exchange.rounds == 3
    np.testing.assert_array_equal(exchange.up.messages, [[2], [3]])
    np.testing.assert_array_equal(exchange.up.bytes, [[200 + 4 * 8], [300 + 4 * 8]])
    np.testing.assert_array_equal(exchange.down.bytes, [[300 + 5 * 8], [300 + 5 * 8]])


def test_slots_go_to_the_aggregators_in_turn():
    protocol = Protocol(block_size=1, lanes=6, blocks_per_message=2, aggregators=2, header_bytes=0)
    exchange = lookahead_model.simulate(protocol, np.ones([1, 7], bool))
    np.testing.assert_array_equal(exchange.up.messages, [[3, 1]])  # (0,1) (6) (4,5) and (2,3)
    np.testing.assert_array_equal(exchange.down.bytes, [[40, 16]])


@settings(max_examples=150, deadline=None)
@given(cases())
def test_messages_are_the_oracles_in_whatever_order_they_arrive(case):
    protocol, bitmaps, rng = case
    lanes, fused = protocol.lanes, protocol.blocks_per_message
    values = rng.integers(1, 100, bitmaps.shape) * bitmaps
    log, results = lookahead_model_reference.all_reduce(
        bitmaps.tolist(), values.tolist(), lanes, fused, seed=int(rng.integers(2**32))
    )
    assert results == [values.sum(axis=0).tolist()] * len(bitmaps)  # of the oracle itself

    exchange = lookahead_model.simulate(protocol, bitmaps)
    for worker in range(len(bitmaps)):
        for direction, traffic, blocks in (
            ("up", exchange.up, exchange.sent[worker]),
            ("down", exchange.down, exchange.received),
        ):
            mine = [entry[2:] for entry in log if entry[:2] == (direction, worker)]
            for slot in range(lanes // fused):
                expected = [b for s, own in mine if s == slot for b in own]
                assert [b for b in blocks if b % lanes // fused == slot] == expected
            for aggregator in range(protocol.aggregators):
                sizes = [len(own) for s, own in mine if s % protocol.aggregators == aggregator]
                assert traffic.messages[worker, aggregator] == len(sizes)
                assert traffic.bytes[worker, aggregator] == sum(
                    protocol.header_bytes
                    + size * (protocol.block_size * protocol.element_bytes + 4)
                    for size in sizes
                )


@given(cases(), st.data())
def test_the_sum_is_the_dense_sum_and_nothing_is_sent_but_what_is_not_zero(case, data):
    protocol, bitmaps, rng = case
    shape = [*bitmaps.shape, protocol.block_size]
    # The first element of a block that is not zero is not.
    tensors = rng.integers(-(2**20), 2**20, shape, np.int32)
    tensors[..., 0] = rng.integers(1, 2**20, shape[:2])
    tensors = (tensors * bitmaps[..., np.newaxis]).reshape(len(bitmaps), -1)
    ends_early = data.draw(st.integers(0, protocol.block_size - 1))
    tensors = tensors[:, : tensors.shape[1] - ends_early]

    total, exchange = lookahead_model.all_reduce(protocol, tensors)
    assert total.dtype == np.int32
    np.testing.assert_array_equal(total, tensors.sum(axis=0))
    first = np.arange(bitmaps.shape[1]) < protocol.lanes
    for own, sent in zip(bitmaps, exchange.sent, strict=True):
        np.testing.assert_array_equal(np.sort(sent), np.flatnonzero(own | first))
    union = bitmaps.any(axis=0) | first
    np.testing.assert_array_equal(np.sort(exchange.received), np.flatnonzero(union))
    lanes = np.flatnonzero(union) % protocol.lanes
    assert exchange.rounds == np.bincount(lanes).max()


def test_not_a_number_is_not_zero():
    tensors = np.zeros([2, 12], np.float32)
    tensors[1, 9] = np.nan
    total, exchange = lookahead_model.all_reduce(Protocol(block_size=4, lanes=1), tensors)
    np.testing.assert_array_equal(total, tensors[1])
    np.testing.assert_array_equal(exchange.sent[1], [0, 2])


# --- Closed forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 8])
def test_a_dense_tensor_costs_what_the_closed_form_says(num_workers):
    protocol = Protocol(block_size=256, lanes=1, header_bytes=4)
    exchange = lookahead_model.simulate(protocol, np.ones([num_workers, 1000], bool))
    cost = lookahead_cost.estimate(1000 * 1024, num_workers, density=1.0)
    overhead = 1000 * (4 + 4)  # offsets and headers
    assert (exchange.up.bytes == cost.up_bytes + overhead).all()
    assert (exchange.down.bytes == cost.down_bytes + overhead).all()
    assert exchange.rounds == 1000
    assert cost.speed_up == 2 * (num_workers - 1) / num_workers


def test_independent_workers_cost_what_the_closed_form_says(rng):
    num_blocks, density, num_workers = 40_000, 0.05, 4
    bitmaps = rng.random([num_workers, num_blocks]) < density
    exchange = lookahead_model.simulate(Protocol(block_size=64, lanes=100), bitmaps)
    cost = lookahead_cost.estimate(num_blocks * 256, num_workers, density)
    for traffic, expected in ((exchange.up, cost.up_bytes), (exchange.down, cost.down_bytes)):
        share = expected / (num_blocks * 256)
        counted = traffic.messages / num_blocks
        # Five standard deviations of a binomial, and the first block of each lane.
        tolerance = 5 * np.sqrt(share * (1 - share) / num_blocks) + 100 / num_blocks
        np.testing.assert_allclose(counted, share, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("density", "union", "speed_up"),
    [(0.2, 0.8322278, 2.1028), (0.01, 0.0772553, 22.6522), (1.0, 1.0, 1.75)],
)
def test_eight_independent_workers(density, union, speed_up):
    cost = lookahead_cost.estimate(100.0, 8, density)
    assert cost.up_bytes == 100 * density
    assert cost.down_bytes == pytest.approx(100 * union, rel=1e-5)
    assert cost.speed_up == pytest.approx(speed_up, rel=1e-4)


def test_overlap_and_few_aggregators_set_the_speed_up():
    assert lookahead_cost.estimate(1.0, 4, 0.1, union_density=0.1).speed_up == 15.0
    assert lookahead_cost.estimate(1.0, 4, 0.1, union_density=0.4).speed_up == 3.75
    assert lookahead_cost.estimate(1.0, 4, 0.1, union_density=0.1, aggregators=2).speed_up == 7.5
    # More of them than workers do not help: a worker's link is the limit.
    assert lookahead_cost.estimate(1.0, 4, 0.1, union_density=0.1, aggregators=9).speed_up == 15.0


def test_sparse_elements_do_not_make_sparse_blocks():
    density = lookahead_cost.independent_block_density(0.001, 256)
    assert density == pytest.approx(0.226, abs=0.0005)
    assert lookahead_cost.independent_block_density(0.001, 1) == pytest.approx(0.001)
    assert lookahead_cost.independent_block_density(1.0, 256) == 1.0


# --- Bad inputs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_size": 0}, "block_size must be an integer, at least 1, got 0"),
        ({"lanes": 8.0}, "lanes must be an integer, at least 1, got 8.0"),
        ({"aggregators": True}, "aggregators must be an integer, at least 1, got True"),
        ({"element_bytes": None}, "element_bytes must be an integer, at least 1, got None"),
        ({"header_bytes": -1}, "header_bytes must be an integer, at least 0, got -1"),
        ({"blocks_per_message": 3}, "lanes must be a multiple of blocks_per_message = 3.* got 8"),
        ({"blocks_per_message": 4, "aggregators": 3}, "for each of aggregators = 3, got 8"),
    ],
)
def test_a_bad_protocol_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Protocol(**fields)


@pytest.mark.parametrize("bitmaps", [np.ones(3, bool), np.ones([2, 3]), np.ones([2, 0], bool)])
def test_bad_bitmaps_are_refused(bitmaps):
    with pytest.raises(ValueError, match=r"bitmaps must be bool \[workers, blocks\].* got"):
        lookahead_model.simulate(Protocol(), bitmaps)


@pytest.mark.parametrize("shape", [[3], [2, 0], [0, 3], [2, 3, 4]])
def test_bad_tensors_are_refused(shape):
    with pytest.raises(ValueError, match=r"tensors must be \[workers, n\].* got \["):
        lookahead_model.all_reduce(Protocol(), np.ones(shape, np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dense_bytes": -1.0}, "dense_bytes must be finite and at least 0, got -1.0"),
        ({"dense_bytes": float("nan")}, "dense_bytes must be finite and at least 0, got nan"),
        ({"num_workers": 0}, "num_workers must be an integer, at least 1, got 0"),
        ({"density": 0.0}, r"density must be in \(0, 1\], got 0.0"),
        ({"density": float("nan")}, r"density must be in \(0, 1\], got nan"),
        ({"union_density": 0.1}, r"union_density must be in \[0.2, 1\], got 0.1"),
        ({"union_density": 1.1}, r"union_density must be in \[0.2, 1\], got 1.1"),
        ({"aggregators": 0}, "aggregators must be an integer, at least 1, got 0"),
    ],
)
def test_bad_densities_are_refused(arguments, message):
    good = {"dense_bytes": 1.0, "num_workers": 2, "density": 0.2}
    with pytest.raises(ValueError, match=message):
        lookahead_cost.estimate(**(good | arguments))


def test_bad_elements_are_refused():
    with pytest.raises(ValueError, match=r"element_density must be in \(0, 1\], got 2"):
        lookahead_cost.independent_block_density(2, 256)
    with pytest.raises(ValueError, match="block_size must be an integer, at least 1, got 0"):
        lookahead_cost.independent_block_density(0.5, 0)
