# SPDX-License-Identifier: Apache-2.0
"""Momentum ahead of compression, in place of the optimizer's.

What error feedback holds back arrives many steps late. The momentum of an optimizer takes it for
news: it goes on pushing in a direction that was right when the residual was made. So momentum is
applied to what enters the residual, and the optimizer has none.

Gradients that are exchanged without compression need the optimizer's own kind, on their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.exchange_state import GLOBAL_MOMENTUM, MOMENTUM, VELOCITY


class Momentum(Protocol):
    """What is added to a bucket's coefficients before error feedback is.

    Attributes:
      name: what its state is called where it is saved.
      variable: its state, float32 in the shape of the coefficients.
    """

    name: ClassVar[str]
    variable: tf.Variable

    def add(self, coefficients: tf.Tensor) -> tf.Tensor:
        """Returns what is to be sent in place of this worker's coefficients."""
        ...

    def following(
        self, added: tf.Tensor, total: tf.Tensor, without_sent: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Returns the next state.

        Args:
          added: what ``add`` returned.
          total: the sum of the exchange.
          without_sent: from coefficients to the same with zeros for the items that this worker has
            sent, if its codec selects any.
        """
        ...


class LocalMomentum:
    """Momentum correction with momentum factor masking: every worker has a momentum of its own.

    ``u = m u + g`` takes the place of the gradient ``g``. Items of ``u`` that are sent begin anew
    from zero, lest a delayed one pushes on. A codec that sends all items masks none.

    Source: Lin et al., "Deep Gradient Compression", ICLR 2018 (arXiv 1712.01887), sections 3.1 and
    3.2.
    """

    name: ClassVar[str] = MOMENTUM

    def __init__(self, factor: float, shape: tuple[int, ...], device: str) -> None:
        self._factor = factor
        self.variable = state.local_zeros(shape, device, self.name)

    def add(self, coefficients: tf.Tensor) -> tf.Tensor:
        """Returns the new momentum."""
        return self._factor * self.variable.read_value() + coefficients

    def following(
        self, added: tf.Tensor, total: tf.Tensor, without_sent: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Returns the new momentum without what was sent."""
        return without_sent(added)


class GlobalMomentum:
    """Global momentum: every worker adds its share of the momentum that all have in common.

    That is the last sum, ``M``: ``g + m M / W`` takes the place of the gradient ``g``. With nothing
    lost, sums follow ``M = m M + sum(g)``.

    Source: Shi et al., "Global Momentum Compression for Sparse Communication in Distributed
    Learning" (arXiv 1905.12948), for a constant learning rate.
    """

    name: ClassVar[str] = GLOBAL_MOMENTUM

    def __init__(
        self, factor: float, shape: tuple[int, ...], device: str, num_workers: int
    ) -> None:
        self._share = factor / num_workers
        self.variable = state.local_zeros(shape, device, self.name)

    def add(self, coefficients: tf.Tensor) -> tf.Tensor:
        """Returns the coefficients and this worker's share of the last sum."""
        return coefficients + self._share * self.variable.read_value()

    def following(
        self, added: tf.Tensor, total: tf.Tensor, without_sent: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Returns the sum."""
        return total


class Velocities:
    """An optimizer's momentum, on the sums of gradients that are exchanged without compression.

    ``v = m v + sum(g)`` takes the place of the sum. A sparse sum thereby becomes dense, as it does
    within an optimizer that has momentum.

    Attributes:
      variables: one for each gradient, of its shape; float64 if these are, else float32.
    """

    def __init__(
        self, factor: float, shapes: Sequence[tuple[int, ...]], dtype: tf.DType, device: str
    ) -> None:
        self._factor = factor
        self._dtype = tf.float64 if dtype == tf.float64 else tf.float32
        self.variables = [
            state.local_zeros(shape, device, VELOCITY, self._dtype) for shape in shapes
        ]

    def add(self, sums: Sequence[tf.Tensor | tf.IndexedSlices]) -> list[tf.Tensor]:
        """Returns the new velocities.

        Args:
          sums: float tensors, or ``tf.IndexedSlices`` without duplicates.
        """
        added = []
        for total, variable in zip(sums, self.variables, strict=True):
            slowed = self._factor * variable.read_value()
            if isinstance(total, tf.IndexedSlices):
                values = tf.cast(total.values, self._dtype)
                indices = total.indices[:, tf.newaxis]
                added.append(tf.tensor_scatter_nd_add(slowed, indices, values))
            else:
                added.append(slowed + tf.cast(total, self._dtype))
        return added
