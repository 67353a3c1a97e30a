# SPDX-License-Identifier: Apache-2.0
"""The study of accuracies: what it runs, what it keeps, and how it counts."""

import json
import sys

import accuracy
import pytest
from accuracy import TASKS

from tf_gradcomp.compression import Compression


def write_report(folder, task, spec, seed, **figures):
    path = folder / task / f"{spec}-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"compression": spec, "seed": seed, "dense_bytes": 1000, "payload_bytes": 10}
    path.write_text(json.dumps(report | figures))


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Replaces trainings by reports of made-up figures; returns the calls."""
    calls = []

    def run(task, compression, seed, path):
        calls.append((task.command[0], compression, seed))
        name = next(name for name, each in TASKS.items() if each is task)
        write_report(tmp_path, name, compression, seed, **{task.result: 0.9 - 0.01 * seed})

    monkeypatch.setattr(accuracy, "run", run)
    return calls


def study(monkeypatch, tmp_path, *arguments):
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--results", str(tmp_path), *arguments])
    accuracy.main()


def test_every_method_is_one_that_exists():
    for spec in accuracy.METHODS.values():
        assert str(Compression.from_spec(spec))


def test_what_has_been_run_is_not_run_again(runs, monkeypatch, tmp_path):
    write_report(tmp_path, "vision", "fft", 0, test_accuracy=0.8)
    arguments = ("--tasks", "vision", "--methods", "dense", "FFT", "--seeds", "2")
    study(monkeypatch, tmp_path, *arguments)
    assert runs == [
        ("vision.py", spec, seed) for seed, spec in ((0, "none"), (1, "none"), (1, "fft"))
    ]
    study(monkeypatch, tmp_path, *arguments)
    assert len(runs) == 3


def test_differences_are_between_runs_of_the_same_seed(runs, monkeypatch, tmp_path, capsys):
    for seed, (dense, fft) in enumerate([(0.90, 0.89), (0.92, 0.93)]):
        write_report(tmp_path, "vision", "none", seed, test_accuracy=dense)
        write_report(tmp_path, "vision", "fft", seed, test_accuracy=fft)
    # A seed without a dense run counts for the mean alone.
    write_report(tmp_path, "vision", "fft", 2, test_accuracy=0.85)
    arguments = ("--tasks", "vision", "--methods", "dense", "FFT", "--only-print", "--seeds", "3")
    study(monkeypatch, tmp_path, *arguments)
    shown = capsys.readouterr().out
    assert runs == []
    assert "| dense (`none`) | 91.00 +- 1.00 |  | 90.00, 92.00 | 10 | 100.0 |" in shown
    assert "| FFT (`fft`) | 89.00 +- 4.00 | +0.00 +- 1.00 | 89.00, 93.00, 85.00 |" in shown


def test_perplexities_are_compared_in_percent(runs, monkeypatch, tmp_path, capsys):
    write_report(tmp_path, "language", "none", 0, perplexity=200.0)
    write_report(tmp_path, "language", "natural", 0, perplexity=202.0)
    arguments = ("--tasks", "language", "--methods", "dense", "C_nat", "--seeds", "1")
    study(monkeypatch, tmp_path, *arguments)
    assert "| C_nat (`natural`) | 202.00 | +1.00 | 202.00 | 10 | 100.0 |" in capsys.readouterr().out


def test_a_run_that_fails_ends_the_study_and_leaves_no_report(monkeypatch, tmp_path):
    monkeypatch.setattr(accuracy, "FOLDER", tmp_path)
    (tmp_path / "vision.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(SystemExit) as ended:
        accuracy.run(TASKS["vision"], "none", 0, tmp_path / "vision" / "none-0.json")
    assert ended.value.code not in (0, None)
    assert list((tmp_path / "vision").iterdir()) == []
