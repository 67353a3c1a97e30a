# SPDX-License-Identifier: Apache-2.0
"""Convex problems that biased compression cannot solve, and does with error feedback.

Problems of two or three unknowns are repeated side by side, so that their gradients are worth
compressing: all copies are alike.
"""

import weakref

import loopback
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer

COPIES = 64


class Owner:
    """Stands for a variable."""


def descend(spec, gradient_of, num_unknowns, num_workers, num_steps, learning_rate):
    """Gradient descent from ones with what the reducer makes of the workers' gradients.

    Returns:
      The iterates, ``[num_steps + 1, COPIES, num_unknowns]``.
    """

    def work(collectives):
        reducer = GradientReducer(Policy(rules=(("*", spec),)), collectives)
        owner = Owner()
        iterates = [np.ones((COPIES, num_unknowns))]
        info = VariableInfo("x", iterates[0].shape, "float32")
        for step in range(num_steps):
            gradient = gradient_of(iterates[-1], collectives.worker_index, step)
            value = tf.constant(gradient, tf.float32)
            (total,) = reducer.reduce([value], [info], {"x": weakref.ref(owner)})
            iterates.append(iterates[-1] - learning_rate * total.numpy() / num_workers)
        return np.stack(iterates), reducer.plans[0]

    (iterates, plan), *others = loopback.run_workers(num_workers, work)
    for other, _ in others:
        np.testing.assert_array_equal(other, iterates)
    assert str(plan.buckets[0].compression).startswith(spec.partition(":")[0])
    return iterates


# --- Signs: Karimireddy et al., ICML 2019 (arXiv 1901.09847), section 3 -------------------------

# Least squares, f(x) = <a_1, x>^2 + <a_2, x>^2, of which a step sees one term. All that its
# gradient can be is along a_1 or a_2, and both have the sign pattern +-(1, -1).
TILT = 0.5  # the paper's epsilon, in (0, 1)
ROWS = np.array([[1, -1], [-1, 1]]) + TILT * np.array([1, 1])
TERMS = np.random.default_rng(0).integers(0, 2, size=(1000, 2))  # of a step and worker


def least_squares(iterates):
    return np.sum((iterates @ ROWS.T) ** 2, axis=-1)


def sign_descent(spec, num_steps, learning_rate):
    def gradient(x, worker, step):
        row = ROWS[TERMS[step, worker]]
        return 2 * np.outer(x @ row, row)

    return descend(spec, gradient, 2, 2, num_steps, learning_rate)


@pytest.mark.parametrize("learning_rate", [0.01, 0.1])
def test_signs_alone_stay_on_a_line_that_misses_the_optimum(learning_rate):
    iterates = sign_descent("onebit:error_feedback=false", 50, learning_rate)
    # The entries of a gradient have magnitudes of scale * (1 + TILT) and scale * (1 - TILT), so
    # that a step is along (1, -1): what x_1 + x_2 began with it keeps. On that line
    # f = 2 (x_1 - x_2)^2 + 2 TILT^2 (x_1 + x_2)^2 is smallest for x_1 = x_2.
    np.testing.assert_allclose(iterates.sum(axis=-1), 2, rtol=1e-12)
    assert np.ptp(iterates[:, 0, 0]) > 0.01  # it does move
    losses = least_squares(iterates)
    assert losses.min() >= 2 * TILT**2 * 2**2 * (1 - 1e-12)


def test_signs_with_error_feedback_reach_the_optimum():
    num_steps, learning_rate = 80, 0.1
    losses = least_squares(sign_descent("onebit", num_steps, learning_rate))
    # Without compression E|x'|^2 = |x|^2 - 4 lr (1 - lr |a|^2) f(x) / 2, where |a|^2 is that of a
    # row and f(x) / 2 >= 2 TILT^2 |x|^2. Error feedback is allowed to take twice as many steps.
    rate = 1 - 8 * learning_rate * TILT**2 * (1 - learning_rate * 2 * (1 + TILT**2))
    assert losses[-1].max() <= rate ** (num_steps / 2) * losses[0].max()


# --- Top-k: Beznosikov et al., "On Biased Compression", arXiv 2002.12410, example 1 --------------

# Worker i minimizes f_i(x) = <a_i, x>^2 + |x|^2 / 4. All have their minimum at 0.
VECTORS = 2 * np.ones((3, 3)) - 5 * np.eye(3)
STRONG_CONVEXITY = 7 / 6  # of their mean, whose Hessian is 2/3 (25 I - 8 1 1^T) + I / 2


def top_descent(spec, num_steps, learning_rate):
    def gradient(x, worker, step):
        vector = VECTORS[worker]
        return 2 * np.outer(x @ vector, vector) + x / 2

    return descend(spec, gradient, 3, 3, num_steps, learning_rate)


ONE_OF_THREE = "topk:density=0.3333"  # rounded up


def test_the_largest_values_alone_lead_away_from_the_optimum():
    num_steps, learning_rate = 40, 0.05
    iterates = top_descent(f"{ONE_OF_THREE},error_feedback=false", num_steps, learning_rate)
    # At t (1, 1, 1) worker i has the gradient t/2 (9, 9, 9), but -11 in place i, which alone it
    # sends: the mean is -11/6 t (1, 1, 1), away from the optimum.
    factors = (1 + learning_rate * 11 / 6) ** np.arange(num_steps + 1)
    expected = np.broadcast_to(factors[:, None, None], iterates.shape)
    rounding = 4 * num_steps * np.finfo(np.float32).eps
    np.testing.assert_allclose(iterates, expected, rtol=rounding)
    assert expected[-1].max() > 8


def test_the_largest_values_with_error_feedback_reach_the_optimum():
    num_steps, learning_rate = 80, 0.05
    iterates = top_descent(ONE_OF_THREE, num_steps, learning_rate)
    # Without compression a step brings x nearer by this rate. Twice as many steps are allowed.
    rate = 1 - learning_rate * STRONG_CONVEXITY
    distances = np.linalg.norm(iterates, axis=-1)
    assert distances[-1].max() <= rate ** (num_steps / 2) * distances[0].max()
