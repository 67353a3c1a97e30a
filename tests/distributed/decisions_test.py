# SPDX-License-Identifier: Apache-2.0
"""What is sent changes from exchange to exchange: on all workers alike, with nothing traced again.

The program's module says what decides on which layers.
"""

import cluster
import pytest
from keras_generation import IS_KERAS3

pytestmark = pytest.mark.distributed

needs_keras3 = pytest.mark.skipif(not IS_KERAS3, reason="only Keras 3 accumulates gradients")


def train(*arguments, timeout=240):
    outcomes = cluster.run_cluster("decisions", arguments, timeout=timeout)
    first, second = (outcome.result for outcome in outcomes)
    for name in ("weights", "losses", "exchanges", "decisions", "log", "profile"):
        assert first[name] == second[name], name
    assert first["losses"][-1] < 0.8 * first["losses"][0]
    return [first, second]


def of_kind(kind, decisions):
    """Returns the decisions on the layers that a kind decides on."""
    found = [decision for name, decision in decisions.items() if kind in name]
    assert len(found) == 2, decisions
    return found


def assert_traced_once(result):
    # Keras traces a function more than once before it first runs, if it is not version 3.
    before_the_first_step, in_all = result["traces"]
    assert before_the_first_step == in_all > 0


def assert_bytes_are_those_handed_over(result):
    total = 0
    for bucket in result["buckets"]:
        if bucket["counted"] is None:
            total += result["exchanges"] * bucket["payload_bytes"]
        else:
            assert bucket["counted"] == bucket["handed_over"] > 0, bucket
            total += bucket["counted"]
    # Of an epoch, the mean is rounded to a whole number.
    reported = sum(result["payload_bytes"]) * result["exchanges"] / len(result["payload_bytes"])
    assert abs(reported - total) <= result["exchanges"]


@pytest.fixture(scope="module")
def thousand():
    """Results of 1,000 steps, of which every fifth is seen."""
    return train("--steps=1000", "--steps-per-execution=5")


def test_a_thousand_decisions_are_taken_alike_and_traced_once(thousand):
    for result in thousand:
        assert result["exchanges"] == 1000
        assert_traced_once(result)


def test_counted_bytes_are_those_handed_to_the_collectives(thousand):
    for result in thousand:
        assert_bytes_are_those_handed_over(result)


def test_chance_and_windows_withhold_and_send(thousand):
    log = [decisions for _, decisions in thousand[0]["log"]]
    assert len(log) > 190
    for kind, densities in [("chance", {0.0, 0.05, 1.0}), ("window", {0.0, 1.0})]:
        for layer in (0, 1):
            seen = {of_kind(kind, decisions)[layer]["density"] for decisions in log}
            assert seen == densities


def test_schedules_of_keras_are_followed_exchange_by_exchange(thousand):
    for step, decisions in thousand[0]["log"]:
        done = step - 1
        density = 0.25 + (0.02 - 0.25) * min(done, 500) / 500
        bits = 8 if done <= 250 else 6  # then 4 by the schedule, of which fft makes 6
        for decision in of_kind("scheduled", decisions):
            assert decision == {"density": pytest.approx(density, rel=1e-5), "bits": bits}


def test_lags_measures_checks_and_then_stays(thousand):
    assert "lags_top/kernel" in thousand[0]["profile"]
    after = [of_kind("lags", decisions) for step, decisions in thousand[0]["log"] if step > 25]
    assert all(decisions == after[0] for decisions in after)
    assert all(0 < decision["density"] <= 1 for decision in after[0])


@pytest.mark.parametrize(
    ("arguments", "exchanges"),
    [
        pytest.param(("--eagerly",), 60, id="eagerly"),
        pytest.param(("--policy=mixed_float16",), 60, id="loss scaling"),
        pytest.param(("--accumulate",), 30, id="accumulation", marks=needs_keras3),
    ],
)
def test_ways_to_train(arguments, exchanges):
    results = train("--kinds=window,falling", "--steps=60", *arguments)
    for result in results:
        assert result["exchanges"] == exchanges
        assert_bytes_are_those_handed_over(result)
        if "--eagerly" not in arguments:
            assert_traced_once(result)
