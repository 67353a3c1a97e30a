# SPDX-License-Identifier: Apache-2.0
"""model.fit with two real workers: exchanges start before back-propagation ends."""

import cluster
import pytest

pytestmark = pytest.mark.distributed

# Deterministic; random, by the number of the step; by the parity of the step; in views that are
# compared now and then; in branches, with a density as measured, or not at all in some steps; not
# compressed.
SPECS = [
    "topk:scope=layer",
    "natural:scope=layer",
    "acpsgd:rank=1,scope=layer",
    "dct:scope=layer",
    "topk:density=0.01,scope=layer,controller=lags(period=5)",
    "topk:density=0.01,scope=layer,controller=layer_window(budget=0.5,period=2)",
    "none",
]


@pytest.fixture(scope="module")
def workers():
    return [outcome.result["outcomes"] for outcome in cluster.run_cluster("overlap", SPECS)]


def in_most(steps, condition):
    """A busy machine may now and then be late to run an operation, or to look at the clock."""
    assert steps
    return sum(map(condition, steps)) > len(steps) / 2


def exchanged(step):
    """Returns the numbers of buckets in the order in which their exchanges ended."""
    names = [name for name in step if name.startswith("exchanged ")]
    return [int(name.split()[1]) for name in sorted(names, key=step.get)]


@pytest.mark.parametrize("spec", SPECS)
def test_the_first_bucket_is_encoded_before_back_propagation_ends(workers, spec):
    for outcomes in workers:
        # Where it is sent: some are withheld in some steps.
        steps = [step for step in outcomes[spec]["steps"] if "encoded 0" in step]
        assert in_most(steps, lambda step: step["encoded 0"] < step["gradients"]), steps


@pytest.mark.parametrize("spec", SPECS)
def test_buckets_are_exchanged_in_the_order_of_the_plan_from_the_top_of_the_model(workers, spec):
    for outcomes in workers:
        buckets, steps = outcomes[spec]["buckets"], outcomes[spec]["steps"]
        assert any("narrow/kernel" in name for name in buckets[0])
        assert any("bottom/" in name for name in buckets[-1])
        if "layer_window" not in spec:
            assert all(len(exchanged(step)) == len(buckets) for step in steps)
        assert set().union(*map(exchanged, steps)) == set(range(len(buckets)))
        assert in_most(steps, lambda step: exchanged(step) == sorted(exchanged(step))), steps
