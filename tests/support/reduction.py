# SPDX-License-Identifier: Apache-2.0
"""Several steps of a reduction of one variable's gradient, on workers without a network."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import loopback
import numpy as np
import tensorflow as tf

from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer


class _Owner:
    """Stands for a variable."""


_OWNER = _Owner()

Step = tuple[np.ndarray, list[np.ndarray]]


def reduce_steps(
    spec: str,
    transport: str,
    values_of: Callable[[int, int], np.ndarray],
    num_workers: int,
    num_steps: int = 1,
) -> list[tuple[list[Step], loopback.LoopbackCollectives]]:
    """Reduces a vector, step by step.

    Args:
      spec: of the compression, without its transport.
      transport: a key of ``TRANSPORTS``, which must be in use then.
      values_of: from the indices of a worker and a step to its float32 gradient.
      num_workers: number of workers.
      num_steps: number of steps.

    Returns:
      For each worker, the sum and the residuals after each step, and its collectives.
    """

    def work(collectives: loopback.LoopbackCollectives) -> tuple[Sequence[Step], object]:
        joint = "," if ":" in spec else ":"
        policy = Policy(rules=(("*", f"{spec}{joint}transport={transport}"),))
        reducer = GradientReducer(policy, collectives)
        steps = []
        for step in range(num_steps):
            value = values_of(collectives.worker_index, step)
            info = VariableInfo("v", value.shape, "float32")
            (total,) = reducer.reduce([tf.constant(value)], [info], {"v": weakref.ref(_OWNER)})
            (made,) = next(iter(reducer._entries.values())).exchanges
            steps.append((total.numpy(), [residual.numpy() for residual in made.residuals]))
        assert made.bucket.transport == transport
        return steps, collectives

    return loopback.run_workers(num_workers, work)
