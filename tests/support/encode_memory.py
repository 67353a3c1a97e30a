# SPDX-License-Identifier: Apache-2.0
"""Measures the memory that encoding takes for a while.

    python tests/support/encode_memory.py ELEMENTS SPEC...

Encodes a bucket of float32 elements twice with each compression, as the reducer does, and prints a
JSON object: for each spec the peak of the second time, in bytes, beyond the bucket, the residual,
the payload and, with error feedback, the new residual, which replaces the old one in the end.

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
    import numpy as np
    import tensorflow as tf

    from tf_gradcomp.cli.bench_pipelines import CodecPipeline
    from tf_gradcomp.compression import Compression

    compression = Compression.from_spec(spec)
    pipeline = CodecPipeline(compression, num_elements)
    values = np.random.default_rng(0).standard_t(3, num_elements).astype(np.float32)
    bucket = tf.constant(values)
    del values
    pipeline.encode(bucket)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")  # the peak is now what is resident
    payload = pipeline.encode(bucket)
    peak = resident("VmHWM")
    new_residual = 4 * num_elements if compression.error_feedback else 0
    extra = peak - resident("VmRSS") - new_residual
    del payload  # was among the resident
    return extra


def resident(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
