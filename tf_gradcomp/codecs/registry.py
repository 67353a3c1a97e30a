# SPDX-License-Identifier: Apache-2.0
"""Codecs by name. A name's parameters are its builder's keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tf_gradcomp.codecs import base, fft, identity, pipeline, range_float, top_k

Builder = Callable[..., base.Codec]


def _identity() -> base.Codec:
    return pipeline.Pipeline(identity.NoTransform(), None, identity.Float32())


def _fft(
    *,
    density: float = 0.15,
    bits: int = 10,
    mantissa_bits: int | None = None,
    chunk: int | None = 4096,
) -> base.Codec:
    return pipeline.Pipeline(
        fft.FFT(chunk), top_k.TopK(density), range_float.RangeFloat(bits, mantissa_bits)
    )


_BUILDERS: dict[str, Builder] = {"identity": _identity, "fft": _fft}


def names() -> list[str]:
    """Returns the names of all codecs, sorted."""
    return sorted(_BUILDERS)


def parameters(name: str) -> dict[str, Any]:
    """Returns the parameters of a codec with their defaults.

    Raises:
      ValueError: no codec has that name.
    """
    if ":" in name:
        raise ValueError(f"{name!r} is a spec, not a codec's name: use Compression.from_spec")
    if name not in _BUILDERS:
        raise ValueError(f"unknown codec {name!r}; known codecs: {', '.join([*names(), 'none'])}")
    signature = inspect.signature(_BUILDERS[name])
    return {key: parameter.default for key, parameter in signature.parameters.items()}


def build(name: str, params: dict[str, Any]) -> base.Codec:
    """Makes a codec.

    Args:
      name: a name from ``names()``.
      params: some of its parameters; the others take their defaults.

    Raises:
      ValueError: an unknown name or parameter, or a value out of range.
    """
    known = parameters(name)
    for key in params:
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise ValueError(f"codec {name!r} has no parameter {key!r}; its parameters: {allowed}")
    try:
        return _BUILDERS[name](**params)
    except ValueError as error:
        raise ValueError(f"codec {name!r}: {error}") from None
