# SPDX-License-Identifier: Apache-2.0
"""Oracle of PowerSGD and ACP-SGD: Algorithms 1 and 2 of Vogels et al., and what Zhang et al. halve.

One matrix, in float64. Workers' gradients and residuals are ``[W, n, m]``.
"""

import numpy as np


def gram_schmidt(factor: np.ndarray) -> np.ndarray:
    """Orthonormal columns with the same spans, taken from left to right."""
    basis = np.zeros_like(factor)
    for j in range(factor.shape[1]):
        column = factor[:, j].copy()
        for _ in range(2):
            column -= basis[:, :j] @ (basis[:, :j].T @ column)
        basis[:, j] = column / np.linalg.norm(column)
    return basis


def power_sgd(gradients: np.ndarray, residuals: np.ndarray, q: np.ndarray):
    """-> sum of the workers' gradients, residuals, Q of the next step."""
    meant = gradients + residuals
    p = gram_schmidt(sum(matrix @ q for matrix in meant))
    qs = [matrix.T @ p for matrix in meant]
    sent = np.stack([p @ q.T for q in qs])
    return sent.sum(axis=0), meant - sent, sum(qs)


def acp_sgd(gradients: np.ndarray, residuals: np.ndarray, p: np.ndarray, q: np.ndarray, step: int):
    """-> sum of the workers' gradients, residuals, P and Q of the next step. Steps count from 1."""
    meant = gradients + residuals
    if step % 2 == 1:
        q = gram_schmidt(q)
        ps = [matrix @ q for matrix in meant]
        sent = np.stack([p @ q.T for p in ps])
        return sent.sum(axis=0), meant - sent, sum(ps), q
    p = gram_schmidt(p)
    qs = [matrix.T @ p for matrix in meant]
    sent = np.stack([p @ q.T for q in qs])
    return sent.sum(axis=0), meant - sent, p, sum(qs)
