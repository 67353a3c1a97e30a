# SPDX-License-Identifier: Apache-2.0
"""Which gradients travel together and how: fixed when a training step is traced."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_gradcomp.agreement import Fact
from tf_gradcomp.codecs.base import MAX_BUCKETS, MAX_SHARDS, Codec, LowRank, VariableShape
from tf_gradcomp.compression import AUTO_TRANSPORT, DEFAULT_BUCKET_BYTES, Compression
from tf_gradcomp.costs import BYTES_PER_WORD, AssumedCosts, Costs, Estimate, Network
from tf_gradcomp.exchange_state import BucketState
from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.transports import TRANSPORTS
from tf_gradcomp.transports.base import Message, PayloadSize
from tf_gradcomp.transports.dense import Dense

_NOTICEABLE = 1.05  # more time than this factor is no noise


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged as one.

    Attributes:
      indices: positions of its variables in the plan, in the order in which they are packed.
      num_elements: total number of elements.
      dtype: dtype of the packed gradients; "float32" when compressed.
      compression: how it is compressed; ``None`` for a dense all-reduce, or a row-sparse exchange.
      payload_bytes: bytes that one worker contributes to the exchange; the average, where that
        alternates from step to step, and an estimate for ``block_sparse``; where the density
        changes, those with the codec's own. 0 for a row-sparse exchange, which depends on the rows
        of a step: ``CompressionMonitor`` counts them.
      transport: how payloads travel, a key of ``TRANSPORTS``; empty for those without a codec.
      row_sparse: whether sparse gradients are exchanged row by row.
      estimates: what its exchange would take, if it is compressed: as it is done, by other
        transports that were considered, and dense. No two buckets differ by this alone.
    """

    indices: tuple[int, ...]
    num_elements: int
    dtype: str
    compression: Compression | None
    payload_bytes: int
    transport: str = ""
    row_sparse: bool = False
    estimates: tuple[Estimate, ...] = dataclasses.field(default=(), compare=False)

    @property
    def changes(self) -> bool:
        """Whether what is sent may differ in size from exchange to exchange as it is told to."""
        return self.compression is not None and self.compression.changes

    def steady(self, density: float | None = None) -> Bucket:
        """Returns the same with ``Compression.steady``."""
        if self.compression is None:
            return self
        return dataclasses.replace(self, compression=self.compression.steady(density))

    @property
    def how(self) -> str:
        """How it is exchanged, in words."""
        return str(self.compression or ("row-sparse" if self.row_sparse else "dense"))


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The buckets of one set of variables, in the order in which they are exchanged.

    No plan equals another: variables of a clone of a model have the same names and shapes.

    Attributes:
      variables: what is known of each variable.
      buckets: a partition of the variables.
      momentum: of what is exchanged without compression, in place of the optimizer's; 0 for none.
      network: what the estimates of compressed buckets say of the network; ``None`` without any.
    """

    variables: tuple[VariableInfo, ...]
    buckets: tuple[Bucket, ...]
    momentum: float = 0.0
    network: Network | None = None

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
            how = f"{bucket.how} {bucket.transport}".rstrip()
            value = f"{_type(variable)} bucket {bucket_of[index]} {how}"
            facts.append(Fact(variable.name, value))
        return facts

    def summary(self) -> str:
        """Returns a table for people: what each bucket holds, and what it costs."""
        lines = []
        left_out: dict[str, None] = {}  # a set in order: the same of all buckets is said once
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
            if bucket.compression is not None:
                shapes = [VariableShape(variable.shape, variable.hidden) for variable in variables]
                left_out[bucket.compression.left_out(shapes)] = None
            if bucket.estimates:
                lines.append(f"  estimated: {', '.join(map(str, bucket.estimates))}")
        lines += [f"left out: {text}" for text in left_out if text]
        if self.network is not None:
            lines.append(f"network: {self.network}")
        has_rows = any(bucket.row_sparse for bucket in self.buckets)
        lines.append(
            f"total: {self.dense_bytes:,} -> {self.payload_bytes:,} bytes a step and worker, "
            f"ratio {self.compression_ratio:.1f}" + (", and the rows touched" if has_rows else "")
        )
        return "\n".join(lines)


def messages_at(
    variables: Sequence[VariableInfo], bucket: Bucket, density: float, num_workers: int
) -> list[Message]:
    """Returns the messages of a compressed bucket's exchange with another density.

    Those of gradients as they are beyond ``dense_beyond``.

    Args:
      variables: those of the plan.
      bucket: one with a codec.
      density: in (0, 1]; codecs that have none do not mind.
      num_workers: number of workers.
    """
    assert bucket.compression is not None
    codec = bucket.compression.build(density)
    _, messages = _traffic(codec, variables, bucket.indices, bucket.transport, num_workers)
    dense = Dense.message(bucket.num_elements, num_workers)
    is_dense = _may_be_dense(bucket) and _words(messages) >= dense.words
    return [dense] if is_dense else messages


def dense_beyond(variables: Sequence[VariableInfo], bucket: Bucket, num_workers: int) -> float:
    """Returns the density beyond which gradients are sent as they are; ``inf`` for none.

    Where that sends no more words, and sending less is what the transport is for. Words decide,
    not the seconds that a measured network would take for them: what is computed must not depend on
    the network, nor change when it is measured again.

    Args:
      variables: those of the plan.
      bucket: one with a codec that has a density.
      num_workers: number of workers.
    """

    def is_dense(num_items: int) -> bool:
        density = num_items / bucket.num_elements
        (message, *_) = messages_at(variables, bucket, density, num_workers)
        return message == Dense.message(bucket.num_elements, num_workers)

    least, most = 1, bucket.num_elements
    if not _may_be_dense(bucket) or not is_dense(most):
        return math.inf
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if is_dense(middle) else (middle + 1, most)
    # Any more than so many elements are at least one more.
    return (most - 1) / bucket.num_elements


def _may_be_dense(bucket: Bucket) -> bool:
    """Whether gradients may be sent as they are in place of what the codec makes of them."""
    assert bucket.compression is not None
    return bucket.compression.changes_density and TRANSPORTS[bucket.transport].needs_gain


def _words(messages: Sequence[Message]) -> float:
    return sum(message.words for message in messages)


def variable_facts(
    variables: Sequence[VariableInfo], policy: Policy, saved: Sequence[BucketState] = ()
) -> list[Fact]:
    """Returns what the workers must agree on before they make a plan, one fact per variable.

    Args:
      variables: in the model's order.
      policy: decides the compression of each.
      saved: as for ``make_plan``.
    """
    facts = []
    for variable in variables:
        compression = policy.compression_for(variable)
        how = str(compression or ("row-sparse" if variable.sparse else "dense"))
        if compression is not None and compression.controller is not None:
            key = (variable.name, variable.shape)
            found = [n for n, b in enumerate(saved) if b.compression == how and key in b.variables]
            how += "".join(f", saved in bucket {number}" for number in found)
        facts.append(Fact(variable.name, f"{_type(variable)} {how}"))
    return facts


def make_plan(
    variables: Sequence[VariableInfo],
    policy: Policy,
    num_workers: int,
    costs: Costs | None = None,
    compress: bool = True,
    saved: Sequence[BucketState] = (),
) -> Plan:
    """Divides variables into buckets.

    Variables are taken in reverse order, which is roughly the order in which back-propagation
    finishes their gradients, so that the first exchanges overlap with the rest of it. A bucket
    of which compression would not send less is sent dense, unless its codec loses nothing and
    was thus not chosen to send less. Sparse gradients that are not compressed go row by row.

    Args:
      variables: in the model's order.
      policy: decides the compression of each.
      num_workers: number of workers, on which depends how often a payload is sent.
      costs: what exchanges take, which decides between transports; by default their bytes.
      compress: whether to compress anything at all.
      saved: what earlier exchanges of these variables remember. Groups that a controller has made
        then stay, for what is remembered fits no others.

    Returns:
      The plan. Compressed buckets come in exchange order, then dense ones, row-sparse ones last.
    """
    names = [variable.name for variable in variables]
    for pattern in policy.unmatched_patterns(names):
        logging.warning("Policy: %r matches none of the variables %s", pattern, ", ".join(names))
    costs = AssumedCosts() if costs is None else costs
    alike: dict[Compression, list[int]] = {}
    uncompressed: list[int] = []
    for index in reversed(range(len(variables))):
        compression = policy.compression_for(variables[index]) if compress else None
        if compression is None:
            uncompressed.append(index)
        else:
            alike.setdefault(compression, []).append(index)
    groups = [
        (compression, group)
        for compression, indices in alike.items()
        for group in _groups(variables, indices, compression, num_workers, costs, saved)
    ]
    buckets = []
    for compression, indices in sorted(groups, key=lambda group: -group[1][0]):
        bucket = _compressed_bucket(variables, indices, compression, num_workers, costs)
        if bucket is not None:
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
    network = costs.network if buckets else None
    _warn_if_dense_is_faster(buckets, network)
    dense = [index for index in uncompressed if not variables[index].sparse]
    sparse = [index for index in uncompressed if variables[index].sparse]
    buckets += _dense_buckets(variables, dense) + _row_sparse_buckets(variables, sparse)
    return Plan(tuple(variables), tuple(buckets), policy.momentum, network)


def _warn_if_dense_is_faster(buckets: Sequence[Bucket], network: Network | None) -> None:
    """Says so if gradients as they are would be exchanged in less time.

    Estimates are of exchanges that send something of a bucket, which not all do.
    """
    buckets = [b for b in buckets if b.compression is None or not b.compression.withholds]
    compressed = sum(bucket.estimates[0].total for bucket in buckets)
    dense = sum(bucket.estimates[-1].total for bucket in buckets)
    if network is not None and network.measured and compressed > _NOTICEABLE * dense:
        logging.warning(
            "Compression seems not to pay in this network: exchanging gradients takes an "
            "estimated %.1f ms a step, and %.1f ms dense. The network: %s.",
            1e3 * compressed,
            1e3 * dense,
            network,
        )


def _check_limits(num_buckets: int, num_workers: int) -> None:
    """What draws can tell apart; see ``codecs.base.Draw``."""
    if num_buckets > MAX_BUCKETS or num_workers > MAX_SHARDS:
        raise ValueError(
            f"{num_buckets} compressed buckets and {num_workers} workers: at most {MAX_BUCKETS} "
            f"and {MAX_SHARDS} are possible; use scope=bucket or scope=model for fewer buckets"
        )


def _groups(
    variables: Sequence[VariableInfo],
    indices: Sequence[int],
    compression: Compression,
    num_workers: int,
    costs: Costs,
    saved: Sequence[BucketState],
) -> list[list[int]]:
    """Returns which variables of one compression share a bucket."""
    if compression.controller is None:
        return _groups_by_scope(variables, indices, compression)
    kept = _saved_groups(variables, indices, compression, saved)
    rest = [index for index in indices if not any(index in group for group in kept)]
    transport = _transports(compression.build(), compression, num_workers)[0]

    def bucket(positions: Sequence[int]) -> Bucket:
        members = tuple(rest[position] for position in positions)
        size = sum(variables[index].num_elements for index in members)
        return Bucket(members, size, "float32", compression, 0, transport)

    def message_seconds(positions: Sequence[int], density: float) -> float:
        messages = messages_at(variables, bucket(positions), density, num_workers)
        return costs.network.seconds(messages)

    groups = compression.controller.groups(
        [variables[index].name for index in rest],
        dict(compression.params).get("density", 1.0),
        lambda positions: costs.work(variables, bucket(positions)),
        message_seconds,
    )
    if groups is None:
        return _groups_by_scope(variables, indices, compression)
    return kept + [[rest[position] for position in group] for group in groups]


def _saved_groups(
    variables: Sequence[VariableInfo],
    indices: Sequence[int],
    compression: Compression,
    saved: Sequence[BucketState],
) -> list[list[int]]:
    """Returns the groups of one compression's variables that were saved, if all are here."""
    index_of = {(variables[index].name, variables[index].shape): index for index in indices}
    keys = [bucket.variables for bucket in saved if bucket.compression == str(compression)]
    members = [key for bucket in keys for key in bucket]
    is_clear = len(index_of) == len(indices) and len(set(members)) == len(members)
    if not is_clear or not index_of.keys() >= set(members):
        return []
    return [[index_of[key] for key in bucket] for bucket in keys]


def _groups_by_scope(
    variables: Sequence[VariableInfo], indices: Sequence[int], compression: Compression
) -> list[list[int]]:
    """Fuses variables up to the size of a bucket, or all, or none."""
    groups: list[list[int]] = []
    limit = {"layer": 0, "bucket": compression.bucket_bytes, "model": math.inf}[compression.scope]
    size = 0
    for index in indices:
        num_bytes = variables[index].num_elements * BYTES_PER_WORD
        if groups and size + num_bytes <= limit:
            groups[-1].append(index)
            size += num_bytes
        else:
            groups.append([index])
            size = num_bytes
    return groups


def _compressed_bucket(
    variables: Sequence[VariableInfo],
    indices: Sequence[int],
    compression: Compression,
    num_workers: int,
    costs: Costs,
) -> Bucket | None:
    """Returns the bucket of these variables, ``None`` if it would not send less than dense."""
    codec: Any = compression.build()
    num_bytes = sum(_num_bytes(variables[i]) for i in indices)
    dense_message = Dense.message(num_bytes / BYTES_PER_WORD, num_workers)
    buckets, estimates = [], []
    for transport in _transports(codec, compression, num_workers):
        num_words, messages = _traffic(codec, variables, indices, transport, num_workers)
        shrinks = _words(messages) < dense_message.words
        if not shrinks and _needs_gain(codec, transport):
            continue
        bucket = Bucket(
            tuple(indices),
            sum(variables[i].num_elements for i in indices),
            "float32",
            compression,
            int(num_words * BYTES_PER_WORD),
            transport,
        )
        seconds = costs.network.seconds(messages)
        buckets.append(bucket)
        estimates.append(
            Estimate(transport or "all_reduce", costs.work(variables, bucket), seconds)
        )
    if not buckets:
        return None
    dense = Estimate("dense", 0.0, costs.network.seconds([dense_message]))
    if len(buckets) > 1:
        layout = codec.transform.layout(buckets[0].num_elements)
        gathered, scattered = estimates
        if _is_worth_a_second_loss(codec.density(layout), gathered, scattered, dense):
            buckets.reverse()
            estimates.reverse()
    return dataclasses.replace(buckets[0], estimates=(*estimates, dense))


def _transports(
    codec: Codec | LowRank, compression: Compression, num_workers: int
) -> tuple[str, ...]:
    """Returns the transports to consider, the preferred one first; low-rank methods need none."""
    if isinstance(codec, LowRank):
        return ("",)
    if compression.transport != AUTO_TRANSPORT:
        return (compression.transport,)
    # Between two workers, scatter-reduce sends no less than all-gather.
    return ("all_gather",) if num_workers == 2 else ("all_gather", "scatter_reduce")


def _traffic(
    codec: Codec | LowRank,
    variables: Sequence[VariableInfo],
    indices: Sequence[int],
    transport: str,
    num_workers: int,
) -> tuple[float, list[Message]]:
    """Returns the words that a worker contributes to an exchange, and its messages."""
    if isinstance(codec, LowRank):
        parts = codec.message_words([variables[i].shape for i in indices])
        return sum(parts), [Dense.message(words, num_workers) for words in parts]
    kind = TRANSPORTS[transport]
    layout = codec.transform.layout(sum(variables[i].num_elements for i in indices))
    shard = layout.shard(kind.num_shards(num_workers))
    size = PayloadSize(
        codec.num_words(shard), shard.num_items, shard.components, codec.density(shard)
    )
    return kind.payload_words(size, num_workers), kind.messages(size, num_workers)


def _needs_gain(codec: Codec | LowRank, transport: str) -> bool:
    """Whether to send gradients dense where this would not send less."""
    return isinstance(codec, LowRank) or (not codec.lossless and TRANSPORTS[transport].needs_gain)


def _is_worth_a_second_loss(
    density: float, gathered: Estimate, scattered: Estimate, dense: Estimate
) -> bool:
    """Whether to use scatter-reduce in place of all-gather.

    All-gather loses once, scatter-reduce twice; and where a codec drops items, an all-gather of few
    lets the sum have all that any worker kept. So quantizers change over where it takes less than
    half the time, and sparsifiers only where all-gather would take no less than dense gradients.
    """
    if density < 1:
        return gathered.total >= dense.total and scattered.total < gathered.total
    return scattered.total < gathered.total / 2


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


def _type(variable: VariableInfo) -> str:
    shape = "x".join(map(str, variable.shape)) or "scalar"
    if variable.hidden:
        shape += f" (flattened {'x'.join(map(str, variable.hidden))})"
    return f"{shape} {variable.dtype}"


def _table(variable: VariableInfo) -> str:
    row = math.prod(variable.shape[1:]) * tf.as_dtype(variable.dtype).size
    return f"{variable.name} ({variable.shape[0]:,} rows of {row:,} bytes)"


def _num_bytes(variable: VariableInfo) -> int:
    return variable.num_elements * tf.as_dtype(variable.dtype).size
