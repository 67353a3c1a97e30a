# SPDX-License-Identifier: Apache-2.0
"""The command `tf-gradcomp`: one module per subcommand.

A subcommand's module has two functions: `add_parser(subparsers)` adds a parser with the module's
own name, `run(args) -> int` does the work and returns the exit code. It imports TensorFlow inside
`run`, if at all: `launch` starts processes and must not wait seconds for an import it never uses.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from tf_gradcomp.cli.launch import split_command
from tf_gradcomp.version import __version__

_SUBCOMMANDS = ("launch", "doctor", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand.

    Args:
      argv: the arguments after the program's name; None takes them from `sys.argv`.

    Returns:
      The exit code: 0 for success, 2 for a refused command line, else as the subcommand says.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    worker_command: list[str] = []
    if argv[:1] == ["launch"]:
        # Everything from the script's name on belongs to the script, options and `--` included.
        # argparse would claim parts of it, and which parts depends on Python's version.
        options, worker_command = split_command(argv[1:])
        argv = ["launch", *options]

    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in _SUBCOMMANDS}
    args = _parser(modules).parse_args(argv)
    if args.subcommand == "launch":
        args.worker_command = worker_command
    try:
        return int(modules[args.subcommand].run(args))
    except KeyboardInterrupt:
        return 130


def _parser(modules: dict[str, ModuleType]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tf-gradcomp",
        description="Compressed gradient exchange for multi-worker Keras training.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    for module in modules.values():
        module.add_parser(subparsers)
    return parser
