# SPDX-License-Identifier: Apache-2.0
"""Which gradients travel together and how: fixed when a training step is traced."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from tf_gradcomp.agreement import Fact
from tf_gradcomp.codecs.base import MAX_BUCKETS, MAX_SHARDS, Codec, Layout, LowRank
from tf_gradcomp.compression import AUTO_TRANSPORT, DEFAULT_BUCKET_BYTES, Compression
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.transports import TRANSPORTS
from tf_gradcomp.transports.base import PayloadSize
from tf_gradcomp.transports.dense import Dense

BYTES_PER_WORD = 4


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged as one.

    Attributes:
      indices: positions of its variables in the plan, in the order in which they are packed.
      num_elements: total number of elements.
      dtype: dtype of the packed gradients; "float32" when compressed.
      compression: how it is compressed; ``None`` for a dense all-reduce, or a row-sparse exchange.
      payload_bytes: bytes that one worker contributes to the exchange; the average, where that
        alternates from step to step, and an estimate for ``block_sparse``. 0 for a row-sparse
        exchange, which depends on the rows of a step: ``CompressionMonitor`` counts them.
      transport: how payloads travel, a key of ``TRANSPORTS``; empty for those without a codec.
      row_sparse: whether sparse gradients are exchanged row by row.
    """

    indices: tuple[int, ...]
    num_elements: int
    dtype: str
    compression: Compression | None
    payload_bytes: int
    transport: str = ""
    row_sparse: bool = False

    @property
    def how(self) -> str:
        """How it is exchanged, in words."""
        return str(self.compression or ("row-sparse" if self.row_sparse else "dense"))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The buckets of one set of variables, in the order in which they are exchanged.

    Attributes:
      variables: what is known of each variable.
      buckets: a partition of the variables.
    """

    variables: tuple[VariableInfo, ...]
    buckets: tuple[Bucket, ...]

    @property
    def dense_bytes(self) -> int:
        """Bytes of the gradients as they are, but for those exchanged row by row."""
        return sum(
            _num_bytes(self.variables[index])
            for bucket in self.buckets
            if not bucket.row_sparse
            for index in bucket.indices
        )

    @property
    def payload_bytes(self) -> int:
        """Bytes that one worker contributes to a step's exchange of these."""
        return sum(bucket.payload_bytes for bucket in self.buckets)

    @property
    def compression_ratio(self) -> float:
        """Dense bytes over payload bytes."""
        return max(1, self.dense_bytes) / max(1, self.payload_bytes)

    def facts(self) -> list[Fact]:
        """Returns what the workers must agree on, one fact per variable.

        Names are labels only: automatic names may differ between workers that agree otherwise.
        """
        bucket_of = {index: b for b, bucket in enumerate(self.buckets) for index in bucket.indices}
        facts = []
        for index, variable in enumerate(self.variables):
            bucket = self.buckets[bucket_of[index]]
            shape = "x".join(map(str, variable.shape)) or "scalar"
            if variable.hidden:
                shape += f" (flattened {'x'.join(map(str, variable.hidden))})"
            how = f"{bucket.how} {bucket.transport}".rstrip()
            value = f"{shape} {variable.dtype} bucket {bucket_of[index]} {how}"
            facts.append(Fact(variable.name, value))
        return facts

    def summary(self) -> str:
        """Returns a table for people: what each bucket holds, and what it costs."""
        lines = []
        for number, bucket in enumerate(self.buckets):
            variables = [self.variables[i] for i in bucket.indices]
            if bucket.row_sparse:
                cost = "bytes depend on the rows touched in a step"
                names = ", ".join(map(_table, variables))
            else:
                cost = (
                    f"{sum(map(_num_bytes, variables)):,} -> {bucket.payload_bytes:,} bytes "
                    f"by {bucket.transport or 'all_reduce'}"
                )
                names = ", ".join(variable.name for variable in variables)
            lines.append(f"bucket {number}: {bucket.how}, {cost}: {names}")
        has_rows = any(bucket.row_sparse for bucket in self.buckets)
        lines.append(
            f"total: {self.dense_bytes:,} -> {self.payload_bytes:,} bytes a step and worker, "
            f"ratio {self.compression_ratio:.1f}" + (", and the rows touched" if has_rows else "")
        )
        return "\n".join(lines)


def make_plan(variables: Sequence[VariableInfo], policy: Policy, num_workers: int) -> Plan:
    """Divides variables into buckets.

    Variables are taken in reverse order, which is roughly the order in which back-propagation
    finishes their gradients, so that the first exchanges overlap with the rest of it. A bucket
    of which compression would not send less is sent dense, unless its codec loses nothing and
    was thus not chosen to send less. Sparse gradients that are not compressed go row by row.

    Args:
      variables: in the model's order.
      policy: decides the compression of each.
      num_workers: number of workers, on which depends how often a payload is sent.

    Returns:
      The plan. Compressed buckets come in exchange order, then dense ones, row-sparse ones last.
    """
    names = [variable.name for variable in variables]
    for pattern in policy.unmatched_patterns(names):
        logging.warning("Policy: %r matches none of the variables %s", pattern, ", ".join(names))
    groups: dict[tuple[Compression, int], list[int]] = {}
    sizes: dict[tuple[Compression, int], int] = {}
    generation: dict[Compression, int] = {}
    uncompressed: list[int] = []
    for index in reversed(range(len(variables))):
        compression = policy.compression_for(variables[index])
        if compression is None:
            uncompressed.append(index)
            continue
        num_bytes = variables[index].num_elements * BYTES_PER_WORD
        key = (compression, generation.setdefault(compression, 0))
        if key in groups and _is_full(compression, sizes[key], num_bytes):
            generation[compression] += 1
            key = (compression, generation[compression])
        groups.setdefault(key, []).append(index)
        sizes[key] = sizes.get(key, 0) + num_bytes

    buckets = []
    for (compression, _), indices in groups.items():
        bucket, pays = _compressed_bucket(variables, indices, compression, num_workers)
        if pays:
            buckets.append(bucket)
            continue
        logging.warning(
            "Compression %s would not send less than dense gradients with %d workers: %s are sent "
            "without it.",
            compression,
            num_workers,
            ", ".join(variables[i].name for i in indices),
        )
        uncompressed.extend(indices)
    _check_limits(len(buckets), num_workers)
    dense = [index for index in uncompressed if not variables[index].sparse]
    sparse = [index for index in uncompressed if variables[index].sparse]
    buckets += _dense_buckets(variables, dense) + _row_sparse_buckets(variables, sparse)
    return Plan(tuple(variables), tuple(buckets))


def _check_limits(num_buckets: int, num_workers: int) -> None:
    """What draws can tell apart; see ``codecs.base.Draw``."""
    if num_buckets > MAX_BUCKETS or num_workers > MAX_SHARDS:
        raise ValueError(
            f"{num_buckets} compressed buckets and {num_workers} workers: at most {MAX_BUCKETS} "
            f"and {MAX_SHARDS} are possible; use scope=bucket or scope=model for fewer buckets"
        )


def _is_full(compression: Compression, size: int, num_bytes: int) -> bool:
    if compression.scope == "layer":
        return True
    return compression.scope == "bucket" and size + num_bytes > compression.bucket_bytes


def _compressed_bucket(
    variables: Sequence[VariableInfo],
    indices: list[int],
    compression: Compression,
    num_workers: int,
) -> tuple[Bucket, bool]:
    """Returns the bucket of these variables, and whether to send it compressed."""
    num_elements = sum(variables[i].num_elements for i in indices)
    codec = compression.build()
    transport, lossless, needs_gain = "", False, True
    if isinstance(codec, LowRank):
        num_words = codec.num_words([variables[i].shape for i in indices])
        sent_words = num_words * Dense.sent_share(num_workers)
    else:
        layout, lossless = codec.transform.layout(num_elements), codec.lossless
        transport = _choose_transport(codec, layout, compression.transport, num_workers)
        needs_gain = TRANSPORTS[transport].needs_gain
        shard = _shard_size(codec, layout, transport, num_workers)
        num_words = TRANSPORTS[transport].payload_words(shard, num_workers)
        sent_words = TRANSPORTS[transport].sent_words(shard, num_workers)
    dense_bytes = sum(_num_bytes(variables[i]) for i in indices)
    shrinks = sent_words * BYTES_PER_WORD < dense_bytes * Dense.sent_share(num_workers)
    payload_bytes = int(num_words * BYTES_PER_WORD)
    bucket = Bucket(tuple(indices), num_elements, "float32", compression, payload_bytes, transport)
    return bucket, shrinks or lossless or not needs_gain


def _shard_size(codec: Codec, layout: Layout, transport: str, num_workers: int) -> PayloadSize:
    shard = layout.shard(TRANSPORTS[transport].num_shards(num_workers))
    return PayloadSize(
        codec.num_words(shard), shard.num_items, shard.components, codec.density(shard)
    )


def _choose_transport(codec: Codec, layout: Layout, transport: str, num_workers: int) -> str:
    """Returns the transport that was asked for, or the one that "auto" stands for.

    All-gather loses once, scatter-reduce twice; and where a codec drops items, an all-gather of few
    lets the sum have all that any worker kept. So quantizers change over where it sends less
    than half as much, and sparsifiers only where all-gather would send no less than dense.
    """
    if transport != AUTO_TRANSPORT:
        return transport

    def sent_words(name: str) -> float:
        shard = _shard_size(codec, layout, name, num_workers)
        return TRANSPORTS[name].sent_words(shard, num_workers)

    gathered, scattered = sent_words("all_gather"), sent_words("scatter_reduce")
    dense = layout.num_items * layout.components * Dense.sent_share(num_workers)
    changes_over = gathered >= dense if codec.density(layout) < 1 else 2 * scattered < gathered
    return "scatter_reduce" if changes_over and scattered < gathered else "all_gather"


def _dense_buckets(variables: Sequence[VariableInfo], indices: list[int]) -> list[Bucket]:
    """Fuses the rest by dtype, in reverse order, up to the default bucket size."""
    buckets: list[Bucket] = []
    open_bucket: dict[str, int] = {}
    for index in sorted(indices, reverse=True):
        variable = variables[index]
        num_bytes = _num_bytes(variable)
        position = open_bucket.get(variable.dtype)
        if position is None or buckets[position].payload_bytes + num_bytes > DEFAULT_BUCKET_BYTES:
            open_bucket[variable.dtype] = len(buckets)
            buckets.append(Bucket((index,), variable.num_elements, variable.dtype, None, num_bytes))
        else:
            previous = buckets[position]
            buckets[position] = Bucket(
                previous.indices + (index,),
                previous.num_elements + variable.num_elements,
                variable.dtype,
                None,
                previous.payload_bytes + num_bytes,
            )
    return buckets


def _row_sparse_buckets(variables: Sequence[VariableInfo], indices: list[int]) -> list[Bucket]:
    """Fuses sparse gradients by dtype, in reverse order."""
    fused: dict[str, list[int]] = {}
    for index in sorted(indices, reverse=True):
        fused.setdefault(variables[index].dtype, []).append(index)
    return [
        Bucket(
            tuple(members),
            sum(variables[i].num_elements for i in members),
            dtype,
            compression=None,
            payload_bytes=0,
            row_sparse=True,
        )
        for dtype, members in fused.items()
    ]


def _table(variable: VariableInfo) -> str:
    row = math.prod(variable.shape[1:]) * tf.as_dtype(variable.dtype).size
    return f"{variable.name} ({variable.shape[0]:,} rows of {row:,} bytes)"


def _num_bytes(variable: VariableInfo) -> int:
    return variable.num_elements * tf.as_dtype(variable.dtype).size
