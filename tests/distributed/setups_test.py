# SPDX-License-Identifier: Apache-2.0
"""Less common ways to train, with two real workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cluster
import pytest
import tensorflow as tf

pytestmark = pytest.mark.distributed

# In and without compression, and in ours without loss: the sums of two workers are then equal.
THREEFOLD = ["gan", "several_types"]
COMPRESSED = [
    *("frozen", "new_head", "unused_branch", "some_traces", "clone", "saving", "loops"),
    *("two_inputs", "recurrent"),
]
CASES = [
    *(f"{name}:{kind}" for name in THREEFOLD for kind in ("topk", "exact", "plain")),
    *(f"{name}:topk" for name in COMPRESSED),
]

# What a place without this package has to do with a saved model.
LOADER = """
import sys
sys.modules["tf_gradcomp"] = None  # to import it is an error
from pathlib import Path
import numpy as np
import tensorflow as tf

folder = Path(sys.argv[1])
with np.load(folder / "expected.npz") as file:
    inputs, expected = file["inputs"], file["outputs"]

def serve(name):
    function = tf.saved_model.load(str(folder / name)).signatures["serving_default"]
    (argument,) = function.structured_input_signature[1]
    (outputs,) = function(**{argument: tf.constant(inputs)}).values()
    return outputs

models = [tf.keras.models.load_model(folder / name) for name in ("model.keras", "model.h5")]
results = [serve("exported"), serve("saved_model"), *(model(inputs) for model in models)]
for result in results:
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
"""

SHAPES = {(64, 96), (96,), (96, 64), (64,), (64, 80), (80,)}  # of the saved model's weights

Case = dict[str, Any]  # what a worker reports of one


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("setups")


@pytest.fixture(name="workers", scope="module")
def train(folder: Path) -> list[dict[str, Case]]:
    outcomes = cluster.run_cluster("setups", [str(folder), *CASES], timeout=400)
    return [outcome.result for outcome in outcomes]


@pytest.fixture(name="cases")
def of_one_worker(workers: list[dict[str, Case]]) -> dict[str, Case]:
    return workers[0]


def layers_of(plan: dict[str, Any]) -> list[str]:
    """Names of the layers of its variables, in order."""
    names = [name.split("/")[-2].removeprefix("topk_") for name in plan["names"]]
    return list(dict.fromkeys(names))


def left_over(plan: dict[str, Any]) -> dict[str, float]:
    """What it has yet to send of each layer."""
    return {name.split("/")[-2].removeprefix("topk_"): n for name, n in plan["left_over"].items()}


@pytest.mark.parametrize("name", CASES)
def test_workers_end_with_the_same_bits_and_learn(workers: list[dict[str, Case]], name: str):
    first, second = (worker[name] for worker in workers)
    assert first["weights"] == second["weights"]
    assert first["losses"] == second["losses"]
    assert first["losses"][-1] < first["losses"][0]
    assert len(first["plans"]) == len(second["plans"]) > 0
    for plan, other in zip(first["plans"], second["plans"], strict=True):
        assert plan["how"] == other["how"]
        compressed = [name for name, how in plan["how"].items() if how.startswith("topk")]
        assert sorted(plan["left_over"]) == sorted(compressed)
        if name.endswith("topk"):
            assert plan["payload_bytes"] < plan["dense_bytes"]
        # Each worker has its own, but for what another plan has taken over.
        for variable, norm in plan["left_over"].items():
            assert norm != other["left_over"][variable] or norm == 0
    assert any(plan["left_over"] for plan in first["plans"]) == name.endswith("topk")


@pytest.mark.parametrize("name", THREEFOLD)
def test_without_loss_all_is_as_dense(cases: dict[str, Case], name: str):
    exact, plain, lossy = (cases[f"{name}:{kind}"] for kind in ("exact", "plain", "topk"))
    assert exact["weights"] == plain["weights"] != lossy["weights"]
    assert exact["losses"] == plain["losses"]
    assert any("identity" in how for plan in exact["plans"] for how in plan["how"].values())
    assert all("dense" in how for plan in plain["plans"] for how in plan["how"].values())


def test_two_optimizers_have_a_plan_each(cases: dict[str, Case]):
    discriminator, generator = cases["gan:topk"]["plans"]
    assert layers_of(discriminator) == ["discriminator_1", "discriminator_2"]
    assert layers_of(generator) == ["generator_1", "generator_2"]
    assert list(left_over(discriminator)) == ["discriminator_1"]  # the other is too small
    assert all(norm > 0 for plan in (discriminator, generator) for norm in left_over(plan).values())


def test_layers_of_other_types_are_compressed_up_to_32_bits(cases: dict[str, Case]):
    case = cases["several_types:topk"]
    assert case["types"] == ["float16"] * 2 + ["float32"] * 2 + ["float64"] * 2
    (plan,) = case["plans"]
    assert sorted(left_over(plan)) == ["half", "single"]
    hows = sorted(plan["how"].values())
    assert hows == ["dense float16", "dense float32", *["dense float64"] * 2,
                    *["topk:density=0.1 float32"] * 2]  # fmt: skip


def test_frozen_layers_stay_and_what_the_others_have_to_send_goes_on(cases: dict[str, Case]):
    case = cases["frozen:topk"]
    start, frozen, trained, frozen_again = case["base_weights"]
    assert start == frozen != trained == frozen_again
    # In steps without a gradient, all that can move weights is what another plan had left over.
    at_first, thawed, again = case["moved"]
    assert at_first == 0 < min(thawed, again)
    top, everything = ["middle", "head"], ["base", "middle", "head"]
    plans = [[layers_of(plan) for plan in plans] for plans in case["plans_over_time"]]
    assert plans == [[top], [top, everything], [top, everything]]
    first, second, third = ([left_over(p) for p in plans] for plans in case["plans_over_time"])
    assert all(first[0].values())
    assert all(second[1].values()) and not any(second[0].values())
    assert all(third[0].values())
    # Of the frozen layer it waits.
    assert third[1] == {"base": second[1]["base"], "middle": 0, "head": 0}


def test_a_new_head_trains_and_the_layers_below_go_on(cases: dict[str, Case]):
    case = cases["new_head:topk"]
    assert case["moved"] > 0
    assert case["losses_further"][-1] < case["losses_further"][0]
    last = case["plans"][-1]
    assert layers_of(last) == ["base", "middle", "new_head", "further"]
    assert all(left_over(last).values())
    for plan in case["plans"][:-1]:
        # Of an old head that something still holds on to.
        assert {name for name, norm in left_over(plan).items() if norm} <= {"head"}


def test_what_has_no_gradient_is_not_exchanged(cases: dict[str, Case]):
    case = cases["unused_branch:topk"]
    assert case["is_untouched"]
    (plan,) = case["plans"]
    assert len(plan["names"]) == 2
    assert plan["dense_bytes"] == 4 * (64 * 80 + 80)


def test_gradients_in_some_traces_have_a_plan_for_each(cases: dict[str, Case]):
    case = cases["some_traces:topk"]
    with_branch, without = case["plans"]
    assert layers_of(with_branch) == ["base", "middle", "head", "branch"]
    assert layers_of(without) == ["base", "middle", "head"]
    assert all(norm > 0 for plan in case["plans"] for norm in left_over(plan).values())


def test_a_clone_begins_anew_and_the_original_takes_its_residuals_along(cases: dict[str, Case]):
    case = cases["clone:topk"]
    assert case["is_new"], "a step without a gradient has moved the clone's weights"
    assert case["is_gone"]
    assert case["num_plans"] == [2, 1]
    (plan,) = case["plans"]
    assert all(left_over(plan).values())
    assert left_over(plan) != left_over(case["original"])


def test_loops_over_steps_and_several_gradients_of_a_variable(cases: dict[str, Case]):
    case = cases["loops:topk"]
    assert case["losses"] == sorted(case["losses"], reverse=True)
    # One is of 10 everywhere and on both workers, and has the largest tenth of their bucket.
    assert case["sums"] == [[0.0], [0.0, 20.0]]
    assert layers_of(case["plans"][1]) == ["base"]
    assert len(case["plans"][1]["names"]) == 2


def test_a_saved_model_is_the_same_here(cases: dict[str, Case]):
    assert cases["saving:topk"]["same"] == [True] * 4
    assert len(cases["saving:topk"]["losses"]) == 3  # in training, and after each loading


def test_a_saved_model_needs_nothing_of_this_package(cases: dict[str, Case], folder: Path):
    for worker in "01":
        for name in ("exported", "saved_model"):
            assert b"radcomp" not in (folder / worker / name / "saved_model.pb").read_bytes()
            variables = tf.train.list_variables(str(folder / worker / name / "variables/variables"))
            # Some of them twice. A residual would have the shape of a bucket.
            assert {tuple(shape) for _, shape in variables if shape} == SHAPES
    command = [sys.executable, "-c", LOADER, str(folder / "0")]
    process = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr[-3000:]
