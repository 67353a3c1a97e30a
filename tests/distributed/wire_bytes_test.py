# SPDX-License-Identifier: Apache-2.0
"""What crosses the network, counted there: the interface's own counter, headers included."""

import cluster
import pytest

pytestmark = pytest.mark.distributed


def test_fft_sends_at_least_twelve_times_less_than_dense_on_the_demo_s_model():
    dense, compressed = (
        cluster.run_cluster("wire", [spec, "30"])[0].result
        for spec in ("none", "fft:density=0.15,bits=10")
    )
    assert dense["parameters"] > 3_200_000
    # Two workers on a ring: each sends the whole gradient, or its payload, once.
    assert dense["sent_bytes"] == pytest.approx(dense["dense_bytes"], rel=0.05)
    assert compressed["sent_bytes"] == pytest.approx(compressed["payload_bytes"], rel=0.25)
    assert dense["sent_bytes"] >= 12 * compressed["sent_bytes"]
