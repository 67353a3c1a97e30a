# SPDX-License-Identifier: Apache-2.0
"""Workers that come to grief, start again, and end where others do that were left in peace."""

import json
import os
import re
import subprocess
import sys

import cluster
import pytest

pytestmark = pytest.mark.distributed

PROGRAM = cluster.PROGRAMS / "resume.py"


def launch(folder, *arguments, workers=2, options=()):
    """Runs the program under `tf-gradcomp launch`; returns what it reported, and its output."""
    folder.mkdir(exist_ok=True)
    paths = [str(cluster.ROOT), str(cluster.ROOT / "tests" / "support")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    environment.pop("TF_CONFIG", None)
    command = [sys.executable, "-m", "tf_gradcomp", "launch", "-n", str(workers), *options]
    command += [str(PROGRAM), "--folder", str(folder), *arguments]
    process = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=300,
    )  # fmt: skip
    output = process.stdout
    assert process.returncode == 0, output[-6000:]
    reports = re.findall(rf"\[worker (\d+)\] {cluster.RESULT_MARK}(.*)", output)
    results = [json.loads(text) for _, text in sorted(reports)]
    assert len(results) == workers
    assert len({result["weights"] for result in results}) == 1
    return results[0], output


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    result, _ = launch(tmp_path_factory.mktemp("undisturbed"))
    assert result["epochs"] == [0, 1, 2, 3]
    return result


def test_a_killed_worker_starts_again_and_nothing_is_lost(undisturbed, tmp_path):
    arguments = ("--signal", "SIGKILL", "--at", "20")
    result, output = launch(tmp_path, *arguments, options=("--restarts", "1", "--grace", "1"))
    assert "worker 1 was killed by SIGKILL" in output
    assert "restart 1 of 1" in output
    # The accident happens in the third of four epochs of eight steps.
    assert result["epochs"] == [2, 3]
    assert result["weights"] == undisturbed["weights"]
    assert result["steps"] == undisturbed["steps"] == 32


def test_what_decides_on_exchanges_goes_on_where_it_was(tmp_path):
    """The accident is in the midst of an epoch, of a window's period and of a schedule."""
    undisturbed, _ = launch(tmp_path / "undisturbed", "--steered", "--epochs", "3")
    arguments = ("--steered", "--epochs", "3", "--signal", "SIGKILL", "--at", "13")
    options = ("--restarts", "1", "--grace", "1")
    result, output = launch(tmp_path / "killed", *arguments, options=options)
    assert "restart 1 of 1" in output
    assert result == undisturbed | {"epochs": [1, 2]}
    # After 24 exchanges.
    (falling,) = (d["density"] for name, d in result["decisions"].items() if "dense_1/" in name)
    assert falling == pytest.approx(0.3 + (0.02 - 0.3) * 24 / 30, rel=1e-5)
    assert len(result["decisions"]) == 3


def test_a_late_worker_is_named_and_changes_nothing(undisturbed, tmp_path):
    result, output = launch(tmp_path, "--late", "16")
    waiting = re.findall(r"\[worker (\d)\] tf_gradcomp: after \d+ s still waiting for (.*)", output)
    assert {worker for worker, _ in waiting} == {"0"}
    assert re.match(r"worker 1 at 127\.0\.0\.1:\d+ \(Connection refused\)\. Start", waiting[0][1])
    assert result == undisturbed


@pytest.mark.slow
def test_a_worker_that_comes_back_with_another_spec_is_refused_and_harms_nothing(
    undisturbed, tmp_path
):
    arguments = ("--signal", "SIGKILL", "--at", "20", "--other", "topk:density=0.2")
    result, output = launch(tmp_path, *arguments, options=("--restarts", "2", "--grace", "1"))
    assert "worker 1: compression: default topk:density=0.2" in output
    assert "restart 2 of 2" in output
    assert result["epochs"] == [2, 3]
    assert result["weights"] == undisturbed["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["0", "1"])
def test_a_stopped_worker_is_missed_and_replaced(undisturbed, tmp_path, worker):
    arguments = ("--signal", "SIGSTOP", "--worker", worker, "--timeout", "5")
    result, output = launch(tmp_path, *arguments, options=("--restarts", "1", "--grace", "1"))
    assert "restart 1 of 1" in output
    assert result["epochs"] == [1, 2, 3]
    assert result["weights"] == undisturbed["weights"]


def test_another_number_of_workers_goes_on_with_a_warning(tmp_path):
    before, _ = launch(tmp_path, "--epochs", "2")
    result, output = launch(tmp_path, "--delete", workers=3)
    assert result["epochs"] == [2, 3]
    assert "divided among 3 workers" in output
    assert result["loss"] < before["loss"]
    assert list((tmp_path / "backups").iterdir()) == []


@pytest.mark.slow
def test_decisions_go_on_with_another_number_of_workers(tmp_path):
    before, _ = launch(tmp_path, "--steered", "--epochs", "2")
    result, output = launch(tmp_path, "--steered", workers=3)
    assert result["epochs"] == [2, 3]
    assert "divided among 3 workers" in output
    assert "begins anew" not in output
    assert result["loss"] < before["loss"]
    (falling,) = (d["density"] for name, d in result["decisions"].items() if "dense_1/" in name)
    assert falling == pytest.approx(0.02, rel=1e-5)


@pytest.mark.slow
def test_backups_within_an_epoch_begin_it_again(tmp_path):
    arguments = ("--signal", "SIGKILL", "--at", "14", "--save-freq", "5")
    result, _ = launch(tmp_path, *arguments, options=("--restarts", "1", "--grace", "1"))
    assert result["epochs"] == [1, 2, 3]
    assert result["steps"] == 10 + 3 * 8


@pytest.mark.slow
def test_a_backup_of_another_model_is_refused(tmp_path):
    launch(tmp_path, "--epochs", "1")
    with pytest.raises(AssertionError, match="is of another model or optimizer"):
        launch(tmp_path, "--units", "65")
