# SPDX-License-Identifier: Apache-2.0
"""model.fit with two real workers: exchanges start before back-propagation ends."""

import cluster
import pytest

pytestmark = pytest.mark.distributed

# Deterministic; random, by the number of the step; by the parity of the step; not compressed.
SPECS = ["topk:scope=layer", "natural:scope=layer", "acpsgd:rank=1,scope=layer", "none"]


@pytest.fixture(scope="module")
def workers():
    return [outcome.result["outcomes"] for outcome in cluster.run_cluster("overlap", SPECS)]


@pytest.mark.parametrize("spec", SPECS)
def test_the_first_bucket_is_encoded_before_back_propagation_ends(workers, spec):
    for outcomes in workers:
        steps = outcomes[spec]["steps"]
        early = [step["encoded 0"] < step["gradients"] for step in steps]
        # A busy machine may now and then run operations late.
        assert sum(early) > len(early) / 2, steps


@pytest.mark.parametrize("spec", SPECS)
def test_buckets_are_exchanged_in_the_order_of_the_plan_from_the_top_of_the_model(workers, spec):
    for outcomes in workers:
        buckets = outcomes[spec]["buckets"]
        assert len(buckets) > 1
        for step in outcomes[spec]["steps"]:
            times = [step[f"exchanged {number}"] for number in range(len(buckets))]
            assert times == sorted(times)
        assert any(name.endswith(("top/kernel", "narrow/kernel")) for name in buckets[0])
        assert "bottom/" in buckets[-1][-1]
