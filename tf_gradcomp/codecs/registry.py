# SPDX-License-Identifier: Apache-2.0
"""Codecs by name.

A name stands for parts: a quantizer alone, or a sparsifier, with or without a transform, before
a quantizer that the parameter ``values`` names. The parts' fields are the codec's parameters; a
field that two parts have, such as ``seed``, is set in both. Low-rank methods, which are no codecs,
go by a name in the same way.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tf_gradcomp.codecs import (
    base,
    blocks,
    dithering,
    entropy,
    fft,
    identity,
    low_rank,
    narrow_float,
    natural,
    one_bit,
    pipeline,
    random_k,
    range_float,
    threshold,
    top_k,
    uniform,
    view,
)


class _Recipe(NamedTuple):
    """What comes before the quantizer, and what the recipe's own defaults are."""

    transform: type[base.Transform]
    sparsifier: type[base.Sparsifier]
    defaults: Mapping[str, Any] = {"values": "identity"}


_QUANTIZERS: dict[str, type[base.Quantizer]] = {
    "identity": identity.Float32,
    "float16": narrow_float.Float16,
    "bfloat16": narrow_float.BFloat16,
    "float8_e4m3": narrow_float.Float8E4M3,
    "float8_e5m2": narrow_float.Float8E5M2,
    "range_float": range_float.RangeFloat,
    "natural": natural.Natural,
    "dithering": dithering.Dithering,
    "uniform": uniform.Uniform,
    "onebit": one_bit.OneBit,
    "entropy": entropy.EntropyFloat,
}

# Named, lest the default of a quantizer that has blocks too prevail.
_BLOCK_DEFAULTS: Mapping[str, Any] = {"values": "identity", "block": 256}

_RECIPES: dict[str, _Recipe] = {
    "fft": _Recipe(fft.FFT, top_k.TopK, {"density": 0.15, "values": "range_float"}),
    "dct": _Recipe(view.View, top_k.TopK, {"view": "auto", "values": "range_float"}),
    "topk": _Recipe(view.View, top_k.ChunkedTopK),
    "randomk": _Recipe(identity.NoTransform, random_k.RandomK),
    "threshold": _Recipe(view.View, threshold.Threshold),
    "adaptive_threshold": _Recipe(view.View, threshold.AdaptiveThreshold),
    "sampled_threshold": _Recipe(view.View, threshold.SampledThreshold),
    "sidco": _Recipe(view.View, threshold.SIDCo),
    "block_topk": _Recipe(blocks.Blocks, top_k.TopK, _BLOCK_DEFAULTS),
    "block_randomk": _Recipe(blocks.Blocks, random_k.RandomK, _BLOCK_DEFAULTS),
    "block_threshold": _Recipe(blocks.Blocks, threshold.Threshold, _BLOCK_DEFAULTS),
}

_LOW_RANK: dict[str, type[base.LowRank]] = {
    "powersgd": low_rank.PowerSGD,
    "acpsgd": low_rank.ACPSGD,
}


def names() -> list[str]:
    """Returns the names of all codecs and low-rank methods, sorted."""
    return sorted([*_QUANTIZERS, *_RECIPES, *_LOW_RANK])


def quantizers() -> list[str]:
    """Returns the names of what can code ``values``, sorted; each is a codec, too."""
    return sorted(_QUANTIZERS)


def addable() -> list[str]:
    """Returns the names of the codecs whose payloads can be added up as they are, sorted."""
    return sorted(name for name, part in _QUANTIZERS.items() if part.addable is not None)


def adjustable(field: str) -> list[str]:
    """Returns the names of the codecs of which a field can change from step to step, sorted.

    Args:
      field: ``density`` or ``bits``. Whether a sparsifier's values have bits that can change is up
        to its parameter ``values``; here it has its own default.
    """
    codecs = {name: build(name, {}) for name in (*_QUANTIZERS, *_RECIPES)}
    return sorted(
        name
        for name, codec in codecs.items()
        if isinstance(codec, base.Codec) and field in codec.adjustable
    )


def sparsifiers() -> list[str]:
    """Returns the names of the codecs that have ``values``, sorted."""
    return sorted(_RECIPES)


def parameters(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a codec with their defaults.

    Args:
      name: name of the codec.
      given: what is set; ``values`` decides which other parameters there are.

    Raises:
      ValueError: no codec, or no quantizer, has that name.
    """
    known: dict[str, Any] = {}
    for part in _parts(name, given):
        known |= {field.name: field.default for field in dataclasses.fields(part)}
    return {**known, **_defaults(name)}


def build(name: str, params: Mapping[str, Any]) -> base.Codec | base.LowRank:
    """Makes a codec or low-rank method.

    Args:
      name: a name from ``names()``.
      params: some of its parameters; the others take their defaults.

    Raises:
      ValueError: an unknown name or parameter, or a value out of range.
    """
    known = parameters(name, params)
    for key in params:
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise ValueError(
                f"codec {name!r} has no parameter {key!r}{_did_you_mean(key, known)} "
                f"its parameters: {allowed}"
            )
    values = {**known, **params}
    try:
        parts = [
            part(**{field.name: values[field.name] for field in dataclasses.fields(part)})
            for part in _parts(name, params)
        ]
    except ValueError as error:
        raise ValueError(f"codec {name!r}: {error}") from None
    if name in _LOW_RANK:
        return parts[0]
    transform, *sparsifier, quantizer = parts
    return pipeline.Pipeline(transform, sparsifier[0] if sparsifier else None, quantizer)


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns the end of a clause: a guess, if there is a good one."""
    # "dgc", a method and no codec, is as close to "dct" as 0.67.
    similar = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.68)
    return f", did you mean {similar[0]!r}?" if similar else ";"


def _defaults(name: str) -> Mapping[str, Any]:
    return _RECIPES[name].defaults if name in _RECIPES else {}


def _parts(name: str, given: Mapping[str, Any]) -> list[Any]:
    """Returns the classes of a codec's parts, in order."""
    if ":" in name:
        raise ValueError(f"{name!r} is a spec, not a codec's name: use Compression.from_spec")
    if name in _QUANTIZERS:
        return [identity.NoTransform, _QUANTIZERS[name]]
    if name in _LOW_RANK:
        return [_LOW_RANK[name]]
    if name not in _RECIPES:
        known = [*names(), "none"]
        hint = _did_you_mean(name, known)
        raise ValueError(f"unknown codec {name!r}{hint} known codecs: {', '.join(known)}")
    transform, sparsifier, defaults = _RECIPES[name]
    values = given.get("values", defaults["values"])
    if values not in _QUANTIZERS:
        raise ValueError(
            f"codec {name!r}: values must be one of {', '.join(quantizers())}, got {values!r}"
        )
    return [transform, sparsifier, _QUANTIZERS[values]]
