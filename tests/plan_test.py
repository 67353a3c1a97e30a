# SPDX-License-Identifier: Apache-2.0
"""Plans: a partition of the variables, the same on every worker, with honest sizes."""

import hypothesis
import hypothesis.strategies as st
import loopback
import pytest
import tensorflow as tf

from tf_gradcomp.agreement import Fact, PlanMismatchError, require_agreement
from tf_gradcomp.compression import Compression
from tf_gradcomp.plan import make_plan
from tf_gradcomp.policy import Policy, VariableInfo

DTYPES = ["float32", "float32", "float16", "bfloat16", "float64"]
variables_lists = st.lists(
    st.builds(
        VariableInfo,
        st.sampled_from(["a/kernel", "a/bias", "b/kernel"]),
        st.lists(st.integers(0, 90), max_size=3).map(tuple),
        st.sampled_from(DTYPES),
    ),
    min_size=1,
    max_size=12,
)
policies = st.sampled_from(
    [
        Policy("fft"),
        Policy("fft:scope=layer"),
        Policy("fft:scope=model"),
        Policy("fft:bucket_bytes=40000"),
        Policy("identity", min_rank=0, min_elements=0),
        Policy("none"),
        Policy("fft", rules=(("a/*", "identity"),)),
    ]
)


@hypothesis.given(variables_lists, policies)
def test_every_variable_is_in_exactly_one_bucket(variables, policy):
    plan = make_plan(variables, policy, 2)
    indices = [index for bucket in plan.buckets for index in bucket.indices]
    assert sorted(indices) == list(range(len(variables)))
    for bucket in plan.buckets:
        assert bucket.num_elements == sum(variables[i].num_elements for i in bucket.indices)
        if bucket.compression is None:
            assert {variables[i].dtype for i in bucket.indices} == {bucket.dtype}
        else:
            dense_bytes = sum(
                variables[i].num_elements * tf.as_dtype(variables[i].dtype).size
                for i in bucket.indices
            )
            assert bucket.payload_bytes < dense_bytes or bucket.compression.codec == "identity"
            assert {policy.compression_for(variables[i]) for i in bucket.indices} == {
                bucket.compression
            }


@hypothesis.given(variables_lists, policies)
def test_names_are_labels_but_shapes_are_facts(variables, policy):
    facts = make_plan(variables, policy, 2).facts()
    assert [fact.label for fact in facts] == [variable.name for variable in variables]
    changed = [*variables[:-1], variables[-1]._replace(shape=(*variables[-1].shape, 3))]
    changed_facts = make_plan(changed, policy, 2).facts()
    assert [fact.value for fact in changed_facts] != [fact.value for fact in facts]


def kernels(*sizes):
    return [VariableInfo(f"k{i}", (size, 100), "float32") for i, size in enumerate(sizes)]


def test_scopes_divide_as_they_say_in_reverse_order():
    variables = kernels(50, 60, 70, 80)
    by_scope = {
        scope: [
            bucket.indices
            for bucket in make_plan(variables, Policy(Compression("fft", scope=scope)), 2).buckets
        ]
        for scope in ("layer", "model")
    }
    assert by_scope["layer"] == [(3,), (2,), (1,), (0,)]
    assert by_scope["model"] == [(3, 2, 1, 0)]
    limited = make_plan(variables, Policy(Compression("fft", bucket_bytes=60_000)), 2)
    assert [bucket.indices for bucket in limited.buckets] == [(3, 2), (1, 0)]


def test_a_variable_larger_than_the_bucket_travels_alone():
    plan = make_plan(kernels(50, 900, 50), Policy(Compression("fft", bucket_bytes=30_000)), 2)
    assert [bucket.indices for bucket in plan.buckets] == [(2,), (1,), (0,)]


def test_what_would_not_shrink_is_sent_dense():
    plan = make_plan(kernels(50), Policy("fft:density=1.0,bits=12,chunk=1048576"), 2)
    assert [bucket.compression for bucket in plan.buckets] == [None]
    assert plan.compression_ratio == 1.0


def test_payload_of_the_default_setting():
    # 4 Mi elements in 1024 rows of 2049 bins; 15 % of the bins, two 10-bit codes each, a bitmap.
    plan = make_plan([VariableInfo("k", (4096, 1024), "float32")], Policy("fft"), 2)
    bins = 1024 * 2049
    kept = -(-bins * 15 // 100)
    words = -(-bins // 32) + 3 + -(-kept * 2 * 10 // 32)
    assert plan.payload_bytes == 4 * words
    assert 15.9 < plan.compression_ratio < 16.1


def test_a_cluster_too_large_for_an_all_gather_sends_dense():
    # A payload of 1/16 is sent W - 1 times, a dense gradient 2 (W - 1) / W times: even at W = 32.
    variables = [VariableInfo("k", (4096, 1024), "float32")]
    for num_workers, is_dense in ((31, False), (33, True)):
        policy = Policy("fft:transport=all_gather")
        (bucket,) = make_plan(variables, policy, num_workers).buckets
        assert (bucket.compression is None) == is_dense


@pytest.mark.parametrize("spec", ["natural", "onebit", "topk:density=0.3", "block_topk"])
@pytest.mark.parametrize("transport", ["integer", "block_sparse"])
def test_what_was_asked_for_without_a_gain_is_not_replaced(spec, transport):
    variables = [VariableInfo("k", (4096, 64), "float32")]
    joint = "," if ":" in spec else ":"
    (bucket,) = make_plan(variables, Policy(f"{spec}{joint}transport={transport}"), 4).buckets
    assert bucket.transport == transport
    # Integers are as long as floats; of blocks, an estimate.
    few = transport == "block_sparse" and spec == "block_topk"
    assert (bucket.payload_bytes < 4 * 4096 * 64) == few


@pytest.mark.parametrize(
    ("spec", "num_workers", "transport"),
    [
        ("fft", 2, "all_gather"),
        ("fft", 4, "all_gather"),
        ("fft", 31, "all_gather"),
        ("fft", 33, "scatter_reduce"),
        ("natural", 4, "all_gather"),
        ("natural", 5, "scatter_reduce"),
        ("float16", 64, "scatter_reduce"),
        ("float16:transport=all_reduce", 64, "all_reduce"),
        ("identity:transport=all_reduce", 64, "all_reduce"),
        ("fft:transport=all_gather", 5, "all_gather"),
        ("fft:transport=scatter_reduce", 2, "scatter_reduce"),
        ("powersgd", 8, ""),
        ("none", 8, ""),
    ],
)
def test_auto_takes_the_transport_that_sends_less(spec, num_workers, transport):
    variables = [VariableInfo("k", (4096, 1024), "float32")]
    plan = make_plan(variables, Policy(spec), num_workers)
    assert plan.buckets[0].transport == transport


def test_more_buckets_than_draws_can_tell_apart_are_refused():
    variables = [VariableInfo(f"v{i}", (64, 64), "float32") for i in range(65537)]
    with pytest.raises(ValueError, match="65537 compressed buckets .* scope=bucket"):
        make_plan(variables, Policy("natural:scope=layer"), 2)


def test_rows_that_cannot_be_shared_out_are_not():
    """One row of the transform for all would be sent once per worker, with zeros in all but one."""
    variables = [VariableInfo("k", (4096, 1024), "float32")]
    plan = make_plan(variables, Policy("fft:chunk=none"), 8)
    assert plan.buckets[0].transport == "all_gather"


@pytest.mark.parametrize(
    ("spec", "shape", "times"),
    [
        ("topk:view=auto,scope=layer", (64, 100), 1),
        ("topk:view=auto,scope=layer", (6400,), 0),
        ("topk:view=auto+learned", (64, 100), 0),
        ("topk:view=hidden", (64, 100), 0),
    ],
)
def test_plans_say_once_that_a_choice_leaves_out_learned_bases(spec, shape, times):
    infos = [VariableInfo(name, shape, "float32") for name in ("one", "two")]
    summary = make_plan(infos, Policy(spec, rules=(("*", spec),)), 2).summary()
    text = "\nleft out: learned bases, for the time that they take; view=auto+learned"
    assert summary.count(text) == times


TABLES = [
    VariableInfo("users", (5000, 16), "float32", sparse=True),
    VariableInfo("kernel", (64, 100), "float32"),
    VariableInfo("items", (900, 2, 4), "float32", sparse=True),
    VariableInfo("halves", (900, 8), "float16", sparse=True),
]


def test_sparse_gradients_go_row_by_row_whatever_the_default():
    plan = make_plan(TABLES, Policy("fft"), 2)
    assert [(bucket.indices, bucket.how.partition(":")[0]) for bucket in plan.buckets] == [
        ((1,), "fft"),
        ((3,), "row-sparse"),
        ((2, 0), "row-sparse"),
    ]
    assert plan.dense_bytes == 4 * 6400
    assert plan.payload_bytes == plan.buckets[0].payload_bytes
    assert (
        "bucket 2: row-sparse, bytes depend on the rows touched in a step: "
        "items (900 rows of 32 bytes), users (5,000 rows of 64 bytes)\n"
    ) in plan.summary()
    assert plan.summary().endswith(", and the rows touched")
    assert [fact.value.split()[-1] for fact in plan.facts()][::2] == ["row-sparse"] * 2


def test_only_a_rule_compresses_a_sparse_gradient():
    rules = (("users", "fft"), ("items", "none"))
    plan = make_plan(TABLES, Policy("fft", rules), 2)
    assert [bucket.indices for bucket in plan.buckets] == [(1, 0), (3,), (2,)]
    assert [bucket.row_sparse for bucket in plan.buckets] == [False, True, True]
    # What a rule's compression would not make smaller goes row by row, too.
    wide = make_plan(
        TABLES, Policy("fft", (("users", "fft:density=1.0,bits=12,scope=layer,chunk=1048576"),)), 2
    )
    assert [bucket.indices for bucket in wide.buckets] == [(1,), (3,), (2, 0)]


def test_a_plan_of_sparse_gradients_alone():
    plan = make_plan(TABLES[:1], Policy("fft"), 2)
    assert (plan.dense_bytes, plan.payload_bytes, plan.compression_ratio) == (0, 0, 1.0)


def test_a_pattern_that_matches_nothing_is_reported(caplog):
    variables = [VariableInfo("body/kernel", (64, 100), "float32")]
    make_plan(variables, Policy("fft", rules=(("*haed*", "none"), ("body/*", "fft"))), 2)
    assert "'*haed*' matches none of the variables body/kernel" in caplog.text
    assert "'body/*'" not in caplog.text


def agree(*facts_of_workers):
    """Lets one worker per argument compare its facts with the others'."""

    def work(collectives):
        require_agreement(collectives, "the plan", facts_of_workers[collectives.worker_index])

    loopback.run_workers(len(facts_of_workers), work)


def facts(*values, label="kernel"):
    return [Fact(label, value) for value in values]


def test_workers_that_differ_in_names_only_agree():
    agree(facts("a", "b"), facts("a", "b", label="kernel_1"), facts("a", "b"))


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (facts("a", "c", label="k1"), ["worker 0: kernel: b", "worker 1: k1: c"]),
        (facts("a"), ["worker 0: kernel: b", "worker 1: nothing"]),
        (facts("a", "b", "c"), ["worker 0: nothing", "worker 1: kernel: c"]),
    ],
)
def test_disagreement_names_the_first_difference_and_who_says_what(others, words):
    with pytest.raises(PlanMismatchError) as error:
        agree(facts("a", "b"), others)
    for word in [*words, "the plan", "This is worker 0"]:
        assert word in str(error.value)
