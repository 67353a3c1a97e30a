# SPDX-License-Identifier: Apache-2.0
"""What happens before and after gradients are summed, as docs/numerics.md has it; determinism.

Expected numbers are worked out by hand. Where a step compresses, the two largest elements travel.
"""

import importlib.util

import cluster
import pytest
from keras_generation import IS_KERAS3

pytestmark = pytest.mark.distributed

HAS_ADDONS = importlib.util.find_spec("tensorflow_addons") is not None
KINDS = ["new"] if IS_KERAS3 else ["new", "legacy"]
of_every_kind = pytest.mark.parametrize("kind", KINDS)
needs_keras3 = pytest.mark.skipif(not IS_KERAS3, reason="only Keras 3 accumulates gradients")
needs_keras2 = pytest.mark.skipif(IS_KERAS3, reason="Keras 3 has no legacy optimizers")
needs_addons = pytest.mark.skipif(not HAS_ADDONS, reason="tensorflow-addons is not installed")


@pytest.fixture(scope="module")
def workers():
    return [outcome.result for outcome in cluster.run_cluster("order", timeout=240)]


@pytest.fixture
def steps(workers):
    """Returns a function from a kind of optimizer and a case to what worker 0's steps left."""

    def of(kind, case):
        first, second = (worker[kind][case] for worker in workers)
        assert str(column(first, "weights")) == str(column(second, "weights"))  # NaNs, too
        return first

    return of


def column(steps, name):
    return [step[name] for step in steps]


def close(values):
    return pytest.approx(values, rel=1e-6, nan_ok=True)


@of_every_kind
def test_keras_3_clips_before_the_sum_and_keras_2_after_it(steps, kind):
    def last(case):
        (step,) = steps(kind, case)
        return step["weights"]

    # Gradients (3, 1, 0) and (-2, 1, 4), values cut at 1; a learning rate of 1, as below.
    by_value = [0, -2, -1, 0] if IS_KERAS3 else [-1, -1, -1, 0]
    assert last("clipvalue") == close(by_value)
    assert last("clipping and scale") == close(by_value), "clipping sees unscaled gradients"
    # (3, 4) of norm 5 and (0, 12, 5) of norm 13; their sum (3, 16, 5) has 290 ** 0.5.
    sum_norm = 290**0.5
    local = [-3 / 5, -4 / 5 - 12 / 13, -5 / 13, 0]
    by_norm = local if IS_KERAS3 else [-3 / sum_norm, -16 / sum_norm, -5 / sum_norm, 0]
    assert last("clipnorm") == close(by_norm)
    assert last("global_clipnorm") == close(by_norm)


@of_every_kind
def test_residuals_hold_what_was_clipped_before_the_sum(steps, kind):
    (step,) = steps(kind, "clipping in fit")
    # Of (8, 4, 2) and (16, 4, 3), the first two travel. Keras 3 has cut all of them to 1 before.
    assert step["weights"] == ([-2, -2, 0, 0] if IS_KERAS3 else [-1, -1, 0, 0])
    assert step["residual"] == ([0, 0, 1, 0] if IS_KERAS3 else [0, 0, 2, 0])


@needs_keras2
def test_legacy_optimizers_clip_values_before_norms(steps):
    (step,) = steps("legacy", "both clippings")
    # The sum (3, 4) becomes (3, 3), then has a norm of 3.
    assert step["weights"] == close([-(4.5**0.5), -(4.5**0.5), 0, 0])


@of_every_kind
def test_regularizers_are_compressed(steps, kind):
    (step,) = steps(kind, "regularizer")
    # Each worker's half of 0.5 * 8 comes on top of (8, 4, 2, 0): (10, 6, 4, 2).
    assert step["residual"] == [0, 0, 4, 2]
    assert step["weights"] == [8 - (10 + 18) / 4, 8 - (6 + 6) / 4, 8, 8]


@pytest.mark.parametrize("kind", ["new"])
def test_weight_decay_is_not_compressed_and_comes_before_the_update(steps, kind):
    (step,) = steps(kind, "weight_decay")
    assert step["residual"] == [0, 0, 2, 0]
    # 8 less 0.25 * 0.5 of it, everywhere, then a quarter of the sum.
    assert step["weights"] == [7 - 24 / 4, 7 - 8 / 4, 7, 7]


@needs_addons
def test_weight_decay_of_addons_is_not_compressed_either(steps):
    (step,) = steps("legacy", "SGDW")
    assert step["residual"] == [0, 0, 2, 0]
    # Its decay of 0.5 is not multiplied by the learning rate.
    assert step["weights"] == [4 - 24 / 4, 4 - 8 / 4, 4, 4]


@of_every_kind
def test_constraints_come_after_the_update(steps, kind):
    (step,) = steps(kind, "constraint")
    assert step["weights"] == [-24 / 2, -8 / 2, 0, 0]


@pytest.mark.parametrize("kind", ["new"])
def test_averages_follow_the_update_and_precede_constraints(steps, kind):
    weights = [[-24, -8, 0, 0], [-48, -12, -6, 0]]
    # Keras 3 begins with the weights after the first step, Keras 2 with those before it.
    averages = [weights[0], [-36, -10, -3, 0]] if IS_KERAS3 else [[-12, -4, 0, 0], [-30, -8, -3, 0]]
    ema = steps(kind, "ema")
    assert column(ema, "weights") == weights
    assert column(ema, "average") == averages
    assert ema[-1]["after_fit"] == averages[1]
    assert column(steps(kind, "ema overwrites"), "weights") == [weights[0], averages[1]]
    (step,) = steps(kind, "ema and constraint")
    assert step["weights"] == [-12, -4, 0, 0]
    assert step["average"] == averages[0]


@needs_addons
def test_averages_of_addons_follow_the_update(steps):
    averages = column(steps("legacy", "MovingAverage"), "average")
    assert averages == [[-12, -4, 0, 0], [-30, -8, -3, 0]]


@needs_keras3
def test_accumulated_gradients_are_exchanged_once(steps):
    # (8, 4, 2) and (16, 4, 3), zeros, and the same again: the mean of two counts.
    accumulated = steps("new", "accumulation")
    assert column(accumulated, "exchanges") == [0, 1, 1, 2, 2]
    rests = [0, 1, 1, 2, 2]
    assert column(accumulated, "residual") == [[0, 0, rest, 0] for rest in rests]
    # Weights lose an eighth of themselves, by decay, and a quarter of the sum, when that is known.
    # In the second exchange, worker 1 sends 2 * 1.5 in the third place rather than 2.
    first = [7 - 12 / 4, 7 - 4 / 4, 7, 7]
    second = [3.5 - 12 / 4, 5.25 - 2 / 4, 6.125 - 3 / 4, 6.125]
    assert column(accumulated, "weights") == [[8] * 4, first, first, second, second]
    # The average moves in every step, also towards weights that stay.
    averages = [step["average"][0] for step in accumulated]
    assert averages == [8, 4, 4, (4 + 0.5) / 2, (2.25 + 0.5) / 2]


@needs_keras3
def test_clipping_sees_the_mean_of_accumulated_gradients(steps):
    # 3 and -2 on one worker: their mean of 0.5 is not cut. Of 1 and -1 it would be 0.
    assert steps("new", "accumulation and clipping")[-1]["weights"][0] == -0.5


@of_every_kind
@pytest.mark.parametrize("case", ["scale in fit", "scale"])
def test_residuals_know_nothing_of_the_loss_scale(steps, kind, case):
    scaled = steps(kind, case)
    assert column(scaled, "loss_scale") == [2**16, 2**17, 2**18]
    # What stays of (8, 4, 2) adds up to 6 and travels in the third step, instead of the 4.
    assert column(scaled, "residual") == [[0, 0, 2, 0], [0, 0, 4, 0], [0, 4, 0, 0]]
    assert column(scaled, "weights") == [[-24, -8, 0, 0], [-48, -12, -6, 0], [-72, -20, -12, 0]]


@of_every_kind
def test_what_comes_of_half_a_loss_scale(steps, kind):
    forgotten = steps(kind, "scale forgotten")
    if IS_KERAS3:  # gradients were not scaled up, but are scaled down
        residuals = [[0, 0, 2 / 2**15, 0], [0, 4 / 2**16, 0, 0]]
    else:  # scaled up and not down: a residual has the units of the step before
        residuals = [[0, 0, 2 * 2**15, 0], [0, 0, 2 * 2**15 + 2 * 2**16, 0]]
    assert column(forgotten, "residual") == residuals


@of_every_kind
def test_an_overflow_on_one_worker_skips_the_step_on_all(steps, kind):
    skipped = steps(kind, "overflow")
    assert column(skipped, "weights") == [[-24, -8, 0, 0], [-24, -8, 0, 0], [-48, -12, -6, 0]]
    assert column(skipped, "residual") == [[0, 0, 2, 0], [0, 0, 2, 0], [0, 0, 4, 0]]
    assert column(skipped, "loss_scale") == [2**16, 2**15, 2**16]
    # Keras 3 sees the overflow before the exchange, Keras 2 sees the NaN that the exchange makes.
    counts = [1, 1, 2] if IS_KERAS3 else [1, 2, 3]
    assert column(skipped, "exchanges") == column(skipped, "iterations") == counts


@of_every_kind
def test_an_overflow_in_a_layer_that_is_withheld_skips_the_step_on_all(workers, steps, kind):
    """(1, 2) is sent, the overflow is withheld, and then come (4, 8), (16, 32) and (64, 128)."""
    skipped = steps(kind, "withheld")
    assert column(skipped, "loss_scale") == [2**16, 2**15, 2**16, 2**17, 2**18]
    # In Keras 3 a step with an overflow is no exchange: (4, 8) is withheld in its place.
    weights = [-3, -3, -3, -63, -63] if IS_KERAS3 else [-3, -3, -15, -15, -255]
    assert [step["weights"][0] for step in skipped] == weights
    first = [0, 0, 4, 0, 64] if IS_KERAS3 else [0, 0, 0, 16, 0]
    for worker, factor in zip(workers, (1, 2), strict=True):
        residuals = [step["residual"] for step in worker[kind]["withheld"]]
        assert residuals == [[factor * value, 0, 0, 0] for value in first]


@of_every_kind
def test_an_inf_in_a_layer_that_is_withheld_reaches_all_and_no_residual(workers, steps, kind):
    spoiled = steps(kind, "withheld and infinite")
    assert spoiled[0]["weights"] == [-3, 0, 0, 0]
    assert spoiled[1]["weights"] == close([float("nan")] * 4)
    for worker, factor in zip(workers, (16, 32), strict=True):
        residuals = [step["residual"][0] for step in worker[kind]["withheld and infinite"]]
        assert residuals == [0, 0, 0, factor, 0]


@of_every_kind
@pytest.mark.parametrize("case", ["infinite", "fixed scale"])
def test_without_a_dynamic_scale_an_inf_spoils_its_bucket_and_no_residual(steps, kind, case):
    spoiled = steps(kind, case)
    assert spoiled[0]["weights"] == [-24, -8, 0, 0]
    assert spoiled[1]["weights"] == close([float("nan")] * 4)
    assert column(spoiled, "residual") == [[0, 0, 2, 0]] * 2


@of_every_kind
def test_clipping_makes_a_number_of_an_inf_where_it_still_is_one(steps, kind):
    nan = float("nan")
    (step,) = steps(kind, "infinite and clipping")
    assert step["weights"] == close([-2, 0, 0, 0] if IS_KERAS3 else [nan, nan, nan, nan])
    (step,) = steps(kind, "infinite, dense")
    assert step["weights"] == close([-2 if IS_KERAS3 else -1, nan, 0, 0])


# A codec that draws, one with views, and sums that are encoded again, each for a layer.
RULES = (
    "--rule=*conv2d/kernel=natural",
    "--rule=*dense/kernel=dct:density=0.05",
    "--rule=*dense_1/kernel=dithering:levels=3,transport=scatter_reduce",
)


def train_deterministically(num_workers):
    arguments = ("--compression=none", *RULES, "--deterministic")
    outcomes = cluster.run_cluster("train", arguments, num_workers=num_workers, timeout=240)
    return outcomes[0].result


@pytest.mark.parametrize("num_workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_same_seed_gives_the_same_bits(num_workers):
    first, second = (train_deterministically(num_workers) for _ in range(2))
    for spec in ["natural", "dct", "dithering"]:
        assert f": {spec}" in first["plans"][0], "the rules met no variable"
    assert "scatter_reduce" in first["plans"][0]
    assert first["weights"] == second["weights"]
    assert first["history"] == second["history"]
