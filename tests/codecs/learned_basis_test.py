# SPDX-License-Identifier: Apache-2.0
"""Learned bases as parts: orthogonal matrices from Gram matrices, and turning into them."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.codecs import learned_basis
from tf_gradcomp.codecs.learned_basis import (
    MAX_EXACT,
    RANK,
    Rotation,
    Side,
    completed,
    leading_directions,
    rotation_of,
)

EPS = float(np.finfo(np.float32).eps)

# --- Orthogonal matrices with given first columns ------------------------------------------------


def check_completed(columns):
    """LAPACK's QR has the same reflectors, and with them the same columns beside the given ones."""
    n, rank = columns.shape
    left, right = completed(columns)
    assert left.shape == (n, rank) and right.shape == (rank, n)
    basis = np.eye(n) - left @ right
    # Given columns are orthonormal but for n roundings, and two small solves and products follow.
    atol = 64 * n * np.finfo(np.float64).eps
    np.testing.assert_allclose(basis.T @ basis, np.eye(n), rtol=0, atol=atol)
    signs = np.sign(np.sum(basis[:, :rank] * columns, axis=0))
    np.testing.assert_allclose(basis[:, :rank], signs * columns, rtol=0, atol=atol)
    expected = np.linalg.qr(columns + 0.0, mode="complete")[0]  # -0.0 has another reflector
    np.testing.assert_allclose(basis[:, rank:], expected[:, rank:], rtol=0, atol=atol)
    # What rounding is multiplied by. Elimination with other signs divides by any small number.
    assert np.linalg.norm(left, 2) <= 2 + atol
    assert np.linalg.norm(right, 2) <= rank + 1


@st.composite
def sizes(draw, most):
    n = draw(st.integers(1, most))
    return n, draw(st.one_of(st.integers(1, n), st.just(n)))


@hypothesis.given(sizes(70), st.integers(0, 2**32))
@hypothesis.settings(deadline=None, max_examples=60)
def test_random_columns_are_completed(size, seed):
    """Whatever their signs, for which eigenvectors have no rule."""
    rng = np.random.default_rng(seed)
    columns = np.linalg.qr(rng.normal(size=size))[0]
    check_completed(columns)
    signed = columns * rng.choice([-1.0, 1.0], size[1])
    np.testing.assert_equal(completed(signed), completed(columns))


@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=60)
def test_signed_unit_vectors_are_completed(data):
    n, rank = data.draw(sizes(40))
    order = data.draw(st.permutations(range(n)))
    signs = data.draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=n, max_size=n))
    check_completed((np.eye(n)[order] * signs)[:, :rank])


@pytest.mark.parametrize("rank", [1, 31, 32])
@pytest.mark.parametrize(
    "basis",
    [
        pytest.param(np.eye(32), id="identity"),
        pytest.param(-np.eye(32), id="minus the identity"),
        pytest.param(np.roll(np.eye(32), 1, axis=0), id="a cycle"),
        pytest.param(np.roll(np.eye(32), -1, axis=0), id="a cycle back"),
        pytest.param(-np.roll(np.eye(40), 1, axis=0), id="minus a cycle"),
        pytest.param(np.eye(33)[::-1], id="reversed"),
        pytest.param(np.eye(32) - 2 / 32, id="a reflection"),
        pytest.param(np.kron(np.eye(16), [[0.6, 0.8], [-0.8, 0.6]]), id="turned pairs"),
    ],
)
def test_columns_near_to_or_far_from_the_axes_are_completed(basis, rank):
    check_completed(basis[:, :rank])


# --- From a Gram matrix --------------------------------------------------------------------------


def gram_of(rng, eigenvalues):
    """Returns a float32 Gram matrix with these eigenvalues, and its eigenvectors."""
    n = len(eigenvalues)
    vectors = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return (vectors * eigenvalues @ vectors.T).astype(np.float32), vectors


def found(gram, near):
    """Returns the rotation that follows a known one, ``None`` if there is nothing to follow."""
    directions = tf.function(leading_directions)(
        tf.constant(gram, tf.float32), Rotation(*map(tf.constant, near))
    ).numpy()
    assert directions.shape == near[0].shape and directions.dtype == np.float64
    return rotation_of(directions)


def identity(n, rank):
    return np.zeros((n, rank), np.float32), np.zeros((rank, n), np.float32)


def basis_of(rotation):
    left, right = rotation
    assert left.dtype == right.dtype == np.float32
    return np.eye(len(left)) - left.astype(np.float64) @ right


def leading(gram, rank):
    values, vectors = np.linalg.eigh(gram.astype(np.float64) / np.trace(gram))
    return vectors[:, np.argsort(-values)][:, :rank]


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (5, 5), (40, 32), (MAX_EXACT, 32), (130, 7)])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_basis_begins_with_the_leading_eigenvectors(rng, n, rank, scale):
    gram, _ = gram_of(rng, scale * (0.9 if n <= MAX_EXACT else 0.2) ** np.arange(n))
    left, right = found(gram, identity(n, rank))
    assert left.shape == (n, rank) and right.shape == (rank, n)
    basis = basis_of((left, right))
    np.testing.assert_allclose(basis.T @ basis, np.eye(n), rtol=0, atol=8 * rank * EPS)
    overlap = np.abs(leading(gram, rank).T @ basis[:, :rank])
    np.testing.assert_allclose(overlap, np.eye(rank), rtol=0, atol=8 * rank * EPS)
    kept = np.diag(basis.T @ (gram.astype(np.float64) / scale) @ basis)
    assert (np.diff(kept[:rank]) < 0).all()


@pytest.mark.parametrize("num_dead", [0, 64])
@pytest.mark.parametrize(("power", "last"), [(0.5, 0.998), (1.0, 0.9995)])
def test_a_large_matrix_is_approached_from_basis_to_basis(rng, power, last, num_dead):
    """Energy that falls slowly is hard to tell apart; the first look has most of it."""
    n = 300
    gram, _ = gram_of(rng, 1 / np.arange(1, n + 1 - num_dead) ** power)
    gram = np.pad(gram, ((num_dead, 0), (num_dead, 0)))
    most = np.trace(leading(gram, RANK).T @ gram @ leading(gram, RANK))
    rotation, kept = identity(n, RANK), []
    for _ in range(6):
        rotation = found(gram, rotation)
        basis = basis_of(rotation)
        np.testing.assert_allclose(basis.T @ basis, np.eye(n), rtol=0, atol=8 * RANK * EPS)
        kept.append(np.trace(basis[:, :RANK].T @ gram @ basis[:, :RANK]) / most)
    assert kept[0] > 0.9 and kept[1] > 0.98 and last < kept[-1] < 1 + 1e-6
    assert (np.diff(kept) > -1e-6).all()


def test_what_a_basis_knows_nothing_of_is_found(rng):
    """Energy that appears in the complement of a basis is in the next one."""
    n, num_old = 200, 40
    vectors = np.linalg.qr(rng.normal(size=(n, n)))[0]
    old, new = vectors[:, :num_old], vectors[:, num_old : num_old + 8]
    before = found(old @ old.T, identity(n, RANK))
    after = found(old @ old.T + 5 * new @ new.T, before)
    first = basis_of(after)[:, :8]
    np.testing.assert_allclose(np.linalg.svd(new.T @ first)[1], 1, atol=1e-3)


@pytest.mark.parametrize("n", [60, 160])
@pytest.mark.parametrize("num_directions", [1, 3, 31])
def test_directions_without_energy_are_left_out(rng, n, num_directions):
    directions = rng.normal(size=(n, num_directions))
    gram = (directions @ directions.T).astype(np.float32)
    left, right = found(gram, identity(n, 32))
    assert not left[:, num_directions:].any() and not right[num_directions:].any()
    assert np.abs(left[:, :num_directions]).max(axis=0).min() > 0
    basis = basis_of((left, right))
    # The coefficients of what spans the Gram matrix are all in the first ones.
    rest = basis.T[num_directions:] @ directions
    assert np.abs(rest).max() < 64 * EPS * np.abs(directions).max() * np.sqrt(n)


def test_noise_of_rounding_is_no_direction(rng):
    gram, _ = gram_of(rng, np.array([1.0, 0.5] + [1e-8] * 20))
    left, _ = found(gram, identity(22, 10))
    assert np.flatnonzero(left.any(axis=0)).tolist() == [0, 1]


@pytest.mark.parametrize("n", [50, 150])
def test_directions_of_equal_energy_make_a_basis_all_the_same(n):
    basis = basis_of(found(np.eye(n), identity(n, 32)))
    np.testing.assert_allclose(basis.T @ basis, np.eye(n), rtol=0, atol=8 * 32 * EPS)


@pytest.mark.parametrize("n", [MAX_EXACT, MAX_EXACT + 1, 512])
def test_no_large_matrix_is_decomposed(n):
    """That takes the cube of its size."""
    graph = tf.function(leading_directions).get_concrete_function(
        tf.TensorSpec([n, n]), Rotation(tf.TensorSpec([n, RANK]), tf.TensorSpec([RANK, n]))
    )
    (size,) = [o.inputs[0].shape[0] for o in graph.graph.get_operations() if "Eig" in o.type]
    assert size == n if n <= MAX_EXACT else size < 2 * RANK


@pytest.mark.parametrize("n", [4, 140])
@pytest.mark.parametrize("place", [(0, 0), (2, 1)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gram_that_is_not_finite_has_no_basis(bad, place, n):
    gram = np.eye(n, dtype=np.float32)
    gram[place] = gram[place[::-1]] = bad
    assert found(gram, identity(n, 2)) is None


@pytest.mark.parametrize("n", [4, 140])
def test_zeros_have_no_basis(n):
    assert found(np.zeros((n, n), np.float32), identity(n, 2)) is None


# --- Sides of variables --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "side"),
    [
        pytest.param((3, 3, 64, 128), Side(576, 128, False), id="convolution"),
        pytest.param((3, 3, 8, 128), Side(72, 128, True), id="widening convolution"),
        pytest.param((5, 5, 1, 32), Side(25, 32, True), id="convolution of one input"),
        pytest.param((7, 7, 3, 64), Side(147, 64, False), id="convolution of colours"),
        pytest.param((9, 9, 2, 256), Side(162, 256, True), id="wide convolution"),
        pytest.param((9, 9, 3, 64), Side(81, 192, True), id="inputs on the side of outputs"),
        pytest.param((1, 1, 64, 256), Side(64, 256, True), id="pointwise convolution"),
        pytest.param((3, 3, 96, 1), Side(9, 96, True), id="depthwise convolution"),
        pytest.param((5, 48, 96), Side(240, 96, False), id="1-D convolution"),
        pytest.param((3, 3, 3, 16, 32), Side(432, 32, False), id="3-D convolution"),
        pytest.param((128, 4, 32), Side(128, 128, False), id="query, key and value"),
        pytest.param((256, 4, 32), Side(256, 128, False), id="narrow query"),
        pytest.param((4, 32, 128), Side(128, 128, False), id="attention's output"),
        pytest.param((64, 512), Side(64, 512, True), id="LSTM"),
        pytest.param((512, 512), Side(512, 512, False), id="square"),
        pytest.param((8000, 128), Side(8000, 128, False), id="embedding"),
        pytest.param((9216, 352), Side(9216, 352, False), id="dense"),
        pytest.param((352, 10), Side(352, 10, False), id="classes"),
        pytest.param((2, 2), Side(2, 2, False), id="smallest"),
        pytest.param((7, 1), None, id="column"),
        pytest.param((1, 7), None, id="row"),
        pytest.param((1, 1, 1, 5), None, id="row of four axes"),
        pytest.param((300,), None, id="vector"),
        pytest.param((1,), None, id="one element"),
        pytest.param((), None, id="scalar"),
    ],
)
def test_sides(shape, side):
    found = learned_basis.side_of(shape)
    assert found == side
    if found is not None:
        assert found.length == min(found.rows, found.columns)
        assert found.across == max(found.rows, found.columns)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (2, [2]),
        (512, [512]),
        (513, [257, 256]),
        (1024, [512, 512]),
        (1025, [342, 342, 341]),
        (1538, [385, 385, 384, 384]),
    ],
)
@pytest.mark.parametrize("is_left", [True, False])
def test_blocks_are_as_few_as_can_be(length, expected, is_left):
    shape = (length, 9999) if is_left else (9999, length)
    assert Side(*shape, is_left).blocks() == expected


def test_ranks_are_at_most_the_size():
    assert [learned_basis.rank_of(n) for n in (1, 31, 32, 33, 512)] == [1, 31, 32, 32, 32]


# --- Turning -------------------------------------------------------------------------------------

SIDES = [
    Side(30, 50, True),
    Side(50, 30, False),
    Side(70, 90, True),
    Side(90, 70, False),
    Side(513, 600, True),
    Side(600, 1025, False),
]


def rotations_of(rng, side):
    """Returns a basis for each block of a side, and all of them as a dense matrix."""
    rotations, dense, start = [], np.zeros((side.length, side.length)), 0
    for size in side.blocks():
        vectors = np.linalg.qr(rng.normal(size=(size, learned_basis.rank_of(size))))[0]
        left, right = completed(vectors)
        rotations.append(Rotation(*(tf.constant(part, tf.float32) for part in (left, right))))
        dense[start : start + size, start : start + size] = np.eye(size) - left @ right
        start += size
    return rotations, dense


@pytest.mark.parametrize("side", SIDES)
def test_a_turn_is_a_product_with_the_dense_basis(rng, side):
    rotations, dense = rotations_of(rng, side)
    matrix = rng.normal(size=(side.rows, side.columns)).astype(np.float32)
    turned = side.turn(tf.constant(matrix), rotations)
    # Two products, of n and of r addends, with factors of a norm below 2 and RANK + 1.
    atol = 8 * RANK * EPS * np.abs(matrix).max()
    expected = dense.T @ matrix if side.is_left else matrix @ dense
    np.testing.assert_allclose(turned, expected, rtol=0, atol=atol)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(matrix), rel=RANK * EPS)
    back = side.turn(turned, rotations, inverse=True)
    np.testing.assert_allclose(back, matrix, rtol=0, atol=2 * atol)
    # The inverse is the transpose also where it does not follow a turn.
    other = side.turn(tf.constant(matrix), rotations, inverse=True)
    expected = dense @ matrix if side.is_left else matrix @ dense.T
    np.testing.assert_allclose(other, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("side", SIDES)
def test_zeros_turn_nothing(rng, side):
    rotations = [Rotation(*map(tf.zeros_like, each)) for each in rotations_of(rng, side)[0]]
    matrix = rng.normal(size=(side.rows, side.columns)).astype(np.float32)
    for inverse in (False, True):
        turned = side.turn(tf.constant(matrix), rotations, inverse)
        np.testing.assert_array_equal(turned, matrix)


# --- Samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "stride"),
    [
        (Side(20, 30, True), 1),  # less than RANK
        (Side(63, 90, True), 1),
        (Side(64, 90, True), 2),
        (Side(352, 9216, True), 11),
        (Side(9216, 352, False), 11),
        (Side(101, 70, False), 2),
        (Side(1100, 1203, True), 11),  # blocks of 367 and 366
        (Side(200, 3, True), 3),  # across is the shorter side: all, one at a time
        (Side(3, 200, False), 3),
    ],
)
@pytest.mark.parametrize("first", [1, 2_000_000_011])
def test_all_columns_or_rows_are_sampled_equally_often(side, stride, first):
    """But for as many of the first ones as there are too few for the last samples."""
    numbers = np.arange(side.across)
    matrix = np.broadcast_to(numbers if side.is_left else numbers[:, None], side[:2])
    counts = np.zeros(side.across)
    assert side.num_sampled == -(-side.across // stride)
    for step in range(first, first + stride):
        sample = side.sample(tf.constant(matrix, tf.float32), tf.constant(step)).numpy()
        sample = sample if side.is_left else sample.T
        assert sample.shape == (side.length, side.num_sampled)
        np.testing.assert_array_equal(sample, sample[:1] + np.zeros_like(sample))
        counts += np.bincount(sample[0].astype(int), minlength=side.across)
    num_twice = side.num_sampled * stride - side.across
    assert 0 <= num_twice < stride
    np.testing.assert_array_equal(counts, 1 + (numbers < num_twice))


@pytest.mark.parametrize(
    "side",
    [
        Side(30, 50, True),
        Side(50, 30, False),
        Side(70, 90, True),
        Side(128, 97, False),
        Side(513, 640, True),
        Side(1056, 1025, False),
    ],
)
def test_gram_matrices_of_samples_add_up_to_that_of_all(rng, side):
    matrix = rng.normal(size=(side.rows, side.columns)).astype(np.float32)
    stride = max(1, max(side.blocks()) // RANK)
    exact = matrix.astype(np.float64) if side.is_left else matrix.T.astype(np.float64)
    once_more = exact[:, : side.num_sampled * stride - side.across]
    all_of_it = exact @ exact.T + once_more @ once_more.T
    sums = [np.zeros((n, n)) for n in side.blocks()]
    for step in range(7, 7 + stride):
        sample = side.sample(tf.constant(matrix), tf.constant(step))
        for total, gram in zip(sums, side.grams(sample), strict=True):
            total += gram.numpy()
    start = 0
    for size, total in zip(side.blocks(), sums, strict=True):
        expected = all_of_it[start : start + size, start : start + size]
        np.testing.assert_allclose(total, expected, rtol=0, atol=4 * EPS * expected.max())
        start += size


def test_what_only_the_graph_knows_is_sampled_the_same(rng):
    for side in (Side(70, 90, True), Side(90, 70, False)):
        rotations, _ = rotations_of(rng, side)
        matrix = tf.constant(rng.normal(size=side[:2]), tf.float32)

        @tf.function(autograph=False)
        def grams(step, side=side, matrix=matrix, rotations=rotations):
            return side.grams(side.turn(side.sample(matrix, step), rotations, inverse=True))

        for step in (1, 2):
            sample = side.turn(side.sample(matrix, tf.constant(step)), rotations, inverse=True)
            (expected,) = side.grams(sample)
            (actual,) = grams(tf.constant(step))
            np.testing.assert_allclose(actual, expected, rtol=0, atol=EPS * np.max(expected))
