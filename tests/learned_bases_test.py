# SPDX-License-Identifier: Apache-2.0
"""Bases follow the sums that all workers have, all alike, and nothing is lost on the way."""

import loopback
import numpy as np
import pytest
import steered
import tensorflow as tf

from tf_gradcomp import exchange_state
from tf_gradcomp.codecs import learned_basis
from tf_gradcomp.exchanges import learned_bases
from tf_gradcomp.policy import VariableInfo

known_by_name = steered.known_by_name
EPS = float(np.finfo(np.float32).eps)
RIGHT = VariableInfo("right", (40, 24), "float32")
LEFT = VariableInfo("left", (24, 40), "float32")
VECTOR = VariableInfo("vector", (50,), "float32")
KERNEL = VariableInfo("kernel", (3, 2, 5, 40), "float32")  # its side is the left one
HIDDEN = VariableInfo("hidden", (36, 20), "float32", hidden=(3, 4, 3))
MIXED = [RIGHT, VECTOR, KERNEL, HIDDEN]


def gradient(worker, step, info, noise=0.1):
    """Most of it is in few directions of either side, which are the same in every step."""
    rng = np.random.default_rng([worker, step, info.num_elements])
    side = learned_basis.side_of(info.shape)
    if side is None:
        return rng.standard_t(3, size=info.shape).astype(np.float32)
    fixed = np.random.default_rng(info.num_elements)
    few = min(4, side.length)
    rows, columns = fixed.normal(size=(side.rows, few)), fixed.normal(size=(few, side.columns))
    if side.is_left:
        columns = rng.normal(size=columns.shape)
    else:
        rows = rng.normal(size=rows.shape)
    value = rows * 0.8 ** np.arange(few) @ columns + noise * rng.normal(size=side[:2])
    return value.reshape(info.shape).astype(np.float32)


class Job(steered.Job):
    """One worker's training with these gradients."""

    def __init__(self, collectives, spec, infos=MIXED, gradients=gradient):
        super().__init__(collectives, spec, infos)
        self._gradients = gradients

    def step(self, step, bad=None, infos=None, rate=None):
        """Returns the sums, by variable.

        Args:
          step: decides on the gradients, and unless there is a `rate`, on that.
          bad: what takes the place of one element of the first variable.
          infos: which variables to train.
          rate: the learning rate.
        """
        infos = self.infos if infos is None else infos
        values = [self._gradients(self.collectives.worker_index, step, info) for info in infos]
        if bad is not None:
            values[0].flat[7] = bad
        owners = {info.name: steered.weakref.ref(self.weights[info.name]) for info in infos}
        sums = self.reducer.reduce(
            list(map(tf.constant, values)),
            infos,
            owners,
            learning_rate=tf.constant(steered.rate(step) if rate is None else rate),
        )
        return {info.name: total.numpy() for info, total in zip(infos, sums, strict=True)}

    def bases(self, exchange=0):
        """Returns the blocks' bases of one exchange, as dense matrices."""
        memory = self.exchanges[exchange].memory
        number = sum(name.startswith("basis_left") for name in memory)
        lefts = [memory[f"basis_left_{i}"].numpy().astype(np.float64) for i in range(number)]
        rights = [memory[f"basis_right_{i}"].numpy() for i in range(number)]
        return [np.eye(len(left)) - left @ right for left, right in zip(lefts, rights, strict=True)]


@pytest.fixture
def short_period(monkeypatch):
    """Makes a new basis due at every third exchange."""
    monkeypatch.setattr(learned_bases, "PERIOD", 3)


@pytest.fixture
def small_blocks(monkeypatch):
    """Cuts the longer ones of the sides above, the shorter ones of matrices, into blocks."""
    monkeypatch.setattr(learned_basis, "MAX_BLOCK", 21)


# --- What is computed ----------------------------------------------------------------------------


class Oracle:
    """Top-k in learned bases, on several workers, of one matrix; all that is kept is gradients."""

    def __init__(self, shape, is_left, rank, num_workers, has_error_feedback):
        self._is_left, self._rank = is_left, rank
        self._has_error_feedback = has_error_feedback
        self._across, self._length = shape[::-1] if is_left else shape
        self._num_workers = num_workers
        self.basis = np.eye(self._length)
        self.gram = np.zeros((self._length, self._length))
        self.residuals = np.zeros((num_workers, *shape))
        self.momenta = np.zeros((num_workers, *shape))
        self.last_sum = np.zeros(shape)

    def turned(self, matrix):
        return self.basis.T @ matrix if self._is_left else matrix @ self.basis

    def back(self, matrix):
        return self.basis @ matrix if self._is_left else matrix @ self.basis.T

    def step(self, number, gradients, count, momentum=0.0, global_momentum=0.0):
        """Returns the sum of the exchange of this number, from 1."""
        total = 0.0
        for worker, own in enumerate(gradients):
            meant = self.momenta[worker] = momentum * self.momenta[worker] + own
            meant = meant + global_momentum / self._num_workers * self.last_sum
            coefficients = self.turned(meant + self.residuals[worker])
            least = np.sort(np.abs(coefficients), axis=None)[-count]
            is_sent = np.abs(coefficients) >= least
            assert np.count_nonzero(is_sent) == count
            total = total + np.where(is_sent, coefficients, 0.0)
            if self._has_error_feedback:
                self.residuals[worker] = self.back(np.where(is_sent, 0.0, coefficients))
            self.momenta[worker] = self.back(np.where(is_sent, 0.0, self.turned(meant)))
        self.last_sum = total = self.back(total)
        stride = max(1, self._length // 32 if self._rank == 32 else self._length // self._rank)
        places = np.arange(number % stride, self._across, stride)
        sample = total[:, places] if self._is_left else total[places].T
        self.gram = 0.95 * self.gram + sample @ sample.T
        if number % 8 == 0:
            values, vectors = np.linalg.eigh(self.gram)
            order = np.argsort(-values)[: self._rank]
            assert values[order[-1]] > 1e-5 * values.max()
            self.basis = np.linalg.qr(vectors[:, order], mode="complete")[0]
        return total


def separated(worker, step, info):
    """Gradients of which eigenvalues are far apart, so that rounding turns eigenvectors little."""
    rng = np.random.default_rng([worker, step])
    length, across = min(info.shape), max(info.shape)
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(length, length)))[0]
    value = rng.normal(size=(across, length)) * 0.6 ** np.arange(length) @ turn
    return (value if info.shape[0] > info.shape[1] else value.T).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "rank", "count", "feedback"),
    [
        ((12, 8), 32, 10, ""),
        ((8, 12), 4, 10, ""),
        ((12, 8), 4, 10, "momentum=0.75"),
        ((8, 12), 32, 10, "global_momentum=0.75"),
        # Of few items the same directions would be missing in all steps.
        ((12, 8), 4, 48, "error_feedback=false"),
    ],
)
def test_a_trajectory_is_that_of_numpy(monkeypatch, shape, rank, count, feedback):
    """A rank of 4 leaves half of the directions near to the axes, and samples every other row."""
    monkeypatch.setattr(learned_basis, "RANK", rank)
    monkeypatch.setattr(learned_bases, "PERIOD", 8)
    info = VariableInfo("matrix", shape, "float32")
    spec = f"topk:density={count / 96},view=learned,transport=all_gather"
    spec += feedback and f",{feedback}"
    num_steps = 20  # two bases, each of which is in use for some time

    def work(collectives):
        job, history = Job(collectives, spec, [info], separated), []
        for step in range(1, num_steps + 1):
            total = job.step(step)["matrix"]
            left = job.left() or {"matrix": np.zeros(shape)}
            history.append((total, left["matrix"].reshape(shape)))
        return history, job.bases()[0]

    outcomes = loopback.run_workers(2, work)
    oracle = Oracle(shape, shape[0] < shape[1], rank, 2, feedback != "error_feedback=false")
    factors = {feedback.split("=")[0]: 0.75} if "momentum" in feedback else {}
    for step in range(1, num_steps + 1):
        gradients = [separated(worker, step, info) for worker in range(2)]
        expected = oracle.step(step, gradients, count, **factors)
        # Bases differ by the roundings of a Gram matrix, over the distances of its eigenvalues:
        # at least 0.6 of the larger one. Whatever is chosen otherwise differs by far more.
        atol = 1e-3 * np.abs(expected).max()
        for worker, (history, _) in enumerate(outcomes):
            total, left = history[step - 1]
            np.testing.assert_allclose(total, expected, rtol=0, atol=atol, err_msg=f"step {step}")
            np.testing.assert_allclose(left, oracle.residuals[worker], rtol=0, atol=10 * atol)
    learned = min(rank, min(shape))
    for _, basis in outcomes:
        overlap = np.abs(oracle.basis[:, :learned].T @ basis[:, :learned])
        np.testing.assert_allclose(overlap, np.eye(learned), rtol=0, atol=5e-3)


def test_gradients_of_few_directions_leave_little_over(short_period):
    info = VariableInfo("matrix", (64, 96), "float32")

    def work(collectives, spec):
        job = Job(collectives, spec, [info], lambda *args: gradient(*args, noise=0.02))
        for step in range(1, 29):
            job.step(step)
        return job.left()["matrix"], job.bases()

    learned, plain = (
        loopback.run_workers(2, lambda c, view=view: work(c, f"topk:density=0.15{view}"))
        for view in (",view=learned", "")
    )
    for (left, (basis,)), (other, _) in zip(learned, plain, strict=True):
        assert 5 * np.sum(left**2) < np.sum(other**2)
        rows = np.random.default_rng(info.num_elements).normal(size=(64, 4))
        span = np.linalg.qr(rows)[0]
        # Cosines of the angles between the two spaces; those of chance are below a half.
        assert np.linalg.svd(span.T @ basis[:, :4], compute_uv=False).min() > 0.99


# --- Nothing is lost -----------------------------------------------------------------------------

CONSERVING = [
    "topk:density=0.05,view=learned,warmup=5",
    "topk:density=0.05,view=hidden+learned,transport=scatter_reduce",
    "topk:density=0.05,view=auto+learned,transport=scatter_reduce,values=natural",
    "dct:density=0.05,view=output+input+learned,basis=fft,scope=layer",
    "topk:density=0.05,view=learned,lr_correction=true,start_after=2",
    "topk:density=0.05,view=auto+learned,lr_correction=true",
    "topk:density=0.05,view=learned,scope=layer,controller=scripted(seed=1)",
    "topk:density=0.05,view=learned,scope=layer,controller=layer_window(budget=0.5,period=2)",
]
# A change of the basis is two turns.
TURNS = 2
RATES = [0.5, 0.25, 0.0, 0.5, 1.0, 0.0, 0.25]  # without updates where bases change


@pytest.mark.parametrize("spec", CONSERVING)
def test_nothing_is_lost_when_bases_change(short_period, small_blocks, spec):
    """Also: sums and bases have the same bits on all workers, and bytes are counted."""
    num_workers = 3 if "scatter_reduce" in spec else 2
    corrects = "lr_correction" in spec
    weights = RATES if corrects else [1.0] * len(RATES)

    def work(collectives):
        job = Job(collectives, spec)
        sent = {info.name: 0.0 for info in MIXED}
        seen, sums_of_steps = set(), []
        for step, (rate, weight) in enumerate(zip(RATES, weights, strict=True), 1):
            sums_of_steps.append(job.step(step, rate=rate))
            for name, total in sums_of_steps[-1].items():
                sent[name] = sent[name] + weight * total.astype(np.float64)
            numbers = range(len(job.exchanges))
            seen.add(b"".join(basis.tobytes() for i in numbers for basis in job.bases(i)))
        if "auto" in spec:
            assert any(view.endswith("learned") for view in job.reducer.views().values())
        num_bytes = sum(int(exchange.sent) for exchange in job.exchanges)
        handed_over = 4 * (collectives.words_sent + collectives.words_reduced)
        return sums_of_steps, sent, job.left(), job.memory(), len(seen), num_bytes - handed_over

    outcomes = loopback.run_workers(num_workers, work)
    for info in MIXED:
        meant = sum(
            weight * gradient(worker, step, info).astype(np.float64)
            for worker in range(num_workers)
            for step, weight in enumerate(weights, 1)
        )
        left = sum(left[info.name] for _, _, left, *_ in outcomes).reshape(info.shape)
        bound = 64 * len(RATES) * TURNS * EPS * np.abs(meant).max()
        np.testing.assert_allclose(outcomes[0][1][info.name] + left, meant, rtol=0, atol=bound)
        assert np.abs(left).max() > 10 * bound or "controller" in spec
    for sums, _, _, memory, num_bases, miscounted in outcomes:
        np.testing.assert_equal(sums, outcomes[0][0])
        for name, value in memory.items():
            if "/residual" not in name:
                np.testing.assert_equal(value, outcomes[0][3][name], err_msg=name)
        # Of the first exchanges, after the third, and after the sixth.
        assert num_bases == 3
        # Not those of views and controllers to decide, nor those of the sums of shards.
        if not any(name in spec for name in ("auto", "controller", "scatter_reduce")):
            assert miscounted == 0


def test_a_side_of_more_than_512_has_blocks_of_their_own(short_period):
    infos = [VariableInfo("wide", (513, 520), "float32")]

    def work(collectives):
        job = Job(collectives, "topk:density=0.01,view=learned", infos)
        sums = [job.step(step) for step in range(1, 5)]
        assert [len(basis) for basis in job.bases()] == [257, 256]
        return sums, job.left(), job.bases()

    outcomes = loopback.run_workers(2, work)
    for info in infos:
        meant = sum(
            gradient(worker, step, info).astype(np.float64)
            for worker in range(2)
            for step in range(1, 5)
        )
        sent = sum(sums[info.name].astype(np.float64) for sums in outcomes[0][0])
        left = sum(left[info.name] for _, left, _ in outcomes).reshape(info.shape)
        bound = 64 * 4 * TURNS * EPS * np.abs(meant).max()
        np.testing.assert_allclose(sent + left, meant, rtol=0, atol=bound)
    for one, other in zip(outcomes[0][2], outcomes[1][2], strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.abs(one - np.eye(len(one))).max() > 0.1


def test_what_is_left_over_goes_with_variables_to_other_plans(short_period):
    """As when layers are frozen: the other plan begins with another basis."""

    def work(collectives):
        job, sent = Job(collectives, "topk:density=0.05,view=learned", [RIGHT, LEFT]), 0.0
        for step in range(1, 14):
            infos = [RIGHT] if 5 <= step < 9 else [RIGHT, LEFT]
            sent = sent + job.step(step, infos=infos)["right"].astype(np.float64)
        left = 0.0
        for exchange in job.exchanges:
            places = [i.name for i in exchange._variables]
            left = left + exchange.left_over()[places.index("right")].numpy()
        return sent, left

    outcomes = loopback.run_workers(2, work)
    meant = sum(
        gradient(worker, step, RIGHT).astype(np.float64)
        for worker in range(2)
        for step in range(1, 14)
    )
    left = sum(left for _, left in outcomes).reshape(RIGHT.shape)
    bound = 64 * 13 * TURNS * EPS * np.abs(meant).max()
    np.testing.assert_allclose(outcomes[0][0] + left, meant, rtol=0, atol=bound)


# --- What is not learned -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        "topk:density=0.05,view=learned,momentum=0.9",
        "dct:density=0.05,view=auto+learned,transport=scatter_reduce",
    ],
)
def test_a_nan_on_one_worker_leaves_all_as_it_is(short_period, spec):
    """Also where a new basis is due, at every third exchange; later ones go on."""
    spoilt = {2: np.nan, 3: np.inf, 7: -np.inf, 9: np.nan}

    def work(collectives):
        job, bases = Job(collectives, spec, [RIGHT, VECTOR, LEFT]), []
        for step in range(1, 13):
            before = job.memory() if job.exchanges else {}
            job.step(step, spoilt.get(step) if collectives.worker_index == 1 else None)
            if step in spoilt:
                np.testing.assert_equal(job.memory(), before)
            bases.append(job.bases()[0])
        return bases

    for bases in loopback.run_workers(2, work):
        changed = [i for i in range(2, 13) if (bases[i - 1] != bases[i - 2]).any()]
        assert changed == [6, 12]


def test_steps_that_are_withheld_teach_nothing(short_period):
    spec = "topk:density=0.05,view=learned,scope=layer,controller=scripted(seed=1)"

    def work(collectives):
        job, withheld = Job(collectives, spec, [RIGHT, LEFT]), 0
        job.step(1)
        for step in range(2, 14):
            decided, before = job.densities(), job.memory()
            sums, after = job.step(step), job.memory()
            for number, exchange in enumerate(job.exchanges):
                name = exchange._variables[0].name
                gram = f"{number}/gram_0"
                assert (decided[name] == 0) == (not sums[name].any())
                if decided[name] == 0:
                    withheld += 1
                    expected = np.float32(learned_bases.DECAY) * before[gram]
                    np.testing.assert_array_equal(after[gram], expected)
        return withheld

    for withheld in loopback.run_workers(2, work):
        assert withheld > 3


def test_gradients_too_large_for_a_gram_matrix_are_soon_forgotten(short_period):
    """Their squares are not finite in float32, but they are."""

    def work(collectives):
        job = Job(collectives, "topk:density=0.05,view=learned", [RIGHT])
        for step in range(1, 5):
            job.step(step, 1e25 if step == 2 else None)
        large = job.memory()
        # At the second of two exchanges, what the first one lacked is sent: none of it is left.
        for step in range(5, 8):
            job.step(step)
        return large, job.memory()

    for large, later in loopback.run_workers(2, work):
        assert np.isfinite(large["0/gram_0"]).all()
        assert later["0/basis_left_0"].any()


# --- Agreement -----------------------------------------------------------------------------------


def test_where_workers_find_other_bases_all_take_the_first_one_s(short_period):
    num_workers = 3
    spec = "topk:density=0.05,view=learned,transport=all_gather"
    infos = [RIGHT, VECTOR, LEFT]
    num_words = 2 * (24 * 24 + 24 * 24)  # `left` and `right` of two sides

    def work(collectives, differs):
        job, history = Job(collectives, spec, infos), []

        def figures():
            counted = sum(int(exchange.sent) for exchange in job.exchanges)
            return np.array([collectives.words_sent, collectives.words_reduced, counted])

        for step in range(1, 8):
            if step == 3 and differs and collectives.worker_index == num_workers - 1:
                for name, variable in job.exchanges[0].memory.items():
                    if name.startswith("gram"):
                        noise = np.random.default_rng(0).normal(size=variable.shape)
                        variable.assign_add(1e-3 * (noise + noise.T) * variable)
            before = figures()
            sums = job.step(step)
            history.append((sums, job.bases(), figures() - before))
        return history, job.memory()

    agreeing, differing = (
        loopback.run_workers(num_workers, lambda c, differs=differs: work(c, differs))
        for differs in (False, True)
    )
    assert (differing[0][1]["0/gram_0"] != differing[-1][1]["0/gram_0"]).any()
    first = agreeing[0][0]
    payload = first[0][2][0]
    for outcomes in (agreeing, differing):
        for history, _ in outcomes:
            for step, (sums, bases, (gathered, reduced, counted)) in enumerate(history, 1):
                # As where nobody differs: the first worker does not.
                np.testing.assert_equal(sums, first[step - 1][0])
                np.testing.assert_equal(bases, first[step - 1][1])
                is_due = step % 3 == 0
                assert gathered == payload + (4 if is_due else 0)
                is_sent = outcomes is differing and step >= 3
                assert reduced == (num_words if is_due and is_sent else 0)
                assert counted == 4 * (gathered + reduced)


# --- What is saved -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "before"),
    [
        ("topk:density=0.05,view=learned,momentum=0.9", True),
        ("topk:density=0.05,view=auto+learned,transport=scatter_reduce", False),
        ("dct:density=0.1,view=hidden+learned,lr_correction=true", False),
    ],
)
def test_a_restored_job_goes_on_bit_for_bit(short_period, small_blocks, spec, before):
    """In the middle of a period, before the first exchange or after others."""

    def work(collectives):
        job = Job(collectives, spec, [HIDDEN, VECTOR, LEFT])
        for step in range(1, 6):
            job.step(step)
        saved = exchange_state.to_bytes(job.reducer.state())
        other = Job(collectives, spec, [HIDDEN, VECTOR, LEFT])
        for step in range(11, 11 if before else 14):
            other.step(step)
        other.reducer.restore([exchange_state.from_bytes(saved)])
        expected = [job.step(step) for step in range(6, 10)], job.memory()
        actual = [other.step(step) for step in range(6, 10)], other.memory()
        return expected, actual

    for expected, actual in loopback.run_workers(2, work):
        np.testing.assert_equal(actual, expected)


@pytest.mark.parametrize(
    ("transport", "old", "new"), [("all_gather", 2, 3), ("scatter_reduce", 3, 2)]
)
def test_another_number_of_workers_keeps_bases_and_the_sum_of_residuals(
    short_period, transport, old, new
):
    """Though Gram matrices differ by what machines round otherwise."""
    spec = f"topk:density=0.05,view=learned,transport={transport}"

    def save(collectives):
        job = Job(collectives, spec)
        for step in range(1, 6):
            job.step(step)
        gram = job.exchanges[0].memory["gram_0"]
        gram.assign(gram * (1 + collectives.worker_index * EPS))
        return job.reducer.state(), job.left(), job.memory()

    saved = loopback.run_workers(old, save)

    def work(collectives):
        job = Job(collectives, spec)
        states = [state for state, _, _ in saved]
        mine = states[collectives.worker_index :: new]
        job.reducer.restore(mine or [exchange_state.in_common(states[0])])
        owners = {n: steered.weakref.ref(weight) for n, weight in job.weights.items()}
        job.reducer._entry_for(MIXED, owners)  # makes the plan, and exchanges nothing
        return job.left(), job.memory(), [job.step(step) for step in (6, 7)]

    outcomes = loopback.run_workers(new, work)
    for info in MIXED:
        meant = sum(left[info.name] for _, left, _ in saved)
        found = sum(left[info.name] for left, _, _ in outcomes)
        np.testing.assert_allclose(found, meant, rtol=0, atol=64 * EPS * np.abs(meant).max())
    for _, memory, sums in outcomes:
        for name, value in memory.items():
            if "basis" in name:
                assert value.any()
                np.testing.assert_array_equal(value, saved[0][2][name])
        np.testing.assert_equal(sums, outcomes[0][2])


# --- Graphs --------------------------------------------------------------------------------------


class GraphCollectives:
    """The same collectives in a graph; messages in the order in which they are traced."""

    def __init__(self, inner):
        self._inner = inner
        self.num_workers, self.worker_index = inner.num_workers, inner.worker_index
        self.device = inner.device

    def all_gather(self, words):
        return self._call(self._inner.all_gather, words, (self.num_workers, *words.shape))

    def all_reduce(self, tensor):
        return self._call(self._inner.all_reduce, tensor, tensor.shape)

    def gather_text(self, text):
        return self._inner.gather_text(text)

    def _call(self, collective, tensor, shape):
        found = tf.numpy_function(
            lambda array: collective(tf.constant(array)).numpy(), [tensor], tensor.dtype
        )
        return tf.ensure_shape(found, shape)


@pytest.mark.parametrize(("view", "differs"), [("learned", True), ("auto+learned", False)])
def test_in_a_graph_it_is_the_same(short_period, small_blocks, view, differs):
    spec = f"topk:density=0.05,view={view},transport=all_gather,momentum=0.5"
    infos = [RIGHT, VECTOR]

    def work(collectives, in_graph):
        job = Job(GraphCollectives(collectives), spec, infos)
        traced, history = [], []

        def reduce(*values):
            traced.append(1)
            owners = {n: steered.weakref.ref(weight) for n, weight in job.weights.items()}
            return job.reducer.reduce(list(values), infos, owners)

        call = tf.function(reduce, autograph=False) if in_graph else reduce
        for step in range(1, 6):
            if step == 3 and differs and collectives.worker_index == 1:
                gram = job.exchanges[0].memory["gram_0"]
                gram.assign(gram * (1 + 1e-3 * np.cos(np.arange(gram.shape[0]))))
            values = [gradient(collectives.worker_index, step, info) for info in infos]
            history.append([total.numpy() for total in call(*map(tf.constant, values))])
        # Keras and TensorFlow may trace a function twice before it first runs.
        assert not in_graph or len(traced) <= 2
        counted = int(job.exchanges[0].sent)
        handed_over = 4 * (collectives.words_sent + collectives.words_reduced)
        return history, job.memory(), counted, handed_over

    eager, graph = (
        loopback.run_workers(2, lambda c, in_graph=in_graph: work(c, in_graph))
        for in_graph in (False, True)
    )
    for one, other in zip(eager, graph, strict=True):
        for expected, actual in zip(one[0], other[0], strict=True):
            for total, another in zip(expected, actual, strict=True):
                # Some operations are fused in graphs, or simplified.
                np.testing.assert_allclose(
                    another, total, rtol=0, atol=1e-4 * max(1, np.abs(total).max())
                )
        assert one[2:] == other[2:]
        assert other[1]["0/basis_left_0"].any()
    for one, other in zip(graph[0][0], graph[1][0], strict=True):
        np.testing.assert_equal(one, other)
