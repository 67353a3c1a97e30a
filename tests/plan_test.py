# SPDX-License-Identifier: Apache-2.0
"""Plans: a partition of the variables, the same on every worker, with honest sizes."""

import hypothesis
import hypothesis.strategies as st
import pytest

from tf_gradcomp.agreement import PlanMismatchError, require_agreement
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
    plan = make_plan(variables, policy)
    indices = [index for bucket in plan.buckets for index in bucket.indices]
    assert sorted(indices) == list(range(len(variables)))
    for bucket in plan.buckets:
        assert bucket.num_elements == sum(variables[i].num_elements for i in bucket.indices)
        if bucket.compression is None:
            assert {variables[i].dtype for i in bucket.indices} == {bucket.dtype}
        else:
            assert bucket.payload_bytes <= bucket.num_elements * 4
            assert {policy.compression_for(variables[i]) for i in bucket.indices} == {
                bucket.compression
            }


@hypothesis.given(variables_lists, policies)
def test_names_do_not_enter_the_digest_but_shapes_do(variables, policy):
    plan = make_plan(variables, policy)
    assert plan.digest() == make_plan(variables, policy).digest()
    changed = [*variables[:-1], variables[-1]._replace(shape=(*variables[-1].shape, 3))]
    assert make_plan(changed, policy).digest() != plan.digest()


def kernels(*sizes):
    return [VariableInfo(f"k{i}", (size, 100), "float32") for i, size in enumerate(sizes)]


def test_scopes_divide_as_they_say_in_reverse_order():
    variables = kernels(50, 60, 70, 80)
    by_scope = {
        scope: [
            bucket.indices
            for bucket in make_plan(variables, Policy(Compression("fft", scope=scope))).buckets
        ]
        for scope in ("layer", "model")
    }
    assert by_scope["layer"] == [(3,), (2,), (1,), (0,)]
    assert by_scope["model"] == [(3, 2, 1, 0)]
    limited = make_plan(variables, Policy(Compression("fft", bucket_bytes=60_000)))
    assert [bucket.indices for bucket in limited.buckets] == [(3, 2), (1, 0)]


def test_a_variable_larger_than_the_bucket_travels_alone():
    plan = make_plan(kernels(50, 900, 50), Policy(Compression("fft", bucket_bytes=30_000)))
    assert [bucket.indices for bucket in plan.buckets] == [(2,), (1,), (0,)]


def test_what_would_not_shrink_is_sent_dense():
    plan = make_plan(kernels(50), Policy("fft:density=1.0,bits=12,chunk=1048576"))
    assert [bucket.compression for bucket in plan.buckets] == [None]
    assert plan.compression_ratio == 1.0


def test_payload_of_the_default_setting():
    # 4 Mi elements in 1024 rows of 2049 bins; 15 % of the bins, two 10-bit codes each, a bitmap.
    plan = make_plan([VariableInfo("k", (4096, 1024), "float32")], Policy("fft"))
    bins = 1024 * 2049
    kept = -(-bins * 15 // 100)
    words = -(-bins // 32) + 3 + -(-kept * 2 * 10 // 32)
    assert plan.payload_bytes == 4 * words
    assert 15.9 < plan.compression_ratio < 16.1


class FakeGatherer:
    worker_index = 1

    def __init__(self, others):
        self.others = others
        self.calls = 0

    def gather_text(self, text):
        self.calls += 1
        if self.calls == 1:
            import hashlib

            return [text, hashlib.sha256("\n".join(self.others).encode()).hexdigest()]
        return [text, "\n".join(self.others)]


def test_agreement_sends_only_a_hash_when_all_agree():
    gatherer = FakeGatherer(["a", "b"])
    require_agreement(gatherer, "the plan", ["a", "b"])
    assert gatherer.calls == 1


@pytest.mark.parametrize(
    ("others", "words"),
    [(["a", "c"], ["worker 0: b", "worker 1: c"]), (["a"], ["worker 0: b", "worker 1: nothing"])],
)
def test_disagreement_names_the_first_difference_and_who_says_what(others, words):
    with pytest.raises(PlanMismatchError) as error:
        require_agreement(FakeGatherer(others), "the plan", ["a", "b"])
    for word in [*words, "the plan", "This is worker 1"]:
        assert word in str(error.value)
