# SPDX-License-Identifier: Apache-2.0
"""Small programs under a strategy, one per name; each reports what the test needs to see."""

from __future__ import annotations

import functools
import hashlib
import json
import operator
import os
import signal
import sys
import time
from collections.abc import Callable

import cluster
import numpy as np
import tensorflow as tf

import tf_gradcomp as tfgc

Strategy = tfgc.CompressedMultiWorkerMirroredStrategy


def custom_loop(spec: str) -> None:
    """tfgc.all_reduce_gradients inside of strategy.run, with a None and an IndexedSlices."""
    strategy = Strategy(spec)
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape), name=n) for n, shape in _SHAPES.items()]

    @tf.function
    def step() -> list[tf.Tensor]:
        def replica_step() -> list[tf.Tensor]:
            worker = strategy.extended.reducer.collectives.worker_index
            dense = [tf.constant(gradient(worker, v.shape)) for v in variables]
            slices = tf.IndexedSlices(
                tf.ones([2, 5]) * (worker + 1), tf.constant([worker, 3]), tf.constant([9, 5])
            )
            pairs = [*zip(dense, variables, strict=True), (slices, table), (None, unused)]
            reduced = tfgc.all_reduce_gradients(pairs)
            assert reduced[-1][0] is None
            return [tf.convert_to_tensor(g) for g, _ in reduced[:-1]]

        return strategy.run(replica_step)

    with strategy.scope():
        table, unused = tf.Variable(tf.zeros([9, 5])), tf.Variable(0.0)
    sums = [np.asarray(total).ravel().tolist() for total in step()]
    cluster.report(sums=sums)


def sparse(spec: str, rows: str) -> None:
    """Sparse gradients of two types and a tied embedding.

    Args:
      spec: of the compression.
      rows: JSON: for each step and worker the rows touched. In the last step all workers but the
        first have a NaN.
    """
    strategy = Strategy(spec)
    worker = strategy.extended.reducer.collectives.worker_index
    with strategy.scope():
        wide = tf.Variable(tf.zeros([100, 2, 3]), name="wide")
        half = tf.Variable(tf.zeros([100, 4]), name="half")
        tied = tf.Variable(tf.zeros([64, 80]), name="tied")

    @tf.function(reduce_retracing=True)
    def step(indices: tf.Tensor, value: tf.Tensor) -> list[tf.Tensor | tf.IndexedSlices]:
        def replica_step() -> list[tf.Tensor | tf.IndexedSlices]:
            with tf.GradientTape() as tape:
                embedded = tf.gather(tied, indices)
                logits = tf.matmul(tf.fill([1, 80], value), tied, transpose_b=True)
                loss = tf.reduce_sum(embedded) + tf.reduce_sum(logits)
            pairs = [
                (_rows_of(value, indices, (2, 3)), wide),
                (_rows_of(value, indices, (4,), tf.bfloat16), half),
                (tape.gradient(loss, tied), tied),
            ]
            return [total for total, _ in tfgc.all_reduce_gradients(pairs)]

        return strategy.run(replica_step)

    outcomes = []
    for rows_of_worker in json.loads(rows):
        own = rows_of_worker[worker]
        is_last = len(outcomes) == len(json.loads(rows)) - 1
        value = np.nan if is_last and worker else 1.0 + worker
        indices = tf.constant(own, tf.int64, [len(own)])
        *sparse_sums, tied_sum = step(indices, tf.constant(value, tf.float32))
        outcomes.append(
            {
                "indices": [s.indices.numpy().tolist() for s in sparse_sums],
                "values": [np.float32(s.values).tolist() for s in sparse_sums],
                "tied": tied_sum.numpy()[:, 0].tolist(),
            }
        )
    cluster.report(outcomes=outcomes, plans=[plan.summary() for plan in strategy.plans])


def _rows_of(value, indices, row_shape, dtype=tf.float32):
    shape = tf.concat([tf.shape(indices), row_shape], axis=0)
    return tf.IndexedSlices(tf.fill(shape, tf.cast(value, dtype)), indices, None)


def apply_gradients(spec: str, nested: str) -> None:
    """A training loop of one's own around optimizer.apply_gradients, in a loop in a function."""
    maybe_function = tf.function if nested == "nested" else lambda function: function
    strategy = Strategy(spec)
    tf.keras.utils.set_random_seed(5)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Input((80,)), tf.keras.layers.Dense(70), tf.keras.layers.Dense(1)]
        )
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    worker = strategy.extended.reducer.collectives.worker_index

    @tf.function
    def train(num_steps):
        @maybe_function
        def replica_step():
            inputs = tf.constant(gradient(worker, (16, 80)))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(inputs) ** 2) / strategy.num_replicas_in_sync
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        loss = 0.0
        for _ in tf.range(num_steps):
            loss = strategy.run(replica_step)
        return loss

    first = float(train(tf.constant(1)))
    last = float(train(tf.constant(20)))
    cluster.report(
        first=first,
        last=last,
        weights=[np.asarray(w).ravel().tolist() for w in model.get_weights()],
        plans=[plan.summary() for plan in strategy.plans],
    )


_SHAPES = {"kernel": (64, 128), "bias": (80,), "scalar": ()}


def gradient(worker: int, shape: tf.TensorShape) -> np.ndarray:
    return np.random.default_rng(worker).normal(size=shape).astype(np.float32)


def transport_sums(transport: str, *sizes: str) -> None:
    """Sums of gradients of several sizes, some of them zero in most places.

    Of `identity`, and for `all_reduce` of the 16-bit types.
    """
    codecs = ["identity", *(("float16", "bfloat16") if transport == "all_reduce" else ())]
    fields = f"scope=layer,error_feedback=false,transport={transport}"
    rules = tuple((f"*in_{codec}_*", f"{codec}:{fields}") for codec in codecs)
    strategy = Strategy(tfgc.Policy(rules=rules))
    worker = strategy.extended.reducer.collectives.worker_index
    num_workers = strategy.extended.reducer.collectives.num_workers
    # Of fewer numbers than four, with a header, payloads of 16-bit types are no shorter.
    cases = [(c, int(size)) for c in codecs for size in sizes if c == "identity" or int(size) > 3]
    with strategy.scope():
        variables = [tf.Variable(tf.zeros([size]), name=f"in_{c}_{size}") for c, size in cases]

    @tf.function
    def step(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        def replica_step() -> list[tf.Tensor]:
            own = [tf.identity(gradient) for gradient in gradients]
            pairs = [*zip(own, variables, strict=True)]
            return [total for total, _ in tfgc.all_reduce_gradients(pairs)]

        return strategy.run(replica_step)

    outcomes = []
    # The union of what is not zero differs from step to step, and is empty in one.
    for density in (1.0, 0.0, 0.01, 0.3):
        gradients = [_mostly_zero(worker, size, density) for _, size in cases]
        totals = step([tf.constant(g) for g in gradients])
        for (codec, size), total in zip(cases, totals, strict=True):
            parts = [_mostly_zero(w, size, density) for w in range(num_workers)]
            expected, bound = _sum_in(codec, parts)
            if transport == "integer":
                # Off by half a unit, of which the largest has 2^28 at least.
                bound = bound + num_workers * 2.0**-28 * sum(np.abs(p) for p in parts).max()
            outcomes.append(
                {
                    "case": f"{codec}, {size} values, density {density}",
                    "digest": hashlib.sha256(total.numpy().tobytes()).hexdigest(),
                    "expected": hashlib.sha256(expected.tobytes()).hexdigest(),
                    "is_close": bool(np.all(np.abs(total.numpy() - expected) <= bound)),
                }
            )
    cluster.report(outcomes=outcomes)


def _sum_in(codec: str, parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sum in the codec's type, and what another order of adding may change."""
    dtype = np.dtype(tf.as_dtype("float32" if codec == "identity" else codec).as_numpy_dtype)
    # float16 has no range to spare: it sums means, of the next power of two workers.
    share = np.float32(2.0 ** -np.ceil(np.log2(len(parts))) if codec == "float16" else 1)
    total = functools.reduce(operator.add, [(share * part).astype(dtype) for part in parts])
    # Adding W numbers errs by W - 1 roundings of partial sums, in this order and in the other. A
    # sum of denormal numbers is exact.
    unit = {"identity": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[codec]
    magnitudes = sum(np.abs(part) for part in parts)
    return total.astype(np.float32) / share, 2.1 * (len(parts) - 1) * unit * magnitudes


def _mostly_zero(worker: int, size: int, density: float) -> np.ndarray:
    rng = np.random.default_rng([worker, size])
    is_kept = rng.random(-(-size // 256)) < density
    return rng.normal(size=size).astype(np.float32) * np.repeat(is_kept, 256)[:size]


def local_devices(spec: str) -> None:
    """Two logical CPU devices on every worker."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    from tf_gradcomp.distribute import extended

    def two_cpus(self, cluster_resolver, worker_device):
        return tuple(f"{worker_device}/device:CPU:{i}" for i in range(2)), "CPU"

    extended.CompressedExtended._initialize_local_devices = two_cpus
    strategy = Strategy(spec)
    with strategy.scope():
        kernel = tf.Variable(tf.zeros((70, 80)), name="kernel")
        table = tf.Variable(tf.zeros((9, 5)), name="table")

    @tf.function
    def step():
        def replica_step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            all_gradients = tf.constant(np.stack([gradient(i, kernel.shape) for i in range(4)]))
            slices = tf.IndexedSlices(
                tf.ones([1, 5]), tf.reshape(tf.cast(replica, tf.int32), [1]), tf.constant([9, 5])
            )
            pairs = tfgc.all_reduce_gradients([(all_gradients[replica], kernel), (slices, table)])
            index = tf.cast(replica, tf.float32)
            other = tf.distribute.get_replica_context().all_reduce("SUM", index + 1.0)
            return pairs[0][0], tf.convert_to_tensor(pairs[1][0]), other, index

        *results, indices = strategy.run(replica_step)
        return *results, strategy.reduce("SUM", indices, axis=None)

    *results, index_sum = step()
    kernel_sums, table_sums, others = map(strategy.experimental_local_results, results)
    cluster.report(
        num_replicas=strategy.num_replicas_in_sync,
        kernels=[value.numpy().ravel().tolist() for value in kernel_sums],
        tables=[value.numpy()[:, 0].tolist() for value in table_sums],
        others=[float(value) for value in others],
        index_sum=float(index_sum),
    )


def start_only(spec: str) -> None:
    """Makes the strategy and nothing else."""
    Strategy(spec)
    cluster.report(ok=True)


def different_models(frozen: str) -> None:
    """A model of which each worker freezes another number of layers."""
    strategy = Strategy("fft:scope=layer")
    with strategy.scope():
        # Of such different sizes that one measurement will not do for both.
        layers = [tf.keras.layers.Dense(units, use_bias=False) for units in (100, 2000)]
        model = tf.keras.Sequential([tf.keras.layers.Input((100,)), *layers])
        for layer in layers[: int(frozen)]:
            layer.trainable = False
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones((8, 100)), tf.ones((8, 2000))))
    model.fit(data.repeat(4), steps_per_epoch=2, verbose=0)
    cluster.report(ok=True)


def epochs() -> None:
    """A dataset that ends with every epoch, as most do; steps of a tenth of a second."""
    strategy = Strategy("fft")
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((100,)), tf.keras.layers.Dense(100)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((tf.ones((160, 100)), tf.ones((160, 100))))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = data.map(lambda x, y: (x * 1.0, y)).batch(16).with_options(options)
    first_steps, seconds, num_threads = [], [], []

    class Clock(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.start = time.monotonic()

        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                first_steps.append(time.monotonic() - self.start)
            time.sleep(0.1)

        def on_epoch_end(self, epoch, logs=None):
            seconds.append(time.monotonic() - self.start)
            num_threads.append(len(os.listdir("/proc/self/task")))

    model.fit(data, epochs=6, verbose=0, callbacks=[Clock()])
    cluster.report(first_steps=first_steps, seconds=seconds, num_threads=num_threads)


def shared_source() -> None:
    """Loops that leave a dataset early; the next one goes on with the same Python generator."""
    strategy = Strategy("none")
    numbers = iter(range(10**6))

    def source():
        for number in numbers:
            time.sleep(0.001)
            yield number

    generator = source()
    data = tf.data.Dataset.from_generator(
        lambda: generator, output_signature=tf.TensorSpec((), tf.int64)
    )
    distributed = strategy.experimental_distribute_dataset(data.batch(2).prefetch(1))
    errors = 0
    for _ in range(15):
        try:
            for step, _ in enumerate(distributed):
                if step == 3:
                    break
        except tf.errors.OpError:
            errors += 1
    cluster.report(errors=errors)


def _exchange_with_timeout(seconds: float) -> tuple[Strategy, Callable[[], tf.Tensor]]:
    """Returns a strategy, and a step that exchanges the gradient of one kernel."""
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=seconds)
    strategy = Strategy("fft", communication_options=options)
    with strategy.scope():
        kernel = tf.Variable(tf.zeros((70, 80)), name="kernel")

    @tf.function
    def step() -> tf.Tensor:
        return strategy.run(lambda: tfgc.all_reduce_gradients([(tf.ones((70, 80)), kernel)])[0][0])

    return strategy, step


def stall(seconds: str) -> None:
    """Worker 1 sleeps before an exchange, longer than the timeout of two seconds."""
    strategy, step = _exchange_with_timeout(2)
    step()
    if strategy.extended.reducer.collectives.worker_index == 1:
        time.sleep(float(seconds))
    try:
        step()
    except tf.errors.OpError as error:
        cluster.report(error=type(error).__name__, message=error.message)
    else:
        cluster.report(error=None)


def tensorboard(folder: str) -> None:
    """An epoch of fit with a log, in a folder for each worker; which of them wrote one?"""
    strategy = Strategy("fft")
    own = os.path.join(folder, str(strategy.extended.reducer.collectives.worker_index))
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((80,)), tf.keras.layers.Dense(70)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones((8, 80)), tf.ones((8, 70)))).repeat(4)
    monitor = tfgc.callbacks.CompressionMonitor(own)
    model.fit(data, steps_per_epoch=2, verbose=0, callbacks=[monitor])
    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    cluster.report(wrote=os.path.exists(own), weights=hashlib.sha256(weights).hexdigest())


def killed(victim: str) -> None:
    """A worker kills itself between two exchanges, which may take the others five seconds."""
    strategy, step = _exchange_with_timeout(5)
    step()
    if strategy.extended.reducer.collectives.worker_index == int(victim):
        os.kill(os.getpid(), signal.SIGKILL)
    step()


def drift(action: str, steps_per_execution: str) -> None:
    """Worker 1 decodes one bit of one gradient wrongly, in the sixth of twelve steps."""
    check = tfgc.DriftCheck(every=4, action=action)
    strategy = Strategy("float16", drift_check=check)
    reducer = strategy.extended.reducer
    if reducer.collectives.worker_index == 1:
        reduce, count = reducer.reduce, tf.Variable(0, trainable=False)

        def reduce_wrongly(*args: object) -> list[tf.Tensor]:
            first, *others = reduce(*args)
            bit = tf.where(count.assign_add(1) == 6, 1 << 22, 0)
            mask = tf.scatter_nd([[3, 4]], [bit], first.shape)
            words = tf.bitwise.bitwise_xor(tf.bitcast(first, tf.int32), mask)
            return [tf.bitcast(words, tf.float32), *others]

        reducer.reduce = reduce_wrongly
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [tf.keras.layers.Dense(100, use_bias=False, name=name) for name in ("low", "top")]
        model = tf.keras.Sequential([tf.keras.layers.Input((100,)), *layers])
        optimizer = tf.keras.optimizers.SGD(0.1)
        model.compile(optimizer, "mse", steps_per_execution=int(steps_per_execution))
    data = tf.data.Dataset.from_tensors((tf.ones((8, 100)), tf.ones((8, 100)))).repeat(13)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    message = ""
    try:
        model.fit(data.with_options(options), epochs=1, verbose=0)
    except tf.errors.InvalidArgumentError as error:
        message = error.message
    weights = b"".join(np.asarray(weight).tobytes() for weight in model.trainable_variables)
    cluster.report(
        message=message,
        steps=int(optimizer.iterations.numpy()),
        weights=hashlib.sha256(weights).hexdigest(),
    )


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
