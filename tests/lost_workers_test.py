# SPDX-License-Identifier: Apache-2.0
"""What an uncaught error of a collective says beyond TensorFlow's own words."""

import socket
import sys
import threading

import pytest
import tensorflow as tf

from tf_gradcomp import lost_workers
from tf_gradcomp.cluster import Cluster


@pytest.fixture
def addresses():
    """An address that answers and one that does not."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield [f"127.0.0.1:{end.getsockname()[1]}" for end in (server, closed)]


@pytest.fixture
def seen(monkeypatch):
    """The errors that reach the hook that was there before."""
    errors = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, traceback: errors.append(error))
    monkeypatch.setattr(lost_workers, "_cluster", None)
    monkeypatch.setattr(lost_workers, "_next_hook", None)
    return errors


def notes_of(error):
    sys.excepthook(type(error), error, None)
    return getattr(error, "__notes__", [])


def test_who_does_not_answer_is_named(seen, addresses):
    answers, silent = addresses
    members = {"worker 0": answers, "worker 1": silent, "worker 2": answers}
    lost_workers.explain_uncaught(Cluster("worker 2", members))
    error = tf.errors.UnavailableError(None, None, "Socket closed")
    (note,) = notes_of(error)
    assert "This is worker 2. At this moment worker 1 at " + silent in note
    assert "worker 0" not in note
    assert "start all workers again with the same command" in note
    assert seen == [error]


@pytest.mark.parametrize("text", ["The collective took longer", "Connection reset by peer"])
def test_who_still_accepts_while_it_dies_is_named(seen, text):
    """A killed process's connections may be closed before the socket that it listens at."""
    server = socket.create_server(("127.0.0.1", 0))
    dying = f"127.0.0.1:{server.getsockname()[1]}"
    lost_workers.explain_uncaught(Cluster("worker 0", {"worker 0": "", "worker 1": dying}))
    death = threading.Timer(0.5, server.close)
    death.start()
    (note,) = notes_of(tf.errors.AbortedError(None, None, text))
    death.join()
    assert f"At this moment worker 1 at {dying} (Connection re" in note


def test_nobody_is_accused_if_all_answer(seen, addresses):
    members = {"worker 0": addresses[0], "worker 1": addresses[0]}
    lost_workers.explain_uncaught(Cluster("worker 1", members))
    text = "The collective gradient_exchange_bucket_0 took longer than 2 seconds"
    (note,) = notes_of(tf.errors.DeadlineExceededError(None, None, text))
    assert "all other workers still accept connections" in note
    assert "worker 0" not in note


def test_an_error_of_this_worker_alone_is_left_alone(seen, addresses):
    """Of a class that collectives fail with, too."""
    members = {"worker 0": addresses[0], "worker 1": addresses[0]}
    lost_workers.explain_uncaught(Cluster("worker 1", members))
    assert notes_of(tf.errors.InternalError(None, None, "failed to launch a kernel")) == []
    assert len(seen) == 1


def test_errors_of_another_kind_stay_as_they_are(seen, addresses):
    lost_workers.explain_uncaught(Cluster("worker 0", {"worker 0": "", "worker 1": addresses[1]}))
    errors = [ValueError("a mistake"), tf.errors.InvalidArgumentError(None, None, "a shape")]
    assert [notes_of(error) for error in errors] == [[], []]
    assert seen == errors


def test_a_second_strategy_changes_the_cluster_and_adds_no_hook(seen, addresses):
    for name in ("worker 7", "worker 8"):
        lost_workers.explain_uncaught(Cluster("worker 0", {"worker 0": "", name: addresses[1]}))
    (note,) = notes_of(tf.errors.AbortedError(None, None, "aborted"))
    assert "worker 8 at" in note
    assert "worker 7" not in note
    assert len(seen) == 1
