# SPDX-License-Identifier: Apache-2.0
"""`tf-gradcomp bench network`: times training steps in a network of limited rate.

This file reads the options, starts the workers and reports. bench_network_links.py makes the
network, bench_network_worker.py is a worker, bench_network_workloads.py names what it trains.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tf_gradcomp.cli import bench_network_worker as worker
from tf_gradcomp.cli import bench_network_workloads as workloads
from tf_gradcomp.cli.bench_network_links import ENTER_NAMESPACE, ShapedNetwork
from tf_gradcomp.cli.bench_output import check_json_path, table, write_json
from tf_gradcomp.cli.launch import free_addresses, tf_config
from tf_gradcomp.cli.refusal import REFUSED, Refusal
from tf_gradcomp.cli.worker_group import WorkerGroup

Figures: TypeAlias = Mapping[str, float]  # what a worker prints, by the names of Result's fields

_DEFAULT_METHODS = (worker.DENSE, "float16", "natural", "fft", "dct", "powersgd")
_LOOPBACK = "none"  # in place of a rate
_MIN_RATE, _MAX_RATE = 1e6, 1e11  # bits a second; what tbf was seen to keep, generously
_MAX_WORKERS = 64
_GRACE_SECONDS = 1.0  # workers have nothing to save
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_RESULT = re.compile(rf"\[worker +\d+\] {worker.RESULT_MARK}(.*)")
_WORKER = (sys.executable, "-u", "-m", worker.__name__)

_DESCRIPTION = """\
Times the training step of a workload on workers of this machine, joined by a network of a given
rate, once for every method of exchanging gradients. A method is a compression spec, "dense" for
none, or "stock": the same step under TensorFlow's own MultiWorkerMirroredStrategy. Where gradients
are sparse, "stock" gathers all rows as they are, and all others add up those of the same index.

  step      a whole training step, under the strategy
  compute   the same step without an exchange, on all workers at once
  encode    from the step's gradients to payloads, on all workers at once
  decode    from the payloads of all workers to sums
  exchange  what is left: step - compute - encode - decode. What overlaps can make it negative
  wire      bytes that a worker sent in a step, counted at its network interface, headers included

Step, compute, encode and decode are measured in turns, ten times each, in the same processes;
times are medians over the steps, and means over the workers; bytes are those of all timed steps.
Methods run one after the other. With --rounds they take turns, and figures are medians over the
rounds. Where work and messages alternate (low-rank methods, transports other than all_gather, and
rows of sparse gradients, all workers' taken for the same), all work counts as encoding; with
"stock" it is in the exchange. On CPU.

workloads: cnn[:batch=N], resnet[:batch=N], recommender[:users=N,items=N,columns=N,batch=N],
block-sparse[:density=D,elements=N,overlap=random|full|none]

Networks of limited rate need root. Rate "none" takes the loopback interface, which all workers
share: it is neither limited nor a network, but needs nothing.

Above about 500 Mbit/s, packets of up to 64 kB pass whole, with one header, as they do on the way
to a network card that splits them: wire bytes are then up to 6 % less than on a cable."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The figures of one method; the field names are those of `--json`.

    Attributes:
      method: as given: a compression spec, "dense" or "stock".
      workload: its spec as given.
      workers: number of workers.
      rate: as given: bits a second that a worker can send or receive, or "none".
      threads: TensorFlow's intra-op threads, of each worker.
      steps: steps that were timed, in each round.
      rounds: how often that was done. Other figures are medians over the rounds.
      step_ms: time of a training step, milliseconds.
      mean_step_ms: mean of what step_ms is the median of, for methods whose steps differ.
      step_over_compute: of each round, step_ms over compute_ms; empty if nothing is computed.
      step_over_first: of each round, step_ms over that of the first method.
      compute_ms: time of a step without an exchange; 0 if the workload computes nothing.
      encode_ms: time from gradients to payloads; 0 for "stock", as is decode_ms.
      exchange_ms: step_ms - compute_ms - encode_ms - decode_ms.
      decode_ms: time from payloads to sums.
      wire_bytes_per_step: bytes a worker sent in a step, counted at its interface: the mean over
        the steps, whatever their densities.
      payload_bytes: what a worker contributes to the exchange of a step, as planned, without
        sparse gradients, and with the codec's own density; dense_bytes for "stock".
      dense_bytes: bytes of the same gradients as they are.
      estimate_ms: what the plan estimates that the exchange of compressed buckets takes, work and
        messages; 0 if there are none.
      dense_estimate_ms: the same, if they were sent dense.
    """

    method: str
    workload: str
    workers: int
    rate: str
    threads: int
    steps: int
    rounds: int
    step_ms: float
    mean_step_ms: float
    step_over_compute: list[float]
    step_over_first: list[float]
    compute_ms: float
    encode_ms: float
    exchange_ms: float
    decode_ms: float
    wire_bytes_per_step: float
    payload_bytes: float
    dense_bytes: float
    estimate_ms: float
    dense_estimate_ms: float


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the parser of `bench network`."""
    parser = subparsers.add_parser(
        "network",
        help="training steps in a network of limited rate, method by method",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add_number(option: str, default: int, text: str) -> None:
        help_text = f"{text} (default: %(default)s)"
        parser.add_argument(option, type=int, default=default, metavar="N", help=help_text)

    add_number("--workers", 2, "number of workers")
    parser.add_argument(
        "--rate",
        nargs="+",
        default=["1gbit"],
        metavar="RATE",
        help='of each worker\'s link, such as 100mbit, or "none" (default: 1gbit)',
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(_DEFAULT_METHODS),
        metavar="METHOD",
        help="what to compare, specs with parentheses in quotation marks "
        f"(default: {' '.join(_DEFAULT_METHODS)})",
    )
    parser.add_argument(
        "--workload", default="cnn", metavar="SPEC", help="what to train (default: %(default)s)"
    )
    add_number("--steps", 50, "steps that are timed; with a controller, whole periods")
    add_number("--warm-up", 10, "steps before them that are not; with a controller, two periods")
    add_number("--rounds", 1, "how often to go through the methods, each time in new processes")
    add_number("--threads", 1, "TensorFlow's intra-op threads, of each worker")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Measures, prints a table for each rate and writes the JSON file.

    Returns:
      0; 2 for options that are refused, or if the system refuses the network; 1 if TensorFlow
      or the native library is missing, or the file cannot be written; the exit code of the first
      worker that failed; 128 + signal if a signal ended it.
    """
    try:
        rates = {text: parse_rate(text) for text in args.rate}
        _check_options(args)
        _check_methods(args.methods)
        measured: dict[str, list[list[Figures]]] = {}
        try:
            for text, rate in rates.items():
                measured[text] = [[] for _ in args.methods]
                _measure_all(args, text, rate, measured[text])
        finally:  # a method that fails does not cost what others have shown
            _report(results_of(args, measured), args.json)
    except Refusal as refusal:
        return _fail(str(refusal), REFUSED)
    except _Failure as failure:
        return failure.code
    except OSError as error:
        return _fail(str(error), 1)
    return 0


def _report(results: Sequence[Result], json_path: Path | None) -> None:
    """Prints a table for each rate and writes the JSON file, if there is anything to tell."""
    if not results:
        return
    for rate in dict.fromkeys(result.rate for result in results):
        print(f"\n{summary([result for result in results if result.rate == rate])}")
    print(f"\n{_LEGEND}", flush=True)
    if json_path is not None:
        write_json(json_path, results)


def parse_rate(text: str) -> float | None:
    """Returns bits a second; `None` for "none".

    Raises:
      Refusal: it is neither a rate nor "none".
    """
    if text == _LOOPBACK:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", text.lower())
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not _MIN_RATE <= rate <= _MAX_RATE:
        raise Refusal(f"--rate must be from 1mbit to 100gbit, such as 2.5gbit, or none; got {text}")
    return rate


class _Failure(Exception):
    """A run that has ended badly and has said why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _say(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(f"tf-gradcomp bench network: {message}", file=sys.stderr, flush=True)


def _fail(message: str, code: int) -> int:
    _say(f"error: {message}")
    return code


def _check_options(args: argparse.Namespace) -> None:
    if not 2 <= args.workers <= _MAX_WORKERS:
        raise Refusal(f"--workers must be in 2..{_MAX_WORKERS}, got {args.workers}")
    for name in ("steps", "warm_up", "rounds", "threads"):
        value = getattr(args, name)
        if value < 1:
            raise Refusal(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    workloads.parse(args.workload, args.workers)
    check_json_path(args.json)


def _check_methods(methods: Sequence[str]) -> None:
    process = subprocess.run(
        [*_WORKER, "--check", *methods], env=_environment(), capture_output=True, text=True
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        reason = (
            lines[-1].removeprefix("ImportError: ")
            if lines
            else f"the check of the methods ended with {process.returncode}"
        )
        if process.returncode == REFUSED:
            raise Refusal(reason)
        raise _Failure(_fail(reason, 1))


def _environment() -> dict[str, str]:
    """What all workers find in their environment."""
    # A proxy would be asked for the way to the other workers. TF_CONFIG is each worker's own.
    unwanted = ("TF_CONFIG", "HTTP_PROXY", "HTTPS_PROXY", "GRPC_PROXY", "ALL_PROXY")
    environment = {k: v for k, v in os.environ.items() if k.upper() not in unwanted}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # what this process finds, they find too
    environment["CUDA_VISIBLE_DEVICES"] = ""  # they would fight for the machine's GPUs
    return environment


@contextlib.contextmanager
def _network(
    num_workers: int, bits_per_second: float | None
) -> Iterator[tuple[Sequence[str], Sequence[str], Sequence[dict[str, str]]]]:
    """Gives the workers' addresses, what to put before their command, and their environments."""
    if bits_per_second is None:
        yield free_addresses(num_workers, None), (), [{}] * num_workers
        return
    with ShapedNetwork(num_workers, bits_per_second) as network:
        yield network.addresses, ENTER_NAMESPACE, network.environments


def _measure_all(
    args: argparse.Namespace,
    rate: str,
    bits_per_second: float | None,
    measured: Sequence[list[Figures]],
) -> None:
    """Adds the figures of every method and round as soon as they are there."""
    turns = list(itertools.product(range(args.rounds), range(len(args.methods))))
    for turn, (_, number) in enumerate(turns, 1):
        method = args.methods[number]
        _say(f"{args.workload}, rate {rate}: {method} ({turn} of {len(turns)})")
        command = [*_WORKER, "--method", method, "--workload", args.workload]
        command += ["--warm-up", str(args.warm_up), "--steps", str(args.steps)]
        with _network(args.workers, bits_per_second) as (addresses, prefix, environments):
            common = _environment() | {"TF_NUM_INTRAOP_THREADS": str(args.threads)}
            workers = _run_workers(
                [*prefix, *command],
                [
                    common | own | {"TF_CONFIG": tf_config(addresses, index)}
                    for index, own in enumerate(environments)
                ],
            )
        measured[number].append(mean_figures(workers))


def _run_workers(
    command: Sequence[str], environments: Sequence[Mapping[str, str]]
) -> list[Figures]:
    """Returns what each worker has measured."""
    with tempfile.TemporaryFile() as output:
        group = WorkerGroup(command, environments, _GRACE_SECONDS, output.fileno(), say=_say)
        try:
            code = group.run()
        except subprocess.SubprocessError as error:
            code = _fail(str(error), 1)
        if code:
            raise _Failure(code)
        output.seek(0)
        text = output.read().decode("utf-8")
    return [json.loads(line) for line in _RESULT.findall(text)]


def mean_figures(workers: Sequence[Figures]) -> Figures:
    """Returns the means over the workers."""
    return {name: statistics.fmean(w[name] for w in workers) for name in workers[0]}


def results_of(
    args: argparse.Namespace, measured: Mapping[str, Sequence[Sequence[Figures]]]
) -> list[Result]:
    """Makes results of the figures of each rate's methods, in every round that came to its end."""
    return [
        _result_of(args, rate, method, rounds, figures[0])
        for rate, figures in measured.items()
        for method, rounds in zip(args.methods, figures, strict=True)
        if rounds
    ]


def _result_of(
    args: argparse.Namespace,
    rate: str,
    method: str,
    rounds: Sequence[Figures],
    first: Sequence[Figures],
) -> Result:
    medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    local = medians["compute_ms"] + medians["encode_ms"] + medians["decode_ms"]
    return Result(
        method=method,
        workload=args.workload,
        workers=args.workers,
        rate=rate,
        threads=args.threads,
        steps=args.steps,
        rounds=len(rounds),
        step_over_compute=[r["step_ms"] / r["compute_ms"] for r in rounds if r["compute_ms"]],
        # A round that has ended early has the first methods only.
        step_over_first=[
            own["step_ms"] / other["step_ms"] for own, other in zip(rounds, first, strict=False)
        ],
        exchange_ms=medians["step_ms"] - local,
        **medians,
    )


_LEGEND = """\
x compute: step over compute, that of the same run. x first: step over the first method's, that of
the same round. exchange: step - compute - encode - decode.
estimate: what the plan expects encode, exchange and decode of compressed buckets to take.
wire: bytes a worker sent in a step, headers included; x dense: how often they go into dense's.
payload: what a worker contributes, as planned, without passing on; block_sparse: an estimate."""


def summary(results: Sequence[Result]) -> str:
    """Returns a table of the results at one rate."""
    first = results[0]
    dense = [result.wire_bytes_per_step for result in results if result.method == worker.DENSE]
    header = "method|step ms|x compute|x first|compute|encode|exchange|decode|estimate"
    rows = [f"{header}|wire kB|x dense|payload kB".split("|")]
    for result in results:
        wire = result.wire_bytes_per_step
        rows.append(
            [
                result.method,
                f"{result.step_ms:.1f}",
                _median(result.step_over_compute),
                _median(result.step_over_first),
                f"{result.compute_ms:.1f}",
                f"{result.encode_ms:.1f}",
                f"{result.exchange_ms:.1f}",
                f"{result.decode_ms:.1f}",
                f"{result.estimate_ms:.1f}" if result.estimate_ms else "-",
                f"{wire / 1e3:.1f}",
                f"{dense[0] / wire:.1f}" if dense and wire else "-",
                f"{result.payload_bytes / 1e3:.1f}",
            ]
        )
    rounds = f" in each of {first.rounds} rounds" if first.rounds > 1 else ""
    return (
        f"{first.workload}, {first.workers} workers, rate {first.rate}, {first.threads} "
        f"intra-op threads each, {first.steps} steps{rounds}\n{table(rows)}"
    )


def _median(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f}" if ratios else "-"
