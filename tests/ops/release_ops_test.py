# SPDX-License-Identifier: Apache-2.0
"""A resource lives as long as it has an owner, then ends on a thread of its own."""

import os
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from tf_gradcomp.ops import release

NUM_THREADS = 40


def make_iterator():
    """An iterator whose life shows: it has many threads of its own."""
    dataset = tf.data.Dataset.range(1000).map(lambda x: x + 1, num_parallel_calls=2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = NUM_THREADS
    return iter(dataset.with_options(options))


def make_multi_device_iterator():
    """The kind that distributed datasets use."""
    dataset = tf.data.Dataset.range(1000).map(lambda x: x + 1, num_parallel_calls=2)
    return multi_device_iterator_ops.OwnedMultiDeviceIterator(dataset, ["/cpu:0"])


def num_threads():
    return len(os.listdir("/proc/self/task"))


@pytest.fixture
def num_alive():
    """A function that tells how many of the iterators that a test has made are alive."""
    next(iter(tf.data.Dataset.range(1).map(lambda x: x + 1, num_parallel_calls=2)))
    before = num_threads()
    return lambda: round((num_threads() - before) / NUM_THREADS)


def wait_until(condition, seconds=20):
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    assert condition()


def test_it_lives_while_it_is_owned_and_not_longer(num_alive):
    iterator = make_iterator()
    release.release_in_background(iterator._iterator_resource)
    for expected in range(1, 4):
        time.sleep(0.15)
        assert next(iterator).numpy() == expected
    assert num_alive() == 1
    del iterator
    wait_until(lambda: num_alive() == 0)


def test_every_iterator_has_a_thread_of_its_own(num_alive):
    iterators = [make_iterator() for _ in range(4)]
    for iterator in iterators:
        release.release_in_background(iterator._iterator_resource)
        next(iterator)
    assert num_alive() == 4
    del iterators[:3], iterator
    wait_until(lambda: num_alive() == 1)
    assert next(iterators[0]).numpy() == 2
    del iterators
    wait_until(lambda: num_alive() == 0)


def test_the_owner_does_not_wait_for_its_end():
    """Tuned pipelines: TensorFlow sometimes needs as long to end an iterator as it has lived."""
    for _ in range(6):
        start = time.monotonic()
        iterator = make_multi_device_iterator()
        for _ in range(13):
            iterator.get_next()
            time.sleep(0.05)
        end = time.monotonic()
        for handle in tf.nest.flatten(iterator, expand_composites=True):
            release.release_in_background(handle)
        del handle, iterator
        assert time.monotonic() - end < 0.5 * (end - start)


def test_waiting_for_the_end_has_a_limit(num_alive):
    iterator = make_iterator()
    next(iterator)
    release.release_in_background(iterator._iterator_resource)
    start = time.monotonic()
    release.await_releases(0.2)
    assert 0.15 < time.monotonic() - start < 5
    del iterator
    release.await_releases(20.0)
    assert num_alive() == 0


EXITING_PROGRAM = """
import time

import tensorflow as tf
from tensorflow.python.data.ops.multi_device_iterator_ops import OwnedMultiDeviceIterator

from tf_gradcomp.ops import release

iterators = []
for _ in range(40):
    dataset = tf.data.Dataset.range(100).map(lambda x: x + 1)
    iterators.append(OwnedMultiDeviceIterator(dataset, ["/cpu:0"]))
    iterators[-1].get_next()
    for handle in tf.nest.flatten(iterators[-1], expand_composites=True):
        release.release_in_background(handle)
    time.sleep(0.005)
del handle
alive = iterators.pop()
del iterators  # they end within a tenth of a second, and drop Python objects then
"""


def test_a_process_may_exit_meanwhile():
    result = subprocess.run(
        [sys.executable, "-c", EXITING_PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
