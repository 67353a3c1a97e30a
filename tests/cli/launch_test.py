# SPDX-License-Identifier: Apache-2.0
"""What workers are given: addresses, environment, arguments. And what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import socket

import pytest

_REPORT = """
    report = {"config": json.loads(os.environ["TF_CONFIG"]), "argv": sys.argv[1:],
              "threads": os.environ["TF_NUM_INTRAOP_THREADS"], "path": sys.path[0],
              "python": sys.executable, "color": os.environ.get("COLOR")}
    print(json.dumps(report))
"""


def reports(stdout: str) -> list[dict]:
    """What the workers reported, by worker."""
    by_worker = {}
    for line in stdout.splitlines():
        match = re.fullmatch(r"\[worker +(\d+)\] (\{.*\})", line)
        assert match, line
        by_worker[int(match[1])] = json.loads(match[2])
    return [by_worker[index] for index in range(len(by_worker))]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def test_each_worker_gets_its_tf_config(command_line):
    script = command_line.script(
        _REPORT,
        """
    import socket
    host, port = report["config"]["cluster"]["worker"][INDEX].split(":")
    with socket.socket() as server:
        server.bind((host, int(port)))  # still free, and on this machine
        """,
    )
    code, out, err = command_line.run("launch", "-n", "3", script)
    assert code == 0, err
    configs = [report["config"] for report in reports(out)]
    addresses = configs[0]["cluster"]["worker"]
    assert len(set(addresses)) == 3
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in addresses)
    for index, config in enumerate(configs):
        assert config == {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
    assert all(address in err for address in addresses)


def test_prefixes_are_aligned(command_line):
    script = command_line.script("print('hello')")
    code, out, _ = command_line.run("launch", "-n", "11", script)
    assert code == 0
    assert sorted(out.splitlines()) == sorted(f"[worker {i:2}] hello" for i in range(11))


@pytest.mark.parametrize("form", ["script", "after dashes", "module"])
def test_arguments_reach_the_script_unchanged(command_line, form):
    script = command_line.script(_REPORT)
    arguments = ["--", "-n", "7", "--env", "a b", "", "-m", "é", "--help", "--threads=9"]
    target = {"script": [script], "after dashes": ["--", script], "module": ["-m", "train"]}[form]
    code, out, err = command_line.run("launch", "-n", "2", *target, *arguments)
    assert code == 0, err
    assert [report["argv"] for report in reports(out)] == [arguments, arguments]


def test_module_form_is_python_s(command_line):
    (command_line.directory / "project").mkdir()
    command_line.script(_REPORT, name="project/__main__.py")
    code, out, err = command_line.run("launch", "-n1", "-mproject", "x")
    assert code == 0, err
    (report,) = reports(out)
    assert report["argv"] == ["x"]
    assert os.path.realpath(report["path"]) == os.path.realpath(command_line.directory)


def test_script_named_like_an_option(command_line):
    script = command_line.script(_REPORT, name="-V.py")
    code, out, err = command_line.run("launch", "-n", "1", "--", script)
    assert code == 0, err
    assert len(reports(out)) == 1


def test_threads_share_the_cores(command_line):
    script = command_line.script(_REPORT)
    cores = len(os.sched_getaffinity(0))

    def threads(*options: str, **variables: str) -> list[str]:
        code, out, err = command_line.run("launch", *options, script, **variables)
        assert code == 0, err
        return [report["threads"] for report in reports(out)]

    assert threads("-n", "1") == [str(cores)]
    assert threads("-n", "2") == [str(max(1, cores // 2))] * 2
    assert threads("-n", str(cores + 1)) == ["1"] * (cores + 1)
    assert threads("-n", "1", TF_NUM_INTRAOP_THREADS="5") == ["5"]
    assert threads("-n", "1", "--threads", "3", TF_NUM_INTRAOP_THREADS="5") == ["3"]


def test_environment_is_inherited_and_extended(command_line):
    script = command_line.script(_REPORT)
    _, out, _ = command_line.run("launch", "-n", "2", script, COLOR="red")
    assert [report["color"] for report in reports(out)] == ["red", "red"]
    _, out, _ = command_line.run("launch", "-n", "2", "--env", "COLOR=a=b", script, COLOR="red")
    assert [report["color"] for report in reports(out)] == ["a=b", "a=b"]


def test_port_base(command_line):
    script = command_line.script(_REPORT)
    base = free_port()
    code, out, err = command_line.run("launch", "-n", "1", "--host-port-base", str(base), script)
    assert code == 0, err
    assert reports(out)[0]["config"]["cluster"]["worker"] == [f"127.0.0.1:{base}"]

    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        taken = server.getsockname()[1]
        code, out, err = command_line.run("launch", "-n1", f"--host-port-base={taken}", script)
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"tf-gradcomp launch: error: cannot use port {taken}: .*\n", err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "2"], "no script given"),
        (["-n", "2", "--"], "no script given"),
        (["-n", "2", "-m"], "-m needs the name of a module"),
        (["-n", "2", "missing.py"], "script 'missing.py' does not exist"),
        (["-n", "2", "-"], "script '-' does not exist"),
        (["-n", "0", "train.py"], "-n must be at least 1, got 0"),
        (["-n", "-3", "train.py"], "-n must be at least 1, got -3"),
        (["-n", "2", "--threads", "0", "train.py"], "--threads must be at least 1, got 0"),
        (["-n", "2", "--restarts", "-1", "train.py"], "--restarts must be at least 0, got -1"),
        (["-n", "2", "--grace", "-1", "train.py"], "--grace must be at least 0 seconds, got -1"),
        (["-n", "2", "--grace", "nan", "train.py"], "--grace must be at least 0 seconds, got nan"),
        (["-n", "2", "--env", "COLOR", "train.py"], "--env takes NAME=VALUE, got 'COLOR'"),
        (["-n", "2", "--env", "=red", "train.py"], "--env takes NAME=VALUE, got '=red'"),
        (["-n", "2", "--env", "TF_CONFIG={}", "train.py"], "--env cannot set TF_CONFIG"),
        (["-n", "2", "--host-port-base", "65535", "train.py"], "must be in 1..65534 for 2 workers"),
    ],
)
def test_refusals_are_one_line(command_line, arguments, message):
    command_line.script("print('started')")
    code, out, err = command_line.run("launch", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tf-gradcomp launch: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_refuses_to_run_inside_a_cluster(command_line):
    script = command_line.script("print('started')")
    code, out, err = command_line.run("launch", "-n", "2", script, TF_CONFIG="{}")
    assert (code, out) == (2, "")
    assert "TF_CONFIG is already set" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["launch", "train.py"], ["launch", "-n", "x", "train.py"]])
def test_argparse_refuses_the_rest(command_line, arguments):
    command_line.script("print('started')")
    code, out, err = command_line.run(*arguments)
    assert (code, out) == (2, "")
    assert "-n" in err


def test_help_and_version(command_line):
    code, out, _ = command_line.run("launch", "--help")
    assert code == 0
    assert "TF_NUM_INTRAOP_THREADS" in out
    code, out, _ = command_line.run("--version")
    assert code == 0
    assert re.fullmatch(r"tf-gradcomp \d+\.\d+\.\S+\n", out)


def test_command_line_needs_no_tensorflow(command_line):
    blocker = command_line.directory / "blocked" / "tensorflow.py"
    blocker.parent.mkdir()
    blocker.write_text("raise SystemExit('tensorflow was imported')")
    script = command_line.script("print('hello')")
    code, out, err = command_line.run("launch", "-n", "1", script, PYTHONPATH=str(blocker.parent))
    assert (code, out) == (0, "[worker 0] hello\n"), err


_FAILS_TWICE = """
    from pathlib import Path
    runs = Path(sys.argv[1])
    if INDEX == 1:
        runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
        if len(runs.read_text()) <= 2:
            sys.exit(7)
"""


@pytest.mark.parametrize(("restarts", "code"), [(1, 7), (2, 0), (5, 0)])
def test_failed_workers_start_again_as_often_as_allowed(command_line, tmp_path, restarts, code):
    runs = tmp_path / "runs"
    script = command_line.script(_FAILS_TWICE)
    arguments = ("launch", "-n", "2", "--restarts", str(restarts), script, str(runs))
    actual, _, err = command_line.run(*arguments)
    assert actual == code, err
    assert len(runs.read_text()) == min(restarts + 1, 3)
    assert f"restart 1 of {restarts}\n" in err
    assert (f"restart 2 of {restarts}\n" in err) == (restarts >= 2)
    assert "restart 3" not in err
    last = err.splitlines()[-1]
    assert ("worker 1 failed with exit code 7 after 1 restart. Mend what its log" in last) == (
        code == 7
    )


def test_the_last_line_says_who_died_and_how_to_go_on(command_line):
    script = command_line.script("if INDEX == 1: os.kill(os.getpid(), signal.SIGKILL)")
    code, _, err = command_line.run("launch", "-n", "2", script)
    assert code == 128 + signal.SIGKILL
    last = err.splitlines()[-1]
    assert last.startswith("tf-gradcomp launch: worker 1 was killed by SIGKILL")
    assert "run the same command again, or let --restarts N do that" in last


@pytest.mark.parametrize("options", [[], ["--restarts", "3"]])
def test_runs_that_end_well_get_no_advice(command_line, options):
    _, _, err = command_line.run("launch", "-n", "2", *options, command_line.script("pass"))
    assert "again" not in err
