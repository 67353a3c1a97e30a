# SPDX-License-Identifier: Apache-2.0
"""Exchanges do what was decided on each, on all workers alike; and decisions go on after a stop."""

import dataclasses
import json
import math
import time

import loopback
import numpy as np
import pytest
import steered
import tensorflow as tf
from absl_warnings import warnings_of
from steered import INFOS, Job, Scripted, Sending, biased, gradient, rate

from tf_gradcomp import exchange_state
from tf_gradcomp.agreement import PlanMismatchError
from tf_gradcomp.codecs.base import Draw
from tf_gradcomp.compression import Compression
from tf_gradcomp.controllers import lags
from tf_gradcomp.controllers.base import CHANGE, READY, STEP, Decision
from tf_gradcomp.costs import Link, Network
from tf_gradcomp.exchanges import make_exchange
from tf_gradcomp.plan import dense_beyond, make_plan, messages_at
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.transports.dense import Dense
from tf_gradcomp.transports.silent import SilentCollectives

known_by_name = steered.known_by_name
SIZES = {info.name: info.num_elements for info in INFOS}


class Alone:
    num_workers, worker_index, device = 2, 0, "/device:CPU:0"


# --- What is sent --------------------------------------------------------------------------------


def top_k(values, density):
    """Returns a mask of the largest magnitudes."""
    num_kept = max(1, int(np.ceil(round(density * values.size, 6))))
    mask = np.zeros(values.size, bool)
    mask[np.argsort(-np.abs(values), kind="stable")[:num_kept]] = True
    return mask


class Oracle:
    """Top-k with residuals and momentum correction on several workers, of one variable."""

    def __init__(self, info, num_workers, momentum):
        self._info, self._factor = info, np.float32(momentum)
        self.residuals = np.zeros((num_workers, info.num_elements), np.float32)
        self.momentum = np.zeros_like(self.residuals)

    def step(self, step, density, dense_beyond):
        """Returns the sum."""
        total = np.zeros(self._info.num_elements, np.float32)
        for worker in range(len(self.residuals)):
            own = gradient(worker, step, self._info).ravel()
            meant = self.momentum[worker] = self._factor * self.momentum[worker] + own
            both = self.residuals[worker] + meant
            if density == 0:
                sent = np.zeros(both.size, bool)
            elif density > dense_beyond:
                sent = np.ones(both.size, bool)
            else:
                sent = top_k(both, density)
                self.momentum[worker][sent] = 0
            total = total + np.where(sent, both, 0)
            self.residuals[worker] = np.where(sent, 0, both)
        return total.reshape(self._info.shape)


@pytest.mark.parametrize(("num_workers", "momentum"), [(2, 0.75), (3, 0.0)])
def test_sums_and_residuals_are_those_of_numpy(num_workers, momentum):
    """Also: nothing of what is withheld is sent, and all of it is kept; all is sent as it is."""
    spec = "topk:scope=layer,transport=all_gather,controller=scripted(seed=3,period=4)"
    spec += f",momentum={momentum}"

    def work(collectives):
        job = Job(collectives, spec)
        history = []
        for step in range(9):
            sums = job.step(step)
            residuals = {INFOS[e.bucket.indices[0]].name: e.residuals[0] for e in job.exchanges}
            history.append((sums, {name: r.numpy() for name, r in residuals.items()}))
        return history, {INFOS[e.bucket.indices[0]].name: e._dense_beyond for e in job.exchanges}

    outcomes = loopback.run_workers(num_workers, work)
    limits = outcomes[0][1]
    decided = np.concatenate([steered.rows(3, number, 4, 3) for number in range(3)])
    assert {0.0, 1.0} < set(decided[:9].ravel())
    for column, info in enumerate(reversed(INFOS)):
        oracle = Oracle(info, num_workers, momentum)
        for step in range(9):
            expected = oracle.step(step, decided[step, column], limits[info.name])
            for worker, (history, _) in enumerate(outcomes):
                sums, residuals = history[step]
                np.testing.assert_array_equal(sums[info.name], expected)
                np.testing.assert_array_equal(residuals[info.name], oracle.residuals[worker])


CONSERVING = [
    "topk:scope=layer,transport=scatter_reduce",
    "topk:scope=layer,transport=integer",
    "topk:bucket_bytes=6000,transport=block_sparse",
    "natural:scope=layer,error_feedback=true,transport=all_gather",
    "float16:scope=layer,transport=all_reduce",
    "identity:scope=layer,lr_correction=true,transport=all_reduce",
    "fft:scope=layer,chunk=64",
    "dct:view=auto,scope=layer,transport=scatter_reduce,lr_correction=true",
]
NUM_STEPS = 5
ADJUSTABLE = ("topk", "fft", "dct")


@dataclasses.dataclass(frozen=True)
class Withholding(Scripted):
    """All or nothing, for codecs that have no density."""

    adjusts = False

    def _decision(self, setting, state):
        decision = super()._decision(setting, state)
        densities = np.where(decision.densities > 0.1, setting.density, 0.0)
        return decision._replace(densities=densities)


@pytest.fixture(autouse=True)
def withholding_by_name(known_by_name, monkeypatch):
    monkeypatch.setitem(steered.registry._CONTROLLERS, "withholding", Withholding)


@pytest.mark.parametrize("spec", CONSERVING)
def test_nothing_is_lost(spec):
    controller = "scripted" if spec.startswith(ADJUSTABLE) else "withholding"

    def work(collectives):
        job = Job(collectives, f"{spec},controller={controller}(seed=1)")
        sent = {info.name: 0.0 for info in INFOS}
        decided, sums_of_steps = [], []
        for step in range(NUM_STEPS):
            before = job.left()
            sums = job.step(step)
            sums_of_steps.append(sums)
            decided.append(job.densities())
            for name, total in sums.items():
                weight = rate(step) if "lr_correction" in spec else 1.0
                sent[name] = sent[name] + weight * total.astype(np.float64)
                if not total.any():  # withheld
                    own = weight * gradient(collectives.worker_index, step, by_name(name)).ravel()
                    grown = job.left()[name] - before.get(name, 0.0)
                    np.testing.assert_allclose(grown, own, atol=1e-4)
        return sent, job.left(), sums_of_steps

    outcomes = loopback.run_workers(3, work)
    num_withheld = 0
    for info in INFOS:
        meant = sum(
            (rate(step) if "lr_correction" in spec else 1.0)
            * gradient(worker, step, info).astype(np.float64)
            for worker in range(3)
            for step in range(NUM_STEPS)
        )
        left = sum(left[info.name] for _, left, _ in outcomes).reshape(info.shape)
        bound = 64 * NUM_STEPS * np.finfo(np.float32).eps * np.abs(meant).max()
        if spec.startswith("float16"):
            bound = (
                NUM_STEPS * 3 * 2**-10 * np.abs(meant).max()
            )  # sums are rounded, once for each worker
        np.testing.assert_allclose(outcomes[0][0][info.name] + left, meant, rtol=0, atol=bound)
        for _, _, sums in outcomes:
            for mine, first in zip(sums, outcomes[0][2], strict=True):
                np.testing.assert_array_equal(mine[info.name], first[info.name])
        num_withheld += sum(not sums[info.name].any() for sums in outcomes[0][2])
    assert num_withheld > 2


def by_name(name):
    return next(info for info in INFOS if info.name == name)


@pytest.mark.parametrize(
    "codec",
    [
        "topk:values=natural,transport=all_gather",
        "block_topk:block=32,transport=integer",
        "fft:chunk=64,transport=all_gather",
    ],
)
def test_an_exchange_is_that_of_its_density(codec):
    """Without error feedback, exchanges know nothing of one another but their numbers."""
    spec = f"{codec},error_feedback=false,scope=layer"

    def run(compression):
        return loopback.run_workers(2, lambda c: Job(c, compression).steps(*range(4)))[1]

    def changing(collectives):
        job = Job(collectives, f"{spec},controller=sending(seed=4)")
        job.step(99)  # makes the plan
        first = job.exchanges
        return [(e.bucket.indices[0], e._dense_beyond) for e in first]

    limits = dict(loopback.run_workers(2, changing)[0])
    found = run(f"{spec},controller=sending(seed=4)")
    decided = np.concatenate([steered.rows(4, number, 3, 3) for number in range(2)])
    static = {}
    num_dense = 0
    for step in range(4):
        for column, index in enumerate([2, 1, 0]):
            density = max(float(decided[step, column]), 1e-6)
            name = INFOS[index].name
            if density > limits[index]:
                num_dense += 1
                expected = gradient(0, step, INFOS[index]) + gradient(1, step, INFOS[index])
            else:
                if density not in static:
                    # A static plan would send that as it is, too.
                    static[density] = run(f"{spec},density={density!r}")
                expected = static[density][step][name]
            np.testing.assert_array_equal(found[step][name], expected, err_msg=f"{density}")
    assert len(static) > 1
    assert num_dense or np.inf in limits.values()


# --- Who decides ---------------------------------------------------------------------------------


def test_the_first_worker_s_decisions_are_everyone_s():
    def work(collectives):
        worker = collectives.worker_index
        compression = Compression(
            "topk", scope="layer", controller=biased(Scripted(seed=2), 100 * worker)
        )
        job = Job(collectives, compression)
        history = []
        for step in range(7):
            sums = job.step(step)
            history.append((sums, job.densities()))
        return history

    outcomes = loopback.run_workers(3, work)
    decided = np.concatenate([steered.rows(2, number, 3, 3) for number in range(3)])
    assert (decided != np.concatenate([steered.rows(102, n, 3, 3) for n in range(3)])).any()
    for history in outcomes:
        for step, (sums, densities) in enumerate(history):
            np.testing.assert_equal(sums, outcomes[0][step][0])
            # Those of the next exchange.
            assert [densities[name] for name in "cba"] == decided[step + 1].tolist()


def test_a_loop_follows_all_rows_and_is_traced_once():
    spec = "topk:scope=layer,error_feedback=true,controller=scripted(seed=7,period=5)"
    job = Job(SilentCollectives(Alone), spec)
    single = Job(SilentCollectives(Alone), spec)
    values = [tf.constant(gradient(0, 0, info)) for info in INFOS]
    traced = []

    @tf.function(autograph=False)
    def run():
        traced.append(1)
        return job.reduce(values, INFOS, 0)

    decided = np.concatenate([steered.rows(7, number, 5, 3) for number in range(5)])
    for step in range(20):
        totals = run()
        expected = single.reduce(values, INFOS, 0)
        for total, other in zip(totals, expected, strict=True):
            np.testing.assert_array_equal(total, other)
        for column, index in enumerate([2, 1, 0]):
            num_sent = int(tf.math.count_nonzero(totals[index]))
            size, density = INFOS[index].num_elements, decided[step, column]
            if density == 0:
                assert num_sent == 0
            elif density < 1:
                assert num_sent == max(1, np.ceil(round(density * size, 6)))
            else:
                assert num_sent == size
        assert [job.densities()[name] for name in "cba"] == decided[step + 1].tolist()
    assert len(traced) == 1


# --- Schedules -----------------------------------------------------------------------------------


def nonzeros(sums):
    return {name: np.count_nonzero(total) for name, total in sums.items()}


@pytest.mark.parametrize("kind", ["keras", "function", "constant"])
def test_schedules_are_the_first_worker_s(kind):
    """Whatever other workers compute, as by other mathematics or another library."""

    def work(collectives):
        skew = 1.0 + 0.3 * collectives.worker_index
        if kind == "keras":
            schedule = tf.keras.optimizers.schedules.CosineDecay(0.25, 100)
            inner = schedule.__class__.__call__

            class CosineDecay(tf.keras.optimizers.schedules.CosineDecay):
                def __call__(self, step):
                    return skew * inner(self, step)

            schedule = CosineDecay(0.25, 100)
        elif kind == "function":

            def schedule(step):
                return skew * 0.25 / (1 + step)

        else:

            def schedule(step):
                return 0.25 * skew

        compression = Compression(
            "topk", (("density", schedule),), scope="layer", transport="all_gather"
        )
        job = Job(collectives, compression)
        sums = job.steps(0, 1, 2)
        return sums, job.reducer.decisions()

    outcomes = loopback.run_workers(2, work)
    at = {
        "keras": lambda step: 0.25 * 0.5 * (1 + np.cos(np.pi * step / 100)),
        "function": lambda step: 0.25 / (1 + step),
        "constant": lambda step: 0.25,
    }[kind]
    for sums, decisions in outcomes:
        np.testing.assert_equal(sums, outcomes[0][0])
        for name in "abc":
            assert decisions[name] == {"density": pytest.approx(at(3), rel=1e-6)}
    for step in range(3):
        kept = int(np.ceil(round(at(step) * SIZES["c"], 3)))
        assert kept <= nonzeros(outcomes[0][0][step])["c"] <= 2 * kept


def test_a_schedule_goes_on_for_ever_with_the_number_of_the_exchange():
    """Also across the ends of the tables in which its values are sent ahead."""

    def schedule(step):
        return (1 + step) / 1500

    compression = Compression("topk", (("density", schedule),), error_feedback=False, scope="layer")
    job = Job(SilentCollectives(Alone), compression, [INFOS[2]])
    value = tf.constant(gradient(0, 0, INFOS[2]))

    @tf.function(autograph=False)
    def step():
        return tf.math.count_nonzero(job.reduce([value], [INFOS[2]], 0)[0])

    for number in range(1, 300):
        assert int(step()) == number
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("value", "num_sent"),
    [(np.nan, 150), (2.0, 1500), (0.0, 1), (-np.inf, 1)],
)
def test_a_schedule_s_value_out_of_range_means_the_nearest_or_the_last(value, num_sent):
    def schedule(step):
        return 0.1 if step < 1 else value

    def work(collectives):
        compression = Compression("topk", (("density", schedule),), scope="layer")
        job = Job(collectives, compression, [INFOS[2]])
        same = tf.constant(gradient(0, 0, INFOS[2]))
        first, second = (job.reduce([same], [INFOS[2]], 0)[0].numpy() for _ in range(2))
        return np.count_nonzero(first), np.count_nonzero(second)

    assert loopback.run_workers(2, work) == [(150, num_sent)] * 2


@pytest.mark.parametrize(
    ("value", "bits"),
    [(np.nan, 10), (1e12, 12), (7.4, 7), (7.6, 8), (-1e12, 6)],
)
def test_bits_are_the_nearest_that_are_possible(value, bits):
    def schedule(step):
        return 10 if step < 1 else value

    def run(given):
        def work(collectives):
            compression = Compression("range_float", (("bits", given),), error_feedback=False)
            job = Job(collectives, compression, [INFOS[2]])
            words, sums = [], []
            for step in (0, 1):
                before = collectives.words_sent
                sums.append(job.step(step)["c"])
                words.append(collectives.words_sent - before)
            return sums[1], words[1]

        return loopback.run_workers(2, work)

    for mine, theirs in zip(run(schedule), run(bits), strict=True):
        assert mine[1] == theirs[1]
        np.testing.assert_array_equal(mine[0], theirs[0])


@pytest.mark.parametrize("fields", [{"warmup": 4}, {"controller": Sending(seed=5)}])
def test_bits_and_density_can_change_for_different_reasons(fields):
    def schedule(step):
        return 12 - step

    def run(bits, steps):
        def work(collectives):
            compression = Compression(
                "fft",
                (("density", 0.05), ("bits", bits)),
                scope="layer",
                error_feedback=False,
                **fields,
            )
            job = Job(collectives, compression, [INFOS[2]])
            sums = [job.step(step)["c"] for step in steps]
            return sums, job.reducer.decisions()["c"]

        return loopback.run_workers(2, work)[0]

    found, decision = run(schedule, range(4))
    assert decision["bits"] == 8
    assert "density" in decision
    for step in range(4):
        np.testing.assert_array_equal(found[step], run(12 - step, range(4))[0][step])


def test_what_a_first_value_must_be():
    for value, words in [(0.0, "density"), (2.0, "density"), (np.nan, "density")]:
        with pytest.raises(ValueError, match=words):
            Compression("topk", (("density", lambda step, value=value: value),))
    for value in (np.nan, np.inf, 5.0, 13.0):
        with pytest.raises(ValueError, match="bits"):
            Compression("fft", (("bits", lambda step, value=value: value),))


# --- Inf and NaN ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Turns(Scripted):
    """Withholds b, sends a little of a, and all of c."""

    def _decision(self, setting, state):
        return Decision(state, np.tile([1.0, 0.0, 0.1], (self.period, 1)))


@pytest.mark.parametrize(("dtype", "bad"), [("float32", np.inf), ("float16", np.nan)])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_what_is_not_finite_reaches_all_workers_though_it_is_withheld(name, bad, dtype):
    """And changes nothing that is remembered; the next exchange goes on as if it had not been."""
    infos = [info._replace(dtype=dtype) for info in INFOS]
    index = "abc".index(name)

    def spoil(worker, step, values):
        if worker == 1 and step == 1:
            values[index].reshape(-1)[7] = bad

    def work(collectives):
        compression = Compression(
            "topk", scope="layer", momentum=0.5, lr_correction=True, controller=Turns()
        )
        job, other = (Job(collectives, compression, infos) for _ in range(2))
        for one in (job, other):
            one.step(0)
        before = job.memory()
        spoilt = job.step(1, spoil)
        np.testing.assert_equal(job.memory(), before)
        assert all(total.dtype == dtype for total in spoilt.values())
        np.testing.assert_equal(job.step(2), other.step(2))
        np.testing.assert_equal(job.memory(), other.memory())
        return spoilt, before

    for spoilt, before in loopback.run_workers(3, work):
        assert np.isnan(spoilt[name]).all()
        assert any(array.any() for array in before.values())


# --- Going on after a stop -----------------------------------------------------------------------


def as_saved(job):
    """Returns a worker's state as bytes that were read again."""
    return exchange_state.from_bytes(exchange_state.to_bytes(job.reducer.state()))


def half_cosine(step):
    return 0.3 + 0.2 * math.cos(step / 40)


RESUMED = {
    "script": Compression("topk", scope="layer", momentum=0.5, controller=Scripted(seed=8)),
    "window": Compression.from_spec(
        "identity:scope=layer,transport=all_reduce,controller=layer_window(period=3,budget=0.5)"
    ),
    "lags": Compression.from_spec("topk:scope=layer,controller=lags(period=5)"),
    "schedule": Compression("topk", (("density", half_cosine),), scope="layer"),
}


@pytest.mark.parametrize(
    ("kind", "stop"),
    [("script", 2), ("script", 3), ("window", 2), ("window", 3), ("lags", 2), ("schedule", 2)],
)
def test_a_job_goes_on_bit_for_bit_in_and_between_periods(kind, stop):
    def work(collectives):
        def train(job, steps):
            sums = []
            for step in steps:
                for number, weight in enumerate(job.weights.values()):
                    weight.assign_add(tf.fill(weight.shape, 0.01 * (1 + number) * (1 + step % 3)))
                sums.append((job.step(step), job.densities()))
            return sums

        job = Job(collectives, RESUMED[kind])
        train(job, range(stop))
        saved, weights = as_saved(job), [weight.numpy() for weight in job.weights.values()]
        expected = train(job, range(stop, stop + 5))
        other = Job(collectives, RESUMED[kind])
        for weight, value in zip(other.weights.values(), weights, strict=True):
            weight.assign(value)
        other.reducer.restore([saved])
        return expected, train(other, range(stop, stop + 5)), as_saved(job), as_saved(other)

    for expected, actual, end, other_end in loopback.run_workers(2, work):
        np.testing.assert_equal(actual, expected)
        for one, two in zip(end.plans[0].buckets, other_end.plans[0].buckets, strict=True):
            np.testing.assert_equal(dict(one.arrays), dict(two.arrays))


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2)])
def test_decisions_go_on_with_another_number_of_workers(old, new):
    spec = "topk:scope=layer,transport=all_gather,controller=scripted(seed=8,period=4)"

    def save(collectives):
        job = Job(collectives, spec)
        job.steps(*range(6))
        return as_saved(job)

    saved = loopback.run_workers(old, save)

    def work(collectives):
        job = Job(collectives, spec)
        own = saved[collectives.worker_index :: new]
        job.reducer.restore(own or [exchange_state.in_common(saved[0])])
        decided = []
        job.step(6)
        for step in range(7, 10):
            decided.append(job.densities())
            job.step(step)
        return decided

    rows = np.concatenate([steered.rows(8, number, 4, 3) for number in range(3)])
    for decided in loopback.run_workers(new, work):
        for step, densities in enumerate(decided, 7):
            assert [densities[name] for name in "cba"] == rows[step].tolist()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("controller=scripted(seed=8)", "controller=scripted(seed=9)", "decisions of"),
        ("controller=scripted(period=2)", "controller=scripted(period=5)", "decisions of"),
        ("controller=scripted", "warmup=9", "decisions of"),
        ("warmup=9", "controller=scripted", "decisions of"),
        ("controller=lags", "controller=scripted", "begins anew"),
    ],
)
def test_another_controller_begins_anew_with_a_warning(old, new, words, caplog):
    def work(collectives):
        job = Job(collectives, f"topk:scope=layer,{old}")
        job.steps(0, 1, 2, 3)
        other = Job(collectives, f"topk:scope=layer,{new}")
        other.reducer.restore([as_saved(job)])
        decided = []
        for step in range(4, 9):
            other.step(step)
            decided.append(other.densities())
        return decided

    decided = []
    text = warnings_of(caplog, lambda: decided.extend(loopback.run_workers(2, work)))
    assert words in text
    assert decided[0] == decided[1]
    if "seed=9" in new:
        # What begins anew does so with a whole period, whatever others have begun.
        rows = np.concatenate([steered.rows(9, number, 3, 3) for number in range(2)])
        assert [[d[name] for name in "cba"] for d in decided[0]] == rows[1:].tolist()


def test_another_schedule_begins_at_the_exchange_at_hand(caplog):
    """Not with the values of the first exchanges."""

    def old(step):
        return 0.1

    def new(step):
        return (1 + step) / 1500

    def work(collectives):
        job = Job(collectives, Compression("topk", (("density", old),)), [INFOS[2]])
        job.step(0)
        state = as_saved(job)
        state = state._replace(plans=(state.plans[0]._replace(num_exchanges=200),))
        other = Job(collectives, Compression("topk", (("density", new),)), [INFOS[2]])
        other.reducer.restore([state])
        other.step(1)
        return other.densities()["c"]

    found = []
    text = warnings_of(caplog, lambda: found.extend(loopback.run_workers(2, work)))
    assert "schedules of topk" in text
    assert found == [pytest.approx(202 / 1500)] * 2


def test_groups_stay_as_they_were_saved(tmp_path):
    """They depend on what the network is like; residuals and decisions fit no others."""
    profile = tmp_path / "profile.json"
    ready = {"c": 0.0, "b": 0.01, "a": 0.02}
    profile.write_text(json.dumps({"format": lags.PROFILE_FORMAT, "ready_seconds": ready}))
    compression = Compression("topk", controller=lags.Lags(profile=str(profile)))

    def work(collectives):
        def make(latency):
            return Job(collectives, compression, costs=Figures(latency=latency, bandwidth=1e9))

        job, other, anew = make(0.0), make(0.1), make(0.1)
        job.steps(0, 1)
        saved, left = as_saved(job), job.left()
        other.reducer.restore([saved])
        expected, found, _ = job.steps(2, 3), other.steps(2, 3), anew.step(2)
        counts = [len(one.exchanges) for one in (job, other, anew)]
        return counts, left, expected, found, job.densities(), other.densities()

    for counts, left, expected, found, decided, other_decided in loopback.run_workers(2, work):
        assert counts == [3, 3, 1]
        assert any(part.any() for part in left.values())
        np.testing.assert_equal(found, expected)
        assert other_decided == decided


@dataclasses.dataclass(frozen=True)
class Together(Sending):
    """Exchanges all as one."""

    def groups(self, variables, density, work, message_seconds):
        return [list(range(len(variables)))] if variables else []


@pytest.mark.parametrize(
    ("saved", "groups"),
    [
        ([], ["cba"]),
        (["c", "ba"], ["c", "ba"]),
        (["b"], ["ca", "b"]),  # the others were sent dense
        (["b", "x"], ["cba"]),
        (["b", "ba"], ["cba"]),
    ],
)
def test_saved_groups_are_taken_up_if_their_variables_are_here(saved, groups):
    compression = Compression("topk", controller=Together())
    policy = Policy("none", (("*", compression),))
    shapes = {info.name: info.shape for info in INFOS}

    def states(how):
        return [
            exchange_state.BucketState(
                tuple((name, shapes.get(name, (3,))) for name in names), how, "all_gather", {}
            )
            for names in saved
        ]

    def found(saved):
        plan = make_plan(INFOS, policy, 2, saved=saved)
        return ["".join(INFOS[i].name for i in bucket.indices) for bucket in plan.buckets]

    assert found(states(str(compression))) == groups
    assert found(states("topk")) == ["cba"]


@pytest.mark.parametrize("when", ["made", "to be made"])
@pytest.mark.parametrize("kind", ["schedule", "script"])
def test_workers_that_go_on_from_different_things_say_so(kind, when):
    """And do not wait for one another: what they send does not depend on what they have saved."""

    def work(collectives):
        job, other = (Job(collectives, RESUMED[kind]) for _ in range(2))
        job.steps(0, 1)
        saved = as_saved(job)
        if when == "made":
            other.step(0)
        if collectives.worker_index == 1:
            plans = [plan._replace(variables=("another",)) for plan in saved.plans]
            saved = saved._replace(plans=tuple(plans))

        def go_on():
            other.reducer.restore([saved])
            other.step(2)

        with pytest.raises(PlanMismatchError, match="do not agree on"):
            go_on()

    loopback.run_workers(2, work)


def test_decisions_are_those_of_the_plan_in_use():
    """Not of the one that was made last, when its variables are trained with others again."""
    spec = "topk:scope=layer,transport=all_gather,controller=scripted(seed=6,period=2)"

    def work(collectives):
        job = Job(collectives, spec)
        found = []
        for step, names in enumerate(["abc", "ab", "ab", "ab", "abc"]):
            job.step(step, names=names)
            number = job.reducer.next_number({*"abc"})
            found.append((number, [job.densities()[name] for name in "cba"]))
        return found

    for found in loopback.run_workers(2, work):
        assert [number for number, _ in found] == [2, 2, 3, 4, 3]
        assert found[0][1] == steered.rows(6, 0, 2, 3)[1].tolist()
        assert found[3][1][1:] == steered.rows(6, 1, 2, 2)[1].tolist()
        assert found[4][1] == steered.rows(6, 1, 2, 3)[0].tolist()
        assert found[3][1][1:] != found[4][1][1:]


@pytest.mark.parametrize(
    ("compression", "after"),
    [
        (Compression("topk", {"density": 0.1}, scope="layer", start_after=2), {"density": 0.1}),
        (Compression("natural", scope="layer", start_after=2), None),
        (
            Compression("topk", scope="layer", start_after=2, controller=Scripted(seed=8)),
            {"density": steered.rows(8, 0, 3, 3)[2, 0]},
        ),
        (
            Compression("fft", {"bits": lambda step: 12 - step}, scope="layer", start_after=2),
            {"density": dict(Compression("fft").params)["density"], "bits": 10.0},
        ),
    ],
)
def test_decisions_say_that_the_first_exchanges_send_all(compression, after):
    job = Job(SilentCollectives(Alone), compression)
    found = []
    for step in range(2):
        job.step(step)
        found.append(job.reducer.decisions().get("c"))
    assert found == [{"density": 1.0}, after]


def test_residuals_of_what_is_withheld_move_with_the_variables():
    spec = "topk:scope=layer,transport=all_gather,controller=scripted(seed=6,period=2)"

    def work(collectives):
        job = Job(collectives, spec)
        sent = {info.name: np.zeros(info.shape) for info in INFOS}
        meant = {info.name: np.zeros(info.shape) for info in INFOS}
        for step, names in enumerate(["abc", "abc", "ab", "ab", "c", "abc", "abc"]):
            for name, total in job.step(step, names=names).items():
                sent[name] += total
                meant[name] += gradient(collectives.worker_index, step, by_name(name))
        left = dict.fromkeys("abc", 0.0)
        for entry in job.reducer._entries.values():
            for exchange in entry.exchanges:
                parts = exchange.left_over()
                for index, part in zip(exchange.bucket.indices, parts, strict=True):
                    name = entry.plan.variables[index].name
                    left[name] = left[name] + part.numpy().astype(np.float64)
        return sent, meant, left

    outcomes = loopback.run_workers(2, work)
    for info in INFOS:
        meant = sum(meant[info.name] for _, meant, _ in outcomes)
        left = sum(left[info.name] for _, _, left in outcomes).reshape(info.shape)
        np.testing.assert_allclose(outcomes[0][0][info.name] + left, meant, atol=1e-3)


# --- As it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        "topk:error_feedback=true",
        "topk:transport=scatter_reduce",
        "topk:momentum=0.5",
        "natural",
        "natural:error_feedback=true",
        "dct",
        "topk:controller=scripted(seed=8)",  # which would withhold some
    ],
)
def test_the_first_exchanges_send_all_as_it_is(spec):
    joint = "," if ":" in spec else ":"

    def work(collectives):
        job = Job(collectives, f"{spec}{joint}scope=layer,start_after=2")
        sums = job.steps(0, 1)
        left = job.left()
        sums += job.steps(2)
        return sums, left

    outcomes = loopback.run_workers(2, work)
    factor = np.float32(0.5 if "momentum" in spec else 0.0)
    for info in INFOS:
        velocity = np.zeros((2, *info.shape), np.float32)
        for step in range(3):
            own = np.stack([gradient(worker, step, info) for worker in range(2)])
            velocity = factor * velocity + own
            dense = velocity[0] + velocity[1]
            for sums, left in outcomes:
                if step < 2 and spec != "dct":
                    np.testing.assert_array_equal(sums[step][info.name], dense)
                elif step < 2:  # behind a transform
                    np.testing.assert_allclose(sums[step][info.name], dense, atol=1e-4)
                else:
                    assert not np.allclose(sums[step][info.name], dense, atol=1e-3)
                assert not np.any(left.get(info.name, 0.0))


def test_a_density_that_grows_becomes_dense():
    def work(collectives):
        spec = "topk:density=0.5,grow_after=2,scope=layer,transport=all_gather"
        job = Job(collectives, spec, [INFOS[2]])
        return [(job.step(step)["c"], job.left()["c"]) for step in range(40)], job.exchanges

    outcomes = loopback.run_workers(2, work)
    limit = outcomes[0][1][0]._dense_beyond
    residual, is_dense = 0.0, []
    for step in range(40):
        total = outcomes[0][0][step][0]
        own = sum(gradient(worker, step, INFOS[2]).astype(np.float64) for worker in range(2))
        density = 0.5 if step < 2 else 1 - 0.5 * 2 / (step + 1)
        is_dense.append(density > limit)
        left = sum(history[step][1] for history, _ in outcomes).reshape(total.shape)
        np.testing.assert_allclose(total + left, own + residual, atol=1e-4)
        assert left.any() != is_dense[-1]
        residual = left
    assert is_dense == sorted(is_dense)
    assert 5 < sum(is_dense) < 35


@pytest.mark.parametrize("num_workers", [2, 5])
@pytest.mark.parametrize(
    "codec", ["topk", "fft", "block_topk:block=32", "topk:values=uniform", "topk:chunk=64"]
)
@pytest.mark.parametrize("transport", ["all_gather", "scatter_reduce"])
def test_no_density_sends_more_than_gradients_as_they_are(codec, transport, num_workers):
    info = VariableInfo("v", (12, 25), "float32")
    joint = "," if ":" in codec else ":"
    spec = f"{codec}{joint}density=0.01,transport={transport},scope=layer,controller=lags"
    bucket = make_plan([info], Policy(rules=(("*", spec),)), num_workers).buckets[0]
    if bucket.compression is None:
        pytest.skip("nothing is to be gained")
    limit = dense_beyond([info], bucket, num_workers)
    dense_words = 2 * (num_workers - 1) / num_workers * 300
    times = (num_workers - 1) * (1 if transport == "all_gather" else 2)

    def words(density):
        built = bucket.compression.build(density)
        layout = built.transform.layout(300).shard(num_workers if "scatter" in transport else 1)
        return times * built.num_words(layout)

    by_count = [words(count / 300) for count in range(1, 301)]
    for count, sent in enumerate(by_count, 1):
        assert (sent >= dense_words) == (count / 300 > limit), count
    for density in np.random.default_rng(0).uniform(1e-3, 1, 200):
        assert density > limit or words(float(density)) < dense_words, density


@pytest.mark.parametrize("transport", ["integer", "block_sparse"])
def test_what_is_for_another_purpose_is_never_replaced(transport):
    def work(collectives):
        spec = f"topk:scope=layer,transport={transport},controller=sending(seed=4)"
        job = Job(collectives, spec)
        before, counts = 0, []
        for step in range(4):
            job.step(step)
            counts.append(collectives.words_sent - before)
            before = collectives.words_sent
        return counts, [exchange._dense_beyond for exchange in job.exchanges]

    counts, limits = loopback.run_workers(2, work)[0]
    assert limits == [np.inf] * 3
    # An all-gather of exponents or masks precedes every exchange, whatever its density.
    assert all(count > 0 for count in counts[1:])


@pytest.mark.parametrize(
    "spec",
    [
        "topk:transport=all_gather,controller=scripted(seed=3,period=9)",
        "topk:values=natural,transport=scatter_reduce,controller=scripted(seed=3,period=9)",
        "identity:transport=all_reduce,controller=withholding(seed=3,period=9)",
        "float16:transport=all_reduce,controller=withholding(seed=3,period=9)",
        "natural:transport=all_gather,start_after=2",
        "topk:transport=all_gather,density=0.01,warmup=4",
    ],
)
def test_counted_bytes_are_those_that_collectives_carry(spec):
    """Of a run that goes on from another, too: those of the other are not its own."""

    def work(collectives):
        job = Job(collectives, f"{spec},scope=layer")
        job.step(0)
        saved = as_saved(job)
        job = Job(collectives, f"{spec},scope=layer")
        job.reducer.restore([saved])
        job.step(1)
        (first,) = job.reducer.counted_bytes(["a", "b", "c"])
        words = collectives.words_sent + collectives.words_reduced
        job.steps(2, 3, 4, 5)
        (last,) = job.reducer.counted_bytes(["a", "b", "c"])
        words = collectives.words_sent + collectives.words_reduced - words
        return first, last, words

    for first, last, words in loopback.run_workers(2, work):
        assert first[1] == 1
        assert 0 < first[2] <= 4 * sum(SIZES.values())
        assert last[1] - first[1] == 4
        if "with" in spec or "script" in spec:
            words -= 4  # one in each exchange says whether all is finite
        counted = (last[2] - first[2]) / 4
        if "scatter" in spec:
            # The sum's payload is one more than those of this worker's shards, unless dense.
            assert counted <= words <= 1.5 * counted
        elif spec.startswith("float16"):
            assert words < counted <= words + 12  # of each payload, a word stays here
        else:
            assert counted == words


# --- What is measured ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Watching(Scripted):
    """Keeps what it is given."""

    what: tuple = (CHANGE,)
    seen: list = dataclasses.field(default_factory=list, compare=False)
    statistics = property(lambda self: self.what)

    def decide(self, setting, state, measured):
        assert tuple(measured) == self.what
        self.seen.append(list(measured.values()) if len(self.what) > 1 else measured[self.what[0]])
        return super().decide(setting, state, measured)


class Figures:
    """Costs that are said to be measured."""

    def __init__(self, latency=0.0, bandwidth=1e6, work=0.0):
        link = Link(latency, bandwidth)
        self.network = Network(link, link, measured=True)
        self.num_again = 0
        self._work = work

    def measure_again(self):
        self.num_again += 1

    def work(self, variables, bucket, density=None):
        return self._work


def test_change_is_that_of_numpy():
    """Of float16 weights too, of several variables in a bucket, and from a start at zero."""
    infos = [INFOS[0], INFOS[1]._replace(dtype="float16"), INFOS[2]]

    def work(collectives):
        controller = Watching(period=2)
        # c and b share a bucket.
        compression = Compression("topk", bucket_bytes=8000, controller=controller)
        job = Job(collectives, compression, infos)
        rng = np.random.default_rng(0)
        job.weights["a"].assign(tf.zeros(infos[0].shape))
        expected, before = [], {name: w.numpy() for name, w in job.weights.items()}
        for step in range(8):
            if step == 7:
                job.weights["a"].assign(tf.fill(infos[0].shape, np.nan))
            job.step(step)
            if step % 2:
                now = {name: w.numpy().astype(np.float64) for name, w in job.weights.items()}
                changes = []
                for names in ("cb", "a"):
                    moved = sum(np.square(now[n] - before[n]).sum() for n in names)
                    norm = max(
                        sum(np.square(weights[n].astype(np.float64)).sum() for n in names)
                        for weights in (before, now)
                    )
                    changes.append(np.sqrt(moved / norm) if norm else 0.0)
                expected.append(changes)
                before = now
            for name, weight in job.weights.items():
                if name != "a" or step in (2, 3):
                    moved = rng.normal(scale=0.1, size=weight.shape)
                    weight.assign_add(moved.astype(weight.dtype.name))
        return controller.seen, expected

    for seen, expected in loopback.run_workers(2, work):
        assert len(seen) == 4
        expected[3][1] = 0.0  # no numbers
        np.testing.assert_allclose(seen, expected, rtol=1e-5)
        assert seen[0][1] == 0.0
        assert seen[1][1] == 1.0


def test_change_is_since_other_plans_have_trained_the_variables():
    """As where layers are frozen for a while."""
    controller = Watching(period=3)
    compression = Compression("topk", scope="layer", controller=controller)
    job = Job(SilentCollectives(Alone), compression)

    def step(names):
        job.step(0, names=names)
        for name in names:
            job.weights[name].assign_add(tf.ones(job.weights[name].shape))

    for names in ["abc", "ab", "ab", "abc", "abc"]:
        step(names)
    # From 1: a and b have grown to 5, and the last but one of these steps has begun at 4.
    np.testing.assert_allclose(controller.seen[-1], [1 / 3, 1 / 5, 1 / 5])


class Descent:
    """Training with a layer window, in which each gradient moves a variable by the same."""

    def __init__(self, spec, weights, moves):
        self.job = job = Job(SilentCollectives(Alone), f"identity:scope=layer,{spec}")
        self._moves = moves
        for name, weight in weights.items():
            job.weights[name].assign(tf.fill(job.weights[name].shape, weight))

    def run(self, num_exchanges):
        """Returns how often each was sent."""
        gradients = [tf.fill(info.shape, self._moves[info.name]) for info in INFOS]
        num_sent = dict.fromkeys("abc", 0)
        for _ in range(num_exchanges):
            totals = self.job.reduce(gradients, INFOS, 0)
            for info, total in zip(INFOS, totals, strict=True):
                num_sent[info.name] += int(np.any(total))
                self.job.weights[info.name].assign_add(total / 2)  # of two workers, the same
        return num_sent


@pytest.mark.parametrize("spec", ["period=1,budget=0.5", "period=10,budget=0.1"])
def test_scores_of_a_layer_window_are_the_changes_for_each_gradient(spec):
    """As weights are updated after the exchange in which they are compared."""
    moves = {"a": 0.01, "b": 0.02, "c": 0.04}
    descent = Descent(
        f"controller=layer_window({spec},patience=9)", dict.fromkeys("abc", 1e3), moves
    )
    descent.run(100)
    scores = steering_of(descent.job)._state.numpy()[:3]
    np.testing.assert_allclose(scores, [1e-5, 2e-5, 4e-5], rtol=1e-2)


def test_a_layer_that_starts_at_zero_starves_others_for_no_more_than_a_few_periods():
    moves = dict.fromkeys("abc", 0.1)
    descent = Descent(
        "controller=layer_window(period=10,budget=0.5,patience=100)",
        {"a": 10.0, "b": 0.0, "c": 10.0},
        moves,
    )
    sent = [descent.run(10) for _ in range(10)]
    assert sent[1]["a"] == 0  # b has changed by 1, a hundred times as much
    assert all(of_period["a"] >= 3 for of_period in sent[-3:])


def delayed(value, after, seconds=0.1):
    def wait(value, _):
        time.sleep(seconds)
        return value

    found = tf.numpy_function(wait, [value, after], value.dtype, stateful=False)
    return tf.ensure_shape(found, value.shape)


def test_gradients_are_ready_one_after_the_other():
    controller = Watching(period=2, what=(READY, STEP))
    compression = Compression("topk", scope="layer", controller=controller)
    job = Job(SilentCollectives(Alone), compression, costs=Figures())

    @tf.function(autograph=False)
    def step(values):
        a, b, c = values
        c = delayed(c, 0.0)
        b = delayed(b, c)
        a = delayed(a, b)
        return job.reduce([a, b, c], INFOS, 0)

    values = [tf.constant(gradient(0, 0, info)) for info in INFOS]
    for _ in range(2):
        step(values)
    ((ready, steps),) = controller.seen
    assert ready.shape == (2, 3)
    assert steps.shape == (1,)
    assert 0.3 - 0.05 <= steps[0] < 10
    # A busy machine takes note of anything a little late.
    assert (ready[:, 0] >= 0.03).all()
    assert (np.diff(ready, axis=1) >= 0.03).all()
    assert (ready < 10).all()
    assert step.experimental_get_tracing_count() == 1


def test_clipping_waits_for_all_gradients():
    """It does so within the step: no exchange can be hidden, and times say so."""
    controller = Watching(period=2, what=(READY,))
    compression = Compression("topk", scope="layer", clip_norm=1.0, controller=controller)
    job = Job(SilentCollectives(Alone), compression, costs=Figures())

    @tf.function(autograph=False)
    def step(values):
        a, b, c = values
        return job.reduce([delayed(a, c), b, c], INFOS, 0)

    values = [tf.constant(gradient(0, 0, info)) for info in INFOS]
    for _ in range(2):
        step(values)
    (ready,) = controller.seen
    # Well after the step has begun, however busy the machine is.
    assert (ready >= 0.05).all()


def test_steps_that_run_eagerly_are_not_measured(caplog):
    controller = Watching(period=2, what=(READY,))
    compression = Compression("topk", scope="layer", controller=controller)
    job = Job(SilentCollectives(Alone), compression, costs=Figures())
    text = warnings_of(caplog, lambda: job.step(0))
    assert "runs eagerly times are not measured" in text
    assert "Watching goes on as it begins" in text
    assert warnings_of(caplog, lambda: job.steps(1, 2, 3)) == text
    assert controller.seen == []


class FixedClock:
    """Steps that take equally long, and gradients that are there at the same times of each."""

    def __init__(self, ready, step=1.0):
        self.ready, self.step, self._now = ready, step, 1e9

    def start(self):
        pass

    def note(self, position, gradient):
        pass

    def read(self):
        self._now += self.step
        return tf.constant([self._now, *self.ready], tf.float64)


def set_clock(job, clock):
    """Gives a clock to a job, that has gone one exchange of its period."""
    steering = steering_of(job)
    steering._clock = clock
    steering._times.scatter_nd_update([[0]], [clock.read()])


def test_the_slowest_worker_s_times_count_and_times_of_a_part_do_not():
    def work(collectives):
        worker = collectives.worker_index
        controller = Watching(seed=8, period=2, what=(READY, STEP))
        compression = Compression("topk", scope="layer", controller=controller)
        job = Job(collectives, compression, costs=Figures())
        job.step(0)
        ready = [[0.1, 0.2, 0.4], [0.3, 0.1, 0.5]][worker]
        set_clock(job, FixedClock(ready, step=[2.0, 1.0][worker]))
        job.steps(1, 2, 3, 4)
        assert len(controller.seen) == 2
        if worker == 1:  # as after a stop: it has no times from before
            steering_of(job)._forget_times()
        job.step(5)
        assert len(controller.seen) == 2
        assert [job.densities()[name] for name in "cba"] == steered.rows(8, 2, 2, 3)[0].tolist()
        job.steps(6, 7)
        assert len(controller.seen) == 3
        return controller.seen[1:]

    for first, second in loopback.run_workers(2, work):
        for ready, step in (first, second):
            np.testing.assert_array_equal(ready, [[0.3, 0.2, 0.5]] * 2)
            np.testing.assert_array_equal(step, [2.0])


def steering_of(job):
    (entry,) = job.reducer._entries.values()
    (steering,) = entry.steerings
    return steering


def lags_job(collectives, spec, step=1.0, ready=(0.001, 0.004, 0.006)):
    """Returns a job after its first exchange, and its clock."""
    job = Job(collectives, f"topk:density=0.02,{spec}", costs=Figures(bandwidth=3e5))
    job.step(0)
    clock = FixedClock(ready, step)
    set_clock(job, clock)
    return job, clock


def test_lags_decides_by_times_and_a_profile_merges_by_them(tmp_path):
    own, path = 0.02, tmp_path / "profile"

    def measure(collectives):
        job, clock = lags_job(collectives, "scope=layer,controller=lags(period=5)")
        assert set(job.densities().values()) == {own}
        assert job.reducer.profile() == ""
        job.steps(1, 2, 3, 4)
        decided = job.densities()
        setting = steering_of(job)._setting
        expected = lags.hidden_densities(
            [0.003, 0.002, 0.0],
            setting.bucket_sizes(),
            setting.work_seconds,
            setting.message_seconds,
            1000.0,
        )
        assert [decided[name] for name in "cba"] == expected.tolist()
        assert len(set(expected)) == 3
        clock.ready = [1.0, 2.0, 3.0]
        # Checked in turns with the codec's own density, and then kept.
        others = dict.fromkeys("abc", own)
        checked = [decided, others, others, decided, decided]
        for step, densities in enumerate([*checked, *[decided] * 6], 5):
            assert job.densities() == densities
            job.step(step)
        text = job.reducer.profile()
        job.reducer.measure_again()
        assert job.reducer._costs.num_again == 1
        assert set(job.densities().values()) == {own}
        assert job.reducer.profile() == ""
        job.steps(*range(16, 21))
        assert set(job.densities().values()) != {own}
        return text, decided

    (text, decided), other = loopback.run_workers(2, measure)
    assert (text, decided) == other
    path.write_text(text)

    def go_on(collectives):
        spec = f"topk:density={own},scope=layer,controller=lags(period=5,profile={path})"
        fast = Job(collectives, spec, costs=Figures(bandwidth=3e5))
        slow = Job(collectives, spec, costs=Figures(latency=1.0))
        for job in (fast, slow):
            job.step(0)
            assert set(job.densities().values()) == {own}
        return [len(job.reducer.plans[0].buckets) for job in (fast, slow)]

    # One bucket saves latencies.
    assert loopback.run_workers(2, go_on) == [[3, 1]] * 2


def test_lags_gives_up_what_slows_steps_down_and_then_nothing_more_is_decided(monkeypatch):
    reports = []
    monkeypatch.setattr(lags.Lags, "report", lambda *_: reports.append(1) or "")

    def work(collectives):
        job, clock = lags_job(collectives, "scope=layer,controller=lags(period=5)")
        job.steps(1, 2, 3, 4)
        own, history = dict.fromkeys("abc", 0.02), []
        for step in range(5, 25):
            history.append(job.densities())
            job.step(step)
            clock.step = 1.0 if history[-1] == own else 1.1
        assert len({tuple(densities.values()) for densities in history}) == 5
        before = collectives.words_sent
        job.step(25)
        in_between = collectives.words_sent - before
        job.steps(26, 27, 28)
        before = collectives.words_sent
        job.step(29)  # the last of a period
        assert collectives.words_sent - before == in_between
        # As after a stop.
        other = Job(collectives, "topk:density=0.02,scope=layer,controller=lags(period=5)")
        other.reducer.restore([as_saved(job)])
        other.step(30)
        assert float(steering_of(other)._final) == 1.0
        return job.densities()

    assert loopback.run_workers(2, work) == [dict.fromkeys("abc", 0.02)] * 2
    assert 0 < len(reports) <= 10


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2)])
def test_lags_begins_anew_with_another_number_of_workers(old, new, caplog):
    spec = "scope=layer,transport=all_gather,controller=lags(period=5)"

    def save(collectives):
        job, _ = lags_job(collectives, spec)
        job.steps(*range(1, 10))
        assert steering_of(job)._final.numpy() == 1
        return as_saved(job)

    saved = loopback.run_workers(old, save)

    def work(collectives):
        job = Job(collectives, f"topk:density=0.02,{spec}", costs=Figures(bandwidth=3e5))
        own = saved[collectives.worker_index :: new]
        job.reducer.restore(own or [exchange_state.in_common(saved[0])])
        job.step(5)
        steering = steering_of(job)
        return job.densities(), float(steering._final), job.reducer.profile()

    found = []
    text = warnings_of(caplog, lambda: found.extend(loopback.run_workers(new, work)))
    assert found == [(dict.fromkeys("abc", 0.02), 0.0, "")] * new
    assert f"measured with {old} workers, and begins anew with {new}" in text


def test_profiles_of_several_compressions_are_one():
    def work(collectives):
        rules = [
            (name, Compression.from_spec(f"topk:density={density},scope=layer,controller=lags"))
            for name, density in (("a", 0.02), ("[bc]", 0.05))
        ]
        job = Job(collectives, "topk")
        job.reducer.policy = Policy("none", tuple(rules))
        job.step(0)
        (entry,) = job.reducer._entries.values()
        assert len(entry.steerings) == 2
        for number, steering in enumerate(entry.steerings):
            setting, controller = steering._setting, lags.Lags()
            ready = number + np.arange(len(setting.variables), dtype=np.float64)
            times = {READY: ready[np.newaxis], STEP: np.ones(1)}
            decision = controller.decide(setting, steering._state.numpy(), times)
            steering._state.assign(decision.state)
        return job.reducer.profile()

    (text, *_) = loopback.run_workers(2, work)
    assert set(json.loads(text)["ready_seconds"]) == set("abc")


def test_a_controller_starts_once():
    starts = []

    @dataclasses.dataclass(frozen=True)
    class Counted(Scripted):
        def start(self, setting):
            starts.append(1)
            return super().start(setting)

    job = Job(SilentCollectives(Alone), Compression("topk", scope="layer", controller=Counted()))
    job.steps(0, 1, 2, 3)
    assert len(starts) == 1
    steering_of(job).begin(4)
    assert len(starts) == 2


@pytest.mark.parametrize("transport", ["all_gather", "scatter_reduce", "integer", "block_sparse"])
def test_estimates_are_of_what_is_sent(transport):
    """As it is beyond the density where exchanges are, and by the codec elsewhere."""
    info = VariableInfo("v", (12, 25), "float32")
    spec = f"topk:density=0.01,transport={transport},scope=layer,controller=lags"
    (bucket,) = make_plan([info], Policy(rules=(("*", spec),)), 3).buckets
    limit = dense_beyond([info], bucket, 3)
    for count in range(1, 301):
        messages = messages_at([info], bucket, count / 300, 3)
        is_dense = messages == [Dense.message(300, 3)]
        assert is_dense == (count / 300 > limit)


def test_lags_stays_as_it_begins_where_nothing_is_measured(caplog):
    def work(collectives):
        job = Job(collectives, "topk:density=0.02,scope=layer,controller=lags(period=5)")
        job.steps(*range(6))
        assert set(job.densities().values()) == {0.02}
        assert job.reducer.profile() == ""

    text = warnings_of(caplog, lambda: loopback.run_workers(2, work))
    assert "times are not measured" in text
    assert "Lags goes on as it begins" in text


def test_measuring_again_leaves_schedules_and_windows_where_they_are():
    def schedule(step):
        return (1 + step) / 1500

    def work(collectives):
        job = Job(collectives, Compression("topk", (("density", schedule),)))
        window = Job(collectives, RESUMED["window"])
        for one in (job, window):
            one.steps(0, 1, 2, 3)
        before = [one.reducer.decisions() for one in (job, window)]
        states = [as_saved(one) for one in (job, window)]
        for one in (job, window):
            one.reducer.measure_again()
        assert [one.reducer.decisions() for one in (job, window)] == before
        for one, state in zip((job, window), states, strict=True):
            np.testing.assert_equal(as_saved(one), state)
        return job.densities()["c"]

    assert loopback.run_workers(2, work) == [pytest.approx(5 / 1500)] * 2


def test_what_is_decided_by_times_begins_with_a_whole_period_and_goes_on_after_a_stop():
    def work(collectives):
        controller = Watching(seed=8, period=3, what=(READY,))
        compression = Compression("topk", scope="layer", controller=controller)
        job = Job(collectives, compression, costs=Figures())
        job.steps(0, 1)
        steering_of(job)._clock = FixedClock([0.1, 0.2, 0.3])
        job.reducer.measure_again()
        decided = [job.densities()]
        job.step(2)
        other = Job(collectives, compression, costs=Figures())
        other.reducer.restore([as_saved(job)])
        other.step(3)  # of which it has no times: it goes on with the same rows
        assert other.densities() == dict(zip("cba", steered.rows(8, 0, 3, 3)[2], strict=True))
        for step in (2, 3, 4, 5):
            job.step(step)
            decided.append(job.densities())
        assert len(controller.seen) == 1
        return [[d[name] for name in "cba"] for d in decided]

    rows = np.concatenate([steered.rows(8, number, 3, 3) for number in range(2)])
    expected = rows[[0, 2, 3, 4, 5]].tolist()
    assert loopback.run_workers(2, work) == [expected] * 2


def test_an_exchange_of_which_others_decide_must_be_told():
    plan = make_plan(INFOS, Policy("none", (("*", RESUMED["window"]),)), 2)
    exchange = make_exchange(plan, 0, SilentCollectives(Alone))
    with pytest.raises(AssertionError, match="exchange by identity.* must be told"):
        exchange([tf.zeros(INFOS[2].shape)], Draw(0, 0, tf.constant(1)))


@pytest.mark.parametrize(
    ("base", "densities"),
    [
        (Scripted, np.zeros((3, 2))),
        (Scripted, np.zeros((2, 3))),
        (Scripted, np.full((3, 3), 1.01)),
        (Scripted, np.full((3, 3), -0.01)),
        (Scripted, np.full((3, 3), np.nan)),
        (Sending, np.zeros((3, 3))),
        (Withholding, np.full((3, 3), 0.5)),
    ],
)
@pytest.mark.parametrize("when", ["start", "decide"])
def test_a_decision_that_is_none_is_an_error(base, densities, when):
    @dataclasses.dataclass(frozen=True)
    class Wrong(base):
        def _decision(self, setting, state):
            if (when == "start") == (state[0] == 0):
                return Decision(state, densities)
            return super()._decision(setting, state)

    job = Job(SilentCollectives(Alone), Compression("topk", scope="layer", controller=Wrong()))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="Wrong must decide on"):
        job.steps(0, 1, 2)
