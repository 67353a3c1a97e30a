# SPDX-License-Identifier: Apache-2.0
"""A constant theta without error feedback stalls at a floor that grows with it; others pass it.

Wang et al., HPDC 2020, prove convergence for a theta that diminishes. In place of v, a gradient
with noise, v' is sent, and |v' - v| <= r |v|, r = sqrt(theta), where the share theta of least
energy is dropped. Descent comes to rest where v' is zero on average: there the true gradient g is
the mean of v - v', so |g| <= r (|g| + sigma), and |g| is up to r sigma / (1 - r) at any learning
rate. How much it is depends on the noise: nothing if what is dropped cancels out, as symmetric
noise does. Without noise, and with workers that agree, r < 1 leaves g = 0. So noise must be skewed,
or workers must disagree.

The quadratic has skewed noise of a known distribution, for which the floor can be computed: see
examples/theta_floor.py. The model has no noise, but workers that disagree.
"""

import dataclasses
import weakref

import loopback
import numpy as np
import pytest
import tensorflow as tf
import theta_floor
from theta_floor import CODECS, DENSE, THETAS, descend

from tf_gradcomp import Compression, Policy, methods
from tf_gradcomp.policy import VariableInfo
from tf_gradcomp.reducer import GradientReducer

# --- A quadratic ---------------------------------------------------------------------------------

OWN_ITEMS = {"topk": "elements", "fft": "waves"}


@pytest.mark.parametrize("name", CODECS)
def test_a_constant_theta_stalls_where_it_must_and_others_pass_it(name):
    noise, *found = descend([DENSE, *theta_floor.specs(CODECS[name])], OWN_ITEMS[name])
    constant, diminishing, fed_back = np.transpose(np.reshape(found, (-1, 3)))
    floors = np.array([theta_floor.floor(theta) for theta in THETAS])
    # The iterates swing about the point of the floor as they do about the optimum, by the learning
    # rate: that adds about as much to g^2 and moves the point, where the mean of what is sent is
    # curved, by as much again.
    np.testing.assert_allclose(constant, floors, rtol=0, atol=2 * noise)
    assert floors.min() > 5 * noise
    assert np.all(np.diff(floors) > 4 * noise)
    # Theta is a tenth at the end. Not more than a tenth is added to what a dense exchange leaves.
    assert np.all(diminishing <= 1.1 * noise)
    assert np.all(fed_back <= 1.25 * noise)


@pytest.mark.parametrize(("name", "items"), [("topk", "waves"), ("fft", "elements")])
def test_there_is_no_floor_if_noise_is_symmetric_in_what_is_dropped(name, items):
    # A bin sums the noise of many elements, an element that of many waves: it is nearly normal.
    highest = theta_floor.specs(CODECS[name])[-3]
    noise, constant = descend([DENSE, highest], items)
    assert constant <= 2 * noise
    assert theta_floor.floor(THETAS[-1]) > 50 * 2 * noise


# --- A model -------------------------------------------------------------------------------------

NUM_WORKERS, NUM_IMAGES, NUM_STEPS, LEARNING_RATE = 2, 250, 100, 0.5
GROW_AFTER = 10
INFOS = [VariableInfo("w", (784, 10), "float32"), VariableInfo("b", (10,), "float32")]


@tf.function(autograph=False)
def loss_and_gradients(weights, bias, images, labels):
    with tf.GradientTape() as tape:
        tape.watch([weights, bias])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights + bias)
        loss = tf.reduce_mean(losses)
    return loss, tape.gradient(loss, [weights, bias])


class Owner:
    """Stands for a variable."""


def train(compression, shards):
    """Trains softmax regression on two workers, each with all images of its shard at every step.

    Returns:
      The loss of all images, and the squared norm of its gradient for the weights, at the end.
    """

    def work(collectives):
        reducer = GradientReducer(Policy(rules=(("w", compression),)), collectives)
        owner = Owner()
        owners = {info.name: weakref.ref(owner) for info in INFOS}
        parameters = [tf.zeros(info.shape) for info in INFOS]
        for _ in range(NUM_STEPS):
            _, gradients = loss_and_gradients(*parameters, *shards[collectives.worker_index])
            sums = reducer.reduce(gradients, INFOS, owners)
            rate = LEARNING_RATE / NUM_WORKERS
            parameters = [old - rate * total for old, total in zip(parameters, sums, strict=True)]
        return parameters, reducer.plans[0]

    (parameters, plan), _ = loopback.run_workers(NUM_WORKERS, work)
    assert compression in [bucket.compression for bucket in plan.buckets]
    images, labels = (tf.concat(parts, axis=0) for parts in zip(*shards, strict=True))
    loss, (gradient, _) = loss_and_gradients(*parameters, images, labels)
    return float(loss), float(tf.reduce_sum(gradient**2))


@pytest.fixture(scope="module")
def shards(images):
    """Five classes on each worker: what one has to say of a class, the other contradicts."""
    _, pixels, labels = images
    pixels = pixels[:2000].reshape(-1, 784) / np.float32(255)
    labels = labels[:2000]
    pixels -= pixels.mean(axis=0)
    chosen = [np.flatnonzero(labels // 5 == worker)[:NUM_IMAGES] for worker in range(NUM_WORKERS)]
    return [(tf.constant(pixels[rows]), tf.constant(labels[rows])) for rows in chosen]


@pytest.fixture(scope="module")
def dense(shards):
    return train(Compression("identity", transport="all_gather"), shards)


METHODS = {
    "SuperNeurons": methods.superneurons(0.01),
    "top-k": Compression("topk", {"density": 0.01}, error_feedback=False),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_model_goes_on_learning_where_a_constant_theta_stalls(name, shards, dense):
    """Among shards that contradict each other, what is dropped does not cancel out, either."""
    constant = train(METHODS[name], shards)
    diminishing = train(dataclasses.replace(METHODS[name], grow_after=GROW_AFTER), shards)
    for label, pair in (("dense", dense), ("constant", constant), ("diminishing", diminishing)):
        print(f"{name}, {label}: loss {pair[0]:.3f}, squared gradient {pair[1]:.4f}")
    assert constant[0] > 1.7 * diminishing[0]
    assert constant[1] > 5 * diminishing[1]
    assert diminishing[0] < 1.2 * dense[0]
