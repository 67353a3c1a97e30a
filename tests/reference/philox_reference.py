# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 (Salmon et al., SC 2011) in NumPy, and the draws of FORMAT.md, "Random numbers"."""

import numpy as np

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Counters, uint32 [..., 4] -> random words, uint32 [..., 4]."""
    c0, c1, c2, c3 = (counter[..., j].astype(np.uint64) for j in range(4))
    k0, k1 = key
    for _ in range(10):
        product0, product1 = (np.uint64(m) * c for m, c in zip(MULTIPLIERS, (c0, c2), strict=True))
        c0 = product1 >> np.uint64(32) ^ c1 ^ np.uint64(k0)
        c2 = product0 >> np.uint64(32) ^ c3 ^ np.uint64(k1)
        c1, c3 = product1 & LOW, product0 & LOW
        k0, k1 = (k0 + KEY_STEPS[0]) % 2**32, (k1 + KEY_STEPS[1]) % 2**32
    return np.stack([c0, c1, c2, c3], -1).astype(np.uint32)


def random_words(key: tuple[int, int, int, int], count: int) -> np.ndarray:
    """The words of the values 0 .. count - 1, uint32; key = (seed, stream, bucket, step)."""
    seed, stream, bucket, step = (int(word) % 2**32 for word in key)
    quads = np.arange(-(-count // 4), dtype=np.uint64)
    counter = np.empty((quads.size, 4), np.uint32)
    counter[:, 0] = quads & LOW
    counter[:, 1] = quads >> np.uint64(32)
    counter[:, 2] = bucket
    counter[:, 3] = step
    return philox(counter, (seed, stream)).reshape(-1)[:count]
