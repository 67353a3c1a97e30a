# SPDX-License-Identifier: Apache-2.0
"""What the ways of exchanging a bucket have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from tf_gradcomp import state
from tf_gradcomp.compression import Compression
from tf_gradcomp.exchange_state import OF_WORKERS, Share
from tf_gradcomp.exchanges.assumption import Dropped
from tf_gradcomp.plan import Bucket

if TYPE_CHECKING:  # which imports this file
    from tf_gradcomp.exchanges.following import Follower


class Reduced(NamedTuple):
    """The outcome of one bucket's exchange.

    Attributes:
      gradients: the sums, ``tf.IndexedSlices`` from a row-sparse exchange.
      finite: makes a bool scalar: whether no worker's gradient held an Inf or NaN, and no sum
        became one when cast to the gradient's type. Only called if it is needed.
      updates: the state to store if the step is kept.
      withholds: whether the bucket may be kept back whole. No other worker then sees whether it is
        finite, and ``finite`` is this worker's own answer.
      dropped: makes what this worker dropped, if the assumption behind that is to be checked.
      follower: the bucket's transform, if it is to follow the gradients. Other state that depends
        on it is then not among ``updates``.
    """

    gradients: list[tf.Tensor | tf.IndexedSlices]
    finite: Callable[[], tf.Tensor]
    updates: Sequence[state.Update] = ()
    withholds: bool = False
    dropped: Callable[[], Dropped] | None = None
    follower: Follower | None = None


class Chosen(NamedTuple):
    """What was decided on one exchange of a bucket; ``None`` for what the codec has of its own.

    Attributes:
      density: float64 scalar from 0, which sends nothing, to 1.
      bits: int32 scalar.
    """

    density: tf.Tensor | None = None
    bits: tf.Tensor | None = None


def compression_of(bucket: Bucket) -> Compression:
    """Returns the compression of a bucket that has one."""
    assert bucket.compression is not None
    return bucket.compression


def restore(memory: Mapping[str, tf.Variable], shares: Sequence[Share]) -> None:
    """Assigns what all workers had in common, and the sums of what each had of its own."""
    for name, variable in memory.items():
        arrays = [share.arrays[name] for share in shares]
        variable.assign(np.sum(arrays, axis=0) if name.startswith(OF_WORKERS) else arrays[0])


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns a bool scalar; types that cannot hold an Inf or NaN are not looked at."""
    checks = [tf.reduce_all(tf.math.is_finite(t)) for t in tensors if t.dtype.is_floating]
    if len(checks) == 1:
        return checks[0]
    return tf.reduce_all(checks) if checks else tf.constant(True)


def nan_unless(finite: tf.Tensor, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors, or as many NaNs."""

    def spoiled() -> list[tf.Tensor]:
        return [tf.fill(t.shape, tf.constant(np.nan, t.dtype)) for t in tensors]

    return tf.cond(finite, lambda: tensors, spoiled)


def pack(tensors: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Flattens and concatenates tensors."""
    flat = [tf.reshape(tf.cast(tensor, dtype), [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def split(packed: tf.Tensor, shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """Cuts a vector into tensors of these static shapes."""
    parts = [packed] if len(shapes) == 1 else tf.split(packed, [math.prod(s) for s in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def unpack(bucket: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts a bucket into tensors shaped and typed like those that were packed."""
    parts = split(bucket, [gradient.shape for gradient in like])
    return [shaped_like(part, gradient) for part, gradient in zip(parts, like, strict=True)]


def shaped_like(value: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns a value in the shape and type of a gradient."""
    return tf.cast(tf.reshape(value, gradient.shape), gradient.dtype)
