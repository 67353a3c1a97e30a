# SPDX-License-Identifier: Apache-2.0
"""The time at which a tensor is there, in graphs."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.ops.time_when_ready import time_when_ready


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int64, tf.bool, tf.string])
def test_it_is_the_time_of_day(dtype):
    before = time.time()
    seconds = time_when_ready(tf.zeros([3], dtype))
    assert seconds.dtype == tf.float64 and seconds.shape == ()
    assert before - 1e-3 <= seconds.numpy() <= time.time() + 1e-3


def test_each_tensor_has_its_own_time_whatever_the_order_of_asking():
    """Asked for the late one first, the early one is not made to wait."""

    def sleep(value):
        time.sleep(0.3)
        return value

    @tf.function
    def step(value):
        late = tf.numpy_function(sleep, [value], tf.float32, stateful=False)
        return time_when_ready(late), time_when_ready(value)

    for _ in range(3):
        late, early = (seconds.numpy() for seconds in step(tf.constant(1.0)))
        assert early < late - 0.25


def test_it_is_asked_anew_in_each_step():
    @tf.function
    def step(value):
        return time_when_ready(value)

    value = tf.constant(1.0)
    times = [step(value).numpy() for _ in range(3)]
    assert np.all(np.diff(times) > 0)
