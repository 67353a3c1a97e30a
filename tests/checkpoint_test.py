# SPDX-License-Identifier: Apache-2.0
"""What exchanges remember: restored exactly, or divided among another number of workers."""

import io
import weakref
from pathlib import Path
from types import SimpleNamespace

import loopback
import numpy as np
import pytest
import tensorflow as tf
from absl_warnings import warnings_of

from tf_gradcomp import exchange_state
from tf_gradcomp.agreement import PlanMismatchError
from tf_gradcomp.checkpoint import ExchangeState
from tf_gradcomp.exchange_state import BucketState, PlanState, WorkerState
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer

INFOS = [
    VariableInfo("a/kernel", (40, 300), "float32"),
    VariableInfo("b/kernel", (64, 96), "float32"),
]
SPECS = [
    "topk:density=0.1",
    "randomk:density=0.1",
    "onebit:scope=layer",
    "dct:density=0.1",
    "fft:density=0.2,chunk=64",
    "topk:density=0.1,transport=scatter_reduce",
    "powersgd:rank=2",
    "acpsgd:rank=2",
    "topk:density=0.1,momentum=0.9",
    "dct:density=0.1,momentum=0.9,lr_correction=true",
    "topk:density=0.1,global_momentum=0.9,transport=scatter_reduce",
    "powersgd:rank=2,lr_correction=true",
    "natural",
]


class Owner:
    """Stands for a variable."""


def gradients(worker, step):
    rng = np.random.default_rng([worker, step])
    return [tf.constant(rng.standard_normal(info.shape), tf.float32) for info in INFOS]


def strategy_of(reducer):
    return SimpleNamespace(extended=SimpleNamespace(compresses_gradients=True, reducer=reducer))


class Job:
    """One worker's training, as far as exchanges go."""

    def __init__(self, collectives, spec, infos=INFOS):
        self._infos = infos
        self._owners = [Owner() for _ in infos]
        self.reducer = GradientReducer(Policy(spec), collectives)
        self.state = ExchangeState(strategy_of(self.reducer))
        self._worker = collectives.worker_index

    def steps(self, *numbers):
        owners = {str(i): weakref.ref(owner) for i, owner in enumerate(self._owners)}
        sums = []
        for number in numbers:
            own = gradients(self._worker, number)[: len(self._infos)]
            reduced = self.reducer.reduce(
                own, self._infos, owners, learning_rate=tf.constant(1.0 / number)
            )
            sums.append([total.numpy() for total in reduced])
        return sums


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("before", [True, False])
def test_a_restored_job_goes_on_bit_for_bit(spec, before):
    """Restored before the first exchange or after some that have left something else."""

    def work(collectives):
        job = Job(collectives, spec)
        job.steps(1, 2, 3)
        saved = job.state.serialize()
        expected = job.steps(4, 5)
        other = Job(collectives, spec)
        if not before:
            other.steps(7, 8)
        other.state.deserialize(saved)
        return expected, other.steps(4, 5)

    for expected, actual in loopback.run_workers(2, work):
        np.testing.assert_equal(actual, expected)


def test_tensorflow_s_checkpoints_hold_it(tmp_path):
    def work(collectives):
        job = Job(collectives, "topk:density=0.1")
        job.steps(1, 2)
        path = str(tmp_path / str(collectives.worker_index))
        path = tf.train.Checkpoint(exchange=job.state).write(path)
        expected = job.steps(3)
        other = Job(collectives, "topk:density=0.1")
        tf.train.Checkpoint(exchange=other.state).read(path).assert_consumed()
        return expected, other.steps(3)

    for expected, actual in loopback.run_workers(2, work):
        np.testing.assert_equal(actual, expected)


def left_over(reducer):
    """What the residuals of a worker stand for, in elements."""
    total = []
    for entry in reducer._entries.values():
        for exchange in entry.exchanges:
            if not exchange.memory:
                continue
            left = exchange.residuals[0]
            if hasattr(exchange, "_transport") and hasattr(exchange._transport, "merge"):
                left = exchange._transport.merge(
                    [r.read_value() for r in exchange.residuals],
                    reducer.collectives.worker_index,
                )
                transform = exchange._transform
                if exchange._choice is not None:
                    transform = transform.at(exchange._choice)
                left = transform.inverse(left, exchange.bucket.num_elements)
            total.append(np.asarray(left, np.float64))
    return np.concatenate(total)


def save(spec, num_workers, folder):
    def work(collectives):
        job = Job(collectives, spec)
        job.steps(1, 2, 3)
        path = str(folder / str(collectives.worker_index))
        return tf.train.Checkpoint(exchange=job.state).write(path), left_over(job.reducer)

    return loopback.run_workers(num_workers, work)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec != "natural"])
@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (4, 2)])
def test_another_number_of_workers_keeps_the_sum_of_residuals(spec, old, new, tmp_path):
    saved = save(spec, old, tmp_path)
    paths = [path for path, _ in saved]

    def work(collectives):
        job = Job(collectives, spec)
        job.state.resume_from(paths)
        # Nothing is exchanged, but the plan is made.
        job.reducer._entry_for(
            INFOS, {str(i): weakref.ref(owner) for i, owner in enumerate(job._owners)}
        )
        left, state = left_over(job.reducer), job.reducer.state()
        return left, state, job.steps(4)

    outcomes = loopback.run_workers(new, work)
    meant = sum(left for _, left in saved)
    assert np.abs(meant).max() > 0
    actual = sum(left for left, _, _ in outcomes)
    np.testing.assert_allclose(actual, meant, atol=1e-5 * np.abs(meant).max())
    # What all workers had in common, they still have.
    for _, state, sums in outcomes:
        for plan, first in zip(state.plans, outcomes[0][1].plans, strict=True):
            assert plan.num_exchanges == first.num_exchanges
            for bucket, other in zip(plan.buckets, first.buckets, strict=True):
                shared = [
                    name for name in bucket.arrays if not name.startswith(("residual", "momentum"))
                ]
                for name in shared:
                    np.testing.assert_array_equal(bucket.arrays[name], other.arrays[name])
        np.testing.assert_equal(sums, outcomes[0][2])


def test_a_changed_variable_begins_anew_with_a_warning(caplog):
    def work(collectives):
        spec = "topk:density=0.1,scope=layer"
        job = Job(collectives, spec)
        job.steps(1, 2)
        saved = job.state.serialize()
        old = {bucket.variables[0][0]: bucket for bucket in job.reducer.state().plans[0].buckets}
        changed = [INFOS[0]._replace(shape=(30, 400)), INFOS[1]]
        other = Job(collectives, spec, changed)
        other.state.deserialize(saved)
        other.reducer._entry_for(
            changed, {str(i): weakref.ref(owner) for i, owner in enumerate(other._owners)}
        )
        for bucket in other.reducer.state().plans[0].buckets:
            name = bucket.variables[0][0]
            expected = old[name].arrays["residual_0"] if name == "b/kernel" else 0.0
            np.testing.assert_array_equal(
                bucket.arrays["residual_0"],
                np.broadcast_to(expected, (12000 if name == "a/kernel" else 6144,)),
            )

    text = warnings_of(caplog, lambda: loopback.run_workers(2, work))
    assert "nothing fits the exchange by topk:density=0.1,scope=layer of a/kernel" in text
    assert "of b/kernel" not in text


def test_a_state_of_another_worker_is_a_warning(caplog):
    def work(collectives):
        job = Job(collectives, "topk:density=0.1")
        job.steps(1)
        rows = collectives.gather_text(job.state.serialize().hex())
        other = Job(collectives, "topk:density=0.1")
        other.state.deserialize(bytes.fromhex(rows[1 - collectives.worker_index]))

    text = warnings_of(caplog, lambda: loopback.run_workers(2, work))
    assert "Worker 0 of 2 goes on from the residuals of worker 1 of 2" in text


def test_bytes_hold_all_of_a_state():
    arrays = {"residual_0": np.arange(3, dtype=np.float32), "views": np.array([2, 0], np.int32)}
    bucket = BucketState((("a", (3,)), ("b", ())), "topk", "all_gather", arrays)
    state = WorkerState(
        3, 1, (PlanState(("a", "b", "c"), 17, (bucket, bucket)), PlanState((), 0, ()))
    )
    read = exchange_state.from_bytes(exchange_state.to_bytes(state))
    assert read[:2] == (3, 1)
    assert [plan[:2] for plan in read.plans] == [(("a", "b", "c"), 17), ((), 0)]
    for copy in read.plans[0].buckets:
        assert copy[:3] == bucket[:3]
        np.testing.assert_equal(dict(copy.arrays), arrays)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 and more", b"no archive at all"])
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError):
        exchange_state.from_bytes(data)


def test_what_does_not_fit_is_forgotten_also_after_the_first_step():
    def work(collectives):
        job = Job(collectives, "acpsgd:rank=2")
        job.steps(1)
        saved = job.state.serialize()
        other = Job(collectives, "acpsgd:rank=3")
        other.steps(7)
        other.state.deserialize(saved)
        (bucket,) = other.reducer.state().plans[0].buckets
        assert set(bucket.arrays) == {"residual_0", "factor_0", "factor_1", "factor_2", "factor_3"}
        assert not any(array.any() for array in bucket.arrays.values())

    loopback.run_workers(2, work)


def test_what_no_exchange_has_asked_for_is_saved_again():
    """Of two models, one of which is not trained before the next checkpoint."""

    def work(collectives):
        job = Job(collectives, "topk:density=0.1")
        job.steps(1)
        saved = job.state.serialize()
        other = Job(collectives, "topk:density=0.1")
        other.state.deserialize(saved)
        again = Job(collectives, "topk:density=0.1")
        again.state.deserialize(other.state.serialize())
        assert other.reducer.state().plans
        return job.steps(2), again.steps(2)

    for expected, actual in loopback.run_workers(2, work):
        np.testing.assert_equal(actual, expected)


@pytest.mark.parametrize("spec", ["dct:density=0.1", "randomk:density=0.1", "acpsgd:rank=2"])
@pytest.mark.parametrize("before", [True, False])
def test_a_state_of_another_step_is_an_error_on_all_workers(spec, before):
    def work(collectives):
        job = Job(collectives, spec)
        job.steps(1)
        early = job.state.serialize()
        job.steps(2, 3)
        late = job.state.serialize()
        other = Job(collectives, spec)
        if not before:
            other.steps(1)

        def go_on():
            other.state.deserialize([early, late][collectives.worker_index])
            other.steps(4)

        with pytest.raises(PlanMismatchError, match="what to go on from"):
            go_on()

    loopback.run_workers(2, work)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([0, 1], "worker 0 of 3, but was given as that of worker 0 of 2"),
        ([0, 2, 1], "worker 2 of 3, but was given as that of worker 1 of 3"),
        ([0, 1, 3], "not of the same step"),
    ],
)
def test_checkpoints_must_be_of_all_workers_and_of_one_step(chosen, message, tmp_path):
    def work(collectives):
        job = Job(collectives, "randomk:density=0.1")
        job.steps(1)
        checkpoint, prefix = tf.train.Checkpoint(exchange=job.state), f"{collectives.worker_index}"
        early = checkpoint.write(str(tmp_path / prefix))
        job.steps(2)
        return early, checkpoint.write(str(tmp_path / f"{prefix}-late"))

    outcomes = loopback.run_workers(3, work)
    paths = [early for early, _ in outcomes] + [outcomes[2][1]]
    state = ExchangeState(strategy_of(None))
    with pytest.raises(ValueError, match=message):
        state.resume_from([paths[index] for index in chosen])


@pytest.mark.parametrize("paths", ["backups/worker-0", [], Path("backups")])
def test_paths_must_be_a_list(paths):
    state = ExchangeState(strategy_of(None))
    with pytest.raises(ValueError, match="must be a list of paths"):
        state.resume_from(paths)


def test_other_strategies_have_no_such_state():
    with pytest.raises(ValueError, match="got _DefaultDistributionStrategy"):
        ExchangeState(tf.distribute.get_strategy())


def test_what_was_saved_for_another_compression_is_dropped_with_a_warning(caplog):
    def work(collectives):
        job = Job(collectives, "topk:density=0.1")
        job.steps(1)
        other = Job(collectives, "natural")
        other.state.deserialize(job.state.serialize())
        other.steps(2)

    text = warnings_of(caplog, lambda: loopback.run_workers(2, work))
    # As they are packed, from the model's top down.
    assert "What was saved of b/kernel, a/kernel with topk:density=0.1 is dropped" in text


def test_a_single_worker_says_what_is_lost(caplog, tmp_path):
    paths = [path for path, _ in save("topk:density=0.1", 2, tmp_path)]
    state = ExchangeState(strategy_of(None))
    text = warnings_of(caplog, lambda: state.resume_from(paths))
    assert "what the residuals of 2 workers hold is lost" in text


def test_a_later_format_is_refused():
    stream = io.BytesIO()
    np.savez(stream, header=np.frombuffer(b'{"format": 9}', np.uint8))
    with pytest.raises(ValueError, match="has format 9"):
        exchange_state.from_bytes(stream.getvalue())
