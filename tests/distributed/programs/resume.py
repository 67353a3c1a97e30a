# SPDX-License-Identifier: Apache-2.0
"""Trains with backups, may come to grief once, and reports the weights it ends with."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import cluster
import numpy as np
import tensorflow as tf

import tf_gradcomp as tfgc

keras = tf.keras


class Accident(keras.callbacks.Callback):
    """Sends this process a signal after a step, the first time that it gets there."""

    def __init__(self, step: int, number: int, mark: Path) -> None:
        super().__init__()
        self._step = step
        self._number = number
        self._mark = mark
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self._steps += 1
        if self._steps == self._step and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), self._number)


def steered_policy() -> tfgc.Policy:
    """A window whose period does not divide an epoch, and a density that falls all along."""
    density = keras.optimizers.schedules.PolynomialDecay(0.3, 30, 0.02)
    window = tfgc.methods.layer_window(budget=0.6, period=3)
    falling = tfgc.Compression("topk", {"density": density})
    return tfgc.Policy("none", rules=(("*dense_1/kernel*", falling), ("*/kernel*", window)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="topk:density=0.05")
    parser.add_argument("--steered", action="store_true", help="by a window and a schedule")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--signal", default="")
    parser.add_argument("--at", type=int, default=12, help="step of the accident")
    parser.add_argument("--worker", type=int, default=1, help="whose accident it is")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--save-freq", type=int, help="steps between backups")
    parser.add_argument("--delete", action="store_true", help="backups, in the end")
    parser.add_argument("--units", type=int, default=64, help="of a layer")
    parser.add_argument("--late", type=float, default=0.0, help="seconds by which it starts later")
    parser.add_argument("--other", help="compression that it has once, after the accident")
    args = parser.parse_args()

    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == args.worker:
        time.sleep(args.late)
        mark = args.folder / "other"
        if args.other and (args.folder / "accident").exists() and not mark.exists():
            mark.touch()
            args.compression = args.other
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(
        steered_policy() if args.steered else args.compression,
        communication_options=tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=args.timeout
        ),
    )
    keras.utils.set_random_seed(5)
    if hasattr(keras.backend, "experimental"):
        # Keras 2 would else leave the state of Dropout in TensorFlow's kernels.
        keras.backend.experimental.enable_tf_random_generator()
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((512, 48)).astype(np.float32)
    labels = rng.integers(0, 10, 512).astype(np.int32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(60, drop_remainder=True)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((48,)),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(args.units, activation="relu"),
                keras.layers.Dense(10, dtype="float32"),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(1e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    callbacks = [
        tfgc.callbacks.BackupAndRestore(
            args.folder / "backups",
            save_freq=args.save_freq or "epoch",
            delete_checkpoint=args.delete,
        )
    ]
    if args.signal and strategy.cluster_resolver.task_id == args.worker:
        number = signal.Signals[args.signal]
        callbacks.append(Accident(args.at, number, args.folder / "accident"))
    history = model.fit(
        data.with_options(options), epochs=args.epochs, callbacks=callbacks, verbose=0
    )
    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    cluster.report(
        weights=hashlib.sha256(weights).hexdigest(),
        epochs=history.epoch,
        loss=history.history["loss"][-1],
        steps=int(model.optimizer.iterations.numpy()),
        decisions=strategy.decisions,
    )


main()
