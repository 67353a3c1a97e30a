# SPDX-License-Identifier: Apache-2.0
"""Low-rank methods as parts: bases for any factor, which matrices are factored, sizes, specs."""

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp import methods
from tf_gradcomp.codecs.low_rank import ACPSGD, PowerSGD, orthonormal
from tf_gradcomp.compression import Compression

EPSILON = np.finfo(np.float32).eps


def factor(kind, n, r):
    rng = np.random.default_rng([n, r])
    values = rng.normal(size=(n, r))
    return {
        "random": values,
        "zero": np.zeros((n, r)),
        "rank 1": np.outer(values[:, 0], values[0] + 3),
        "a zero column": values * (np.arange(r) != 0),
        "columns of all sizes": values * 10.0 ** -np.arange(r),
        "large": values * 1e37,
        "tiny": values * 1e-30,
        "denormal": values * 1e-42,
    }[kind].astype(np.float32)


KINDS = [
    "random", "zero", "rank 1", "a zero column", "columns of all sizes", "large", "tiny", "denormal"
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "r"), [(2, 1), (3, 2), (7, 3), (500, 4), (3000, 32)])
def test_a_basis_is_orthonormal_whatever_the_factor_and_contains_its_columns(kind, n, r):
    values = factor(kind, n, r)
    basis = orthonormal(tf.constant(values), seed=0).numpy()
    bound = 8 * r * np.sqrt(n) * EPSILON
    np.testing.assert_allclose(basis.T @ basis, np.eye(r), rtol=0, atol=bound)
    if kind != "denormal":  # of which little more than the sign is left
        exact, basis = values.astype(np.float64), basis.astype(np.float64)
        left_out = exact - basis @ (basis.T @ exact)
        # The noise and the roundings, of the largest value's size, in every column.
        assert np.abs(left_out).max() <= 8 * bound * np.abs(exact).max()


def test_directions_that_a_factor_leaves_open_are_random_and_the_seed_s():
    zeros = tf.zeros((100, 4))
    first, again, other = (orthonormal(zeros, seed).numpy() for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first).min() > 0
    # Two random spaces: the cosines of their angles are far from 1.
    assert np.linalg.svd(first.T @ other, compute_uv=False).max() < 0.7
    line = np.zeros((100, 4), np.float32)
    line[50] = 1
    basis = orthonormal(tf.constant(line), 0).numpy()
    np.testing.assert_allclose(np.abs(basis[50, 0]), 1, rtol=1e-5)
    assert np.abs(np.delete(basis, 50, axis=0)[:, 1:]).min() > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_factor_that_is_not_finite_has_no_finite_basis(bad):
    for n, r in [(2, 1), (50, 3)]:
        for position in [(0, 0), (n - 1, r - 1)]:
            values = factor("random", n, r)
            values[position] = bad
            assert not np.isfinite(orthonormal(tf.constant(values), 0).numpy()).all()


@pytest.mark.parametrize("method", [PowerSGD, ACPSGD])
@pytest.mark.parametrize(
    ("shape", "rank", "matrix"),
    [
        ((64, 100), 4, (64, 100)),
        ((3, 3, 16, 100), 4, (144, 100)),
        ((8, 8), 4, None),  # both factors: 64 values, as many as the matrix
        ((8, 9), 4, (8, 9)),
        ((100, 4), 4, None),
        ((100, 5), 4, (100, 5)),
        ((1, 1000), 1, None),
        ((5, 6), 100, None),
        ((10_000,), 4, None),
        ((), 4, None),
    ],
)
def test_what_is_factored(method, shape, rank, matrix):
    assert method(rank).matrix_shape(shape) == matrix


def test_words_are_those_of_the_factors_and_of_what_travels_along():
    shapes = [(64, 100), (3, 3, 16, 101), (8, 8), (300,), ()]
    raw = 64 + 300 + 1
    assert PowerSGD(4).num_words(shapes) == 4 * (64 + 100) + 4 * (144 + 101) + raw
    assert ACPSGD(4).num_words(shapes) == 2 * (64 + 100) + 2 * (144 + 101) + raw
    assert ACPSGD(1).num_words([(64, 101)]) == 82.5


def test_numbers_of_a_type_share_a_message():
    matrices, vector = [(64, 100), (3, 3, 16, 101)], (300,)
    n, m = 64 + 144, 100 + 101
    assert PowerSGD(4).message_words([*matrices, vector]) == [4 * n + 300, 4 * m]
    assert ACPSGD(4).message_words([*matrices, vector]) == [2 * (n + m) + 300]
    assert PowerSGD(4, "bfloat16").message_words([*matrices, vector]) == [2 * n, 300, 2 * m]
    assert PowerSGD(4, "bfloat16").message_words(matrices) == [2 * n, 2 * m]
    assert ACPSGD(4, "bfloat16").message_words([vector, *matrices]) == [n + m, 300]


@pytest.mark.parametrize("name", ["powersgd", "acpsgd"])
@pytest.mark.parametrize(
    ("params", "words"),
    [
        ("rank=0", ["rank", "[1, 32768]", "got 0"]),
        ("rank=-1", ["rank", "got -1"]),
        ("rank=1.5", ["rank", "got 1.5"]),
        ("rank=true", ["rank", "got True"]),
        ("rank=four", ["rank", "'four'"]),
        ("rank=32769", ["rank", "got 32769"]),
        ("seed=-1", ["seed", "got -1"]),
        ("density=0.1", ["'density'", "rank", "seed"]),
        ("values=natural", ["values", "float32, bfloat16", "'natural'"]),
    ],
)
def test_bad_specs_say_what_is_wrong(name, params, words):
    with pytest.raises(ValueError) as error:
        Compression.from_spec(f"{name}:{params}")
    for word in [name, *words]:
        assert word in str(error.value)


def test_specs_and_methods():
    assert methods.powersgd(2).to_spec() == "powersgd:rank=2"
    assert methods.acp_sgd() == Compression.from_spec("acpsgd:rank=4,error_feedback=true")
    assert methods.powersgd(3).build() == PowerSGD(3)
    assert methods.acp_sgd(2, "bfloat16").to_spec() == "acpsgd:rank=2,values=bfloat16"
