# SPDX-License-Identifier: Apache-2.0
"""Inputs for codec tests: the kinds of float32 data that break things."""

import numpy as np

# The sizes around words, segments (65,536 items) and a size that is a multiple of nothing.
SIZES = [1, 2, 3, 31, 32, 33, 63, 64, 65, 1000, 4099, 65535, 65536, 65537, 131073, 1000003]
KINDS = ["gauss", "laplace", "zeros", "ties", "denormal", "huge", "wide", "positive", "negative"]
NON_FINITE_KINDS = ["inf", "nan", "inf_and_nan"]


def sample(kind: str, shape: int | tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """float32 of the given shape, one of KINDS or NON_FINITE_KINDS."""
    gauss = rng.standard_normal(shape, dtype=np.float32)
    signs = np.where(rng.random(shape) < 0.5, np.float32(-1), np.float32(1))
    match kind:
        case "gauss":
            return gauss
        case "laplace":
            return rng.laplace(size=shape).astype(np.float32)
        case "zeros":  # both of them
            return signs * np.float32(0)
        case "ties":  # many equal magnitudes of both signs, among them -0.0
            return signs * rng.integers(0, 4, shape).astype(np.float32)
        case "denormal":  # from the smallest denormal to the first normal numbers
            return signs * rng.integers(1, 0x00900000, shape, np.uint32).view(np.float32)
        case "huge":  # the last two octaves up to FLT_MAX
            return signs * rng.integers(0x7E800000, 0x7F800000, shape, np.uint32).view(np.float32)
        case "wide":  # any finite pattern: all octaves, both signs
            return signs * rng.integers(0, 0x7F800000, shape, np.uint32).view(np.float32)
        case "positive":
            return np.abs(gauss)
        case "negative":
            return -np.abs(gauss)
        case "inf" | "nan" | "inf_and_nan":
            return _with_non_finite(gauss, kind, rng)
    raise ValueError(f"unknown kind {kind!r}")


def near_one(small: dict[int, list[float]]) -> np.ndarray:
    """float32 [512]: squares that add up to 1 - 2^-52 in partial sum 0, and small ones after them.

    Args:
      small: what to put into each of the 8 partial sums.
    """
    # x^2 = 1 - 2^-23 + 2^-48 for the first; the others fill the bits up to 2^-52.
    large = [1 - 2.0**-24]
    for i in [*range(24, 48), *range(49, 53)]:
        large += [2.0 ** (-i // 2)] if i % 2 == 0 else [2.0 ** -((i + 1) // 2)] * 2
    item = np.zeros((64, 8), np.float32)
    for lane, values in {**small, 0: large + small.get(0, [])}.items():
        item[: len(values), lane] = values
    return item.reshape(-1)


def _with_non_finite(values: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """One value in a hundred, but at least one, replaced by Inf or NaN of any sign and kind."""
    patterns = {
        "inf": [0x7F800000, 0xFF800000],
        "nan": [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF],
    }
    patterns["inf_and_nan"] = patterns["inf"] + patterns["nan"]
    flat = values.reshape(-1).view(np.uint32)
    where = rng.choice(flat.size, max(1, flat.size // 100), replace=False)
    flat[where] = rng.choice(np.array(patterns[kind], np.uint32), where.size)
    return values
