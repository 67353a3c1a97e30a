# SPDX-License-Identifier: Apache-2.0
"""Which bucket an operation belongs to, for tests that watch the collectives."""

from __future__ import annotations

import re

import tensorflow as tf


def traced_bucket() -> int | None:
    """Returns the number of the bucket whose exchange is traced, ``None`` elsewhere.

    The branches of conditions are graphs of their own, where names begin anew: those around them
    tell. What is measured beside the exchange is not part of it.
    """
    graph, scopes = tf.compat.v1.get_default_graph(), [tf.get_current_name_scope()]
    while graph is not None:
        scopes.insert(0, graph.get_name_scope())
        graph = getattr(graph, "outer_graph", None)
    match = re.search(r"gradient_exchange_bucket_(\d+)(.*)", "/".join(scopes))
    return int(match[1]) if match is not None and "/assumption" not in match[2] else None
