# SPDX-License-Identifier: Apache-2.0
"""What the Keras adapters refuse, and that they leave other strategies alone."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from keras_generation import IS_KERAS3

import tf_gradcomp as tfgc
from tf_gradcomp.distribute import keras2
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import VariableInfo, as_policy

ROOT = Path(__file__).parents[2]


def run_python(code):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("TF_CONFIG", None)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )


def small_model():
    return tf.keras.Sequential([tf.keras.layers.Input((6,)), tf.keras.layers.Dense(3)])


@pytest.fixture(scope="module")
def strategy():
    return tfgc.CompressedMultiWorkerMirroredStrategy("fft")


def test_jit_compile_is_refused_when_compiling(strategy):
    with strategy.scope():
        model = small_model()
        with pytest.raises(ValueError, match="jit_compile=True.*jit_compile=False"):
            model.compile("sgd", "mse", jit_compile=True)
        model.compile("sgd", "mse", jit_compile=False)
        model.compile("sgd", "mse")


def test_a_model_made_outside_of_the_scope_is_refused_inside_of_it(strategy):
    model = small_model()
    with strategy.scope(), pytest.raises(ValueError, match="made outside of strategy.scope"):
        model.compile("sgd", "mse")
    with strategy.scope():
        unbuilt = tf.keras.Sequential([tf.keras.layers.Dense(3)])
        unbuilt.compile("sgd", "mse")
        inside = small_model()
    inside.compile("sgd", "mse")


def test_a_saved_model_comes_back_compiled(strategy, tmp_path):
    path = tmp_path / "model.keras"
    inputs, targets = np.ones((8, 6), np.float32), np.ones((8, 3), np.float32)
    with strategy.scope():
        model = small_model()
        model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.fit(inputs, targets, verbose=0)
        model.save(path)
        loaded = tf.keras.models.load_model(path)
    for each in (model, loaded):
        each.fit(inputs, targets, verbose=0)
    for one, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_jit_compile_stays_allowed_where_nothing_is_compressed(strategy):
    small_model().compile("sgd", "mse", jit_compile=True)
    with tfgc.CompressedMultiWorkerMirroredStrategy("none").scope():
        small_model().compile("sgd", "mse", jit_compile=True)


def test_one_worker_trains_like_no_strategy(strategy):
    inputs, targets = np.ones((8, 6), np.float32), np.ones((8, 3), np.float32)
    weights = []
    for scope in (strategy.scope(), tf.distribute.get_strategy().scope()):
        tf.keras.utils.set_random_seed(3)
        with scope:
            model = small_model()
            model.compile("sgd", "mse")
        model.fit(inputs, targets, batch_size=4, epochs=2, verbose=0, shuffle=False)
        weights.append(model.get_weights())
    assert strategy.plans == ()
    for compressed, plain in zip(*weights, strict=True):
        np.testing.assert_allclose(compressed, plain, rtol=1e-6)


def one_worker_losses(spec, **optimizer):
    """Trains without TF_CONFIG; the model is large enough to be compressed with two workers."""
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(spec)
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(64, 80)), rng.normal(size=(64, 70))
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((80,)), tf.keras.layers.Dense(70)])
        model.compile(tf.keras.optimizers.SGD(0.5, **optimizer), "mse")
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(8)
    return np.array(model.fit(data, epochs=4, verbose=0).history["loss"])


def test_a_single_worker_has_the_momentum_of_the_compression():
    """It compresses nothing, but must train as it would with an optimizer that has momentum."""
    expected = one_worker_losses("none", momentum=0.9)
    plain = one_worker_losses("none")
    for spec in ("topk:momentum=0.9", "topk:global_momentum=0.9"):
        np.testing.assert_allclose(one_worker_losses(spec), expected, rtol=1e-5)
    assert not np.allclose(plain, expected, rtol=1e-2)


@pytest.mark.parametrize("optimizer", ["adam", "sgd with momentum", "legacy"])
def test_an_optimizer_with_momentum_is_refused_beside_that_of_the_compression(optimizer):
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy("topk:momentum=0.9")
    optimizers = tf.keras.optimizers
    if optimizer == "legacy" and IS_KERAS3:
        pytest.skip("Keras 3 has no legacy optimizers")
    with strategy.scope():
        made = {
            "adam": lambda: optimizers.Adam(),
            "sgd with momentum": lambda: optimizers.SGD(0.1, momentum=0.5),
            "legacy": lambda: optimizers.legacy.SGD(0.1, momentum=0.5),
        }[optimizer]()
        name = "beta_1" if optimizer == "adam" else "momentum"
        with pytest.raises(ValueError, match=rf"has {name}=0\.[59].*Use SGD\(momentum=0\)"):
            small_model().compile(made, "mse")
        small_model().compile(optimizers.SGD(0.1), "mse")
        variable = tf.Variable([1.0])
    with pytest.raises(ValueError, match="both would be applied"):
        strategy.run(lambda: made.apply_gradients([(tf.constant([1.0]), variable)]))


@pytest.mark.parametrize("name", ["RMSprop", "Adagrad", "Adadelta", "Ftrl"])
def test_an_optimizer_that_undoes_momentum_is_refused(name):
    with tfgc.CompressedMultiWorkerMirroredStrategy("topk:momentum=0.9").scope():
        model, optimizer = small_model(), getattr(tf.keras.optimizers, name)()
        with pytest.raises(ValueError, match=rf"{name} divides gradients .*SGD\(momentum=0\)"):
            model.compile(optimizer, "mse")


def test_a_gradient_of_unknown_shape_has_momentum_as_its_variable_has_a_shape():
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy("topk:momentum=0.9")
    with strategy.scope():
        variable, shapeless = tf.Variable([0.0, 0.0]), tf.Variable([0.0], shape=[None])

    def step_of(trained):
        def step(gradient):
            pairs = [(gradient, trained)]
            return strategy.run(lambda: tfgc.all_reduce_gradients(pairs)[0][0])

        return tf.function(step, input_signature=[tf.TensorSpec([None])])

    step = step_of(variable)
    sums = [step(tf.ones(2)).numpy().tolist() for _ in range(3)]
    np.testing.assert_allclose(sums, np.outer([1, 1.9, 2.71], [1, 1]), rtol=1e-6)
    with pytest.raises(ValueError, match="no static shape"):
        step_of(shapeless)(tf.ones(2))


def test_a_dense_layer_after_a_recurrent_one_is_exchanged_with_the_others():
    """In Keras 3 its gradient has no static shape while the step is traced."""
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy("topk:momentum=0.9")
    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential(
            [layers.Input((5, 3)), layers.LSTM(4, return_sequences=True), layers.Dense(7)]
        )
        model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    model.fit(np.ones((8, 5, 3)), np.ones((8, 5, 7)), verbose=0)
    (plan,) = strategy.plans
    assert sorted(variable.shape for variable in plan.variables) == sorted(
        tuple(variable.shape) for variable in model.trainable_variables
    )


@pytest.mark.skipif(IS_KERAS3, reason="Keras 3 has no legacy optimizers")
def test_a_legacy_optimizer_that_scales_losses_takes_the_momentum():
    """Its hyperparameters are variables that are made in the function that is traced."""
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy("topk:momentum=0.9")
    optimizers = tf.keras.optimizers
    with strategy.scope():
        variable = tf.Variable([1.0])
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizers.legacy.SGD(0.5))

    @tf.function
    def step():
        def replica_step():
            with tf.GradientTape() as tape:
                loss = optimizer.get_scaled_loss(2 * variable)
            gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [variable]))
            optimizer.apply_gradients(zip(gradients, [variable], strict=True))

        strategy.run(replica_step)

    step()
    step()
    np.testing.assert_allclose(variable, [1 - 0.5 * (2 + 3.8)], rtol=1e-6)


@pytest.mark.parametrize("learning_rate", [-1.0, float("nan"), [0.1, 0.2]])
def test_a_learning_rate_that_is_none_is_refused(strategy, learning_rate):
    def replica_step():
        tfgc.all_reduce_gradients([(tf.constant([1.0]), variable)], learning_rate)

    with strategy.scope():
        variable = tf.Variable([1.0])
    with pytest.raises(ValueError, match="learning_rate must be"):
        strategy.run(replica_step)


@pytest.mark.parametrize("name", ["MovingAverage", "SWA", "Lookahead"])
def test_the_learning_rate_of_a_wrapped_optimizer_is_known(name):
    tfa = pytest.importorskip("tensorflow_addons")
    inner = tf.keras.optimizers.legacy.SGD(0.25)
    assert float(keras2._learning_rate(getattr(tfa.optimizers, name)(inner))) == 0.25


def test_strategy_is_what_keras_looks_for(strategy):
    assert isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    assert strategy.num_replicas_in_sync == 1
    assert str(strategy.policy.default) == "fft"


def test_reduce_takes_structures_and_scalars(strategy):
    def values():
        return {"a": tf.constant(3.0), "b": (tf.constant([1.0, 2.0]), tf.constant(5.0))}

    total = strategy.reduce("MEAN", strategy.run(values), axis=0)
    tf.nest.map_structure(
        np.testing.assert_array_equal, total, {"a": 3.0, "b": (np.float32(1.5), 5.0)}
    )


def test_reducing_outside_of_a_replica_is_an_error(strategy):
    with strategy.scope(), pytest.raises(RuntimeError, match="strategy.run"):
        tfgc.all_reduce_gradients([(tf.ones(3), tf.Variable(tf.ones(3)))])


def test_bad_arguments_fail_before_the_cluster_is_joined():
    expected = {
        "'fft:density=2'": "density must be in (0, 1.0], got 2",
        "'ftt'": "unknown codec 'ftt'",
        "7": "expected a Compression",
        "'fft', communication_options={'timeout_seconds': 3}": "communication_options",
        "'fft', communication_options=Options(timeout_seconds=-1)": "timeout_seconds must be",
        "'fft', communication_options=Options(timeout_seconds=1e9)": "timeout_seconds must be",
    }
    # The cluster has a second worker that never starts: waiting for it would hang.
    code = f"""
import json, os
cluster = {{"worker": ["127.0.0.1:1", "127.0.0.1:2"]}}
task = {{"type": "worker", "index": 0}}
os.environ["TF_CONFIG"] = json.dumps({{"cluster": cluster, "task": task}})
import tensorflow as tf
import tf_gradcomp as tfgc
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import VariableInfo, as_policy
Options = tf.distribute.experimental.CommunicationOptions
for arguments in {list(expected)}:
    try:
        eval(f"tfgc.CompressedMultiWorkerMirroredStrategy({{arguments}})")
    except ValueError as error:
        print("ValueError", str(error).replace("\\n", " "))
"""
    process = run_python(code)
    assert process.returncode == 0, process.stderr
    messages = [line for line in process.stdout.splitlines() if line.startswith("ValueError")]
    for words, message in zip(expected.values(), messages, strict=True):
        assert words in message


@pytest.mark.skipif(not IS_KERAS3, reason="about Keras 3")
def test_keras_older_than_3_5_is_refused_when_the_strategy_is_made():
    process = run_python(
        """
import keras
keras.__version__ = "3.4.1"
import tf_gradcomp as tfgc
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import VariableInfo, as_policy
tfgc.CompressedMultiWorkerMirroredStrategy("fft")
"""
    )
    assert process.returncode == 1
    assert "Keras 3.4.1 sums gradients wrongly" in process.stderr
    assert "pip install --upgrade 'keras>=3.5'" in process.stderr


def test_importing_the_package_does_not_load_tensorflow():
    process = run_python(
        "import sys, tf_gradcomp; assert 'tensorflow' not in sys.modules; print(dir(tf_gradcomp))"
    )
    assert process.returncode == 0, process.stderr
    assert "CompressedMultiWorkerMirroredStrategy" in process.stdout


def test_an_iterator_that_lives_until_the_end_does_no_harm():
    process = run_python(
        """
import tensorflow as tf
import tf_gradcomp as tfgc
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import VariableInfo, as_policy
strategy = tfgc.CompressedMultiWorkerMirroredStrategy("fft")
data = tf.data.Dataset.range(1000).map(lambda i: tf.py_function(lambda i: i, [i], tf.int64))
iterator = iter(strategy.experimental_distribute_dataset(data.repeat().batch(8)))
def step(batch):
    return batch
for _ in range(3):
    strategy.run(step, args=(next(iterator),))
print("done", flush=True)
"""
    )
    assert process.returncode == 0, process.stderr
    assert "done" in process.stdout


@pytest.mark.skipif(not IS_KERAS3, reason="Keras 2 wraps no variables")
def test_a_keras_optimizer_trains_a_plain_variable(strategy):
    with strategy.scope():
        variable = tf.Variable(3.0)
        optimizer = tf.keras.optimizers.SGD(0.5)
    strategy.run(lambda: optimizer.apply_gradients([(tf.constant(2.0), variable)]))
    assert variable.numpy() == 2.0


def test_the_monitor_says_when_the_strategy_was_forgotten(caplog):
    model = small_model()
    model.compile("sgd", "mse")
    monitor = tfgc.callbacks.CompressionMonitor()
    model.fit(np.ones((8, 6)), np.ones((8, 3)), verbose=0, callbacks=[monitor])
    assert "no gradients are compressed" in caplog.text


@pytest.mark.parametrize(("policy", "warns"), [("fft", True), ("none", False)])
def test_the_monitor_says_when_no_variable_is_compressed(policy, warns, caplog):
    """A model whose variables are all too small; the plan is what two workers would have."""
    infos = [VariableInfo("kernel", (6, 3), "float32"), VariableInfo("bias", (3,), "float32")]
    monitor = tfgc.callbacks.CompressionMonitor()
    plan = make_plan(infos, as_policy(policy), 2)
    reducer = SimpleNamespace(
        policy=as_policy(policy),
        counted_bytes=lambda keys: [(plan, 1, 0)],
        row_sparse_bytes=lambda keys: 0,
        views=lambda keys: {},
    )
    monitor._reducer = lambda: reducer
    monitor.set_model(small_model())
    monitor.on_train_begin()
    monitor.on_epoch_end(0)
    monitor.on_train_end()
    assert ("all gradients were sent as they are" in caplog.text) == warns


def test_the_monitor_counts_what_an_epoch_has_exchanged(caplog):
    """A single worker exchanges nothing, but has plans where compression has the momentum."""
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy("topk:momentum=0.9")
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Input((6,)), *(tf.keras.layers.Dense(3) for _ in range(2))]
        )

    def bytes_of_a_fit(trainable=None, compiles=True):
        if trainable is not None:
            model.layers[0].trainable = trainable
        if compiles:
            with strategy.scope():
                model.compile("sgd", "mse")
        monitor = tfgc.callbacks.CompressionMonitor()
        model.fit(np.ones((8, 6)), np.ones((8, 3)), verbose=0, callbacks=[monitor])
        (figures,) = monitor.history
        assert figures["payload_bytes"] == figures["dense_bytes"]
        return figures["dense_bytes"]

    head, everything = 4 * (3 * 3 + 3), 4 * (6 * 3 + 3 + 3 * 3 + 3)
    assert bytes_of_a_fit() == everything
    assert bytes_of_a_fit(trainable=False) == head
    assert bytes_of_a_fit(trainable=True) == everything
    # Keras trains on as compiled.
    assert bytes_of_a_fit(trainable=False, compiles=False) == everything
    assert "No gradient passed" not in caplog.text


def test_the_monitor_keeps_what_has_changed_in_an_epoch(tmp_path):
    """Noting it takes time that is no step's."""
    script = [
        {"a": {"density": 1.0}, "b": {"density": 0.5, "bits": 8.0}},
        {"a": {"density": 1.0}, "b": {"density": 0.5, "bits": 6.0}},
        {"a": {"density": 1.0}, "b": {"density": 0.5, "bits": 6.0}},
        {"b": {"density": 0.5, "bits": 6.0}},
        {"b": {"density": 0.25, "bits": 6.0}},
        {"b": {"density": 0.25, "bits": 6.0}},
    ]
    noted = []

    def decisions(keys):
        time.sleep(0.2)
        noted.append(script[len(noted)])
        return noted[-1]

    reducer = SimpleNamespace(
        decisions=decisions,
        next_number=lambda keys: 100 + len(noted),  # as of a run that goes on
        counted_bytes=lambda keys: [],
        row_sparse_bytes=lambda keys: 0,
        views=lambda keys: {},
        deltas=lambda keys: {},
    )
    monitor = tfgc.callbacks.CompressionMonitor(tmp_path)
    monitor._reducer = lambda: reducer
    monitor.set_model(small_model())
    monitor.on_train_begin()
    found = []
    for epoch, num_steps in enumerate([2, 4]):
        monitor.on_epoch_begin(epoch)
        for batch in range(num_steps):
            monitor.on_train_batch_end(batch)
        monitor.on_epoch_end(epoch)
        found.append(monitor.decisions)
    assert found == [
        [(101, script[0]), (102, {"b": {"density": 0.5, "bits": 6.0}})],
        [(104, {"a": {}}), (105, {"b": {"density": 0.25, "bits": 6.0}})],
    ]
    assert monitor.history[-1]["step_ms"] < 100
    (path,) = tmp_path.glob("events.*")
    written = [
        (value.tag, event.step)
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if not value.tag.startswith("compression/")
    ]
    assert written == [
        ("density/a", 101),
        ("density/b", 101),
        ("bits/b", 101),
        ("bits/b", 102),
        ("density/b", 105),
    ]
