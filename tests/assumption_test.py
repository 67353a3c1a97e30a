# SPDX-License-Identifier: Apache-2.0
"""Delta: what workers drop, over what a random choice would, as NumPy has it."""

import loopback
import numpy as np
import pytest
import steered
from steered import Job, gradient

from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer

known_by_name = steered.known_by_name
INFO = VariableInfo("c", (12, 20), "float32")  # a norm of so few is exact
DENSITY = 0.1


SHAPES = {"a": (12, 20), "b": (10, 11), "c": (9, 25), "d": (12, 12)}
SHARES = {"a": 0.1, "b": 0.25, "c": 0.02}


def top_k(values, density=DENSITY):
    mask = np.zeros(values.size, bool)
    mask[np.argsort(-np.abs(values))[: int(np.ceil(density * values.size))]] = True
    return mask


def deltas_of(spec, num_workers, num_steps, infos=(INFO,)):
    def work(collectives):
        job = Job(collectives, spec, infos)
        found = []
        for step in range(num_steps):
            job.step(step)
            found.append(job.reducer.deltas())
        return found

    return loopback.run_workers(num_workers, work)


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_delta_is_that_of_numpy(num_workers, momentum):
    spec = f"topk:density={DENSITY},transport=all_gather,momentum={momentum}"
    outcomes = deltas_of(f"{spec},controller=lags(period=99)", num_workers, 10)
    velocity = np.zeros((num_workers, INFO.num_elements))
    residuals = np.zeros((num_workers, INFO.num_elements))
    for step in range(10):
        own = np.array([gradient(worker, step, INFO).ravel() for worker in range(num_workers)])
        velocity = momentum * velocity + own
        meant = residuals + velocity
        sent = np.array(list(map(top_k, meant)))
        residuals = lost = np.where(sent, 0, meant)
        velocity = np.where(sent, 0, velocity)
        if step != 8:  # the ninth exchange: views are not compared, nor is this
            random = (1 - DENSITY) * np.square(meant.sum(axis=0)).sum()
            expected = np.square(lost.sum(axis=0)).sum() / random
        for found in outcomes:
            assert found[step] == {"c": pytest.approx(expected, rel=1e-4)}
    assert 0 < expected < 1


def test_each_bucket_has_its_own():
    """Of other sizes and densities, beside one of which nothing is known; one has a NaN."""
    infos = [VariableInfo(name, shape, "float32") for name, shape in SHAPES.items()]

    def work(collectives):
        spec = "transport=all_gather,controller=lags(period=99)"
        rules = [(name, f"topk:density={share},{spec}") for name, share in SHARES.items()]
        job = Job(collectives, "none", infos)
        job.reducer = GradientReducer(Policy("none", (*rules, ("d", "topk"))), collectives)
        job.step(0, names="abcd")
        before = job.reducer.deltas()

        def spoil(worker, step, values):
            if worker == 1:
                values[1][0, 0] = np.nan

        job.step(1, spoil, names="abcd")
        return before, job.reducer.deltas()

    outcomes = loopback.run_workers(2, work)
    for before, after in outcomes:
        assert set(before) == set(after) == set(SHARES)
        for info in infos[:3]:
            share = SHARES[info.name]
            meant = np.array([gradient(worker, 0, info).ravel() for worker in range(2)])
            lost = np.array([np.where(top_k(own, share), 0, own) for own in meant])
            random = (1 - share) * np.square(meant.sum(axis=0)).sum()
            expected = np.square(lost.sum(axis=0)).sum() / random
            assert before[info.name] == pytest.approx(expected, rel=1e-4)
        assert after["b"] == before["b"]
        assert after["a"] != before["a"] and after["c"] != before["c"]


def test_a_sum_that_lacks_an_item_of_each_worker_can_be_worse_than_a_random_one():
    """Large numbers that cancel out are sent, and what matters is dropped."""

    def work(collectives):
        job = Job(collectives, "topk:density=0.1,controller=lags(period=99)", [INFO])

        def cancelling(worker, step, values):
            values[0][...] = 1.0
            values[0].reshape(-1)[:24] = [1e3, -1e3][worker]

        job.step(0, cancelling)
        return job.reducer.deltas()["c"]

    delta = 216 * 2.0**2 / (0.9 * 216 * 2.0**2)
    assert loopback.run_workers(2, work) == [pytest.approx(delta)] * 2


@pytest.mark.parametrize(
    "spec",
    [
        "topk:density=0.1,start_after=3,controller=lags",
        "topk:density=1.0,transport=integer,controller=lags",
    ],
)
def test_what_is_sent_whole_drops_nothing(spec):
    for found in deltas_of(spec, 2, 2):
        assert found[-1] == {"c": pytest.approx(0, abs=1e-9)}


def test_a_step_that_is_not_finite_is_forgotten_with_the_next():
    def work(collectives):
        job = Job(collectives, "topk:density=0.1,controller=lags(period=99)", [INFO])
        job.step(0, lambda worker, step, values: values[0].fill(np.nan))
        job.step(1)
        return job.reducer.deltas()["c"]

    first, second = loopback.run_workers(2, work)
    assert first == second
    assert 0 < first < 1


def test_large_buckets_are_sketched():
    large = VariableInfo("c", (60, 50), "float32")
    spec = f"topk:density={DENSITY},transport=all_gather,controller=lags(period=99)"
    for found in deltas_of(spec, 2, 1, [large]):
        meant = np.array([gradient(worker, 0, large).ravel() for worker in range(2)])
        lost = np.array([np.where(top_k(own), 0, own) for own in meant])
        random = (1 - DENSITY) * np.square(meant.sum(axis=0)).sum()
        exact = np.square(lost.sum(axis=0)).sum() / random
        # Two energies of which each is off by a standard deviation of 9 %.
        assert found[0]["c"] == pytest.approx(exact, rel=0.5)
        assert found[0]["c"] != pytest.approx(exact, rel=1e-6)


def test_without_error_feedback_nobody_knows_what_is_dropped():
    spec = "topk:density=0.1,error_feedback=false,controller=lags"
    assert deltas_of(spec, 2, 2) == [[{}] * 2] * 2


def test_others_have_no_delta():
    assert deltas_of("topk:density=0.1,controller=scripted", 2, 1) == [[{}], [{}]]
    assert deltas_of("topk:density=0.01,warmup=4", 2, 1) == [[{}], [{}]]
