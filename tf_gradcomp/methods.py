# SPDX-License-Identifier: Apache-2.0
"""Published methods, as the compressions that implement them."""

from __future__ import annotations

from tf_gradcomp.compression import Compression


def superneurons(
    density: float = 0.15,
    bits: int = 10,
    mantissa_bits: int | None = None,
    chunk: int | None = None,
) -> Compression:
    """FFT sparsification with range-based floats, tensor by tensor, as published.

    Differs from ``Compression("fft")`` in following the paper: every tensor is transformed
    alone and as a whole, and nothing repays what was dropped.

    Args:
      density: share of the spectrum kept, in (0, 1]: 1 - theta in the paper.
      bits: bits per real or imaginary part, 6..12.
      mantissa_bits: mantissa bits of the range float.
      chunk: row length of the transform; ``None``, as published, is the whole tensor.

    Source: Wang et al., HPDC 2020, DOI 10.1145/3369583.3392681.
    """
    params = {"density": density, "bits": bits, "mantissa_bits": mantissa_bits, "chunk": chunk}
    return Compression("fft", tuple(params.items()), error_feedback=False, scope="layer")


def identity() -> Compression:
    """Gradients travel uncompressed through the same corridor: for tests and comparisons."""
    return Compression("identity")


def none() -> Compression:
    """TensorFlow's own dense all-reduce: the baseline."""
    return Compression("none")
