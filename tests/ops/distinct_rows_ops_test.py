# SPDX-License-Identifier: Apache-2.0
"""The op that adds up rows of the same index, against a loop in NumPy, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.ops.distinct_rows import distinct_rows

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)


def oracle(values, indices):
    distinct = np.unique(indices)
    sums = np.zeros((distinct.size, values.shape[1]), values.dtype)
    for place, row in zip(np.searchsorted(distinct, indices), values, strict=True):
        sums[place] += row
    return sums, distinct


def assert_as_oracle(values, indices):
    sums, distinct = oracle(values, indices)
    result = distinct_rows(values, indices)
    np.testing.assert_array_equal(result.indices, distinct, strict=True)
    assert result.values.shape == sums.shape
    assert result.values.numpy().tobytes() == sums.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_types(dtype, index_dtype, rng):
    limits = np.iinfo(index_dtype)
    for low, high in ((0, 50), (-9, 9), (limits.min, limits.max)):
        indices = rng.integers(low, high, 300, index_dtype, endpoint=True)
        assert_as_oracle(rng.normal(size=(300, 5)).astype(dtype), indices)


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (5, 0), (2000, 1), (20_000, 64)])
def test_sizes(shape, rng):
    indices = rng.integers(0, 1 + shape[0] // 3, shape[0], np.int32)
    assert_as_oracle(rng.normal(size=shape).astype(np.float32), indices)


def test_special_values():
    tiny = np.float32(1e-45)
    values = np.array([[-0.0], [tiny], [np.inf], [-0.0], [tiny], [1.0], [np.nan]], np.float32)
    assert_as_oracle(values, np.array([4, 5, 6, 4, 5, 6, 7], np.int32))


def test_in_a_graph_the_shape_is_known_as_far_as_it_is():
    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64)])
    def add(values, indices):
        result = distinct_rows(values, indices)
        assert result.values.shape.as_list() == [None, 3]
        assert result.indices.shape.as_list() == [None]
        return result

    result = add(tf.ones([4, 3]), tf.constant([2, 1, 2, 2], tf.int64))
    assert result.indices.numpy().tolist() == [1, 2]
    assert result.values.numpy()[:, 0].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("values", "indices"), [((3, 2), (4,)), ((3, 2), (3, 1)), ((3,), (3,)), ((3, 2), ())]
)
def test_shapes_that_do_not_fit(values, indices):
    with pytest.raises(BAD_ARGUMENT):
        distinct_rows(tf.zeros(values), tf.zeros(indices, tf.int32))
    signature = [tf.TensorSpec(None, tf.float32), tf.TensorSpec(None, tf.int32)]
    with pytest.raises(BAD_ARGUMENT):  # of the kernel, too
        tf.function(distinct_rows, input_signature=signature)(
            tf.zeros(values), tf.zeros(indices, tf.int32)
        )
