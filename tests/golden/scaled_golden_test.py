# SPDX-License-Identifier: Apache-2.0
"""Oracles and native ops of uniform, one bit, narrow float and entropy against golden vectors.

The lists below are the inventory: a missing file fails, and so does one that is not listed.
"""

from collections.abc import Callable
from typing import Any

import entropy_reference
import golden_files
import narrow_float_reference
import numpy as np
import one_bit_reference
import pytest
import tensorflow as tf
import uniform_reference
from golden_files import from_hex

from tf_gradcomp.ops import entropy, narrow_float, one_bit, uniform

NARROW_KINDS = ["worked_example", "gauss", "denormal", "wide", "huge", "zeros", "inf_and_nan"]
NAMES = {
    "uniform": ["worked_example", "one_value", "all_zero", "denormal", "wide", "huge"]
    + ["non_finite"]
    + [f"{rounding}_{b}" for rounding in ("nearest", "stochastic") for b in range(1, 9)],
    "one_bit": ["worked_example", "one_value", "all_zero", "gauss", "denormal", "huge"]
    + ["non_finite", "run_of_zeros", "scattered_zeros", "two_blocks"],
    "narrow_float": [f"{d}_{kind}" for d in narrow_float.DTYPES for kind in NARROW_KINDS],
    "entropy": ["worked_example", "no_values", "one_value", "one_exponent", "gauss", "denormal"]
    + ["wide", "huge", "zeros", "ties", "inf_and_nan", "two_steps"],
}
BAD = {
    "uniform": ["other_num_bits", "reserved_bit", "lo_above_hi", "negative_zero", "infinite_hi"]
    + ["nan_lo", "non_finite_with_bounds", "too_short"],
    "one_bit": ["reserved_bit", "negative_scale", "infinite_scale", "nan_scale", "negative_zero"]
    + ["non_finite_with_scale", "flag_beyond_v", "two_spare_words", "too_long"],
    "narrow_float": ["other_dtype", "reserved_bit", "non_finite_with_scale", "too_short"],
    "entropy": ["reserved_bit", "step", "width", "non_finite_with_step", "fine_streams"]
    + ["exponent_below_step", "exponent_255", "no_room_for_lengths", "incomplete_code"]
    + ["length_13", "length_beyond_last", "stream_beyond_end", "second_size", "too_short"],
}
PARAMETERS = {
    "uniform": ["num_bits", "block"],
    "one_bit": ["block"],
    "narrow_float": ["dtype", "block"],
    "entropy": ["bits"],
}
ORACLES = {
    "uniform": uniform_reference,
    "one_bit": one_bit_reference,
    "narrow_float": narrow_float_reference,
    "entropy": entropy_reference,
}
ENCODERS: dict[str, Callable[..., Any]] = {
    "uniform": uniform.uniform_encode,
    "one_bit": one_bit.one_bit_encode,
    "narrow_float": narrow_float.narrow_float_encode,
    "entropy": entropy.entropy_encode,
}
DECODERS: dict[str, Callable[..., Any]] = {
    "uniform": uniform.uniform_decode,
    "one_bit": one_bit.one_bit_decode,
    "narrow_float": narrow_float.narrow_float_decode,
    "entropy": entropy.entropy_decode,
}


def parameters_of(part: str, golden: dict[str, Any]) -> dict[str, Any]:
    return {name: golden[name] for name in PARAMETERS[part]}


@pytest.mark.parametrize("part", NAMES)
def test_inventory_is_complete(part):
    found = {path.stem for path in (golden_files.FOLDER / part).iterdir()}
    assert found == {*NAMES[part], *(f"bad_{name}" for name in BAD[part])}


@pytest.mark.parametrize(("part", "name"), [(p, name) for p in NAMES for name in NAMES[p]])
def test_vectors(part, name):
    golden = golden_files.read(part, name)
    values, words = from_hex(golden["values"], np.float32), from_hex(golden["words"])
    parameters = parameters_of(part, golden)
    key = {"key": golden["key"]} if golden.get("key") else {}

    oracle_words = ORACLES[part].encode(values, **parameters, **key)
    np.testing.assert_array_equal(oracle_words, words)
    native_words, _ = ENCODERS[part](values, **parameters, **key)
    np.testing.assert_array_equal(native_words.numpy().view(np.uint32), words)

    oracle = ORACLES[part].decode(words, values.size, **parameters)
    np.testing.assert_array_equal(oracle.view(np.uint32), from_hex(golden["decoded"]))
    native = DECODERS[part](words[None].view(np.int32), values.size, **parameters)
    np.testing.assert_array_equal(native.numpy()[0].view(np.uint32), from_hex(golden["decoded"]))


@pytest.mark.parametrize(("part", "name"), [(p, name) for p in BAD for name in BAD[p]])
def test_bad_blocks_are_refused(part, name):
    golden = golden_files.read(part, f"bad_{name}")
    words, count = from_hex(golden["words"]), golden["count"]
    parameters = parameters_of(part, golden)
    with pytest.raises(ValueError):
        ORACLES[part].decode(words, count, **parameters)
    block = f"{part.replace('_', ' ')} block"
    with pytest.raises(tf.errors.InvalidArgumentError, match=block):
        DECODERS[part](words[None].view(np.int32), count, **parameters)
