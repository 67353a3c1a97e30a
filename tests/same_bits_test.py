# SPDX-License-Identifier: Apache-2.0
"""Checksums tell what workers are likely to differ in, and all can take the first one's."""

import loopback
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.same_bits import of_worker_0, same_everywhere


def one_bit(values, rng):
    raw = values.reshape(-1).view(np.uint8)
    raw[rng.integers(raw.size)] ^= np.uint8(1 << rng.integers(8))


def two_signs(values, rng):
    places = rng.choice(values.size, 2, replace=False)
    values.flat[places] *= -1


def all_signs(values, rng):
    values *= -1


def signs_of_a_column(values, rng):
    values[:, 3] *= -1


def two_places(values, rng):
    one, other = rng.choice(values.size, 2, replace=False)
    values.flat[[one, other]] = values.flat[[other, one]]


def two_columns(values, rng):
    values[:, [1, 2]] = values[:, [2, 1]]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    "change", [one_bit, two_signs, all_signs, signs_of_a_column, two_places, two_columns]
)
def test_what_differs_is_seen(rng, change, dtype):
    # By chance, one of 2^32 is not; of two signs of 16 bits, one of 2^16.
    num_tensors = 40
    first = [rng.normal(size=(48, 32)).astype(dtype) for _ in range(num_tensors)]
    second = [values.copy() for values in first]
    for values in second[1::2]:
        change(values, rng)

    def work(collectives):
        own = second if collectives.worker_index == 2 else first
        return same_everywhere(collectives, list(map(tf.constant, own))).numpy()

    for same in loopback.run_workers(3, work):
        assert same.tolist() == [True, False] * (num_tensors // 2)


def test_bits_count_and_not_values():
    def work(collectives):
        zero = tf.constant(np.float32([[0.0], [-0.0]])[collectives.worker_index])
        nan = tf.constant(np.uint32(0x7FC00000).view(np.float32))
        return same_everywhere(collectives, [zero, nan, tf.zeros((0, 3))]).numpy().tolist()

    assert loopback.run_workers(2, work) == [[False, True, True]] * 2


def test_a_word_is_told_from_its_complement():
    """As 0 from -1, which are others in all bits."""

    def work(collectives):
        words = tf.constant([0, 7, 2**31 - 1]) ^ tf.constant(-collectives.worker_index)
        alike = [words[:1], words[1:2], words[2:]]
        return same_everywhere(collectives, alike).numpy().tolist()

    assert loopback.run_workers(2, work) == [[False] * 3] * 2


def test_all_take_the_first_one_s(rng):
    values = rng.normal(size=(3, 5, 7)).astype(np.float32)

    def work(collectives):
        return of_worker_0(collectives, tf.constant(values[collectives.worker_index])).numpy()

    for taken in loopback.run_workers(3, work):
        np.testing.assert_array_equal(taken, values[0])
