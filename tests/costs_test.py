# SPDX-License-Identifier: Apache-2.0
"""Estimates of what exchanges take, and the transports that a plan chooses by them."""

import logging

import pytest
from absl import logging as absl_logging

from tf_gradcomp.costs import AssumedCosts, Link, Network
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.transports.base import Message

ONE_MI = [VariableInfo("k", (1024, 1024), "float32")]  # 4 MiB
MIB = 2**20


class FakeCosts:
    """A network and a machine of which everything is known."""

    def __init__(self, latency=0.0, bandwidth=MIB, work=None, measured=True):
        link = Link(latency, bandwidth)
        self.network = Network(link, link, measured)
        self._work = work or {}

    def work(self, variables, bucket):
        return self._work.get(bucket.transport, 0.0)


def plan_for(spec, num_workers, **costs):
    return make_plan(ONE_MI, Policy(spec), num_workers, FakeCosts(**costs))


def test_messages_take_their_latency_and_their_bytes():
    network = Network(Link(0.5, 100.0), Link(0.25, 50.0), measured=True)
    messages = [Message("all_gather", 25), Message("all_to_all", 50), Message("all_reduce", 25)]
    assert network.seconds(messages) == (0.5 + 1.0) + (0.5 + 2.0) + (0.25 + 2.0)


# What a worker sends of 4 MiB in MiB, which are seconds here: by the definition of each.
@pytest.mark.parametrize(
    ("spec", "num_workers", "expected"),
    [
        ("natural:transport=all_gather", 4, 3 * 1 + 0.1),
        ("natural:transport=scatter_reduce", 4, 2 * (3 / 4 * 1 + 0.1)),
        ("natural:transport=integer", 4, 3 / 4 * 2 * 4 + 0.1 + 3 * 4 / 256 + 0.1),
        ("float16", 2, 2 + 0.1),
        ("powersgd:rank=4", 2, 2 * 4 * 1024 * 4 / MIB + 2 * 0.1),
        ("acpsgd:rank=4", 2, 4 * 1024 * 4 / MIB + 0.1),
    ],
)
def test_an_exchange_is_estimated_by_its_messages(spec, num_workers, expected):
    (bucket,) = plan_for(spec, num_workers, latency=0.1).buckets
    own, dense = bucket.estimates
    assert own.network == pytest.approx(expected, rel=1e-3)
    assert dense.how == "dense"
    assert dense.network == pytest.approx(0.1 + 2 * (num_workers - 1) / num_workers * 4)


def test_work_is_part_of_an_estimate():
    (bucket,) = plan_for("natural", 2, work={"all_gather": 7.0}).buckets
    assert bucket.estimates[0].total == pytest.approx(7.0 + 1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("spec", "num_workers", "costs", "transport"),
    [
        # 3 s against 1.5 s: not less than half. With five, 4 s against 1.6 s.
        ("natural", 4, {}, "all_gather"),
        ("natural", 5, {}, "scatter_reduce"),
        # Decoding four payloads in place of two makes up for little bandwidth ...
        ("natural", 4, {"work": {"all_gather": 1.0}}, "scatter_reduce"),
        # ... and an encoding more, or a collective more, for much of it.
        ("natural", 6, {"bandwidth": 100 * MIB, "work": {"scatter_reduce": 0.1}}, "all_gather"),
        ("natural", 6, {"bandwidth": 100 * MIB, "latency": 1.0}, "all_gather"),
        # Sparsifiers lose more in a second encoding: only where all_gather does not pay.
        ("topk", 8, {}, "all_gather"),
        ("topk", 8, {"work": {"all_gather": 8.0}}, "scatter_reduce"),
        ("topk", 8, {"work": {"all_gather": 8.0, "scatter_reduce": 9.0}}, "all_gather"),
        ("topk:transport=all_gather", 8, {"work": {"all_gather": 8.0}}, "all_gather"),
    ],
)
def test_auto_takes_the_transport_that_takes_less(spec, num_workers, costs, transport):
    (bucket,) = plan_for(spec, num_workers, **costs).buckets
    assert bucket.transport == transport
    hows = [estimate.how for estimate in bucket.estimates]
    assert hows[0] == transport
    assert hows[-1] == "dense"
    assert len(hows) == (2 if "transport" in spec else 3)


def test_two_workers_have_nothing_to_choose():
    (bucket,) = plan_for("natural", 2).buckets
    assert [estimate.how for estimate in bucket.estimates] == ["all_gather", "dense"]


def test_estimates_are_no_facts_for_they_may_differ_in_their_last_bits():
    one, other = plan_for("natural", 4), plan_for("natural", 4, latency=1e-9)
    assert one.facts() == other.facts()


@pytest.mark.parametrize(
    ("costs", "warns"),
    [
        ({"work": {"all_gather": 5.0}}, True),
        ({"work": {"all_gather": 1.0}}, False),
        ({"work": {"all_gather": 5.0}, "measured": False}, False),
    ],
)
def test_a_plan_says_where_compression_does_not_pay(costs, warns, caplog):
    absl_logging.get_absl_logger().addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, logger="absl"):
            plan_for("natural", 2, **costs)
    finally:
        absl_logging.get_absl_logger().removeHandler(caplog.handler)
    assert ("seems not to pay" in caplog.text) == warns
    if warns:
        assert "estimated 6000.2 ms a step, and 4000.0 ms dense" in caplog.text
        assert "all-gather 0.00 ms + 1 MB/s" in caplog.text


def test_the_summary_shows_the_figures():
    summary = plan_for("natural", 4, latency=0.001, work={"all_gather": 0.5}).summary()
    assert (
        "  estimated: scatter_reduce 1502.39 ms, all_gather 3501.74 ms (work 500.00), "
        "dense 6001.00 ms\n" in summary
    )
    assert "network: all-gather 1.00 ms + 1 MB/s, all-reduce 1.00 ms + 1 MB/s (measured)" in summary


def test_a_plan_without_compression_asks_for_no_figures():
    class Untouchable:
        @property
        def network(self):
            raise AssertionError

    plan = make_plan(ONE_MI, Policy("none"), 2, Untouchable())
    assert plan.network is None
    assert "network" not in plan.summary()


def test_by_default_only_bytes_count():
    assumed = AssumedCosts()
    assert assumed.network.seconds([Message("all_reduce", 0)]) == 0
    (bucket,) = make_plan(ONE_MI, Policy("natural"), 5).buckets
    assert assumed.work(ONE_MI, bucket) == 0
