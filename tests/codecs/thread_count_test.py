# SPDX-License-Identifier: Apache-2.0
"""Every codec and low-rank method gives the same bits with one and with two intra-op threads.

TensorFlow fixes the thread count once per process, so each count has its own.
"""

import os
import subprocess
import sys

PROGRAM = """
import hashlib
import sys

import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tf_gradcomp.codecs import base, registry
from tf_gradcomp.compression import Compression

rng = np.random.default_rng(7)
draw = base.Draw(bucket=1, worker=0, step=tf.constant(7))
# Blocks cut into many shards, or one across all of them; a bitmap of positions, or indices.
more = ["topk:density=0.15", "topk:chunk=4096", "block_topk:block=9", "onebit:block=0",
        "dithering:block=0,norm=l2", "acpsgd:rank=31", "uniform:stochastic=true",
        "threshold:threshold=1e-39,capacity=0.01", "topk:view=output", "topk:view=input+spatial",
        "topk:view=flat,basis=fft"]


def floats(shape):
    # Three quarters of all values are denormal: pool threads must not flush them.
    patterns = rng.integers(0, 2**25, shape, np.uint32)
    return tf.constant((patterns | rng.integers(0, 2, shape, np.uint32) << 31).view(np.float32))


def results_of_codec(codec):
    layout = codec.transform.layout(1000003)
    encoded = codec.encode(floats(layout.shape), floats(layout.shape), layout, draw)
    payloads = tf.stack([encoded.payload, encoded.payload])
    total, _ = codec.decode_sum(payloads, layout, draw)
    return [encoded.payload, encoded.residual, total]


def results_of_transform(codec):
    shapes = [base.VariableShape((27, 130, 285))]
    transform = codec.transform.fit(shapes)
    coefficients = transform.forward(floats(shapes[0].num_elements))
    return [coefficients, transform.inverse(coefficients, shapes[0].num_elements)]


def results_of_low_rank(method):
    matrix = tf.constant(rng.normal(size=(3001, 355)), tf.float32)
    factors = [tf.zeros(shape) for shape in method.factor_shapes([matrix.shape])]
    outcome = method.sum([matrix], [], factors, draw.step, all_reduce=list)
    return outcome.totals + outcome.sent + outcome.factors


for spec in [*registry.names(), *more]:
    codec = Compression.from_spec(spec).build()
    is_codec = isinstance(codec, base.Codec)
    tensors = results_of_codec(codec) if is_codec else results_of_low_rank(codec)
    tensors += results_of_transform(codec) if is_codec else []
    for index, tensor in enumerate(tensors):
        print(spec, index, hashlib.sha256(tensor.numpy().tobytes()).hexdigest())
"""


def start(threads: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(threads)],
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
    assert len(one) > 60
    assert one == two
