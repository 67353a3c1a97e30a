# SPDX-License-Identifier: Apache-2.0
"""Oracles and native ops of natural compression and dithering against their golden vectors.

The lists below are the inventory: a missing file fails, and so does one that is not listed.
"""

from typing import Any

import dithering_reference
import golden_files
import natural_reference
import numpy as np
import pytest
import tensorflow as tf
from dithering_reference import Parameters
from golden_files import from_hex

from tf_gradcomp.ops import dithering, natural

NAMES = {
    "natural": ["worked_example", "one_value", "zeros", "gauss", "laplace", "denormal", "wide"]
    + ["huge", "inf_and_nan", "negative_key", "two_blocks"],
    "dithering": ["worked_example", "norm_over_two_chunks"]
    + [f"natural_{s}_{norm}" for s in (1, 3, 7, 127) for norm in ("inf", "2")]
    + [f"standard_{s}_{norm}" for s in (1, 4, 127, 2048, 32767) for norm in ("inf", "2")]
    + [
        f"{kind}_{what}"
        for kind in ("natural", "standard")
        for what in ["whole_natural_norm", "natural_norms", "zeros", "denormal", "wide", "huge"]
        + ["inf_and_nan"]
    ],
}
BAD = {
    "natural": ["reserved_bit", "other_block_size", "exponent_too_small", "exponent_too_large"]
    + ["exponent_beyond_blocks", "non_finite_with_exponent", "too_short"],
    "dithering": ["other_levels", "other_kind", "other_block", "reserved_bit", "negative_norm"]
    + ["negative_zero", "infinite_norm", "nan_norm", "non_finite_with_norm", "too_long"]
    + ["natural_norm_too_large", "natural_norm_beyond_blocks"],
}


def oracle_words(part: str, values: np.ndarray, golden: dict[str, Any]) -> np.ndarray:
    if part == "natural":
        return natural_reference.encode(values, golden["key"])
    return dithering_reference.encode(values, golden["key"], parameters_of(golden))


def native_words(part: str, values: np.ndarray, golden: dict[str, Any]) -> tf.Tensor:
    if part == "natural":
        return natural.natural_encode(values, golden["key"])[0]
    parameters = parameters_of(golden)._asdict()
    return dithering.dithering_encode(values, golden["key"], **parameters)[0]


def oracle_values(part: str, words: np.ndarray, count: int, golden: dict[str, Any]) -> np.ndarray:
    if part == "natural":
        return natural_reference.decode(words, count)
    return dithering_reference.decode(words, count, parameters_of(golden))


def native_values(part: str, words: np.ndarray, count: int, golden: dict[str, Any]) -> tf.Tensor:
    words = words[None].view(np.int32)
    if part == "natural":
        return natural.natural_decode(words, count)
    return dithering.dithering_decode(words, count, **parameters_of(golden)._asdict())


def parameters_of(golden: dict[str, Any]) -> Parameters:
    return Parameters(*(golden[name] for name in Parameters._fields))


@pytest.mark.parametrize("part", NAMES)
def test_inventory_is_complete(part):
    found = {path.stem for path in (golden_files.FOLDER / part).iterdir()}
    assert found == {*NAMES[part], *(f"bad_{name}" for name in BAD[part])}


@pytest.mark.parametrize(("part", "name"), [(p, name) for p in NAMES for name in NAMES[p]])
def test_vectors(part, name):
    golden = golden_files.read(part, name)
    values, words = from_hex(golden["values"], np.float32), from_hex(golden["words"])
    np.testing.assert_array_equal(oracle_words(part, values, golden), words)
    native = native_words(part, values, golden)
    np.testing.assert_array_equal(native.numpy().view(np.uint32), words)

    decoded = from_hex(golden["decoded"])
    oracle = oracle_values(part, words, values.size, golden)
    np.testing.assert_array_equal(oracle.view(np.uint32), decoded)
    native = native_values(part, words, values.size, golden)
    np.testing.assert_array_equal(native.numpy()[0].view(np.uint32), decoded)


@pytest.mark.parametrize(("part", "name"), [(p, name) for p in BAD for name in BAD[p]])
def test_bad_blocks_are_refused(part, name):
    golden = golden_files.read(part, f"bad_{name}")
    words, count = from_hex(golden["words"]), golden["count"]
    with pytest.raises(ValueError):
        oracle_values(part, words, count, golden)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{part} block"):
        native_values(part, words, count, golden)
