# SPDX-License-Identifier: Apache-2.0
"""The corridor without a network: sums, residuals, non-finite gradients, agreement."""

import gc
import weakref

import fft_reference
import loopback
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.agreement import PlanMismatchError
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer
from tf_gradcomp.transports.silent import SilentCollectives

SHAPES = [(40, 300), (300,), (7, 9, 100), ()]
INFOS = [VariableInfo(f"v{i}", shape, "float32") for i, shape in enumerate(SHAPES)]


class Owner:
    """Stands for a variable."""


OWNERS = [Owner() for _ in SHAPES]


def owned(*indices, names="abcd"):
    return {names[index]: weakref.ref(OWNERS[index]) for index in indices}


ALL = owned(0, 1, 2, 3)


def gradients(worker, step, shapes=SHAPES):
    rng = np.random.default_rng([worker, step])
    return [rng.standard_t(3, size=shape).astype(np.float32) for shape in shapes]


def reduce_steps(policies, num_steps=1, num_workers=2, spoil=None):
    """Returns, per worker, the list of sums of every step and the residuals after each."""

    def work(collectives):
        worker = collectives.worker_index
        policy = policies[worker] if isinstance(policies, list) else policies
        reducer = GradientReducer(policy, collectives)
        history = []
        for step in range(num_steps):
            values = gradients(worker, step)
            if spoil is not None:
                spoil(worker, step, values)
            sums = reducer.reduce([tf.constant(v) for v in values], INFOS, ALL)
            history.append(([s.numpy() for s in sums], residuals(reducer)))
        return history, collectives.words_sent, reducer.plans

    return loopback.run_workers(num_workers, work)


def residuals(reducer):
    exchanges = [exchange for entry in reducer._entries.values() for exchange in entry.exchanges]
    return [left.numpy() for e in exchanges for left in getattr(e, "residuals", [])]


@pytest.mark.parametrize("num_workers", [2, 3])
def test_identity_is_the_float32_sum_in_worker_order(num_workers):
    outcomes = reduce_steps(Policy("identity"), num_workers=num_workers)
    for index in range(len(SHAPES)):
        expected = gradients(0, 0)[index]
        for worker in range(1, num_workers):
            expected = expected + gradients(worker, 0)[index]
        for history, _, _ in outcomes:
            np.testing.assert_array_equal(history[0][0][index], expected, strict=True)


def test_workers_get_the_same_bits_and_send_what_the_plan_says():
    outcomes = reduce_steps(Policy("fft:density=0.1,bits=8"), num_steps=3, num_workers=3)
    for history, words_sent, plans in outcomes:
        payload = [b.payload_bytes for b in plans[0].buckets if b.compression is not None]
        assert words_sent * 4 == 3 * sum(payload)
        for (sums, _), (first_sums, _) in zip(history, outcomes[0][0], strict=True):
            for total, first in zip(sums, first_sums, strict=True):
                np.testing.assert_array_equal(total, first, strict=True)


def test_fft_sum_is_the_oracle_s():
    policy = Policy("fft:density=0.2,bits=9,chunk=64,scope=layer")
    outcomes = reduce_steps(policy)
    for index in (0, 2):
        size = int(np.prod(SHAPES[index]))
        spectra = []
        for worker in range(2):
            padded = np.zeros(-(-size // 64) * 64, np.float32)
            padded[:size] = gradients(worker, 0)[index].ravel()
            spectra.append(tf.signal.rfft(padded.reshape(-1, 64)).numpy())
        num_kept = int(np.ceil(0.2 * spectra[0].size))
        payloads = [fft_reference.encode(s, num_kept, 64, 9, 5) for s in spectra]
        total = fft_reference.decode_sum(np.stack(payloads), spectra[0].shape, num_kept, 9, 5)
        expected = tf.signal.irfft(total).numpy().ravel()[:size].reshape(SHAPES[index])
        np.testing.assert_array_equal(outcomes[0][0][0][0][index], expected)


def test_error_feedback_conserves_the_gradient():
    """What was sent in all steps plus what is left is what was meant, per worker."""
    num_steps = 6
    policy = Policy("fft:density=0.05,bits=8,scope=layer,chunk=128", min_rank=2)
    outcomes = reduce_steps(policy, num_steps)
    for index, exchange in ((0, 1), (2, 0)):  # buckets come in reverse order of variables
        sent = sum(sums[index].astype(np.float64) for sums, _ in outcomes[0][0])
        left = 0.0
        for history, _, _ in outcomes:
            residual = history[-1][1][exchange].reshape(-1, 65, 2).astype(np.float64)
            spectrum = residual[..., 0] + 1j * residual[..., 1]
            left = left + np.fft.irfft(spectrum).ravel()[: sent.size].reshape(sent.shape)
        meant = sum(
            gradients(worker, step)[index].astype(np.float64)
            for worker in range(2)
            for step in range(num_steps)
        )
        # Each step adds a few roundings of values up to the largest magnitude.
        bound = 64 * num_steps * np.finfo(np.float32).eps * np.abs(meant).max()
        np.testing.assert_allclose(sent + left, meant, rtol=0, atol=bound)
        assert np.abs(left).max() > 100 * bound


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_one_worker_s_inf_or_nan_reaches_all_and_leaves_every_residual(bad, index):
    def spoil(worker, step, values):
        if worker == 1 and step == 1:
            values[index] = np.asarray(values[index])
            values[index].reshape(-1)[-1] = bad

    outcomes = reduce_steps(Policy("fft:density=0.1,scope=layer"), 3, spoil=spoil)
    for history, _, _ in outcomes:
        # Dense gradients keep their finite elements, as in TensorFlow's own sum.
        elements = np.isfinite(history[1][0][index])
        assert not elements.any() if len(SHAPES[index]) > 1 else not elements.all()
        for other in set(range(4)) - {index}:
            assert np.isfinite(history[1][0][other]).all()
        for before, after in zip(history[0][1], history[1][1], strict=True):
            np.testing.assert_array_equal(before, after)
        for before, after in zip(history[1][1], history[2][1], strict=True):
            assert not np.array_equal(before, after)
            assert np.isfinite(after).all()


def test_all_zero_gradients_stay_zero():
    def zero(worker, step, values):
        for index, value in enumerate(values):
            values[index] = np.zeros_like(value)

    for history, _, _ in reduce_steps(Policy("fft"), 2, spoil=zero):
        for sums, left in history:
            assert all(not np.any(v) for v in [*sums, *left])


def test_half_precision_gradients_keep_their_type():
    def work(collectives):
        reducer = GradientReducer(Policy("fft:density=1.0,bits=12,mantissa_bits=8"), collectives)
        value = tf.cast(gradients(collectives.worker_index, 0)[0], tf.bfloat16)
        info = VariableInfo("v", SHAPES[0], "bfloat16")
        return value, reducer.reduce([value], [info], owned(0))[0]

    (a, total), (b, _) = loopback.run_workers(2, work)
    assert total.dtype == tf.bfloat16
    expected = tf.cast(a, tf.float32) + tf.cast(b, tf.float32)
    # Result rounded to 8 significant bits; spectrum to 9, an error that the transform spreads
    # evenly over the elements, where 8 standard deviations are never reached.
    spread = 8 * 2**-9 * np.sqrt(np.mean(expected**2))
    np.testing.assert_allclose(tf.cast(total, tf.float32), expected, rtol=2**-8, atol=spread)


def test_different_policies_are_refused_on_every_worker():
    with pytest.raises(
        PlanMismatchError, match=r"v0: 40x300 .*density=0\.1.*v0: 40x300 .*density=0\.2"
    ):
        reduce_steps([Policy("fft:density=0.1"), Policy("fft:density=0.2")])


def test_two_sets_of_variables_have_their_own_residuals():
    def work(collectives):
        reducer = GradientReducer(Policy("fft:density=0.1"), collectives)
        value = [tf.constant(gradients(collectives.worker_index, 0)[0])]
        first = reducer.reduce(value, INFOS[:1], owned(0))[0]
        second = reducer.reduce(value, INFOS[:1], owned(0, names="b"))[0]
        third = reducer.reduce(value, INFOS[:1], owned(0))[0]
        return first.numpy(), second.numpy(), third.numpy()

    first, second, third = loopback.run_workers(2, work)[0]
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, third)


def test_residuals_go_with_their_variables():
    def work(collectives):
        reducer = GradientReducer(Policy("fft:density=0.1"), collectives)
        value = [tf.constant(gradients(collectives.worker_index, 0)[0])]
        sizes = []
        for _ in range(3):
            owner = Owner()
            reducer.reduce(value, INFOS[:1], {f"v{id(owner)}": weakref.ref(owner)})
            sizes.append((len(reducer._entries), len(reducer.plans)))
            del owner
            gc.collect()
        return sizes, len(reducer.plans)

    for sizes, left in loopback.run_workers(2, work):
        assert sizes == [(1, 1)] * 3
        assert left == 0


def test_gradients_of_another_type_get_another_plan():
    """As when a function is traced again under mixed precision: nothing may be cast silently."""

    def work(collectives):
        reducer = GradientReducer(Policy("none"), collectives)
        values = [tf.constant([1.001]), tf.constant([2.0])]
        infos = [VariableInfo(name, (1,), "float32") for name in "ab"]
        first = reducer.reduce(values, infos, owned(0, 1))
        values[1] = tf.cast(values[1], tf.bfloat16)
        infos[1] = infos[1]._replace(dtype="bfloat16")
        second = reducer.reduce(values, infos, owned(0, 1))
        return first[0].numpy(), second[0].numpy(), second[1].dtype, len(reducer.plans)

    first, second, dtype, num_plans = loopback.run_workers(2, work)[0]
    np.testing.assert_array_equal(first, second)
    assert first == np.float32(1.001) * 2
    assert dtype == tf.bfloat16
    assert num_plans == 2


@pytest.mark.parametrize("where", ["cast", "elsewhere"])
def test_what_becomes_infinite_later_leaves_the_residual_too(where):
    def work(collectives):
        reducer = GradientReducer(Policy("fft:density=0.1"), collectives)
        rng = np.random.default_rng(collectives.worker_index)
        half = tf.constant(rng.normal(size=SHAPES[0]), tf.float16)
        info = INFOS[0]._replace(dtype="float16")
        reducer.reduce([half], [info], owned(0))
        before = residuals(reducer)[0]
        if where == "cast":  # each worker's gradient fits float16, their sum does not
            reducer.reduce([tf.fill(SHAPES[0], tf.constant(60000, tf.float16))], [info], owned(0))
        else:
            reducer.reduce([half], [info], owned(0), others=[tf.constant([np.nan])])
        return before, residuals(reducer)[0]

    for before, after in loopback.run_workers(2, work):
        assert np.abs(before).max() > 0
        np.testing.assert_array_equal(before, after)


def test_every_exchange_bucket_and_worker_draws_anew():
    """Equal gradients: what differs comes from the draws alone."""
    shapes = [(70, 80), (70, 80)]
    infos = [VariableInfo(f"v{i}", shape, "float32") for i, shape in enumerate(shapes)]
    ones = [tf.constant(np.full(shape, 1.3, np.float32)) for shape in shapes]

    def work(collectives):
        reducer = GradientReducer(Policy("natural:scope=layer"), collectives)
        steps = [reducer.reduce(ones, infos, owned(0, 1)) for _ in range(3)]
        return [[total.numpy() for total in sums] for sums in steps]

    first, second = loopback.run_workers(2, work)
    assert len({total.tobytes() for totals in first for total in totals}) == 6
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # 1 + 1, 1 + 2 or 2 + 2: equal draws of the two workers would leave out 3.
    assert set(np.unique(first[0][0])) == {2.0, 3.0, 4.0}


def test_a_loop_draws_as_single_calls_do_and_a_call_without_data_draws_nothing():
    class Alone:
        num_workers, worker_index, device = 2, 0, "/device:CPU:0"

    info, shape = VariableInfo("v", (70, 80), "float32"), (70, 80)
    loop = GradientReducer(Policy("natural"), SilentCollectives(Alone))
    single = GradientReducer(Policy("natural"), SilentCollectives(Alone))

    def step(reducer, value):
        with tf.control_dependencies([tf.debugging.assert_positive(value)]):
            gradient = tf.fill(shape, value)
        return reducer.reduce([gradient], [info], owned(0))[0]

    @tf.function
    def steps(values):
        sums = tf.TensorArray(tf.float32, 3, element_shape=shape)
        for index in tf.range(3):
            sums = sums.write(index, step(loop, values[index]))
        return sums.stack()

    first = steps(tf.constant([1.3, 1.3, 1.3]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        steps(tf.constant([1.3, -1.0, 1.3]))
    second = steps(tf.constant([1.3, 1.3, 1.3]))
    expected = [step(single, tf.constant(1.3)).numpy() for _ in range(7)]
    assert len({total.tobytes() for total in expected}) == 7
    np.testing.assert_array_equal(first, expected[:3])
    np.testing.assert_array_equal(second, expected[4:])


# --- Sparse gradients ------------------------------------------------------------------------

TABLE = VariableInfo("table", (80, 64), "float32", sparse=True)
KERNEL = VariableInfo("kernel", (80, 64), "float32")


def table_rows(worker, bad=None):
    """Twice row 7, and a row of the worker's own."""
    rows = np.random.default_rng(worker).normal(size=(3, 64)).astype(np.float32)
    if bad is not None:
        rows[0, 0] = bad
    return tf.IndexedSlices(tf.constant(rows), tf.constant([7, 20 + worker, 7]), None)


def dense_table(num_workers):
    return sum(
        np.float32(tf.math.unsorted_segment_sum(part.values, part.indices, 80))
        for part in map(table_rows, range(num_workers))
    )


@pytest.mark.parametrize("spec", ["fft", "none"])
def test_sparse_gradients_stay_sparse_and_are_counted(spec):
    def work(collectives):
        reducer = GradientReducer(Policy(spec), collectives)
        kernel = tf.ones((80, 64))
        for _ in range(2):
            total = reducer.reduce(
                [table_rows(collectives.worker_index), kernel], [TABLE, KERNEL], owned(0, 1)
            )[0]
        return total, reducer.row_sparse_bytes(["a", "b"]), reducer.row_sparse_bytes(["b"])

    for total, num_bytes, other_bytes in loopback.run_workers(2, work):
        assert total.indices.numpy().tolist() == [7, 20, 21]
        np.testing.assert_array_equal(total.values, dense_table(2)[[7, 20, 21]])
        # A count, two rows, their indices, and the word with which each of the latter ends.
        assert num_bytes == 2 * 4 * (1 + 2 * 64 + 1 + 2 + 1)
        assert other_bytes == 0


def test_a_rule_makes_a_sparse_gradient_dense_and_compresses_it():
    def work(collectives):
        reducer = GradientReducer(Policy("none", (("table", "identity"),)), collectives)
        total = reducer.reduce([table_rows(collectives.worker_index)], [TABLE], owned(0))[0]
        return total, collectives.words_sent

    for total, words_sent in loopback.run_workers(3, work):
        np.testing.assert_array_equal(total, dense_table(3))
        assert words_sent == 80 * 64


def test_sparse_on_one_worker_and_dense_on_another_is_refused():
    def work(collectives):
        reducer = GradientReducer(Policy("none"), collectives)
        is_sparse = collectives.worker_index == 0
        gradient = table_rows(0) if is_sparse else tf.ones((80, 64))
        reducer.reduce([gradient], [TABLE._replace(sparse=is_sparse)], owned(0))

    with pytest.raises(PlanMismatchError, match=r"table: .* row-sparse; worker 1: .* dense"):
        loopback.run_workers(2, work)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_sparse_gradient_that_is_not_finite_leaves_every_residual(bad):
    def work(collectives):
        worker = collectives.worker_index
        reducer = GradientReducer(Policy("fft:density=0.1"), collectives)
        kernel = tf.constant(gradients(worker, 0, [KERNEL.shape])[0])
        history = []
        for step in range(3):
            rows = table_rows(worker, bad if (worker, step) == (1, 1) else None)
            total = reducer.reduce([rows, kernel], [TABLE, KERNEL], owned(0, 1))[0]
            history.append((total.values.numpy(), residuals(reducer)[0]))
        return history

    for before, spoilt, after in loopback.run_workers(2, work):
        assert np.argwhere(~np.isfinite(spoilt[0])).tolist() == [[0, 0]]
        np.testing.assert_array_equal(before[1], spoilt[1])
        assert not np.array_equal(spoilt[1], after[1])


# --- Views -----------------------------------------------------------------------------------

WAVES = (70, 120)
WAVE_INFO = VariableInfo("wave", WAVES, "float32")


def wave(worker, step, axis):
    """A gradient that is smooth along one axis and sparse along the other; larger for worker 1."""
    rng = np.random.default_rng([worker, step, axis])
    ramp = np.cos(np.linspace(0, 3, WAVES[axis]))
    spikes = rng.normal(size=WAVES[1 - axis]) * (np.arange(WAVES[1 - axis]) % 4 == 0)
    smooth = np.moveaxis(np.multiply.outer(ramp, spikes), 0, axis)
    return ((1 + worker) * (smooth + 0.01 * rng.normal(size=WAVES))).astype(np.float32)


def exchange_waves(spec, axes_of_step, spoil=None):
    """Per worker: what was sent in all steps, the residuals as gradients, and the views."""

    def work(collectives):
        worker = collectives.worker_index
        reducer = GradientReducer(Policy(spec), collectives)
        sent, views = np.zeros(WAVES), []
        for step, axes in enumerate(axes_of_step):
            value = wave(worker, step, axes[worker])
            if spoil == (worker, step):
                value[0, 0] = np.nan
            total = reducer.reduce([tf.constant(value)], [WAVE_INFO], owned(0))[0].numpy()
            if spoil is None or spoil[1] != step:
                sent += total
            views.append(reducer.views()["wave"])
        (exchange,) = next(iter(reducer._entries.values())).exchanges
        transform = exchange._transform
        if exchange._choice is not None:
            transform = transform.at(exchange._choice)
        left = transform.inverse(exchange.residuals[0], sent.size)
        return sent, left.numpy().reshape(WAVES), views

    return loopback.run_workers(2, work)


def test_workers_choose_the_same_view_and_follow_the_gradients():
    axes = [(0, 0)] * 3 + [(1, 1)] * 5 + [(0, 0)] * 2
    for _, _, views in exchange_waves("topk:density=0.05,view=auto", axes):
        # They are compared at every exchange up to the eighth, and then at the tenth.
        assert views == ["input"] * 3 + ["output"] * 6 + ["input"]


def test_the_view_follows_the_energy_of_all_workers():
    """Each worker alone would choose its own axis; together they keep most along both."""
    for _, _, views in exchange_waves("topk:density=0.05,view=auto", [(0, 1)] * 2):
        assert views == ["output+input"] * 2


@pytest.mark.parametrize("spec", ["topk:density=0.05,view=auto", "topk:density=0.05,view=input"])
def test_nothing_is_lost_when_the_view_changes(spec):
    axes = [(0, 0)] * 3 + [(1, 1)] * 2 + [(0, 0)] * 4
    outcomes = exchange_waves(spec, axes)
    meant = sum(
        wave(worker, step, axis[worker]).astype(np.float64)
        for worker in range(2)
        for step, axis in enumerate(axes)
    )
    left = sum(left.astype(np.float64) for _, left, _ in outcomes)
    bound = 64 * len(axes) * np.finfo(np.float32).eps * np.abs(meant).max()
    np.testing.assert_allclose(outcomes[0][0] + left, meant, rtol=0, atol=bound)
    assert np.abs(left).max() > 100 * bound


def test_the_view_stays_in_a_step_with_a_nan():
    axes = [(0, 0)] * 3 + [(1, 1)] * 2
    for _, _, views in exchange_waves("topk:density=0.05,view=auto", axes, spoil=(1, 3)):
        assert views == ["input"] * 4 + ["output"]


def test_a_nan_in_one_bucket_leaves_the_views_and_residuals_of_all():
    infos = [WAVE_INFO, WAVE_INFO._replace(name="other")]

    def work(collectives):
        reducer = GradientReducer(Policy("topk:density=0.05,view=auto,scope=layer"), collectives)
        history = []
        for step, axes in enumerate([(0, 0), (1, 1), (1, 1)]):
            values = [wave(collectives.worker_index, step, axis) for axis in axes]
            if step == 1 and collectives.worker_index == 1:
                values[0][3, 5] = np.nan
            reducer.reduce([tf.constant(value) for value in values], infos, owned(0, 1))
            history.append((reducer.views(), residuals(reducer)))
        return history

    for before, nan, after in loopback.run_workers(2, work):
        assert before[0] == nan[0] == {"wave": "input", "other": "input"}
        assert after[0] == {"wave": "output", "other": "output"}
        for one, other in zip(before[1], nan[1], strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_a_flatten_hid_makes_no_second_plan():
    """It is known in one graph and not in another; the residuals are the same all the same."""

    def work(collectives):
        reducer = GradientReducer(Policy("topk:view=hidden"), collectives)
        value = [tf.constant(wave(collectives.worker_index, 0, 0))]
        for hidden in ((7, 10), ()):
            reducer.reduce(value, [WAVE_INFO._replace(hidden=hidden)], owned(0))
        return [plan.variables[0].hidden for plan in reducer.plans]

    assert loopback.run_workers(2, work) == [[(7, 10)]] * 2
