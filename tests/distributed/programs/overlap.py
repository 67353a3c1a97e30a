# SPDX-License-Identifier: Apache-2.0
"""Trains with a clock in the graph and reports when gradients and collectives were at work.

TensorFlow's profiler shows the same, but now and then a process with collectives crashes in it.
"""

from __future__ import annotations

import sys
from typing import Any

import cluster
import numpy as np
import tensorflow as tf
from traced_bucket import traced_bucket

import tf_gradcomp as tfgc
from tf_gradcomp.distribute import compat

keras = tf.keras
NUM_STEPS = 8
# Of a layer with 2,048 inputs, that alone fills one of the buckets of 32 MiB of dense gradients.
WIDTH_FOR_A_DENSE_BUCKET = 4100


@tf.function
def _set_to_now(variable: tf.Variable) -> None:
    """Asks for the time in a function of its own: TensorFlow would put such questions in order."""
    variable.assign(tf.timestamp())


class Clock:
    """Notes when tensors are computed in a step. Each has a variable of its own: no order."""

    def __init__(self) -> None:
        self._times: dict[str, tf.Variable] = {}

    def note(self, name: str, tensors: list[tf.Tensor]) -> None:
        """Lets the graph note the time when it has all of the tensors."""
        if name not in self._times:
            self._times[name] = compat.local_variable(
                lambda: tf.zeros((), tf.float64), "CPU:0", "time"
            )
        with tf.control_dependencies(tensors):
            _set_to_now(self._times[name])

    def read(self) -> dict[str, float]:
        """Returns the times of the last step, in seconds, of what there was in it."""
        times = {name: float(variable) for name, variable in self._times.items()}
        for variable in self._times.values():
            variable.assign(0)
        return {name: time for name, time in times.items() if time}


class ClockedCollectives:
    """Collectives that note when the input and the output of each bucket are there."""

    def __init__(self, collectives: Any, clock: Clock) -> None:
        self._collectives = collectives
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collectives, name)

    def all_gather(self, words: tf.Tensor) -> tf.Tensor:
        return self._run(self._collectives.all_gather, words)

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        return self._run(self._collectives.all_reduce, tensor)

    def _run(self, collective: Any, tensor: tf.Tensor) -> tf.Tensor:
        number = traced_bucket()
        # Weights are compared after all exchanges, and views, in float64, after their bucket's.
        if number is None or tensor.dtype == tf.float64:
            return collective(tensor)
        self._clock.note(f"encoded {number}", [tensor])
        result = collective(tensor)
        self._clock.note(f"exchanged {number}", [result])
        return result


class ClockedSGD(keras.optimizers.SGD):
    """Notes when back-propagation ends."""

    clock: Clock

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        self.clock.note("gradients", [gradient for gradient, _ in pairs])
        return super().apply_gradients(pairs, *args, **kwargs)


def make_model(width: int) -> keras.Model:
    """A model whose lowest layer takes by far the longest."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((64, 64, 16)),
            layers.Conv2D(32, 5, padding="same", name="bottom"),
            layers.AveragePooling2D(8),
            layers.Flatten(),
            layers.Dense(width, activation="relu", name="wide"),
            layers.Dense(64, activation="relu", name="narrow"),
            layers.Dense(10, name="top"),
        ]
    )


def make_data() -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(32, 64, 64, 16)).astype(np.float32)
    labels = rng.integers(0, 10, 32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensors((images, labels)).repeat().with_options(options)


def train(strategy: tfgc.CompressedMultiWorkerMirroredStrategy, spec: str) -> dict[str, Any]:
    """Trains a new model and returns its buckets and the times of each step."""
    reducer, clock = strategy.extended.reducer, Clock()
    collectives, reducer.policy = reducer.collectives, tfgc.Policy(spec)
    reducer.collectives = ClockedCollectives(collectives, clock)
    with strategy.scope():
        model = make_model(WIDTH_FOR_A_DENSE_BUCKET if spec == "none" else 128)
        optimizer = ClockedSGD(1e-3)
        optimizer.clock = clock
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
    steps: list[dict[str, float]] = []
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: steps.append(clock.read())
    )
    model.fit(
        make_data(), steps_per_epoch=1 + NUM_STEPS, verbose=0, shuffle=False, callbacks=[keep]
    )
    reducer.collectives = collectives
    plan = strategy.plans[-1]
    buckets = [[plan.variables[i].name for i in bucket.indices] for bucket in plan.buckets]
    return {"buckets": buckets, "steps": steps[1:]}


def main(*specs: str) -> None:
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(None)
    cluster.report(outcomes={spec: train(strategy, spec) for spec in specs})


if __name__ == "__main__":
    main(*sys.argv[1:])
