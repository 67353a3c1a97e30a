# SPDX-License-Identifier: Apache-2.0
"""Block-sparse all-reduce against the dense sum, and what it sends."""

import numpy as np
import pytest
from reduction import reduce_steps

from tf_gradcomp.transports import block_sparse

BLOCK = 256


def sparse(worker, size, density, overlap="random"):
    """A gradient of which only some blocks are not zero."""
    num_blocks = -(-size // BLOCK)
    rng = np.random.default_rng([worker, size])
    same = np.random.default_rng(size)
    count = round(density * num_blocks)
    if overlap == "random":
        blocks = rng.choice(num_blocks, count, replace=False)
    else:
        order = same.permutation(num_blocks)
        start = worker * count if overlap == "none" else 0
        blocks = order[start : start + count]
    value = np.zeros(num_blocks * BLOCK, np.float32)
    for block in blocks:
        value[block * BLOCK : (block + 1) * BLOCK] = rng.normal(size=BLOCK)
    return value[:size]


def exchange(values_of, spec="identity", num_workers=3, num_steps=1):
    """Returns, per worker, every step's sum and residuals after it, and the floats reduced."""

    outcomes = reduce_steps(spec, "block_sparse", values_of, num_workers, num_steps)
    return [(steps, made.words_reduced, made.words_sent) for steps, made in outcomes]


@pytest.mark.parametrize("overlap", ["random", "full", "none"])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.2, 1.0])
@pytest.mark.parametrize("size", [1, 255, 257, 8192, 100_001])
def test_identity_is_the_dense_sum(size, density, overlap):
    values = [sparse(worker, size, density, overlap) for worker in range(3)]
    expected = np.sum(values, axis=0, dtype=np.float32)
    for ((total, _),), _, _ in exchange(lambda worker, step: values[worker]):
        np.testing.assert_array_equal(total, expected, strict=True)


@pytest.mark.parametrize(("overlap", "union"), [("full", 0.02), ("none", 0.06)])
def test_only_the_union_s_blocks_travel(overlap, union):
    size = 100 * 32 * BLOCK
    values = [sparse(worker, size, 0.02, overlap) for worker in range(3)]
    for _, words_reduced, words_gathered in exchange(lambda worker, step: values[worker]):
        assert words_reduced == union * size
        assert words_gathered == 100  # a bit a block


def test_a_large_bucket_travels_in_parts(monkeypatch):
    monkeypatch.setattr(block_sparse, "_CHUNK_VALUES", 10_000)  # rounded up to whole mask words
    values = [sparse(worker, 70_003, 0.1) for worker in range(3)]
    expected = np.sum(values, axis=0, dtype=np.float32)
    for ((total, _),), _, _ in exchange(lambda worker, step: values[worker]):
        np.testing.assert_array_equal(total, expected, strict=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("spec", ["identity", "block_topk:density=0.1", "topk:density=0.01"])
def test_what_is_not_finite_reaches_all_and_leaves_the_residual(bad, spec):
    def values_of(worker, step):
        value = sparse(worker + 10 * step, 50_000, 0.5)
        if (worker, step) == (1, 1):
            value[777] = bad
        return value

    for steps, _, _ in exchange(values_of, spec, num_steps=3):
        # What loses nothing keeps the other elements, as TensorFlow's own sum does.
        finite = np.isfinite(steps[1][0])
        assert not finite.all() if spec == "identity" else not finite.any()
        assert np.isfinite(steps[2][0]).all()
        for before, after in zip(steps[0][1], steps[1][1], strict=True):
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "spec",
    ["block_topk:density=0.05", "block_topk:density=0.1,values=bfloat16", "block_threshold"],
)
def test_lossy_blocks_conserve_the_gradient(spec):
    num_steps, size = 6, 60_000

    def values_of(worker, step):
        return np.random.default_rng([worker, step]).standard_t(3, size).astype(np.float32)

    outcomes = exchange(values_of, spec, num_steps=num_steps)
    assert len({b"".join(total.tobytes() for total, _ in steps) for steps, _, _ in outcomes}) == 1
    sent = sum(total.astype(np.float64) for total, _ in outcomes[0][0])
    left = sum(steps[-1][1][0].astype(np.float64).ravel()[:size] for steps, _, _ in outcomes)
    meant = sum(
        values_of(worker, step).astype(np.float64)
        for worker in range(3)
        for step in range(num_steps)
    )
    bound = 64 * num_steps * np.finfo(np.float32).eps * np.abs(meant).max()
    np.testing.assert_allclose(sent + left, meant, rtol=0, atol=bound)
    assert np.abs(left).max() > 100 * bound
