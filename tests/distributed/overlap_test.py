# SPDX-License-Identifier: Apache-2.0
"""model.fit with two real workers: exchanges start before back-propagation ends."""

import cluster
import pytest

pytestmark = pytest.mark.distributed

# Deterministic; random, by the number of the step; by the parity of the step; in views that are
# compared now and then; not compressed.
SPECS = [
    "topk:scope=layer",
    "natural:scope=layer",
    "acpsgd:rank=1,scope=layer",
    "dct:scope=layer",
    "none",
]


@pytest.fixture(scope="module")
def workers():
    return [outcome.result["outcomes"] for outcome in cluster.run_cluster("overlap", SPECS)]


def in_most(steps, condition):
    """A busy machine may now and then be late to run an operation, or to look at the clock."""
    return sum(map(condition, steps)) > len(steps) / 2


@pytest.mark.parametrize("spec", SPECS)
def test_the_first_bucket_is_encoded_before_back_propagation_ends(workers, spec):
    for outcomes in workers:
        steps = outcomes[spec]["steps"]
        assert in_most(steps, lambda step: step["encoded 0"] < step["gradients"]), steps


@pytest.mark.parametrize("spec", SPECS)
def test_buckets_are_exchanged_in_the_order_of_the_plan_from_the_top_of_the_model(workers, spec):
    for outcomes in workers:
        buckets, steps = outcomes[spec]["buckets"], outcomes[spec]["steps"]
        assert any("narrow/kernel" in name for name in buckets[0])
        assert any("bottom/" in name for name in buckets[-1])
        in_order = [f"exchanged {number}" for number in range(len(buckets))]
        assert in_most(steps, lambda step, names=in_order: sorted(names, key=step.get) == names), (
            steps
        )
