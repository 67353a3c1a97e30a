# SPDX-License-Identifier: Apache-2.0
"""positions_sum, _replace and _gather against the oracle, bit for bit, and corrupt blocks."""

import numpy as np
import positions_reference
import pytest
import tensorflow as tf
from sample_values import KINDS, NON_FINITE_KINDS, SIZES, sample

from tf_gradcomp.ops import positions

BAD_ARGUMENT = (ValueError, tf.errors.InvalidArgumentError)


def counts(n: int) -> list[int]:
    return sorted({k for k in (1, 2, n // 100, n * 15 // 100, n) if 1 <= k <= n})


def random_blocks(workers: int, n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """uint32 [workers, p], each with its own k positions out of n."""
    chosen = [np.sort(rng.choice(n, k, replace=False, shuffle=False)) for _ in range(workers)]
    return np.stack([positions_reference.encode(c, n) for c in chosen])


def assert_same_floats(actual: tf.Tensor, expected: np.ndarray) -> None:
    """Equal values, NaN where NaN, and equal signs of zero."""
    np.testing.assert_array_equal(actual.numpy(), expected)
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(actual.numpy()[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_sizes(n, components, rng):
    for k in counts(n):
        blocks = random_blocks(2, n, k, rng)
        kept = sample("gauss", (2, k, *components), rng)
        total = positions.positions_sum(blocks.view(np.int32), kept, n)
        assert_same_floats(total, positions_reference.decode_sum(blocks, kept, n))

        values = sample("gauss", (n, *components), rng)
        replaced = positions.positions_replace(values, blocks[0].view(np.int32), kept[0])
        assert_same_floats(replaced, positions_reference.replace(values, blocks[0], kept[0]))
        gathered = positions.positions_gather(values, blocks[0].view(np.int32), k)
        expected = values[positions_reference.decode(blocks[0], n, k)]
        np.testing.assert_array_equal(gathered.numpy(), expected)


def random_counted_blocks(found: list[int], n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """uint32 [W, 1 + p]: blocks with room for k positions that hold as many as `found` says."""
    chosen = [np.sort(rng.choice(n, f, replace=False, shuffle=False)) for f in found]
    return np.stack([positions_reference.encode(c, n, k) for c in chosen])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_counted_sizes(n, components, rng):
    for k in counts(n):
        blocks = random_counted_blocks([k, 0, k // 2, max(0, k - 1)], n, k, rng)
        assert blocks.shape[1] == positions.num_words(n, k, counted=True)
        # What lies beyond a count is NaN, and must not be seen.
        kept = sample("gauss", (4, k, *components), rng)
        for worker in range(4):
            kept[worker, blocks[worker, 0] :] = np.nan
        total = positions.positions_sum(blocks.view(np.int32), kept, n, counted=True)
        assert_same_floats(total, positions_reference.decode_sum(blocks, kept, n, counted=True))

        values = sample("gauss", (n, *components), rng)
        words = blocks[2].view(np.int32)
        replaced = positions.positions_replace(values, words, kept[2], counted=True)
        expected = positions_reference.replace(values, blocks[2], kept[2], counted=True)
        assert_same_floats(replaced, expected)


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize(("n", "k"), [(70, 60), (2000, 11), (131073, 130000)])
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_kinds_of_values(kind, n, k, components, rng):
    blocks = random_blocks(3, n, k, rng)
    kept = sample(kind, (3, k, *components), rng)
    expected = positions_reference.decode_sum(blocks, kept, n)
    assert_same_floats(positions.positions_sum(blocks.view(np.int32), kept, n), expected)

    values = sample(kind, (n, *components), rng)
    replaced = positions.positions_replace(values, blocks[0].view(np.int32), kept[0]).numpy()
    expected = positions_reference.replace(values, blocks[0], kept[0])
    np.testing.assert_array_equal(replaced.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("n", [1, 64, 65, 200000])
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_nothing_kept(n, components, rng):
    blocks = random_blocks(2, n, 0, rng).view(np.int32)
    kept = np.zeros((2, 0, *components), np.float32)
    total = positions.positions_sum(blocks, kept, n)
    np.testing.assert_array_equal(total.numpy(), np.zeros((n, *components), np.float32))
    values = sample("gauss", (n, *components), rng)
    replaced = positions.positions_replace(values, blocks[0], kept[0])
    np.testing.assert_array_equal(replaced.numpy(), values)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_sum_is_in_worker_order(workers, rng):
    n, k = 3000, 2500
    blocks = random_blocks(workers, n, k, rng)
    # Magnitudes so unlike one another that another order of additions gives other bits.
    kept = rng.standard_normal((workers, k)) * 10.0 ** rng.integers(-4, 5, (workers, k))
    kept = kept.astype(np.float32)
    expected = positions_reference.decode_sum(blocks, kept, n)
    total = positions.positions_sum(blocks.view(np.int32), kept, n)
    np.testing.assert_array_equal(total.numpy(), expected)
    if workers > 2:
        assert (positions_reference.decode_sum(blocks[::-1], kept[::-1], n) != expected).any()


def test_sum_starts_from_plus_zero():
    block = positions_reference.encode(np.array([1]), 3).view(np.int32)
    total = positions.positions_sum([block], np.float32([[-0.0]]), 3)
    assert not np.signbit(total.numpy()).any()


def test_all_items_in_few_buckets(rng):
    n = 4 * 65536
    for first in (0, 65536, 3 * 65536 - 50, n - 100):
        block = positions_reference.encode(np.arange(first, first + 100), n)
        kept = sample("gauss", (1, 100), rng)
        total = positions.positions_sum(block[None].view(np.int32), kept, n)
        assert_same_floats(total, positions_reference.decode_sum(block[None], kept, n))


def test_replace_leaves_its_input_alone(rng):
    values = tf.constant(sample("gauss", 1000, rng))
    before = values.numpy().copy()
    block = random_blocks(1, 1000, 10, rng)[0].view(np.int32)
    positions.positions_replace(values, block, np.zeros(10, np.float32))
    np.testing.assert_array_equal(values.numpy(), before)


def test_graph_equals_eager(rng):
    n, k = 4099, 41
    blocks = random_blocks(2, n, k, rng)
    kept = sample("gauss", (2, k, 2), rng)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, None, 2], tf.float32),
            tf.TensorSpec([], tf.int64),
        ]
    )
    def sum_then_replace(words, kept, size):
        total = positions.positions_sum(words, kept, size)
        # An intermediate value with no other reader: the replacement may happen in place.
        return total, positions.positions_replace(total * 2.0, words[1], kept[0])

    total, replaced = sum_then_replace(blocks.view(np.int32), kept, tf.constant(n, tf.int64))
    expected = positions_reference.decode_sum(blocks, kept, n)
    assert_same_floats(total, expected)
    doubled = expected * np.float32(2)
    assert_same_floats(replaced, positions_reference.replace(doubled, blocks[1], kept[0]))


def test_static_shapes_are_exact():
    for components in ([], [2]):
        graph = tf.function(lambda w, k: positions.positions_sum(w, k, 1000)).get_concrete_function(
            tf.TensorSpec([3, None], tf.int32), tf.TensorSpec([3, None, *components], tf.float32)
        )
        assert graph.structured_outputs.shape == [1000, *components]
        graph = tf.function(positions.positions_replace).get_concrete_function(
            tf.TensorSpec([1000, *components], tf.float32),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None, *components], tf.float32),
        )
        assert graph.structured_outputs.shape == [1000, *components]
        graph = tf.function(lambda v, w: positions.positions_gather(v, w, 7)).get_concrete_function(
            tf.TensorSpec([1000, *components], tf.float32), tf.TensorSpec([None], tf.int32)
        )
        assert graph.structured_outputs.shape == [7, *components]


@pytest.mark.parametrize("kind", KINDS + NON_FINITE_KINDS)
@pytest.mark.parametrize(("n", "k"), [(70, 60), (2000, 11), (131073, 130000), (70000, 0)])
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_gather_moves_bits(kind, n, k, components, rng):
    block = random_blocks(1, n, k, rng)[0]
    values = sample(kind, (n, *components), rng)
    gathered = positions.positions_gather(values, block.view(np.int32), k).numpy()
    expected = values[positions_reference.decode(block, n, k)]
    np.testing.assert_array_equal(gathered.view(np.uint32), expected.view(np.uint32))


# ---- corrupt blocks and bad arguments


BITMAP = (100, 20)  # n, k
ELIAS_FANO = (200, 4)  # 5 low bits, buckets 0..6, the last one of 8 items


def corrupt_blocks():
    """(name, n, k, words): each one rule away from a right block."""
    n, k = BITMAP
    words = positions_reference.encode(np.arange(k), n)
    yield "bitmap, a bit too many", n, k, words | np.array([1 << 25, 0, 0, 0], "<u4")
    yield "bitmap, a bit too few", n, k, words & np.array([~1 & 0xFFFFFFFF, 0, 0, 0], "<u4")
    words = words.copy()
    words[0] ^= 1
    words[3] |= 1 << 4
    yield "bitmap, bit n set", n, k, words
    words = words.copy()
    words[3] = 1 << 31
    yield "bitmap, last padding bit set", n, k, words

    n, k = ELIAS_FANO
    lows, upper = positions_reference.encode(np.array([3, 70, 75, 199]), n).tolist()
    assert (lows, upper) == (3 | 6 << 5 | 11 << 10 | 7 << 15, 1 | 1 << 3 | 1 << 4 | 1 << 9)
    for name, words in {
        "elias-fano, a bit too many": [lows, upper | 1 << 5],
        "elias-fano, a bit too few": [lows, upper ^ 1 << 3],
        "elias-fano, all upper bits": [lows, 0xFFFFFFFF],
        "elias-fano, position n": [lows + (1 << 15), upper],
        "elias-fano, end of the last bucket": [lows | 31 << 15, upper],
        "elias-fano, not ascending": [3 | 11 << 5 | 6 << 10 | 7 << 15, upper],
        "elias-fano, a position twice": [3 | 6 << 5 | 6 << 10 | 7 << 15, upper],
        "elias-fano, bucket 7": [lows, upper ^ 1 << 9 | 1 << 10],
        "elias-fano, last upper bit": [lows, upper ^ 1 << 9 | 1 << 31],
        "elias-fano, padding of the low bits": [lows | 1 << 31, upper],
    }.items():
        yield name, n, k, np.array(words, "<u4")


@pytest.mark.parametrize(
    ("name", "n", "k", "words"), list(corrupt_blocks()), ids=[c[0] for c in corrupt_blocks()]
)
@pytest.mark.parametrize("components", [(), (2,)], ids=["real", "complex"])
def test_corrupt_blocks_are_refused(name, n, k, words, components):
    with pytest.raises(ValueError):
        positions_reference.decode(words, n, k)
    kept = np.ones((k, *components), np.float32)
    values = np.zeros((n, *components), np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions block of worker 0"):
        positions.positions_replace(values, words.view(np.int32), kept)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions block of worker 0"):
        positions.positions_gather(values, words.view(np.int32), k)
    counted_words = np.concatenate([[np.uint32(k)], words]).view(np.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions block of worker 0"):
        positions.positions_replace(values, counted_words, kept, counted=True)
    right = positions_reference.encode(np.arange(k), n)
    for worker, order in enumerate([[words, right], [right, words]]):  # whoever sent it is named
        blocks = np.stack(order).view(np.int32)
        expected = f"positions block of worker {worker}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
            positions.positions_sum(blocks, np.stack([kept, kept]), n)


def corrupt_counted_blocks():
    """(name, n, k, words): each one rule away from a right counted block."""
    n, k = BITMAP
    right = positions_reference.encode(np.arange(k - 3), n, k)
    yield "bitmap, counts one more", n, k, right + np.array([1, 0, 0, 0, 0], "<u4")
    yield "bitmap, counts one less", n, k, right - np.array([1, 0, 0, 0, 0], "<u4")
    full = positions_reference.encode(np.arange(k), n, k)
    yield "bitmap, above its capacity", n, k, full + np.array([1, 1 << 25, 0, 0, 0], "<u4")
    yield "bitmap, count of all ones", n, k, full | np.array([0xFFFFFFFF, 0, 0, 0, 0], "<u4")

    n, k = ELIAS_FANO
    right = positions_reference.encode(np.array([70, 199]), n, k).tolist()
    assert right == [2, 6 | 7 << 5, 1 << 2 | 1 << 7]
    _, lows, upper = right
    for name, words in {
        "elias-fano, counts one more": [3, lows, upper],
        "elias-fano, counts one less": [1, lows, upper],
        "elias-fano, above its capacity": [5, lows, 0x1F],
        "elias-fano, count of all ones": [0xFFFFFFFF, lows, upper],
        "elias-fano, first unused low bit": [2, lows | 1 << 10, upper],
        "elias-fano, last unused low bit": [2, lows | 1 << 19, upper],
        "elias-fano, padding": [2, lows | 1 << 20, upper],
        "elias-fano, bucket 7": [2, lows, upper ^ 1 << 7 | 1 << 8],
    }.items():
        yield name, n, k, np.array(words, "<u4")


@pytest.mark.parametrize(
    ("name", "n", "k", "words"),
    list(corrupt_counted_blocks()),
    ids=[c[0] for c in corrupt_counted_blocks()],
)
def test_corrupt_counted_blocks_are_refused(name, n, k, words):
    with pytest.raises(ValueError):
        positions_reference.decode(words, n, k, counted=True)
    kept, values = np.ones(k, np.float32), np.zeros(n, np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions block of worker 0"):
        positions.positions_replace(values, words.view(np.int32), kept, counted=True)
    right = positions_reference.encode(np.arange(k - 1), n, k)
    blocks = np.stack([right, words]).view(np.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions block of worker 1"):
        positions.positions_sum(blocks, np.stack([kept, kept]), n, counted=True)


def test_random_words_never_pass_or_crash(rng):
    n, k = 300000, 1000
    for _ in range(200):
        words = positions_reference.encode(np.sort(rng.choice(n, k, replace=False)), n)
        low_words, _ = positions_reference.elias_fano_words(n, k)
        words[:low_words] = rng.integers(0, 2**32, low_words, np.uint32)  # upper bits are right
        with pytest.raises(tf.errors.InvalidArgumentError, match="positions block of worker 0"):
            positions.positions_sum(words[None].view(np.int32), np.ones((1, k), np.float32), n)


@pytest.mark.parametrize(
    ("words_shape", "kept_shape", "size", "named"),
    [
        ((2, 3), (2, 20), 100, "positions"),  # p is 4
        ((2, 5), (2, 20), 100, "positions"),
        ((4,), (2, 20), 100, "positions"),
        ((1, 2, 4), (2, 20), 100, "positions"),
        ((3, 4), (2, 20), 100, "kept"),
        ((2, 4), (20,), 100, "kept"),
        ((2, 4), (2, 20, 1), 100, "kept"),
        ((2, 4), (2, 20, 1, 2), 100, "kept"),
        ((2, 4), (2, 101), 100, "kept"),
        ((2, 4), (2, 20), 0, "size"),
        ((2, 4), (2, 20), -5, "size"),
        ((2, 4), (2, 20), 2**40, "positions|size"),
    ],
)
def test_bad_arguments_of_sum_are_named(words_shape, kept_shape, size, named):
    words, kept = np.zeros(words_shape, np.int32), np.zeros(kept_shape, np.float32)
    with pytest.raises(BAD_ARGUMENT, match=named):
        positions.positions_sum(words, kept, size)


@pytest.mark.parametrize(
    ("values_shape", "words_shape", "kept_shape", "named"),
    [
        ((100,), (3,), (20,), "positions"),
        ((100,), (1, 4), (20,), "positions"),
        ((100,), (4,), (20, 2), "kept"),
        ((100, 2), (4,), (20,), "kept"),
        ((100,), (4,), (101,), "kept"),
        ((100, 1), (4,), (20, 1), "values"),
        ((), (4,), (20,), "values"),
    ],
)
def test_bad_arguments_of_replace_are_named(values_shape, words_shape, kept_shape, named):
    values, kept = np.zeros(values_shape, np.float32), np.zeros(kept_shape, np.float32)
    with pytest.raises(BAD_ARGUMENT, match=named):
        positions.positions_replace(values, np.zeros(words_shape, np.int32), kept)


@pytest.mark.parametrize(
    ("values_shape", "words_shape", "count", "named"),
    [
        ((100,), (3,), 20, "positions"),
        ((100,), (1, 4), 20, "positions|rank"),
        ((100,), (4,), 101, "count"),
        ((100,), (4,), -1, "count|-1"),
        ((100, 1), (4,), 20, "values"),
        ((), (4,), 20, "values"),
    ],
)
def test_bad_arguments_of_gather_are_named(values_shape, words_shape, count, named):
    values = np.zeros(values_shape, np.float32)
    with pytest.raises(BAD_ARGUMENT, match=named):
        positions.positions_gather(values, np.zeros(words_shape, np.int32), count)


def test_counted_and_plain_sizes_differ():
    kept, values = np.zeros(20, np.float32), np.zeros(100, np.float32)
    with pytest.raises(BAD_ARGUMENT, match="positions"):
        positions.positions_replace(values, np.zeros(4, np.int32), kept, counted=True)
    with pytest.raises(BAD_ARGUMENT, match="positions"):
        positions.positions_sum(np.zeros((1, 5), np.int32), kept[None], 100)
