# SPDX-License-Identifier: Apache-2.0
"""What every registered codec must do, whatever it is made of."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.codecs import base, random_k, registry
from tf_gradcomp.compression import Compression

ROOT = Path(__file__).parents[1]
SIZES = [1, 2, 31, 33, 4097, 100_003]
DRAW = base.Draw(bucket=1, worker=0, step=tf.constant(7))
SPECS = [
    *(name for name in registry.names() if isinstance(registry.build(name, {}), base.Codec)),
    *(f"fft:values={name}" for name in registry.quantizers()),  # values as they come from items
    "fft:density=1.0",
    "fft:density=0.000001",
    "fft:density=0.01,bits=6,mantissa_bits=1",
    "fft:bits=12,mantissa_bits=10,chunk=none",
    "fft:chunk=2",
    "topk:density=1.0",
    "topk:view=flat,basis=fft",
    "topk:values=natural",
    "topk:values=dithering",
    "topk:chunk=64,density=0.1",
    "topk:chunk=65536,values=bfloat16",
    "block_topk:density=0.1,values=bfloat16",
    "block_topk:block=9,density=0.3",
    "block_threshold:threshold=0,capacity=1.0,block=8",
    "randomk:density=0.3,values=onebit",
    "threshold:threshold=0,capacity=1.0",
    "adaptive_threshold:ratio=1.0,values=bfloat16",
    "sampled_threshold:density=0.2,values=uniform",
    "sidco:values=float16",
    "sidco:density=0.1,fit=exponential,stages=1",
    "dithering:levels=1,kind=standard",
    "dithering:levels=255,kind=standard,norm=l2,block=512",
    "dithering:levels=4,norm=l2,block=0,norm_code=natural",
    "uniform:bits=8,stochastic=true",
    "uniform:bits=1,block=32,stochastic=true",
    "onebit:block=0",
    "float8_e4m3:block=65536",
    "entropy:bits=3",
]
# What can change from step to step: its type, and some values.
CHANGES = {"density": (tf.float64, (0.25, 1.0)), "bits": (tf.int32, (8, -1, 7, 99))}


def changed(compression, field, value):
    """Returns the codec with another value of a parameter."""
    params = {**dict(compression.params), field: value}
    return Compression(compression.codec, tuple(params.items())).build()


def nearest_possible(compression, field, value):
    """Returns the bits nearest to some that a codec can have; densities are as they are."""
    if field == "density":
        return value

    def is_possible(bits):
        try:
            changed(compression, field, bits)
        except ValueError:
            return False
        return True

    return min(filter(is_possible, range(33)), key=lambda bits: abs(bits - value))


def samples(size):
    rng = np.random.default_rng(size)
    values = rng.standard_t(3, size=size).astype(np.float32)
    return {
        "heavy tails": values,
        "zeros": np.zeros(size, np.float32),
        "tiny": values * np.float32(1e-30),
        "large": values * np.float32(1e28),
        "one value": np.eye(1, size, size // 2, dtype=np.float32)[0],
    }


@pytest.fixture(params=SPECS)
def codec(request):
    return Compression.from_spec(request.param).build()


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if Compression.from_spec(spec).build().biased]
)
def test_what_is_left_over_does_not_grow_by_itself(spec):
    """Sent again and again, with nothing new: error feedback diverges with a codec that adds.

    What an unbiased codec leaves is a random walk, and has no error feedback unless asked for.
    """
    codec = Compression.from_spec(spec).build()
    values = np.random.default_rng(3).standard_t(3, size=3000).astype(np.float32)
    coefficients = codec.transform.forward(tf.constant(values))
    layout = codec.transform.layout(3000)
    zeros = tf.zeros_like(coefficients)
    largest = np.abs(coefficients).max()
    residual = zeros
    for step in range(30):
        draw = DRAW._replace(step=tf.constant(step))
        residual = codec.encode(coefficients, residual, layout, draw).residual
        coefficients = zeros
        assert np.abs(residual).max() <= largest * (1 + 1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_payload_has_the_promised_size_and_decoding_the_promised_shape(codec, size):
    for values in samples(size).values():
        coefficients = codec.transform.forward(tf.constant(values))
        layout = codec.transform.layout(size)
        encoded = codec.encode(coefficients, None, layout, DRAW)
        assert encoded.payload.dtype == tf.int32
        assert encoded.payload.shape == (codec.num_words(codec.transform.layout(size)),)
        total, finite = codec.decode_sum(tf.stack([encoded.payload] * 3), layout, DRAW)
        assert tuple(total.shape) == layout.shape
        assert codec.transform.inverse(total, size).shape == (size,)
        assert bool(finite)


@pytest.mark.parametrize("size", SIZES)
def test_residual_is_what_was_meant_minus_what_is_decoded(codec, size):
    for values in samples(size).values():
        layout = codec.transform.layout(size)
        coefficients = codec.transform.forward(tf.constant(values)).numpy()
        zeros = tf.zeros(layout.shape)
        encoded = codec.encode(tf.constant(coefficients), zeros, layout, DRAW)
        decoded, _ = codec.decode_sum(encoded.payload[tf.newaxis], layout, DRAW)
        np.testing.assert_array_equal(encoded.residual, coefficients - decoded.numpy())
        if codec.lossless:
            np.testing.assert_array_equal(decoded, coefficients)


@pytest.mark.parametrize("size", SIZES)
def test_a_residual_is_added_to_what_is_encoded(codec, size):
    layout = codec.transform.layout(size)
    rng = np.random.default_rng(size)
    coefficients, residual = (rng.normal(size=layout.shape).astype(np.float32) for _ in range(2))
    zeros = np.zeros(layout.shape, np.float32)
    expected = codec.encode(tf.constant(coefficients + residual), tf.constant(zeros), layout, DRAW)
    encoded = codec.encode(tf.constant(coefficients), tf.constant(residual), layout, DRAW)
    np.testing.assert_array_equal(encoded.payload, expected.payload)
    np.testing.assert_array_equal(encoded.residual, expected.residual)
    assert codec.encode(tf.constant(coefficients), None, layout, DRAW).residual is None


@pytest.mark.parametrize("size", [1, 4097])
@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.parametrize("spec", SPECS)
def test_what_only_the_graph_knows_gives_the_same_bits(spec, field, size):
    compression = Compression.from_spec(spec)
    codec = compression.build()
    layout = codec.transform.layout(size)
    dtype, values = CHANGES[field]
    if field not in codec.adjustable:
        with pytest.raises(NotImplementedError, match=field):
            codec.at(**{field: tf.constant(values[0], dtype)})
        return
    rng = np.random.default_rng(size)
    coefficients, residual = (rng.standard_t(3, layout.shape).astype(np.float32) for _ in range(2))

    def there_and_back(codec):
        encoded = codec.encode(tf.constant(coefficients), tf.constant(residual), layout, DRAW)
        repaid = codec.encode(tf.constant(coefficients), None, layout, DRAW)
        total, finite = codec.decode_sum(tf.stack([encoded.payload] * 2), layout, DRAW)
        rest = codec.without(tf.constant(coefficients), encoded.positions, layout)
        assert total.shape == encoded.residual.shape == rest.shape == layout.shape
        return encoded.payload, encoded.residual, repaid.payload, total, finite, rest

    @tf.function(autograph=False)
    def at(value):
        return there_and_back(codec.at(**{field: value}))

    for value in (*values, dict(compression.params)[field], values[0]):
        possible = nearest_possible(compression, field, value)
        expected = there_and_back(changed(compression, field, possible))
        actual = at(tf.constant(value, dtype))
        for mine, theirs in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs, strict=True)
    assert at.experimental_get_tracing_count() == 1


def test_only_the_draw_of_a_stochastic_codec_changes_its_payload(codec):
    size = 20_000
    layout = codec.transform.layout(size)
    values = np.random.default_rng(0).normal(size=size).astype(np.float32)
    coefficients = codec.transform.forward(tf.constant(values))
    draws = [DRAW, DRAW._replace(step=tf.constant(8)), DRAW._replace(bucket=2)]
    payloads = [
        codec.encode(coefficients, None, layout, draw).payload.numpy().tobytes() for draw in draws
    ]
    again = codec.encode(coefficients, None, layout, DRAW).payload.numpy().tobytes()
    assert again == payloads[0]
    assert len(set(payloads)) == (3 if codec.stochastic else 1)


def test_workers_draw_differently_unless_the_choice_is_shared(codec):
    size = 20_000
    layout = codec.transform.layout(size)
    values = np.random.default_rng(0).normal(size=size).astype(np.float32)
    coefficients = codec.transform.forward(tf.constant(values))
    payloads = [
        codec.encode(coefficients, None, layout, DRAW._replace(worker=worker)).payload
        for worker in range(2)
    ]
    shared = isinstance(codec.sparsifier, random_k.RandomK)
    differ = codec.stochastic and not (shared and not codec.quantizer.stochastic)
    assert (payloads[0].numpy() != payloads[1].numpy()).any() == differ


def test_an_unbiased_codec_is_right_on_average(codec):
    assert codec.biased or codec.stochastic or codec.lossless
    if codec.biased or not codec.stochastic:
        return
    size, num_draws = 300, 2000
    layout = codec.transform.layout(size)
    values = np.random.default_rng(0).normal(size=size).astype(np.float32)

    @tf.function
    def decoded(step):
        draw = DRAW._replace(step=step)
        payload = codec.encode(tf.constant(values), None, layout, draw).payload
        return codec.decode_sum(payload[tf.newaxis], layout, draw)[0]

    samples = np.stack([decoded(tf.constant(step)).numpy() for step in range(num_draws)])
    deviation = samples.std(axis=0) / np.sqrt(num_draws)
    errors = np.abs(samples.mean(axis=0, dtype=np.float64) - values)
    # What happens with a probability of 12 / num_draws may still never have been drawn.
    never_drawn = 12 / num_draws * np.abs(samples - values).max()
    assert (errors <= 5.5 * deviation + never_drawn).all()


@pytest.mark.parametrize("values", registry.quantizers())
@pytest.mark.parametrize("name", registry.sparsifiers())
def test_a_quantizer_changes_no_default_of_the_codec_around_it(name, values):
    """Parts that have a field of the same name share its value, on purpose or by accident."""
    usual = registry.parameters(name, {})
    changed = registry.parameters(name, {"values": values})
    quantizer = registry.parameters(usual["values"], {})
    for field in usual.keys() - quantizer.keys() - {"values"}:
        assert changed[field] == usual[field]


def test_sum_is_taken_in_float32_and_in_worker_order(codec):
    size = 5000
    layout = codec.transform.layout(size)
    payloads, decoded = [], []
    for worker in range(4):
        values = np.random.default_rng(worker).standard_t(2, size=size).astype(np.float32)
        encoded = codec.encode(codec.transform.forward(tf.constant(values)), None, layout, DRAW)
        payloads.append(encoded.payload)
        decoded.append(codec.decode_sum(encoded.payload[tf.newaxis], layout, DRAW)[0].numpy())
    expected = decoded[0]
    for values in decoded[1:]:
        expected = expected + values
    total, _ = codec.decode_sum(tf.stack(payloads), layout, DRAW)
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", registry.addable())
def test_addends_are_what_is_decoded(name, size):
    codec = Compression(name).build()
    layout = codec.transform.layout(size)
    for values in samples(size).values():
        payload = codec.encode(tf.constant(values), None, layout, DRAW).payload
        addends = codec.addends(payload, layout)
        assert addends.dtype == codec.addable
        decoded, _ = codec.decode_sum(payload[tf.newaxis], layout, DRAW)
        np.testing.assert_array_equal(addends.numpy().astype(np.float32), decoded)
        values[-1] = -np.inf
        payload = codec.encode(tf.constant(values), None, layout, DRAW).payload
        assert not np.isfinite(np.float32(codec.addends(payload, layout))).all()


def test_only_plain_floats_can_be_added_up():
    """Not those with a scale beside them, nor what a sparsifier leaves: positions differ."""
    assert registry.addable() == ["bfloat16", "float16", "identity"]
    for spec in SPECS:
        codec = Compression.from_spec(spec).build()
        assert (codec.addable is not None) == (spec in registry.addable())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_worker_s_inf_or_nan_is_seen_by_all(codec, bad):
    size = 10_000
    layout = codec.transform.layout(size)
    values = [np.ones(size, np.float32) for _ in range(2)]
    values[1][size - 1] = bad
    payloads = [
        codec.encode(codec.transform.forward(tf.constant(v)), None, layout, DRAW).payload
        for v in values
    ]
    total, finite = codec.decode_sum(tf.stack(payloads), layout, DRAW)
    assert not bool(finite)
    assert not np.isfinite(codec.transform.inverse(total, size).numpy()).all()


@pytest.mark.parametrize("name", registry.names())
def test_every_codec_is_documented(name):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in readme


def test_random_k_refuses_a_worker_that_is_out_of_step():
    codec = Compression.from_spec("randomk:density=0.1").build()
    layout = codec.transform.layout(1000)
    payloads = [
        codec.encode(tf.ones(1000), None, layout, DRAW._replace(step=tf.constant(step))).payload
        for step in (7, 8)
    ]
    with pytest.raises(tf.errors.InvalidArgumentError, match="different exchanges"):
        codec.decode_sum(tf.stack(payloads), layout, DRAW)


def test_coarse_rounding_to_nearest_is_refused():
    with pytest.raises(ValueError, match="bits must be at least 3, or stochastic"):
        Compression.from_spec("uniform:bits=2")
