# SPDX-License-Identifier: Apache-2.0
"""model.fit with two real workers: equal weights, the same again, and exact everything else."""

import importlib.util

import cluster
import numpy as np
import pytest
from keras_generation import IS_KERAS3

from tf_gradcomp.compression import Compression
from tf_gradcomp.transports import TRANSPORTS

pytestmark = pytest.mark.distributed

HAS_ADDONS = importlib.util.find_spec("tensorflow_addons") is not None
needs_keras2 = pytest.mark.skipif(IS_KERAS3, reason="Keras 3 has no legacy optimizers")
needs_addons = pytest.mark.skipif(not HAS_ADDONS, reason="tensorflow-addons is not installed")
needs_keras3 = pytest.mark.skipif(not IS_KERAS3, reason="only Keras 3 accumulates gradients")


def train(*arguments, **kwargs):
    outcomes = cluster.run_cluster("train", arguments, **kwargs)
    return [outcome.result for outcome in outcomes]


def assert_workers_agree(results):
    for result in results[1:]:
        assert result["weights"] == results[0]["weights"]
        assert result["history"] == results[0]["history"]
        assert result["evaluation"] == results[0]["evaluation"]


def assert_learned(result):
    losses = result["history"]["loss"]
    assert losses[-1] < 0.9 * losses[0]


def test_fft_trains_and_repeats_bit_for_bit():
    first = train("--compression=fft:density=0.1")
    assert_workers_agree(first)
    assert_learned(first[0])
    assert first[0]["payload_bytes"] < first[0]["dense_bytes"] / 8
    assert all(norm > 0 for result in first for norm in result["residual_norms"])
    assert first[0]["residual_norms"] != first[1]["residual_norms"]
    assert first[0]["prediction_shape"] == [512, 10]
    # Counted where they are used, keys would differ after a step that ran out of data halfway.
    assert first[0]["counted_keys"] == 0
    assert train("--compression=fft:density=0.1")[0]["weights"] == first[0]["weights"]


@pytest.mark.parametrize(
    "spec", ["dithering:levels=3", "randomk:density=0.1,values=natural", "sidco:density=0.05"]
)
def test_other_codecs_train(spec):
    """Own draws, shared ones, and as many items as a worker's own threshold lets pass."""
    results = train(f"--compression={spec}")
    assert_workers_agree(results)
    assert_learned(results[0])


@pytest.mark.parametrize(
    "arguments",
    [
        # All-to-all in a loop, and the view's change moves both residuals.
        pytest.param(
            ("--compression=dct:transport=scatter_reduce", "--steps-per-execution=2"),
            id="scatter_reduce",
        ),
        # Collectives in the branches of a condition, of shapes that change from step to step.
        pytest.param(
            (
                "--compression=block_topk:density=0.1,block=64,transport=block_sparse",
                "--steps-per-execution=2",
            ),
            id="block_sparse",
        ),
    ],
)
def test_other_transports_train(arguments):
    results = train(*arguments)
    assert_workers_agree(results)
    assert_learned(results[0])


@pytest.mark.parametrize(
    ("codec", "transport", "arguments"),
    [
        pytest.param("fft", "all_gather", (), id="all_gather"),
        # All-to-all, too, in a loop; lengths change from one iteration to the next.
        pytest.param("topk", "scatter_reduce", ("--steps-per-execution=2",), id="scatter_reduce"),
    ],
)
def test_density_falls_while_training_and_nothing_is_traced_again(codec, transport, arguments):
    spec = f"{codec}:density=0.01,transport={transport},warmup=9"
    results = train(f"--compression={spec}", *arguments)
    assert_workers_agree(results)
    assert_learned(results[0])
    stages = [0.25] * 3 + [0.0625] * 3 + [0.015625] * 3 + [0.01] * 7
    num_shards = TRANSPORTS[transport].num_shards(2)
    expected = []
    for density in stages:
        parts = Compression.from_spec(f"{codec}:density={density}").build()
        expected.append(parts.num_words(parts.transform.layout(64 * 1600).shard(num_shards)))
    for result in results:
        assert result["gathered_words"] == expected
        # Keras traces a function more than once before it first runs, if it is not version 3.
        before_the_first, in_all = result["traces"]
        assert before_the_first == in_all > 0


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--compression=powersgd:rank=2",), id="powersgd"),
        # All-reduces in the branches of a condition in a loop.
        pytest.param(
            ("--compression=acpsgd:rank=2,values=bfloat16", "--steps-per-execution=2"), id="acpsgd"
        ),
    ],
)
def test_low_rank_methods_train(arguments):
    results = train(*arguments)
    assert_workers_agree(results)
    assert_learned(results[0])
    assert all(norm > 0 for result in results for norm in result["residual_norms"])
    assert results[0]["payload_bytes"] < results[0]["dense_bytes"] / 10


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--compression=topk:density=0.05,momentum=0.9",), id="local"),
        pytest.param(
            ("--compression=dct:density=0.05,global_momentum=0.9,clip_norm=1", "--epochs=3"),
            id="global",
        ),
        # Their sums become dense on the way to the optimizer.
        pytest.param(
            (
                "--compression=topk:density=0.05,momentum=0.9",
                "--model=embedding",
                "--steps-per-execution=2",
            ),
            id="sparse gradients",
        ),
    ],
)
def test_methods_with_momentum_train(arguments):
    results = train("--optimizer=plain", *arguments)
    assert_workers_agree(results)
    losses = results[0]["history"]["loss"]
    assert losses[-1] < losses[0]
    assert results[0]["residual_norms"] != results[1]["residual_norms"]


def test_momentum_can_be_left_to_the_exchange(dense):
    """With nothing lost, that of every worker's own gradients is SGD's, up to rounding."""
    results = train("--compression=identity:error_feedback=true,momentum=0.9", "--optimizer=plain")
    assert_workers_agree(results)
    np.testing.assert_allclose(
        results[0]["history"]["loss"], dense[0]["history"]["loss"], rtol=1e-4
    )


@pytest.mark.parametrize(
    "optimizer", ["decaying", pytest.param("legacy_decaying", marks=needs_keras2)]
)
def test_residuals_know_the_learning_rate_of_the_step(optimizer):
    results = train("--compression=topk:lr_correction=true", f"--optimizer={optimizer}")
    assert_workers_agree(results)
    # That of the last of 16 steps, which is the sixteenth value of the schedule.
    expected = 0.1 * (1 + np.cos(np.pi * 15 / 32)) / 2
    np.testing.assert_allclose(results[0]["last_rates"], [expected], rtol=1e-6)


def test_views_are_chosen_alike_and_reported():
    results = train("--compression=dct:density=0.05", "--steps-per-execution=2")
    assert_workers_agree(results)
    assert_learned(results[0])
    assert results[0]["views"] == results[1]["views"]
    # What the Flatten hid from the dense kernel of 1,600 inputs is in the plan of every Keras.
    assert any("flattened 10x10x16" in plan for plan in results[0]["facts"])
    assert set(results[0]["views"].values()) <= {"identity", "hidden", "spatial", "output", "input"}
    assert set(results[0]["views"].values()) != {"identity"}


def test_bases_are_learned_alike_and_traced_once():
    # Of 24 exchanges, the twentieth makes new ones.
    results = train("--compression=topk:density=0.01,view=learned", "--epochs=3")
    assert_workers_agree(results)
    assert_learned(results[0])
    assert results[0]["bases"] == results[1]["bases"]
    assert any(results[0]["bases"])
    for result in results:
        before_the_first_step, in_all = result["traces"]
        assert before_the_first_step == in_all > 0


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--policy=mixed_float16",), id="loss scaling"),
        pytest.param(("--optimizer=accumulate",), id="accumulation", marks=needs_keras3),
    ],
)
def test_what_a_flatten_hid_is_found_in_branches(arguments):
    results = train("--compression=topk:view=hidden", "--epochs=1", *arguments)
    assert_workers_agree(results)
    assert any("flattened 10x10x16" in fact for fact in results[0]["facts"])


@pytest.fixture(scope="module")
def dense():
    return train("--compression=none")


def test_identity_equals_the_dense_all_reduce_of_two_workers(dense):
    # With two workers there is one way to add: the ring's order does not matter.
    identity = train("--compression=identity")
    assert_workers_agree(identity)
    assert identity[0]["weights"] == dense[0]["weights"]
    assert identity[0]["history"] == dense[0]["history"]


@pytest.mark.parametrize("model", ["cnn", "sync"])
def test_metrics_loss_and_statistics_are_exact(model):
    """With a learning rate of zero, no gradient can reach them: compressed must equal dense."""
    arguments = (f"--model={model}", "--optimizer=frozen")
    compressed = train("--compression=fft:density=0.001,bits=6", *arguments)
    dense = train("--compression=none", *arguments)
    assert_workers_agree(compressed)
    assert compressed[0]["statistics"] == dense[0]["statistics"]
    assert compressed[0]["history"] == dense[0]["history"]
    assert compressed[0]["evaluation"] == dense[0]["evaluation"]
    assert np.abs(compressed[0]["statistics"][0]).max() > 0


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--optimizer=adam", "--compression=fft:scope=layer"), id="adam, layers"),
        pytest.param(("--eagerly", "--epochs=1", "--examples=256"), id="eager"),
        pytest.param(("--steps-per-execution=2",), id="several steps per execution"),
        pytest.param(("--model=embedding", "--optimizer=adam"), id="sparse gradients"),
        pytest.param(
            ("--model=embedding", "--optimizer=adam", "--steps-per-execution=2"),
            id="sparse gradients, several steps per execution",
        ),
        pytest.param(("--optimizer=accumulate",), id="accumulation", marks=needs_keras3),
        pytest.param(("--optimizer=legacy_sgd",), id="legacy SGD", marks=needs_keras2),
        pytest.param(("--optimizer=legacy_adam",), id="legacy Adam", marks=needs_keras2),
        pytest.param(("--optimizer=tfa_lamb",), id="LAMB", marks=needs_addons),
        pytest.param(
            ("--optimizer=tfa_lazy_adam", "--model=embedding"), id="LazyAdam", marks=needs_addons
        ),
    ],
)
def test_ways_to_train(arguments):
    results = train(*arguments)
    assert_workers_agree(results)
    assert results[0]["plans"], "no gradient passed through the compressed exchange"
    assert "fft" in results[0]["plans"][0]
    if len(results[0]["history"]["loss"]) > 1:
        assert results[0]["history"]["loss"][-1] < results[0]["history"]["loss"][0]


@pytest.fixture(scope="module")
def float32_residual_norms():
    return train()[0]["residual_norms"]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy, float32_residual_norms):
    results = train(f"--policy={policy}")
    assert_workers_agree(results)
    assert_learned(results[0])
    assert results[0]["iterations"] == 16
    # What is left over is in the gradients' own units, however the loss was scaled: by 2**15.
    norms = np.array(results[0]["residual_norms"])
    np.testing.assert_array_less(norms, 3 * np.array(float32_residual_norms))
    np.testing.assert_array_less(np.array(float32_residual_norms), 3 * norms)


def test_all_workers_skip_a_step_in_which_one_overflows():
    results = train("--policy=mixed_float16", "--overflow-on=1", "--epochs=1")
    assert results[0]["weights"] == results[1]["weights"]
    # Every Keras begins with 2**15 and halves it; it doubles after 2,000 steps without overflow.
    assert results[0]["loss_scale"] == results[1]["loss_scale"] == 2**14
    assert results[0]["iterations"] == results[1]["iterations"]
    assert all(np.isfinite(result["residual_norms"]).all() for result in results)


def test_three_workers():
    results = train("--compression=fft", num_workers=3, timeout=180)
    assert_workers_agree(results)
    assert_learned(results[0])


@pytest.mark.parametrize("chief", [False, True])
def test_a_chief_is_the_first_worker_and_writes_the_log(tmp_path, chief):
    outcomes = cluster.run_cluster("probe", ["tensorboard", str(tmp_path)], chief=chief)
    results = [outcome.result for outcome in outcomes]
    assert [result["wrote"] for result in results] == [True, False]
    assert results[0]["weights"] == results[1]["weights"]
