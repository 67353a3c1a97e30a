# SPDX-License-Identifier: Apache-2.0
"""The shape that a Flatten hid is found in the graph of a training step, whatever the model."""

import pytest
import tensorflow as tf

from tf_gradcomp.distribute.flattened_shape import flattened_shape

layers = tf.keras.layers


class Subclassed(tf.keras.Model):
    """Flattens with TensorFlow's own reshape."""

    def __init__(self):
        super().__init__()
        self.convolution = layers.Conv2D(4, 3, name="convolution")
        self.dense = layers.Dense(7, name="dense")

    def call(self, inputs):
        maps = self.convolution(inputs)
        return self.dense(tf.reshape(maps, [tf.shape(maps)[0], 6 * 5 * 4]))


def sequential(*after_flatten):
    return tf.keras.Sequential(
        [layers.Conv2D(4, 3), layers.Flatten(), *after_flatten, layers.Dense(9), layers.Dense(2)]
    )


def hidden_shapes(model, change=lambda gradients: gradients, batch=3):
    """By shape of the variable, the non-empty results for a step on images of 8 by 7."""
    found = {}

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(images, training=True)))
        gradients = change(tape.gradient(loss, model.trainable_variables))
        for gradient in gradients:
            if flattened_shape(gradient):
                found[tuple(gradient.shape)] = flattened_shape(gradient)

    step.get_concrete_function(tf.TensorSpec([batch, 8, 7, 1]))
    return found


def clipped(gradients):
    return tf.clip_by_global_norm(gradients, 1.0)[0]


def unscaled(gradients):
    return [tf.cast(gradient, tf.float32) / 1024.0 for gradient in gradients]


def decayed(gradients):
    return [gradient + 0.1 * tf.ones_like(gradient) for gradient in gradients]


@pytest.mark.parametrize("batch", [3, None])
@pytest.mark.parametrize("change", [clipped, unscaled, decayed])
def test_found_through_what_lies_between(change, batch):
    model = sequential(layers.Dropout(0.3), layers.BatchNormalization(), layers.ReLU())
    assert hidden_shapes(model, change, batch) == {(120, 9): (6, 5, 4)}


def test_found_in_a_subclassed_model():
    assert hidden_shapes(Subclassed()) == {(120, 7): (6, 5, 4)}


def test_found_under_mixed_precision():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        assert hidden_shapes(sequential()) == {(120, 9): (6, 5, 4)}
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def test_found_from_within_conditions():
    """As under loss scaling and accumulation, where an optimizer works in branches."""
    model = sequential()
    found = []

    @tf.function
    def step(images, apply):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(images)))
        gradients = tape.gradient(loss, model.trainable_variables)

        def inner():
            found.append([flattened_shape(gradient) for gradient in gradients])
            found.append([flattened_shape(gradient + 1.0) for gradient in gradients])

        def outer():
            tf.cond(apply, inner, lambda: None)

        tf.cond(apply, outer, lambda: None)

    step.get_concrete_function(tf.TensorSpec([3, 8, 7, 1]), tf.TensorSpec([], tf.bool))
    assert found
    for shapes in found:
        assert [shape for shape in shapes if shape] == [(6, 5, 4)]


def test_not_found_where_nothing_is_hidden():
    pooled = tf.keras.Sequential(
        [layers.Conv2D(4, 3), layers.GlobalAveragePooling2D(), layers.Dense(9)]
    )
    assert hidden_shapes(pooled) == {}
    assert hidden_shapes(tf.keras.Sequential([layers.Reshape((56,)), layers.Dense(9)])) == {
        (56, 9): (8, 7, 1)
    }


def test_an_eager_gradient_tells_nothing():
    model = sequential()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones([2, 8, 7, 1])))
    for gradient in tape.gradient(loss, model.trainable_variables):
        assert flattened_shape(gradient) == ()
