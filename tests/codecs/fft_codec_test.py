# SPDX-License-Identifier: Apache-2.0
"""The FFT transform as a part: linear, invertible, padded to rows that are fast to transform."""

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.codecs.fft import FFT, next_fast_length

SIZES = [1, 2, 3, 63, 64, 65, 1000, 4096, 4097, 20_011]
CHUNKS = [None, 2, 64, 4096]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("size", SIZES)
def test_coefficients_are_the_rows_spectra_and_the_inverse_brings_them_back(rng, size, chunk):
    bucket = rng.normal(size=size).astype(np.float32)
    transform = FFT(chunk)
    layout = transform.layout(size)
    coefficients = transform.forward(tf.constant(bucket))
    assert tuple(coefficients.shape) == layout.shape

    length = layout.row_length
    padded = np.zeros(-(-size // length) * length)
    padded[:size] = bucket
    spectra = np.fft.rfft(padded.reshape(-1, length)).ravel()
    assert layout.num_items == spectra.size
    got = coefficients.numpy()[:, 0] + 1j * coefficients.numpy()[:, 1]
    scale = np.abs(spectra).max()
    np.testing.assert_allclose(got, spectra, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(transform.inverse(coefficients, size), bucket, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_parseval_with_the_pair_weights_that_ranking_uses(rng, chunk):
    """The energy of an error in the bucket is that of its spectrum, pairs counted twice, over L."""
    bucket = rng.standard_t(3, size=10_000).astype(np.float32)
    transform = FFT(chunk)
    length = transform.layout(bucket.size).row_length
    spectrum = transform.forward(tf.constant(bucket)).numpy().astype(np.float64)
    energy = (spectrum**2).sum(axis=1).reshape(-1, length // 2 + 1)
    weights = np.full(length // 2 + 1, 2.0)
    weights[0] = weights[-1] = 1.0
    total = (energy * weights).sum() / length
    assert total == pytest.approx((bucket.astype(np.float64) ** 2).sum(), rel=1e-5)


def test_whole_bucket_rows_have_the_next_length_with_small_even_factors():
    def is_fast(length):
        for factor in (2, 3, 5):
            while length % factor == 0:
                length //= factor
        return length == 1

    for size in [*range(1, 400), 65_537, 1_000_003]:
        length = next_fast_length(size)
        assert length >= max(2, size)
        assert length % 2 == 0
        assert is_fast(length)
        assert not any(is_fast(n) for n in range(max(2, size + size % 2), length, 2))
