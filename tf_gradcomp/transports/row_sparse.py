# SPDX-License-Identifier: Apache-2.0
"""Row-sparse: exchanges only the rows that were touched, of several tables at once, losing nothing.

1. Each worker adds up its duplicate rows; the numbers of rows left are gathered.
2. Which rows these are is gathered: for each table a list, padded to the longest, or a bitmap of
   the table where that is shorter. The union, ascending, is what every worker returns.
3. The rows themselves travel, by the cheaper of two ways: an all-gather, padded like the lists, of
   which a worker sends ``(W - 1) R`` rows, or an all-reduce of the union, ``2 (W - 1) / W U`` rows,
   with R the most rows of one worker and U those of the union. Two workers always gather, as R is
   at most U. The rule is ``W R <= 2 U``, in elements of all tables together.

Lengths and choices follow from what was gathered, so all workers agree on them. No rule makes a
table dense: where all rows are touched, the union is the table, and a worker sends no more than in
a dense all-reduce, but for the bitmap, a bit a row, to each of the others. And what is returned has
the rows touched and no others, as optimizers that leave the rest alone need it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_gradcomp.ops.distinct_rows import DistinctRows, distinct_rows
from tf_gradcomp.transports.base import Collectives

_WORD_BITS = 32


class RowSums(NamedTuple):
    """The outcome of an exchange.

    Attributes:
      sums: one per table, with distinct ascending indices; the same bits on every worker.
      payload_bytes: int64 scalar: bytes that this worker contributed.
    """

    sums: list[tf.IndexedSlices]
    payload_bytes: tf.Tensor


class RowSparse:
    """Three collectives for any number of tables: counts, indices, rows.

    Values of 16 bits are added in float32 on a worker and where rows are gathered, rounded once
    each time; an all-reduce adds them in their own type, as for dense gradients.
    Rows are added up on the CPU, which the operation for it has its only kernel for.
    """

    def __init__(self, collectives: Collectives, shapes: Sequence[tuple[int, ...]]) -> None:
        """Makes the exchange of tables of these static shapes, of rank 1 or more."""
        self._collectives = collectives
        self._num_rows = [shape[0] for shape in shapes]
        self._row_sizes = [math.prod(shape[1:]) for shape in shapes]
        is_large = any(num_rows > tf.int32.max for num_rows in self._num_rows)
        self._index_dtype = tf.int64 if is_large else tf.int32

    def sum(self, slices: Sequence[tf.IndexedSlices]) -> RowSums:
        """Sums sparse tensors over the workers.

        Args:
          slices: one per table, with values ``[n, ...]`` of the same floating-point dtype, indices
            int32 or int64 ``[n]``. ``n`` may be 0 and differ between workers. An index out of range
            is passed on to all workers, for whoever applies the sum to refuse, unless it meets a
            bitmap, where it is an error at once.
        """
        own = [
            _add_duplicates(part, size, self._index_dtype)
            for part, size in zip(slices, self._row_sizes, strict=True)
        ]
        counts = self._collectives.all_gather(tf.stack([tf.size(rows.indices) for rows in own]))
        room = tf.unstack(tf.reduce_max(counts, axis=0))
        indices, index_bytes = self._gather_indices(own, tf.unstack(counts, axis=1), room)
        totals, row_bytes = self._sum_rows(own, indices, counts, room)
        sums = [
            tf.IndexedSlices(
                _like_rows_of(part.values, total.values),
                tf.cast(total.indices, part.indices.dtype),
                part.dense_shape,
            )
            for part, total in zip(slices, totals, strict=True)
        ]
        return RowSums(sums, _num_bytes(tf.stack(room)) + index_bytes + row_bytes)

    def _gather_indices(
        self, own: list[DistinctRows], counts: list[tf.Tensor], room: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the indices of all workers, in worker order, for each table; and bytes sent."""
        coded = [
            _encode(rows.indices, num_rows, longest)
            for rows, num_rows, longest in zip(own, self._num_rows, room, strict=True)
        ]
        payload = _fuse(coded)
        gathered = self._collectives.all_gather(payload)[:, :-1]
        words = tf.split(gathered, tf.stack([tf.size(c) for c in coded]), axis=1)
        indices = [
            _decode(table_words, num_rows, table_counts)
            for table_words, num_rows, table_counts in zip(
                words, self._num_rows, counts, strict=True
            )
        ]
        return indices, _num_bytes(payload)

    def _sum_rows(
        self,
        own: list[DistinctRows],
        indices: list[tf.Tensor],
        counts: tf.Tensor,
        room: list[tf.Tensor],
    ) -> tuple[list[DistinctRows], tf.Tensor]:
        """Returns the sums of each table's rows, and the bytes of rows sent for them."""
        num_workers = self._collectives.num_workers
        if num_workers <= 2:
            return self._gather_rows(own, indices, counts, room)
        unions = [tf.sort(tf.unique(of_all).y) for of_all in indices]
        gathered = self._num_elements(room)
        reduced = self._num_elements([tf.size(union) for union in unions])
        return tf.cond(
            num_workers * gathered <= 2 * reduced,
            lambda: self._gather_rows(own, indices, counts, room),
            lambda: self._reduce_rows(own, unions),
        )

    def _gather_rows(
        self,
        own: list[DistinctRows],
        indices: list[tf.Tensor],
        counts: tf.Tensor,
        room: list[tf.Tensor],
    ) -> tuple[list[DistinctRows], tf.Tensor]:
        values = []
        for rows, longest, size in zip(own, room, self._row_sizes, strict=True):
            padding = (longest - tf.size(rows.indices)) * size
            values += [rows.values, tf.zeros([padding], rows.values.dtype)]
        payload = _fuse(values)
        dtype = payload.dtype
        # The collective has no bfloat16. It copies, so any type of that size will do.
        carrier = tf.float16 if dtype == tf.bfloat16 else dtype
        gathered = tf.bitcast(self._collectives.all_gather(tf.bitcast(payload, carrier)), dtype)
        totals = []
        start = 0
        for table, (size, of_all) in enumerate(zip(self._row_sizes, indices, strict=True)):
            parts = [
                gathered[worker, start : start + counts[worker, table] * size]
                for worker in range(self._collectives.num_workers)
            ]
            rows = tf.reshape(tf.concat(parts, axis=0), [tf.size(of_all), size])
            # In worker order, one after the other: the same bits on every worker.
            total = distinct_rows(tf.cast(rows, _wide(dtype)), of_all)
            totals.append(DistinctRows(total.indices, tf.cast(total.values, dtype)))
            start += room[table] * size
        return totals, _num_bytes(payload)

    def _reduce_rows(
        self, own: list[DistinctRows], unions: list[tf.Tensor]
    ) -> tuple[list[DistinctRows], tf.Tensor]:
        shapes = [
            [tf.size(union), size] for union, size in zip(unions, self._row_sizes, strict=True)
        ]
        payload = _fuse(
            [
                tf.scatter_nd(
                    tf.searchsorted(union, rows.indices)[:, tf.newaxis], rows.values, shape
                )
                for union, rows, shape in zip(unions, own, shapes, strict=True)
            ]
        )
        total = self._collectives.all_reduce(payload)[:-1]
        parts = tf.split(total, tf.stack([height * size for height, size in shapes]))
        totals = [
            DistinctRows(union, tf.reshape(part, shape))
            for union, part, shape in zip(unions, parts, shapes, strict=True)
        ]
        return totals, _num_bytes(payload)

    def _num_elements(self, num_rows: list[tf.Tensor]) -> tf.Tensor:
        """Returns how many elements so many rows of the tables have, an int64 scalar."""
        return tf.reduce_sum(tf.cast(num_rows, tf.int64) * tf.constant(self._row_sizes, tf.int64))


def _add_duplicates(slices: tf.IndexedSlices, size: int, index_dtype: tf.DType) -> DistinctRows:
    indices = slices.indices
    if indices.dtype != index_dtype:
        indices = tf.saturate_cast(indices, index_dtype)  # what is out of range stays so
    values = tf.reshape(slices.values, [tf.size(indices), size])
    own = distinct_rows(tf.cast(values, _wide(values.dtype)), indices)
    return DistinctRows(own.indices, tf.cast(own.values, values.dtype))


def _encode(indices: tf.Tensor, num_rows: int, room: tf.Tensor) -> tf.Tensor:
    """Returns a list padded to ``room``, or a bitmap if that is shorter; typed like the indices."""
    num_words = _bitmap_words(num_rows)

    def bitmap() -> tf.Tensor:
        bits = tf.scatter_nd(
            indices[:, tf.newaxis],
            tf.ones_like(indices, tf.int32),
            tf.constant([num_words * _WORD_BITS], indices.dtype),
        )
        words = tf.bitwise.left_shift(tf.reshape(bits, [-1, _WORD_BITS]), tf.range(_WORD_BITS))
        return tf.cast(tf.reduce_sum(words, axis=1), indices.dtype)

    return tf.cond(
        room > num_words, bitmap, lambda: tf.pad(indices, [[0, room - tf.size(indices)]])
    )


def _decode(words: tf.Tensor, num_rows: int, counts: tf.Tensor) -> tf.Tensor:
    """Returns the indices of all workers, in worker order, from what each has encoded ``[W, m]``.

    Args:
      words: of all workers.
      num_rows: of the table.
      counts: int32 ``[W]``: how many indices each has.
    """
    room = tf.reduce_max(counts)

    def from_bitmaps() -> tf.Tensor:
        shifts = tf.range(_WORD_BITS, dtype=words.dtype)
        bits = tf.bitwise.right_shift(words[..., tf.newaxis], shifts) & 1
        bits = tf.reshape(bits, [words.shape[0], -1])
        return tf.cast(tf.where(tf.equal(bits, 1))[:, 1], words.dtype)

    def from_lists() -> tf.Tensor:
        return tf.boolean_mask(words, tf.sequence_mask(counts, room))

    return tf.cond(room > _bitmap_words(num_rows), from_bitmaps, from_lists)


def _bitmap_words(num_rows: int) -> int:
    return -(-num_rows // _WORD_BITS)


def _wide(dtype: tf.DType) -> tf.DType:
    """Returns the type in which values are added up."""
    return tf.float32 if dtype.size < tf.float32.size else dtype


def _fuse(tensors: list[tf.Tensor]) -> tf.Tensor:
    """Concatenates all elements, and a zero: TensorFlow's all-gather crashes if there are none."""
    padding = tf.zeros([1], tensors[0].dtype)
    return tf.concat([*(tf.reshape(tensor, [-1]) for tensor in tensors), padding], axis=0)


def _like_rows_of(values: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """Gives ``[U, size]`` the shape that rows of ``values`` have."""
    rows = tf.reshape(total, tf.concat([tf.shape(total)[:1], tf.shape(values)[1:]], axis=0))
    rows.set_shape([None, *values.shape[1:]])
    return rows


def _num_bytes(payload: tf.Tensor) -> tf.Tensor:
    return tf.size(payload, tf.int64) * payload.dtype.size
