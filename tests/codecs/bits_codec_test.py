# SPDX-License-Identifier: Apache-2.0
"""Bits that change from step to step: payloads as of numbers, and no function traced again."""

import dataclasses

import loopback
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.codecs import base, registry
from tf_gradcomp.codecs.range_float import RangeFloat
from tf_gradcomp.codecs.top_k import TopK
from tf_gradcomp.codecs.uniform import Uniform
from tf_gradcomp.compression import Compression
from tf_gradcomp.exchanges.coder import BucketCoder
from tf_gradcomp.transports import TRANSPORTS

SIZE, NUM_WORKERS = 3000, 3
VARIABLES = [base.VariableShape((40, 50)), base.VariableShape((1000,))]
BITS = [8, 6, 7, 7, 8, 6]  # which both quantizers can have
DENSITIES = [0.1, 0.5, 0.1, 0.07, 0.3, 1.0]
SPECS = [
    "uniform",
    "uniform:stochastic=true,block=96",
    "topk:density=0.1,values=uniform",
    "randomk:density=0.1,values=range_float",
    "threshold:threshold=1.0,capacity=0.5,values=uniform",
    "fft:chunk=64",
    "fft:chunk=64,mantissa_bits=4",
    "dct:density=0.2",
]


def gradient(worker, step):
    return np.random.default_rng([worker, step]).standard_t(3, size=SIZE).astype(np.float32)


def codec_of(spec, **params):
    compression = Compression.from_spec(spec)
    return registry.build(compression.codec, {**dict(compression.params), **params})


@pytest.mark.parametrize(
    ("quantizer", "possible"),
    [
        (Uniform(), range(3, 9)),
        (Uniform(bits=8, block=96), range(3, 9)),
        (Uniform(stochastic=True), range(1, 9)),
        (RangeFloat(), range(6, 13)),
        (RangeFloat(mantissa_bits=4), range(6, 13)),
        (RangeFloat(mantissa_bits=7), range(9, 13)),
        (RangeFloat(bits=12, mantissa_bits=10), [12]),
    ],
    ids=str,
)
def test_words_are_those_of_the_nearest_bits_that_are_possible(quantizer, possible):
    counts = [0, 1, 33, 4097, 2**31 + 5]

    @tf.function(autograph=False)
    def words(values, bits):
        """Of numbers that the graph knows, and of ones that are known before."""
        numbers = [*tf.unstack(values), *counts]
        return tf.stack([quantizer.at(bits).num_words(number) for number in numbers])

    for bits in range(-1, 15):
        nearest = min(possible, key=lambda number, bits=bits: abs(number - bits))
        static = dataclasses.replace(quantizer, bits=nearest)
        expected = [static.num_words(count) for count in counts]
        found = words(tf.constant(counts, tf.int64), tf.constant(bits))
        np.testing.assert_array_equal(found, expected * 2)
    assert words.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("spec", SPECS)
def test_steps_are_those_of_their_bits_and_residuals_go_on(spec):
    """With bits and density changed at once, where there is a density to change."""
    codec = codec_of(spec)
    transform = codec.transform.fit(VARIABLES)
    layout = transform.layout(SIZE)

    def exchange(codec, coefficients, residual, draw):
        encoded = codec.encode(coefficients, residual, layout, draw)
        without_feedback = codec.encode(coefficients, None, layout, draw).payload
        payloads = tf.stack([encoded.payload, without_feedback])
        total, finite = codec.decode_sum(payloads, layout, draw)
        return encoded.payload, payloads, total, finite, encoded.residual

    @tf.function(autograph=False)
    def changing(coefficients, residual, step, bits, density):
        changed = codec.at(density if "density" in codec.adjustable else None, bits)
        return exchange(changed, coefficients, residual, base.Draw(1, 0, step))

    residual = tf.zeros(layout.shape)
    for step, (bits, density) in enumerate(zip(BITS, DENSITIES, strict=True)):
        value = gradient(0, step)
        if step == 3:
            value[SIZE // 2] = np.nan
        coefficients, number = transform.forward(tf.constant(value)), tf.constant(step)
        params = {"bits": bits, "density": density}
        static = codec_of(spec, **{name: params[name] for name in codec.adjustable})
        expected = exchange(static, coefficients, residual, base.Draw(1, 0, number))
        density = tf.constant(density, tf.float64)
        found = changing(coefficients, residual, number, tf.constant(bits), density)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs, strict=True)
        *_, finite, left = found
        assert bool(finite) == (step != 3)
        if finite:
            residual = left
    assert np.abs(residual).max() > 0
    assert changing.experimental_get_tracing_count() == 1


def test_a_thousand_changes_of_density_and_bits_trace_no_function_again():
    codec = codec_of("fft:chunk=64")
    assert codec.adjustable == {"density", "bits"}
    layout = codec.transform.layout(500)
    values = np.random.default_rng(0).normal(size=layout.shape).astype(np.float32)

    @tf.function(autograph=False)
    def sent(density, bits, step):
        draw = base.Draw(0, 0, step)
        changed = codec.at(density, bits)
        encoded = changed.encode(tf.constant(values), tf.zeros_like(values), layout, draw)
        total, _ = changed.decode_sum(encoded.payload[tf.newaxis], layout, draw)
        return tf.size(encoded.payload), total + encoded.residual

    for number in range(1, 1001):
        density, bits = number / 1000, 6 + number % 7
        size, meant = sent(tf.constant(density, tf.float64), tf.constant(bits), tf.constant(number))
        static = dataclasses.replace(
            codec, sparsifier=TopK(density), quantizer=RangeFloat(bits=bits)
        )
        assert int(size) == static.num_words(layout)
        np.testing.assert_allclose(meant, values, rtol=1e-5, atol=1e-5)
    assert sent.experimental_get_tracing_count() == 1


def test_the_last_change_counts_and_others_stay():
    codec = codec_of("topk:density=0.5,values=uniform")
    layout = codec.transform.layout(SIZE)
    draw = base.Draw(0, 0, tf.constant(0))

    def payload(codec):
        return codec.encode(tf.constant(gradient(0, 0)), None, layout, draw).payload

    changed = codec.at(bits=tf.constant(3)).at(tf.constant(0.25, tf.float64))
    changed = changed.at(bits=tf.constant(7)).at()
    expected = payload(codec_of("topk:density=0.25,values=uniform,bits=7"))
    np.testing.assert_array_equal(payload(changed), expected, strict=True)


@pytest.mark.parametrize("transport", sorted(set(TRANSPORTS) - {"all_reduce"}))
@pytest.mark.parametrize("spec", ["uniform:stochastic=true", "topk:values=uniform", "fft:chunk=64"])
def test_an_exchange_is_that_of_its_bits(spec, transport):
    """All transports but that for codecs of plain numbers, whose size is fixed."""
    codec = codec_of(spec)
    layout = codec.transform.layout(SIZE)

    def work(collectives):
        way = TRANSPORTS[transport](collectives)
        shard = layout.shard(way.num_shards(NUM_WORKERS))
        residuals = [tf.zeros(shape) for shape in way.residual_shapes(layout.shape, shard.shape)]
        words = []
        for step, bits in enumerate(BITS):
            draw = base.Draw(0, collectives.worker_index, tf.constant(step))
            meant = codec.transform.forward(tf.constant(gradient(draw.worker, step)))
            outcomes = []
            for at_bits in (codec.at(bits=tf.constant(bits)), codec_of(spec, bits=bits)):
                before = collectives.words_sent
                coder = BucketCoder(at_bits, shard, draw, NUM_WORKERS)
                outcomes.append(way.sum(coder, meant, residuals))
                words.append(collectives.words_sent - before)
            changing, static = outcomes
            np.testing.assert_array_equal(changing.total, static.total)
            for mine, theirs in zip(changing.residuals, static.residuals, strict=True):
                np.testing.assert_array_equal(mine, theirs)
            assert bool(changing.finite)
            residuals = static.residuals
        assert words[::2] == words[1::2]
        return changing.total.numpy()

    totals = loopback.run_workers(NUM_WORKERS, work)
    for total in totals[1:]:
        np.testing.assert_array_equal(total, totals[0])


def test_numbers_of_words_and_choices_stay_on_the_host():
    """Whatever device the rest is for: there, the operations that need them would wait for it."""
    codec = codec_of("topk:values=uniform")
    layout = codec.transform.layout(SIZE)
    with tf.Graph().as_default() as graph, tf.device("GPU:0"):
        with tf.device("CPU:0"):
            bits, step = tf.constant(5), tf.constant(1)
        draw = base.Draw(0, 0, step)
        changed = codec.at(bits=bits)
        words = changed.quantizer.num_words(7)
        payload = changed.encode(tf.zeros(layout.shape), None, layout, draw).payload
        changed.decode_sum(payload[tf.newaxis], layout, draw)
        choices = [op.inputs[0] for op in graph.get_operations() if "Case" in op.type]
    assert len(choices) == 3  # to encode, to decode, and whether all is finite
    assert payload.device.endswith("GPU:0")
    for scalar in (words, *choices):
        assert scalar.device.endswith("CPU:0")
