# SPDX-License-Identifier: Apache-2.0
"""Workers that do not fit together, or do not come: an error on every worker, not a hang."""

import re
import socket

import cluster
import pytest

pytestmark = pytest.mark.distributed


def test_different_specs_are_refused_before_anything_is_built():
    arguments = [["start_only", "fft:density=0.1"], ["start_only", "fft:density=0.2"]]
    for index, outcome in enumerate(cluster.run_cluster("probe", arguments)):
        assert outcome.code not in (0, None)
        assert "PlanMismatchError" in outcome.output
        assert "worker 0: compression: default fft:density=0.1" in outcome.output
        assert "worker 1: compression: default fft:density=0.2" in outcome.output
        assert f"This is worker {index}" in outcome.output


def test_different_models_are_refused_before_the_first_exchange():
    arguments = [["different_models", "0"], ["different_models", "1"]]
    for outcome in cluster.run_cluster("probe", arguments):
        assert outcome.code not in (0, None)
        assert "PlanMismatchError" in outcome.output
        assert "kernel: 100x100 float32 fft:scope=layer" in outcome.output
        assert "kernel: 100x2000 float32 fft:scope=layer" in outcome.output


def test_a_late_worker_is_an_error_within_the_timeout():
    outcomes = cluster.run_cluster("probe", ["stall", "8"])
    result = outcomes[0].result
    assert result["error"] == "DeadlineExceededError"
    assert (
        "The collective gradient_exchange_bucket_0 took longer than 2 seconds" in result["message"]
    )
    assert "the logs of all workers" in result["message"]
    assert outcomes[0].seconds < 60


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_named_by_the_other_one(victim):
    outcomes = cluster.run_cluster("probe", ["killed", str(victim)])
    assert outcomes[victim].code == -9
    survivor = outcomes[1 - victim]
    assert survivor.code not in (0, None)
    assert survivor.seconds < 60
    named = re.search(
        rf"tf_gradcomp: This is worker {1 - victim}\. At this moment worker {victim} at "
        r"127\.0\.0\.1:\d+ \(Connection refused\) does not answer;.* start all workers again.*"
        r"BackupAndRestore",
        survivor.output,
    )
    assert named, survivor.output[-6000:]


def test_a_port_in_use_is_explained():
    with socket.create_server(("", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (outcome,) = cluster.run_cluster(
            "probe", ["start_only", "fft"], num_workers=1, addresses=[address]
        )
    assert outcome.code not in (0, None)
    assert f"worker 0 cannot listen at {address}, for another process does" in outcome.output
