# SPDX-License-Identifier: Apache-2.0
"""Views as parts: the oracle's coefficients along the axes that a name means, and back."""

import math

import numpy as np
import pytest
import tensorflow as tf
import view_reference

from tf_gradcomp.codecs.base import VariableShape
from tf_gradcomp.codecs.view import View

DENSE = VariableShape((36, 130), hidden=(3, 4, 3))
CONVOLUTION = VariableShape((3, 5, 7, 65))
VECTOR = VariableShape((200,))


def oracle(values, variable, view, basis):
    """What `view` means, written out for each name and rank."""
    for name in view.split("+"):
        rank = len(variable.shape)
        shape, axes = {
            "identity": (variable.shape, []),
            "flat": ((-1,), [0]),
            "output": (variable.shape, [rank - 1]),
            "input": (variable.shape, [rank - 2] if rank > 1 else []),
            "spatial": (variable.shape, list(range(rank - 2))),
            "hidden": ((*variable.hidden, -1), [0, 1]) if variable.hidden else ((-1,), []),
        }[name]
        array = values.reshape(shape)
        for axis in axes:
            array = view_reference.along(array, axis, basis)
        values = array.ravel()
    return values


@pytest.mark.parametrize("basis", ["dct", "fft"])
@pytest.mark.parametrize(
    "view",
    ["identity", "flat", "output", "input", "spatial", "hidden", "hidden+output", "input+output"],
)
def test_coefficients_are_the_oracle_s_and_the_inverse_brings_the_bucket_back(rng, view, basis):
    variables = [DENSE, CONVOLUTION, VECTOR]
    parts = [rng.normal(size=v.num_elements).astype(np.float32) for v in variables]
    bucket = np.concatenate(parts)
    transform = View(view, basis).fit(variables)
    assert transform.layout(bucket.size).shape == bucket.shape
    coefficients = transform.forward(tf.constant(bucket))
    expected = [oracle(p, v, view, basis) for p, v in zip(parts, variables, strict=True)]
    np.testing.assert_allclose(coefficients, np.concatenate(expected), rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        transform.inverse(coefficients, bucket.size), bucket, rtol=0, atol=1e-5
    )
    assert np.linalg.norm(coefficients) == pytest.approx(np.linalg.norm(bucket), rel=1e-6)


def test_no_view_keeps_the_bits(rng):
    bucket = rng.integers(0, 2**32, 130 * 36, dtype=np.uint32).view(np.float32)
    for transform in (View(), View().fit([DENSE])):
        kept = transform.inverse(transform.forward(tf.constant(bucket)), bucket.size)
        assert kept.numpy().tobytes() == bucket.tobytes()


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        (DENSE, ("identity", "hidden", "output", "input")),
        (CONVOLUTION, ("identity", "spatial", "output", "input")),
        (VariableShape((8, 9)), ("identity", "output", "input", "output+input")),
        (VariableShape((1, 9)), ("identity", "output")),
        (VECTOR, ("identity",)),
        (VariableShape(()), ("identity",)),
    ],
)
def test_candidates_are_the_axes_that_a_variable_has(variable, names):
    assert View("auto").fit([variable]).candidates == (names,)


def test_a_choice_selects_each_variable_s_view(rng):
    variables = [DENSE, VECTOR, CONVOLUTION]
    bucket = rng.normal(size=sum(v.num_elements for v in variables)).astype(np.float32)
    automatic = View("auto").fit(variables)

    @tf.function
    def there_and_back(choice):
        transform = automatic.at(choice)
        coefficients = transform.forward(bucket)
        return coefficients, transform.inverse(coefficients, bucket.size)

    coefficients, back = there_and_back(tf.constant([1, 0, 3]))
    starts = np.cumsum([0, *(v.num_elements for v in variables)])
    for variable, view, start, end in zip(
        variables, ("hidden", "identity", "input"), starts, starts[1:], strict=False
    ):
        expected = View(view).fit([variable]).forward(tf.constant(bucket[start:end]))
        np.testing.assert_array_equal(coefficients[start:end], expected)
    np.testing.assert_allclose(back, bucket, rtol=0, atol=1e-5)
    # Without a choice, the first candidates: none.
    np.testing.assert_array_equal(automatic.forward(tf.constant(bucket)), bucket)


def test_kept_energy_is_that_of_the_largest_coefficients(rng):
    variables = [DENSE, VECTOR]
    bucket = rng.standard_t(3, size=36 * 130 + 200).astype(np.float32)
    energies = View("auto").fit(variables).kept_energy(tf.constant(bucket), density=0.03)
    assert energies.dtype == tf.float64
    parts = np.split(bucket, [36 * 130])
    for row, variable, part, names in zip(
        energies.numpy(),
        variables,
        parts,
        [("identity", "hidden", "output", "input"), ("identity",)],
        strict=True,
    ):
        count = math.ceil(0.03 * part.size)
        for energy, name in zip(row, names, strict=False):
            largest = np.sort(oracle(part, variable, name, "dct") ** 2)[-count:]
            assert energy == pytest.approx(largest.sum(), rel=1e-5)
        assert not row[len(names) :].any()


@pytest.mark.parametrize(
    "view", ["", "rows", "auto+input", "input+input", "identity+input", 3, None]
)
def test_unknown_views_are_refused(view):
    with pytest.raises(ValueError, match="view must be identity, auto, or some of output, input"):
        View(view)


def test_unknown_bases_are_refused():
    with pytest.raises(ValueError, match="basis must be one of dct, fft, got 'haar'"):
        View("auto", "haar")
