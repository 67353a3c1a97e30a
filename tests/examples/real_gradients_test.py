# SPDX-License-Identifier: Apache-2.0
"""SIDCo keeps about as many items of real gradients as it is asked to.

The examples' models are trained for some steps, and the buckets that a worker would exchange are
encoded on the side, with error feedback. On the data of the examples if they are on this machine,
else on data made here, from which there is something to learn, too.
"""

import shutil

import language
import numpy as np
import pytest
import tensorflow as tf
import vision

from tf_gradcomp import methods
from tf_gradcomp.codecs.base import Draw
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import Policy, VariableInfo

DENSITIES = (0.01, 0.001)


def image_batches(size, images):
    name, pixels, labels = images
    starts = range(0, len(pixels) - size, size)
    return name, ((pixels[i : i + size] / np.float32(255), labels[i : i + size]) for i in starts)


def word_batches(size, rng):
    if shutil.which("bible") is not None:
        name, words = "the Bible", language.encode_words(language.read_text(None))
    else:
        # Frequencies of real words, and each of them says something of the next.
        name, words = "words made here", np.minimum(rng.zipf(1.3, 60_000), language.VOCABULARY) - 1
        words[1::2] = words[::2] * 7 % language.VOCABULARY
    data = language.sequences(words).unbatch().batch(size)
    return name, data.as_numpy_iterator()


def kept_shares(model, optimizer, batches, steps):
    """Yields ``(step, density, kept / wanted)`` for each of the steps and densities."""
    variables = model.trainable_variables
    infos = [VariableInfo(v.name, tuple(v.shape), "float32") for v in variables]
    plan = make_plan(infos, Policy(methods.sidco()), num_workers=2)
    (bucket,) = [bucket for bucket in plan.buckets if bucket.compression]
    codecs = [methods.sidco(density).build() for density in DENSITIES]
    layout = codecs[0].transform.layout(bucket.num_elements)
    draw = Draw(bucket=0, worker=0, step=tf.constant(0))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def train_step(inputs, targets, residuals):
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True))
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        packed = tf.concat([tf.reshape(gradients[i], [-1]) for i in bucket.indices], axis=0)
        return [c.encode(packed, r, layout, draw) for c, r in zip(codecs, residuals, strict=True)]

    residuals = [tf.zeros(layout.shape) for _ in codecs]
    for step in range(1, max(steps) + 1):
        encoded = train_step(*next(batches), residuals)
        residuals = [e.residual for e in encoded]
        if step in steps:
            for density, each in zip(DENSITIES, encoded, strict=True):
                # A counted positions block begins with the number of items.
                yield step, density, int(each.payload[0]) / (density * bucket.num_elements)


@pytest.mark.parametrize("example", ["vision", "language"])
def test_sidco_keeps_what_is_wanted_within_a_fifth(example, rng, request):
    tf.keras.utils.set_random_seed(0)
    if example == "vision":
        name, batches = image_batches(32, request.getfixturevalue("images"))
        model, optimizer = vision.build_model(), tf.keras.optimizers.SGD(0.05, momentum=0.9)
    else:
        name, batches = word_batches(8, rng)
        model, optimizer = language.build_lstm(), tf.keras.optimizers.Adam(2e-3)
    shares = list(kept_shares(model, optimizer, batches, steps=(1, 3, 30)))
    for step, density, share in shares:
        print(f"{example}, {name}, step {step}, density {density}: {share:.2f} of the items wanted")
    assert len(shares) == 6
    assert all(0.8 <= share <= 1.2 for _, _, share in shares)
