# SPDX-License-Identifier: Apache-2.0
"""`tf-gradcomp launch`: runs a training script on several workers of this machine.

This file chooses ports and builds each worker's environment; worker_group.py runs the processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from tf_gradcomp.cli.refusal import REFUSED, Refusal
from tf_gradcomp.cli.worker_group import WorkerGroup, say

_HOST = "127.0.0.1"
_THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"  # read by TensorFlow when its runtime starts

_DESCRIPTION = """\
Runs a Python script on N workers of this machine, which find each other through TF_CONFIG.

Each worker's output, stdout and stderr, appears on stdout line by line behind "[worker i] ".
When a worker fails, the others are ended and the launcher returns that worker's exit code.
Ctrl-C, SIGTERM and SIGHUP end all workers; a second one kills them at once."""

_EPILOG = """\
examples:
  tf-gradcomp launch -n 2 train.py --epochs 3
  tf-gradcomp launch -n 4 --threads 2 --env TF_CPP_MIN_LOG_LEVEL=2 -m project.train --epochs 3

On a cluster its scheduler starts the workers and sets TF_CONFIG, without this command."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the parser of `launch`; it sees only what `split_command` says are its options."""
    parser = subparsers.add_parser(
        "launch",
        help="run a training script on several workers of this machine",
        usage="tf-gradcomp launch -n N [options] (SCRIPT | -m MODULE) [arguments]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # Every option but --help takes one value: split_command relies on it.
    parser.add_argument(
        "-n", "--num-workers", type=int, required=True, metavar="N", help="number of workers"
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="T",
        help="intra-op threads per worker, handed on as TF_NUM_INTRAOP_THREADS (default: that "
        "variable if set, else this process' cores // N, so that workers do not fight for cores)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        help="set an environment variable for the workers; may be repeated",
    )
    parser.add_argument(
        "--host-port-base",
        type=int,
        metavar="P",
        help="worker i listens on port P + i (default: ports that are free); for firewalls and "
        "for attaching other tools",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds between SIGTERM and SIGKILL when workers are ended, for scripts that save "
        "a checkpoint on SIGTERM (default: %(default)g)",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="start all workers again, up to N times, when one has failed; for scripts that go on "
        "from a backup, as with tf_gradcomp.callbacks.BackupAndRestore (default: %(default)s)",
    )


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments of `launch` into its own options and the workers' command.

    The command begins at `-m`, at the first argument that is no option, or after `--`.
    """
    position = 0
    while position < len(argv):
        argument = argv[position]
        if argument == "--":
            return list(argv[:position]), list(argv[position + 1 :])
        if not argument.startswith("-") or argument == "-" or argument.startswith("-m"):
            break
        is_short = not argument.startswith("--")
        holds_value = "=" in argument or (is_short and len(argument) > 2)
        position += 1 if holds_value or argument in ("-h", "--help") else 2
    return list(argv[:position]), list(argv[position:])


def run(args: argparse.Namespace) -> int:
    """Starts the workers and waits for them.

    Args:
      args: the options that `add_parser` names, and `worker_command`, a list of str.

    Returns:
      0 if all workers returned 0, the exit code of the first one that failed, 128 + signal if a
      signal ended the launcher, 2 for a refused command line, 1 if a worker cannot be started.
    """
    restarts = 0
    while True:
        code, failure = _run_once(args)
        if failure is None:
            return code
        if restarts == args.restarts:
            say(_how_to_go_on(failure, restarts))
            return code
        restarts += 1
        say(f"restart {restarts} of {args.restarts}")


def _how_to_go_on(failure: str, restarts: int) -> str:
    """The launcher's last line, after a worker has failed."""
    tried = f" after {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
    by_itself = "" if restarts else ", or let --restarts N do that"
    return (
        f"{failure}{tried}. Mend what its log complains of, if anything, and run the same command "
        f"again{by_itself}: with tf_gradcomp.callbacks.BackupAndRestore, training goes on from the "
        f"last backup"
    )


def _run_once(args: argparse.Namespace) -> tuple[int, str | None]:
    """Runs the workers to their end.

    Returns:
      The exit code, and how a worker failed if it pays to start all again.
    """
    try:
        command = _python_command(args.worker_command)
        environment, threads = _shared_environment(args)
        addresses = free_addresses(args.num_workers, args.host_port_base)
    except Refusal as refusal:
        say(f"error: {refusal}")
        return REFUSED, None

    environments = [
        environment | {"TF_CONFIG": tf_config(addresses, index)} for index in range(len(addresses))
    ]
    say(
        f"{len(addresses)} worker{'s' if len(addresses) > 1 else ''} at {', '.join(addresses)}; "
        f"{threads} intra-op thread{'' if threads == '1' else 's'} each"
    )
    out = sys.stdout
    group = WorkerGroup(command, environments, args.grace, out.fileno(), out.encoding or "utf-8")
    try:
        return group.run(), None if group.was_signalled else group.first_failure
    except (OSError, subprocess.SubprocessError) as error:
        say(f"error: {error}")
        return 1, None


def tf_config(addresses: Sequence[str], index: int) -> str:
    """The value of TF_CONFIG for worker `index` of a cluster of workers at `addresses`."""
    return json.dumps(
        {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}
    )


def _python_command(worker_command: Sequence[str]) -> list[str]:
    """The command line of a worker: this Python, unbuffered, so that no line comes late."""
    python = [sys.executable, "-u"]
    if not worker_command:
        raise Refusal("no script given; see tf-gradcomp launch --help")
    target = worker_command[0]
    if target == "-m" and len(worker_command) == 1:
        raise Refusal("-m needs the name of a module")
    if target.startswith("-m"):
        return [*python, *worker_command]
    if not os.path.exists(target):
        raise Refusal(f"script {target!r} does not exist")
    if target.startswith("-"):  # given after `--`; to Python it would be an option
        target = os.path.join(os.curdir, target)
    return [*python, target, *worker_command[1:]]


def _shared_environment(args: argparse.Namespace) -> tuple[dict[str, str], str]:
    """What all workers find in their environment, and their number of threads."""
    if args.num_workers < 1:
        raise Refusal(f"-n must be at least 1, got {args.num_workers}")
    if args.threads is not None and args.threads < 1:
        raise Refusal(f"--threads must be at least 1, got {args.threads}")
    if args.restarts < 0:
        raise Refusal(f"--restarts must be at least 0, got {args.restarts}")
    if not args.grace >= 0:  # so written because NaN is refused too
        raise Refusal(f"--grace must be at least 0 seconds, got {args.grace:g}")
    if "TF_CONFIG" in os.environ:
        raise Refusal(
            "TF_CONFIG is already set, so this process seems to be a worker itself; "
            "run the script without launch, or unset TF_CONFIG"
        )
    environment = dict(os.environ)
    for setting in args.env:
        name, separator, value = setting.partition("=")
        if not name or not separator:
            raise Refusal(f"--env takes NAME=VALUE, got {setting!r}")
        if name == "TF_CONFIG":
            raise Refusal("--env cannot set TF_CONFIG, which is different for each worker")
        environment[name] = value
    if args.threads is not None:
        environment[_THREADS_VARIABLE] = str(args.threads)
    else:
        share = max(1, _usable_cores() // args.num_workers)
        environment.setdefault(_THREADS_VARIABLE, str(share))
    return environment, environment[_THREADS_VARIABLE]


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: what taskset and Slurm allow this process
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_addresses(num_workers: int, port_base: int | None) -> list[str]:
    """Returns one free address per worker.

    A port may be taken by someone else between this check and the worker's own bind: the worker
    has to bind it itself, so the launcher must let go of it. The worker then fails and says so.
    All ports are held until all are chosen, since the system might offer the same one twice.

    Raises:
      Refusal: a port is taken or out of range.
    """
    if port_base is not None and not 1 <= port_base <= 65536 - num_workers:
        raise Refusal(
            f"--host-port-base must be in 1..{65536 - num_workers} for {num_workers} workers, "
            f"got {port_base}"
        )
    addresses = []
    with contextlib.ExitStack() as held:
        for index in range(num_workers):
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            port = 0 if port_base is None else port_base + index
            if port:  # the worker may bind over connections in TIME_WAIT, so this may as well
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                # TensorFlow's server listens on every interface, so the port must be free on all.
                probe.bind(("", port))
            except OSError as error:
                what = f"port {port}" if port else "a free port"
                raise Refusal(f"cannot use {what}: {error.strerror}") from None
            addresses.append(f"{_HOST}:{probe.getsockname()[1]}")
    return addresses
