# SPDX-License-Identifier: Apache-2.0
"""Output, exit codes, and that nothing survives: with real processes that misbehave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux'")

# Prints the pids of itself and of a child in its process group, and runs on.
_SLEEPER = """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print("pids", os.getpid(), child.pid, flush=True)
    time.sleep(60)
"""


def read_pids(process: subprocess.Popen[bytes], workers: int) -> list[tuple[int, int]]:
    """Reads what `_SLEEPER` printed: (worker, child) of each worker."""
    pairs = []
    while len(pairs) < workers:
        line = process.stdout.readline().decode()
        assert line, process.stderr.read().decode()
        if match := re.search(r"pids (\d+) (\d+)", line):
            pairs.append((int(match[1]), int(match[2])))
    return pairs


def flat(pairs: list[tuple[int, int]]) -> list[int]:
    return [pid for pair in pairs for pid in pair]


# Output.


def test_stdout_and_stderr_keep_their_order(command_line):
    script = command_line.script(
        """
        for i in range(300):
            print(i, file=sys.stderr if i % 3 else sys.stdout)
        """
    )
    code, out, _ = command_line.run("launch", "-n", "2", script)
    assert code == 0
    for worker in range(2):
        prefix = f"[worker {worker}] "
        mine = [line.removeprefix(prefix) for line in out.splitlines() if line.startswith(prefix)]
        assert mine == [str(i) for i in range(300)]


def test_large_outputs_stay_whole_lines(command_line):
    script = command_line.script(
        """
        out = open(1, "w", buffering=1 << 16)  # writes that end anywhere in a line
        for i in range(100_000):
            print(INDEX, i, "x" * (i % 50), file=out)
        """
    )
    code, out, _ = command_line.run("launch", "-n", "2", script)
    assert code == 0
    seen = [0, 0]
    for line in out.splitlines():
        worker = int(line[len("[worker ")])
        i = seen[worker]
        assert line == f"[worker {worker}] {worker} {i} {'x' * (i % 50)}"
        seen[worker] += 1
    assert seen == [100_000, 100_000]


def test_progress_bars_garbage_and_partial_lines(command_line):
    script = command_line.script(
        r"""
        out = sys.stdout.buffer
        for i in range(101):
            out.write(b"\r%3d%%" % i)
            out.flush()
        out.write(b"\n\xff caf\xc3")
        out.flush()
        time.sleep(0.1)
        out.write(b"\xa9\nno line feed")
        """
    )
    code, out, _ = command_line.run("launch", "-n", "1", script)
    assert code == 0
    assert out == "[worker 0] 100%\n[worker 0] \ufffd café\n[worker 0] no line feed\n"


def test_partial_line_of_a_killed_worker_is_shown(command_line):
    script = command_line.script(
        """
        print("working on", end=" ", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    code, out, err = command_line.run("launch", "-n", "1", script)
    assert code == 128 + signal.SIGKILL
    assert out == "[worker 0] working on \n"
    assert "worker 0 was killed by SIGKILL" in err


def test_characters_that_the_output_lacks_are_replaced(command_line):
    script = command_line.script("sys.stdout.buffer.write('café \u2713\\n'.encode())")
    process = command_line.start("launch", "-n", "1", script, PYTHONIOENCODING="latin-1")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.decode("latin-1") == "[worker 0] café ?\n"


def test_slow_reader_gets_everything(command_line):
    # More than one pipe holds, less than two: the worker ends while the launcher waits for us.
    script = command_line.script("for i in range(1500): print(f'{i:060}')")
    process = command_line.start("launch", "-n", "1", script)
    time.sleep(1.5)
    code, out, _ = command_line.finish(process)
    assert code == 0
    assert out.splitlines() == [f"[worker 0] {i:060}" for i in range(1500)]


def test_reader_that_leaves_ends_the_workers(command_line, still_running):
    script = command_line.script(
        """
        print("pids", os.getpid(), os.getpid(), flush=True)
        while True:
            print("more")
            time.sleep(0.01)
        """
    )
    process = command_line.start("launch", "-n", "2", script)
    pids = flat(read_pids(process, workers=2))
    process.stdout.close()
    assert process.wait(timeout=10) == 128 + signal.SIGPIPE
    assert not still_running(pids, 0)
    assert "Traceback" not in process.stderr.read().decode()


# One worker fails.


@pytest.mark.parametrize(
    ("statement", "code", "how"),
    [
        ("sys.exit(3)", 3, "failed with exit code 3"),
        ("raise ValueError('bad batch')", 1, "failed with exit code 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV, "was killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL, "was killed by SIGKILL"),
    ],
)
def test_failure_ends_the_others(command_line, still_running, statement, code, how):
    script = command_line.script(
        f"""
        if INDEX == 2:
            for i in range(30):
                print("line", i)
            {statement}
        """,
        _SLEEPER,
    )
    start = time.monotonic()
    actual, out, err = command_line.run("launch", "-n", "4", script)
    assert actual == code
    assert time.monotonic() - start < 8
    pids = [int(pid) for pair in re.findall(r"pids (\d+) (\d+)", out) for pid in pair]
    assert not still_running(pids, 0)
    own = [line for line in out.splitlines() if line.startswith("[worker 2] ")]
    report = err.splitlines()
    headline = next(i for i, line in enumerate(report) if line.endswith("; its last lines:"))
    assert f"worker 2 {how}" in report[headline]
    assert report[headline + 1 : -1] == own[-20:]
    assert f"worker 2 {how}" in report[-1]
    assert "run the same command again" in report[-1]


def test_failure_without_output(command_line):
    script = command_line.script("sys.exit(7)")
    code, out, err = command_line.run("launch", "-n", "1", script)
    assert (code, out) == (7, "")
    assert "worker 0 failed with exit code 7; it printed nothing" in err


def test_first_failure_is_reported_not_its_consequences(command_line):
    # The lock stands for a collective: those who wait for it learn of the end of its holder.
    script = command_line.script(
        """
        import fcntl
        lock = open("lock", "w")
        if INDEX == 2:
            fcntl.flock(lock, fcntl.LOCK_EX)
            open("ready", "w").close()
            time.sleep(0.3)
            os._exit(5)
        while not os.path.exists("ready"):
            time.sleep(0.01)
        fcntl.flock(lock, fcntl.LOCK_SH)
        time.sleep(0.1)
        print("collective failed")
        sys.exit(1)
        """
    )
    code, out, err = command_line.run("launch", "-n", "3", script)
    assert code == 5
    assert out.count("collective failed") == 2  # they had the time to say so
    assert "worker 2 failed with exit code 5; it printed nothing" in err
    for other in (0, 1):
        assert f"worker {other} failed with exit code 1, after that" in err


def test_early_success_of_one_worker_is_no_failure(command_line):
    script = command_line.script("time.sleep(0.8 * INDEX); print('done')")
    code, out, _ = command_line.run("launch", "-n", "2", script)
    assert code == 0
    assert out == "[worker 0] done\n[worker 1] done\n"


def test_missing_module_fails_like_python(command_line):
    code, out, err = command_line.run("launch", "-n", "2", "-m", "no_such_module")
    assert code == 1
    assert "No module named no_such_module" in out
    assert "failed with exit code 1" in err


# Signals to the launcher.


@pytest.mark.parametrize(
    ("kill", "signum"),
    [
        (os.kill, signal.SIGINT),
        (os.killpg, signal.SIGINT),  # Ctrl-C
        (os.kill, signal.SIGTERM),
        (os.kill, signal.SIGHUP),
    ],
)
def test_signal_ends_all(command_line, still_running, kill, signum):
    script = command_line.script(_SLEEPER)
    # What a signal ends is not started again.
    process = command_line.start("launch", "-n", "3", "--restarts", "2", script)
    pids = flat(read_pids(process, workers=3))
    kill(process.pid, signum)
    code, _, err = command_line.finish(process)
    assert code == 128 + signum
    assert not still_running(pids, 0)
    assert "Traceback" not in err


def test_two_signals_at_once_are_one(command_line):
    # `timeout` signals its child and then its group; workers keep their grace.
    script = command_line.script(
        """
        def save(*_):
            time.sleep(0.4)
            print("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("pids", os.getpid(), os.getpid(), flush=True)
        time.sleep(60)
        """
    )
    process = command_line.start("launch", "-n", "2", script)
    read_pids(process, workers=2)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    code, out, _ = command_line.finish(process)
    assert code == 128 + signal.SIGTERM
    assert out.count("saved") == 2


_STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def test_stubborn_worker_is_killed_after_the_grace(command_line, still_running):
    script = command_line.script(_STUBBORN, _SLEEPER)
    process = command_line.start("launch", "-n", "2", "--grace", "0.7", script)
    pids = flat(read_pids(process, workers=2))
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, _, err = command_line.finish(process)
    assert code == 128 + signal.SIGTERM
    assert 0.7 <= time.monotonic() - start < 5
    assert not still_running(pids, 0)
    assert "worker 1 did not end within 0.7 s" in err


def test_later_signal_kills_at_once(command_line, still_running):
    script = command_line.script(_STUBBORN, _SLEEPER)
    process = command_line.start("launch", "-n", "2", "--grace", "60", script)
    pids = flat(read_pids(process, workers=2))
    process.send_signal(signal.SIGINT)
    time.sleep(1.3)
    assert still_running(pids, 0) == pids
    process.send_signal(signal.SIGINT)
    code, _, _ = command_line.finish(process)
    assert code == 128 + signal.SIGINT
    assert not still_running(pids, 0)


def test_nohup_keeps_its_meaning(command_line, still_running):
    script = command_line.script(_SLEEPER)
    process = command_line.start("launch", "-n", "1", script, ignore=signal.SIGHUP)
    pids = flat(read_pids(process, workers=1))
    process.send_signal(signal.SIGHUP)
    assert still_running(pids, 0.5) == pids
    process.send_signal(signal.SIGTERM)
    assert command_line.finish(process)[0] == 128 + signal.SIGTERM


# Nothing survives.


@linux_only
@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_killed_launcher_leaves_nothing(command_line, still_running, kill):
    script = command_line.script(_STUBBORN, _SLEEPER)
    process = command_line.start("launch", "-n", "3", script)
    pids = flat(read_pids(process, workers=3)) + children(process.pid)
    kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not still_running(pids, 5)  # workers, their children, and the guardian


@linux_only
def test_killed_launcher_and_guardian_leave_no_worker(command_line, still_running):
    script = command_line.script(_STUBBORN, _SLEEPER)
    process = command_line.start("launch", "-n", "2", script)
    pairs = read_pids(process, workers=2)
    workers = [worker for worker, _ in pairs]
    (guardian,) = set(children(process.pid)) - set(workers)
    try:
        os.kill(guardian, signal.SIGKILL)
        assert not still_running([guardian], 5)
        assert still_running(workers, 0.2) == workers
        process.kill()
        process.wait()
        assert not still_running(workers, 5)
    finally:
        for _, child in pairs:
            os.kill(child, signal.SIGKILL)


@linux_only
def test_killed_guardian_harms_nobody(command_line):
    script = command_line.script("print('pids', os.getpid(), 0); time.sleep(0.5); print('done')")
    process = command_line.start("launch", "-n", "1", script)
    ((worker, _),) = read_pids(process, workers=1)
    (guardian,) = set(children(process.pid)) - {worker}
    os.kill(guardian, signal.SIGKILL)
    code, out, _ = command_line.finish(process)
    assert (code, out) == (0, "[worker 0] done\n")


def test_what_a_worker_left_in_its_group_is_ended(command_line, still_running):
    script = command_line.script(
        """
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print("pids", os.getpid(), child.pid)
        """
    )
    process = command_line.start("launch", "-n", "1", script)
    pids = flat(read_pids(process, workers=1))
    assert command_line.finish(process)[0] == 0
    assert not still_running(pids, 0)


@linux_only
def test_launcher_reaps_orphans(command_line):
    # Where the first process of a container reaps nothing, a dead group would seem to live on.
    orphan = "import os, time\nwhile os.getppid() == {}: time.sleep(0.01)\nprint(os.getppid())"
    script = command_line.script(
        f"subprocess.Popen([sys.executable, '-c', {orphan!r}.format(os.getpid())])"
    )
    process = command_line.start("launch", "-n", "1", script)
    code, out, _ = command_line.finish(process)
    assert (code, out) == (0, f"[worker 0] {process.pid}\n")


def test_detached_process_does_not_hold_the_launcher(command_line):
    script = command_line.script(
        """
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(20)"], start_new_session=True
        )
        print("pids", os.getpid(), child.pid)
        """
    )
    process = command_line.start("launch", "-n", "1", script)
    ((_, detached),) = read_pids(process, workers=1)
    try:
        start = time.monotonic()
        assert process.wait(timeout=15) == 0
        assert time.monotonic() - start < 8
    finally:
        os.kill(detached, signal.SIGKILL)


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]
