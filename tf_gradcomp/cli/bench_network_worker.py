# SPDX-License-Identifier: Apache-2.0
"""One worker of `tf-gradcomp bench network`: trains, and prints what it measured as one line.

With `--check` it only looks whether methods can be used, in a process of its own: TensorFlow
starts threads, which the process that starts workers must not have.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tf_gradcomp.cli.bench_network_workloads import parse
from tf_gradcomp.cli.refusal import REFUSED

RESULT_MARK = "RESULT "
DENSE = "dense"  # in place of "none": what people call it
STOCK = "stock"  # TensorFlow's own strategy, which knows of no compression
BLOCK_STEPS = 10  # steps between two looks at the interface's counter


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the worker that TF_CONFIG names, or checks methods; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", nargs="+", default=[], metavar="METHOD")
    parser.add_argument("--method")
    parser.add_argument("--workload")
    parser.add_argument("--warm-up", type=int)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args(argv)
    if args.check:
        return _check(args.check)
    figures = _measure(args.workload, args.method, args.warm_up, args.steps)
    print(RESULT_MARK + json.dumps(figures), flush=True)
    return 0


def spec_of(method: str) -> str:
    """The compression spec of a method."""
    return "none" if method == DENSE else method


def _check(methods: Sequence[str]) -> int:
    from tf_gradcomp.compression import Compression

    for method in methods:
        if method == STOCK:
            continue
        try:
            Compression.from_spec(spec_of(method))
        except ValueError as error:
            print(error, file=sys.stderr)
            return REFUSED
    return 0


def _measure(spec: str, method: str, warm_up: int, steps: int) -> dict[str, float]:
    import tensorflow as tf

    from tf_gradcomp.cli import bench_network_models as models
    from tf_gradcomp.distribute.gradient_scope import all_reduce_gradients
    from tf_gradcomp.metrics import WireCounter

    strategy = _make_strategy(method)
    worker = strategy.cluster_resolver.task_id
    has_momentum = method != STOCK and strategy.policy.momentum
    momentum = 0.0 if has_momentum else models.MOMENTUM
    model = models.build(parse(spec, strategy.num_replicas_in_sync), worker, momentum)

    def step() -> list[models.Gradient]:
        own = zip(model.gradients(), model.variables, strict=True)
        pairs = all_reduce_gradients(own, models.LEARNING_RATE)
        return model.use([total for total, _ in pairs])

    def say_ready() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

    train = tf.function(lambda: strategy.run(step), autograph=False)
    meet = tf.function(lambda: strategy.run(say_ready), autograph=False)
    compute = tf.function(lambda: model.use(model.gradients()), autograph=False)

    train()  # makes the plan
    gradients = tf.function(model.gradients, autograph=False)()
    dense_bytes = sum(
        gradient.dtype.size * gradient.shape.num_elements()
        for gradient in gradients
        if not isinstance(gradient, tf.IndexedSlices)
    )
    numbers = iter(range(2, 1 << 30))

    # What is timed gets its number of the exchange from outside of the time.
    actions: dict[str, Callable[[tf.Tensor], object]] = {"step_ms": lambda _: train()}
    payload_bytes, estimates = dense_bytes, []
    if method != STOCK:
        payload_bytes = strategy.plans[0].payload_bytes
        estimates = [b.estimates for b in strategy.plans[0].buckets if b.estimates]
        actions = _actions_on_parts(strategy, gradients) | actions
    if model.computes:
        actions = {"compute_ms": lambda _: compute()} | actions
    times: dict[str, list[float]] = {name: [] for name in actions}
    sent: list[float] = []  # bytes, in each block of steps
    counter = WireCounter()

    def run_block(length: int) -> None:
        # All workers do the same at the same time, and each block sees the same weather.
        for name, action in actions.items():
            meet()
            counter.restart()
            for _ in range(length):
                number = tf.constant(next(numbers))
                start = time.perf_counter()
                action(number)
                times[name].append(1e3 * (time.perf_counter() - start))
            meet()  # what this worker sent has then arrived
            if name == "step_ms":
                sent.append(counter.bytes_sent() or 0.0)

    run_block(warm_up)
    for values in [*times.values(), sent]:
        values.clear()
    for start in range(0, steps, BLOCK_STEPS):
        run_block(min(BLOCK_STEPS, steps - start))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "compute_ms": 0.0,
        "encode_ms": 0.0,
        "decode_ms": 0.0,
        **medians,
        "mean_step_ms": statistics.fmean(times["step_ms"]),
        "wire_bytes_per_step": sum(sent) / steps,  # densities may differ from step to step
        "payload_bytes": payload_bytes,
        "dense_bytes": dense_bytes,
        "estimate_ms": 1e3 * sum(own.total for own, *_ in estimates),
        "dense_estimate_ms": 1e3 * sum(dense.total for *_, dense in estimates),
    }


def _make_strategy(method: str) -> Any:
    import tensorflow as tf

    from tf_gradcomp.strategy import CompressedMultiWorkerMirroredStrategy

    if method == STOCK:
        return tf.distribute.MultiWorkerMirroredStrategy()
    # Workers drift apart, as each trains alone when `compute` is timed.
    return CompressedMultiWorkerMirroredStrategy(spec_of(method), drift_check=None)


def _actions_on_parts(
    strategy: Any, gradients: Sequence[Any]
) -> dict[str, Callable[[Any], object]]:
    """Returns what encodes, and what decodes, these gradients; the argument is the step."""
    import tensorflow as tf

    from tf_gradcomp.cli.bench_network_parts import Parts

    collectives = strategy.extended.reducer.collectives
    parts = Parts(strategy.plans[0], collectives)
    first = tf.constant(1)
    payloads = parts.encode(gradients, first)
    with tf.device(collectives.device):
        gathered = [collectives.all_gather(payload) for payload in payloads]
    return {
        "encode_ms": lambda number: parts.encode(gradients, number),
        # Positions that are drawn hold for the exchange that they were drawn for.
        "decode_ms": lambda _: parts.decode(gradients, gathered, first),
    }


if __name__ == "__main__":
    # As for the command line itself: TensorFlow tells of its build and of missing GPUs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(main())
