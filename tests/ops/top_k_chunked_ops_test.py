# SPDX-License-Identifier: Apache-2.0
"""top_k_chunked_select against the oracle, bit for bit."""

import numpy as np
import positions_reference
import pytest
import tensorflow as tf
import top_k_reference
from hypothesis import given
from hypothesis import strategies as st
from sample_values import KINDS, NON_FINITE_KINDS, sample

from tf_gradcomp.codecs import base
from tf_gradcomp.codecs.top_k import ChunkedTopK
from tf_gradcomp.ops import positions, top_k, top_k_chunked

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
DRAW = base.Draw(bucket=0, worker=0, step=tf.constant(1))


def assert_selects_as_oracle(items: np.ndarray, chunk: int, density: float) -> None:
    """Through the sparsifier, so that its formula for the counts is tested as well."""
    sparsifier = ChunkedTopK(density, chunk)
    layout = base.Layout(items.size)
    words, kept, total = sparsifier.select(tf.constant(items), None, layout, DRAW)
    np.testing.assert_array_equal(total.numpy().view(np.uint32), items.view(np.uint32))
    expected_words, expected_kept = top_k_reference.encode_chunked(items, chunk, density)
    np.testing.assert_array_equal(words.numpy().view(np.uint32), expected_words)
    np.testing.assert_array_equal(kept.numpy().view(np.uint32), expected_kept.view(np.uint32))
    assert sparsifier.num_kept(layout) == expected_kept.size
    assert sparsifier.num_words(layout) == expected_words.size


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 4096, 4097, 65537, 200_001])
@pytest.mark.parametrize("chunk", [64, 1024, 65536])
def test_sizes(n, chunk, rng):
    items = sample("gauss", n, rng)
    for density in (0.001, 0.01, 0.15, 1.0):
        assert_selects_as_oracle(items, chunk, density)


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("chunk", [64, 4096])
def test_kinds_of_values(kind, chunk, rng):
    items = sample(kind, 30_000, rng)
    for density in (0.01, 0.3):
        assert_selects_as_oracle(items, chunk, density)


@given(n=st.integers(1, 2000), density=st.floats(1e-6, 1), seed=st.integers(0, 2**32 - 1))
def test_any_size_and_density(n, density, seed):
    items = np.random.default_rng(seed).integers(-3, 4, n).astype(np.float32)  # many ties
    assert_selects_as_oracle(items, 256, density)


def test_scales_that_change_from_chunk_to_chunk(rng):
    """What was enough for one chunk is far too much or too little for the next."""
    items = sample("gauss", (40, 512), rng)
    for step in (-3, 3):
        scaled = np.ldexp(items, step * np.arange(40)[:, np.newaxis]).astype(np.float32)
        assert_selects_as_oracle(scaled.reshape(-1), 512, 0.02)
    items[1::2] = 0
    assert_selects_as_oracle(items.reshape(-1), 512, 0.02)


def test_one_chunk_is_top_k(rng):
    items = sample("gauss", 5000, rng)
    words, kept = top_k_chunked.top_k_chunked_select(items, 8192, 1, 50)
    expected_words, expected_kept = top_k.top_k_select(items, 50)
    np.testing.assert_array_equal(words, expected_words)
    np.testing.assert_array_equal(kept, expected_kept)


def test_equal_items_keep_the_lowest_indices_of_each_chunk():
    for value in (0.0, -1.0):
        items = np.full(1000, value, np.float32)
        words, _ = top_k_chunked.top_k_chunked_select(items, 256, 3, 2)
        at = positions_reference.decode(words.numpy().view(np.uint32), 1000, 11)
        np.testing.assert_array_equal(at, [0, 1, 2, 256, 257, 258, 512, 513, 514, 768, 769])


def test_shapes_are_static():
    graph = tf.function(lambda v: top_k_chunked.top_k_chunked_select(v, 1024, 11, 9))
    words, kept = graph.get_concrete_function(tf.TensorSpec([5000], tf.float32)).structured_outputs
    assert kept.shape == [4 * 11 + 9]
    assert words.shape == [positions.num_words(5000, 53)]


@pytest.mark.parametrize(
    ("shape", "chunk", "count", "last_count", "named"),
    [
        ((200,), 0, 1, 1, "chunk"),
        ((200,), 32, 1, 1, "chunk"),
        ((200,), 96, 1, 1, "chunk"),
        ((200,), 131072, 1, 1, "chunk"),
        ((200,), 64, 0, 1, "count"),
        ((200,), 64, 65, 1, "count"),
        ((200,), 64, 1, 0, "last_count"),
        ((200,), 64, 1, 9, "last_count"),
        ((128,), 64, 1, 1, "last_count"),
        ((0,), 64, 1, 0, "at least one item"),
        ((200, 2), 64, 1, 1, "rank"),
        ((), 64, 1, 1, "rank"),
    ],
)
def test_bad_arguments_are_named(shape, chunk, count, last_count, named):
    values = np.zeros(shape, np.float32)
    with pytest.raises(BAD_ARGUMENT, match=named):
        top_k_chunked.top_k_chunked_select(values, chunk, count, last_count)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def select(values):
        return top_k_chunked.top_k_chunked_select(values, chunk, count, last_count)

    with pytest.raises(BAD_ARGUMENT, match=named):
        select(values)
