# SPDX-License-Identifier: Apache-2.0
"""LAGS against brute force, and against timelines that are played event by event.

Seconds are whole numbers where results are compared for equality: their sums are exact.
"""

import dataclasses
import heapq
import itertools
import json
import math

import numpy as np
import pytest
from absl import logging as absl_logging
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_gradcomp.compression import Compression
from tf_gradcomp.controllers import lags, registry
from tf_gradcomp.controllers.base import READY, STEP, Setting
from tf_gradcomp.controllers.lags import Lags

# --- The model -----------------------------------------------------------------------------------


def played(ready, work, messages):
    """Returns when each exchange is over, by playing what happens, event after event.

    A bucket that is there is worked on at once. The network carries one bucket's messages at a
    time, in the order of the buckets.
    """
    events = [(seconds, "there", bucket) for bucket, seconds in enumerate(ready)]
    heapq.heapify(events)
    prepared, over = set(), {}
    while events:
        now, what, bucket = heapq.heappop(events)
        if what == "there":
            heapq.heappush(events, (now + work[bucket], "worked", bucket))
        elif what == "worked":
            prepared.add(bucket)
        else:
            over[bucket] = now
        following = len(over)
        is_free = what != "worked" or bucket == following
        if is_free and following in prepared:
            prepared.remove(following)
            heapq.heappush(events, (now + messages[following], "sent", following))
    return [over[bucket] for bucket in range(len(ready))]


def count(density, size):
    """Returns the items that a codec keeps which rounds up."""
    return math.ceil(density * size)


def seconds_of(setting, b, kept):
    """Returns the seconds of messages with so many items, without a doubt about rounding."""
    return setting.message_seconds(b, (kept - 0.5) / setting.bucket_sizes()[b])


def work_of(setting, b, kept):
    """Returns the seconds of work on so many items, without a doubt about rounding."""
    return setting.work_seconds(b, (kept - 0.5) / setting.bucket_sizes()[b])


def make_setting(
    sizes,
    buckets=None,
    work=None,
    latency=0,
    rate=1,
    density=0.01,
    effort=0,
    dense_from=2.0,
    dense_rate=None,
):
    """Returns a setting in which messages take ``latency + rate * items kept``.

    Work takes ``effort`` for each item kept, and what is given. From a density of ``dense_from``
    on, all items are sent in ``dense_rate`` each, and there is no work.
    """
    buckets = buckets or tuple((index,) for index in range(len(sizes)))
    bucket_sizes = [sum(sizes[index] for index in bucket) for bucket in buckets]
    own = work or [0] * len(buckets)

    def work_seconds(b, share):
        kept = count(share, bucket_sizes[b])
        return 0 if kept >= dense_from * bucket_sizes[b] else own[b] + effort * kept

    def message_seconds(b, share):
        kept = count(share, bucket_sizes[b])
        if kept < dense_from * bucket_sizes[b]:
            return latency + rate * kept
        return latency + (rate if dense_rate is None else dense_rate) * bucket_sizes[b]

    return Setting(
        variables=tuple(f"layer_{index}/kernel" for index in range(len(sizes))),
        sizes=tuple(sizes),
        buckets=tuple(map(tuple, buckets)),
        density=density,
        work_seconds=work_seconds,
        message_seconds=message_seconds,
    )


def random_setting(rng):
    """Returns a setting of whole seconds, and when its variables are there, in whole seconds."""
    num_variables = int(rng.integers(1, 9))
    sizes = [int(size) for size in rng.integers(1, 60, num_variables)]
    cuts = [0, *np.flatnonzero(rng.random(num_variables - 1) < 0.6) + 1, num_variables]
    buckets = [tuple(range(low, high)) for low, high in itertools.pairwise(cuts)]
    work = [int(seconds) for seconds in rng.integers(0, 12, len(buckets))]
    setting = make_setting(
        sizes,
        buckets,
        work,
        latency=int(rng.integers(0, 6)),
        rate=int(rng.integers(0, 4)),
        effort=int(rng.integers(0, 3)),
        dense_from=float(rng.choice([0.3, 0.7, 2.0])),
        # All-reduces may be quicker or slower.
        dense_rate=float(rng.choice([0, 0.25, 1, 5])),
    )
    # Gradients may come in another order than that of the exchange.
    ready = np.cumsum(rng.integers(0, 60, num_variables)) - rng.integers(0, 40, num_variables)
    return setting, np.maximum(ready, 0).astype(np.float64)


def random_settings(num_cases, seed):
    rng = np.random.default_rng(seed)
    for _ in range(num_cases):
        yield *random_setting(rng), float(rng.choice([1, 2, 3.5, 10, 1000]))


def measured(ready, step=100.0, period=5):
    """Returns what is measured in a period of steps that are all the same."""
    return {READY: np.tile(ready, (period, 1)), STEP: np.full(period - 1, step)}


def decided(controller, setting, ready):
    """Returns the decision after a period in which all exchanges had these ready times."""
    return controller.decide(setting, controller.start(setting).state, measured(ready))


def assert_checks(decision, setting):
    """Asserts that exchanges have the densities that are tried and the codec's own, in turns."""
    assert not decision.final
    tried, own = decision.densities[0], np.full(len(setting.buckets), setting.density)
    assert (tried != own).any()
    for number, row in enumerate(decision.densities):
        np.testing.assert_array_equal(row, own if number % 4 in (1, 2) else tried)


def bucket_times(setting, ready):
    """Returns when each bucket can go: it is there, and so are all before it."""
    latest = [max(ready[index] for index in bucket) for bucket in setting.buckets]
    return [max(latest[: b + 1]) for b in range(len(latest))]


# --- Densities -----------------------------------------------------------------------------------


def test_densities_are_the_highest_of_all_counts_that_are_hidden():
    num_hidden = num_capped = num_dense = 0
    for setting, ready, max_ratio in random_settings(400, seed=1):
        decision = decided(Lags(5, max_ratio), setting, ready)
        times = bucket_times(setting, ready)
        times.append(times[-1])
        for b, size in enumerate(setting.bucket_sizes()):
            allowed = [k for k in range(1, size + 1) if k * max_ratio >= size]
            hidden = [
                k
                for k in allowed
                if seconds_of(setting, b, k) + work_of(setting, b, k) <= times[b + 1] - times[b]
            ]
            num_hidden += bool(hidden)
            num_capped += not hidden
            all_of_it, least = (
                seconds_of(setting, b, k) + work_of(setting, b, k) for k in (size, min(allowed))
            )
            cheapest = size if all_of_it <= least else min(allowed)
            num_dense += not hidden and cheapest > min(allowed)
            expected = max(hidden) if hidden else cheapest
            assert count(decision.densities[0, b], size) == expected
            assert decision.densities[0, b] == pytest.approx(expected / size, rel=1e-15)
        assert_checks(decision, setting)
    assert num_hidden > 500
    assert num_capped > 500
    assert num_dense > 50


def test_exchanges_are_over_when_the_next_bucket_is_there():
    num_hidden = num_late = 0
    for setting, ready, max_ratio in random_settings(600, seed=2):
        densities = decided(Lags(5, max_ratio), setting, ready).densities[0]
        times = bucket_times(setting, ready)
        messages = [setting.message_seconds(b, d) for b, d in enumerate(densities)]
        work = [setting.work_seconds(b, d) for b, d in enumerate(densities)]
        ends = played(times, work, messages)
        for b, size in enumerate(setting.bucket_sizes()[:-1]):
            kept = count(densities[b], size)
            is_alone = b == 0 or ends[b - 1] <= times[b]
            if ends[b] > times[b + 1] and is_alone:
                # Late without being held up by another: only the cap may do that, or that all is
                # sent in less time.
                assert kept in (size, math.ceil(size / max_ratio))
                num_late += 1
            elif is_alone and kept < size:
                more, harder = list(messages), list(work)
                more[b] = seconds_of(setting, b, kept + 1)
                harder[b] = work_of(setting, b, kept + 1)
                assert played(times, harder, more)[b] > times[b + 1]
                num_hidden += 1
    assert num_hidden > 100
    assert num_late > 100


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_density_means_its_count_to_all_that_round_up(data):
    size = data.draw(st.integers(1, 2**31))
    kept = data.draw(st.integers(1, size))
    (density,) = lags.hidden_densities(
        [float(kept)], [size], lambda *_: 0, lambda _, share: count(share, size), float(size)
    )
    assert 0 < density <= 1
    assert math.ceil(density * size) == kept
    # Codecs forgive a millionth of an item.
    assert math.ceil(density * size - 0.5e-6) == kept


def test_the_largest_ratio_is_kept_to_where_nothing_is_hidden():
    setting = make_setting([7000, 7001, 1, 999, 1000], work=[10**6] * 5)
    densities = decided(Lags(), setting, np.arange(5.0)).densities[0]
    counts = [count(d, n) for d, n in zip(densities, setting.sizes, strict=True)]
    assert counts == [7, 8, 1, 1, 1]
    assert (densities >= 1 / 1000).all()


def test_the_last_bucket_is_not_hidden():
    densities = decided(Lags(), make_setting([5000] * 3), np.array([0.0, 1e9, 2e9])).densities
    np.testing.assert_allclose(densities[0], [1, 1, 1 / 1000], rtol=1e-15)


def test_one_bucket_has_the_largest_ratio():
    setting = make_setting([300, 700], [(0, 1)], latency=1)
    np.testing.assert_allclose(
        decided(Lags(5, max_ratio=100), setting, np.array([3.0, 9.0])).densities[0], [0.01]
    )


def test_a_bucket_of_one_element_is_sent():
    setting = make_setting([1, 1], work=[5, 5])
    np.testing.assert_array_equal(decided(Lags(5), setting, np.zeros(2)).densities[0], [1, 1])


def test_all_is_sent_if_it_costs_nothing():
    setting = make_setting([10, 2000, 3], rate=0)
    np.testing.assert_array_equal(
        decided(Lags(5), setting, np.array([1.0, 1.0, 2.0])).densities[0], [1, 1, 1]
    )


# --- Periods -------------------------------------------------------------------------------------


def test_the_codecs_density_comes_first():
    start = Lags(5).start(make_setting([10, 20], density=0.25))
    np.testing.assert_array_equal(start.densities, np.full((5, 2), 0.25))
    assert not start.final


def test_a_slow_first_exchange_does_not_matter():
    setting, ready = make_setting([50, 50, 50]), np.array([10.0, 20.0, 60.0])
    controller = Lags(period=5)
    usual = decided(controller, setting, ready)
    rows = np.stack([1000 * ready + 7, ready, ready, ready, ready])
    steps = np.array([7000.0, 100.0, 100.0, 100.0])
    start = controller.start(setting).state
    slow = controller.decide(setting, start, {READY: rows, STEP: steps})
    np.testing.assert_array_equal(slow.densities, usual.densities)
    np.testing.assert_array_equal(slow.state, usual.state)
    # The rows are used at all: a slow exchange that is all there is counts.
    once = controller.decide(setting, start, {READY: rows[:1], STEP: steps})
    assert (once.densities != usual.densities).any()


def test_densities_are_those_of_all_exchanges_after_the_check():
    setting, controller = make_setting([50, 50]), Lags(6)
    ready = np.array([0.0, 30.0])
    checked = controller.decide(setting, controller.start(setting).state, measured(ready, period=6))
    assert_checks(checked, setting)
    found = controller.decide(setting, checked.state, measured(ready, period=6))
    assert found.final
    np.testing.assert_array_equal(found.densities, np.tile(checked.densities[0], (6, 1)))


def test_densities_stay_until_the_state_is_that_of_the_start():
    setting, controller = make_setting([50, 50]), Lags(5)
    checked = decided(controller, setting, np.array([0.0, 30.0]))
    other = measured([0.0, 40.0])
    first = controller.decide(setting, checked.state, other)
    later = first
    for _ in range(3):
        later = controller.decide(setting, later.state, other)
        np.testing.assert_array_equal(later.densities, first.densities)
        np.testing.assert_array_equal(later.state, first.state)
        assert later.final
    again = controller.decide(setting, controller.start(setting).state, other)
    assert not again.final
    np.testing.assert_allclose(again.densities[0], [40 / 50, 1 / 50])


def test_deciding_changes_nothing_it_is_given():
    setting, ready, _ = next(random_settings(1, seed=4))
    controller = Lags(5)
    state, rows = controller.start(setting).state, np.tile(ready, (5, 1))
    found = {READY: rows, STEP: np.ones(4)}
    given_state, given_rows = state.copy(), rows.copy()
    results = [controller.decide(setting, state, found) for _ in range(2)]
    np.testing.assert_array_equal(state, given_state)
    np.testing.assert_array_equal(rows, given_rows)
    np.testing.assert_array_equal(results[0].state, results[1].state)
    np.testing.assert_array_equal(results[0].densities, results[1].densities)
    kept = controller.decide(setting, results[0].state, found)
    kept.state[:] = kept.densities[:] = -1
    np.testing.assert_array_equal(results[0].state, results[1].state)


def test_states_have_one_type_and_size():
    setting, controller = make_setting([4, 5, 6], [(0, 1), (2,)]), Lags(5)
    first = controller.start(setting)
    later = decided(controller, setting, np.array([1.0, 2.0, 3.0]))
    last = controller.decide(setting, later.state, measured(np.zeros(3)))
    for decision in (first, later, last):
        assert decision.state.shape == (5 + 3 + 2,)
        assert decision.densities.shape == (5, 2)
        assert decision.state.dtype == decision.densities.dtype == np.float64


def test_a_state_of_other_buckets_is_refused():
    setting = make_setting([4, 5, 6])
    state = decided(Lags(5), setting, np.array([1.0, 2.0, 3.0])).state
    other = dataclasses.replace(setting, buckets=((0, 1, 2),))
    with pytest.raises(ValueError, match=r"in 1 buckets has 9 numbers, got .* shape \(11,\)"):
        Lags(5).decide(other, state, measured(np.zeros(3)))


# --- Checks --------------------------------------------------------------------------------------


class Machine:
    """Plays training: what an exchange does beside back-propagation takes time from it."""

    def __init__(self, setting, slowdown, compute=100.0):
        self.setting, self._slowdown, self._compute = setting, slowdown, compute
        self.ready = np.linspace(20.0, 80.0, len(setting.variables))

    def step(self, densities):
        """Returns the seconds of a step, noise aside."""
        numbers = range(len(densities))
        work = [self.setting.work_seconds(b, d) for b, d in enumerate(densities)]
        messages = [self.setting.message_seconds(b, d) for b, d in enumerate(densities)]
        busy = self._slowdown * sum(work[b] + messages[b] for b in numbers)
        last = bucket_times(self.setting, self.ready)[-1]
        return max(self._compute, last + work[-1] + messages[-1]) + busy

    def train(self, controller, noise=None, num_periods=9):
        """Returns all decisions.

        ``noise`` is a function of the number of a period and the number of its steps, and returns
        how much longer each of these is. By default, the first one is, as the first one of all.
        """
        decisions = [controller.start(self.setting)]
        for number in range(num_periods):
            steps = np.array([self.step(row) for row in decisions[-1].densities])
            if noise:
                steps *= noise(number, len(steps))
            else:
                steps[0] *= 50
            found = {READY: np.tile(self.ready, (len(steps), 1)), STEP: steps[:-1]}
            decisions.append(controller.decide(self.setting, decisions[-1].state, found))
        return decisions


def make_machine(slowdown):
    return Machine(make_setting([2000] * 5, rate=0.01, density=0.01), slowdown)


# How much the hiding time makes steps longer, and the share of it that should be used.
MACHINES = [(0.0, 1), (0.08, 0.25), (1.0, 0)]


@pytest.mark.parametrize(("slowdown", "share"), MACHINES)
def test_what_slows_steps_down_is_given_up(slowdown, share):
    machine = make_machine(slowdown)
    setting, own_density = machine.setting, np.full(5, 0.01)
    decisions = machine.train(Lags(6))
    last = decisions[-1]
    end = {1: 2, 0.25: 4, 0: 5}[share]
    assert [d.final for d in decisions].index(True) == end
    for decision in decisions[1:end]:
        assert_checks(decision, setting)
    for decision in decisions[end:]:
        np.testing.assert_array_equal(decision.densities, np.tile(last.densities[0], (6, 1)))
        np.testing.assert_array_equal(decision.state, last.state)
    own = machine.step(own_density)
    assert machine.step(last.densities[0]) <= 1.02 * own
    report = lags.report(setting, last.state)
    assert (report.share, report.own_seconds, report.is_done) == (share, own, True)
    checked = decisions[end - 1].densities[0]
    assert report.checked_share == (share or 0.125)
    assert report.step_seconds == pytest.approx(machine.step(checked), rel=1e-12)
    if share:
        hiding = share * np.array([15.0, 15, 15, 15, 0])
        expected = lags.hidden_densities(
            hiding, setting.sizes, setting.work_seconds, setting.message_seconds, 1000.0
        )
        np.testing.assert_array_equal(last.densities[0], expected)
        np.testing.assert_array_equal(checked, expected)
    else:
        np.testing.assert_array_equal(last.densities[0], own_density)
        assert report.step_seconds > 1.02 * own


def slow_start(number, num_steps):
    return np.full(num_steps, 1 if number else 3)


def quick_start(number, num_steps):
    return np.full(num_steps, 1 if number else 0.5)


def drift_up(number, num_steps):
    return 1 + 0.5 * np.arange(num_steps) / num_steps


def drift_down(number, num_steps):
    return drift_up(number, num_steps)[::-1]


def other_job(number, num_steps):
    """Begins amid each period."""
    return np.where(np.arange(num_steps) < 0.4 * num_steps, 1, 1.3)


def outliers(number, num_steps):
    rng = np.random.default_rng(number)
    return np.where(rng.random(num_steps) < 0.2, rng.uniform(1.5, 3, num_steps), 1)


def every_second(number, num_steps):
    """As with several steps in one execution."""
    return 1 + 0.1 * (np.arange(num_steps) % 2)


def every_other_second(number, num_steps):
    return every_second(number, num_steps + 1)[1:]


def every_fourth(number, num_steps):
    return 1 + 0.1 * (np.arange(num_steps) % 4 == 3)


def all_at_once(number, num_steps):
    """As on a busy machine, whose speed is another in each run."""
    rng = np.random.default_rng(number)
    noise = np.exp(0.02 * rng.standard_normal(num_steps))
    return (
        noise
        * outliers(number, num_steps)
        * drift_down(number, num_steps)
        * slow_start(number, num_steps)
    )


@pytest.mark.parametrize(("slowdown", "share"), MACHINES)
@pytest.mark.parametrize(
    "noise",
    [
        slow_start,
        quick_start,
        drift_up,
        drift_down,
        other_job,
        outliers,
        every_second,
        every_other_second,
        every_fourth,
        all_at_once,
    ],
)
def test_what_else_slows_steps_down_does_not_matter(noise, slowdown, share):
    machine = make_machine(slowdown)
    last = machine.train(Lags(), noise)[-1]
    expected = machine.train(Lags())[-1]
    assert last.final
    np.testing.assert_array_equal(last.densities, expected.densities)
    assert lags.report(machine.setting, last.state).share == share


@pytest.mark.parametrize("slow", range(4))
def test_one_slow_step_does_not_matter_in_the_shortest_check(slow):
    def noise(number, num_steps):
        return np.where(np.arange(num_steps) == slow, 10, 1)

    for slowdown, share in MACHINES:
        machine = make_machine(slowdown)
        last = machine.train(Lags(5), noise)[-1]
        assert lags.report(machine.setting, last.state).share == share


@pytest.mark.parametrize(("ratio", "is_slower"), [(0.9, 0), (1.0, 0), (1.05, 1), (1.12, 1)])
def test_noise_seldom_misleads(ratio, is_slower):
    rng = np.random.default_rng(11)
    num_right = 0
    is_tried = Lags()._is_tried()[:-1]
    for _ in range(200):
        steps = np.exp(0.03 * rng.standard_normal(len(is_tried)))
        steps *= np.where(rng.random(len(steps)) < 0.1, rng.uniform(1.5, 3, len(steps)), 1)
        tried, own = lags.compared_seconds(steps * np.where(is_tried, ratio, 1), is_tried)
        num_right += (tried > 1.02 * own) == is_slower
    assert num_right >= 180


def test_what_is_compared_by_hand():
    is_tried = np.array([True, False] * 3)[:5]
    # In the first run 9 and 7, in the second one 8 and 7.
    found = lags.compared_seconds(np.array([9.0, 7, 10, 20, 8]), is_tried)
    assert found == (7 + (2 + 1) / 2, 7)


def test_the_codecs_own_density_needs_no_check():
    # Both the cap and the codec's density are a hundredth.
    setting = make_setting([300, 700], [(0, 1)], latency=1)
    decision = decided(Lags(5, max_ratio=100), setting, np.array([3.0, 9.0]))
    assert decision.final
    np.testing.assert_array_equal(decision.densities, np.full((5, 1), 0.01))
    text = Lags(5, max_ratio=100).report(setting, decision.state)
    assert text == "LAGS: a density of 0.01 for all is what the hiding time asks for, and stays"


def test_less_that_is_the_codecs_own_density_needs_no_check():
    setting, controller = make_setting([100, 100], density=0.1), Lags(5, max_ratio=10)
    checked = decided(controller, setting, np.array([0.0, 15.0]))
    np.testing.assert_allclose(checked.densities[:2], [[0.15, 0.1], [0.1, 0.1]])
    slower = measured(np.zeros(2))
    slower[STEP][[0, 3]] *= 1.1
    found = controller.decide(setting, checked.state, slower)
    assert found.final
    np.testing.assert_array_equal(found.densities, np.full((5, 2), 0.1))
    report = lags.report(setting, found.state)
    assert (report.share, report.checked_share) == (0, 1)


def test_densities_that_are_the_same_with_less_are_not_checked_twice():
    # Nothing is hidden with any share: the cap.
    setting, controller = make_setting([300, 700], latency=100), Lags(5, max_ratio=50)
    checked = decided(controller, setting, np.array([3.0, 9.0]))
    assert_checks(checked, setting)
    slower = measured(np.array([3.0, 9.0]))
    slower[STEP][[0, 3]] *= 1.1
    found = controller.decide(setting, checked.state, slower)
    assert found.final
    np.testing.assert_array_equal(found.densities, np.full((5, 2), 0.01))
    report = lags.report(setting, found.state)
    assert (report.share, report.checked_share, report.own_seconds) == (0, 1, 100)
    assert report.step_seconds == pytest.approx(110)


def test_random_machines_end_with_steps_no_longer_than_with_the_codecs_density():
    rng = np.random.default_rng(9)
    ends = []
    for setting, _, max_ratio in random_settings(200, seed=10):
        machine = Machine(setting, float(rng.choice([0, 0.01, 0.1, 0.5])))
        decisions = machine.train(Lags(5, max_ratio))
        assert decisions[5].final
        own = machine.step(decisions[0].densities[0])
        assert machine.step(decisions[-1].densities[0]) <= 1.02 * own
        ends.append(lags.report(setting, decisions[-1].state).share)
    assert {1, 0.5, 0.25, 0} <= set(ends)


def test_reports_say_what_was_checked():
    controller = Lags(6)

    def texts_of(slowdown):
        machine = make_machine(slowdown)
        return [controller.report(machine.setting, d.state) for d in machine.train(controller)]

    texts = texts_of(0.08)
    assert texts[0] == ""
    assert texts[1].startswith("LAGS, with 1 of the hiding time; a bucket's exchange")
    assert texts[2].startswith("LAGS: with 1 of the hiding time a step took ")
    assert "ms, with a density of 0.01 for all in the same period " in texts[2]
    assert "\nLAGS, with 0.5 of the hiding time; a bucket's" in texts[2]
    assert texts[4].startswith("LAGS: with 0.25 of the hiding time a step took ")
    assert texts[4].endswith("these densities stay")
    (*_, last) = texts_of(1.0)
    assert last.startswith("LAGS: with 0.125 of the hiding time a step took ")
    assert last.endswith("the latter densities stay")


# --- Speed-ups -----------------------------------------------------------------------------------


def test_no_timeline_gains_more_than_the_largest_speedup():
    for setting, ready, max_ratio in random_settings(300, seed=5):
        densities = decided(Lags(5, max_ratio), setting, ready).densities[0]
        times = bucket_times(setting, ready)
        messages = [setting.message_seconds(b, d) for b, d in enumerate(densities)]
        end = played(times, [0] * len(times), messages)[-1]
        sequential = times[-1] + sum(messages)
        bound = lags.largest_speedup(times[0], times[-1] - times[0], sum(messages))
        assert sequential <= bound * end * (1 + 1e-12)
        assert bound < 2 + 1e-12


def test_the_largest_speedup_is_reached_by_many_equal_layers():
    # All messages but those of the last layer go beside back-propagation.
    num_layers, forward = 1000, 500
    ready = [forward + layer for layer in range(num_layers)]
    end = played(ready, [0] * num_layers, [1] * num_layers)[-1]
    bound = lags.largest_speedup(forward, num_layers - 1, num_layers)
    assert end == forward + num_layers
    assert (ready[-1] + num_layers) / end == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize(
    ("times", "expected"),
    [((1, 1, 1), 3 / 2), ((0, 1, 1), 2), ((1, 2, 1), 4 / 3), ((1, 2, 0), 1), ((0, 0, 0), 1)],
)
def test_largest_speedup_by_hand(times, expected):
    assert lags.largest_speedup(*times) == expected


@given(*[st.floats(1e-6, 1e6)] * 3)
def test_the_largest_speedup_is_the_papers_formula(forward, backward, communication):
    r = communication / backward
    formula = 1 + 1 / (forward / min(communication, backward) + max(r, 1 / r))
    assert lags.largest_speedup(forward, backward, communication) == pytest.approx(formula)


def test_timelines_are_those_that_are_played():
    rng = np.random.default_rng(6)
    for _ in range(200):
        ready = np.cumsum(rng.integers(0, 9, 6)).tolist()
        work, messages = rng.integers(0, 9, (2, 6)).tolist()
        np.testing.assert_array_equal(
            lags.exchange_ends(ready, work, messages), played(ready, work, messages)
        )


# --- Reports -------------------------------------------------------------------------------------


def test_a_report_by_hand():
    setting = make_setting([10, 20, 40], work=[1, 2, 3], latency=1)
    ready = np.array([4.0, 10.0, 11.0])
    found = lags.report(setting, decided(Lags(5, max_ratio=20), setting, ready).state)
    assert (found.share, found.checked_share, found.is_done) == (1, 0, False)
    assert (found.own_seconds, found.step_seconds) == (0, 0)
    # Hidden: 6 seconds less 1 of work and 1 of latency are 4 elements of 10.
    assert found.buckets == (
        (6, 1, 5, 0.4, True),
        (1, 2, 2, 0.05, False),
        (0, 3, 3, 0.05, False),
    )
    assert found.largest_speedup == lags.largest_speedup(4, 7, 10)
    # Dense: from 4 to 15, to 36, to 77. LAGS: from 5 to 10, from 12 to 14, from 14 to 17.
    assert found.dense_speedup == 77 / 17


def test_reports_are_those_of_played_timelines():
    for setting, ready, max_ratio in random_settings(100, seed=7):
        found = lags.report(setting, decided(Lags(5, max_ratio), setting, ready).state)
        times = bucket_times(setting, ready)
        work = [bucket.work for bucket in found.buckets]
        own = played(times, work, [bucket.message for bucket in found.buckets])[-1]
        dense = [setting.message_seconds(b, 1.0) for b in range(len(times))]
        end = played(times, [0] * len(times), dense)[-1]
        assert found.dense_speedup == (end / own if own else 1)


def test_nothing_is_reported_before_there_are_times():
    setting = make_setting([3])
    assert lags.report(setting, Lags().start(setting).state) is None


# --- Merging -------------------------------------------------------------------------------------


def partitions(num_layers):
    """Yields all ways to cut layers into runs."""
    for cuts in itertools.product([False, True], repeat=num_layers - 1):
        runs = [[0]]
        for layer, is_cut in enumerate(cuts, start=1):
            if is_cut:
                runs.append([layer])
            else:
                runs[-1].append(layer)
        yield runs


def end_of(groups, ready, work, message_seconds):
    times = [max(ready[: group[-1] + 1]) for group in groups]
    return played(times, list(map(work, groups)), list(map(message_seconds, groups)))[-1]


def random_layers(rng):
    """Returns ready times, work and message times of up to 8 layers, in whole seconds."""
    num_layers = int(rng.integers(1, 9))
    ready = np.cumsum(rng.integers(0, 20, num_layers)).tolist()
    sizes = (10 ** rng.uniform(0, 3, num_layers)).astype(int).tolist()
    latency, slowness, selection = (int(10 ** rng.uniform(0, limit)) for limit in (2, 1, 1))

    def work(indices):
        return sum(sizes[index] for index in indices) * selection // 50

    def message_seconds(indices):
        return latency + sum(sizes[index] for index in indices) * slowness // 20

    return ready, work, message_seconds


def test_merging_is_never_worse_than_none():
    rng = np.random.default_rng(8)
    num_better = num_best = 0
    lost = []
    for _ in range(500):
        layers = random_layers(rng)
        groups = lags.merged(*layers)
        assert list(itertools.chain(*groups)) == list(range(len(layers[0])))
        end = end_of(groups, *layers)
        alone = end_of([[layer] for layer in range(len(layers[0]))], *layers)
        assert end <= alone
        num_better += end < alone
        best = min(end_of(runs, *layers) for runs in partitions(len(layers[0])))
        num_best += end == best
        lost.append(end / best - 1)
    print(f"better than none: {num_better}, best: {num_best} of 500, lost {np.mean(lost):.2%}")
    assert num_better > 250
    # Layers are looked at one by one, so this is not always the best, but mostly.
    assert num_best > 250


def test_merging_may_miss_the_best_partition():
    # Only all three together are better: two save less than they wait.
    def message_seconds(indices):
        return {1: 10, 2: 19, 3: 20}[len(indices)]

    ready = [0, 2, 3]
    layers = (ready, lambda indices: 0, message_seconds)
    assert lags.merged(*layers) == [[0], [1, 2]]
    assert end_of([[0], [1, 2]], *layers) == 29
    assert end_of([[0, 1, 2]], *layers) == 23


@pytest.mark.parametrize(
    ("latency", "wait", "expected"),
    [(5, 4, [[0, 1]]), (5, 5, [[0], [1]]), (5, 6, [[0], [1]]), (0, 0, [[0], [1]])],
)
def test_layers_are_merged_if_that_saves_more_than_it_waits(latency, wait, expected):
    groups = lags.merged([1, 1 + wait], lambda _: 0, lambda indices: latency + len(indices))
    assert groups == expected


def test_a_layer_that_waits_for_the_network_anyway_loses_nothing_by_merging():
    # The first is on its way until 150.
    messages = {(0,): 100, (1,): 5, (2,): 5, (0, 1): 105, (1, 2): 9}
    groups = lags.merged([50, 60, 140], lambda _: 0, lambda indices: messages[tuple(indices)])
    assert groups == [[0], [1, 2]]


def test_work_counts_in_merging():
    def work(indices):
        return {1: 0, 2: 7}[len(indices)]

    assert lags.merged([1, 1], work, lambda _: 8) == [[0, 1]]
    assert lags.merged([1, 1], work, lambda _: 7) == [[0], [1]]


def test_no_layers_are_no_groups():
    assert lags.merged([], sum, sum) == []


# --- Profiles ------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "layers.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_a_profile_says_what_was_measured(write):
    setting, ready = make_setting([50, 60, 70], [(0, 1), (2,)]), np.array([0.1, 0.3, 30.7])
    state = decided(Lags(5), setting, ready).state
    controller = Lags(5, profile=write(lags.profile_text(setting, state)))
    assert dict(controller.ready_seconds) == dict(zip(setting.variables, ready, strict=True))
    assert Lags(5).profile_text(setting, state) == lags.profile_text(setting, state)


def test_what_is_measured_decides_with_a_profile_too(write):
    setting, ready = make_setting([50, 60], density=0.25), np.array([1.0, 26.0])
    path = write('{"format": 1, "ready_seconds": {"layer_0/kernel": 1, "layer_1/kernel": 11}}')
    controller = Lags(5, profile=path)
    # The codec's own density is measured first.
    np.testing.assert_array_equal(controller.start(setting).densities, np.full((5, 2), 0.25))
    assert decided(controller, setting, ready).densities[0, 0] == 25 / 50


def test_profiles_are_joined_by_variable():
    texts = [
        json.dumps({"format": 1, "ready_seconds": seconds})
        for seconds in ({"a": 1, "b": 2}, {"b": 3, "c": 4})
    ]
    joined = json.loads(lags.joined_profiles(texts))
    assert joined == {"format": 1, "ready_seconds": {"a": 1, "b": 3, "c": 4}}
    assert lags.joined_profiles([]) == ""


def test_a_profile_of_other_variables_is_not_used(write, caplog):
    setting = make_setting([50, 60], density=0.25)
    controller = Lags(
        5, profile=write('{"format": 1, "ready_seconds": {"layer_0/kernel": 1, "other": 2}}')
    )
    absl_logging.get_absl_logger().addHandler(caplog.handler)
    try:
        assert controller.groups(setting.variables, 0.25, sum, lambda indices, density: 1) is None
    finally:
        absl_logging.get_absl_logger().removeHandler(caplog.handler)
    assert "is not used for 2 variables, because it lacks 1 of them, such as layer_1" in caplog.text


def test_variables_are_grouped_by_a_profile(write):
    seconds = {"c": 1, "b": 2, "a": 9, "unused": 0}
    controller = Lags(profile=write(json.dumps({"format": 1, "ready_seconds": seconds})))
    asked = set()

    def message_seconds(indices, density):
        asked.add(density)
        return 3

    groups = controller.groups(["c", "b", "a"], 0.01, lambda indices: 0, message_seconds)
    assert groups == [[0, 1], [2]]
    assert asked == {0.01}


def test_without_a_profile_the_scope_groups():
    assert Lags().groups(["a", "b"], 0.01, sum, lambda indices, density: 1) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it is not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("{", "it is not JSON (Expecting property name"),
        (b"\xff", "it is not JSON ('utf-8' codec can't decode"),
        ("[" * 100_000, "it is not JSON ("),
        ("[]", "it must be a JSON object"),
        ("{}", "'format' must be 1, got None"),
        ('{"format": 2}', "'format' must be 1, got 2"),
        ('{"format": true}', "'format' must be 1, got True"),
        ('{"format": 1}', "'ready_seconds' must be an object of seconds by variable, got None"),
        ('{"format": 1, "ready_seconds": [1]}', "'ready_seconds' must be an object of seconds by"),
        ('{"format": 1, "ready_seconds": {}}', "'ready_seconds' must be an object of seconds by"),
        *[
            (
                '{"format": 1, "ready_seconds": {"a": 1, "b/kernel": ' + value + "}}",
                "'ready_seconds' of 'b/kernel' must be a number, at least 0, got " + shown,
            )
            for value, shown in [
                ("-1", "-1"),
                ("NaN", "nan"),
                ("Infinity", "inf"),
                ("1" + 400 * "0", "1"),
                ("null", "None"),
                ("true", "True"),
                ('"1"', "'1'"),
                ("[1]", "[1]"),
            ]
        ],
    ],
)
def test_what_is_wrong_with_a_profile_is_said(write, text, what):
    path = write(text)
    with pytest.raises(ValueError) as error:
        Lags(profile=path)
    assert str(error.value).startswith(f"lags: profile {path!r}: {what}")


def test_a_profile_that_is_not_there_is_said(tmp_path):
    for path, what in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a dir")):
        with pytest.raises(ValueError) as error:
            Lags(profile=str(path))
        start = f"lags: profile {str(path)!r}: it cannot be read ({what}"
        assert str(error.value).startswith(start)


@pytest.mark.parametrize("name", ["a,b", "a(b", "a)b", " a", "a ", "true", "12", "a\nb", "None"])
def test_a_path_that_no_spec_can_hold_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text('{"format": 1, "ready_seconds": {"a": 1}}')
    with pytest.raises(ValueError, match="a path that specs can hold") as error:
        Lags(profile=name)
    assert repr(name) in str(error.value)


@pytest.mark.parametrize("name", ["a=b", "a b", "a:b", "truer", "12x", "a'b;c"])
def test_a_profile_is_the_same_after_a_spec(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text('{"format": 1, "ready_seconds": {"a": 1}}')
    controller = Lags(profile=name)
    assert registry.from_spec(registry.to_spec(controller)) == controller
    compression = Compression("topk", controller=controller)
    assert Compression.from_spec(str(compression)) == compression


def test_there_is_no_profile_before_there_are_times():
    setting = make_setting([3])
    with pytest.raises(ValueError, match="no profile to write yet"):
        lags.profile_text(setting, Lags().start(setting).state)


def test_names_of_a_profile_must_differ():
    setting = dataclasses.replace(make_setting([3, 4, 5]), variables=("a", "kernel", "kernel"))
    state = decided(Lags(), setting, np.arange(3.0)).state
    with pytest.raises(ValueError, match="by their names, but 'kernel' names 2 of them"):
        lags.profile_text(setting, state)


# --- Fields --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"period": 0}, "period must be an integer, at least 5, got 0"),
        ({"period": 4}, "period must be an integer, at least 5, got 4"),
        ({"period": True}, "period must be an integer, at least 5, got True"),
        ({"period": 5.0}, "period must be an integer, at least 5, got 5.0"),
        ({"max_ratio": 0.5}, "max_ratio must be a number in [1, 1e9], got 0.5"),
        ({"max_ratio": math.nan}, "max_ratio must be a number in [1, 1e9], got nan"),
        ({"max_ratio": math.inf}, "max_ratio must be a number in [1, 1e9], got inf"),
        ({"max_ratio": "9"}, "max_ratio must be a number in [1, 1e9], got '9'"),
        ({"profile": 5}, "profile must be a path, a string, got 5"),
    ],
)
def test_fields_are_checked(fields, message):
    with pytest.raises(ValueError) as error:
        Lags(**fields)
    assert str(error.value) == f"lags: {message}"


def test_fields_are_compared_and_what_was_read_is_not(write):
    assert Lags(48, 1000) == Lags() != Lags(max_ratio=10)
    path = write('{"format": 1, "ready_seconds": {"a": 1}}')
    before = Lags(profile=path)
    write('{"format": 1, "ready_seconds": {"a": 2}}')
    after = Lags(profile=path)
    assert before == after and hash(before) == hash(after)
    assert (before.ready_seconds, after.ready_seconds) == ({"a": 1}, {"a": 2})
    assert repr(after) == f"Lags(period=48, max_ratio=1000.0, profile={path!r})"
    assert [field.name for field in dataclasses.fields(after)] == ["period", "max_ratio", "profile"]


def test_it_asks_for_ready_times_and_withholds_nothing():
    assert Lags.statistics == (READY, STEP)
    assert not Lags.withholds
