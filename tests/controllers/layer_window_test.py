# SPDX-License-Identifier: Apache-2.0
"""The window of layers against the reconstruction's rules, its two bounds, and the random picks."""

import dataclasses
import math
import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tf_gradcomp.controllers.base import CHANGE, Setting
from tf_gradcomp.controllers.layer_window import PICKS, LayerWindow

NEVER = 10**6  # a patience that forces nothing in these tests
DENSITY = 0.25

settings = hypothesis.settings(deadline=None, max_examples=25, derandomize=True)


def setting(sizes):
    """What a controller is given for layers of these sizes, the input's first."""
    return Setting(
        variables=tuple(f"layer_{layer}" for layer in reversed(range(len(sizes)))),
        sizes=tuple(sizes[::-1]),
        buckets=tuple((bucket,) for bucket in range(len(sizes))),
        density=DENSITY,
        work_seconds=lambda bucket, density: 0.0,
        message_seconds=lambda bucket, density: 0.0,
    )


def run(controller, sizes, speeds):
    """Which layers each exchange sends, bool ``[P * period, L]``, in forward order."""
    return run_with_scores(controller, sizes, speeds)[0]


def run_with_scores(controller, sizes, speeds):
    """The same, and the scores by which the last period was decided, ``[L]``.

    A layer changes by ``speeds[p]`` for each gradient that reaches it in period ``p``, at once or
    as part of a sum. It does so after the exchange, and weights are compared in the last exchange.
    """
    where = setting(sizes)
    rows, waiting, arriving = [], np.zeros(len(sizes)), np.zeros(len(sizes))
    state, change = None, None
    for period in range(len(speeds)):
        if period == 0:
            state, densities, _ = controller.start(where)
        else:
            # As it comes from a checkpoint, and not to be written to.
            saved = np.frombuffer(np.array(state, np.float64).tobytes())
            measured = {CHANGE: change[::-1]} if controller.statistics else {}
            state, densities, _ = controller.decide(where, saved, measured)
        assert state.dtype == np.float64 and state.shape == (4 * len(sizes) + 3,)
        assert densities.dtype == np.float64
        assert densities.shape == (controller.period, len(sizes))
        assert set(densities.ravel()) <= {0.0, DENSITY}
        change = np.zeros(len(sizes))
        for row in densities[:, ::-1] > 0:
            change += arriving * speeds[period]
            waiting += 1
            arriving = np.where(row, waiting, 0)
            waiting[row] = 0
            rows.append(row)
    return np.array(rows), state[: len(sizes)]


def gaps(column):
    """Exchanges from one that sends the layer to the next; it begins and ends as if sent."""
    return np.diff([-1, *np.flatnonzero(column), len(column)])


def cumulative(rows, sizes):
    return np.cumsum(rows @ np.array(sizes, float))


# --- The window --------------------------------------------------------------------------------


def windows_of_the_text(speeds, period):
    """The reconstruction: scores, active set, width, slide. A budget of 1 clamps no window."""
    num_layers = len(speeds[0])
    score, start, rows = [None] * num_layers, 0, []
    window = []
    for speed in speeds:
        reached = set()
        known = [a for a in score if a is not None]
        assumed = [max(known, default=1.0) if a is None else a for a in score]
        for _ in range(period):
            reached.update(window)  # by what the exchange before has sent
            front = next(i for i, a in enumerate(assumed) if a >= 0.1 * max(assumed))
            if not front <= start < num_layers:
                start = front
            cycle = [*range(start, num_layers), *range(front, start)]
            window = cycle[:1]
            while sum(assumed[i] for i in window) < 0.6 * sum(assumed[i] for i in cycle):
                window = cycle[: len(window) + 1]
            rows.append([layer in window for layer in range(num_layers)])
            start += max(1, len(window) // 2)
        for layer in reached:  # the others have shown nothing
            old = score[layer]
            score[layer] = speed[layer] if old is None else 0.9 * old + 0.1 * speed[layer]
    return np.array(rows)


@pytest.mark.parametrize("period", [1, 9])
@pytest.mark.parametrize("seed", range(20))
def test_a_budget_for_all_sends_the_windows_of_the_text(seed, period):
    random = np.random.default_rng(seed)
    num_layers = int(random.integers(1, 9))
    sizes = [int(size) for size in random.integers(1, 1000, num_layers)]
    speeds = 10.0 ** random.uniform(-3, 0, (12, num_layers))
    controller = LayerWindow(period=period, budget=1.0, patience=NEVER)
    np.testing.assert_array_equal(
        run(controller, sizes, speeds), windows_of_the_text(speeds.tolist(), period)
    )


@pytest.mark.parametrize("budget", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("period", [1, 2, 10])
def test_a_score_is_the_change_for_each_gradient_however_rarely_it_is_sent(period, budget):
    speed = 10.0 ** np.linspace(-2, -1, 5)
    speeds = np.tile(speed, (500 // period, 1))
    _, scores = run_with_scores(LayerWindow(period, budget), [10] * 5, speeds)
    np.testing.assert_allclose(scores, speed, rtol=1e-9)


def test_equal_layers_are_sent_in_turn_as_often_as_the_budget_lets_them():
    rows = run(LayerWindow(period=50, budget=0.2, patience=NEVER), [7] * 10, np.ones((4, 10)))
    assert (rows.sum(axis=1) == 2).all()
    # Windows of 6 that slide by 3: each layer's turn comes after 3 or 4 of them, and no later than
    # the next one but one.
    assert {gap for column in rows.T for gap in gaps(column)[1:-1]} <= set(range(3, 9))
    assert (abs(rows.sum(axis=0) - 400 / 10) <= 5).all()


@pytest.mark.parametrize("sizes", [[9900, 100], [100, 9900], [30, 40, 9900, 20, 10]])
def test_small_layers_do_not_wait_for_the_one_that_holds_nearly_everything(sizes):
    rows = run(LayerWindow(budget=0.2), sizes, np.ones((3, len(sizes))))
    for layer, size in enumerate(sizes):
        between = gaps(rows[:, layer])[1:-1]
        if size == 9900:
            # 1 / budget, and what the small ones, up to 1 % each time, take of the budget.
            assert set(between) <= {5, 6}
        else:
            assert between.max() <= 6
            assert between.mean() < 3.5


def test_the_front_moves_past_layers_that_settle_and_back_when_one_wakes_up():
    num_layers, periods = 6, 30
    speeds = np.full((3 * periods, num_layers), 1e-3)
    speeds[periods : 2 * periods, :3] = 1e-5  # the three nearest the input settle, and wake up
    controller = LayerWindow(period=40, budget=0.2)
    sent = run(controller, [100] * num_layers, speeds).reshape(3, periods, 40, num_layers)
    often = sent.sum(axis=2)
    fair = 40 * 0.2
    assert (abs(often[0] - fair) <= 2).all()
    # 0.9^n < 0.1 for n = 22 at the latest: by then only patience sends them, every 20 exchanges.
    assert (often[1, 24:, :3] <= 3).all()
    assert (often[1, 24:, 3:] >= 1.5 * fair).all()
    # Awake, their scores are a tenth of the others' in one period and 0.19 in the next.
    assert (often[2, 3:] >= fair - 2).all()


def test_what_a_small_window_leaves_of_the_budget_is_not_made_up_for():
    speeds = np.ones((6, 10))
    speeds[:3, :9] = 1e-5  # a window of one layer out of ten, for two periods
    rows = run(LayerWindow(period=100, budget=0.5, patience=40), [100] * 10, speeds)
    one_by_one, all_again = rows[100:300], rows[400:]
    assert one_by_one.sum(axis=1).mean() < 2
    assert all_again.sum(axis=1).max() == 5


def test_only_a_layer_s_change_relative_to_the_others_counts():
    """When the learning rate falls, all layers change less."""
    random = np.random.default_rng(3)
    speeds = np.tile(10.0 ** random.uniform(-2, 0, 7), (12, 1))
    sizes = [int(size) for size in random.integers(1, 1000, 7)]
    controller = LayerWindow(period=30, budget=0.3)
    falling = speeds * 0.5 ** np.arange(12)[:, np.newaxis]
    rows = run(controller, sizes, speeds)
    np.testing.assert_array_equal(run(controller, sizes, falling), rows)
    assert (rows != run(controller, sizes, np.ones_like(speeds))).any()


def test_layers_that_do_not_change_at_all_are_sent_in_turn():
    rows = run(LayerWindow(period=10), [5] * 5, np.zeros((5, 5)))
    np.testing.assert_array_equal(rows, run(LayerWindow(period=10), [5] * 5, np.ones((5, 5))))


def test_periods_join_without_a_seam():
    sizes = [300, 20, 500, 4, 90]
    short = run(LayerWindow(period=7, budget=0.3, patience=11), sizes, np.ones((12, 5)))
    long = run(LayerWindow(period=84, budget=0.3, patience=11), sizes, np.ones((1, 5)))
    np.testing.assert_array_equal(short, long)


# --- What holds for all picks ------------------------------------------------------------------

layer_sizes = st.lists(st.sampled_from([1, 10, 30, 100, 9900]), min_size=1, max_size=9)
budgets = st.sampled_from([0.01, 0.1, 0.2, 0.5, 1.0]) | st.floats(0.01, 1)


def any_speeds(seed, periods, num_layers):
    return 10.0 ** np.random.default_rng(seed).uniform(-3, 0, (periods, num_layers))


@settings
@hypothesis.given(
    st.sampled_from(PICKS),
    layer_sizes,
    budgets,
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(0, 9),
)
def test_no_layer_waits_longer_than_patience(pick, sizes, budget, patience, period, seed):
    controller = LayerWindow(period, budget, patience, pick, seed)
    rows = run(controller, sizes, any_speeds(seed, 1 + 120 // period, len(sizes)))
    for column in rows.T:
        assert gaps(column).max() <= patience


@settings
@hypothesis.given(
    st.sampled_from(PICKS), layer_sizes, budgets, st.integers(1, 30), st.integers(0, 9)
)
def test_the_budget_holds_on_average(pick, sizes, budget, period, seed):
    controller = LayerWindow(period, budget, NEVER, pick, seed)
    rows = run(controller, sizes, any_speeds(seed, 1 + 120 // period, len(sizes)))
    earned = budget * sum(sizes) * np.arange(1, len(rows) + 1)
    in_advance = max(sizes) if pick == "window" else sum(sizes)
    assert (cumulative(rows, sizes) <= (earned + in_advance) * (1 + 1e-9)).all()


@settings
@hypothesis.given(st.sampled_from(PICKS), layer_sizes, budgets, st.integers(0, 9))
@hypothesis.example(
    "window", [3242, 2428, 2245, 11, 8, 11, 1810, 11541, 1238, 7, 1, 8, 1848], 0.33, 0
)
def test_the_budget_pays_for_the_default_patience(pick, sizes, budget, seed):
    controller = LayerWindow(25, budget, None, pick, seed)
    rows = run(controller, sizes, any_speeds(seed, 12, len(sizes)))
    # Patience alone takes at most half of it, since what it sends has waited for 2 / budget. In
    # advance goes no more than all that there is, and what half a step's budget pays for.
    earned = budget * sum(sizes) * (np.arange(1, len(rows) + 1) + 0.5)
    assert (cumulative(rows, sizes) <= (earned + sum(sizes)) * (1 + 1e-9)).all()


@settings
@hypothesis.given(layer_sizes.filter(lambda sizes: len(sizes) <= 5), st.floats(0.1, 1))
def test_the_window_visits_every_layer(sizes, budget):
    # It stays until its stalest layer is sent: what that waits for is the debt for one other, which
    # half of the budget pays. A layer is the stalest of the L-th window that has it at the latest.
    num_layers = len(sizes)
    window = 2 + 2 * max(sizes) / (budget * sum(sizes))
    bound = math.ceil(num_layers * num_layers * window)
    rows = run(LayerWindow(bound, budget, NEVER), sizes, np.ones((2, num_layers)))
    for column in rows.T:
        assert gaps(column).max() <= bound


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize(("num_layers", "patience"), [(8, 8), (8, 20), (10, 4), (10, 3), (3, 1)])
def test_patience_spreads_what_it_sends(pick, num_layers, patience):
    """A budget of nearly nothing leaves all to patience, even where all were sent together."""
    controller = LayerWindow(30, 1e-9, patience, pick)
    rows = run(controller, [100] * num_layers, np.ones((4, num_layers)))
    # As if all had to be sent within half the patience.
    assert rows[1:].sum(axis=1).max() <= math.ceil(2 * num_layers / patience)
    # Where patience asks for more than the budget, the budget yields.
    assert max(gaps(column).max() for column in rows.T) <= patience


@pytest.mark.parametrize("pick", PICKS)
def test_one_layer(pick):
    rows = run(LayerWindow(12, 0.25, None, pick), [3], np.ones((3, 1)))
    np.testing.assert_array_equal(np.flatnonzero(rows), np.arange(0, 36, 4))


@pytest.mark.parametrize("pick", PICKS)
def test_a_budget_of_all_and_a_patience_of_one_send_everything(pick):
    assert run(LayerWindow(5, 0.1, 1, pick), [1, 2, 3], np.ones((3, 3))).all()


def test_a_bucket_counts_with_all_its_variables():
    where = Setting(
        ("a", "b", "c"),
        (50, 50, 1),
        ((2,), (0, 1)),
        1.0,
        work_seconds=lambda bucket, density: 0.0,
        message_seconds=lambda bucket, density: 0.0,
    )
    densities = LayerWindow(budget=0.2, patience=NEVER).start(where).densities
    assert set(np.diff(np.flatnonzero(densities[:, 1]))) <= {5, 6}


# --- Random picks ------------------------------------------------------------------------------


def within_five_sigma(counts, probabilities, draws):
    deviation = np.sqrt(draws * probabilities * (1 - probabilities))
    return (abs(counts - draws * probabilities) <= 5 * deviation + 1e-9).all()


@pytest.mark.parametrize("sizes", [[9] * 8, [1, 1, 1, 1000, 1, 1, 1, 1]])
@pytest.mark.parametrize("pick", ["uniform", "arcsine"])
def test_layers_are_drawn_by_the_law_whatever_their_sizes(pick, sizes):
    rows = run(LayerWindow(4000, 0.25, NEVER, pick), sizes, np.ones((1, 8)))
    drawn = rows[rows.any(axis=1)]
    if pick == "uniform":
        assert (drawn.sum(axis=1) == 2).all()  # a quarter of 8, without replacement
        law = np.full(8, 0.25)
    else:
        # sin x of a uniform x: P(index < i) = 1/2 + asin(2 i / L - 1) / pi. Two draws.
        once = np.diff(0.5 + np.arcsin(2 * np.arange(9) / 8 - 1) / np.pi)
        law = 1 - (1 - once) ** 2
        assert set(drawn.sum(axis=1)) == {1, 2}
    assert len(drawn) > 1000
    assert within_five_sigma(drawn.sum(axis=0), law, len(drawn))
    other = np.roll(law, 1) if pick == "arcsine" else law * 1.5
    assert not within_five_sigma(drawn.sum(axis=0), other, len(drawn))


def test_draws_depend_on_the_seed_and_the_period_alone():
    sizes, speeds = [5] * 9, np.ones((3, 9))
    controller = LayerWindow(40, 0.3, NEVER, "uniform", seed=1)
    rows = run(controller, sizes, speeds)
    np.testing.assert_array_equal(rows, run(controller, sizes, speeds))
    assert (rows != run(dataclasses.replace(controller, seed=2), sizes, speeds)).any()
    first, second, third = rows.reshape(3, 40, 9)
    assert (first != second).any() and (second != third).any()


# --- Bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"period": 0}, "period must be an integer at least 1, got 0"),
        ({"period": 2.0}, "period must be an integer at least 1, got 2.0"),
        ({"period": True}, "period must be an integer at least 1, got True"),
        ({"budget": 0}, "budget must be in (0, 1], got 0"),
        ({"budget": 1.1}, "budget must be in (0, 1], got 1.1"),
        ({"budget": math.nan}, "budget must be in (0, 1], got nan"),
        ({"budget": "0.2"}, "budget must be in (0, 1], got '0.2'"),
        ({"budget": True}, "budget must be in (0, 1], got True"),
        ({"patience": 0}, "patience must be an integer at least 1, got 0"),
        ({"patience": 4.5}, "patience must be an integer at least 1, got 4.5"),
        ({"pick": "best"}, "pick must be one of window, uniform, arcsine, got 'best'"),
        ({"pick": None}, "pick must be one of window, uniform, arcsine, got None"),
        ({"seed": -1}, "seed must be an integer from 0 to 2147483647, got -1"),
        ({"seed": 2**31}, "seed must be an integer from 0 to 2147483647, got 2147483648"),
    ],
)
def test_a_bad_field_is_named(fields, message):
    with pytest.raises(ValueError, match=re.escape(f"layer_window: {message}")):
        LayerWindow(**fields)


def test_a_state_of_other_buckets_is_an_error():
    controller = LayerWindow()
    state = controller.start(setting([1, 2, 3])).state
    message = "layer_window: the state of 2 buckets has shape (11,), got (15,); it is that of"
    with pytest.raises(ValueError, match=re.escape(message)):
        controller.decide(setting([1, 2]), state, {CHANGE: np.zeros(2)})
