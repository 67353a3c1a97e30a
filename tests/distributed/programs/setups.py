# SPDX-License-Identifier: Apache-2.0
"""Ways to train that are less common, one function each, several in one pair of processes.

The name of a model's layers says how it is compressed: "topk" lossily, "exact" without loss through
our exchange, and "plain" not at all.
"""

from __future__ import annotations

import gc
import hashlib
import sys
import weakref
from pathlib import Path
from typing import Any

import cluster
import numpy as np
import tensorflow as tf
from keras_generation import IS_KERAS3

import tf_gradcomp as tfgc

keras = tf.keras
layers = keras.layers

POLICY = tfgc.Policy(
    "topk:density=0.1", rules=(("*exact*", "identity:scope=layer"), ("*plain*", "none"))
)
BATCH = 32  # of both workers
STEPS = 8  # an epoch


def main(folder: str, *cases: str) -> None:
    """Each case is ``"<function>:<kind>"``, with a kind of the policy's."""
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(POLICY)
    figures = {}
    for case in cases:
        name, kind = case.split(":")
        keras.utils.set_random_seed(7)
        job = Job(strategy, kind, Path(folder) / str(strategy.cluster_resolver.task_id))
        figures[case] = globals()[name](job)
        keras.backend.clear_session()
        gc.collect()
    cluster.report(**figures)


class Job:
    """What a case works with."""

    def __init__(self, strategy: Any, kind: str, folder: Path) -> None:
        self.strategy = strategy
        self.kind = kind
        self.folder = folder

    def dense(self, name: str, units: int, **arguments: Any) -> Any:
        return layers.Dense(units, name=f"{self.kind}_{name}", **arguments)

    def layers(self) -> list[Any]:
        return [
            layers.Input((64,)),
            self.dense("base", 96, activation="relu"),
            self.dense("middle", 64, activation="relu"),
            self.dense("head", 80),
        ]

    def trained_model(self) -> Any:
        with self.strategy.scope():
            model = keras.Sequential(self.layers())
        self.compile(model)
        self.fit(model)
        return model

    def compile(self, model: Any) -> None:
        with self.strategy.scope():
            model.compile(keras.optimizers.SGD(0.05), keras.losses.MeanSquaredError())

    def fit(self, model: Any, data: Any = None, epochs: int = 2) -> list[float]:
        """Trains, and returns the losses."""
        history = model.fit(regression() if data is None else data, epochs=epochs, verbose=0)
        return history.history["loss"]

    def fit_without_gradient(self, model: Any, units: int = 80) -> None:
        """A step that changes the weights by nothing but what residuals hold."""
        inputs, targets = np.ones((BATCH, 64), np.float32), np.ones((BATCH, units), np.float32)
        model.fit(batches(inputs, targets, np.zeros(BATCH, np.float32)), epochs=1, verbose=0)

    def plans(self) -> list[dict[str, Any]]:
        """What is exchanged of variables of this kind, and what it has yet to send of each."""
        entries = self.strategy.extended.reducer._entries.values()
        return [
            {
                "names": [variable.name for variable in entry.plan.variables],
                "how": {
                    entry.plan.variables[i].name: f"{bucket.how} {bucket.dtype}"
                    for bucket in entry.plan.buckets
                    for i in bucket.indices
                },
                "payload_bytes": entry.plan.payload_bytes,
                "dense_bytes": entry.plan.dense_bytes,
                "left_over": {
                    entry.plan.variables[i].name: float(tf.norm(part))
                    for exchange in entry.exchanges
                    for i, part in zip(exchange.bucket.indices, exchange.left_over(), strict=False)
                },
            }
            for entry in entries
            if entry.is_alive()
        ]


def batches(*arrays: np.ndarray) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH).with_options(options)


def regression(units: int = 80) -> Any:
    """Inputs, and what a random matrix makes of them."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(STEPS * BATCH, 64)).astype(np.float32)
    return batches(inputs, (inputs @ rng.normal(size=(64, units)) / 8).astype(np.float32))


def digest(weights: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in weights)).hexdigest()[:16]


def result(job: Job, model: Any, losses: Any, **others: Any) -> dict[str, Any]:
    return {
        "weights": digest(model.get_weights()),
        "losses": losses,
        "plans": job.plans(),
        **others,
    }


# --- Several optimizers --------------------------------------------------------------------------


class Gan(keras.Model):
    """A generator that is to match a distribution, and a discriminator."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.num_replicas = job.strategy.num_replicas_in_sync
        self.generator = keras.Sequential(
            [
                layers.Input((64,)),
                job.dense("generator_1", 80, activation="relu"),
                job.dense("generator_2", 64),
            ]
        )
        self.discriminator = keras.Sequential(
            [
                layers.Input((64,)),
                job.dense("discriminator_1", 96, activation="relu"),
                job.dense("discriminator_2", 1),
            ]
        )
        self.cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    def call(self, noise: Any) -> Any:
        return self.discriminator(self.generator(noise))

    def compile(self, generator_optimizer: Any, discriminator_optimizer: Any) -> None:
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer

    def train_step(self, data: Any) -> dict[str, Any]:
        noise, real = data
        size = tf.shape(real)[0]
        with tf.GradientTape() as tape:
            logits = self.discriminator(tf.concat([self.generator(noise), real], axis=0))
            labels = tf.concat([tf.zeros([size, 1]), tf.ones([size, 1])], axis=0)
            loss = self._mean(self.cross_entropy(labels, logits))
        self._apply(self.discriminator_optimizer, self.discriminator, tape, loss)
        with tf.GradientTape() as tape:
            logits = self.discriminator(self.generator(noise))
            generator_loss = self._mean(self.cross_entropy(tf.ones([size, 1]), logits))
        variables = self.generator.trainable_variables
        gradients = tape.gradient(generator_loss, variables)
        # The older way, which Keras 3 has as well.
        self.generator_optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss * self.num_replicas, "generator_loss": generator_loss}

    def _mean(self, losses: Any) -> Any:
        return tf.reduce_mean(losses) / self.num_replicas

    def _apply(self, optimizer: Any, model: Any, tape: Any, loss: Any) -> None:
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        if IS_KERAS3:
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))


def gan(job: Job) -> dict[str, Any]:
    with job.strategy.scope():
        model = Gan(job)
        model.compile(keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-2))
    rng = np.random.default_rng(4)
    noise, real = rng.normal(size=(2, STEPS * BATCH, 64)).astype(np.float32)
    return result(job, model, job.fit(model, batches(noise, real * 3 + 1)))


# --- Other variables than before -----------------------------------------------------------------


def frozen(job: Job) -> dict[str, Any]:
    """The lowest layer is frozen, trained, and frozen again."""
    with job.strategy.scope():
        model = keras.Sequential(job.layers())
    base, _, head = model.layers
    base_weights, moved, losses, plans = [digest(base.get_weights())], [], [], []
    for is_frozen in (True, False, True):
        base.trainable = not is_frozen
        job.compile(model)
        before = head.get_weights()[0]
        job.fit_without_gradient(model)
        moved.append(float(np.abs(head.get_weights()[0] - before).max()))
        losses += job.fit(model, epochs=1)
        base_weights.append(digest(base.get_weights()))
        plans.append(job.plans())
    return result(job, model, losses, base_weights=base_weights, moved=moved, plans_over_time=plans)


def new_head(job: Job) -> dict[str, Any]:
    """A model is trained, gets another head, and goes on; then a further layer."""
    model = job.trained_model()
    num_plans = [len(job.plans())]
    model.pop()
    with job.strategy.scope():
        model.add(job.dense("new_head", 70))
    job.compile(model)
    gc.collect()
    before = model.layers[0].get_weights()[0]
    job.fit_without_gradient(model, units=70)
    moved = float(np.abs(model.layers[0].get_weights()[0] - before).max())
    losses = job.fit(model, regression(70))
    num_plans.append(len(job.plans()))
    with job.strategy.scope():
        model.add(job.dense("further", 70))
    job.compile(model)
    losses_further = job.fit(model, regression(70))
    return result(
        job, model, losses, moved=moved, num_plans=num_plans, losses_further=losses_further
    )


class UnusedBranch(keras.Model):
    """A model of which one layer is built and never used."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.used = job.dense("used", 80)
        self.unused = job.dense("unused", 80)

    def build(self, input_shape: Any) -> None:
        self.used.build(input_shape)
        self.unused.build(input_shape)
        self.built = True

    def call(self, inputs: Any) -> Any:
        return self.used(inputs)


def unused_branch(job: Job) -> dict[str, Any]:
    with job.strategy.scope():
        model = UnusedBranch(job)
        model.build((None, 64))
    job.compile(model)
    before = digest(model.unused.get_weights())
    losses = job.fit(model)
    is_untouched = digest(model.unused.get_weights()) == before
    return result(job, model, losses, is_untouched=is_untouched)


def some_traces(job: Job) -> dict[str, Any]:
    """A loop of one's own in which a branch has a gradient in every other step."""
    with job.strategy.scope():
        model = keras.Sequential(job.layers())
        branch = keras.Sequential([layers.Input((64,)), job.dense("branch", 80)])
        optimizer = keras.optimizers.SGD(0.05)
        variables = model.trainable_variables + branch.trainable_variables
        if IS_KERAS3:
            optimizer.build(variables)

    @tf.function
    def train_step(data: Any, with_branch: bool) -> Any:
        def replica_step(inputs: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                outputs = model(inputs) + (branch(inputs) if with_branch else 0.0)
                loss = tf.reduce_mean((outputs - targets) ** 2) / 2
            gradients = tape.gradient(loss, variables)
            pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
            optimizer.apply_gradients(pairs)
            return loss

        per_replica = job.strategy.run(replica_step, args=data)
        return job.strategy.reduce("SUM", per_replica, axis=None)

    losses = []
    for _ in range(2):
        distributed = job.strategy.experimental_distribute_dataset(regression())
        for step, data in enumerate(distributed):
            losses.append(float(train_step(data, with_branch=step % 2 == 0)))
    weights = [np.asarray(variable) for variable in variables]
    return {"weights": digest(weights), "losses": losses[::2], "plans": job.plans()}


def clone(job: Job) -> dict[str, Any]:
    """A clone is trained on; the original goes, and what was kept for it."""
    model = job.trained_model()
    (original,) = job.plans()
    with job.strategy.scope():
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
    job.compile(copy)
    before = digest(copy.get_weights())
    job.fit_without_gradient(copy)
    is_new = digest(copy.get_weights()) == before
    losses = job.fit(copy)
    num_plans = [len(job.plans())]
    is_gone = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    num_plans.append(len(job.plans()))
    return result(
        job, copy, losses,
        is_new=is_new, num_plans=num_plans, original=original, is_gone=is_gone() is None,
    )  # fmt: skip


# --- Saving --------------------------------------------------------------------------------------


def saving(job: Job) -> dict[str, Any]:
    """Every way to save a trained model, and to load it here."""
    model = job.trained_model()
    job.folder.mkdir(parents=True)
    if IS_KERAS3:
        model.export(job.folder / "exported", verbose=False)
    else:
        model.save(job.folder / "exported")
    tf.saved_model.save(model, str(job.folder / "saved_model"))
    files = [job.folder / "model.keras", job.folder / "model.h5"]
    inputs = np.random.default_rng(5).normal(size=(4, 64)).astype(np.float32)
    expected = np.asarray(model(inputs))
    np.savez(job.folder / "expected.npz", inputs=inputs, outputs=expected)
    same, losses = [], model.history.history["loss"][:1]
    for file in files:
        model.save(file)
        loaded = keras.models.load_model(file)
        same.append(np.array_equal(np.asarray(loaded(inputs)), expected))
        with job.strategy.scope():
            loaded = keras.models.load_model(file)
        same.append(np.array_equal(np.asarray(loaded(inputs)), expected))
        if IS_KERAS3 and file.suffix == ".h5":
            # Under no strategy does Keras 3 find the variables of the optimizer that it loads.
            job.compile(loaded)
        losses.append(job.fit(loaded, epochs=1)[0])
    return result(job, loaded, losses, same=same)


# --- Loops ---------------------------------------------------------------------------------------


def loops(job: Job) -> dict[str, Any]:
    """`tf.range` and `tf.while_loop` over steps, and a gradient for each of two losses."""
    with job.strategy.scope():
        model = keras.Sequential(job.layers())
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        if IS_KERAS3:
            optimizer.build(model.trainable_variables)
    variables = model.trainable_variables

    def replica_step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs) - targets) ** 2) / 2
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def step(iterator: Any) -> Any:
        per_replica = job.strategy.run(replica_step, args=next(iterator))
        return job.strategy.reduce("SUM", per_replica, axis=None)

    @tf.function
    def in_range(iterator: Any) -> Any:
        loss = 0.0
        for _ in tf.range(STEPS):
            loss = step(iterator)
        return loss

    @tf.function
    def in_while_loop(iterator: Any) -> Any:
        _, loss = tf.while_loop(
            lambda count, loss: count < STEPS, lambda count, loss: (count + 1, step(iterator)),
            (0, 0.0),
        )  # fmt: skip
        return loss

    @tf.function
    def two_gradients() -> Any:
        worker = job.strategy.extended.reducer.collectives.worker_index
        variable = variables[0]
        raw = variable.value if IS_KERAS3 else variable

        def replica_step() -> list[Any]:
            parts = [tf.fill(variable.shape, float(1 + worker)), tf.fill(variable.shape, 10.0)]
            return [g for g, _ in tfgc.all_reduce_gradients([(part, raw) for part in parts])]

        return job.strategy.run(replica_step)

    distributed = job.strategy.experimental_distribute_dataset(regression().repeat(4))
    iterator = iter(distributed)
    losses = [float(loop(iterator)) for loop in (in_range, in_while_loop) * 2]
    sums = [np.unique(np.asarray(total)).tolist() for total in two_gradients()]
    return result(job, model, losses, sums=sums)


# --- Models --------------------------------------------------------------------------------------


class TwoInputs(keras.Model):
    """Two inputs, two outputs, and a loss of its own."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.left = job.dense("left", 64, activation="relu")
        self.right = job.dense("right", 64, activation="relu")
        self.first = job.dense("first", 80)
        self.second = job.dense("second", 80)

    def call(self, inputs: Any) -> Any:
        left, right = self.left(inputs["left"]), self.right(inputs["right"])
        both = left + right
        self.add_loss(1e-3 * tf.reduce_mean(both**2))
        return {"first": self.first(both), "second": self.second(left * right)}


def two_inputs(job: Job) -> dict[str, Any]:
    with job.strategy.scope():
        model = TwoInputs(job)
        model.compile(keras.optimizers.Adam(2e-3), {"first": "mse", "second": "mae"})

    def split(inputs: Any, targets: Any) -> Any:
        left, right = tf.split(inputs, 2, axis=1)
        return {"left": left, "right": right}, {"first": targets, "second": targets}

    return result(job, model, job.fit(model, regression().map(split), epochs=3))


def recurrent(job: Job) -> dict[str, Any]:
    inputs = layers.Input((64,))
    with job.strategy.scope():
        steps = layers.Reshape((8, 8))(inputs)
        states = layers.LSTM(64, return_sequences=True, name=f"{job.kind}_lstm")(steps)
        query = job.dense("query", 64)(states)
        attended = layers.Attention(name=f"{job.kind}_attention")([query, states])
        outputs = job.dense("head", 80)(layers.GlobalAveragePooling1D()(attended))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.Adam(5e-3), "mse")
    return result(job, model, job.fit(model, epochs=3))


def several_types(job: Job) -> dict[str, Any]:
    """Variables of float16, float32 and float64 in one model."""
    with job.strategy.scope():
        model = keras.Sequential(
            [
                layers.Input((64,)),
                job.dense("half", 80, dtype="float16"),
                job.dense("single", 80, activation="relu"),
                job.dense("double", 80, dtype="float64"),
            ]
        )
    job.compile(model)
    losses = job.fit(model, regression().map(lambda x, y: (x, tf.cast(y, tf.float64))), epochs=3)
    types = [str(np.asarray(weight).dtype) for weight in model.get_weights()]
    return result(job, model, losses, types=types)


if __name__ == "__main__":
    main(*sys.argv[1:])
