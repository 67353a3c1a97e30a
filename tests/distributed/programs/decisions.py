# SPDX-License-Identifier: Apache-2.0
"""Trains a small model of which every part is told in another way what to send in each exchange.

The name of a layer says who decides on its kernel: "chance", a controller that draws another
density for every exchange; "scheduled" and "falling", schedules of Keras; "window" and "lags", the
controllers of these names.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import cluster
import numpy as np
import tensorflow as tf
from traced_bucket import traced_bucket

import tf_gradcomp as tfgc
from tf_gradcomp import state
from tf_gradcomp.controllers.base import Controller, Decision, Setting
from tf_gradcomp.transports.base import Collectives

keras = tf.keras

EPOCHS = 2
BATCH = 16  # of both workers
MAX_BUCKETS = 16
WIDTH = 48  # of the inputs, the layers and the outputs
DENSITIES = (0.0, 0.05, 1.0)


@dataclasses.dataclass(frozen=True)
class Chance(Controller):
    """Draws the density of each bucket for every exchange, on each worker others."""

    withholds = True
    period = 1
    statistics = ()

    def start(self, setting: Setting) -> Decision:
        return self._draw(setting)

    def decide(
        self, setting: Setting, state: np.ndarray, measured: Mapping[str, np.ndarray]
    ) -> Decision:
        return self._draw(setting)

    def _draw(self, setting: Setting) -> Decision:
        densities = np.random.default_rng().choice(DENSITIES, (1, len(setting.buckets)))
        return Decision(np.zeros(1), densities)


def make_policy(kinds: list[str], exchanges: int) -> tfgc.Policy:
    """Returns a policy in which schedules end, and windows have moved, within so many exchanges."""
    schedules = keras.optimizers.schedules
    density = schedules.PolynomialDecay(0.25, exchanges // 2, 0.02)
    bits = schedules.PiecewiseConstantDecay([exchanges // 4, exchanges // 2], [8, 6, 4])
    by_kind = {
        "chance": tfgc.Compression(
            "topk", {"density": 0.1}, scope="layer", transport="all_gather", controller=Chance()
        ),
        "scheduled": tfgc.Compression(
            "fft", {"density": density, "bits": bits}, scope="layer", transport="all_gather"
        ),
        "falling": tfgc.Compression("topk", {"density": density}, scope="layer"),
        "window": tfgc.methods.layer_window(budget=0.5, period=7),
        "lags": dataclasses.replace(
            tfgc.methods.lags(density=0.1, period=5), transport="all_gather"
        ),
    }
    return tfgc.Policy("none", rules=tuple((f"*{kind}*/kernel*", by_kind[kind]) for kind in kinds))


def make_model(kinds: list[str]) -> Any:
    """For every kind, two layers beside those of the others."""
    layers = keras.layers
    inputs = layers.Input((WIDTH,))
    outputs = []
    for kind in kinds:
        hidden = layers.Dense(WIDTH, activation="relu", name=f"{kind}_bottom")(inputs)
        outputs.append(layers.Dense(WIDTH, name=f"{kind}_top")(hidden))
    total = layers.Add()(outputs) if len(outputs) > 1 else outputs[0]
    # In float32 under mixed precision, too, as Keras advises.
    return keras.Model(inputs, layers.Activation("linear", dtype="float32")(total))


def make_data() -> Any:
    """Inputs, and what a random matrix makes of them."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(1024, WIDTH)).astype(np.float32)
    targets = np.tanh(inputs @ rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(BATCH)
    return data.repeat().with_options(options)


class CountedCollectives:
    """Collectives that count the 32-bit words that this worker hands over for each bucket."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        # Each bucket has a variable of its own, lest one waits for another.
        self._words = [
            state.host_zeros((), f"words_{number}", tf.int64) for number in range(MAX_BUCKETS)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collectives, name)

    def all_gather(self, words: tf.Tensor) -> tf.Tensor:
        self._count(words)
        return self._collectives.all_gather(words)

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        self._count(tensor)
        return self._collectives.all_reduce(tensor)

    def bytes_of(self, number: int) -> int:
        """Returns the bytes of a bucket so far."""
        return 4 * int(self._words[number])

    def _count(self, tensor: tf.Tensor) -> None:
        number = traced_bucket()
        if number is not None:
            with tf.device("CPU:0"):
                self._words[number].assign_add(tf.size(tensor, tf.int64))


class TracedLoss:
    """The mean squared error, which counts how often it is traced."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        self.count += 1
        return tf.reduce_mean(tf.square(tf.cast(targets, outputs.dtype) - outputs), axis=-1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default="chance,scheduled,window,lags")
    parser.add_argument("--steps", type=int, default=100, help="of all epochs")
    parser.add_argument("--steps-per-execution", type=int, default=1)
    parser.add_argument("--eagerly", action="store_true")
    parser.add_argument("--accumulate", action="store_true", help="gradients of two steps")
    parser.add_argument("--policy", help="of mixed precision")
    args = parser.parse_args()

    kinds = args.kinds.split(",")
    # Schedules are made and looked at before there is a cluster.
    exchanges = args.steps // 2 if args.accumulate else args.steps
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(make_policy(kinds, exchanges))
    keras.utils.set_random_seed(11)
    if args.policy:
        keras.mixed_precision.set_global_policy(args.policy)
    reducer, loss = strategy.extended.reducer, TracedLoss()
    counted = reducer.collectives = CountedCollectives(reducer.collectives)
    options = {"gradient_accumulation_steps": 2} if args.accumulate else {}
    with strategy.scope():
        model = make_model(kinds)
        model.compile(
            keras.optimizers.SGD(0.2, **options),
            loss,
            run_eagerly=args.eagerly,
            steps_per_execution=args.steps_per_execution,
        )
    counts: list[int] = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: counts.append(loss.count)
    )
    monitor = tfgc.callbacks.CompressionMonitor()
    changes: list[tuple[int, dict[str, dict[str, float]]]] = []
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: changes.extend(monitor.decisions)
    )
    history = model.fit(
        make_data(),
        epochs=EPOCHS,
        steps_per_epoch=args.steps // EPOCHS,
        verbose=0,
        callbacks=[monitor, keep, count],
    )
    (entry,) = reducer._entries.values()
    weights = b"".join(np.asarray(weight).tobytes() for weight in model.get_weights())
    cluster.report(
        weights=hashlib.sha256(weights).hexdigest(),
        losses=history.history["loss"],
        traces=[counts[0], counts[-1]],
        exchanges=int(entry.counter),
        decisions=strategy.decisions,
        log=list(itertools.accumulate(changes, lambda log, new: (new[0], log[1] | new[1]))),
        profile=reducer.profile(),
        payload_bytes=[figures["payload_bytes"] for figures in monitor.history],
        buckets=[
            {
                "names": [entry.plan.variables[index].name for index in exchange.bucket.indices],
                "payload_bytes": exchange.bucket.payload_bytes,
                "handed_over": counted.bytes_of(number),
                "counted": int(exchange.sent) if exchange.bucket.changes else None,
            }
            for number, exchange in enumerate(entry.exchanges)
        ],
    )


if __name__ == "__main__":
    main()
