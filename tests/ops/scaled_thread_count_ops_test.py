# SPDX-License-Identifier: Apache-2.0
"""Uniform, one bit and narrow float give the same bits with one and with two intra-op threads.

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
from tf_gradcomp.ops import narrow_float, one_bit, uniform

rng = np.random.default_rng(7)
n = 1000003
# Three quarters of all values are denormal: pool threads must not flush them.
patterns = rng.integers(0, 2**25, (2, n), np.uint32)
values, residual = (patterns | rng.integers(0, 2, (2, n), np.uint32) << 31).view(np.float32)
values[5000:9000] = residual[5000:9000] = 0


def show(encoded, decode, *parameters):
    words, error = encoded
    total = decode(tf.stack([words, words]), n, *parameters, sum=True)
    for tensor in (words, error, total):
        print(parameters, hashlib.sha256(tensor.numpy().tobytes()).hexdigest())


for block in (4096, 0):
    show(one_bit.one_bit_encode(values, residual, block), one_bit.one_bit_decode, block)
for key in (None, (1, 2, 3, 4)):
    show(uniform.uniform_encode(values, 5, key, residual), uniform.uniform_decode, 5)
for dtype in narrow_float.DTYPES:
    encoded = narrow_float.narrow_float_encode(values, dtype, residual)
    show(encoded, narrow_float.narrow_float_decode, dtype)
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
    assert len(one) == 8 * 3
    assert one == two
