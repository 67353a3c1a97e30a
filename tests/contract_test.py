# SPDX-License-Identifier: Apache-2.0
"""What every registered codec must do, whatever it is made of."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.codecs import registry
from tf_gradcomp.compression import Compression

ROOT = Path(__file__).parents[1]
SIZES = [1, 2, 31, 33, 4097, 100_003]
SPECS = [
    *registry.names(),
    "fft:density=1.0",
    "fft:density=0.000001",
    "fft:density=0.01,bits=6,mantissa_bits=1",
    "fft:bits=12,mantissa_bits=10,chunk=none",
    "fft:chunk=2",
]


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


@pytest.mark.parametrize("size", SIZES)
def test_payload_has_the_promised_size_and_decoding_the_promised_shape(codec, size):
    for values in samples(size).values():
        coefficients = codec.transform.forward(tf.constant(values))
        layout = codec.transform.layout(size)
        encoded = codec.encode(coefficients, layout)
        assert encoded.payload.dtype == tf.int32
        assert encoded.payload.shape == (codec.num_words(size),)
        total, finite = codec.decode_sum(tf.stack([encoded.payload] * 3), layout)
        assert tuple(total.shape) == layout.shape
        assert codec.transform.inverse(total, size).shape == (size,)
        assert bool(finite)


@pytest.mark.parametrize("size", SIZES)
def test_residual_is_what_was_meant_minus_what_is_decoded(codec, size):
    for values in samples(size).values():
        layout = codec.transform.layout(size)
        coefficients = codec.transform.forward(tf.constant(values)).numpy()
        encoded = codec.encode(tf.constant(coefficients), layout)
        decoded, _ = codec.decode_sum(encoded.payload[tf.newaxis], layout)
        np.testing.assert_array_equal(encoded.residual, coefficients - decoded.numpy())
        if codec.lossless:
            np.testing.assert_array_equal(decoded, coefficients)


def test_sum_is_taken_in_float32_and_in_worker_order(codec):
    size = 5000
    layout = codec.transform.layout(size)
    payloads, decoded = [], []
    for worker in range(4):
        values = np.random.default_rng(worker).standard_t(2, size=size).astype(np.float32)
        encoded = codec.encode(codec.transform.forward(tf.constant(values)), layout)
        payloads.append(encoded.payload)
        decoded.append(codec.decode_sum(encoded.payload[tf.newaxis], layout)[0].numpy())
    expected = decoded[0]
    for values in decoded[1:]:
        expected = expected + values
    total, _ = codec.decode_sum(tf.stack(payloads), layout)
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_worker_s_inf_or_nan_is_seen_by_all(codec, bad):
    size = 10_000
    layout = codec.transform.layout(size)
    values = [np.ones(size, np.float32) for _ in range(2)]
    values[1][size - 1] = bad
    payloads = [
        codec.encode(codec.transform.forward(tf.constant(v)), layout).payload for v in values
    ]
    total, finite = codec.decode_sum(tf.stack(payloads), layout)
    assert not bool(finite)
    assert not np.isfinite(codec.transform.inverse(total, size).numpy()).all()


@pytest.mark.parametrize("name", registry.names())
def test_every_codec_is_documented(name):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in readme
