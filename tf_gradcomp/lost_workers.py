# SPDX-License-Identifier: Apache-2.0
"""Adds to an error that ends a worker who of the others does not answer, and how to go on.

Such an error may come out of any function that holds a collective, in Keras' loop or a user's, so
it is met where all of them end up: where Python prints what nobody has caught.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType

import tensorflow as tf

from tf_gradcomp import reachability
from tf_gradcomp.cluster import Cluster

# What a collective fails with when another worker does not take part, by TensorFlow's version and
# by who notices first.
_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)
# Of these classes are errors that have nothing to do with other workers, too.
_WORDS = ("ollective", "oordination")
# The kernel closes a killed process's sockets one after another, connections often first: for a
# moment it is known to be gone and still accepts.
_DYING_SECONDS = 2.0
_PAUSE_SECONDS = 0.2

_cluster: Cluster | None = None
_next_hook = sys.excepthook


def explain_uncaught(cluster: Cluster) -> None:
    """From now on, an uncaught error of a collective says which workers do not answer."""
    global _cluster, _next_hook
    if _cluster is None:
        _next_hook, sys.excepthook = sys.excepthook, _hook
    _cluster = cluster


def _explanation(cluster: Cluster, missing: Mapping[str, str]) -> str:
    """Says who does not answer, and how to go on."""
    if missing:
        verb = "do" if len(missing) > 1 else "does"
        finding = f"{reachability.listed(missing)} {verb} not answer; the log there may say why"
    else:
        finding = (
            "all other workers still accept connections, so one may be stopped or late, or have "
            "had fewer batches than the others; their logs may say more"
        )
    return (
        f"tf_gradcomp: This is {cluster.own}. At this moment {finding}. To go on, start all "
        f"workers again with the same command: with tf_gradcomp.callbacks.BackupAndRestore, "
        f"training goes on from the last backup."
    )


def _missing(cluster: Cluster) -> dict[str, str]:
    """Returns who does not answer, as soon as anybody does not; if nobody, after a while."""
    deadline = time.monotonic() + _DYING_SECONDS
    missing = reachability.unanswered(cluster.others)
    while not missing and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
        missing = reachability.unanswered(cluster.others)
    return missing


def _hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if isinstance(error, _ERRORS) and _cluster is not None:
        missing = _missing(_cluster)
        if missing or any(word in str(error) for word in _WORDS):
            error.add_note(_explanation(_cluster, missing))
    _next_hook(kind, error, traceback)
