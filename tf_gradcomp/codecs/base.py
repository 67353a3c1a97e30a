# SPDX-License-Identifier: Apache-2.0
"""What the parts of a codec promise.

A bucket is a flat float32 vector of ``n`` gradient elements. On its way to the wire it is

1. mapped by a **transform** to *coefficients*: ``N`` items of ``c`` components each, float32 of
   shape ``[N]`` (``c = 1``, real) or ``[N, 2]`` (``c = 2``, complex, real part first);
2. thinned by a **sparsifier**, which keeps ``k`` items and codes their positions;
3. coded by a **quantizer**, which turns the ``k * c`` kept values into 32-bit words.

Steps 2 and 3 are a **codec**. The transform is linear, so residuals and the workers' sum live
in coefficients: one transform on the way out, one on the way back. Every part is plain data, a
frozen dataclass that is validated when it is made; its methods add TensorFlow ops and hold no
state. The wire format of each block is in ``custom_ops/core/FORMAT.md``.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf


class Encoded(NamedTuple):
    """What one worker sends, and what the sending lost.

    Attributes:
      payload: int32 ``[m]``, the words for the wire.
      residual: float32, shaped like the coefficients: what was meant minus what the payload
        decodes to. Undefined where the coefficients were not finite.
    """

    payload: tf.Tensor
    residual: tf.Tensor


class Layout(NamedTuple):
    """Shape of the coefficients of one bucket.

    Attributes:
      num_items: ``N``.
      components: 1 for real items, 2 for complex ones.
      row_length: 0, or the length ``L`` of the real rows of which the items are the
        ``L // 2 + 1`` spectral bins; interior bins then stand for a conjugate pair.
    """

    num_items: int
    components: int = 1
    row_length: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the coefficients tensor."""
        return (self.num_items,) if self.components == 1 else (self.num_items, self.components)

    @property
    def num_values(self) -> int:
        """Number of float32 values, ``N * c``."""
        return self.num_items * self.components


class Transform(abc.ABC):
    """A linear, invertible map from a bucket to coefficients and back."""

    @abc.abstractmethod
    def layout(self, num_elements: int) -> Layout:
        """Returns the shape of the coefficients of a bucket of ``num_elements``."""

    @abc.abstractmethod
    def forward(self, bucket: tf.Tensor) -> tf.Tensor:
        """Maps float32 ``[n]`` to the coefficients, float32 ``[N]`` or ``[N, 2]``."""

    @abc.abstractmethod
    def inverse(self, coefficients: tf.Tensor, num_elements: int) -> tf.Tensor:
        """Maps coefficients back to float32 ``[num_elements]``."""


class Sparsifier(abc.ABC):
    """Chooses which items travel, and codes their positions.

    Attributes:
      biased: whether what is kept differs from the input in expectation.
    """

    biased: ClassVar[bool]

    @abc.abstractmethod
    def num_kept(self, layout: Layout) -> int:
        """Returns ``k``, the number of items kept; the same on all workers."""

    @abc.abstractmethod
    def num_words(self, layout: Layout) -> int:
        """Returns the number of words of the positions block."""

    @abc.abstractmethod
    def select(self, coefficients: tf.Tensor, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ``(positions, kept)``: int32 ``[p]`` and float32 ``[k]`` or ``[k, 2]``."""

    @abc.abstractmethod
    def replace(self, coefficients: tf.Tensor, positions: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        """Returns the coefficients with the items at ``positions`` replaced by ``kept``."""

    @abc.abstractmethod
    def sum(self, positions: tf.Tensor, kept: tf.Tensor, layout: Layout) -> tf.Tensor:
        """Sums the workers' items into dense coefficients, in worker order.

        Args:
          positions: int32 ``[W, p]``.
          kept: float32 ``[W, k]`` or ``[W, k, 2]``.
          layout: shape of the coefficients.

        Returns:
          float32 coefficients.
        """


class Quantizer(abc.ABC):
    """Codes values in fewer bits.

    Attributes:
      biased: whether the decoded value differs from the input in expectation.
      lossless: whether decoding gives back the same bits.
    """

    biased: ClassVar[bool]
    lossless: ClassVar[bool] = False

    @abc.abstractmethod
    def num_words(self, num_values: int) -> int:
        """Returns the number of words of the quantizer block for ``num_values`` values."""

    @abc.abstractmethod
    def encode(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ``(words, error)``: int32 ``[w]``, and values minus decoded values."""

    @abc.abstractmethod
    def decode(self, words: tf.Tensor, num_values: int) -> tf.Tensor:
        """Maps int32 ``[W, w]`` to float32 ``[W, num_values]``."""

    @abc.abstractmethod
    def all_finite(self, words: tf.Tensor) -> tf.Tensor:
        """Returns a bool scalar: no block of int32 ``[W, w]`` came from an Inf or NaN."""


class Codec(abc.ABC):
    """Coefficients to payload and back; all a reducer needs to know.

    Attributes:
      transform: maps buckets to the coefficients that this codec works on.
    """

    transform: Transform

    @property
    @abc.abstractmethod
    def biased(self) -> bool:
        """Whether the decoded sum differs from the true one in expectation."""

    @property
    @abc.abstractmethod
    def lossless(self) -> bool:
        """Whether one worker's decoded coefficients have the bits that were encoded."""

    @abc.abstractmethod
    def num_words(self, num_elements: int) -> int:
        """Returns ``m``, the payload's words for a bucket; the same on all workers."""

    @abc.abstractmethod
    def encode(self, coefficients: tf.Tensor, layout: Layout) -> Encoded:
        """Encodes coefficients, float32 ``[N]`` or ``[N, 2]``."""

    @abc.abstractmethod
    def decode_sum(self, payloads: tf.Tensor, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
        """Decodes the payloads of all workers and adds them up.

        The sum is taken in float32 and in worker order, so that every worker gets the same bits.

        Args:
          payloads: int32 ``[W, m]``, row ``w`` from worker ``w``.
          layout: shape of the coefficients.

        Returns:
          ``(coefficients, finite)``: the sum, and a bool scalar that is false when any worker
          encoded an Inf or NaN; the sum then holds a NaN.
        """


def check_range(owner: str, field: str, value: Any, low: Any, high: Any, low_open: bool) -> None:
    """Raises ValueError unless ``value`` is a number from ``low`` to ``high``."""
    kind = int if isinstance(low, int) and isinstance(high, int) else (int, float)
    inside = (
        isinstance(value, kind)
        and not isinstance(value, bool)
        and (low < value if low_open else low <= value)
        and value <= high
    )
    if not inside:
        raise ValueError(
            f"{owner}: {field} must be in {'(' if low_open else '['}{low}, {high}], got {value!r}"
        )
