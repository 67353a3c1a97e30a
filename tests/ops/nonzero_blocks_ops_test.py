# SPDX-License-Identifier: Apache-2.0
"""The ops of block masks against their oracle, bit for bit."""

import nonzero_blocks_reference as reference
import numpy as np
import pytest
import tensorflow as tf
from sample_values import KINDS, NON_FINITE_KINDS, sample

from tf_gradcomp.ops.nonzero_blocks import blocks_put, blocks_take, nonzero_blocks

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)
SIZES = [0, 1, 31, 33, 64, 1000, 65537, 300_001]
BLOCK_SIZES = [1, 7, 64, 256, 65536]


def bits(tensor: tf.Tensor) -> np.ndarray:
    return np.asarray(tensor).view(np.uint32)


def as_tensor(mask: np.ndarray) -> tf.Tensor:
    return tf.constant(mask.view(np.int32))


def sparse_values(kind: str, size: int, block_size: int, rng: np.random.Generator) -> np.ndarray:
    """Half of the blocks are zeros of both signs; of others, all but one value may be."""
    values = sample(kind, size, rng)
    block = np.arange(size) // block_size
    fate = rng.integers(0, 4, size // block_size + 1)[block]
    is_zero = (fate < 2) | ((fate == 2) & (np.arange(size) % block_size != block % block_size))
    values[is_zero] = sample("zeros", size, rng)[is_zero]
    return values


def assert_as_oracle(values: np.ndarray, block_size: int) -> None:
    is_set = reference.nonzero(values, block_size)
    mask = nonzero_blocks(values, block_size)
    np.testing.assert_array_equal(bits(mask), reference.to_mask(is_set))
    packed = blocks_take(mask, values, block_size)
    expected = reference.take(is_set, values, block_size)
    assert packed.shape == expected.shape
    np.testing.assert_array_equal(bits(packed), bits(expected))
    unpacked = blocks_put(mask, packed, values.size)
    expected = reference.put(is_set, expected, values.size)
    np.testing.assert_array_equal(bits(unpacked), bits(expected))
    np.testing.assert_array_equal(np.asarray(unpacked), np.ravel(values))  # but for -0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_sizes(size, block_size, rng):
    assert_as_oracle(sparse_values("gauss", size, block_size, rng), block_size)


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize("block_size", [5, 200])
def test_kinds_of_values(kind, block_size, rng):
    assert_as_oracle(sparse_values(kind, 20_011, block_size, rng), block_size)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_masks_of_others(share, rng):
    """Masks that have nothing to do with the values, as those joined over workers."""
    values = sample("zeros", 100_003, rng)
    is_set = rng.random(-(-values.size // 64)) < share
    mask = as_tensor(reference.to_mask(is_set))
    packed = blocks_take(mask, values, 64)
    np.testing.assert_array_equal(bits(packed), bits(reference.take(is_set, values, 64)))
    others = sample("wide", packed.shape, rng)  # beyond the end of a shorter last block, too
    unpacked = blocks_put(mask, others, values.size)
    expected = reference.put(is_set, others, values.size)
    np.testing.assert_array_equal(bits(unpacked), bits(expected))


def test_values_of_any_shape(rng):
    values = sparse_values("gauss", 6000, 10, rng)
    mask = nonzero_blocks(values, 10)
    for shape in [(600, 10), (20, 30, 10)]:
        shaped = values.reshape(shape)
        np.testing.assert_array_equal(nonzero_blocks(shaped, 10), mask)
        np.testing.assert_array_equal(blocks_take(mask, shaped, 10), blocks_take(mask, values, 10))


def test_shapes_in_graphs():
    @tf.function
    def known(values):
        mask = nonzero_blocks(values, 10)
        packed = blocks_take(mask, values, 10)
        unpacked = blocks_put(mask, packed, tf.size(values))
        assert (mask.shape, packed.shape, unpacked.shape) == ((4,), (None, 10), (1001,))
        return unpacked

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def unknown(values):
        mask = nonzero_blocks(values, 10)
        packed = blocks_take(mask, values, 10)
        assert mask.shape.as_list() == [None]
        assert packed.shape.as_list() == [None, 10]
        return blocks_put(mask, packed, tf.size(values))

    values = np.arange(1001, dtype=np.float32) - 500
    np.testing.assert_array_equal(known(values), values)
    np.testing.assert_array_equal(unknown(values.reshape(7, 11, 13)), values)

    @tf.function
    def misfit(values):
        return blocks_take(tf.zeros([5], tf.int32), values, 10)

    with pytest.raises(ValueError, match="4 and 5|5 and 4"):
        misfit(values)


@pytest.mark.parametrize("block_size", [0, -1, 65537])
def test_block_sizes_out_of_range_are_refused(block_size):
    values, mask = np.zeros(10, np.float32), np.zeros(1, np.int32)
    with pytest.raises(BAD_ARGUMENT, match="block_size"):
        nonzero_blocks(values, block_size)
    with pytest.raises(BAD_ARGUMENT, match="block_size"):
        blocks_take(mask, values, block_size)
    with pytest.raises(BAD_ARGUMENT, match="block_size"):
        blocks_put(mask, np.zeros((0, max(block_size, 0)), np.float32), 10)


@pytest.mark.parametrize(
    ("mask", "shape", "size", "named"),
    [
        ([0b100011], (3, 8), 33, "beyond its 5 blocks"),
        ([-1], (32, 8), 33, "beyond its 5 blocks"),
        ([0b10011], (2, 8), 33, "3 set bits.*2 packed"),
        ([0b10011], (4, 8), 33, "3 set bits.*4 packed"),
        ([0b10011, 0], (3, 8), 33, "mask of 5 blocks has 1 words, got 2"),
        ([], (0, 8), 33, "mask of 5 blocks has 1 words, got 0"),
        ([0b10011], (3, 8), -1, "n must be >= 0|-1"),
        ([0b10011], (3, 8), 2**63 - 1, "words, got 1"),
        ([[0b10011]], (3, 8), 33, "rank"),
        ([0b10011], (24,), 33, "rank"),
        ([0b10011], (3, 8), [33], "rank"),
    ],
)
def test_what_does_not_fit_is_refused(mask, shape, size, named):
    mask = np.array(mask, np.int32)
    with pytest.raises(BAD_ARGUMENT, match=named):
        blocks_put(mask, np.zeros(shape, np.float32), size)


def test_masks_that_do_not_fit_are_refused():
    values = np.zeros(33, np.float32)
    for mask, named in [([1 << 5], "beyond its 5 blocks"), ([1, 0], "got 2"), ([[1]], "rank")]:
        with pytest.raises(BAD_ARGUMENT, match=named):
            blocks_take(np.array(mask, np.int32), values, 8)
