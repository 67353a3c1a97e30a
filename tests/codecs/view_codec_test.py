# SPDX-License-Identifier: Apache-2.0
"""Views as parts: the oracle's coefficients along the axes that a name means, and back."""

import math
import re

import numpy as np
import pytest
import tensorflow as tf
import view_reference

from tf_gradcomp.codecs.base import VariableShape
from tf_gradcomp.codecs.learned_basis import Rotation, Side
from tf_gradcomp.codecs.view import View
from tf_gradcomp.compression import Compression

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


@pytest.mark.parametrize(
    ("view", "names"),
    [
        ("hidden+learned", ["hidden+learned", "learned", "identity"]),
        ("spatial+output", ["output", "spatial+output", "output"]),
        ("spatial+input", ["input", "spatial+input", "identity"]),
        ("hidden", ["hidden", "identity", "identity"]),
        ("flat", ["flat", "flat", "flat"]),
        ("learned", ["learned", "learned", "identity"]),
        ("identity", ["identity", "identity", "identity"]),
    ],
)
def test_a_view_is_called_by_what_a_variable_has_of_it(view, names):
    fitted = View(view).fit([DENSE, CONVOLUTION, VECTOR])
    assert fitted.candidates == tuple((name,) for name in names)


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
    with pytest.raises(
        ValueError, match=r"must be identity, auto, auto\+learned, or some of output, in"
    ):
        View(view)


@pytest.mark.parametrize(
    "view",
    [
        "learned+hidden",
        "learned+learned",
        "learned+auto",
        "auto+hidden+learned",
        "identity+learned",
        "+learned",
        "unlearned",
    ],
)
def test_learned_is_the_last_name_of_axes(view):
    with pytest.raises(ValueError, match=f"and, as the last, learned, .* got '{re.escape(view)}'"):
        View(view)


def test_unknown_bases_are_refused():
    with pytest.raises(ValueError, match="basis must be one of dct, fft, got 'haar'"):
        View("auto", "haar")


# --- Learned bases -------------------------------------------------------------------------------

LEARNED = ["learned", "hidden+learned", "output+input+learned"]


def rotation(rng, size, rank):
    """Returns an orthogonal matrix as its two factors, and as it is: a product of reflections."""
    directions = rng.normal(size=(rank, size))
    dense = np.eye(size)
    for one in directions:
        dense = dense @ (np.eye(size) - 2 * np.outer(one, one) / (one @ one))
    vectors, values, others = np.linalg.svd(np.eye(size) - dense)
    left, right = vectors[:, :rank] * values[:rank], others[:rank]
    return Rotation(tf.constant(left, tf.float32), tf.constant(right, tf.float32)), dense


@pytest.mark.parametrize("view", LEARNED)
def test_learned_bases_turn_what_the_axes_before_them_make_of_a_variable(rng, view):
    """Variables without a side are transformed along the axes all the same."""
    variables = [VECTOR, DENSE, VariableShape((7, 1)), CONVOLUTION, VariableShape((1,))]
    transform = View(view).fit(variables)
    assert transform.learned == (None, Side(36, 130, True), None, Side(105, 65, False), None)
    rotations = {1: rotation(rng, 36, 5), 3: rotation(rng, 65, 9)}
    bases = [[rotations[i][0]] if i in rotations else [] for i in range(len(variables))]
    parts = [rng.normal(size=v.num_elements).astype(np.float32) for v in variables]
    bucket = np.concatenate(parts)
    turned = transform.at(bases=bases)
    coefficients = turned.forward(tf.constant(bucket))
    axes = view.removesuffix("learned").removesuffix("+") or "identity"
    expected = [oracle(p, v, axes, "dct") for p, v in zip(parts, variables, strict=True)]
    for index, side in enumerate(transform.learned):
        if side is not None:
            matrix, (_, dense) = expected[index].reshape(side[:2]), rotations[index]
            matrix = dense.T @ matrix if side.is_left else matrix @ dense
            expected[index] = matrix.ravel()
    np.testing.assert_allclose(coefficients, np.concatenate(expected), rtol=0, atol=2e-5)
    np.testing.assert_allclose(turned.inverse(coefficients, bucket.size), bucket, rtol=0, atol=2e-5)


@pytest.mark.parametrize("view", LEARNED)
def test_without_bases_the_axes_are_all_of_a_view(rng, view):
    variables = [DENSE, CONVOLUTION, VECTOR]
    bucket = rng.normal(size=sum(v.num_elements for v in variables)).astype(np.float32)
    axes = view.removesuffix("learned").removesuffix("+") or "identity"
    plain, learned = View(axes).fit(variables), View(view).fit(variables)
    zeros = [
        [Rotation(tf.zeros((n, 32)), tf.zeros((32, n))) for n in blocks]
        for blocks in ([36], [65], [])
    ]
    for transform in (learned, learned.at(), learned.at(bases=zeros)):
        coefficients = transform.forward(tf.constant(bucket))
        np.testing.assert_array_equal(coefficients, plain.forward(tf.constant(bucket)))
        np.testing.assert_array_equal(
            transform.inverse(coefficients, bucket.size),
            plain.inverse(coefficients, bucket.size),
        )


@pytest.mark.parametrize("view", LEARNED)
def test_a_bucket_of_which_nothing_is_known_has_no_side(rng, view):
    bucket = tf.constant(rng.normal(size=5000), tf.float32)
    assert View(view).fit([VariableShape((5000,))]).learned == (None,)
    axes = view.removesuffix("learned").removesuffix("+") or "identity"
    np.testing.assert_array_equal(View(view).forward(bucket), View(axes).forward(bucket))


@pytest.mark.parametrize(
    "view",
    ["identity", "auto", "auto+learned", "flat", "output+input", "learned", "hidden+learned"],
)
def test_specs_say_whether_a_basis_is_learned(view):
    spec = "topk:density=0.001" + ("" if view == "identity" else f",view={view}")
    compression = Compression.from_spec(spec)
    assert compression.to_spec() == spec
    assert Compression.from_dict(compression.to_dict()) == compression
    is_learned = view.endswith("learned")
    assert compression.learns == compression.changes == is_learned
    learned = compression.build().transform.fit([DENSE]).learned
    assert learned == (Side(36, 130, True) if is_learned else None,)


def test_candidates_have_learned_bases_of_sides_that_no_axis_of_theirs_is_on():
    transform = View("auto+learned").fit([DENSE, CONVOLUTION, VECTOR])
    assert transform.candidates == (
        # All of `hidden` and `input` is on the shorter side.
        ("identity", "hidden", "output", "input", "learned", "output+learned"),
        (
            *("identity", "spatial", "output", "input"),
            *("learned", "spatial+learned", "input+learned"),
        ),
        ("identity",),
    )
    assert transform.learned_candidates() == [
        [False] * 4 + [True] * 2 + [False],
        [False] * 4 + [True] * 3,
        [False] * 7,
    ]
    # One of its axes is along the side of 20, the other is not.
    (names,) = View("auto+learned").fit([VariableShape((20, 30))]).candidates
    assert names == ("identity", "output", "input", "output+input", "learned", "output+learned")


@pytest.mark.parametrize(
    "variable",
    [
        DENSE,
        VariableShape((3, 5, 8, 65)),
        VariableShape((210, 96), hidden=(5, 6, 7)),
        VariableShape((64, 100)),
        VariableShape((1, 3, 70, 100)),
        VariableShape((9, 9, 3, 64)),
        VariableShape((90, 2, 33)),
        VariableShape((3, 30, 88)),
    ],
    ids=lambda variable: "x".join(map(str, variable.shape)),
)
def test_in_any_view_a_basis_is_learned_from_the_same_gram_matrix(rng, variable):
    """Of all samples: what is transformed along the other side changes which one holds what."""
    transform = View("auto+learned").fit([VECTOR, variable])
    side = transform.learned[1]
    bases = [[], [rotation(rng, side.length, 5)[0]]]
    bucket = rng.normal(size=200 + variable.num_elements).astype(np.float32)
    matrix = bucket[200:].reshape(side[:2]).astype(np.float64)
    expected = matrix @ matrix.T if side.is_left else matrix.T @ matrix
    num_samples, rest = divmod(side.across, side.num_sampled)
    assert rest == 0
    for number in range(len(transform.candidates[1])):
        now = transform.at(tf.constant([0, number]), bases)
        coefficients = now.forward(tf.constant(bucket))
        total = np.zeros_like(expected)
        for step in range(3, 3 + num_samples):
            (sample,) = now.samples(coefficients, tf.constant(step))
            total += side.grams(sample)[0].numpy()
        np.testing.assert_allclose(total, expected, rtol=0, atol=1e-5 * expected.max())
