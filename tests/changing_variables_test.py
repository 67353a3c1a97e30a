# SPDX-License-Identifier: Apache-2.0
"""What error feedback has yet to send, when other variables are trained than before."""

import copy
import gc
import logging
import weakref

import loopback
import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging

from tf_gradcomp import exchange_state
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer

SHAPES = {"a": (40, 300), "b": (64, 96), "c": (80, 64)}
SPECS = [
    "topk:density=0.1",
    "onebit:scope=layer",
    "dct:density=0.1",
    "fft:density=0.2,chunk=64",
    "block_topk:density=0.1,block=64",
    "topk:density=0.1,transport=scatter_reduce",
    "powersgd:rank=2",
    "acpsgd:rank=2",
]


class Owner:
    """Stands for a variable."""


class Job:
    """One worker's training, of other variables in every step."""

    def __init__(self, collectives, policy, shapes=SHAPES):
        self.owners = {name: Owner() for name in shapes}
        self.reducer = GradientReducer(policy, collectives)
        self.meant = {name: np.zeros(shape) for name, shape in shapes.items()}
        self.sent = {name: np.zeros(shape) for name, shape in shapes.items()}
        self._shapes = shapes
        self._rng = np.random.default_rng(collectives.worker_index)

    def refs(self, names):
        return {name: weakref.ref(self.owners[name]) for name in names}

    def step(self, names, scale=1.0, learning_rate=None):
        infos = [VariableInfo(name, self._shapes[name], "float32") for name in names]
        values = [self._rng.normal(scale=scale, size=info.shape) for info in infos]
        values = [value.astype(np.float32) for value in values]
        sums = self.reducer.reduce(
            list(map(tf.constant, values)), infos, self.refs(names), learning_rate=learning_rate
        )
        for name, value, total in zip(names, values, sums, strict=True):
            self.meant[name] += value
            self.sent[name] += total.numpy()
        return {name: total.numpy() for name, total in zip(names, sums, strict=True)}

    def left_over(self, of_plan=None):
        """What all plans, or that of these variables, have yet to send of each variable."""
        totals = {name: np.zeros(shape) for name, shape in self._shapes.items()}
        for entry in self.reducer._entries.values():
            if of_plan is not None and list(entry.owners) != list(of_plan):
                continue
            for exchange in entry.exchanges:
                variables = [entry.plan.variables[i] for i in exchange.bucket.indices]
                for variable, part in zip(variables, exchange.left_over(), strict=False):
                    totals[variable.name] += part.numpy().reshape(variable.shape)
        return totals


def assert_nothing_is_lost(jobs, num_steps):
    for name in SHAPES:
        meant = sum(job.meant[name] for job in jobs)
        left = sum(job.left_over()[name] for job in jobs)
        # Each step rounds what it adds up, and so do transforms, here and back.
        bound = 64 * num_steps * np.finfo(np.float32).eps * np.abs(meant).max()
        np.testing.assert_allclose(jobs[0].sent[name] + left, meant, rtol=0, atol=bound)
        assert np.abs(left).max() > 100 * bound


@pytest.mark.parametrize("spec", SPECS)
def test_nothing_is_lost_when_layers_are_frozen_and_thawed(spec):
    """Also not of those that take turns, as with several losses in an eager loop."""
    phases = ["abc", "abc", "bc", "bc", "c", "abc", "bc", "abc", "ab", "abc"]

    def work(collectives):
        job = Job(collectives, Policy(spec))
        for names in phases:
            job.step(names)
        return job

    jobs = loopback.run_workers(2, work)
    assert_nothing_is_lost(jobs, len(phases))
    for job in jobs:
        # All is where it will be sent: with the plan used last.
        np.testing.assert_equal(job.left_over(of_plan="abc"), job.left_over())


def test_what_is_left_goes_on_bit_for_bit_and_is_sent():
    def work(collectives):
        job = Job(collectives, Policy("topk:density=0.1,scope=layer"))
        job.step("ab")
        before = job.left_over()
        sent = job.step("b", scale=0)
        return before, sent, job.left_over(of_plan="ab")

    outcomes = loopback.run_workers(2, work)
    kept = []
    for before, _, after in outcomes:
        np.testing.assert_array_equal(after["a"], before["a"])
        assert not after["b"].any()
        flat = before["b"].ravel()
        largest = np.argsort(-np.abs(flat), kind="stable")[: -(-flat.size // 10)]
        kept.append(np.zeros(flat.size, np.float32))
        kept[-1][largest] = flat[largest]
    np.testing.assert_array_equal(outcomes[0][1]["b"].ravel(), kept[0] + kept[1])


def test_a_new_head_leaves_what_the_layers_below_have_to_send():
    def work(collectives):
        job = Job(collectives, Policy("fft:density=0.1"))
        job.step("ab")
        del job.owners["b"]
        gc.collect()
        assert not job.reducer.plans
        before = job.left_over()["a"]
        # Of others, which is no reason to drop it.
        job.step("c")
        np.testing.assert_array_equal(job.left_over()["a"], before)
        job.owners["d"], job._shapes = Owner(), {**SHAPES, "d": (70, 70)}
        job.meant["d"] = job.sent["d"] = np.zeros((70, 70))
        job.step("ad", scale=0)
        left = job.left_over()["a"]
        return before, job.sent["a"], left, len(job.reducer._entries)

    outcomes = loopback.run_workers(2, work)
    first = sum(before for before, *_ in outcomes)
    assert np.abs(first).max() > 0
    for _, _, left, num_entries in outcomes:
        assert num_entries == 2  # of the new model, and of `c`
        assert left.any()
    # Two steps' sums and what is left are one step's gradients: the second one's were zero.
    _, sent, _, _ = outcomes[0]
    rng = [np.random.default_rng(worker) for worker in range(2)]
    meant = sum(r.normal(size=SHAPES["a"]).astype(np.float32) for r in rng)
    left = sum(left for _, _, left, _ in outcomes)
    np.testing.assert_allclose(sent + left, meant, rtol=0, atol=1e-4 * np.abs(meant).max())


@pytest.mark.parametrize("codec", ["topk:density=0.1", "powersgd:rank=2"])
def test_updates_go_on_that_are_due_at_another_learning_rate(codec):
    def work(collectives):
        job = Job(collectives, Policy(f"{codec},lr_correction=true,scope=layer"))
        job.step("ab", learning_rate=tf.constant(0.5))
        due = job.left_over()["b"]
        sent = job.step("b", scale=0, learning_rate=tf.constant(0.125))["b"]
        # And back, to a plan that knows a rate of its own.
        sent += job.step("ab", scale=0, learning_rate=tf.constant(0.125))["b"]
        return due, sent, job.left_over()["b"]

    outcomes = loopback.run_workers(2, work)
    dues, lefts = (sum(outcome[i] for outcome in outcomes) for i in (0, 2))
    sent = outcomes[0][1]
    assert np.abs(sent).max() > 0
    # What is left over is in updates: gradients times their learning rate.
    np.testing.assert_allclose(0.125 * sent + lefts, dues, rtol=0, atol=1e-5 * np.abs(dues).max())


def test_a_restored_job_thaws_layers_as_one_that_went_on():
    def work(collectives):
        job = Job(collectives, Policy("topk:density=0.1"))
        job.step("abc")
        job.step("bc")
        saved = exchange_state.to_bytes(job.reducer.state())
        other = Job(collectives, Policy("topk:density=0.1"))
        other.reducer.restore([exchange_state.from_bytes(saved)])
        other._rng = copy.deepcopy(job._rng)
        phases = ["bc", "abc", "bc"]
        return [[j.step(names) for names in phases] for j in (job, other)]

    for expected, actual in loopback.run_workers(2, work):
        np.testing.assert_equal(actual, expected)


def test_what_was_left_between_a_restart_and_a_thaw_goes_on():
    """Saved as {a, b}; then, in a new process, only b is trained, and then both again."""

    def work(collectives):
        job = Job(collectives, Policy("topk:density=0.1"))
        job.step("ab")
        saved = exchange_state.to_bytes(job.reducer.state())
        other = Job(collectives, Policy("topk:density=0.1"))
        other.reducer.restore([exchange_state.from_bytes(saved)])
        other.meant, other.sent = job.meant, job.sent
        for names in ("b", "b", "ab"):
            other.step(names)
        np.testing.assert_equal(other.left_over(of_plan="ab"), other.left_over())
        return other

    jobs = loopback.run_workers(2, work)
    for name in "ab":
        meant = sum(job.meant[name] for job in jobs)
        left = sum(job.left_over()[name] for job in jobs)
        bound = 1e-4 * np.abs(meant).max()
        np.testing.assert_allclose(jobs[0].sent[name] + left, meant, rtol=0, atol=bound)


@pytest.mark.parametrize("kind", ["momentum", "global_momentum"])
def test_momentum_from_before_layers_were_frozen_is_forgotten(kind):
    """Else it would go on pushing where it did when they were trained last."""
    spec = f"identity:error_feedback=true,{kind}=0.9"

    def work(collectives):
        job = Job(collectives, Policy(spec))
        for names in ("ab", "ab", "b"):
            job.step(names)
        return job.step("ab", scale=0), job.step("ab", scale=0)

    for thawed, after in loopback.run_workers(2, work):
        assert not any(total.any() for total in [*thawed.values(), *after.values()])


def test_restored_plans_keep_what_each_had_left_over():
    """As of two functions that take turns: no function is traced again in the job that goes on."""

    def work(collectives):
        job = Job(collectives, Policy("topk:density=0.1"))
        job.step("abc")
        job.step("bc")
        # What a traced function does without asking for its plan.
        entry, _ = job.reducer._entries.values()
        (residual,) = entry.exchanges[0].residuals
        residual.assign_add(tf.ones_like(residual))
        saved = exchange_state.to_bytes(job.reducer.state())
        expected = [job.left_over(of_plan=names) for names in ("abc", "bc")]
        other = Job(collectives, Policy("topk:density=0.1"))
        other.reducer.restore([exchange_state.from_bytes(saved)])
        for names in ("abc", "bc"):
            infos = [VariableInfo(name, SHAPES[name], "float32") for name in names]
            other.reducer._entry_for(infos, other.refs(names))
        return expected, [other.left_over(of_plan=names) for names in ("abc", "bc")]

    for expected, actual in loopback.run_workers(2, work):
        np.testing.assert_equal(actual, expected)


@pytest.fixture(name="warnings")
def capture_warnings():
    records = []

    class Handler(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    handler = Handler(level=logging.WARNING)
    absl_logging.get_absl_logger().addHandler(handler)
    yield records
    absl_logging.get_absl_logger().removeHandler(handler)


def test_what_cannot_go_on_stays_and_is_named(warnings):
    """A variable that is too small to be compressed, but in one bucket with others."""
    shapes = {"a": (40, 300), "b": (3,)}
    policy = Policy(rules=(("*", "topk:density=0.4"),))

    def work(collectives):
        job = Job(collectives, policy, shapes)
        job.step("ab")
        before = job.left_over()
        job.step("b")
        after = job.left_over()
        job.step("ab", scale=0)
        return before, after, job

    for before, after, job in loopback.run_workers(2, work):
        assert before["b"].any()
        np.testing.assert_array_equal(after["b"], before["b"])
        assert job.reducer.plans[1].buckets[0].compression is None
    stays = [message for message in warnings if "stays behind" in message]
    assert len(stays) == 2  # one of each worker
    assert all("has yet to send of b stays" in message for message in stays)


def test_a_variable_with_two_gradients_has_two_residuals():
    def work(collectives):
        reducer = GradientReducer(Policy("topk:density=0.1,scope=layer"), collectives)
        owner = Owner()
        info = VariableInfo("v", (64, 96), "float32")
        owners = {key: weakref.ref(owner) for key in ("v", "v #2")}
        values = [
            tf.constant(np.random.default_rng(i).normal(size=info.shape), tf.float32)
            for i in range(2)
        ]
        reducer.reduce(values, [info, info], owners)
        (entry,) = reducer._entries.values()
        return [exchange.left_over()[0].numpy() for exchange in entry.exchanges]

    for one, other in loopback.run_workers(2, work):
        assert not np.array_equal(one, other)
