# SPDX-License-Identifier: Apache-2.0
"""model.fit with two real workers, of which one decodes a bit wrongly."""

import cluster
import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_a_wrong_bit_stops_all_workers_before_the_next_comparison_is_over(steps_per_execution):
    for outcome in cluster.run_cluster("probe", ["drift", "stop", str(steps_per_execution)]):
        # Steps 1, 5 and 9 compare; the bit is wrong from the end of step 6 on.
        assert "differ before exchange 9: " in outcome.result["message"]
        assert "low/kernel (bucket 0, float16)" in outcome.result["message"]
        assert "top/kernel" not in outcome.result["message"]
        # TensorFlow may have counted the step that failed.
        assert outcome.result["steps"] <= 9


def test_workers_go_on_with_the_weights_of_worker_0():
    first, second = cluster.run_cluster("probe", ["drift", "resync", "1"])
    assert first.result["weights"] == second.result["weights"]
    assert first.result["steps"] == 13
    assert all("differ before exchange 9" in outcome.output for outcome in (first, second))
