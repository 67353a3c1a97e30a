# SPDX-License-Identifier: Apache-2.0
"""Exchanges whose density changes: each as with that density as a number, and residuals go on."""

import functools
import weakref

import numpy as np
import pytest
import tensorflow as tf
from reduction import reduce_steps

from tf_gradcomp import exchanges, measurement
from tf_gradcomp.compression import Compression
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer
from tf_gradcomp.transports.silent import SilentCollectives

SIZE, NUM_WORKERS = 3000, 3
INFO = VariableInfo("v", (60, 70), "float32")

# The density of each exchange: of warm-up by two stages, of growth from the second exchange on.
DENSITIES = {
    "density=0.05,warmup=4": [0.25, 0.25, 0.0625, 0.0625, 0.05],
    "density=0.1,grow_after=2": [0.1, 0.1, 1 - 0.9 * 2 / 3, 1 - 0.9 * 2 / 4],
}


class Alone:
    num_workers, worker_index, device = 2, 0, "/device:CPU:0"


class Owner:
    """Stands for a variable."""


OWNER = Owner()


def gradient(worker, step):
    return np.random.default_rng([worker, step]).standard_t(3, size=SIZE).astype(np.float32)


@functools.cache
def exchange(spec, transport, num_steps):
    """Returns, per worker, every step's sum and residuals after it, and its collectives."""
    return reduce_steps(spec, transport, gradient, NUM_WORKERS, num_steps)


@pytest.mark.parametrize("fields", DENSITIES)
@pytest.mark.parametrize(
    ("codec", "transport"),
    [
        ("topk", "all_gather"),
        ("topk", "scatter_reduce"),
        ("topk", "block_sparse"),
        ("topk", "integer"),
        ("randomk", "scatter_reduce"),  # which scales what it keeps, once
        ("block_topk", "scatter_reduce"),
    ],
)
def test_an_exchange_is_that_of_its_density(codec, transport, fields):
    """Without error feedback, exchanges know nothing of one another but their numbers."""
    spec = f"{codec}:values=natural,error_feedback=false,"
    densities = DENSITIES[fields]
    num_steps = len(densities)
    changing = exchange(spec + fields, transport, num_steps)
    words_sent = words_reduced = 0.0
    for step, density in enumerate(densities):
        static = exchange(f"{spec}density={density!r}", transport, num_steps)
        for (mine, _), (theirs, _) in zip(changing, static, strict=True):
            np.testing.assert_array_equal(mine[step][0], theirs[step][0], strict=True)
        words_sent += static[0][1].words_sent / num_steps
        words_reduced += static[0][1].words_reduced / num_steps
    collectives = changing[0][1]
    if transport != "block_sparse":  # where the gradients of a step say how much is sent
        assert collectives.words_sent == pytest.approx(words_sent)
        assert collectives.words_reduced == pytest.approx(words_reduced)


@pytest.mark.parametrize(
    "spec", ["fft:density=0.05,chunk=64,warmup=4", "topk:density=0.05,grow_after=5"]
)
@pytest.mark.parametrize("transport", ["all_gather", "scatter_reduce"])
def test_residuals_hold_what_was_not_sent_at_any_density(spec, transport):
    num_steps = 6
    outcomes = exchange(spec, transport, num_steps)
    transform = Compression.from_spec(spec).build().transform
    sent = sum(total.astype(np.float64) for total, _ in outcomes[0][0])
    left = 0.0
    for worker, (steps, _) in enumerate(outcomes):
        first, *second = steps[-1][1]
        for residual in second:
            start = worker * len(residual)
            whole = np.zeros((NUM_WORKERS * len(residual), *residual.shape[1:]), np.float32)
            whole[start : start + len(residual)] = residual
            first = first + whole[: len(first)]
        left = left + transform.inverse(tf.constant(first), SIZE).numpy()
    meant = sum(
        gradient(worker, step).astype(np.float64)
        for worker in range(NUM_WORKERS)
        for step in range(num_steps)
    )
    bound = 256 * num_steps * np.finfo(np.float32).eps * np.abs(meant).max()
    np.testing.assert_allclose(sent + left, meant, rtol=0, atol=bound)
    assert np.abs(left).max() > 100 * bound


def reducer_of(spec):
    return GradientReducer(Policy(spec), SilentCollectives(Alone))


def step(reducer, value):
    return reducer.reduce([tf.fill(INFO.shape, value) * RAMP], [INFO], {"v": weakref.ref(OWNER)})[0]


RAMP = tf.reshape(tf.range(1.0, 4201.0), INFO.shape)


def num_sent(total):
    return int(tf.math.count_nonzero(total))


@pytest.mark.parametrize("field", ["error_feedback=false", "momentum=0.9"])
def test_a_loop_sends_what_single_calls_do_and_is_traced_once(field):
    spec = f"topk:density=0.01,warmup=6,{field}"
    loop, single = reducer_of(spec), reducer_of(spec)
    traced = []

    @tf.function(autograph=False)
    def steps(values):
        traced.append(1)
        return tf.map_fn(lambda value: step(loop, value), values)

    found = [*steps(tf.ones(4)), *steps(tf.ones(4))]
    for total in found:
        np.testing.assert_array_equal(total, step(single, tf.constant(1.0)))
    expected = [1050] * 2 + [263] * 2 + [66] * 2 + [42] * 2  # of 4200 elements, rounded up
    assert list(map(num_sent, found)) == expected
    assert len(traced) == 1


def test_a_run_that_goes_on_is_where_its_schedule_was():
    spec = "topk:density=0.01,warmup=6"
    first = reducer_of(spec)
    for _ in range(3):
        step(first, tf.constant(1.0))
    resumed = reducer_of(spec)
    resumed.restore([first.state()])
    total = step(resumed, tf.constant(1.0))
    assert num_sent(total) == 263
    np.testing.assert_array_equal(total, step(first, tf.constant(1.0)))


def test_plans_and_measurements_are_of_the_codec_s_own_density(monkeypatch):
    steady, warm = (
        make_plan([INFO], Policy(f"topk:density=0.01{rest}"), 2).buckets[0]
        for rest in ("", ",warmup=600")
    )
    assert warm.payload_bytes == steady.payload_bytes
    assert warm.estimates == steady.estimates
    measured = []

    def make_exchange(plan, *others):
        measured.append(plan.buckets[0].compression)
        return exchanges.make_exchange(plan, *others)

    monkeypatch.setattr(measurement, "make_exchange", make_exchange)
    measurement.measure_work([INFO], warm, Alone())
    assert measured == [steady.compression]
