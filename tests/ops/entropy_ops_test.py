# SPDX-License-Identifier: Apache-2.0
"""Entropy ops against the oracle, bit for bit, and the properties claimed for the code."""

import entropy_reference as reference
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, sample

from tf_gradcomp.ops import entropy

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
# Around streams of 1024 values and units of four of them.
SIZES = [0, 1, 2, 3, 7, 33, 1000, 1023, 1024, 1025, 2049, 4095, 4097, 12289]


def same_bits(a, b) -> None:
    a, b = (np.ascontiguousarray(x).view(np.uint32) for x in (a, b))
    np.testing.assert_array_equal(a, b)


def assert_as_oracle(values, bits, residual=None) -> np.ndarray:
    """Checks both ops; returns the words."""
    expected = reference.encode(values, bits, residual)
    words, error = entropy.entropy_encode(values, bits, residual)
    same_bits(words.numpy(), expected)
    decoded = reference.decode(expected, values.size, bits)
    x = reference.meant(values, residual)
    same_bits(error.numpy(), x - decoded if np.isfinite(x).all() else np.zeros_like(x))
    words, error = entropy.entropy_encode(values, bits, residual, with_error=False)
    same_bits(words.numpy(), expected)
    assert error.shape == [0]
    stacked = np.stack([expected, expected, expected]).view(np.int32)
    rows = entropy.entropy_decode(stacked, values.size, bits)
    same_bits(rows.numpy(), np.stack([decoded] * 3))
    with np.errstate(over="ignore"):
        total = np.float32(0) + decoded + decoded + decoded
    same_bits(entropy.entropy_decode(stacked, values.size, bits, sum=True).numpy(), total)
    return expected


def round_trip(values, bits, residual=None) -> np.ndarray:
    words, _ = entropy.entropy_encode(values, bits, residual)
    return entropy.entropy_decode(words[None], values.size, bits).numpy()[0]


# ---- equality with the oracle


@pytest.mark.parametrize("v", SIZES)
def test_sizes(v, rng):
    for bits in (4, 10.5):
        assert_as_oracle(sample("gauss", v, rng), bits, sample("laplace", v, rng))


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
def test_kinds_of_values(kind, rng):
    for bits, residual in [
        (4, None),
        (7.125, sample("gauss", 5001, rng)),
        (24, sample("wide", 5001, rng)),
    ]:
        assert_as_oracle(sample(kind, 5001, rng), bits, residual)
