# SPDX-License-Identifier: Apache-2.0
"""Residuals are repaid at the learning rate at which they were left."""

import weakref

import loopback
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer

INFO = VariableInfo("v", (100, 50), "float32")
RATES = [0.0, 0.5, 0.5, 0.25, 0.0, 0.0, 0.05, 1.0]


class Owner:
    """Stands for a variable."""


def run(spec, rates, num_workers=2):
    """Returns each worker's total update, its residuals in the end, and its gradients."""
    owner = Owner()

    def work(collectives):
        rng = np.random.default_rng(collectives.worker_index)
        reducer = GradientReducer(Policy(spec), collectives)
        update, meant = np.zeros(INFO.shape), np.zeros(INFO.shape)
        for rate in rates:
            value = rng.normal(size=INFO.shape).astype(np.float32)
            (total,) = reducer.reduce(
                [tf.constant(value)],
                [INFO],
                {"v": weakref.ref(owner)},
                learning_rate=tf.constant(rate, tf.float32),
            )
            update += rate * total.numpy().astype(np.float64)
            meant += rate * value.astype(np.float64)
        (exchange,) = next(iter(reducer._entries.values())).exchanges
        left = tf.reshape(exchange.residuals[0], INFO.shape).numpy()
        return update, meant, left, exchange.memory["learning_rate"].numpy()

    return loopback.run_workers(num_workers, work)


@pytest.mark.parametrize("rates", [RATES, [0.0, 0.0, 0.5], [1.0, 0.0, 1.0], [1.0, 1e-37, 1.0]])
@pytest.mark.parametrize("spec", ["topk:density=0.05", "onebit:scope=model", "powersgd:rank=2"])
def test_what_was_meant_is_what_was_updated_and_what_is_left_at_the_last_rate(spec, rates):
    """The law of error feedback, in units of updates: it holds whatever the rates were."""
    outcomes = run(f"{spec},lr_correction=true", rates)
    meant = sum(outcome[1] for outcome in outcomes)
    left = sum(outcome[2].astype(np.float64) for outcome in outcomes)
    for update, _, _, last in outcomes:
        assert last == np.float32([rate for rate in rates if rate][-1])
        np.testing.assert_allclose(
            update + rates[-1] * left, meant, atol=1e-4 * np.abs(meant).max()
        )


def test_without_it_a_decay_loses_what_was_left_before():
    outcomes = run("topk:density=0.05,lr_correction=true", [1.0, 0.01])
    plain = run_plain([1.0, 0.01])
    # What a step at rate 1 left is worth a hundredth later on, unless it is corrected.
    norms = [np.linalg.norm(outcome[2]) for outcome in (outcomes[0], plain[0])]
    assert norms[0] > 20 * norms[1]


def run_plain(rates):
    owner = Owner()

    def work(collectives):
        rng = np.random.default_rng(collectives.worker_index)
        reducer = GradientReducer(Policy("topk:density=0.05"), collectives)
        for _ in rates:
            value = tf.constant(rng.normal(size=INFO.shape), tf.float32)
            reducer.reduce([value], [INFO], {"v": weakref.ref(owner)})
        (exchange,) = next(iter(reducer._entries.values())).exchanges
        return None, None, exchange.residuals[0].numpy()

    return loopback.run_workers(2, work)


def test_a_rate_of_zero_updates_nothing_and_leaves_the_last_rate():
    """Its gradients are lost, as under any optimizer; but nothing becomes infinite."""
    with_zeros = run("topk:density=0.05,lr_correction=true", RATES)
    for update, _, left, last in with_zeros:
        assert np.isfinite(update).all() and np.isfinite(left).all()
        assert last == 1.0
    for _, _, _, last in run("topk:density=0.05,lr_correction=true", [0.0, 0.0]):
        assert last == 0.0


def test_an_unknown_learning_rate_is_an_error():
    def work(collectives):
        owner = Owner()
        reducer = GradientReducer(Policy("topk:lr_correction=true"), collectives)
        reducer.reduce([tf.ones(INFO.shape)], [INFO], {"v": weakref.ref(owner)})

    with pytest.raises(ValueError, match="give it to all_reduce_gradients"):
        loopback.run_workers(2, work)
