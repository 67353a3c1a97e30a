# SPDX-License-Identifier: Apache-2.0
"""Deadlines: a late collective is aborted, and nothing else is.

An abort holds for the rest of a process, so the cases that must not abort share one process, and
those that do have one each.
"""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
import sys
import time

import tensorflow as tf
from tensorflow.python.ops import collective_ops

from tf_gradcomp.ops.deadline import within_deadline


def gather(group_size, key):
    key = tf.convert_to_tensor(key)
    return collective_ops.all_gather_v2(tf.constant([1, 2]), group_size, 7, key)


token = tf.Variable(0.0)


def watched(launch, seconds):
    return within_deadline(launch, tf.constant(0), token.handle, seconds, "The test")


def works():
    return gather(1, 1000).numpy().tolist() == [1, 2]


def late():
    step = tf.function(lambda: watched(lambda: gather(2, 1), 0.5))
    start = time.monotonic()
    try:
        step()
    except tf.errors.DeadlineExceededError as error:
        message = error.message
    assert 0.4 < time.monotonic() - start < 10
    assert "The test took longer than 0.5 seconds" in message, message


def in_time():
    step = tf.function(lambda key: watched(lambda: gather(1, key), 0.5))
    for key in range(20):
        assert step(tf.constant(key)).numpy().tolist() == [1, 2]
    time.sleep(1)
    assert works()


def in_a_loop():
    @tf.function
    def steps():
        def body(key, total):
            return key + 1, total + tf.reduce_sum(watched(lambda: gather(1, key), 0.5))

        return tf.while_loop(lambda key, _: key < 50, body, [tf.constant(0), tf.constant(0)])[1]

    assert steps().numpy() == 150
    time.sleep(1)
    assert works()


def failed_step():
    @tf.function
    def step(ok):
        def launch():
            with tf.control_dependencies([tf.debugging.Assert(ok, ["out of data"])]):
                return tf.identity(1)

        return watched(launch, 0.5)

    for _ in range(3):
        try:
            step(tf.constant(False))
        except tf.errors.InvalidArgumentError as error:
            assert "out of data" in error.message
        else:
            raise AssertionError("did not fail")
    time.sleep(1)
    assert works()
    step(tf.constant(True))


def threads():
    step = tf.function(lambda key: watched(lambda: gather(1, key), 60.0))
    step(tf.constant(1))
    before = len(os.listdir("/proc/self/task"))
    for key in range(2, 200):
        step(tf.constant(key))
    assert len(os.listdir("/proc/self/task")) < before + 20


def far_away():
    for seconds in (1e10, float("inf")):
        assert tf.function(lambda: watched(lambda: gather(1, 5000), seconds))() is not None
    time.sleep(0.5)
    assert works()


def not_positive():
    try:
        tf.function(lambda: watched(lambda: tf.constant(1), 0.0))()
    except tf.errors.InvalidArgumentError as error:
        assert "must be > 0" in error.message
    else:
        raise AssertionError("accepted")


for case in sys.argv[1:]:
    globals()[case]()
"""


@pytest.mark.parametrize(
    "cases",
    ["late", "in_time in_a_loop failed_step threads far_away not_positive"],
    ids=["late", "others"],
)
def test_deadline(cases):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *cases.split()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
