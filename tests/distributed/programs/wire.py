# SPDX-License-Identifier: Apache-2.0
"""Trains the demo's model for some steps and reports the bytes counted at the interface."""

from __future__ import annotations

import sys

import cluster
import numpy as np
import tensorflow as tf

import tf_gradcomp as tfgc

sys.path.insert(0, str(cluster.ROOT / "examples"))
import vision  # noqa: E402


def main(spec: str, num_steps: str) -> None:
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(spec)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(32, 28, 28, 1)).astype(np.float32)
    labels = rng.integers(0, 10, 32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensors((images, labels)).repeat().with_options(options)
    with strategy.scope():
        model = vision.build_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"])
    monitor = tfgc.callbacks.CompressionMonitor()
    model.fit(data, steps_per_epoch=int(num_steps), verbose=0, callbacks=[monitor], shuffle=False)
    cluster.report(parameters=model.count_params(), **monitor.history[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
