# SPDX-License-Identifier: Apache-2.0
"""A step's clock: what it notes in a graph, and what it does not elsewhere."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.clock import Clock


@pytest.mark.parametrize("device", ["/device:CPU:0", "/job:worker/task:1/device:GPU:0"])
@pytest.mark.parametrize("sparse", [False, True])
def test_each_tensor_has_its_time_since_the_start(device, sparse):
    """Of a GPU's only an element is looked at, which goes on a CPU as well."""
    clock = Clock(2, device)
    ends = []

    def sleep(value):
        time.sleep(0.2)
        ends.append(time.time())
        return value

    @tf.function
    def step(value):
        clock.start()
        late = tf.numpy_function(sleep, [value], tf.float32, stateful=False)
        late = tf.ensure_shape(late, value.shape)
        clock.note(1, tf.IndexedSlices(late, tf.constant([0, 1])) if sparse else late)
        clock.note(0, value)
        return clock.read()

    before = time.time()
    for _ in range(2):
        start, early, late = step(tf.ones([2, 3])).numpy()
        assert before - 1e-3 < start <= time.time() + 1e-3
        assert 0 <= early < late
        assert ends[-1] - 1e-3 < start + late < time.time() + 1e-3
        before = start


def test_a_step_starts_no_later_than_its_first_tensor_is_there():
    clock = Clock(2, "/device:CPU:0")

    def sleep(value):
        time.sleep(0.1)
        return value

    @tf.function
    def step(value):
        late = tf.numpy_function(sleep, [value], tf.float32, stateful=False)
        with tf.control_dependencies([late]):
            clock.start()
        clock.note(0, value)
        clock.note(1, tf.ensure_shape(late, value.shape))
        return clock.read()

    _, first, second = step(tf.ones([3])).numpy()
    assert first == 0 and second > 0.05


def test_nothing_is_noted_eagerly_and_nothing_is_left_of_a_function_that_failed():
    clock = Clock(2, "/device:CPU:0")

    @tf.function
    def step(value):
        clock.start()
        clock.note(0, value)
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        step(tf.ones([3]))
    clock.start()
    clock.note(0, tf.ones([3]))
    assert np.isnan(clock.read()).all() and clock.read().shape == (3,)
