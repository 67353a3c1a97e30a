# SPDX-License-Identifier: Apache-2.0
"""Who is missing is named, while others wait for it and no longer."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tf_gradcomp import reachability


@contextlib.contextmanager
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def open_address():
    with listening() as address:
        yield address


@pytest.fixture
def closed_address():
    with listening() as address:
        pass
    return address


def test_who_does_not_answer_is_named_with_the_reason(open_address, closed_address):
    nowhere = "no-such-host.invalid:2222"
    addresses = {"worker 0": open_address, "worker 1": closed_address, "worker 2": nowhere}
    missing = reachability.unanswered(addresses)
    assert list(missing) == ["worker 1", "worker 2"]
    assert missing["worker 1"] == f"{closed_address} (Connection refused)"
    assert re.fullmatch(rf"{nowhere} \(.+\)", missing["worker 2"])
    assert reachability.unanswered({}) == {}


def test_a_long_list_is_cut():
    missing = {f"worker {index}": f"host{index}:1 (why)" for index in range(10)}
    text = reachability.listed(missing)
    assert text.startswith("worker 0 at host0:1 (why), worker 1 at ")
    assert text.endswith("worker 7 at host7:1 (why) and 2 more")


def test_a_port_is_in_use_while_something_listens(open_address, closed_address):
    assert reachability.is_port_in_use(open_address)
    assert not reachability.is_port_in_use(closed_address)


def read_until(capfd, text, seconds=30):
    """What was written to stderr, at the latest when `text` is in it."""
    written, deadline = "", time.monotonic() + seconds
    while text not in written and time.monotonic() < deadline:
        time.sleep(0.05)
        written += capfd.readouterr().err
    return written


def processes_given(argument):
    """The command lines, of all processes, that hold a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            line = path.read_text(errors="replace")
            found += [line] if argument in line else []
    return found


def test_messages_name_the_missing_until_the_wait_is_over(capfd, open_address, closed_address):
    addresses = {"worker 1": open_address, "worker 2": closed_address}
    with reachability.missing_named(addresses, after=0.2):
        written = read_until(capfd, "Start every")
    assert re.match(
        rf"tf_gradcomp: after \d+ s still waiting for worker 2 at {closed_address} "
        r"\(Connection refused\)\. Start every worker",
        written,
    )
    capfd.readouterr()
    time.sleep(1)
    assert capfd.readouterr() == ("", "")


def test_a_cluster_in_which_all_answer_but_nothing_starts_is_puzzled_over(capfd, open_address):
    with reachability.missing_named({"worker 1": open_address}, after=0.2):
        assert "something answers at the addresses of all" in read_until(capfd, "its own?")


def test_a_quick_start_says_nothing_and_leaves_nothing(capfd, closed_address):
    with reachability.missing_named({"worker 1": closed_address}):
        time.sleep(0.5)
        assert len(processes_given(closed_address)) == 1
    assert processes_given(closed_address) == []
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_start_comes_through(closed_address):
    with pytest.raises(KeyError), reachability.missing_named({"worker 1": closed_address}):
        raise KeyError


def test_messages_end_with_a_worker_that_is_killed(closed_address):
    program = f"""
        import os, signal
        from tf_gradcomp import reachability
        with reachability.missing_named({{"worker 1": {closed_address!r}}}, after=1.0):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stderr=subprocess.PIPE
    )
    # The end of stderr shows that nobody is left who could write to it.
    assert process.communicate(timeout=60) == (None, b"")
    assert process.returncode == -signal.SIGKILL


def test_without_a_process_training_starts_all_the_same(monkeypatch, closed_address):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with reachability.missing_named({"worker 1": closed_address}):
        pass
