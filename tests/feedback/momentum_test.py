# SPDX-License-Identifier: Apache-2.0
"""Momentum ahead of compression: against the papers, and against an optimizer's own."""

import weakref

import loopback
import momentum_reference
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer

KERNEL = VariableInfo("kernel", (30, 40), "float32")
BIAS = VariableInfo("bias", (40,), "float32")
TABLE = VariableInfo("table", (50, 4), "float32", sparse=True)
NUM_STEPS = 6
FACTOR = 0.9
COUNT = 60  # of 1,200 items: a density of 0.05
EPSILON = np.finfo(np.float32).eps


class Owner:
    """Stands for a variable."""


def gradient(worker, step, shape=KERNEL.shape):
    return np.random.default_rng([worker, step]).normal(size=shape).astype(np.float32)


def rows(worker, step):
    values = gradient(worker, step, (3, 4))
    return tf.IndexedSlices(tf.constant(values), tf.constant([7, 20 + worker, 7]), None)


def dense_rows(num_workers, step):
    table = np.zeros(TABLE.shape, np.float32)
    for worker in range(num_workers):
        part = rows(worker, step)
        np.add.at(table, part.indices.numpy(), part.values.numpy())
    return table


def dense(total):
    if not isinstance(total, tf.IndexedSlices):
        return total.numpy()
    table = np.zeros(TABLE.shape, np.float32)
    table[total.indices.numpy()] = total.values.numpy()
    return table


class Step:
    """What one exchange came to, and what was remembered of it."""

    def __init__(self, sums, reducer):
        self.is_sparse = [isinstance(total, tf.IndexedSlices) for total in sums]
        self.sums = list(map(dense, sums))
        self.memory = {}
        for entry in reducer._entries.values():
            for exchange in entry.exchanges:
                for name, variable in exchange.memory.items():
                    self.memory[f"{exchange.bucket.how}/{name}"] = variable.numpy()

    def remembered(self, name):
        (value,) = [value for key, value in self.memory.items() if key.endswith(f"/{name}")]
        return value


def run(spec, num_workers=2, variables=(KERNEL,), gradients_of=None, num_steps=NUM_STEPS):
    """Returns the steps of each worker."""

    def usual(worker, step):
        return [
            rows(worker, step) if v.sparse else gradient(worker, step, v.shape) for v in variables
        ]

    owners = [Owner() for _ in variables]

    def work(collectives):
        reducer = GradientReducer(Policy(spec, min_elements=1), collectives)
        keys = {v.name: weakref.ref(owner) for v, owner in zip(variables, owners, strict=True)}
        history = []
        for step in range(num_steps):
            values = (gradients_of or usual)(collectives.worker_index, step)
            values = [v if isinstance(v, tf.IndexedSlices) else tf.constant(v) for v in values]
            history.append(Step(reducer.reduce(values, variables, keys), reducer))
        return history

    return loopback.run_workers(num_workers, work)


@pytest.mark.parametrize("transport", ["all_gather", "block_sparse"])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_momentum_correction_and_masking_are_those_of_the_paper(num_workers, transport):
    spec = f"topk:density=0.05,momentum={FACTOR},transport={transport}"
    outcomes = run(spec, num_workers)
    momentum = [np.zeros(1200, np.float32)] * num_workers
    residual = [np.zeros(1200, np.float32)] * num_workers
    for step in range(NUM_STEPS):
        total = np.zeros(1200, np.float32)
        for worker in range(num_workers):
            sent, momentum[worker], residual[worker] = momentum_reference.dgc_step(
                gradient(worker, step).ravel(), momentum[worker], residual[worker], FACTOR, COUNT
            )
            total = total + sent
        for worker, history in enumerate(outcomes):
            np.testing.assert_array_equal(history[step].sums[0].ravel(), total)
            np.testing.assert_array_equal(history[step].remembered("momentum"), momentum[worker])
            np.testing.assert_array_equal(history[step].remembered("residual_0"), residual[worker])


@pytest.mark.parametrize("num_workers", [2, 3])
def test_what_a_worker_sends_in_shards_begins_anew_too(num_workers):
    """Each shard has its own largest items; 3 workers cut 1,200 items into 400 each."""
    spec = f"topk:density=0.05,momentum={FACTOR},transport=scatter_reduce"
    size, count = 1200 // num_workers, COUNT // num_workers
    outcomes = run(spec, num_workers)
    for worker, history in enumerate(outcomes):
        momentum, residual = np.zeros(1200, np.float32), np.zeros(1200, np.float32)
        for step in range(NUM_STEPS):
            value = gradient(worker, step).ravel()
            for start in range(0, 1200, size):
                part = slice(start, start + size)
                _, momentum[part], residual[part] = momentum_reference.dgc_step(
                    value[part], momentum[part], residual[part], FACTOR, count
                )
            np.testing.assert_array_equal(history[step].remembered("momentum"), momentum)
            np.testing.assert_array_equal(history[step].remembered("residual_0"), residual)


@pytest.mark.parametrize(
    "spec",
    [
        "topk:density=0.05,values=natural",
        "randomk:density=0.05",
        "sampled_threshold:density=0.05",
        "fft:density=0.05,chunk=64",
        "block_topk:density=0.05,block=16",
    ],
)
def test_items_that_are_sent_and_no_others_begin_anew(spec):
    for ((step,),) in zip(run(f"{spec},momentum={FACTOR}", num_steps=1), strict=True):
        momentum, residual = step.remembered("momentum"), step.remembered("residual_0")
        left = momentum != 0
        # Both are the gradient at first. Two of the 33 bins of a row of fft have no imaginary part.
        np.testing.assert_array_equal(residual[left], momentum[left])
        assert 0.02 < 1 - np.mean(left) < (0.085 if spec.startswith("fft") else 0.07)
        assert np.linalg.norm(residual[~left]) < 0.5 * np.linalg.norm(momentum)


def test_a_codec_that_sends_all_items_masks_none():
    history = run(f"onebit:momentum={FACTOR}")[1]
    momentum = np.zeros(KERNEL.shape, np.float32)
    for step in range(NUM_STEPS):
        momentum = np.float32(FACTOR) * momentum + gradient(1, step)
        np.testing.assert_array_equal(history[step].remembered("momentum"), momentum.ravel())


@pytest.mark.parametrize("num_workers", [2, 3])
def test_global_momentum_is_that_of_the_paper(num_workers):
    outcomes = run(f"topk:density=0.05,global_momentum={FACTOR}", num_workers)
    residual = [np.zeros(1200, np.float32)] * num_workers
    last = np.zeros(1200, np.float32)
    for step in range(NUM_STEPS):
        total = np.zeros(1200, np.float32)
        for worker in range(num_workers):
            sent, residual[worker] = momentum_reference.gmc_step(
                gradient(worker, step).ravel(), last, residual[worker], FACTOR, num_workers, COUNT
            )
            total = total + sent
        last = total
        for worker, history in enumerate(outcomes):
            np.testing.assert_array_equal(history[step].sums[0].ravel(), total)
            np.testing.assert_array_equal(history[step].remembered("residual_0"), residual[worker])


@pytest.mark.parametrize("kind", ["momentum", "global_momentum"])
def test_all_gradients_follow_the_momentum_of_sgd_if_nothing_is_lost(kind):
    """Compressed, dense and sparse ones alike: v = m v + sum."""
    spec = f"identity:error_feedback=true,{kind}={FACTOR}"
    outcomes = run(spec, 3, (KERNEL, BIAS, TABLE))
    expected = [np.zeros(v.shape) for v in (KERNEL, BIAS, TABLE)]
    for step in range(NUM_STEPS):
        parts = [
            sum(gradient(worker, step, v.shape).astype(np.float64) for worker in range(3))
            for v in (KERNEL, BIAS)
        ]
        parts.append(dense_rows(3, step))
        expected = [FACTOR * e + part for e, part in zip(expected, parts, strict=True)]
        for history in outcomes:
            for total, wanted in zip(history[step].sums, expected, strict=True):
                # A handful of roundings a step, each of at most half an ulp of what is added up.
                bound = 8 * (step + 1) * EPSILON * np.abs(wanted).max()
                np.testing.assert_allclose(total, wanted, rtol=0, atol=bound)


def test_wide_gradients_have_wide_velocities():
    wide = VariableInfo("wide", (3,), "float64")
    values = [np.array([1 + 1e-12, 1e39, -1.0]), np.array([1e-12, 0.0, 0.5])]
    spec = f"identity:error_feedback=true,momentum={FACTOR}"
    for history in run(spec, 2, (wide,), lambda worker, step: [values[step] / 2], num_steps=2):
        assert history[1].sums[0].dtype == np.float64
        np.testing.assert_allclose(history[1].sums[0], FACTOR * values[0] + values[1], rtol=1e-15)


def test_without_momentum_sparse_sums_stay_sparse_and_nothing_more_is_remembered():
    history = run("topk:density=0.05", 2, (KERNEL, BIAS, TABLE))[0]
    assert [key.partition("/")[2] for key in history[0].memory] == ["residual_0"]
    assert history[0].is_sparse == [False, False, True]


def test_momentum_is_seen_in_the_new_view_when_that_changes():
    """Global momentum is the last sum, in whatever view it is kept."""
    shape = (30, 40)

    def smooth_along(axis, step):
        rng = np.random.default_rng(step)
        spikes = rng.normal(size=shape[1 - axis]) * (np.arange(shape[1 - axis]) % 4 == 0)
        wave = np.multiply.outer(np.cos(np.linspace(0, 3, shape[axis])), spikes)
        return [np.moveaxis(wave, 0, axis).astype(np.float32)]

    spec = f"topk:density=0.05,view=auto,global_momentum={FACTOR}"
    owner, views = Owner(), []

    def work(collectives):
        reducer = GradientReducer(Policy(spec, min_elements=1), collectives)
        for step in range(8):
            value = smooth_along(step // 4, step)
            (total,) = reducer.reduce([tf.constant(*value)], [KERNEL], {"k": weakref.ref(owner)})
            (exchange,) = next(iter(reducer._entries.values())).exchanges
            seen = exchange._transform.at(exchange._choice).inverse(
                exchange.memory["global_momentum"], 1200
            )
            bound = 64 * EPSILON * np.abs(total).max()
            np.testing.assert_allclose(tf.reshape(seen, shape), total, rtol=0, atol=bound)
            if collectives.worker_index == 0:
                views.append(reducer.views()["kernel"])

    loopback.run_workers(2, work)
    assert len(set(views)) > 1


@pytest.mark.parametrize("kind", ["momentum", "global_momentum"])
def test_a_step_that_is_not_finite_leaves_all_momentum_as_it_was(kind):
    variables = (KERNEL, BIAS, TABLE)

    def spoilt(worker, step):
        values = [gradient(worker, step, v.shape) for v in variables[:2]] + [rows(worker, step)]
        if (worker, step) == (1, 2):
            values[0][3, 5] = np.nan
        return values

    for history in run(f"topk:density=0.05,{kind}={FACTOR}", 2, variables, spoilt, num_steps=4):
        assert len(history[2].memory) == 4
        assert not np.isfinite(history[2].sums[0]).any()
        for name, before in history[1].memory.items():
            np.testing.assert_array_equal(history[2].memory[name], before)
            assert not np.array_equal(history[3].memory[name], before)


# --- Clipping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [0.5, 1e6])
def test_every_worker_clips_its_own_gradients_by_their_norm(clip_norm):
    variables = (KERNEL, BIAS, TABLE)
    num_workers = 3
    spec = f"identity:clip_norm={clip_norm}"
    for history in run(spec, num_workers, variables, num_steps=1):
        expected = [np.zeros(v.shape) for v in variables]
        for worker in range(num_workers):
            table = rows(worker, 0)
            parts = [gradient(worker, 0, v.shape) for v in variables[:2]]
            squares = [np.sum(np.square(part, dtype=np.float64)) for part in parts]
            squares.append(np.sum(np.square(table.values.numpy(), dtype=np.float64)))
            norm = np.sqrt(sum(squares))
            scale = min(1.0, clip_norm / np.sqrt(num_workers) / norm)
            dense = np.zeros(TABLE.shape)
            np.add.at(dense, table.indices.numpy(), table.values.numpy())
            for total, part in zip(expected, [*parts, dense], strict=True):
                total += scale * part
        for total, wanted in zip(history[0].sums, expected, strict=True):
            np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30])
def test_a_norm_that_is_not_finite_is_no_reason_to_forget_it(value):
    """Also if only its squares are too large: what else would the others make of that step?"""

    def spoilt(worker, step):
        values = gradient(worker, step)
        if worker == 1:
            values[0, 0] = value
        return [values]

    for history in run("topk:density=0.05,clip_norm=1", 2, (KERNEL,), spoilt, num_steps=1):
        assert np.isnan(history[0].sums[0]).all()
        assert not history[0].remembered("residual_0").any()
