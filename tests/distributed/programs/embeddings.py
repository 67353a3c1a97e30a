# SPDX-License-Identifier: Apache-2.0
"""Trains the example's recommender on batches and tables of given sizes, and reports the bytes."""

from __future__ import annotations

import sys
from typing import Any

import cluster
import numpy as np
import tensorflow as tf

import tf_gradcomp as tfgc

sys.path.insert(0, str(cluster.ROOT / "examples"))
import recommender  # noqa: E402

STEPS = 8  # an epoch; the first epoch also has what is sent only once


def main(*cases: str) -> None:
    """Each case is ``"size,rows,repeats"``: of each table, what a worker touches in a step."""
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy("none")
    models: dict[int, Any] = {}
    figures = []
    for case in cases:
        size, rows, repeats = map(int, case.split(","))
        if size not in models:
            with strategy.scope():
                models[size] = recommender.build_model(size, size)
                models[size].compile("sgd", tf.keras.losses.BinaryCrossentropy())
        monitor = tfgc.callbacks.CompressionMonitor()
        data = clicks(size, rows * strategy.num_replicas_in_sync, repeats)
        models[size].fit(data, epochs=2, verbose=0, callbacks=[monitor], shuffle=False)
        figures.append(monitor.history[-1])
    cluster.report(figures=figures)


def clicks(size: int, rows: int, repeats: int) -> Any:
    """Batches of so many distinct users and items, each so many times on one of the workers."""
    rng = np.random.default_rng(0)
    users, items = (
        np.concatenate([rng.permutation(size)[:rows].repeat(repeats) for _ in range(STEPS)])
        for _ in range(2)
    )
    return recommender.batches((users, items, np.ones(users.size, np.float32)), rows * repeats)


if __name__ == "__main__":
    main(*sys.argv[1:])
