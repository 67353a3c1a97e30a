# SPDX-License-Identifier: Apache-2.0
"""What crosses the network, counted there: the interface's own counter, headers included."""

import json
import os
import subprocess
import sys
from typing import Any

import own_network
import pytest

pytestmark = pytest.mark.distributed

PROGRAM = """
import json, sys, cluster
print(json.dumps(cluster.run_cluster("wire", [sys.argv[1], "30"])[0].result))
"""


def count(spec: str) -> dict[str, Any]:
    result = subprocess.run(
        [*own_network.prefix(), sys.executable, "-c", PROGRAM, spec],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_fft_sends_at_least_twelve_times_less_than_dense_on_the_demo_s_model():
    dense, compressed = count("none"), count("fft:density=0.15,bits=10")
    assert dense["parameters"] > 3_200_000
    # Two workers on a ring: each sends the whole gradient, or its payload, once.
    assert dense["sent_bytes"] == pytest.approx(dense["dense_bytes"], rel=0.05)
    assert compressed["sent_bytes"] == pytest.approx(compressed["payload_bytes"], rel=0.25)
    assert dense["sent_bytes"] >= 12 * compressed["sent_bytes"]
