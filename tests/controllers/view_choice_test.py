# SPDX-License-Identifier: Apache-2.0
"""When candidates are compared, and which one wins."""

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.controllers import view_choice


def test_candidates_are_compared_four_times_in_every_doubling():
    due = [step for step in range(1, 70) if view_choice.is_due(tf.constant(step))]
    assert due == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]
    assert view_choice.is_due(tf.constant(7 << 28))
    assert not view_choice.is_due(tf.constant(2**31 - 1))


def choose(energies, current, learned=None):
    energies = tf.constant(energies, tf.float64)
    return view_choice.choose(energies, tf.constant(current), learned).numpy()


def test_the_best_replaces_what_keeps_noticeably_less():
    energies = [[1.0, 3.0, 2.0], [0.0, 2.0, 2.01], [0.0, 2.0, 2.1], [0.0, 0.0, 0.0]]
    np.testing.assert_array_equal(choose(energies, [0, 1, 1, 2]), [1, 1, 2, 2])


def test_no_view_is_preferred_to_one_that_keeps_a_little_more():
    energies = [[1.0, 1.04], [1.0, 1.03], [1.0, 1.055], [1.0, 1.055]]
    np.testing.assert_array_equal(choose(energies, [0, 1, 0, 1]), [0, 0, 1, 1])


def test_learned_bases_must_keep_noticeably_more_than_the_best_without_and_more_than_none():
    learned = [[False, False, True, True]] * 6 + [[False] * 4]
    energies = [
        [1.0, 1.2, 1.25, 1.1],  # less than 5 % and 1 % more than candidate 1
        [1.0, 1.2, 1.28, 1.1],
        [1.0, 1.2, 1.25, 1.1],  # in use
        [1.0, 1.0, 1.09, 0.0],  # less than 1.05 * 1.05 of none
        [1.0, 1.0, 1.0, 1.12],
        [1.0, 1.2, 1.4, 1.5],
        [1.0, 1.2, 1.25, 1.1],  # none of them learned
    ]
    chosen = choose(energies, [0, 1, 2, 0, 0, 2, 0], learned)
    np.testing.assert_array_equal(chosen, [1, 2, 2, 0, 3, 3, 2])


def test_energies_beyond_float32_are_told_apart():
    np.testing.assert_array_equal(choose([[1e-60, 2e-60], [2e60, 1e60]], [0, 0]), [1, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_changes_in_a_step_that_is_going_to_be_skipped(bad):
    np.testing.assert_array_equal(choose([[1.0, 9.0], [1.0, bad]], [0, 1]), [0, 1])
