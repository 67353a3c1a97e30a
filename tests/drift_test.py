# SPDX-License-Identifier: Apache-2.0
"""Workers notice when their weights differ, by a single bit if need be."""

import weakref

import loopback
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.drift import DriftCheck
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer

SHAPES = {"a/kernel": (64, 80), "b/kernel": (100, 70), "b/bias": (70,)}


def flipped(values, bit):
    """Flips one bit of the middle one of an array of numbers."""
    words = values.copy().reshape(-1)
    view = words.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[words.itemsize])
    view[len(view) // 2] ^= view.dtype.type(1 << bit)
    return words.reshape(values.shape)


class Job:
    """A worker with weights that all have, and that nothing updates."""

    def __init__(self, collectives, check, dtype="float32"):
        rng = np.random.default_rng(1)
        self.weights = {
            name: tf.Variable(tf.cast(rng.standard_normal(shape), dtype))
            for name, shape in SHAPES.items()
        }
        self._reducer = GradientReducer(Policy("topk"), collectives, drift_check=check)
        self._infos = [VariableInfo(name, shape, "float32") for name, shape in SHAPES.items()]

    def step(self):
        owners = {name: weakref.ref(weight) for name, weight in self.weights.items()}
        gradients = [tf.ones(shape) for shape in SHAPES.values()]
        self._reducer.reduce(gradients, self._infos, owners)

    def alter(self, name, bit):
        weight = self.weights[name]
        weight.assign(flipped(weight.numpy(), bit))


@pytest.mark.parametrize("bit", [0, 10, 22, 30, 31])
@pytest.mark.parametrize("when", [0, 1, 2, 3])
def test_a_bit_is_found_within_so_many_steps_and_named(bit, when):
    def work(collectives):
        job = Job(collectives, DriftCheck(every=3))
        for step in range(7):
            if step == when and collectives.worker_index == 1:
                job.alter("b/kernel", bit)
            try:
                job.step()
            except tf.errors.InvalidArgumentError as error:
                return step, str(error)
        return None

    outcomes = loopback.run_workers(2, work)
    assert outcomes[0] is not None
    for step, message in outcomes:
        assert step == {0: 0, 1: 3, 2: 3, 3: 3}[when]
        assert f"differ before exchange {step + 1}: b/kernel (bucket 0, topk)" in message
        assert "a/kernel" not in message


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_weights_of_any_type_are_watched(dtype):
    def work(collectives):
        job = Job(collectives, DriftCheck(every=1), dtype)
        job.step()
        if collectives.worker_index == 1:
            weight = job.weights["b/bias"]
            weight.assign(weight + tf.constant(1, weight.dtype))
        with pytest.raises(tf.errors.InvalidArgumentError, match="b/bias"):
            job.step()

    loopback.run_workers(2, work)


@pytest.mark.parametrize("check", [None, DriftCheck()])
def test_equal_weights_are_no_news(check):
    def work(collectives):
        job = Job(collectives, check)
        for weight in job.weights.values():
            weight.assign(tf.where(weight > 1, np.float32("nan"), weight))
        for _ in range(3):
            job.step()

    loopback.run_workers(3, work)


def test_workers_take_the_weights_of_worker_0_if_told_to(capfd):
    def work(collectives):
        job = Job(collectives, DriftCheck(every=2, action="resync"))
        original = {name: weight.numpy() for name, weight in job.weights.items()}
        if collectives.worker_index == 2:
            job.alter("a/kernel", 3)
            job.alter("b/bias", 30)
        job.step()
        return original, {name: weight.numpy() for name, weight in job.weights.items()}

    for original, now in loopback.run_workers(3, work):
        np.testing.assert_equal(now, original)
    err = capfd.readouterr().err
    assert "differ before exchange 1: a/kernel (bucket 0, topk), b/bias (bucket 1, dense)" in err


@pytest.mark.parametrize("field", [{"every": 0}, {"every": True}, {"every": 2.0}, {"action": "no"}])
def test_bad_fields_are_refused(field):
    with pytest.raises(ValueError, match=f"{next(iter(field))} must be"):
        DriftCheck(**field)
