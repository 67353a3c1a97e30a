# SPDX-License-Identifier: Apache-2.0
"""Momentum ahead of compression, from the papers, in float32."""

from __future__ import annotations

import numpy as np


def dgc_step(gradient, momentum, residual, factor, count):
    """One worker's step of Deep Gradient Compression (arXiv 1712.01887, algorithm 4).

    Args:
      gradient: float32 ``[n]``, after local clipping.
      momentum: U of the paper.
      residual: V of the paper.
      factor: m of the paper.
      count: how many items are sent.

    Returns:
      ``(sent, momentum, residual)``; what is sent is zero elsewhere.
    """
    momentum = np.float32(factor) * momentum + gradient
    residual = residual + momentum
    mask = np.zeros(gradient.size, bool)
    mask[np.argsort(-np.abs(residual), kind="stable")[:count]] = True
    return np.where(mask, residual, 0), np.where(mask, 0, momentum), np.where(mask, 0, residual)


def gmc_step(gradient, last_sum, residual, factor, num_workers, count):
    """One worker's step of Global Momentum Compression (arXiv 1905.12948), at a constant rate.

    There a worker adds ``m (w_{t-1} - w_t) / eta`` to its gradient, which is the mean of what all
    workers sent; where gradients are summed, its share of that is the sum over their number.

    Returns:
      ``(sent, residual)``.
    """
    meant = residual + (gradient + np.float32(factor / num_workers) * last_sum)
    mask = np.zeros(gradient.size, bool)
    mask[np.argsort(-np.abs(meant), kind="stable")[:count]] = True
    return np.where(mask, meant, 0), np.where(mask, 0, meant)
