# SPDX-License-Identifier: Apache-2.0
"""Published methods, as the compressions that implement them."""

from __future__ import annotations

from tf_gradcomp.compression import Compression
from tf_gradcomp.controllers.lags import Lags
from tf_gradcomp.controllers.layer_window import LayerWindow


def superneurons(
    density: float = 0.15,
    bits: int = 10,
    mantissa_bits: int | None = None,
    chunk: int | None = None,
    grow_after: int = 0,
) -> Compression:
    """FFT sparsification with range-based floats, tensor by tensor, as published.

    Differs from ``Compression("fft")`` in following the paper: every tensor is transformed
    alone and as a whole, and nothing repays what was dropped.

    Args:
      density: share of the spectrum kept, in (0, 1]: 1 - theta in the paper.
      bits: bits per real or imaginary part, 6..12.
      mantissa_bits: mantissa bits of the range float.
      chunk: row length of the transform; ``None``, as published, is the whole tensor.
      grow_after: number of the exchange from which on theta diminishes, as the paper's convergence
        proof asks; 0 for a constant one.

    Source: Wang et al., HPDC 2020, DOI 10.1145/3369583.3392681.
    """
    params = {"density": density, "bits": bits, "mantissa_bits": mantissa_bits, "chunk": chunk}
    return Compression(
        "fft",
        tuple(params.items()),
        error_feedback=False,
        scope="layer",
        grow_after=grow_after,
    )


def natural() -> Compression:
    """Natural compression: unbiased random rounding to powers of two, 8 bits a value.

    Source: Horvath et al., MSML 2022 (arXiv 1905.10988).
    """
    return Compression("natural")


def natural_dithering(levels: int = 7, norm: str = "max", block: int = 0) -> Compression:
    """Natural dithering: random rounding to levels 1, 1/2, 1/4, ... of a norm, tensor by tensor.

    Args:
      levels: s, levels other than zero, 1..127.
      norm: ``"max"`` or ``"l2"``: p = infinity or p = 2 in the paper.
      block: values that share a norm; 0, as published, is the whole tensor.

    Source: Horvath et al., MSML 2022 (arXiv 1905.10988).
    """
    params = {"kind": "natural", "levels": levels, "norm": norm, "block": block}
    return Compression("dithering", tuple(params.items()), scope="layer")


def qsgd(levels: int = 127, block: int = 512) -> Compression:
    """QSGD: random rounding to evenly spaced levels of a block's Euclidean norm, tensor by tensor.

    Args:
      levels: s, levels other than zero, 1..32767.
      block: values that share a norm, the paper's bucket; 0 is the whole tensor.

    Source: Alistarh et al., NeurIPS 2017 (arXiv 1610.02132).
    """
    params = {"kind": "standard", "levels": levels, "norm": "l2", "block": block}
    return Compression("dithering", tuple(params.items()), scope="layer")


def terngrad() -> Compression:
    """TernGrad: every value becomes 0 or plus or minus its tensor's largest magnitude, at random.

    Source: Wen et al., NeurIPS 2017 (arXiv 1705.07878).
    """
    params = {"kind": "standard", "levels": 1, "norm": "max", "block": 0}
    return Compression("dithering", tuple(params.items()), scope="layer")


def ef_signsgd() -> Compression:
    """EF-SignSGD: signs, scaled by their tensor's mean magnitude, with error feedback.

    Source: Karimireddy et al., ICML 2019 (arXiv 1901.09847).
    """
    return Compression("onebit", (("block", 0),), scope="layer")


def cgx(bits: int = 4, block: int = 512) -> Compression:
    """The quantizer of CGX: ``2^bits`` levels, at random, between the extremes of a block.

    Args:
      bits: bits of a value, 1..8.
      block: values that share a range, the paper's bucket.

    Source: Markov et al., Middleware 2022 (arXiv 2111.08617).
    """
    params = {"bits": bits, "block": block, "stochastic": True}
    return Compression("uniform", tuple(params.items()))


def gcomp(bits: float = 10.5) -> Compression:
    """GComp: Huffman-coded exponents and mantissas cut by magnitude, here at a fixed rate.

    Args:
      bits: bits of a value on average, a multiple of 1/8 from 3 to 24. The default saves as much
        as the paper at most, 67 %.

    Source: "Near-Lossless Gradient Compression", SoCC 2024; docs/methods/entropy.md says what is
    a reconstruction.
    """
    return Compression("entropy", (("bits", bits),))


def top_k(density: float = 0.01, values: str = "identity") -> Compression:
    """Top-k sparsification with error feedback, tensor by tensor.

    Args:
      density: share of the values kept, in (0, 1].
      values: codec of the values kept. ``"natural"`` is the combination of Horvath et al.

    Source: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018 (arXiv 1809.07599).
    """
    return Compression("topk", (("density", density), ("values", values)), scope="layer")


def dgc(
    density: float = 0.001,
    momentum: float = 0.9,
    clip_norm: float | None = None,
    warmup: int = 0,
) -> Compression:
    """Deep Gradient Compression: top-k with momentum correction, masking and local clipping.

    The optimizer must be SGD without momentum. docs/methods/momentum.md says what differs from the
    paper.

    Args:
      density: share of the values kept, in (0, 1].
      momentum: that of SGD, in [0, 1).
      clip_norm: bound of the norm of all gradients of a step; ``None`` for none.
      warmup: exchanges in which the density falls to its value. In the paper, those of the first
        epochs.

    Source: Lin et al., ICLR 2018 (arXiv 1712.01887).
    """
    return Compression(
        "topk",
        (("density", density),),
        scope="layer",
        momentum=momentum,
        clip_norm=clip_norm,
        warmup=warmup,
    )


def gmc(density: float = 0.01, momentum: float = 0.9) -> Compression:
    """Global Momentum Compression: top-k, and the momentum that all workers have in common.

    The optimizer must be SGD without momentum. It also stands in for SGC (Sparse Gradient
    Compression, DASFAA 2019), whose formulas are not at hand.

    Args:
      density: share of the values kept, in (0, 1].
      momentum: that of SGD, in [0, 1).

    Source: Shi et al. (arXiv 1905.12948).
    """
    return Compression("topk", (("density", density),), scope="layer", global_momentum=momentum)


def clan() -> Compression:
    """Two-way compression by signs, with error feedback that follows the learning rate (CLAN).

    With any optimizer; in the paper it is LANS, a variant of Adam.

    Source: Zhong et al., "Compressed Communication for Distributed Training: Adaptive Methods and
    System" (arXiv 2105.07829).
    """
    return Compression(
        "onebit", (("block", 0),), scope="layer", transport="scatter_reduce", lr_correction=True
    )


def random_k(density: float = 0.01) -> Compression:
    """Random-k sparsification with error feedback, tensor by tensor.

    Args:
      density: share of the values kept, in (0, 1].

    Source: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018 (arXiv 1809.07599).
    """
    return Compression("randomk", (("density", density),), scope="layer")


def sidco(density: float = 0.01, fit: str = "gamma_pareto", stages: int = 3) -> Compression:
    """SIDCo: the values beyond a quantile of a fitted distribution, the whole model at once.

    Args:
      density: share of the values aimed at, in (0, 1].
      fit: ``"exponential"``, ``"pareto"`` or ``"gamma_pareto"``.
      stages: number of fits in which to approach the density.

    Source: Abdelmoniem et al., MLSys 2021 (arXiv 2101.10761).
    """
    params = {"density": density, "fit": fit, "stages": stages}
    return Compression("sidco", tuple(params.items()), scope="model")


def omnireduce(density: float = 0.01, block: int = 256) -> Compression:
    """OmniReduce with block top-k: the largest blocks, exchanged by their union over the workers.

    Source: Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate
    Distributed Deep Learning", SIGCOMM 2021.

    Args:
      density: share of the blocks that a worker keeps.
      block: elements of a block.
    """
    return Compression(
        "block_topk",
        (("density", density), ("block", block)),
        scope="layer",
        transport="block_sparse",
    )


def lags(
    density: float = 0.01,
    max_ratio: float = 1000.0,
    period: int = 48,
    profile: str = "",
) -> Compression:
    """LAGS-SGD: top-k, with as much of each layer as back-propagation of the others hides.

    If that makes steps longer than ``density`` for all layers does, it is less, or ``density``:
    steps with both are compared, in turns, in the second period and maybe three more.
    Layers of up to 8,192 elements share an exchange, unless a profile says what should.

    Args:
      density: share of the values kept until times are measured, and what to compare with, in
        (0, 1].
      max_ratio: what a layer keeps at least is its size over this.
      period: exchanges over which times are measured, at least 5.
      profile: path of a file that ``strategy.save_profile`` has written, to merge layers by.

    Source: Shi et al., ECAI 2020 (arXiv 1911.08727).
    """
    return Compression(
        "topk",
        (("density", density),),
        bucket_bytes=4 * 8192,
        controller=Lags(period, max_ratio, profile),
    )


def layer_window(
    budget: float = 0.2,
    period: int = 100,
    patience: int | None = None,
    pick: str = "window",
    seed: int = 0,
) -> Compression:
    """Some layers are sent whole in a step, the others kept for later: a window slides over them.

    Args:
      budget: share of the elements that a step sends at most, on average, in (0, 1].
      period: exchanges between two looks at how much each layer changes.
      patience: a layer is sent at least once in so many exchanges; ``None`` is ``4 / budget``.
      pick: ``"window"``, or ``"uniform"`` or ``"arcsine"`` for random layers.
      seed: of the random layers.

    Source: Hu et al., HPCC 2022; docs/methods/layer_window.md says what is a reconstruction.
    """
    controller = LayerWindow(period, budget, patience, pick, seed)
    return Compression("identity", scope="layer", transport="all_reduce", controller=controller)


def powersgd(rank: int = 4, values: str = "float32") -> Compression:
    """PowerSGD: matrices approximated by one step of power iteration, with error feedback.

    Args:
      rank: columns of the factors.
      values: how their numbers travel, ``"float32"`` or, in half of the bytes, ``"bfloat16"``.

    Source: Vogels et al., NeurIPS 2019 (arXiv 1905.13727).
    """
    return Compression("powersgd", (("rank", rank), ("values", values)))


def acp_sgd(rank: int = 4, values: str = "float32") -> Compression:
    """ACP-SGD: half a step of PowerSGD an exchange, for half the bytes and one all-reduce.

    Args:
      rank: columns of the factors.
      values: how their numbers travel, ``"float32"`` or, in half of the bytes, ``"bfloat16"``.

    Source: Zhang et al., "Evaluation and Optimization of Gradient Compression for Distributed
    Deep Learning", ICDCS 2023.
    """
    return Compression("acpsgd", (("rank", rank), ("values", values)))


def identity() -> Compression:
    """Gradients travel uncompressed through the same corridor: for tests and comparisons."""
    return Compression("identity")


def none() -> Compression:
    """TensorFlow's own dense all-reduce: the baseline."""
    return Compression("none")
