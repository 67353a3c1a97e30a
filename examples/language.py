# SPDX-License-Identifier: Apache-2.0
"""Trains a small language model on several workers with compressed gradients.

    tf-gradcomp launch -n 2 examples/language.py --compression dct --text FILE

Each worker runs this program. It reads any text file; without one, the King James Bible, if
Debian's packages bible-kjv and bible-kjv-text are installed. The model is an LSTM, or a transformer
with ``--model transformer``. The gradients of all its matrices are compressed, large output layer
and all, and so is that of the embedding where Keras' clipping makes it
dense, as in Keras 3; elsewhere it travels row by row.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 4096
SEQUENCE = 32  # words
GLOBAL_BATCH_SIZE = 64  # sequences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compression", default="dct", metavar="SPEC", help="default: %(default)s")
    parser.add_argument(
        "--model", choices=sorted(MODELS), default="lstm", help="default: %(default)s"
    )
    parser.add_argument("--text", metavar="FILE", help="UTF-8 text to train on")
    parser.add_argument("--epochs", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--steps", type=int, metavar="N", help="steps an epoch; default: all")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--report", metavar="FILE", help="worker 0 writes its results here (JSON)")
    args = parser.parse_args()
    try:
        words = encode_words(read_text(args.text))
    except (OSError, ValueError) as error:
        sys.exit(f"language.py: error: {error}")
    train(args, words)


def train(args: argparse.Namespace, words: np.ndarray) -> None:
    """Trains as one worker and reports the perplexity on the last tenth of the text."""
    import tensorflow as tf

    import tf_gradcomp as tfgc

    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(args.compression)
    is_chief = strategy.cluster_resolver.task_id in (0, None)
    tf.keras.utils.set_random_seed(args.seed)
    tf.config.experimental.enable_op_determinism()
    split = len(words) * 9 // 10
    data = sequences(words[:split], args.steps, args.seed)
    with strategy.scope():
        model = MODELS[args.model]()
        model.compile(
            optimizer=optimizer_of(
                args.model, args.epochs * int(data.cardinality()), strategy.policy.momentum
            ),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    monitor = tfgc.callbacks.CompressionMonitor()
    verbose = 2 if is_chief else 0
    model.fit(data, epochs=args.epochs, callbacks=[monitor], verbose=verbose, shuffle=False)
    loss = model.evaluate(sequences(words[split:], args.steps), verbose=verbose)
    if is_chief:
        figures = monitor.history[-1]
        perplexity = float(np.exp(loss))
        if args.report:
            report = {
                "compression": args.compression,
                "seed": args.seed,
                "model": args.model,
                "perplexity": perplexity,
            }
            Path(args.report).write_text(json.dumps(report | figures, indent=2), encoding="utf-8")
        print(
            f"{args.compression}: perplexity {perplexity:.1f}, "
            f"{figures['dense_bytes']:,} -> {figures['payload_bytes']:,} bytes a step"
        )
        for name, view in strategy.views.items():
            print(f"  {name}: view {view}")


def optimizer_of(model: str, num_steps: int, compression_has_momentum: bool) -> Any:
    """Returns SGD for the LSTM and Adam for the transformer, which SGD hardly trains.

    A rate that falls to zero leaves little of the noise in which runs differ from seed to seed.
    """
    import tensorflow as tf

    optimizers, decay = tf.keras.optimizers, tf.keras.optimizers.schedules.CosineDecay
    if model == "transformer":
        return optimizers.Adam(decay(2e-3, num_steps), global_clipnorm=1.0)
    # Compression can have the momentum in its place.
    momentum = 0.0 if compression_has_momentum else 0.9
    return optimizers.SGD(decay(1.0, num_steps), momentum=momentum, global_clipnorm=1.0)


def build_lstm() -> Any:
    """Word embedding, LSTM, output layer: 2.0 million parameters."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((SEQUENCE,)),
            layers.Embedding(VOCABULARY, 128),
            layers.LSTM(256, return_sequences=True),
            layers.Dense(VOCABULARY),
        ]
    )


def build_transformer() -> Any:
    """Two blocks of causal attention between word embedding and output layer: 1.5 million."""
    import tensorflow as tf

    layers = tf.keras.layers
    width, heads = 128, 4

    class Positions(layers.Layer):
        """Adds a learned vector for each place in the sequence."""

        def build(self, input_shape: Any) -> None:
            self.positions = self.add_weight(
                name="positions", shape=(SEQUENCE, width), initializer="random_normal"
            )

        def call(self, inputs: Any) -> Any:
            return inputs + self.positions

    words = layers.Input((SEQUENCE,))
    x = Positions()(layers.Embedding(VOCABULARY, width)(words))
    for _ in range(2):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads)
        x = layers.Add()([x, attention(normal, normal, use_causal_mask=True)])
        hidden = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(hidden)])
    return tf.keras.Model(words, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))


MODELS = {"lstm": build_lstm, "transformer": build_transformer}


def sequences(words: np.ndarray, limit: int | None = None, seed: int = 0) -> Any:
    """Batches of ``(inputs, targets)``, both ``[batch, SEQUENCE]``; targets are a word ahead."""
    import tensorflow as tf

    count = (len(words) - 1) // SEQUENCE
    inputs = words[: count * SEQUENCE].reshape(count, SEQUENCE)
    targets = words[1 : count * SEQUENCE + 1].reshape(count, SEQUENCE)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).shuffle(count, seed=seed)
    data = data.batch(GLOBAL_BATCH_SIZE, drop_remainder=True)
    return data.take(-1 if limit is None else limit).with_options(options)


def read_text(path: str | None) -> str:
    """Returns the text to train on.

    Raises:
      OSError: the file cannot be read, or there is no text.
    """
    if path is not None:
        return Path(path).read_text(encoding="utf-8")
    if shutil.which("bible") is None:
        raise FileNotFoundError(
            "no text to train on; name a file with --text, or install Debian's packages bible-kjv "
            "and bible-kjv-text"
        )
    command = ["bible", "-f", "gen1:1-rev22:21"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def encode_words(text: str) -> np.ndarray:
    """Numbers the most frequent words; all others are 0.

    Returns:
      int32 ``[n]``, from 0 to ``VOCABULARY - 1``.

    Raises:
      ValueError: the text is too short for one batch to train on and one to test.
    """
    words = re.findall(r"[a-z']+|[.,;:?!]", text.lower())
    needed = 10 * (GLOBAL_BATCH_SIZE * SEQUENCE + 1)
    if len(words) < needed:
        raise ValueError(f"the text has {len(words)} words; at least {needed} are needed")
    frequent = collections.Counter(words).most_common(VOCABULARY - 1)
    numbers = {word: number for number, (word, _) in enumerate(frequent, 1)}
    return np.array([numbers.get(word, 0) for word in words], np.int32)


if __name__ == "__main__":
    main()
