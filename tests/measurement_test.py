# SPDX-License-Identifier: Apache-2.0
"""Measured costs: what the clock says, and the same on all workers."""

import time

import loopback
import pytest
import tensorflow as tf

from tf_gradcomp import measurement
from tf_gradcomp.agreement import PlanMismatchError
from tf_gradcomp.costs import AssumedCosts
from tf_gradcomp.measurement import MeasuredCosts, measure_network
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.transports.silent import SilentCollectives

LATENCY, BANDWIDTH = 0.005, 50e6


class Slow:
    """Collectives that take their time, on the last worker a little more."""

    def __init__(self, collectives):
        self._collectives = collectives
        self.num_workers = collectives.num_workers
        self.worker_index = collectives.worker_index
        self.device = collectives.device

    def _wait(self, num_bytes):
        time.sleep((LATENCY + num_bytes / BANDWIDTH) * (1 + 0.1 * self.worker_index))

    def all_gather(self, words):
        if words.dtype == tf.int32:
            self._wait((self.num_workers - 1) * 4 * int(tf.size(words)))
        return self._collectives.all_gather(words)

    def all_reduce(self, tensor):
        share = 2 * (self.num_workers - 1) / self.num_workers
        self._wait(share * 4 * int(tf.size(tensor)))
        return self._collectives.all_reduce(tensor)

    def gather_text(self, text):
        return self._collectives.gather_text(text)


@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_network_is_what_the_clock_says_of_it(num_workers):
    networks = loopback.run_workers(num_workers, lambda c: measure_network(Slow(c)))
    assert all(network == networks[0] for network in networks)
    assert networks[0].measured
    for link in (networks[0].gather, networks[0].reduce):
        # Of the slowest worker; a busy machine adds to it.
        slowest = 1 + 0.1 * (num_workers - 1)
        assert LATENCY <= link.latency <= 2 * slowest * LATENCY
        assert BANDWIDTH / slowest / 2 <= link.bandwidth <= 1.2 * BANDWIDTH


def variables(rows):
    return [VariableInfo("k", (rows, 128), "float32")]


def planned(collectives, costs, spec, *sizes):
    return [
        make_plan(
            variables(rows), Policy(spec, min_elements=0), collectives.num_workers, costs
        ).buckets[0]
        for rows in sizes
    ]


def test_work_is_the_slowest_worker_s_and_alike_on_all(monkeypatch):
    own = [0.125, 0.25]

    def fake_work(variables, bucket, collectives):
        return own[collectives.worker_index]

    monkeypatch.setattr(measurement, "measure_work", fake_work)
    outcomes = loopback.run_workers(
        2, lambda c: planned(c, MeasuredCosts(c), "natural", 64)[0].estimates
    )
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0].work == 0.25


def test_of_buckets_of_about_one_size_one_is_measured(monkeypatch):
    measured = []

    def fake_work(variables, bucket, collectives):
        if collectives.worker_index == 0:
            measured.append((bucket.compression.codec, bucket.num_elements // 128))
        return 1.0

    monkeypatch.setattr(measurement, "measure_work", fake_work)

    def work(collectives):
        costs = MeasuredCosts(collectives)
        buckets = planned(collectives, costs, "natural", 64, 128, 16, 256, 257, 15, 1024)
        planned(collectives, costs, "onebit", 64)
        return [bucket.estimates[0].work for bucket in buckets]

    (seconds, _) = loopback.run_workers(2, work)
    assert measured == [("natural", 64), ("natural", 257), ("natural", 15), ("onebit", 64)]
    assert seconds == [1.0, 2.0, 0.25, 4.0, 1.0, 1.0, pytest.approx(1024 / 257)]


@pytest.mark.parametrize(
    "spec",
    ["fft", "dct", "randomk", "natural", "powersgd", "acpsgd"]
    + [f"topk:transport={name}" for name in ("scatter_reduce", "block_sparse", "integer")]
    + ["float16:transport=all_reduce"],
)
def test_every_kind_of_exchange_can_be_measured(spec):
    """With dense gradients of any type, and while a graph is traced."""
    infos = [*variables(64), VariableInfo("half", (64, 64), "float16")]

    def work(collectives):
        costs = MeasuredCosts(collectives)
        plans = []

        @tf.function(autograph=False)
        def trace():
            plans.append(make_plan(infos, Policy(spec), 2, costs))

        trace.get_concrete_function()
        return plans[0].buckets[0].estimates

    first, second = loopback.run_workers(2, work)
    assert first == second
    assert 0 < first[0].work < 10


def test_with_op_determinism_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(measurement.compat, "is_op_determinism_enabled", lambda: True)
    monkeypatch.setattr(measurement, "measure_network", None)
    monkeypatch.setattr(measurement, "measure_work", None)

    def work(collectives):
        costs = MeasuredCosts(collectives)
        return costs.network, planned(collectives, costs, "natural", 64)[0].estimates[0].work

    assert loopback.run_workers(2, work) == [(AssumedCosts.network, 0.0)] * 2


def test_the_network_is_measured_again_at_once_if_it_was_measured(monkeypatch):
    """At once: all workers are there then, but maybe not at the next use."""
    networks = iter(range(9))
    monkeypatch.setattr(measurement, "measure_network", lambda collectives: next(networks))

    class Alone:
        num_workers, worker_index, device = 2, 0, "/device:CPU:0"

    costs = MeasuredCosts(SilentCollectives(Alone))
    costs.measure_again()
    assert costs.network == 0
    assert costs.network == 0
    costs.measure_again()
    assert next(networks) == 2
    assert costs.network == 1


def test_workers_must_agree_on_determinism(monkeypatch):
    settings = iter([True, False])
    monkeypatch.setattr(measurement.compat, "is_op_determinism_enabled", lambda: next(settings))

    def work(collectives):
        with pytest.raises(PlanMismatchError, match="enable_op_determinism"):
            _ = MeasuredCosts(collectives).network

    loopback.run_workers(2, work)
