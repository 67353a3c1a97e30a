# SPDX-License-Identifier: Apache-2.0
"""`tf-gradcomp bench codecs`: times encoding and decoding beside a copy and plain TensorFlow.

Everything is measured in one run and in turns, so that whatever else happens on the machine
meets all alike, and the ratios can be trusted more than the times. The pipelines themselves are
in bench_pipelines.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tf_gradcomp.cli.bench_output import check_json_path, table, write_json
from tf_gradcomp.cli.refusal import REFUSED, Refusal
from tf_gradcomp.ops import loader

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from tf_gradcomp.cli.bench_pipelines import Pipeline
    from tf_gradcomp.compression import Compression

BASELINE = "python-baseline"

_DEFAULT_SPECS = ("fft:density=0.15,bits=10", "identity")
_MAX_ELEMENTS = 1 << 30
_WARM_UP_ROUNDS = 5  # the residual, too, needs some steps to reach its usual size
_ENOUGH_SECONDS = 20.0
_SEED = 2018

_DESCRIPTION = """\
Times what one worker does around the exchange of a bucket of float32 gradient elements:

  encode      transform, error feedback (if the codec uses it), codec, storing the residual
  decode_sum  from the payloads of W workers to the summed bucket
  copy        numpy.copyto of the same bucket, in one thread or in --threads, whichever is faster

and the same job as the default FFT codec's written with tf.signal.rfft, tf.math.top_k and
tf.gather ("python-baseline"). Views see a matrix of 1,024 columns, and view=auto is timed along
them. All take turns in one run; in its turn each runs twice, and the second run counts. The times
are medians; what has taken 20 seconds is not repeated. On CPU."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The figures of one codec; the field names are those of `--json`.

    Attributes:
      codec: its spec as given, or "python-baseline".
      elements: float32 elements in the bucket.
      threads: TensorFlow's intra-op threads.
      workers: number of payloads that decode_sum adds up.
      encode_ms: median time of encoding, milliseconds.
      decode_sum_ms: median time of decoding, milliseconds.
      copy_ms: median time of copying the bucket, milliseconds, in one thread or in ``threads``,
        whichever is faster; the same in all results of a run.
      encode_gb_per_s: 10^9 bytes of gradient encoded per second.
      encode_over_copy: encode_ms / copy_ms.
      decode_sum_over_copy: decode_sum_ms / copy_ms.
      wire_bits_per_element: bits of one worker's payload per element.
      relative_error: norm of (gradient - decoded gradient) over norm of the gradient, for one
        worker's first step, when there is no residual yet.
    """

    codec: str
    elements: int
    threads: int
    workers: int
    encode_ms: float
    decode_sum_ms: float
    copy_ms: float
    encode_gb_per_s: float
    encode_over_copy: float
    decode_sum_over_copy: float
    wire_bits_per_element: float
    relative_error: float


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the parser of `bench codecs`."""
    parser = subparsers.add_parser(
        "codecs",
        help="encoding and decoding, beside a copy and plain TensorFlow",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add_number(option: str, default: int, text: str) -> None:
        help_text = f"{text} (default: %(default)s)"
        parser.add_argument(option, type=int, default=default, metavar="N", help=help_text)

    add_number("--elements", 4 << 20, "float32 elements in the bucket")
    add_number("--threads", 2, "TensorFlow's intra-op threads")
    add_number("--workers", 2, "payloads that decode_sum adds up")
    add_number("--repeats", 50, "rounds that are timed, after some that are not")
    parser.add_argument(
        "--codec",
        action="extend",
        nargs="+",
        metavar="SPEC",
        help=f"compression specs to measure (default: {' '.join(_DEFAULT_SPECS)})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Measures, prints a table and writes the JSON file.

    Returns:
      0; 1 if TensorFlow or the native library is missing, or the file cannot be written; 2 for
      options that are refused.
    """
    specs = args.codec or list(_DEFAULT_SPECS)
    # TensorFlow tells of its build and of missing GPUs; none of that is news here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        loader.check()
        _check_options(args)
        compressions = _compressions(specs)
        results = _measure_all(compressions, args)
    except Refusal as refusal:
        return _fail(str(refusal), REFUSED)
    except ImportError as error:
        return _fail(str(error), 1)
    _print_table(results)
    if args.json is not None:
        try:
            write_json(args.json, results)
        except OSError as error:
            return _fail(f"cannot write {args.json}: {error.strerror}", 1)
    return 0


def _fail(message: str, code: int) -> int:
    print(f"tf-gradcomp bench codecs: error: {message}", file=sys.stderr, flush=True)
    return code


def _check_options(args: argparse.Namespace) -> None:
    if not 1 <= args.elements <= _MAX_ELEMENTS:
        raise Refusal(f"--elements must be in 1..{_MAX_ELEMENTS}, got {args.elements}")
    for name in ("threads", "workers", "repeats"):
        value = getattr(args, name)
        if value < 1:
            raise Refusal(f"--{name} must be at least 1, got {value}")
    check_json_path(args.json)


def _compressions(specs: Sequence[str]) -> dict[str, Compression]:
    from tf_gradcomp.codecs.base import Codec
    from tf_gradcomp.compression import Compression

    compressions = {}
    for spec in specs:
        try:
            compression = Compression.from_spec(spec)
        except ValueError as error:
            raise Refusal(str(error)) from None
        if compression.is_dense:
            raise Refusal(f"{spec!r} is no codec; 'identity' is the one that changes nothing")
        if not isinstance(compression.build(), Codec):
            raise Refusal(f"{spec!r} cannot be timed here: it exchanges factors, not a payload")
        compressions[spec] = compression
    return compressions


def _measure_all(compressions: Mapping[str, Compression], args: argparse.Namespace) -> list[Result]:
    import numpy as np
    import tensorflow as tf

    # Before anything runs: TensorFlow fixes both when it starts. One operation at a time, so that
    # no more than --threads cores compute, whatever a pipeline's graph looks like.
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")
    from tf_gradcomp.cli.bench_pipelines import CodecPipeline, PythonBaseline

    num_elements = args.elements
    print(
        f"machine: {len(os.sched_getaffinity(0))} cores, TensorFlow {tf.__version__}, "
        f"{args.threads} intra-op threads\n"
        f"bucket: {num_elements:,} float32 elements ({4e-6 * num_elements:.3g} MB), Student-t "
        f"with 3 degrees of freedom times a log-normal scale per 1,024\n"
        f"{args.workers} workers, medians of {args.repeats} rounds",
        flush=True,
    )
    gradients = [sample_gradient(num_elements, worker) for worker in range(args.workers)]
    pipelines: dict[str, Pipeline] = {
        spec: CodecPipeline(compression, num_elements) for spec, compression in compressions.items()
    }
    pipelines[BASELINE] = PythonBaseline(num_elements)

    source, destination = gradients[0], np.zeros_like(gradients[0])
    actions: dict[tuple[str, str], Callable[[], object]] = {
        ("copy", "1"): functools.partial(np.copyto, destination, source),
        ("copy", "n"): parallel_copy(destination, source, args.threads),
    }
    bits, errors = {}, {}
    buckets = [tf.constant(gradient) for gradient in gradients]
    for name, pipeline in pipelines.items():
        payloads = first_payloads(pipeline, buckets)
        bits[name] = 32 * int(payloads.shape[1]) / num_elements
        decoded = pipeline.decode_sum(payloads[:1]).numpy()
        errors[name] = relative_error(source, decoded)
        actions["encode", name] = functools.partial(pipeline.encode, buckets[0])
        actions["decode_sum", name] = functools.partial(pipeline.decode_sum, payloads)
    times = median_ms(actions, args.repeats)

    copy_ms = min(times["copy", "1"], times["copy", "n"])
    return [
        Result(
            codec=name,
            elements=num_elements,
            threads=args.threads,
            workers=args.workers,
            encode_ms=times["encode", name],
            decode_sum_ms=times["decode_sum", name],
            copy_ms=copy_ms,
            encode_gb_per_s=4e-6 * num_elements / times["encode", name],
            encode_over_copy=times["encode", name] / copy_ms,
            decode_sum_over_copy=times["decode_sum", name] / copy_ms,
            wire_bits_per_element=bits[name],
            relative_error=errors[name],
        )
        for name in pipelines
    ]


def sample_gradient(num_elements: int, worker: int) -> np.ndarray:
    """Makes a bucket that looks like gradients, float32 `[num_elements]`; the same every time.

    Heavy tails (Student-t with 3 degrees of freedom), and a scale that differs from one run of
    1,024 elements to the next as it does between filters and layers (log-normal, sigma 1). Its
    rows have no structure that a transform could use, so errors are on the high side.
    """
    import numpy as np

    rng = np.random.default_rng((_SEED, worker))
    scales = np.repeat(rng.lognormal(size=-(-num_elements // 1024)), 1024)[:num_elements]
    return (1e-3 * scales * rng.standard_t(3, size=num_elements)).astype(np.float32)


def parallel_copy(
    destination: np.ndarray, source: np.ndarray, num_threads: int
) -> Callable[[], object]:
    """Returns a function that copies ``source``, a part in each thread; NumPy lets them run."""
    import numpy as np

    pool = ThreadPoolExecutor(num_threads)
    pieces = (np.array_split(array, num_threads) for array in (destination, source))
    parts = list(zip(*pieces, strict=True))
    return lambda: list(pool.map(lambda part: np.copyto(*part), parts))


def relative_error(expected: np.ndarray, decoded: np.ndarray) -> float:
    """Returns the 2-norm of the difference over that of `expected`, in float64."""
    import numpy as np

    exact = expected.astype(np.float64)
    return float(np.linalg.norm(exact - decoded) / np.linalg.norm(exact))


def first_payloads(pipeline: Pipeline, buckets: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns every worker's payload of its first step, int32 `[W, m]`; leaves no residual."""
    import tensorflow as tf

    payloads = []
    for bucket in buckets:
        payloads.append(pipeline.encode(bucket))
        pipeline.reset()
    return tf.stack(payloads)


def median_ms(
    actions: Mapping[tuple[str, str], Callable[[], object]], repeats: int
) -> dict[tuple[str, str], float]:
    """Times all actions in turns; returns the medians in milliseconds.

    In its turn an action runs twice, and the second run counts: all then find their data in the
    caches as far as these reach, as in a loop of their own, and not what the one before them
    left. A copy of 16 MB takes twice as long otherwise. TensorFlow's eager calls on CPU return
    when they are done. An action that has taken long enough sits out the other rounds.
    """
    seconds: dict[tuple[str, str], list[float]] = {name: [] for name in actions}
    for _ in range(_WARM_UP_ROUNDS + repeats):
        for name, action in actions.items():
            if sum(seconds[name]) > _ENOUGH_SECONDS / 2:
                continue
            action()
            start = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start)

    def median(values: list[float]) -> float:
        return statistics.median(values[_WARM_UP_ROUNDS:] or values[-1:])

    return {name: 1e3 * median(values) for name, values in seconds.items()}


def _print_table(results: Sequence[Result]) -> None:
    (baseline,) = (result for result in results if result.codec == BASELINE)
    copy_gb_per_s = 4e-6 * baseline.elements / baseline.copy_ms
    header = "codec|encode ms|GB/s|x copy|speed-up|decode_sum ms|x copy|bits/element|error"
    copy = f"copy (NumPy)|{baseline.copy_ms:.3f}|{copy_gb_per_s:.2f}|1.0|||||"
    rows = [header.split("|"), copy.split("|")]
    for result in results:
        rows.append(
            [
                result.codec,
                f"{result.encode_ms:.3f}",
                f"{result.encode_gb_per_s:.2f}",
                f"{result.encode_over_copy:.1f}",
                f"{baseline.encode_ms / result.encode_ms:.1f}",
                f"{result.decode_sum_ms:.3f}",
                f"{result.decode_sum_over_copy:.1f}",
                f"{result.wire_bits_per_element:.3f}",
                f"{result.relative_error:.4f}",
            ]
        )
    print(f"\n{table(rows)}")
    print(
        "\nGB/s: gradient bytes per encoding time. x copy: time over copying time. speed-up:\n"
        f"encoding, over {BASELINE}. error: relative error of one worker's first step."
    )
