# SPDX-License-Identifier: Apache-2.0
"""Native ops give the same bits with one and with two intra-op threads.

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
from tf_gradcomp.ops import positions, range_float, top_k

rng = np.random.default_rng(7)
n = 1000003
# Three quarters of all values are denormal: pool threads must not flush them.
patterns = rng.integers(0, 2**25, (n, 2), np.uint32)
values = tf.constant((patterns | rng.integers(0, 2, (n, 2), np.uint32) << 31).view(np.float32))
for items in (values, values[:, 0]):
    for k in (n // 100, n * 15 // 100):
        words, kept = top_k.top_k_select(items, k)
        codes, error = range_float.range_float_encode(kept, 10, 6)
        decoded = range_float.range_float_decode(codes[None], tf.size(kept, tf.int64), 10, 6)
        decoded = tf.reshape(decoded, kept.shape)
        total = positions.positions_sum([words, words], [decoded, kept], n)
        residual = positions.positions_replace(items, words, error)
        for tensor in (words, kept, codes, error, decoded, total, residual):
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


def test_one_and_two_threads_give_the_same_bits():
    processes = [start(threads) for threads in (1, 2)]
    one, two = (digests(process) for process in processes)
    assert len(one) == 2 * 2 * 7
    assert one == two
