# SPDX-License-Identifier: Apache-2.0
"""Trains a recommender with two large embeddings on several workers, on made-up clicks.

    tf-gradcomp launch -n 2 examples/recommender.py --users 1000000

Each worker runs this program. A step touches a few rows of each table, and only these travel; the
dense layers above are compressed. What is printed at the end shows it: bytes follow `--batch`, not
`--users` and `--items`.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

DIMENSION = 32  # of the embeddings
TASTES = 12  # kinds of users, and of items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compression", default="fft", metavar="SPEC", help="default: %(default)s")
    parser.add_argument("--users", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--items", type=int, default=20_000, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=512, help="of all workers; default: 512")
    parser.add_argument("--steps", type=int, default=600, help="default: %(default)s")
    args = parser.parse_args()
    for name in ("users", "items", "batch", "steps"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    train(args)


def train(args: argparse.Namespace) -> None:
    """Trains as one worker, and reports how well clicks unseen so far are told from the rest."""
    import tensorflow as tf

    import tf_gradcomp as tfgc

    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(args.compression)
    is_chief = strategy.cluster_resolver.task_id in (0, None)
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build_model(args.users, args.items)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(5e-3),
            loss=tf.keras.losses.BinaryCrossentropy(),
            metrics=["accuracy", tf.keras.metrics.AUC(name="auc")],
        )
    clicks = Clicks(args.users, args.items, seed=0)
    monitor = tfgc.callbacks.CompressionMonitor()
    verbose = 2 if is_chief else 0
    training = batches(clicks.draw(args.steps * args.batch), args.batch)
    model.fit(training, callbacks=[monitor], verbose=verbose, shuffle=False)
    test = batches(clicks.draw(8 * args.batch), args.batch)
    _, accuracy, auc = model.evaluate(test, verbose=verbose)
    if is_chief:
        print(f"{args.compression}: test accuracy {100 * accuracy:.1f} %, AUC {auc:.3f}")
        print_bytes(monitor.history, 4 * DIMENSION * (args.users + args.items))


def print_bytes(history: list[dict[str, Any]], table_bytes: int) -> None:
    """Prints what a worker sends in a step; the counter is missing where there is no network."""
    print(f"bytes a step and worker, with tables of {table_bytes:,} bytes:")
    rows = ("row_sparse_bytes", "rows of the tables"), ("payload_bytes", "dense layers")
    for name, what in (*rows, ("sent_bytes", "counted at the interface, headers included")):
        values = [figures[name] for figures in history if figures[name] is not None]
        print(f"  {what}: " + (f"{statistics.fmean(values):,.0f}" if values else "-"))


def build_model(num_users: int, num_items: int) -> Any:
    """Two embeddings, their product, and dense layers on both of them."""
    import tensorflow as tf

    layers = tf.keras.layers
    user, item = layers.Input((), dtype="int64"), layers.Input((), dtype="int64")
    tastes = layers.Embedding(num_users, DIMENSION, name="users")(user)
    traits = layers.Embedding(num_items, DIMENSION, name="items")(item)
    match = layers.Multiply()([tastes, traits])
    hidden = layers.Concatenate()([tastes, traits, match])
    for _ in range(2):
        hidden = layers.Dense(128, activation="relu")(hidden)
    return tf.keras.Model([user, item], layers.Dense(1, activation="sigmoid")(hidden))


class Clicks:
    """Users and items have tastes; what fits is clicked more often. Ids say nothing of them."""

    def __init__(self, num_users: int, num_items: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._user_tastes = self._rng.integers(0, TASTES, num_users)
        self._item_tastes = self._rng.integers(0, TASTES, num_items)
        self._affinity = 3 * self._rng.normal(size=(TASTES, TASTES))

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns users, items and whether they were clicked: int64, int64, float32 ``[count]``."""
        users = self._popular(self._user_tastes.size, count)
        items = self._popular(self._item_tastes.size, count)
        odds = self._affinity[self._user_tastes[users], self._item_tastes[items]]
        clicked = self._rng.random(count) < 1 / (1 + np.exp(-odds))
        return users, items, clicked.astype(np.float32)

    def _popular(self, size: int, count: int) -> np.ndarray:
        """Draws ids of which number i is seen about 1 / i times as often as the first (Zipf)."""
        return np.int64(size ** self._rng.random(count)) - 1


def batches(clicks: tuple[np.ndarray, np.ndarray, np.ndarray], size: int) -> Any:
    """Batches of ``((users, items), clicked)``, of which each worker trains on its share."""
    import tensorflow as tf

    users, items, clicked = clicks
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices(((users, items), clicked))
    return data.batch(size, drop_remainder=True).with_options(options)


if __name__ == "__main__":
    main()
