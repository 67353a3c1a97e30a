# SPDX-License-Identifier: Apache-2.0
"""Compares what models learn with dense and with compressed gradients, over several seeds.

    python examples/accuracy.py

Trains the CNN of vision.py, for three epochs, for one, and for one with even its smallest matrices
compressed, the LSTM of language.py, for one epoch and for three, and its transformer with each of
some methods, a launch for each run, and prints a table in Markdown for each task. All of it takes
more than two days.

Results are kept in a folder, run by run: a study that was interrupted goes on where it was. After a
change of code, begin with another folder.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tf_gradcomp import methods

FOLDER = Path(__file__).parent

METHODS = {
    "dense": "none",
    "FFT": "fft",
    "top-k 1 % + C_nat": "topk:values=natural",
    "C_nat": "natural",
    "DGC 0.1 %": str(methods.dgc(warmup=200)),
    "PowerSGD rank 4": "powersgd:rank=4",
    "PowerSGD rank 4, bfloat16": "powersgd:rank=4,values=bfloat16",
    "PowerSGD rank 2": "powersgd:rank=2",
    "PowerSGD rank 1": "powersgd:rank=1",
    "top-k 1 % + C_nat, global momentum": "topk:values=natural,global_momentum=0.9",
    "top-k 1 % + C_nat, learned": "topk:values=natural,view=learned",
    "top-k 1 % + C_nat, both": "topk:values=natural,view=hidden+learned",
    "top-k 1 %": "topk",
    "top-k 1 %, learned": "topk:view=learned",
    "top-k 0.1 %": "topk:density=0.001",
    "top-k 0.1 %, frequency": "topk:density=0.001,view=hidden",
    "top-k 0.1 %, learned": "topk:density=0.001,view=learned",
    "top-k 0.1 %, both": "topk:density=0.001,view=hidden+learned",
    "top-k 0.1 %, by layer": "topk:density=0.001,scope=layer",
    "top-k 0.1 %, by layer, frequency": "topk:density=0.001,scope=layer,view=hidden",
    "top-k 0.1 %, by layer, learned": "topk:density=0.001,scope=layer,view=learned",
    "top-k 0.1 %, by layer, both": "topk:density=0.001,scope=layer,view=hidden+learned",
    "layer window": str(methods.layer_window()),
}


class Task(NamedTuple):
    """What is trained, and how its outcome is judged.

    Attributes:
      command: the example that trains it, and its options.
      result: what of its report counts.
      unit: a heading for that.
      value: from the report's figure to the one that is shown.
      difference: that of a run to the dense one of the same seed, as shown.
      difference_unit: a heading for that.
    """

    command: tuple[str, ...]
    result: str
    unit: str
    value: Callable[[float], float]
    difference: Callable[[float, float], float]
    difference_unit: str


def _vision(*options: str) -> Task:
    return Task(
        ("vision.py", *options),
        "test_accuracy",
        "test accuracy, %",
        lambda share: 100 * share,
        lambda value, dense: value - dense,
        "points",
    )


def _language(model: str, *options: str) -> Task:
    return Task(
        ("language.py", "--model", model, *options),
        "perplexity",
        "test perplexity",
        lambda perplexity: perplexity,
        lambda value, dense: 100 * (value / dense - 1),
        "%",
    )


TASKS = {
    "vision": _vision(),
    "vision-one-epoch": _vision("--epochs", "1"),
    "vision-all-matrices": _vision("--epochs", "1", "--min-elements", "2"),
    "language": _language("lstm"),
    "language-three-epochs": _language("lstm", "--epochs", "3"),
    "transformer": _language("transformer"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="default: all"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), help="default: all"
    )
    parser.add_argument("--seeds", type=int, default=5, help="default: %(default)s")
    parser.add_argument(
        "--results", type=Path, default=Path("logs/accuracy"), help="default: %(default)s"
    )
    parser.add_argument(
        "--only-print", action="store_true", help="print what there is, and run nothing"
    )
    args = parser.parse_args()
    for name in args.tasks:
        reports = {method: [] for method in args.methods}
        for seed in range(args.seeds):
            for method in args.methods:
                path = args.results / name / f"{METHODS[method]}-{seed}.json"
                if not path.exists() and not args.only_print:
                    run(TASKS[name], METHODS[method], seed, path)
                if path.exists():
                    reports[method].append(json.loads(path.read_text(encoding="utf-8")))
        print_table(TASKS[name], reports)


def run(task: Task, compression: str, seed: int, path: Path) -> None:
    """Trains once on two workers. Ends the study with the run's exit code if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".tmp")
    print(f"=== {' '.join(task.command)}, {compression}, seed {seed}", flush=True)
    script, *options = task.command
    command = [sys.executable, "-m", "tf_gradcomp", "launch", "-n", "2", FOLDER / script, *options]
    command += ["--compression", compression, "--seed", str(seed), "--report", written]
    code = subprocess.run(command, check=False).returncode
    if code:
        sys.exit(code)
    written.rename(path)


def print_table(task: Task, reports: dict[str, Sequence[dict[str, Any]]]) -> None:
    """Prints means, and half of the range; differences are those to dense runs of the same seed."""
    print(f"\n### {' '.join(task.command)}\n")
    print(
        f"| | {task.unit} | to dense, {task.difference_unit} | single seeds "
        "| payload, bytes a step | ratio |"
    )
    print("|---|---|---|---|---|---|")
    values = {
        method: {report["seed"]: task.value(report[task.result]) for report in runs}
        for method, runs in reports.items()
    }
    for method, runs in reports.items():
        if not runs:
            continue
        own = values[method]
        dense = values.get("dense", {})
        differences = [task.difference(own[seed], dense[seed]) for seed in own if seed in dense]
        print(
            f"| {method} (`{METHODS[method]}`) | {spread(list(own.values()))} "
            f"| {spread(differences, '+') if method != 'dense' else ''} "
            f"| {', '.join(f'{value:.2f}' for value in own.values())} "
            f"| {runs[0]['payload_bytes']:,} "
            f"| {runs[0]['dense_bytes'] / runs[0]['payload_bytes']:.1f} |"
        )


def spread(values: Sequence[float], sign: str = "") -> str:
    """Returns mean and half of the range."""
    if not values:
        return "-"
    text = f"{statistics.fmean(values):{sign}.2f}"
    return f"{text} +- {(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else text


if __name__ == "__main__":
    main()
