# SPDX-License-Identifier: Apache-2.0
"""Low-rank methods in the corridor: against the papers, and what every exchange must keep."""

import weakref

import loopback
import low_rank_reference
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.codecs.low_rank import orthonormal
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer

EPSILON = np.finfo(np.float32).eps
MATRIX = (40, 60)
# A bias and a matrix too small for its factors travel along; 13 is sent by another bucket, dense.
SHAPES = [MATRIX, (60,), (3, 3, 8, 50), (4, 4), (13,)]
METHODS = ["powersgd", "acpsgd"]
SPECS = [*METHODS, "powersgd:values=bfloat16", "acpsgd:values=bfloat16"]
BFLOAT16 = 2.0**-8  # a rounding to 8 bits, relative to the value, is at most half of that


class Owner:
    """Stands for a variable."""


def random_gradients(worker, step):
    rng = np.random.default_rng([worker, step])
    return [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]


def policy_for(spec):
    """Everything but the last variable in one bucket."""
    return Policy("none", rules=(("v[0-3]", spec),))


def exchange(spec, gradients_of, num_steps, num_workers=2, dtype="float32"):
    """Returns, per worker, the sums, residuals and factors of every step, and the words sent."""
    owners = [Owner() for _ in SHAPES]

    def work(collectives):
        reducer = GradientReducer(policy_for(spec), collectives)
        infos = [VariableInfo(f"v{i}", shape, dtype) for i, shape in enumerate(SHAPES)]
        keys = {info.name: weakref.ref(owner) for info, owner in zip(infos, owners, strict=True)}
        history = []
        for step in range(1, num_steps + 1):
            values = gradients_of(collectives.worker_index, step)
            before = collectives.words_reduced
            sums = reducer.reduce([tf.cast(v, dtype) for v in values], infos, keys)
            low_rank, _ = next(iter(reducer._entries.values())).exchanges
            history.append(
                Step(
                    [tf.cast(total, tf.float32).numpy() for total in sums],
                    next((by_variable(r, low_rank.bucket) for r in low_rank.residuals), None),
                    [factor.numpy() for factor in low_rank._factors],
                    collectives.words_reduced - before,
                )
            )
            assert all(total.dtype == dtype for total in sums)
        return history

    return loopback.run_workers(num_workers, work)


class Step:
    def __init__(self, sums, residuals, factors, words):
        self.sums, self.residuals, self.factors, self.words = sums, residuals, factors, words


def by_variable(residual, bucket):
    sizes = [int(np.prod(SHAPES[index])) for index in bucket.indices]
    parts = np.split(residual.numpy(), np.cumsum(sizes)[:-1])
    return {
        index: part.reshape(SHAPES[index])
        for index, part in zip(bucket.indices, parts, strict=True)
    }


def oracle(name, rank, index, num_steps, num_workers):
    """Sums and residuals of variable ``index``, per step."""
    shape = SHAPES[index]
    m = shape[-1]
    n = int(np.prod(shape[:-1]))
    residuals = np.zeros((num_workers, n, m))
    p, q = (orthonormal(tf.zeros((size, rank)), 0).numpy().astype(np.float64) for size in (n, m))
    for step in range(1, num_steps + 1):
        gradients = np.stack(
            [random_gradients(w, step)[index].reshape(n, m) for w in range(num_workers)]
        ).astype(np.float64)
        if name == "powersgd":
            total, residuals, q = low_rank_reference.power_sgd(gradients, residuals, q)
        else:
            total, residuals, p, q = low_rank_reference.acp_sgd(gradients, residuals, p, q, step)
        yield total.reshape(shape), residuals.reshape(-1, *shape)


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("name", METHODS)
def test_sums_and_residuals_are_the_papers(name, rank, num_workers):
    num_steps = 5
    outcomes = exchange(f"{name}:rank={rank}", random_gradients, num_steps, num_workers)
    for index in (0, 2):
        expected = oracle(name, rank, index, num_steps, num_workers)
        for step, (total, residuals) in enumerate(expected):
            # Roundings of sums over a column, carried on by the next steps' bases.
            bound = 64 * (step + 1) * EPSILON * np.linalg.norm(total)
            for worker, history in enumerate(outcomes):
                np.testing.assert_allclose(history[step].sums[index], total, rtol=0, atol=bound)
                np.testing.assert_allclose(
                    history[step].residuals[index], residuals[worker], rtol=0, atol=bound
                )


@pytest.mark.parametrize("spec", SPECS)
def test_workers_hold_the_same_bits_and_what_travels_along_is_exact(spec):
    outcomes = exchange(spec, random_gradients, 3, num_workers=3)
    for step in range(3):
        expected = [
            sum(values)
            for values in zip(*[random_gradients(w, step + 1) for w in range(3)], strict=True)
        ]
        for history in outcomes:
            for total, first in zip(history[step].sums, outcomes[0][step].sums, strict=True):
                np.testing.assert_array_equal(total, first, strict=True)
            for factor, first in zip(history[step].factors, outcomes[0][step].factors, strict=True):
                np.testing.assert_array_equal(factor, first, strict=True)
            for index in (1, 3, 4):
                np.testing.assert_array_equal(history[step].sums[index], expected[index])
            assert not history[step].residuals[1].any()
            assert not history[step].residuals[3].any()


@pytest.mark.parametrize("name", METHODS)
def test_error_feedback_conserves_the_gradient(name):
    """What was sent in all steps plus what is left is what was meant, over all workers."""
    num_steps = 6
    outcomes = exchange(f"{name}:rank=2", random_gradients, num_steps)
    for index in (0, 2):
        sent = sum(step.sums[index].astype(np.float64) for step in outcomes[0])
        left = sum(history[-1].residuals[index].astype(np.float64) for history in outcomes)
        meant = sum(
            random_gradients(worker, step)[index].astype(np.float64)
            for worker in range(2)
            for step in range(1, num_steps + 1)
        )
        bound = 64 * num_steps * EPSILON * np.abs(meant).max()
        np.testing.assert_allclose(sent + left, meant, rtol=0, atol=bound)
        assert np.abs(left).max() > 100 * bound


@pytest.mark.parametrize("name", METHODS)
def test_factors_in_halves_are_the_papers_but_for_rounding(name):
    """A step's P has one rounding on each worker and one in the sum; so has Q."""
    num_steps = 5
    spec = f"{name}:rank=4,values=bfloat16"
    outcomes = exchange(spec, random_gradients, num_steps)
    for index in (0, 2):
        expected = oracle(name, 4, index, num_steps, 2)
        for step, (total, residuals) in enumerate(expected):
            bound = 2 * (step + 1) * BFLOAT16 * np.linalg.norm(total)
            for worker, history in enumerate(outcomes):
                assert np.linalg.norm(history[step].sums[index] - total) < bound
                assert np.linalg.norm(history[step].residuals[index] - residuals[worker]) < bound
        # And rounding there is: these are other numbers than those of factors in full.
        exact = exchange(f"{name}:rank=4", random_gradients, 1)[0][0].sums[index]
        assert np.linalg.norm(outcomes[0][0].sums[index] - exact) > BFLOAT16 / 16 * np.linalg.norm(
            exact
        )


@pytest.mark.parametrize("name", METHODS)
def test_what_rounding_takes_from_a_worker_s_factor_is_in_its_residual(name):
    """Nothing is added to what it sends where the other workers have nothing."""

    def of_one(worker, step):
        return [(1 - worker) * values for values in random_gradients(worker, step)]

    num_steps = 6
    outcomes = exchange(f"{name}:rank=2,values=bfloat16", of_one, num_steps)
    for index in (0, 2):
        sent = sum(step.sums[index].astype(np.float64) for step in outcomes[0])
        meant = sum(of_one(0, step)[index].astype(np.float64) for step in range(1, num_steps + 1))
        bound = 64 * num_steps * EPSILON * np.abs(meant).max()
        left, nothing = (history[-1].residuals[index] for history in outcomes)
        np.testing.assert_allclose(sent + left, meant, rtol=0, atol=bound)
        assert not nothing.any()


@pytest.mark.parametrize(("name", "exact_from"), [("powersgd", 1), ("acpsgd", 2)])
def test_a_gradient_of_that_rank_is_exact_as_soon_as_its_space_is_known(name, exact_from):
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 60))

    def low_rank(worker, step):
        values = random_gradients(worker, step)
        values[0] = ((1 + worker) * matrix).astype(np.float32)
        return values

    (history, _) = exchange(f"{name}:rank=3,error_feedback=false", low_rank, 3)
    norm = np.linalg.norm(3 * matrix)
    for step, outcome in enumerate(history, start=1):
        error = np.linalg.norm(outcome.sums[0] - 3 * matrix) / norm
        assert (error < 1e-5) == (step >= exact_from)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_one_worker_s_inf_or_nan_reaches_all_and_leaves_the_state(spec, bad, index):
    def spoilt(worker, step):
        values = random_gradients(worker, step)
        if worker == 1 and step == 2:
            values[index].reshape(-1)[-1] = bad
        return values

    for history in exchange(spec, spoilt, 3):
        first, second, third = history
        assert all(np.isnan(total).all() for total in second.sums[:4])
        assert np.isfinite(second.sums[4]).all()
        for i in range(4):
            np.testing.assert_array_equal(first.residuals[i], second.residuals[i])
        for before, after in zip(first.factors, second.factors, strict=True):
            np.testing.assert_array_equal(before, after)
        assert all(np.isfinite(total).all() for total in third.sums)
        assert any((a != b).any() for a, b in zip(second.factors, third.factors, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_zero_gradients_stay_zero_and_do_no_harm(name):
    """Also where all that comes later lies where the first rows and columns are still zero."""

    def late(worker, step):
        values = [np.zeros(shape, np.float32) for shape in SHAPES]
        if step > 2:
            values[0][20, 30] = 1 + worker
        return values

    for history in exchange(f"{name}:rank=2,error_feedback=false", late, 6):
        for outcome in history[:2]:
            assert not any(total.any() for total in outcome.sums)
        assert all(np.isfinite(total).all() for outcome in history for total in outcome.sums)
        expected = np.zeros(MATRIX)
        expected[20, 30] = 3
        np.testing.assert_allclose(history[5].sums[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 11), ("bfloat16", 8)])
@pytest.mark.parametrize("name", METHODS)
def test_half_precision_is_computed_in_float32(name, dtype, digits):
    halves = exchange(name, random_gradients, 1, dtype=dtype)[0][0]

    def rounded(worker, step):
        return [
            tf.cast(tf.cast(v, dtype), tf.float32).numpy() for v in random_gradients(worker, step)
        ]

    whole = exchange(name, rounded, 1)[0][0]
    for half, exact in zip(halves.sums, whole.sums, strict=True):
        np.testing.assert_allclose(half, exact, rtol=2.0**-digits, atol=1e-6)
    np.testing.assert_array_equal(halves.residuals[0], whole.residuals[0])


@pytest.mark.parametrize(("values", "size"), [("float32", 1), ("bfloat16", 0.5)])
def test_acp_sends_one_factor_a_step_in_turn_and_half_of_powersgd(values, size):
    n, m = size * (40 + 72), size * (60 + 50)
    raw = 60 + 16 + 13
    for history in exchange(f"powersgd:rank=2,values={values}", random_gradients, 3):
        assert [step.words for step in history] == [2 * (n + m) + raw] * 3
    for history in exchange(f"acpsgd:rank=2,values={values}", random_gradients, 3):
        assert [step.words for step in history] == [2 * n + raw, 2 * m + raw, 2 * n + raw]
        lefts = [step.factors[0] for step in history]
        rights = [step.factors[2] for step in history]
        np.testing.assert_array_equal(lefts[0], lefts[1])
        np.testing.assert_array_equal(rights[1], rights[2])
        assert not rights[0].any()
        assert rights[1].any()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_the_plan_counts_what_is_sent(name, values):
    infos = [VariableInfo(f"v{i}", shape, "float32") for i, shape in enumerate(SHAPES)]
    spec = f"{name}:rank=2,values={values}"
    plan = make_plan(infos, policy_for(spec), 2)
    words = [step.words for step in exchange(spec, random_gradients, 2)[0]]
    assert plan.payload_bytes == 4 * np.mean(words)
    # Bits of an element, as the papers have them: 32 r (n + m) / (n m), or half of that.
    info = VariableInfo("k", (4096, 1024), "float32")
    bits = 32 * 4 * (4096 + 1024) / (4096 * 1024) / (2 if name == "acpsgd" else 1)
    for num_workers in (2, 1000):  # an all-reduce pays in any cluster
        (bucket,) = make_plan([info], Policy(name), num_workers).buckets
        assert bucket.compression is not None
        assert 8 * bucket.payload_bytes / bucket.num_elements == bits


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("shape", "rank"), [((40, 300), 64), ((2, 5000), 2), ((5000,), 1)])
def test_what_factors_would_not_shrink_is_sent_dense(name, shape, rank):
    rule = (("*", f"{name}:rank={rank}"),)
    (bucket,) = make_plan([VariableInfo("v", shape, "float32")], Policy("none", rule), 2).buckets
    assert bucket.compression is None
