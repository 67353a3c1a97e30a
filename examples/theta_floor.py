# SPDX-License-Identifier: Apache-2.0
"""Shows where a constant density stalls without error feedback, and that one that grows does not.

    python examples/theta_floor.py

Stochastic gradient descent on a quadratic whose samples differ in a skewed way: where the gradient
is g, that of a sample is g + xi, xi = e - 1, with e exponentially distributed, for each item alike.
Few large xi outweigh many small ones, but these are dropped: what is sent is zero on average where
g is not. That is the floor. Items are elements, or waves, each of them one bin of a row's spectrum.
Prints tables in Markdown, of the mean of g^2 in the last fifth of the steps.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from tf_gradcomp import Policy
from tf_gradcomp.policy import VariableInfo
from tf_gradcomp.reducer import GradientReducer
from tf_gradcomp.transports.silent import SilentCollectives

THETAS = (0.7, 0.85, 0.95)  # of the items are dropped
CODECS = {"topk": "topk:", "fft": "fft:chunk=128,"}
DENSE = "identity:transport=all_gather"
STEPS, GROW_AFTER, LEARNING_RATE = 1000, 100, 0.1
ROWS, ROW, BINS = 16, 128, 65
# [BINS, ROW], orthonormal: the first and the last bin of a spectrum count once, others twice.
WAVES = np.fft.irfft(np.diag([2**0.5] + [1.0] * (BINS - 2) + [2**0.5]), ROW) * (ROW / 2) ** 0.5
BASES = {"elements": np.eye(BINS), "waves": WAVES}
CURVATURES = np.linspace(1, 2, ROWS * BINS).reshape(ROWS, BINS)  # of the quadratic, item by item


class Alike(SilentCollectives):
    """Two workers that draw the same samples: what is sent on average is that of any number."""

    def __init__(self) -> None:
        self.num_workers, self.worker_index, self.device = 2, 0, "/device:CPU:0"


def main() -> None:
    for items in BASES:
        for name, codec in CODECS.items():
            print(f"\n### {name}, noise in {items}\n")
            print("| theta | floor | constant | diminishing | fed back |\n|---|---|---|---|---|")
            dense, *found = descend([DENSE, *specs(codec)], items)
            for theta, row in zip(THETAS, np.reshape(found, (-1, 3)), strict=True):
                predicted = f"{floor(theta):.4f}" if (items == "waves") == (name == "fft") else "-"
                print(f"| {theta} | {predicted} |", " | ".join(f"{g:.4f}" for g in row), "|")
            print(f"| dense | | {dense:.4f} | | |", flush=True)


def specs(codec: str) -> list[str]:
    """Returns three specs for each theta: constant, diminishing, and with error feedback."""
    kinds = ("false", f"false,grow_after={GROW_AFTER}", "true")
    plain = [f"{codec}transport=all_gather,density={1 - theta:g}" for theta in THETAS]
    return [f"{spec},error_feedback={kind}" for spec in plain for kind in kinds]


def descend(compressions: Sequence[str], items: str) -> np.ndarray:
    """Returns the mean of g^2 in the last fifth of the steps, with each of the compressions."""
    names = [f"x{number}" for number in range(len(compressions))]
    reducer = GradientReducer(Policy(rules=tuple(zip(names, compressions, strict=True))), Alike())
    variable = tf.Variable(0.0)  # stands for those of the names
    owners = {name: weakref.ref(variable) for name in names}
    basis, curvatures = tf.constant(BASES[items], tf.float32), tf.constant(CURVATURES, tf.float32)
    infos = [VariableInfo(name, (ROWS, basis.shape[1]), "float32") for name in names]

    def step(number: tf.Tensor, x: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        noise = -tf.math.log(tf.random.stateless_uniform((ROWS, BINS), [0, number], 1e-7)) - 1
        gradients = tf.unstack((curvatures * x + noise) @ basis)
        rate = LEARNING_RATE * tf.minimum(1.0, GROW_AFTER / tf.cast(number, tf.float32))
        x -= rate / 2 * (tf.stack(reducer.reduce(gradients, infos, owners)) @ tf.transpose(basis))
        energies = tf.reduce_mean((curvatures * x) ** 2, axis=(1, 2))
        return number + 1, x, total + tf.where(number > STEPS * 4 // 5, energies, 0.0)

    start = (1, tf.ones((len(names), ROWS, BINS)), tf.zeros(len(names)))
    run = tf.function(tf.while_loop, autograph=False)
    return run(lambda number, *_: number <= STEPS, step, start)[2].numpy() / (STEPS // 5)


def floor(theta: float) -> float:
    """Returns the g^2 at which what is sent of g + xi is zero on average, for very many items.

    An item is sent if its magnitude exceeds tau: if e > 1 + tau - g, or e < 1 - tau - g.
    """

    def sent(g: float, tau: float) -> tuple[float, float]:
        below = max(0.0, 1 - tau - g)
        upper, lower = np.exp(g - 1 - tau), np.exp(-below)
        # Integrals of 1 and of g - 1 + e over both ranges, with the density exp(-e).
        return upper + 1 - lower, (1 + tau) * upper + g - (g + below) * lower

    def mean(g: float) -> float:
        return sent(g, bisect(lambda tau: sent(g, tau)[0] < 1 - theta, 0, 60))[1]

    return bisect(lambda g: mean(g) > 0, -20, 0) ** 2


def bisect(is_above: Callable[[float], bool], low: float, high: float) -> float:
    """Returns where a condition that holds above some number begins to hold."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return low


if __name__ == "__main__":
    main()
