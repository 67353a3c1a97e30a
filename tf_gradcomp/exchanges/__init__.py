# SPDX-License-Identifier: Apache-2.0
"""The ways of exchanging one bucket: payloads of a codec, low-rank factors, rows, or all as it is.

An exchange is made for one bucket of a plan and holds that bucket's state. Called with this
worker's gradients, and what was decided on the exchange if anything was, it returns their sums over
the workers, and what to store if the step is kept.
"""

from __future__ import annotations

from typing import TypeAlias

from tf_gradcomp import plan as plan_lib
from tf_gradcomp.codecs.base import LowRank
from tf_gradcomp.exchanges.compressed import CompressedExchange
from tf_gradcomp.exchanges.low_rank import LowRankExchange
from tf_gradcomp.exchanges.uncompressed import DenseExchange, RowSparseExchange
from tf_gradcomp.transports.base import Collectives

Exchange: TypeAlias = CompressedExchange | LowRankExchange | DenseExchange | RowSparseExchange


def make_exchange(plan: plan_lib.Plan, number: int, collectives: Collectives) -> Exchange:
    """Makes the exchange of bucket ``number`` of a plan, with new state."""
    compression = plan.buckets[number].compression
    if plan.buckets[number].row_sparse:
        return RowSparseExchange(plan, number, collectives)
    if compression is None:
        return DenseExchange(plan, number, collectives)
    codec = compression.build()
    if isinstance(codec, LowRank):
        return LowRankExchange(plan, number, codec, collectives)
    return CompressedExchange(plan, number, codec, collectives)
