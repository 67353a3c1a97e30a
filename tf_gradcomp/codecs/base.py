# SPDX-License-Identifier: Apache-2.0
"""What the parts of a codec promise.

A bucket is a flat float32 vector of ``n`` gradient elements. On its way to the wire it is

1. mapped by a **transform** to *coefficients*: ``N`` items of ``c`` components each, float32 of
   shape ``[N]`` (``c = 1``, real) or ``[N, c]`` (``c = 2``: complex, real part first; more: a
   block of neighbours);
2. thinned by a **sparsifier**, which keeps ``k`` items and codes their positions;
3. coded by a **quantizer**, which turns the ``k * c`` kept values into 32-bit words.

Steps 2 and 3 are a **codec**. The transform is linear, so residuals and the workers' sum live
in coefficients: one transform on the way out, one on the way back. Every part is plain data, a
frozen dataclass that is validated when it is made; its methods add TensorFlow ops and hold no
state. The wire format of each block is in ``custom_ops/core/FORMAT.md``.

A **low-rank** method is no codec: it works on matrices instead of buckets, and what it sends is
summed on its way, by all-reduce.
"""

from __future__ import annotations

import abc
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from tf_gradcomp.codecs.learned_basis import Rotation, Side
from tf_gradcomp.ops.counts import Count


class Encoded(NamedTuple):
    """What one worker sends, and what the sending lost.

    Attributes:
      payload: int32 ``[m]``, the words for the wire.
      residual: float32, shaped like the coefficients: what was meant minus what the payload
        decodes to. Undefined where the coefficients were not finite. ``None`` if it was not
        asked for.
      positions: which items the payload holds, for ``Codec.without``; ``None`` for all.
    """

    payload: tf.Tensor
    residual: tf.Tensor | None
    positions: tf.Tensor | None = None


MAX_BUCKETS = 1 << 16
MAX_SHARDS = 1 << 15


class Draw(NamedTuple):
    """Where stochastic parts take their random numbers from: equal draws give equal bits.

    Attributes:
      bucket: number of the bucket, below ``MAX_BUCKETS``.
      worker: index of this worker.
      step: int32 scalar, the number of the exchange.
      shard: which shard of the bucket, where shards are encoded on their own; below ``MAX_SHARDS``.
    """

    bucket: int
    worker: int
    step: tf.Tensor
    shard: int = 0

    def shared_key(self, seed: int) -> tf.Tensor:
        """Returns an int32 ``[4]`` key that is the same on all workers."""
        return self._key(seed, stream=0)

    def own_key(self, seed: int, part: int = 0) -> tf.Tensor:
        """Returns an int32 ``[4]`` key that no other worker has.

        Args:
          seed: the part's seed.
          part: keeps two parts of one codec apart, 0 or 1.
        """
        return self._key(seed, stream=1 + 2 * self.worker + part)

    def _key(self, seed: int, stream: int) -> tf.Tensor:
        place = self.bucket + self.shard * MAX_BUCKETS
        return tf.stack([tf.constant(seed), tf.constant(stream), tf.constant(place), self.step])


class Layout(NamedTuple):
    """Shape of the coefficients of one bucket.

    Attributes:
      num_items: ``N``.
      components: 1 for real items, 2 for complex ones, more for blocks of elements.
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

    def shard(self, num_shards: int) -> Layout:
        """Returns the layout of one of equal shards, whole rows each, that hold all items.

        The last ones may reach beyond the items there are.
        """
        row_items = self.row_length // 2 + 1 if self.row_length else 1
        num_rows = self.num_items // row_items
        return self._replace(num_items=-(-num_rows // num_shards) * row_items)


class VariableShape(NamedTuple):
    """The shape of a variable whose gradient is part of a bucket.

    Attributes:
      shape: its static shape.
      hidden: for a dense kernel behind a Flatten, the shape that was flattened into its first
        axis, without the batch and channels last; else empty.
    """

    shape: tuple[int, ...]
    hidden: tuple[int, ...] = ()

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Transform(abc.ABC):
    """A linear, invertible map from a bucket to coefficients and back.

    Attributes:
      candidates: for each variable of the bucket, the names of the maps that it may have; empty
        for a transform that does not look at variables.
      learned: for each variable of the bucket, the side of which it learns the basis, if any; empty
        for a transform that learns nothing.
    """

    candidates: tuple[tuple[str, ...], ...] = ()
    learned: tuple[Side | None, ...] = ()

    def learned_candidates(self) -> list[list[bool]]:
        """Returns which candidates have a learned basis, ``[V, C]``."""
        return []

    @property
    def learns(self) -> bool:
        """Whether it learns bases of the buckets that it is fitted to."""
        return False

    def left_out(self, variables: Sequence[VariableShape]) -> str:
        """Says what it does not choose from for a bucket of these, and why; empty for nothing."""
        return ""

    def fit(self, variables: Sequence[VariableShape]) -> Transform:
        """Returns the transform for buckets of these variables, packed in this order."""
        return self

    def at(
        self,
        choice: tf.Tensor | None = None,
        bases: Sequence[Sequence[Rotation]] = (),
    ) -> Transform:
        """Returns the transform as it is at one exchange.

        Args:
          choice: int32 ``[V]``, which of its candidates each variable has; ``None`` is the first.
          bases: for each variable, those of the blocks of its learned side, if it has any. Without
            them, learned bases are the identity.
        """
        return self

    def samples(self, coefficients: tf.Tensor, step: tf.Tensor) -> list[tf.Tensor]:
        """Returns of what each learned side's basis is to be learned, ``Side.sample`` of it.

        Args:
          coefficients: float32 ``[n]``, of the transform as it is at this exchange.
          step: int32 scalar, the number of the exchange.
        """
        return []

    def kept_energy(self, bucket: tf.Tensor, density: float) -> tf.Tensor:
        """Returns the energy that top-k keeps of each variable with each candidate.

        Args:
          bucket: float32 ``[n]``.
          density: share of a variable's coefficients that are kept.

        Returns:
          float64 ``[V, C]``; 0 where a variable has fewer than ``C`` candidates.
        """
        raise NotImplementedError(f"{type(self).__name__} has no candidates")

    @abc.abstractmethod
    def layout(self, num_elements: int) -> Layout:
        """Returns the shape of the coefficients of a bucket of ``num_elements``."""

    @abc.abstractmethod
    def forward(self, bucket: tf.Tensor) -> tf.Tensor:
        """Maps float32 ``[n]`` to the coefficients, float32 ``[N]`` or ``[N, c]``."""

    @abc.abstractmethod
    def inverse(self, coefficients: tf.Tensor, num_elements: int) -> tf.Tensor:
        """Maps coefficients back to float32 ``[num_elements]``."""


class Selected(NamedTuple):
    """What a sparsifier chose.

    Attributes:
      positions: int32 ``[p]``; what ``sent`` makes of them travels.
      kept: the items there, float32 ``[k]`` or ``[k, c]``.
      total: what they were chosen from, float32 ``[N]`` or ``[N, c]``.
    """

    positions: tf.Tensor
    kept: tf.Tensor
    total: tf.Tensor


class Sparsifier(abc.ABC):
    """Chooses which items travel, and codes their positions.

    Attributes:
      adjustable: whether its density can change from step to step; see ``at``.
    """

    adjustable: ClassVar[bool] = False

    def at(self, density: tf.Tensor) -> Sparsifier:
        """Returns the sparsifier with another density, which is known when the graph runs.

        It keeps as many items as with the same density as a number: ``num_kept`` is a tensor then.
        ``num_words`` is for static densities only.

        Args:
          density: float64 scalar in (0, 1], the same on all workers.
        """
        raise NotImplementedError(f"{type(self).__name__} has no density that can change")

    @property
    @abc.abstractmethod
    def biased(self) -> bool:
        """Whether what is kept differs from the input in expectation."""

    @property
    def stochastic(self) -> bool:
        """Whether the choice depends on the draw."""
        return False

    @abc.abstractmethod
    def num_kept(self, layout: Layout) -> Count:
        """Returns ``k``, the number of items that are quantized; the same on all workers."""

    @abc.abstractmethod
    def num_words(self, layout: Layout) -> int:
        """Returns the number of words of the positions block that is sent; may be 0."""

    def sent(self, positions: tf.Tensor) -> tf.Tensor:
        """Returns the words of ``Selected.positions`` that travel: by default all of them."""
        return positions

    @abc.abstractmethod
    def select(
        self, coefficients: tf.Tensor, residual: tf.Tensor | None, layout: Layout, draw: Draw
    ) -> Selected:
        """Chooses items of ``coefficients``, or of ``coefficients + residual``.

        Args:
          coefficients: float32 ``[N]`` or ``[N, c]``.
          residual: float32 of the same shape; ``None`` if no error feedback repays what is
            dropped. A random choice then scales up what it keeps, so that its expectation is the
            input.
          layout: shape of the coefficients.
          draw: the randomness, for stochastic sparsifiers.
        """

    @abc.abstractmethod
    def replace(self, total: tf.Tensor, positions: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        """Returns ``total`` with the items at ``positions`` replaced by ``kept``."""

    @abc.abstractmethod
    def sum(self, positions: tf.Tensor, kept: tf.Tensor, layout: Layout, draw: Draw) -> tf.Tensor:
        """Sums the workers' items into dense coefficients, in worker order.

        Args:
          positions: int32 ``[W, num_words]``, as sent.
          kept: float32 ``[W, k]`` or ``[W, k, c]``.
          layout: shape of the coefficients.
          draw: as for ``select``, on any worker.

        Returns:
          float32 coefficients.
        """


class Quantizer(abc.ABC):
    """Codes values in fewer bits.

    Numbers of values are static, or tensors where a sparsifier's density changes from step to step.
    An Inf or NaN anywhere in what is coded must be seen by ``all_finite``, also if the codes would
    saturate, and all of it then decodes to NaN; a header word with a flag is the custom. With error
    feedback, the errors of a biased quantizer must not exceed what it codes, in some norm, or
    residuals grow; none may be larger than the largest value coded. Denormal errors count:
    TensorFlow's own kernels may flush them to zero, so that a quantizer made of TensorFlow
    operations alone has to send values that it would leave a denormal error of as zero.

    Attributes:
      lossless: whether decoding gives back the same bits.
      addable: type of the numbers that a block holds, if it holds one for each value, with no scale
        or the like beside it: sums of such numbers are numbers for sums. ``None`` otherwise.
      adjustable: whether its bits can change from step to step; see ``at``.
    """

    lossless: ClassVar[bool] = False
    addable: ClassVar[tf.DType | None] = None
    adjustable: ClassVar[bool] = False

    @property
    def bits_range(self) -> tuple[int, int]:
        """The fewest and the most bits that ``at`` knows."""
        raise NotImplementedError(f"{type(self).__name__} has no bits that can change")

    def at(self, bits: tf.Tensor) -> Quantizer:
        """Returns the quantizer with other bits, which are known when the graph runs.

        Its blocks are those of the same bits as a number: ``num_words`` is a tensor then.

        Args:
          bits: int32 scalar, the same on all workers. Fewer or more than the quantizer can have
            beside its other fields mean the fewest or most that it can.
        """
        raise NotImplementedError(f"{type(self).__name__} has no bits that can change")

    @property
    @abc.abstractmethod
    def biased(self) -> bool:
        """Whether the decoded value differs from the input in expectation."""

    @property
    def stochastic(self) -> bool:
        """Whether the codes depend on the draw."""
        return False

    @abc.abstractmethod
    def num_words(self, num_values: Count) -> Count:
        """Returns the number of words of the quantizer block for ``num_values`` values.

        Of a tensor it is a tensor: sums, products and quotients (``//``) serve both. An int64
        scalar in any case where bits are a tensor.
        """

    @abc.abstractmethod
    def encode(
        self, values: tf.Tensor, residual: tf.Tensor | None, with_error: bool, draw: Draw
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Codes ``x``, which is ``values``, or ``values + residual`` in one pass.

        Args:
          values: float32 of any shape.
          residual: float32 of the same shape, or ``None``.
          with_error: whether the error is wanted.
          draw: the randomness, for stochastic quantizers.

        Returns:
          ``(words, error)``: int32 ``[w]``, and ``x`` minus its decoded value, shaped like
          ``values``, or ``None``. The error is undefined where ``x`` is not finite.
        """

    @abc.abstractmethod
    def decode(self, words: tf.Tensor, num_values: Count) -> tf.Tensor:
        """Maps int32 ``[W, w]`` to float32 ``[W, num_values]``."""

    def decode_sum(self, words: tf.Tensor, num_values: Count) -> tf.Tensor:
        """Maps int32 ``[W, w]`` to float32 ``[num_values]``: the sum in worker order."""
        return sum_in_order(self.decode(words, num_values))

    @abc.abstractmethod
    def all_finite(self, words: tf.Tensor) -> tf.Tensor:
        """Returns a bool scalar: no block of int32 ``[W, w]`` came from an Inf or NaN."""

    def addends(self, words: tf.Tensor, num_values: int) -> tf.Tensor:
        """Maps int32 ``[w]`` to the numbers it holds, ``[num_values]`` of type ``addable``.

        If the block came from an Inf or NaN, there is one among them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no numbers that can be added up")


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

    @property
    @abc.abstractmethod
    def stochastic(self) -> bool:
        """Whether payloads depend on the draw."""

    @property
    @abc.abstractmethod
    def addable(self) -> tf.DType | None:
        """Type of the numbers that a payload is, one for each coefficient; ``None`` if it is not.

        Sums of such numbers are what the sums of coefficients would be coded as, but for rounding.
        """

    @property
    @abc.abstractmethod
    def adjustable(self) -> frozenset[str]:
        """Which of ``density`` and ``bits`` can change from step to step; see ``at``."""

    @property
    @abc.abstractmethod
    def bits_range(self) -> tuple[int, int]:
        """The fewest and the most bits that it can change to, if these are ``adjustable``."""

    @abc.abstractmethod
    def at(self, density: tf.Tensor | None = None, bits: tf.Tensor | None = None) -> Codec:
        """Returns the codec with another density or other bits, known when the graph runs.

        Payloads and sums have the bits that they have with the same numbers as parameters. With
        another density ``density`` returns a tensor. ``num_words`` is for codecs without either.

        Args:
          density: float64 scalar in (0, 1], the same on all workers; ``None`` for that it has.
          bits: int32 scalar, the same on all workers; ``None`` for those it has. What is out of
            the quantizer's range means the nearest that is in it.

        Raises:
          NotImplementedError: one that is given is not in ``adjustable``.
        """

    @abc.abstractmethod
    def density(self, layout: Layout) -> float | tf.Tensor:
        """Returns the share of the items that a payload has room for, in (0, 1]."""

    @abc.abstractmethod
    def num_words(self, layout: Layout) -> int:
        """Returns ``m``, the payload's words for such coefficients; the same on all workers."""

    def bits_per_element(self, num_elements: int) -> float:
        """Returns the bits of a bucket's payload per gradient element."""
        return 32 * self.num_words(self.transform.layout(num_elements)) / num_elements

    @abc.abstractmethod
    def encode(
        self,
        coefficients: tf.Tensor,
        residual: tf.Tensor | None,
        layout: Layout,
        draw: Draw,
    ) -> Encoded:
        """Encodes coefficients, and what was left over from the step before.

        Args:
          coefficients: float32 ``[N]`` or ``[N, c]``.
          residual: float32 of the same shape, to be added to them; ``None`` without error
            feedback, and then no new one is made.
          layout: shape of the coefficients.
          draw: the randomness, for stochastic codecs.
        """

    @abc.abstractmethod
    def without(
        self, coefficients: tf.Tensor, positions: tf.Tensor | None, layout: Layout
    ) -> tf.Tensor:
        """Returns coefficients with zeros for the items that an ``Encoded`` holds.

        Args:
          coefficients: float32 ``[N]`` or ``[N, c]``.
          positions: which items these are. ``None``, for all of them, leaves all as they are: it is
            no choice.
          layout: shape of the coefficients.
        """

    @abc.abstractmethod
    def decode_sum(
        self, payloads: tf.Tensor, layout: Layout, draw: Draw
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Decodes the payloads of all workers and adds them up.

        The sum is taken in float32 and in worker order, so that every worker gets the same bits.

        Args:
          payloads: int32 ``[W, m]``, row ``w`` from worker ``w``.
          layout: shape of the coefficients.
          draw: that of the encoding, on any worker.

        Returns:
          ``(coefficients, finite)``: the sum, and a bool scalar that is false when any worker
          encoded an Inf or NaN; the sum then holds a NaN.
        """

    @abc.abstractmethod
    def addends(self, payload: tf.Tensor, layout: Layout) -> tf.Tensor:
        """Returns the numbers that a payload is, where codecs are ``addable``.

        Args:
          payload: int32 ``[m]``.
          layout: shape of the coefficients.

        Returns:
          What the payload decodes to, in the type ``addable`` and the shape of the coefficients. If
          an Inf or NaN was encoded, there is one among them.
        """


class LowRankSum(NamedTuple):
    """The outcome of a low-rank exchange.

    Attributes:
      totals: float32 ``[n, m]`` for each matrix, the approximate sum over the workers.
      sent: float32 ``[n, m]`` for each matrix, this worker's share of it.
      raw: the sums of what travelled along.
      factors: the factors to keep for the next exchange; the same on all workers. They hold an
        Inf or NaN if a message did, other than in ``raw``.
    """

    totals: list[tf.Tensor]
    sent: list[tf.Tensor]
    raw: list[tf.Tensor]
    factors: list[tf.Tensor]


class LowRank(abc.ABC):
    """Matrices to sums of low-rank approximations, by way of factors that workers add up.

    Attributes:
      biased: as for a codec.
    """

    biased: ClassVar[bool] = True

    @abc.abstractmethod
    def matrix_shape(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Returns the matrix ``(n, m)`` that a gradient is seen as; ``None`` if it is sent raw."""

    @abc.abstractmethod
    def message_words(self, shapes: Sequence[tuple[int, ...]]) -> list[float]:
        """Returns the words of each all-reduce for gradients of these shapes.

        On average over exchanges; an exchange itself sends as many on all workers.
        """

    def num_words(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """Returns the words of all of them."""
        return sum(self.message_words(shapes))

    @abc.abstractmethod
    def factor_shapes(self, matrices: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the shapes of the factors to keep for such matrices; they begin with zeros."""

    @abc.abstractmethod
    def sum(
        self,
        matrices: Sequence[tf.Tensor],
        raw: Sequence[tf.Tensor],
        factors: Sequence[tf.Tensor],
        step: tf.Tensor,
        all_reduce: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    ) -> LowRankSum:
        """Exchanges gradients.

        Args:
          matrices: float32 ``[n, m]`` each, this worker's gradients.
          raw: float32 tensors that are sent as they are.
          factors: what the last exchange returned; zeros in the first one.
          step: int32 scalar, the number of the exchange.
          all_reduce: sums tensors over the workers, in their type, those of a type in one message.
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


def check_density(owner: str, value: Any) -> None:
    """Raises ValueError unless ``value`` is a share in (0, 1], or a tensor, of which none knows."""
    if not tf.is_tensor(value):
        check_range(owner, "density", value, 0, 1.0, low_open=True)


def check_integer(owner: str, field: str, value: Any) -> None:
    """Raises ValueError unless ``value`` is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{owner}: {field} must be an integer, got {value!r}")


def check_seed(owner: str, value: Any) -> None:
    """Raises ValueError unless ``value`` can be a seed, an integer from 0 to 2^31 - 1."""
    check_range(owner, "seed", value, 0, 2**31 - 1, low_open=False)


def add_residual(coefficients: tf.Tensor, residual: tf.Tensor | None) -> tf.Tensor:
    """Returns ``coefficients + residual``, or the coefficients if there is no residual."""
    return coefficients if residual is None else coefficients + residual


def sum_in_order(values: tf.Tensor) -> tf.Tensor:
    """Sums a tensor over its first axis, of static size, from first to last."""
    return functools.reduce(operator.add, tf.unstack(values, values.shape[0]))
