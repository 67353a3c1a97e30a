# SPDX-License-Identifier: Apache-2.0
"""Blocks as a part, and the codecs made of it against the oracles."""

import numpy as np
import positions_reference
import pytest
import tensorflow as tf
import threshold_reference
import top_k_reference

from tf_gradcomp.codecs import base
from tf_gradcomp.codecs.blocks import Blocks
from tf_gradcomp.compression import Compression

DRAW = base.Draw(bucket=1, worker=0, step=tf.constant(7))


def items_of(bucket: np.ndarray, block: int) -> np.ndarray:
    """float32 [n] -> [ceil(n / block), block], padded with zeros."""
    return np.pad(bucket, (0, -bucket.size % block)).reshape(-1, block)


@pytest.mark.parametrize("block", [8, 9, 256, 65536])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 255, 256, 257, 100_003])
def test_blocks_are_the_elements_in_order_and_the_inverse_drops_the_padding(block, size, rng):
    bucket = rng.normal(size=size).astype(np.float32)
    transform = Blocks(block)
    items = transform.forward(tf.constant(bucket))
    np.testing.assert_array_equal(items, items_of(bucket, block))
    assert tuple(items.shape) == transform.layout(size).shape
    np.testing.assert_array_equal(transform.inverse(items, size), bucket)


@pytest.mark.parametrize("block", [7, 65537, 0, -8, 256.0, True, None, "8"])
def test_a_bad_block_is_refused(block):
    with pytest.raises(ValueError, match=r"blocks: block must be in \[8, 65536\], got"):
        Blocks(block)


def encode(spec: str, bucket: np.ndarray) -> tuple[base.Encoded, tf.Tensor]:
    """-> what is sent, and the bucket that it decodes to."""
    codec = Compression.from_spec(spec).build()
    layout = codec.transform.layout(bucket.size)
    coefficients = codec.transform.forward(tf.constant(bucket))
    encoded = codec.encode(coefficients, tf.zeros(layout.shape), layout, DRAW)
    decoded, finite = codec.decode_sum(encoded.payload[tf.newaxis], layout, DRAW)
    assert bool(finite)
    return encoded, codec.transform.inverse(decoded, bucket.size)


def test_block_top_k_is_the_oracles(rng):
    bucket = rng.standard_t(3, size=10_000).astype(np.float32)
    items = items_of(bucket, 64)
    positions, kept = top_k_reference.encode(items, 16)  # ceil(0.1 * 157)
    encoded, decoded = encode("block_topk:block=64,density=0.1", bucket)
    payload = np.concatenate([positions, kept.reshape(-1).view(np.uint32)])
    np.testing.assert_array_equal(encoded.payload.numpy().view(np.uint32), payload)
    expected = np.zeros_like(items)
    expected[positions_reference.decode(positions, 157, 16)] = kept
    np.testing.assert_array_equal(decoded, expected.reshape(-1)[:10_000])
    # No other choice of 16 blocks keeps more energy, up to the 20 fraction bits of the key.
    energies = np.sort((items.astype(np.float64) ** 2).sum(axis=1))[::-1]
    assert (kept.astype(np.float64) ** 2).sum() >= energies[:16].sum() * (1 - 2.0**-20)


def test_block_threshold_keeps_the_blocks_whose_norm_reaches_it(rng):
    bucket = rng.standard_t(3, size=10_000).astype(np.float32)
    items = items_of(bucket, 64)
    norms = threshold_reference.magnitudes(items)
    t = float(np.float32(np.sort(norms)[-5] * 0.9999))
    _, decoded = encode(f"block_threshold:block=64,threshold={t!r}", bucket)
    expected = np.where(norms[:, np.newaxis] >= t, items, np.float32(0))
    np.testing.assert_array_equal(decoded, expected.reshape(-1)[:10_000])


def test_block_random_k_sends_no_positions(rng):
    bucket = rng.normal(size=10_240).astype(np.float32)
    encoded, decoded = encode("block_randomk:block=64,density=0.1", bucket)
    assert encoded.payload.shape == (1 + 16 * 64,)
    kept = decoded.numpy().reshape(-1, 64).any(axis=1)
    assert kept.sum() == 16
    np.testing.assert_array_equal(decoded, np.where(np.repeat(kept, 64), bucket, np.float32(0)))


def test_values_as_bfloat16_halve_the_payload_and_the_error_stays(rng):
    bucket = rng.normal(size=1 << 16).astype(np.float32)
    spec = "block_topk:block=256,density=0.1"
    whole, _ = encode(spec, bucket)
    halved, decoded = encode(f"{spec},values=bfloat16", bucket)
    num_positions, num_values = positions_reference.num_words(256, 26), 26 * 256
    assert whole.payload.shape[0] == num_positions + num_values
    assert halved.payload.shape[0] == num_positions + 1 + num_values // 2
    residual = halved.residual.numpy().reshape(-1)
    np.testing.assert_array_equal(residual + decoded.numpy(), bucket)
    rounded = decoded.numpy() != 0
    assert rounded.sum() == num_values
    assert (np.abs(residual[rounded]) <= 2.0**-8 * np.abs(bucket[rounded])).all()


def test_the_block_of_the_values_quantizer_is_the_same():
    codec = Compression.from_spec("block_topk:block=128,values=uniform").build()
    assert codec.quantizer.block == codec.transform.block == 128
    assert Compression.from_spec("block_topk:values=uniform").build().transform.block == 256
    with pytest.raises(ValueError, match="onebit|one-bit|one bit"):
        Compression.from_spec("block_topk:values=onebit")


def test_elements_at_random_fill_blocks_as_the_documentation_says(rng):
    """docs/methods/blocks.md: a share of 1 - (1 - density)^block of the blocks is not zero."""
    density, block, num_blocks = 0.001, 256, 20_000
    bucket = rng.random(num_blocks * block) < density
    share = bucket.reshape(-1, block).any(axis=1).mean()
    expected = 1 - (1 - density) ** block
    assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / num_blocks)
