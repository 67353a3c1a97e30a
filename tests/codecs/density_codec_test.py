# SPDX-License-Identifier: Apache-2.0
"""A density that changes from step to step: counts as of numbers, and no function traced again."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
import top_k_reference

from tf_gradcomp.codecs import base, registry, top_k
from tf_gradcomp.codecs.dithering import Dithering
from tf_gradcomp.codecs.entropy import EntropyFloat
from tf_gradcomp.codecs.narrow_float import Float8E5M2
from tf_gradcomp.codecs.one_bit import OneBit
from tf_gradcomp.codecs.range_float import RangeFloat
from tf_gradcomp.codecs.uniform import Uniform
from tf_gradcomp.compression import Compression

QUANTIZERS = [
    *(registry.build(name, {}).quantizer for name in registry.quantizers()),
    Dithering(levels=3, block=0),
    Dithering(levels=5, block=32, norm_code="natural"),
    EntropyFloat(bits=3.125),
    Float8E5M2(block=32),
    OneBit(block=0),
    RangeFloat(bits=7),
    Uniform(bits=3, block=96),
]


@hypothesis.given(
    st.floats(1e-7, 1.0) | st.integers(1, 1000).map(lambda n: n / 1000),
    st.integers(1, 300) | st.integers(1, 2**32 - 1),
)
@hypothesis.example(0.07, 100)  # 7.000000000000001 are 7
@hypothesis.example(0.2500000000004, 1_000_000)
@hypothesis.example(0.2500000000006, 1_000_000)
@hypothesis.example(0.7, 2**32 - 1)
def test_a_density_means_as_many_items_as_the_format_says(density, num_items):
    expected = top_k_reference.num_kept(density, num_items)
    assert top_k.num_kept(density, num_items) == expected
    count = top_k.num_kept(tf.constant(density, tf.float64), num_items)
    assert count.dtype == tf.int64
    assert int(count) == expected


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=str)
def test_words_of_a_tensor_are_those_of_the_number(quantizer):
    words = tf.function(quantizer.num_words, autograph=False)
    for count in [0, 1, 2, 3, 31, 32, 33, 4095, 4096, 4097, 100_003, 2**31 + 5]:
        assert int(words(tf.constant(count, tf.int64))) == quantizer.num_words(count)
    assert words.experimental_get_tracing_count() == 1


def test_a_thousand_changes_trace_no_function_again():
    codec = Compression.from_spec("fft:chunk=64").build()
    layout = codec.transform.layout(500)
    values = np.random.default_rng(0).normal(size=layout.shape).astype(np.float32)

    @tf.function(autograph=False)
    def sent(density, step):
        draw = base.Draw(0, 0, step)
        changed = codec.at(density)
        encoded = changed.encode(tf.constant(values), tf.zeros_like(values), layout, draw)
        total, _ = changed.decode_sum(encoded.payload[tf.newaxis], layout, draw)
        return tf.size(encoded.payload), total + encoded.residual

    for number in range(1, 1001):
        density = number / 1000
        size, total = sent(tf.constant(density, tf.float64), tf.constant(number))
        static = dataclasses.replace(codec, sparsifier=top_k.TopK(density))
        assert int(size) == static.num_words(layout)
        np.testing.assert_allclose(total, values, rtol=1e-5, atol=1e-5)
    assert sent.experimental_get_tracing_count() == 1


def test_a_static_density_leaves_shapes_static():
    for name in registry.adjustable("density"):
        codec = Compression(name).build()
        layout = codec.transform.layout(5000)
        draw = base.Draw(0, 0, tf.constant(1))

        @tf.function(autograph=False)
        def shapes(codec=codec, layout=layout, draw=draw):
            payload = codec.encode(tf.zeros(layout.shape), None, layout, draw).payload
            assert payload.shape == (codec.num_words(layout),)
            assert codec.decode_sum(payload[tf.newaxis], layout, draw)[0].shape == layout.shape

        shapes.get_concrete_function()
