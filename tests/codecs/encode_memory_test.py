# SPDX-License-Identifier: Apache-2.0
"""Encoding needs little memory beside the bucket, its residual, and what becomes of them.

With `-s` it prints the table of docs/performance.md.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tf_gradcomp.codecs import base, entropy, registry, threshold, top_k
from tf_gradcomp.compression import Compression

PROGRAM = Path(__file__).parents[1] / "support" / "encode_memory.py"
NUM_ELEMENTS = 1 << 22
BUCKET_BYTES = 4 * NUM_ELEMENTS

SPECS = [
    *registry.names(),
    "dithering:levels=255,kind=standard,norm=l2,block=512",
    "fft:values=identity",
    "fft:chunk=none",
    "onebit:block=0",
    "randomk:density=0.1,values=onebit",
    "sidco:values=float16",
    "topk:chunk=64,density=0.1",
    "topk:values=natural",
    "topk:view=flat,basis=fft",
    "topk:view=output",
    "uniform:bits=8,stochastic=true",
]

# For the stacks of threads, the sample of a threshold and what else does not grow with the bucket.
FIXED_BYTES = 2 << 20
# Of the bucket: a bit an item, and keys of those that may be among the largest.
TOP_K_SCRATCH = 0.06
# Of the bucket: half a byte a value, for the parts from which the payload is put together.
ENTROPY_SCRATCH = 0.13
# Of the bucket: TensorFlow's transform of a single row copies it, and has a table as large.
WHOLE_ROW_SCRATCH = 2.0
# Of the bucket: what is sent of it, until it becomes the new residual, and which values are finite.
LOW_RANK_SCRATCH = 1.25


def bound(spec):
    """From what each part holds at a time: kept items, their errors and codes, scratch space."""
    codec = Compression.from_spec(spec).build()
    if isinstance(codec, base.LowRank):
        return FIXED_BYTES + LOW_RANK_SCRATCH * BUCKET_BYTES
    share = 0.0
    if codec.sparsifier is not None:
        share = 2 * codec.density(codec.transform.layout(NUM_ELEMENTS))
    chunked = isinstance(codec.sparsifier, top_k.ChunkedTopK) and codec.sparsifier.chunk
    if isinstance(codec.sparsifier, (top_k.TopK, threshold.Threshold)) and not chunked:
        share += TOP_K_SCRATCH  # for a fixed threshold, as more items may reach it than fit
    if isinstance(codec.quantizer, entropy.EntropyFloat):
        share += ENTROPY_SCRATCH
    if "chunk=none" in spec:
        share += WHOLE_ROW_SCRATCH
    return FIXED_BYTES + share * BUCKET_BYTES


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK),
    reason="this system does not say how much memory a process had at most",
)
def test_memory_beside_bucket_residual_and_payload():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(PROGRAM), str(NUM_ELEMENTS), *SPECS]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    extra = json.loads(result.stdout)
    for spec in SPECS:
        print(f"| `{spec}` | {extra[spec] / BUCKET_BYTES:.2f} | {bound(spec) / BUCKET_BYTES:.2f} |")
    assert [spec for spec in SPECS if extra[spec] > bound(spec)] == []
