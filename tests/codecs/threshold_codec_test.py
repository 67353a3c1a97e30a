# SPDX-License-Identifier: Apache-2.0
"""A sampled threshold keeps 0.8 to 1.3 times the items wanted, whatever the sample says."""

import numpy as np
import pytest
import random_k_reference
import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.compression import Compression
from tf_gradcomp.ops import threshold as threshold_ops

SIZE, DENSITY = 100_000, 0.01
WANTED = 1000
SAMPLES = 10_000  # 100 / density, more than 1 % of the items


@pytest.fixture
def values(rng):
    return tf.constant(rng.standard_normal(SIZE).astype(np.float32))


def test_the_number_kept_stays_within_what_deep_gradient_compression_bears_with(values):
    codec = Compression.from_spec(f"sampled_threshold:density={DENSITY}").build()
    layout = codec.transform.layout(SIZE)

    @tf.function
    def counts(step):
        draw = base.Draw(bucket=0, worker=0, step=step)
        payload = codec.encode(values, None, layout, draw).payload
        key = draw.own_key(0, part=1)
        threshold = threshold_ops.sampled_threshold(values, key, WANTED, SAMPLES)
        return payload[0], tf.math.count_nonzero(tf.abs(values) >= threshold)

    kept, reached = np.array([counts(tf.constant(step)) for step in range(300)]).T
    assert (kept >= 0.8 * WANTED).all() and (kept <= 1.3 * WANTED).all()
    misled = (reached < 0.8 * WANTED) | (reached > 1.3 * WANTED)
    # Reached over wanted is nearly gamma-distributed with shape 100 and mean 1, less spread for a
    # sample of a tenth of the items: 1 or 2 % are outside.
    assert 1 <= misled.sum() <= 12
    assert (kept[misled] == 1.3 * WANTED).all()
    np.testing.assert_array_equal(kept[~misled], reached[~misled])


def test_a_misled_payload_is_that_of_the_largest_items():
    """Of the sample's items twice the rank that is looked at are large, and few besides."""
    codec = Compression.from_spec(f"sampled_threshold:density={DENSITY}").build()
    layout = codec.transform.layout(SIZE)
    draw = base.Draw(bucket=0, worker=0, step=tf.constant(3))
    values = np.linspace(1, 2, SIZE, dtype=np.float32)
    values[random_k_reference.draw(draw.own_key(0, part=1).numpy(), SIZE, SAMPLES)[:200]] = 100
    encoded = codec.encode(tf.constant(values), tf.zeros(SIZE), layout, draw)
    largest = np.argsort(-values, kind="stable")[:1300]
    np.testing.assert_array_equal(np.flatnonzero(encoded.residual.numpy() == 0), np.sort(largest))
