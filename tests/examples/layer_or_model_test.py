# SPDX-License-Identifier: Apache-2.0
"""The comparison of scopes compares like with like, and reports it."""

import layer_or_model
import pytest
from layer_or_model import OPERATORS

from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import Policy, VariableInfo

SHAPES = {"a": (3, 3, 16, 32), "b": (3, 3, 64, 128), "c": (2048, 48), "small": (48, 10)}
VARIABLES = [VariableInfo(name, shape, "float32") for name, shape in SHAPES.items()]
DENSE_BYTES = 4 * (9 * 16 * 32 + 9 * 64 * 128 + 2048 * 48)
BUDGET = 0.02


def payload_bytes(compression):
    """As the plan of two workers has it."""
    buckets = make_plan(VARIABLES, Policy(compression), num_workers=2).buckets
    compressed = [bucket for bucket in buckets if bucket.compression]
    assert len(compressed) == (3 if compression.scope == "layer" else 1)
    assert {bucket.transport for bucket in compressed} == {"all_gather"}
    return sum(bucket.payload_bytes for bucket in compressed)


@pytest.mark.parametrize("name", OPERATORS)
def test_both_scopes_send_equally_many_bytes(name):
    operator = OPERATORS[name]
    pairs = layer_or_model.pairs_of(operator, VARIABLES, BUDGET)
    assert [pair.layer.error_feedback for pair in pairs] == (
        [False, True] if operator.share else [False]
    )
    for pair in pairs:
        assert (pair.layer.scope, pair.model.scope) == ("layer", "model")
        layer, model = payload_bytes(pair.layer), payload_bytes(pair.model)
        assert layer == pytest.approx(model, rel=0.005)
        if operator.share:
            assert 0.995 * BUDGET * DENSE_BYTES <= model <= BUDGET * DENSE_BYTES
            assert layer <= BUDGET * DENSE_BYTES


def reports(*accuracies):
    return [{"test_accuracy": accuracy} for accuracy in accuracies]


@pytest.mark.parametrize(
    ("layer", "model", "better"),
    [
        ((0.81, 0.84), (0.80, 0.83), "layer"),
        ((0.70, 0.71), (0.71, 0.72), "model"),
        ((0.81, 0.83), (0.80, 0.83), "neither"),
        ((0.80, 0.83), (0.84, 0.82), "neither"),
        ((0.90,), (0.80,), "-"),
    ],
)
def test_a_scope_is_better_if_it_wins_with_every_seed(layer, model, better):
    assert layer_or_model.better(reports(*layer), reports(*model)) == better


def test_gap_is_that_of_equal_seeds():
    assert layer_or_model.gap(reports(0.80, 0.83), reports(0.79, 0.81)) == "+1.50 +- 0.50"
    assert layer_or_model.gap(reports(0.80), reports(0.81)) == "-1.00"
