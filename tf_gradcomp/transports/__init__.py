# SPDX-License-Identifier: Apache-2.0
"""How payloads move between workers."""

from __future__ import annotations

from tf_gradcomp.transports.all_gather import AllGather
from tf_gradcomp.transports.all_reduce import AllReduce
from tf_gradcomp.transports.base import Transport
from tf_gradcomp.transports.block_sparse import BlockSparse
from tf_gradcomp.transports.integer import Integer
from tf_gradcomp.transports.scatter_reduce import ScatterReduce

# Those of codecs' payloads, by name.
TRANSPORTS: dict[str, type[Transport]] = {
    "all_gather": AllGather,
    "scatter_reduce": ScatterReduce,
    "block_sparse": BlockSparse,
    "integer": Integer,
    "all_reduce": AllReduce,
}
