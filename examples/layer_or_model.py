# SPDX-License-Identifier: Apache-2.0
"""Compares compressing layer by layer with compressing the entire model, at equal bytes.

    python examples/layer_or_model.py

Trains vision.py's model with each of the six operators of Dutta et al., "On the Discrepancy between
the Theoretical Analysis and Practical Implementations of Compressed Communication for Distributed
Deep Learning" (AAAI 2020), once with ``scope=layer`` and once with ``scope=model``: without error
feedback, as in the paper, and with it where that is the codec's default. Every run is a launch of
vision.py on its own. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import fashion_mnist
import vision

from tf_gradcomp import Compression, Policy, methods
from tf_gradcomp.policy import VariableInfo

SCOPES = ("layer", "model")


class Operator(NamedTuple):
    """One of the paper's operators.

    Attributes:
      name: the paper's.
      compression: this package's, of any scope and transport.
      share: the codec's parameter that is fitted to the budget; empty for a quantizer, whose size
        is given by its number of levels.
      paper: which scope the paper found to be better.
      unbiased_rate: factor of the learning rate without error feedback.
    """

    name: str
    compression: Compression
    share: str
    paper: str
    unbiased_rate: float = 1.0


from_spec = Compression.from_spec
OPERATORS = {
    # Random-k is made unbiased without error feedback: at a density of 1 % it multiplies what it
    # keeps by a hundred, and diverges at the others' rate. The paper keeps values as they are.
    "random_k": Operator(
        "Random-k", from_spec("randomk"), "density", "neither; layer at 0.1 %", 0.1
    ),
    "top_k": Operator("Top-k", from_spec("topk"), "density", "CIFAR: model; ImageNet: layer"),
    "threshold": Operator(
        "Threshold-v", from_spec("threshold:threshold=0.01"), "capacity", "neither"
    ),
    "adaptive_threshold": Operator(
        "Adaptive Threshold", from_spec("adaptive_threshold:ratio=0.5"), "capacity", "layer"
    ),
    # These share one scale in all of what is encoded as one, a layer or the model: block=0.
    "terngrad": Operator("TernGrad", methods.terngrad(), "", "layer"),
    "qsgd": Operator("QSGD", methods.qsgd(levels=255, block=0), "", "layer"),
}


def main() -> None:
    args = parse_arguments()
    try:
        args.data = fashion_mnist.locate(args.data)
    except FileNotFoundError as error:
        sys.exit(f"layer_or_model.py: error: {error}")
    variables = model_variables(args.model)
    pairs = [
        pair
        for name in args.operators
        for pair in pairs_of(OPERATORS[name], variables, args.budget)
    ]
    runs = runner(args, num_runs=args.seeds * (1 + 2 * len(pairs)))
    dense = runs("none", 1.0)
    rows = [
        (pair, runs(str(pair.layer), pair.rate), runs(str(pair.model), pair.rate)) for pair in pairs
    ]
    print_table(dense, rows)
    print("\nSpecs, and learning rates:\n")
    for pair in pairs:
        print(f"- `{pair.layer}`, `{pair.model}`: {pair.rate * args.learning_rate:g}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--operators",
        nargs="+",
        choices=OPERATORS,
        default=list(OPERATORS),
        metavar="NAME",
        help=f"some of {', '.join(OPERATORS)}; default: all",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=0.01,
        help="payload of the sparsifiers, as a share of what they compress; default: %(default)s",
    )
    vision.add_demo_arguments(parser)
    parser.set_defaults(model="even", epochs=1, seeds=5, log_dir="logs/layer_or_model")
    args = vision.parsed(parser)
    if not 0 < args.budget < 1:
        parser.error(f"--budget must be in (0, 1), got {args.budget}")
    return args


# --- What is compared ----------------------------------------------------------------------------


class Pair(NamedTuple):
    """The same compression in either scope."""

    operator: Operator
    layer: Compression
    model: Compression

    @property
    def rate(self) -> float:
        """Factor of the learning rate."""
        return 1.0 if self.layer.error_feedback else self.operator.unbiased_rate


def pairs_of(operator: Operator, variables: Sequence[VariableInfo], budget: float) -> list[Pair]:
    """Returns the operator without error feedback, then with it if that is the default."""
    layer, model = (fitted(operator, scope, variables, budget) for scope in SCOPES)
    return [
        Pair(
            operator,
            dataclasses.replace(layer, error_feedback=error_feedback),
            dataclasses.replace(model, error_feedback=error_feedback),
        )
        for error_feedback in ((False, True) if layer.error_feedback else (False,))
    ]


def fitted(
    operator: Operator, scope: str, variables: Sequence[VariableInfo], budget: float
) -> Compression:
    """Returns the operator that keeps most in at most ``budget`` times the dense bytes."""
    compression = dataclasses.replace(operator.compression, scope=scope, transport="all_gather")
    if not operator.share:
        return compression

    def keeping(millionths: int) -> Compression:
        params = {**dict(compression.params), operator.share: millionths / 10**6}
        return dataclasses.replace(compression, params=tuple(params.items()))

    low, high = 1, 10**6
    while high - low > 1:
        middle = (low + high) // 2
        payload, dense = compressed_bytes(keeping(middle), variables)
        low, high = (middle, high) if payload <= budget * dense else (low, middle)
    return keeping(low)


def compressed_bytes(
    compression: Compression, variables: Sequence[VariableInfo]
) -> tuple[int, int]:
    """Bytes of a worker's payloads of what is compressed, and of these gradients as they are."""
    policy = Policy(compression)
    sizes = [v.num_elements for v in variables if policy.compression_for(v)]
    codec = compression.build()
    encoded = [sum(sizes)] if compression.scope == "model" else sizes
    words = sum(codec.num_words(codec.transform.layout(size)) for size in encoded)
    return 4 * words, 4 * sum(sizes)


def model_variables(name: str) -> list[VariableInfo]:
    return [
        VariableInfo(variable.name, tuple(variable.shape), "float32")
        for variable in vision.MODELS[name]().trainable_variables
    ]


# --- Running and reporting -----------------------------------------------------------------------

Reports = list[dict[str, Any]]  # of vision.py, one for each seed


def runner(args: argparse.Namespace, num_runs: int) -> Callable[[str, float], Reports]:
    """Returns a function that trains with a compression, once for each seed."""
    folder = Path(args.log_dir) / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    print(f"reports and TensorBoard logs: {folder}")
    started = 0

    def run(compression: str, rate: float) -> Reports:
        nonlocal started
        learning_rate = rate * args.learning_rate
        run_args = argparse.Namespace(**{**vars(args), "learning_rate": learning_rate})
        reports = []
        for seed in range(args.seeds):
            started += 1
            print(f"\n=== run {started} of {num_runs}: {compression}, seed {seed}", flush=True)
            report = folder / f"{started}.json"
            vision.launch(run_args, compression, seed, report, folder / str(started))
            reports.append(json.loads(report.read_text(encoding="utf-8")))
        return reports

    return run


def print_table(dense: Reports, rows: Sequence[tuple[Pair, Reports, Reports]]) -> None:
    run = dense[0]
    print(
        f"\n{run['parameters']:,} parameters, {run['workers']} workers, {run['epochs']} epochs of "
        f"{run['steps_per_epoch']} steps, {len(dense)} seeds, {run['keras']}\n"
        f"trained on {run['data']}\n"
        f"dense: {vision.accuracy(dense)}, {run['dense_bytes']:,} bytes a step\n"
    )
    print(
        "| operator | error feedback | bytes a step: layer | model | accuracy: layer | model "
        "| layer - model | better here | in the paper |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for pair, layer, model in rows:
        cells = [
            pair.operator.name,
            "yes" if pair.layer.error_feedback else "no",
            f"{layer[0]['payload_bytes']:,}",
            f"{model[0]['payload_bytes']:,}",
            vision.accuracy(layer),
            vision.accuracy(model),
            gap(layer, model),
            better(layer, model),
            "-" if pair.layer.error_feedback else pair.operator.paper,
        ]
        print("|", " | ".join(cells), "|")


def gaps(layer: Reports, model: Reports) -> list[float]:
    """Accuracy of layer minus that of model, in points, seed by seed: equal initial weights."""
    return [
        100 * (a["test_accuracy"] - b["test_accuracy"]) for a, b in zip(layer, model, strict=True)
    ]


def gap(layer: Reports, model: Reports) -> str:
    """The mean over the seeds and half of the range."""
    values = gaps(layer, model)
    spread = f" +- {(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):+.2f}{spread}"


def better(layer: Reports, model: Reports) -> str:
    """The scope that wins with every seed; one seed says nothing."""
    values = gaps(layer, model)
    if len(values) < 2:
        return "-"
    if min(values) > 0:
        return "layer"
    return "model" if max(values) < 0 else "neither"


if __name__ == "__main__":
    main()
