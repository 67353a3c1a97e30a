# SPDX-License-Identifier: Apache-2.0
"""Measures what exchanges cost: the network once, and each kind of exchange when it is planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_gradcomp.agreement import Fact, require_agreement
from tf_gradcomp.codecs.base import Draw
from tf_gradcomp.costs import BYTES_PER_WORD, AssumedCosts, Link, Network
from tf_gradcomp.distribute import compat
from tf_gradcomp.exchanges import make_exchange
from tf_gradcomp.exchanges.following import follow
from tf_gradcomp.plan import Bucket, Plan
from tf_gradcomp.policy import VariableInfo
from tf_gradcomp.transports.base import Collectives
from tf_gradcomp.transports.silent import SilentCollectives

_REPEATS = 5
_FIRST_BYTES = 1 << 16  # enough for a slow network, where more would take long
_MOST_BYTES = 1 << 24
_ENOUGH_SECONDS = 0.05  # for a message from which the bandwidth is read
_SIZE_RATIO = 4  # buckets of sizes no further apart work equally fast
_FIRST_STEP = 33  # views are not compared at this number of the exchange, nor at the next


class MeasuredCosts:
    """Figures of the machines and the network in use: the slowest worker's, on all workers.

    With op determinism (``tf.config.experimental.enable_op_determinism``) nothing is measured, for
    the choices that depend on it could differ from run to run: ``AssumedCosts`` takes its place.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._network: Network | None = None
        self._work: dict[tuple[object, str], list[tuple[int, float]]] = {}

    @property
    def network(self) -> Network:
        """The network: measured at the first use, which all workers must make together."""
        if self._network is None:
            deterministic = compat.is_op_determinism_enabled()
            fact = Fact("tf.config.experimental.enable_op_determinism", str(deterministic))
            require_agreement(self._collectives, "op determinism", [fact])
            self._network = (
                AssumedCosts.network if deterministic else measure_network(self._collectives)
            )
        return self._network

    def measure_again(self) -> None:
        """Measures the network again, if it was; all workers must call it together."""
        if self._network is not None:
            self._network = None
            _ = self.network

    def work(
        self, variables: Sequence[VariableInfo], bucket: Bucket, density: float | None = None
    ) -> float:
        """Returns the seconds of work that an exchange takes on the slowest worker.

        Of buckets of about the same size, one is measured.
        """
        if not self.network.measured:
            return AssumedCosts().work(variables, bucket)
        bucket = bucket.steady(density)
        known = self._work.setdefault((bucket.compression, bucket.transport), [])
        for size, seconds in known:
            if size <= _SIZE_RATIO * bucket.num_elements <= _SIZE_RATIO**2 * size:
                return seconds * bucket.num_elements / size
        own = measure_work(variables, bucket, self._collectives)
        seconds = _slowest(self._collectives, own)
        known.append((bucket.num_elements, seconds))
        return seconds


def measure_network(collectives: Collectives) -> Network:
    """Times collectives of a few sizes; all workers must call it together."""
    num_workers = collectives.num_workers

    def gather(num_words: float) -> tf.Tensor:
        size = max(1, round(num_words / (num_workers - 1)))
        return collectives.all_gather(tf.zeros([size], tf.int32))

    def reduce(num_words: float) -> tf.Tensor:
        size = max(1, round(num_words * num_workers / (2 * (num_workers - 1))))
        return collectives.all_reduce(tf.zeros([size], tf.float32))

    with tf.init_scope(), tf.device(collectives.device):
        gather_link, reduce_link = (_measure_link(collectives, send) for send in (gather, reduce))
    return Network(gather_link, reduce_link, measured=True)


def _measure_link(collectives: Collectives, send: Callable[[float], tf.Tensor]) -> Link:
    """Measures one kind of collective, of which a worker sends so many words."""

    def seconds(num_bytes: float) -> float:
        def once() -> None:
            send(num_bytes / BYTES_PER_WORD).numpy()

        once()
        return _slowest(collectives, _least_seconds(once))

    latency, num_bytes = seconds(0), _FIRST_BYTES
    while (longest := seconds(num_bytes)) < max(_ENOUGH_SECONDS, 4 * latency):
        if num_bytes == _MOST_BYTES:
            break
        num_bytes *= 4
    # Whatever has disturbed the first ones, half of this is for the bytes.
    return Link(latency, num_bytes / max(longest - latency, longest / 2))


def measure_work(
    variables: Sequence[VariableInfo], bucket: Bucket, collectives: Collectives
) -> float:
    """Returns the seconds that this worker needs for an exchange, without its messages.

    If the density changes from step to step, those with the codec's.
    """
    with tf.init_scope(), tf.device(collectives.device):
        plan = Plan(tuple(variables), (bucket.steady(),))
        exchange = make_exchange(plan, 0, SilentCollectives(collectives))
        gradients = [
            tf.cast(tf.random.stateless_normal(variables[i].shape, (0, i)), variables[i].dtype)
            for i in exchange.bucket.indices
        ]

        @tf.function(autograph=False)
        def run(gradients: list[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
            draw = Draw(0, collectives.worker_index, step)
            reduced = exchange(gradients, draw, learning_rate=tf.constant(1.0))
            updates = list(reduced.updates)
            if reduced.follower is not None:
                updates += follow([reduced.follower], step, SilentCollectives(collectives))
            results = [*reduced.gradients, reduced.finite(), *(new for _, new in updates)]
            # A little of each: who reads that has waited for all of them.
            return tf.concat([tf.cast(tf.reshape(t, [-1])[:1], tf.float32) for t in results], 0)

        def twice() -> None:
            # Methods that alternate do something else every other time.
            for step in (_FIRST_STEP, _FIRST_STEP + 1):
                run(gradients, tf.constant(step)).numpy()

        twice()
        return _least_seconds(twice) / 2


def _least_seconds(action: Callable[[], None]) -> float:
    """Returns the least time of a few: whatever else goes on can only add to it."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def _slowest(collectives: Collectives, seconds: float) -> float:
    """Returns the longest time of any worker, the same on all of them."""
    with tf.init_scope(), tf.device(collectives.device):
        gathered = collectives.all_gather(tf.constant([seconds], tf.float64))
        return float(tf.reduce_max(gathered).numpy())
