# SPDX-License-Identifier: Apache-2.0
"""Trains a small model on made-up data and reports what came of it."""

from __future__ import annotations

import argparse
import hashlib

import cluster
import numpy as np
import tensorflow as tf

import tf_gradcomp as tfgc
from tf_gradcomp.distribute import replica_launcher
from tf_gradcomp.exchanges import Exchange
from tf_gradcomp.transports.base import Collectives

keras = tf.keras


def make_data(num_examples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, num_examples).astype(np.int32)
    # Neighbouring pixels are alike, as in pictures.
    prototypes = np.kron(rng.normal(size=(10, 3, 3, 1)), np.ones((1, 4, 4, 1)))
    images = prototypes[labels] + rng.normal(size=(num_examples, 12, 12, 1))
    return images.astype(np.float32), labels


def make_model(kind: str) -> keras.Model:
    layers = keras.layers
    if kind == "embedding":
        return keras.Sequential(
            [
                layers.Input((12, 12, 1)),
                layers.Flatten(),
                layers.Lambda(lambda x: tf.cast(tf.abs(x) * 10, tf.int32) % 50, (144,)),
                layers.Embedding(50, 16),
                layers.GlobalAveragePooling1D(),
                layers.Dense(512, activation="relu"),
                layers.Dense(10, dtype="float32"),  # also under mixed precision, as Keras advises
            ]
        )
    sync = getattr(layers, "experimental", layers)
    normalization = {
        "cnn": lambda: layers.BatchNormalization(),
        "sync": lambda: (
            layers.BatchNormalization(synchronized=True)
            if not hasattr(sync, "SyncBatchNormalization")
            else sync.SyncBatchNormalization()
        ),
    }[kind]
    return keras.Sequential(
        [
            layers.Input((12, 12, 1)),
            layers.Conv2D(16, 3),
            normalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, dtype="float32"),  # also under mixed precision, as Keras advises
        ]
    )


def make_optimizer(name: str) -> keras.optimizers.Optimizer:
    if name.startswith("legacy_"):
        legacy = keras.optimizers.legacy
        return {
            "legacy_sgd": lambda: legacy.SGD(0.02, momentum=0.9),
            "legacy_adam": lambda: legacy.Adam(1e-3),
            "legacy_decaying": lambda: legacy.SGD(decaying_rate()),
        }[name]()
    if name.startswith("tfa_"):
        import tensorflow_addons as tfa

        return {
            "tfa_lamb": lambda: tfa.optimizers.LAMB(1e-2),
            "tfa_lazy_adam": lambda: tfa.optimizers.LazyAdam(1e-3),
        }[name]()
    return {
        "sgd": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
        "plain": lambda: keras.optimizers.SGD(0.02),
        "decaying": lambda: keras.optimizers.SGD(decaying_rate()),
        "frozen": lambda: keras.optimizers.SGD(0.0),
        "adam": lambda: keras.optimizers.Adam(1e-3),
        "accumulate": lambda: keras.optimizers.SGD(0.02, gradient_accumulation_steps=2),
    }[name]()


def decaying_rate() -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.CosineDecay(0.1, 32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="fft")
    parser.add_argument("--rule", action="append", default=[], help="PATTERN=SPEC of a policy")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--eagerly", action="store_true")
    parser.add_argument("--steps-per-execution", type=int, default=1)
    parser.add_argument("--policy", help="of mixed precision")
    parser.add_argument("--overflow-on", type=int, help="worker whose first batch is infinite")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--examples", type=int, default=512)
    args = parser.parse_args()

    if args.deterministic:
        tf.config.experimental.enable_op_determinism()
    rules = tuple(tuple(rule.split("=", 1)) for rule in args.rule)
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(tfgc.Policy(args.compression, rules))
    keras.utils.set_random_seed(11)
    if args.policy:
        keras.mixed_precision.set_global_policy(args.policy)
    images, labels = make_data(args.examples)
    if args.overflow_on is not None:
        # A global batch of 64 is cut in two: the first half goes to worker 0.
        images[args.overflow_on * 32] = np.inf
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(64).with_options(options)
    with strategy.scope():
        model = make_model(args.model)
        model.compile(
            optimizer=make_optimizer(args.optimizer),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            run_eagerly=args.eagerly,
            steps_per_execution=args.steps_per_execution,
        )
    gathered = _GatheredWords(strategy.extended.reducer.collectives)
    monitor = tfgc.callbacks.CompressionMonitor()
    history = model.fit(data, epochs=args.epochs, verbose=0, callbacks=[monitor])
    evaluation = model.evaluate(data, verbose=0)
    predictions = np.asarray(model.predict(data, verbose=0))
    weights = [np.asarray(weight) for weight in model.get_weights()]
    cluster.report(
        history=history.history,
        evaluation=evaluation,
        prediction_shape=predictions.shape,
        weights=[hashlib.sha256(w.tobytes()).hexdigest()[:16] for w in weights],
        statistics=[
            np.asarray(variable).tolist()
            for variable in model.non_trainable_variables
            if "moving" in (getattr(variable, "path", "") or variable.name)
        ],
        payload_bytes=monitor.history[-1]["payload_bytes"],
        dense_bytes=monitor.history[-1]["dense_bytes"],
        plans=[plan.summary() for plan in strategy.plans],
        facts=[fact.value for plan in strategy.plans for fact in plan.facts()],
        views=strategy.views,
        bases=_bases(strategy),
        residual_norms=_residual_norms(strategy),
        last_rates=_last_rates(strategy),
        iterations=int(tf.convert_to_tensor(model.optimizer.iterations)),
        loss_scale=_loss_scale(model.optimizer),
        counted_keys=_counted_keys(strategy),
        gathered_words=gathered.sizes,
        traces=[gathered.traced_before_the_first, gathered.num_traced],
    )


class _GatheredWords:
    """Takes note of the payloads that are gathered in training.

    Attributes:
      sizes: of each message, in words.
      num_traced: how often functions that send one have been traced.
      traced_before_the_first: how often they had been before the first message.
    """

    def __init__(self, collectives: Collectives) -> None:
        self.sizes: list[int] = []
        self.num_traced = 0
        self.traced_before_the_first = 0
        gather = collectives.all_gather

        def all_gather(words: tf.Tensor) -> tf.Tensor:
            if "gradient_exchange_bucket" in tf.get_current_name_scope():
                self.num_traced += 1
                tf.py_function(self._note, [tf.size(words)], [])
            return gather(words)

        collectives.all_gather = all_gather

    def _note(self, size: tf.Tensor) -> None:
        if not self.sizes:
            self.traced_before_the_first = self.num_traced
        self.sizes.append(int(size))


def _counted_keys(strategy: tfgc.CompressedMultiWorkerMirroredStrategy) -> int:
    launcher = strategy.extended._cross_device_ops._launchers[0]
    return int(launcher._next_key) - replica_launcher._FIRST_KEY


def _loss_scale(optimizer: keras.optimizers.Optimizer) -> float | None:
    scale = getattr(optimizer, "dynamic_scale", getattr(optimizer, "loss_scale", None))
    return None if scale is None else float(tf.convert_to_tensor(scale))


def _residual_norms(strategy: tfgc.CompressedMultiWorkerMirroredStrategy) -> list[float]:
    return [
        float(tf.norm(residual))
        for exchange in _exchanges(strategy)
        for residual in getattr(exchange, "residuals", [])
    ]


def _bases(strategy: tfgc.CompressedMultiWorkerMirroredStrategy) -> list[str]:
    """What is learned of each basis; empty where it is nothing."""
    return [
        hashlib.sha256(value.tobytes()).hexdigest()[:16] if value.any() else ""
        for exchange in _exchanges(strategy)
        for name, variable in exchange.memory.items()
        if name.startswith("basis")
        for value in [variable.numpy()]
    ]


def _last_rates(strategy: tfgc.CompressedMultiWorkerMirroredStrategy) -> list[float]:
    memories = [exchange.memory for exchange in _exchanges(strategy)]
    return [float(m["learning_rate"]) for m in memories if "learning_rate" in m]


def _exchanges(strategy: tfgc.CompressedMultiWorkerMirroredStrategy) -> list[Exchange]:
    entries = strategy.extended.reducer._entries.values()
    return [exchange for entry in entries for exchange in entry.exchanges]


if __name__ == "__main__":
    main()
