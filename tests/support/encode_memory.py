# SPDX-License-Identifier: Apache-2.0
"""Measures the memory that encoding takes for a while.

    python tests/support/encode_memory.py ELEMENTS SPEC...

Encodes a bucket of float32 elements twice with each compression, as the reducer does, and prints a
JSON object: for each spec the peak of the second time, in bytes, beyond the bucket, the residual,
the payload and, with error feedback, the new residual, which replaces the old one in the end. A
low-rank method packs the bucket, encodes and decodes at once: so without the bucket that it packs,
and with the workers' sum in the payload's place.

The peak is that of the resident set, which Linux keeps and resets on request. It only says
something if memory goes back to the system at once: so large blocks are mapped one by one, and
TensorFlow is kept from pooling them, as it does with oneDNN.
"""

import json
import os
import sys

ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": "65536", "TF_ENABLE_ONEDNN_OPTS": "0"}


def main() -> None:
    if any(os.environ.get(name) != value for name, value in ALLOCATION.items()):
        # The C library reads them when a process starts.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATION})
    num_elements, *specs = sys.argv[1:]
    print(json.dumps({spec: extra_bytes(spec, int(num_elements)) for spec in specs}))


def extra_bytes(spec: str, num_elements: int) -> int:
    from tf_gradcomp.codecs.base import LowRank
    from tf_gradcomp.compression import Compression

    compression = Compression.from_spec(spec)
    low_rank = isinstance(compression.build(), LowRank)
    encode = (prepare_low_rank if low_rank else prepare_codec)(compression, num_elements)
    encode()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")  # the peak is now what is resident
    encoded = encode()
    peak = resident("VmHWM")
    extra = peak - resident("VmRSS")
    extra -= 4 * num_elements * (bool(compression.error_feedback) + low_rank)
    del encoded  # was among the resident
    return extra


def prepare_codec(compression, num_elements):
    from tf_gradcomp.cli.bench_pipelines import CodecPipeline

    pipeline = CodecPipeline(compression, num_elements)
    bucket = normal([num_elements])
    return lambda: pipeline.encode(bucket)


def prepare_low_rank(compression, num_elements):
    """An exchange of four matrices with a worker who has the same."""
    import tensorflow as tf

    from tf_gradcomp import exchanges, state
    from tf_gradcomp.codecs.base import Draw
    from tf_gradcomp.plan import make_plan
    from tf_gradcomp.policy import Policy, VariableInfo

    class Twins:
        device, worker_index, num_workers = "/device:CPU:0", 0, 2

        def all_reduce(self, tensor):
            return 2.0 * tensor

    shape = (num_elements // 4096, 1024)
    infos = [VariableInfo(f"matrix{i}", shape, "float32") for i in range(4)]
    plan = make_plan(infos, Policy(compression), Twins.num_workers)
    exchange = exchanges.make_exchange(plan, 0, Twins())
    gradients = [normal(shape) for _ in infos]

    @tf.function(autograph=False)
    def encode(gradients):
        reduced = exchange(gradients, Draw(bucket=0, worker=0, step=tf.constant(1)))
        state.commit(reduced.finite(), reduced.updates)
        return reduced.gradients

    return lambda: encode(gradients)


def normal(shape):
    import numpy as np
    import tensorflow as tf

    return tf.constant(np.random.default_rng(0).standard_t(3, shape).astype(np.float32))


def resident(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
