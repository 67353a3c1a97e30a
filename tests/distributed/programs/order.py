# SPDX-License-Identifier: Apache-2.0
"""Trains one variable with known gradients, case by case, and reports what each step left.

The loss is linear in the variable, so that a worker's gradient is its row of the data. Many small
cases share the processes, which take longer to start than all of them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import cluster
import numpy as np
import tensorflow as tf
from keras_generation import IS_KERAS3

import tf_gradcomp as tfgc

keras = tf.keras

NUM_WORKERS = 2
SIZE = 64  # elements of the variable; gradients speak of the first few, the others are zeros
SHOWN = 4

POLICY = tfgc.Policy(
    "none",
    rules=(
        # Keeps the two largest of 64 values.
        ("*topk*", "topk:density=0.03125"),
        # One layer and half of a budget for it: all of it is sent in every other exchange.
        ("*withheld*", tfgc.methods.layer_window(budget=0.5, period=3)),
    ),
)

Gradients = list[tuple[list[float], list[float]]]  # for each step, that of either worker
MakeOptimizer = Callable[[], Any]

INF, NAN = float("inf"), float("nan")
OPPOSED: Gradients = [([3, 1, 0], [-2, 1, 4])]
OPPOSED_IN_TIME: Gradients = [([3], [0]), ([-2], [0])]
LONG: Gradients = [([3, 4], [0, 12, 5])]
# Of each worker's gradient the first two elements travel, and the third stays behind.
WITH_REST: Gradients = [([8, 4, 2], [16, 4, 3])]
ZERO: Gradients = [([0], [0])]
OVERFLOW: Gradients = [([1], [INF])]
SMALL: Gradients = [([1], [2]), ([4], [8]), ([16], [32]), ([64], [128])]


class Product(keras.layers.Layer):
    """The inner product of its input and its kernel, so that the input is the gradient."""

    def __init__(self, name: str, **of_kernel: Any) -> None:
        super().__init__(name=name)
        self._of_kernel = of_kernel

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(name="kernel", shape=(SIZE,), **self._of_kernel)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(inputs * self.kernel, axis=-1, keepdims=True)


class Output(keras.losses.Loss):
    """The model's output itself."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return y_pred


class Recorder(keras.callbacks.Callback):
    """Notes what each step of ``fit`` left on this worker."""

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self._strategy = strategy
        self.steps: list[dict[str, Any]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        variable = self.model.trainable_variables[0]
        self.steps.append(record(self._strategy, self.model.optimizer, variable))


def record(strategy: Any, optimizer: Any, variable: Any) -> dict[str, Any]:
    """Returns the first elements of weight, residual and average, and the counters."""
    entry = list(strategy.extended.reducer._entries.values())[-1]
    residuals = [r for exchange in entry.exchanges for r in getattr(exchange, "residuals", ())]
    scale = getattr(optimizer, "dynamic_scale", getattr(optimizer, "loss_scale", None))
    return {
        "weights": shown(variable),
        "residual": shown(residuals[0]) if residuals else None,
        "average": average(optimizer, variable),
        "exchanges": int(entry.counter),
        "iterations": int(tf.convert_to_tensor(optimizer.iterations)),
        "loss_scale": None if scale is None else float(tf.convert_to_tensor(scale)),
    }


def shown(variable: Any) -> list[float]:
    return np.asarray(tf.convert_to_tensor(variable)).astype(float)[:SHOWN].tolist()


def average(optimizer: Any, variable: Any) -> list[float] | None:
    if getattr(optimizer, "use_ema", False):
        return shown(optimizer._model_variables_moving_average[0])
    if "average" in getattr(optimizer, "get_slot_names", list)():
        return shown(optimizer.get_slot(variable, "average"))
    return None


def table(gradients: Gradients) -> np.ndarray:
    """Returns the gradients as float32 ``[steps, workers, SIZE]``."""
    rows = np.zeros((len(gradients), NUM_WORKERS, SIZE), np.float32)
    for step, of_workers in enumerate(gradients):
        for worker, values in enumerate(of_workers):
            rows[step, worker, : len(values)] = values
    return rows


def fit(
    strategy: Any, how: str, make_optimizer: MakeOptimizer, gradients: Gradients, **of_kernel: Any
) -> list[dict[str, Any]]:
    """Trains with ``fit`` and returns what each step left."""
    of_kernel = {"initializer": "zeros", **of_kernel}
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((SIZE,)), Product(how, **of_kernel)])
        model.compile(optimizer=make_optimizer(), loss=Output())
    # Keras takes the mean over the workers' examples.
    rows = NUM_WORKERS * table(gradients).reshape(-1, SIZE)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((rows, np.zeros((len(rows), 1), np.float32)))
    recorder = Recorder(strategy)
    model.fit(
        data.batch(NUM_WORKERS).with_options(options),
        verbose=0,
        callbacks=[recorder],
        shuffle=False,
    )
    recorder.steps[-1]["after_fit"] = shown(model.trainable_variables[0])
    return recorder.steps


def loop(
    strategy: Any,
    how: str,
    make_optimizer: MakeOptimizer,
    gradients: Gradients,
    *,
    start: float = 0.0,
    constraint: Any = None,
    forgetful: bool = False,
) -> list[dict[str, Any]]:
    """Trains in a loop of its own; a forgetful one does half of what a loss scale asks for."""
    with strategy.scope():
        variable = tf.Variable(tf.fill([SIZE], start), name=f"{how}/kernel", constraint=constraint)
        optimizer = make_optimizer()
    is_scaled = isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)
    rows = tf.constant(table(gradients))

    def replica_step(step: tf.Tensor) -> None:
        worker = tf.distribute.get_replica_context().replica_id_in_sync_group
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rows[step, worker] * variable)
            if is_scaled and not IS_KERAS3:
                loss = optimizer.get_scaled_loss(loss)
            elif is_scaled and not forgetful:
                loss = optimizer.scale_loss(loss)
        grads = tape.gradient(loss, [variable])
        if is_scaled and not IS_KERAS3 and not forgetful:
            grads = optimizer.get_unscaled_gradients(grads)
        optimizer.apply_gradients(zip(grads, [variable], strict=True))

    @tf.function
    def train_step(step: tf.Tensor) -> None:
        strategy.run(replica_step, (step,))

    steps = []
    for step in range(len(gradients)):
        train_step(tf.constant(step))
        steps.append(record(strategy, optimizer, variable))
    return steps


def scaled(optimizer: Any) -> Any:
    """Returns a dynamic loss scale that doubles after every step without an overflow."""
    scale = {"initial_scale": 2.0**15, "dynamic_growth_steps": 1}
    return keras.mixed_precision.LossScaleOptimizer(optimizer, **scale)


def fixed(sgd: Callable[..., Any]) -> Any:
    """Returns SGD with a loss scale that stays as it is."""
    if IS_KERAS3:
        return sgd(1.0, loss_scale_factor=2.0**15)
    return keras.mixed_precision.LossScaleOptimizer(sgd(1.0), dynamic=False, initial_scale=2.0**15)


def halve(weight: Any) -> Any:
    return weight / 2


def cases_of_all(strategy: Any, sgd: Callable[..., Any]) -> dict[str, Any]:
    """What every kind of optimizer can do."""
    start = keras.initializers.Constant(8.0)
    l2 = keras.regularizers.L2(0.25)
    clipped = {
        name: loop(strategy, "none", lambda name=name: sgd(1.0, **{name: 1.0}), gradients)
        for name, gradients in [
            ("clipvalue", OPPOSED),
            ("clipnorm", LONG),
            ("global_clipnorm", LONG),
        ]
    }
    return clipped | {
        "clipping in fit": fit(strategy, "topk", lambda: sgd(1.0, clipvalue=1.0), WITH_REST),
        "clipping and scale": loop(
            strategy, "none", lambda: scaled(sgd(1.0, clipvalue=1.0)), OPPOSED
        ),
        "regularizer": fit(
            strategy, "topk", lambda: sgd(0.25), WITH_REST, initializer=start, regularizer=l2
        ),
        "constraint": loop(strategy, "topk", lambda: sgd(1.0), WITH_REST, constraint=halve),
        "scale in fit": fit(strategy, "topk", lambda: scaled(sgd(1.0)), WITH_REST * 3),
        "scale": loop(strategy, "topk", lambda: scaled(sgd(1.0)), WITH_REST * 3),
        "scale forgotten": loop(
            strategy, "topk", lambda: scaled(sgd(1.0)), WITH_REST * 2, forgetful=True
        ),
        "fixed scale": fit(strategy, "topk", lambda: fixed(sgd), WITH_REST + OVERFLOW),
        "overflow": loop(
            strategy, "topk", lambda: scaled(sgd(1.0)), WITH_REST + OVERFLOW + WITH_REST
        ),
        "withheld": loop(
            strategy, "withheld", lambda: scaled(sgd(1.0)), SMALL[:1] + OVERFLOW + SMALL[1:]
        ),
        "withheld and infinite": loop(
            strategy, "withheld", lambda: sgd(1.0), SMALL[:1] + OVERFLOW + SMALL[1:]
        ),
        "infinite": loop(strategy, "topk", lambda: sgd(1.0), WITH_REST + OVERFLOW),
        "infinite, dense": loop(
            strategy, "none", lambda: sgd(1.0, clipvalue=1.0), [([1, NAN], [INF])]
        ),
        "infinite and clipping": loop(strategy, "topk", lambda: sgd(1.0, clipvalue=1.0), OVERFLOW),
    }


def cases_of_new(strategy: Any) -> dict[str, Any]:
    """What Keras 3's optimizers, and Keras 2's new ones, can do besides."""

    def sgd(rate: float, **options: Any) -> MakeOptimizer:
        return lambda: keras.optimizers.SGD(rate, **options)

    ema = {"use_ema": True, "ema_momentum": 0.5}
    results = {
        "weight_decay": loop(strategy, "topk", sgd(0.25, weight_decay=0.5), WITH_REST, start=8.0),
        "ema": fit(strategy, "topk", sgd(1.0, **ema), WITH_REST * 2),
        "ema overwrites": loop(
            strategy, "topk", sgd(1.0, ema_overwrite_frequency=2, **ema), WITH_REST * 2
        ),
        "ema and constraint": loop(strategy, "topk", sgd(1.0, **ema), WITH_REST, constraint=halve),
    }
    if IS_KERAS3:
        in_two = {"gradient_accumulation_steps": 2}
        results["accumulation"] = fit(
            strategy,
            "topk",
            sgd(0.25, weight_decay=0.5, **in_two, **ema),
            [*WITH_REST, *ZERO, *WITH_REST, *ZERO, *WITH_REST],
            initializer=keras.initializers.Constant(8.0),
        )
        results["accumulation and clipping"] = loop(
            strategy, "none", sgd(1.0, clipvalue=1.0, **in_two), OPPOSED_IN_TIME
        )
    return results


def cases_of_legacy(strategy: Any) -> dict[str, Any]:
    """What only legacy optimizers can do, and those of tensorflow-addons."""
    sgd = keras.optimizers.legacy.SGD
    results = {
        "both clippings": loop(
            strategy, "none", lambda: sgd(1.0, clipvalue=3.0, clipnorm=3.0), [([3, 1], [0, 3])]
        )
    }
    if importlib.util.find_spec("tensorflow_addons") is not None:
        from tensorflow_addons import optimizers

        results["SGDW"] = loop(
            strategy, "topk", lambda: optimizers.SGDW(0.5, 0.25), WITH_REST, start=8.0
        )
        results["MovingAverage"] = loop(
            strategy,
            "topk",
            lambda: optimizers.MovingAverage(sgd(1.0), average_decay=0.5),
            WITH_REST * 2,
        )
    return results


def main() -> None:
    tf.config.experimental.enable_op_determinism()  # then the network is not measured
    keras.utils.set_random_seed(1)
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(POLICY)
    cases = {"new": cases_of_all(strategy, keras.optimizers.SGD) | cases_of_new(strategy)}
    if not IS_KERAS3:
        legacy = keras.optimizers.legacy.SGD
        cases["legacy"] = cases_of_all(strategy, legacy) | cases_of_legacy(strategy)
    cluster.report(**cases)


if __name__ == "__main__":
    main()
