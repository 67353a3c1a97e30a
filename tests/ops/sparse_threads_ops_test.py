# SPDX-License-Identifier: Apache-2.0
"""The ops of random-k and of thresholds give the same bits with one and two intra-op threads.

TensorFlow fixes the thread count once per process, so each count has its own.
"""

import os
import subprocess
import sys

SCRIPT = """
import hashlib
import sys

import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tf_gradcomp.ops import magnitude_moments, positions, random_k, sidco, threshold

rng = np.random.default_rng(7)
n = 1000003
key = tf.constant([1, 2, 3, 4])
# Three quarters of all values are denormal: pool threads must not flush them.
patterns = rng.integers(0, 2**25, (n, 2), np.uint32)
values = tf.constant((patterns | rng.integers(0, 2, (n, 2), np.uint32) << 31).view(np.float32))
for items in (values, values[:, 0]):
    for k in (n // 100, n * 15 // 100):
        drawn = random_k.random_k_positions(key, n, k)
        kept = positions.positions_gather(items, drawn, k)
        scaled = random_k.random_k_scale(kept, n)
        limit = threshold.sampled_threshold(items, key, k, n // 10)
        words, largest = threshold.threshold_select(items, limit, n // 5)
        few, fewest = threshold.threshold_select(items, limit, k // 2)
        total = positions.positions_sum([words, words], [largest, largest], n, counted=True)
        residual = positions.positions_replace(items, words, largest * 0, counted=True)
        moments = tf.stack(magnitude_moments.magnitude_moments(items, 1e-39))
        fitted = sidco.sidco_threshold(items, k / n)
        for tensor in (drawn, kept, scaled, limit, words, largest, few, fewest, total, residual,
                       moments, fitted):
            print(k, tensor.shape, hashlib.sha256(tensor.numpy().tobytes()).hexdigest())
"""


def start(threads: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(threads)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def digests(process: subprocess.Popen) -> list[str]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.splitlines()


def test_sparse_ops_give_the_same_bits_with_one_and_two_threads():
    processes = [start(threads) for threads in (1, 2)]
    one, two = (digests(process) for process in processes)
    assert len(one) == 2 * 2 * 12
    assert one == two
