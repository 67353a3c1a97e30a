# SPDX-License-Identifier: Apache-2.0
"""Compression and Policy as plain data: round trips, and one clear error for bad input."""

import dataclasses
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp import methods
from tf_gradcomp.codecs import base, registry
from tf_gradcomp.compression import SCOPES, Compression
from tf_gradcomp.controllers.schedules import Growth, Highest, WarmUp
from tf_gradcomp.policy import Policy, VariableInfo, as_policy

compressions = st.builds(
    lambda density, bits, chunk, feedback, scope, size, warmup, grow_after: Compression(
        "fft",
        (("density", density), ("bits", bits), ("chunk", chunk)),
        error_feedback=feedback,
        scope=scope,
        bucket_bytes=size,
        warmup=0 if density >= 0.25 else warmup,
        grow_after=grow_after,
    ),
    st.floats(1e-6, 1.0),
    st.integers(6, 12),
    st.sampled_from([None, 2, 64, 4096]),
    st.sampled_from([None, True, False]),
    st.sampled_from(SCOPES),
    st.integers(4, 2**40),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
) | st.sampled_from(
    [
        Compression("identity"),
        Compression("none"),
        methods.superneurons(),
        methods.dgc(clip_norm=0.25),
        methods.gmc(),
        methods.clan(),
    ]
)


@hypothesis.given(compressions)
def test_spec_dict_and_pickle_give_back_an_equal_object(compression):
    copies = [
        Compression.from_spec(compression.to_spec()),
        Compression.from_dict(compression.to_dict()),
        pickle.loads(pickle.dumps(compression)),
    ]
    for copy in copies:
        assert copy == compression
        assert hash(copy) == hash(compression)


def test_defaults_written_out_are_the_same_compression():
    written_out = "fft:density=0.15,bits=10,chunk=4096,mantissa_bits=none,error_feedback=true"
    assert Compression.from_spec("fft") == Compression.from_spec(written_out)
    assert Compression.from_spec(written_out).to_spec() == "fft"


def test_error_feedback_is_on_for_biased_codecs_only():
    assert Compression("fft").error_feedback is True
    assert Compression("identity").error_feedback is False
    assert Compression("none").error_feedback is False


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ftt", ["unknown codec", "'ftt'", "fft", "identity"]),
        ("", ["unknown codec"]),
        ("fft:densty=0.1", ["'densty'", "density", "bits"]),
        ("fft:density", ["key=value", "'density'"]),
        ("fft:density=", ["key=value"]),
        ("fft:density=0.1,density=0.2", ["'density'", "twice"]),
        ("fft:density=0", ["density", "(0, 1.0]", "got 0"]),
        ("fft:density=-0.1", ["density", "(0, 1.0]"]),
        ("fft:density=1.01", ["density", "(0, 1.0]", "1.01"]),
        ("fft:density=nan", ["density", "nan"]),
        ("fft:density=half", ["density", "'half'"]),
        ("fft:density=true", ["density", "True"]),
        ("fft:bits=5", ["bits", "[6, 12]", "got 5"]),
        ("fft:bits=13", ["bits", "[6, 12]", "got 13"]),
        ("fft:bits=8.5", ["bits", "8.5"]),
        ("fft:bits=8,mantissa_bits=7", ["mantissa_bits", "[1, 6]", "got 7"]),
        ("fft:bits=8,mantissa_bits=0", ["mantissa_bits", "[1, 6]"]),
        ("fft:chunk=1000", ["chunk", "power of two", "1000"]),
        ("fft:chunk=1", ["chunk", "power of two"]),
        ("fft:chunk=2097152", ["chunk", "power of two"]),
        ("fft:scope=tensor", ["scope", "layer, bucket, model", "'tensor'"]),
        ("fft:error_feedback=maybe", ["error_feedback", "'maybe'"]),
        ("fft:bucket_bytes=0", ["bucket_bytes", "got 0"]),
        ("fft:warmup=-1", ["warmup", "from 0 to 2147483647", "got -1"]),
        ("fft:warmup=10.0", ["warmup", "integer", "got 10.0"]),
        ("fft:warmup=true", ["warmup", "integer", "got True"]),
        ("fft:grow_after=2147483648", ["grow_after", "from 0 to 2147483647", "got 2147483648"]),
        ("fft:density=0.25,warmup=10", ["warmup", "0.25", "density must be less", "got 0.25"]),
        ("natural:warmup=10", ["warmup", "codec must be one of block_randomk, ", "got 'natural'"]),
        ("sidco:warmup=10", ["warmup", "topk", "got 'sidco'"]),
        ("threshold:grow_after=10", ["grow_after", "topk", "got 'threshold'"]),
        ("powersgd:grow_after=10", ["grow_after", "topk", "got 'powersgd'"]),
        ("none:warmup=10", ["warmup", "topk", "got 'none'"]),
        ("topk:densty=0.01", ["'densty', did you mean 'density'?"]),
        ("topkk", ["did you mean 'topk'?"]),
        ("dgc", ["'dgc' is a published method, no codec", "tf_gradcomp.methods.dgc()"]),
        ("dgd", ["unknown codec 'dgd'; known codecs"]),
        (
            "fft:transport=ring",
            [
                "transport",
                "auto or all_gather or scatter_reduce or block_sparse or integer",
                "'ring'",
            ],
        ),
        (
            "topk:transport=all_reduce",
            [
                "transport of 'topk'",
                "integer, got 'all_reduce'",
                "bfloat16, float16, identity",
            ],
        ),
        ("topk:density=1.0,values=float16,transport=all_reduce", ["got 'all_reduce', which is"]),
        ("float8_e4m3:transport=all_reduce", ["bfloat16, float16, identity only"]),
        ("powersgd:transport=all_reduce", ["transport of 'powersgd' must be auto"]),
        ("powersgd:transport=all_gather", ["transport of 'powersgd' must be auto"]),
        ("none:transport=all_gather", ["transport of 'none' must be auto"]),
        ("topk:momentum=1", ["momentum must be in [0, 1)", "got 1"]),
        ("topk:momentum=true", ["momentum must be in [0, 1)", "got True"]),
        ("topk:global_momentum=-0.1", ["global_momentum must be in [0, 1)", "got -0.1"]),
        ("topk:momentum=0.9,global_momentum=0.9", ["exclude each other"]),
        ("topk:momentum=0.9,error_feedback=false", ["momentum", "needs error_feedback=true"]),
        ("natural:momentum=0.9", ["needs error_feedback=true"]),
        ("powersgd:momentum=0.9", ["'powersgd'", "the optimizer has the momentum"]),
        ("none:momentum=0.9", ["'none'", "the optimizer has the momentum"]),
        ("none:clip_norm=1", ["clip_norm", "'none'"]),
        ("topk:momentum=0.9999999999", ["momentum must be in [0, 1)", "got 0.9999999999"]),
        ("topk:clip_norm=0", ["clip_norm must be none or from 1e-18 to 1e+18", "got 0"]),
        ("topk:clip_norm=inf", ["clip_norm must be none or from 1e-18 to 1e+18", "got inf"]),
        ("topk:clip_norm=1e50", ["clip_norm must be none or from 1e-18 to 1e+18", "got 1e+50"]),
        ("topk:lr_correction=1", ["lr_correction must be true or false", "got 1"]),
        ("natural:lr_correction=true", ["lr_correction", "needs error_feedback=true"]),
        ("topk:start_after=-1", ["start_after", "from 0 to 2147483647", "got -1"]),
        ("topk:start_after=true", ["start_after", "integer", "got True"]),
        ("topk:start_after=1.0", ["start_after", "integer", "got 1.0"]),
        ("powersgd:start_after=3", ["start_after is for codecs", "'powersgd'"]),
        ("none:start_after=3", ["start_after is for codecs", "'none'"]),
        ("topk:controller=3", ["controller must be", "got 3"]),
        ("topk:controller=lag", ["lags, layer_window", "'lag'"]),
        ("topk:controller=lags(periods=3)", ["'lags' has no field 'periods'"]),
        ("none:controller=lags", ["controller lags is for codecs", "'none'"]),
        ("powersgd:controller=layer_window", ["is for codecs", "'powersgd'"]),
        ("natural:controller=lags", ["changes a density", "topk", "'natural'"]),
        ("sidco:controller=lags", ["changes a density", "topk", "'sidco'"]),
        ("topk:controller=lags,warmup=3", ["lags decides what is sent", "warmup"]),
        ("topk:controller=layer_window,grow_after=3", ["decides what is sent", "grow_after 0"]),
        ("natural:controller=layer_window,error_feedback=false", ["needs error_feedback=true"]),
        ("topk:controller=layer_window,global_momentum=0.9", ["global_momentum knows no sum"]),
        ("none:density=0.1", ["'none'", "'density'"]),
        ("none:error_feedback=true", ["error_feedback", "'none'"]),
        ("identity:density=0.1", ["'identity'", "'density'", "none"]),
    ],
)
def test_bad_specs_say_what_is_wrong_and_what_is_allowed(spec, words):
    with pytest.raises(ValueError) as error:
        Compression.from_spec(spec)
    message = str(error.value)
    assert repr(spec) in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_schedule_is_part_of_a_compression():
    warm = Compression.from_spec("topk:density=0.001,warmup=400")
    assert warm.to_spec() == "topk:density=0.001,warmup=400"
    assert warm.density_schedule == Highest((WarmUp(0.001, 400),))
    both = Compression.from_spec("randomk:density=0.1,grow_after=9,warmup=4")
    assert both.density_schedule == Highest((WarmUp(0.1, 4), Growth(0.1, 9)))
    for compression in (warm, both):
        assert compression.steady().density_schedule is None
        assert compression.steady() == Compression(compression.codec, compression.params)
    assert Compression("natural").density_schedule is None


@pytest.mark.parametrize(
    ("field", "adjustable"),
    [
        # Not of methods with room for more than they aim at.
        ("density", ["block_randomk", "block_topk", "dct", "fft", "randomk", "topk"]),
        ("bits", ["dct", "fft", "range_float", "uniform"]),  # not eighths, as entropy's
    ],
)
def test_some_densities_and_bits_can_change(field, adjustable):
    assert registry.adjustable(field) == adjustable
    for name in registry.names():
        codec = registry.build(name, {})
        can_change = codec.adjustable if isinstance(codec, base.Codec) else ()
        assert (field in can_change) == (name in adjustable)


def tenth(step):
    return 0.1


@pytest.mark.parametrize(
    ("codec", "params", "fields", "words"),
    [
        ("topk", {"density": tenth}, {"warmup": 3}, "density is a schedule: warmup"),
        ("topk", {"density": tenth}, {"grow_after": 3}, "density is a schedule: warmup"),
        ("topk", {"density": tenth}, {"controller": "lags"}, "lags decides what is sent"),
        ("topk", {"chunk": lambda step: 64}, {}, "chunk"),
        ("natural", {"seed": tenth}, {}, "'natural'"),
        ("sidco", {"density": tenth}, {}, "density of 'sidco' must be a plain value"),
        ("topk", {"values": "dithering", "bits": lambda step: 4}, {}, "bits"),
        ("fft", {"bits": lambda step: float("nan")}, {}, "bits must be .* nan"),
        ("fft", {"bits": lambda step: float("inf")}, {}, "bits must be .* inf"),
        ("fft", {"bits": lambda step: 5}, {}, "bits must be .* 5"),
        ("topk", {"density": lambda step: 0.0}, {}, "density must be .* 0.0"),
        ("topk", {"density": lambda step: float("nan")}, {}, "density must be .* nan"),
        ("topk", {}, {"controller": object()}, "controller must be a controller, a spec or none"),
    ],
)
def test_what_cannot_be_scheduled_is_said(codec, params, fields, words):
    with pytest.raises(ValueError, match=words):
        Compression(codec, tuple(params.items()), **fields)


def test_schedules_are_told_apart():
    cosine = tf.keras.optimizers.schedules.CosineDecay
    one, same, other = (
        Compression("topk", (("density", cosine(0.1, steps)),)) for steps in (10, 10, 20)
    )
    assert one == same != other
    assert hash(one) == hash(same)
    assert str(one) == str(same) != str(other)
    first, second = (Compression("topk", (("density", lambda step: 0.1),)) for _ in range(2))
    assert first != second
    assert first.steady() == second.steady() == Compression("topk", (("density", 0.1),))
    assert one.to_dict()["params"]["density"].startswith("CosineDecay(")
    assert one.changes and one.changes_density and not one.withholds
    bits = Compression("fft", (("bits", lambda step: 8.4),))
    assert bits.changes and not bits.changes_density
    assert bits.steady() == Compression("fft", (("bits", 8),))


def test_a_keras_schedule_without_a_config_is_itself():
    class Tutorial(tf.keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return tf.where(step < 2, 0.25, 0.5)  # as only tensors let it

    function = Tutorial()
    one, same, other = (
        Compression("topk", {"density": given}) for given in (function, function, Tutorial())
    )
    assert one == same != other
    assert str(one) == str(other)
    assert one.scheduled["density"].is_keras
    assert one.build() == Compression("topk", {"density": 0.25}).build()
    values = one.scheduled["density"].values(tf.constant([1, 2, 3]))
    assert values.numpy().tolist() == [0.25, 0.25, 0.5]


def test_the_text_of_a_schedule_has_no_addresses():
    """Workers compare it."""

    class Wrapped(tf.keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, inner, scale):
            self.inner, self.scale = inner, scale

        def __call__(self, step):
            return self.inner(step) * self.scale

        def get_config(self):
            return {"inner": self.inner, "scale": self.scale}

    one, other = (
        Compression(
            "topk", {"density": Wrapped(tf.keras.optimizers.schedules.CosineDecay(d, 9), s)}
        )
        for d, s in [(0.1, np.float64(0.5)), (0.2, np.float64(0.5))]
    )
    assert str(one) == str(other) == "topk:density=Wrapped(scale=0.5)"
    assert one != other


def test_a_schedule_must_be_hashable():
    @dataclasses.dataclass
    class Mutable:
        value: float = 0.1

        def __call__(self, step):
            return self.value

    with pytest.raises(ValueError, match=r"hashable, .* got .*Mutable\(value=0.1\)"):
        Compression("topk", {"density": Mutable()})


def test_from_dict_names_unknown_fields():
    with pytest.raises(ValueError, match="'codecs'.*codec"):
        Compression.from_dict({"codecs": "fft"})


@pytest.mark.parametrize("value", [3, b"fft", ["fft"], object()])
def test_policy_refuses_what_is_no_compression(value):
    with pytest.raises(ValueError, match="spec"):
        as_policy(value)


@pytest.mark.parametrize("fields", [{"min_rank": -1}, {"min_elements": 1.5}, {"rules": [("a",)]}])
def test_policy_checks_its_fields(fields):
    with pytest.raises(ValueError, match="Policy"):
        Policy(**fields)


@pytest.mark.parametrize("field", ["momentum", "global_momentum", "clip_norm"])
def test_what_replaces_a_part_of_the_optimizer_is_one_for_all_variables(field):
    rules = (("a", f"topk:{field}=0.5"), ("b", "none"))
    policy = Policy(f"dct:{field}=0.5", rules)
    assert policy.momentum == (0.5 if "momentum" in field else 0.0)
    assert policy.clip_norm == (0.5 if field == "clip_norm" else None)
    for other in ("topk", f"topk:{field}=0.4"):
        with pytest.raises(ValueError, match=f"Policy: {field} must be the same"):
            Policy(other, rules)


def test_policy_defaults_leave_small_and_flat_tensors_dense():
    policy = Policy("fft")
    assert policy.compression_for(VariableInfo("k", (64, 64), "float32")) == Compression("fft")
    for shape, dtype in [
        ((63, 65), "float32"),
        ((100_000,), "float32"),
        ((), "float32"),
        ((0, 5), "float32"),
        ((64, 64), "float64"),
        ((64, 64), "complex64"),
        ((64, 64), "int32"),
    ]:
        assert policy.compression_for(VariableInfo("k", shape, dtype)) is None


def test_first_matching_rule_wins_and_overrides_the_limits():
    policy = Policy("fft", rules=(("*/bias", "identity"), ("head/*", None), ("*", "fft:bits=8")))
    assert policy.compression_for(VariableInfo("head/bias", (4,), "float32")).codec == "identity"
    assert policy.compression_for(VariableInfo("head/kernel", (99, 99), "float32")) is None
    assert policy.compression_for(VariableInfo("body/k", (99, 99), "float32")).params != (
        Compression("fft").params
    )


def test_superneurons_follows_the_paper():
    compression = methods.superneurons()
    assert compression.scope == "layer"
    assert compression.error_feedback is False
    assert dict(compression.params)["chunk"] is None
    assert compression.density_schedule is None
    assert methods.superneurons(grow_after=9).density_schedule == Highest((Growth(0.15, 9),))


def test_deep_gradient_compression_follows_the_paper():
    compression = methods.dgc()
    assert str(compression) == "topk:density=0.001,scope=layer,momentum=0.9"
    assert compression.error_feedback is True


def test_registered_codecs_have_working_defaults():
    for name in registry.names():
        codec = registry.build(name, {})
        if isinstance(codec, base.LowRank):
            assert codec.num_words([(100, 1000)]) > 0
        else:
            assert codec.num_words(codec.transform.layout(100_000)) > 0


def test_codec_none_has_nothing_to_build():
    with pytest.raises(ValueError, match="nothing to build"):
        Compression.from_spec("none").build()


def test_keras_schedules_are_asked_for_their_first_value_when_a_cluster_is_joined():
    too_high = tf.keras.optimizers.schedules.CosineDecay(2.0, 10)
    policy = Policy(Compression("topk", {"density": too_high}))
    with pytest.raises(ValueError, match="density must be in"):
        policy.check_schedules()
    with pytest.raises(ValueError, match="density must be in"):
        Compression("topk", {"density": lambda step: 2.0})


@pytest.mark.parametrize("value", [tf.constant(0.1), tf.Variable(0.1)])
def test_a_tensor_is_no_parameter(value):
    with pytest.raises(ValueError, match="density must be a number, or a function"):
        Compression("topk", {"density": value})


def test_numbers_may_be_numpy_s():
    assert Compression("topk", {"density": np.float64(0.1)}, warmup=np.int64(5)) == Compression(
        "topk", {"density": 0.1}, warmup=5
    )


def test_no_controller_can_be_said():
    assert Compression("topk", controller="none") == Compression("topk")


@pytest.mark.parametrize("function", [lambda step: [0.1], lambda step: None, lambda: 0.1])
def test_what_is_no_schedule_is_told_what_one_is(function):
    with pytest.raises(ValueError, match="must take the number of exchanges so far"):
        Compression("topk", {"density": function})
