# SPDX-License-Identifier: Apache-2.0
"""`tf-gradcomp bench`: measures parts of tf_gradcomp on this machine, beside what they replace.

Benchmark NAME is the module `bench_NAME.py` beside this one. Like a subcommand, it has
`add_parser(subparsers)` and `run(args) -> int`, and imports TensorFlow inside `run` only.
"""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType

_BENCHMARKS = ("codecs", "network")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the parser of `bench`, with one subparser per benchmark."""
    parser = subparsers.add_parser("bench", help="measure speed and payload sizes on this machine")
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name in _BENCHMARKS:
        _module(name).add_parser(benchmarks)


def run(args: argparse.Namespace) -> int:
    """Runs one benchmark and returns its exit code."""
    return int(_module(args.benchmark).run(args))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tf_gradcomp.cli.bench_{name}")
