# SPDX-License-Identifier: Apache-2.0
"""The demo really runs: two launches of two workers, on small images made here.

Where the system allows it, they run in a network of their own, so that nobody else's traffic is
counted. Elsewhere these tests want a quiet machine.
"""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import own_network
import pytest
import vision
from image_files import write_images

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "vision.py"

NUM_TRAIN, NUM_TEST = 2560, 330
STEPS = NUM_TRAIN // 128

# Kernels and biases of the CNN, by hand: (3,3,1,32) (3,3,32,64) (9216,352) (352,10).
PARAMETERS = (288 + 32) + (18432 + 64) + (3244032 + 352) + (3520 + 10)
COMPRESSED = 18432 + 3244032  # the two of at least 4,096 elements


def fft_payload_bytes(num_elements, density, bits, chunk=4096):
    """Length of one payload, from FORMAT.md."""
    items = math.ceil(num_elements / chunk) * (chunk // 2 + 1)
    kept = math.ceil(density * items)
    bitmap_words = math.ceil(items / 32)
    low_bits = math.floor(math.log2(items / kept))
    low_words = math.ceil(kept * low_bits / 32)
    elias_fano_words = low_words + math.ceil((kept + math.ceil(items / 2**low_bits)) / 32)
    is_shorter = elias_fano_words < 2 / 3 * bitmap_words
    code_words = 3 + math.ceil(2 * kept * bits / 32)
    return 4 * ((elias_fano_words if is_shorter else bitmap_words) + code_words)


@pytest.fixture
def images(tmp_path, rng):
    return write_images(tmp_path / "images", NUM_TRAIN, NUM_TEST, rng)


def run(*command, timeout=400):
    environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return subprocess.run(
        [*own_network.prefix(), sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.slow
@pytest.mark.distributed
def test_demo_then_one_run_of_its_own(images, tmp_path):
    arguments = ("--data", images, "--epochs", 1, "--compression", "fft:density=0.15,bits=10")
    demo = run(SCRIPT, *arguments, "--log-dir", tmp_path / "logs")
    assert demo.returncode == 0, demo.stdout + demo.stderr

    # The table.
    shown = demo.stdout
    assert f"{PARAMETERS:,} parameters, 2 workers, 1 epochs of {STEPS} steps" in shown
    assert f"trained on the images in {images}" in shown
    row = r" +([\d.]+) % +([\d.]+) +([\d.]+) +([\d.]+) ms +([\d.]+)$"
    dense = re.search("^dense" + row, shown, re.MULTILINE)
    compressed = re.search(r"^fft\S*" + row, shown, re.MULTILINE)
    assert dense, shown
    assert compressed, shown
    # Dense: each of two workers sends a ring all-reduce's 2 (W - 1) / W = 1 times the gradients.
    dense_mb, compressed_mb, ratio = float(dense[2]), float(compressed[2]), float(compressed[3])
    assert dense_mb >= 4 * PARAMETERS / 1e6 - 0.005
    assert compressed_mb >= (payload := expected_payload_bytes()) / 1e6 - 0.005
    assert ratio >= 12
    assert ratio == pytest.approx(dense_mb / compressed_mb, abs=0.1)
    assert float(dense[1]) > 50  # chance is 10
    assert float(compressed[1]) > 50
    assert "too short to say whether compression pays" in shown  # 20 steps

    # The TensorBoard logs.
    logs = re.search(r"^TensorBoard log: tensorboard --logdir (.+)$", shown, re.MULTILINE)
    for name in ("dense-seed0", "compressed-seed0"):
        assert list(Path(logs[1], name).glob("events.out.tfevents.*"))

    # A worker's report, of a run with the same seed: it must repeat the demo's.
    report = tmp_path / "report.json"
    launch = ("-m", "tf_gradcomp", "launch", "-n", 2, SCRIPT, *arguments)
    one = run(*launch, "--log-dir", tmp_path / "one", "--report", report)
    assert one.returncode == 0, one.stdout + one.stderr
    result = json.loads(report.read_text(encoding="utf-8"))
    assert f"{100 * result['test_accuracy']:.2f}" == compressed[1]
    shown_losses = re.findall(r"loss: ([\d.e-]+)", shown)
    assert result["test_loss"] == pytest.approx(float(shown_losses[-1]), abs=0.51e-4)
    assert result["dense_bytes"] == 4 * PARAMETERS
    assert result["payload_bytes"] == payload
    assert result["sent_bytes"] >= payload
    assert result["step_ms"] > 0
    assert result["workers"] == 2
    assert result["steps_per_epoch"] == STEPS
    assert result["log_dir"] == str(tmp_path / "one")


def expected_payload_bytes():
    dense_rest = 4 * (PARAMETERS - COMPRESSED)
    return fft_payload_bytes(COMPRESSED, density=0.15, bits=10) + dense_rest


@pytest.mark.distributed
def test_failure_of_a_worker_ends_the_demo_with_its_code(images, tmp_path):
    (images / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0")
    demo = run(SCRIPT, "--data", images, "--log-dir", tmp_path / "logs")
    assert demo.returncode == 1
    assert "truncated within its header" in demo.stdout
    assert "compressed gradients" not in demo.stdout
    assert "test accuracy" not in demo.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--compression", "fft:density=2"), "density must be in (0, 1.0], got 2"),
        (("--data", "/nowhere"), "/nowhere has neither train-images-idx3-ubyte nor"),
        (("--epochs", "0"), "--epochs must be at least 1, got 0"),
        (("--limit-train", "-5"), "--limit-train must be at least 1, got -5"),
        (("--min-elements", "0"), "--min-elements must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused_before_training(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["vision.py", *arguments])
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(SystemExit) as exit_:
        vision.main()
    shown = f"{exit_.value.code}{capsys.readouterr().err}"
    assert message in shown
    assert exit_.value.code not in (0, None)


def report(accuracy, sent_bytes, step_ms):
    return {
        "compression": "fft",
        "workers": 2,
        "epochs": 3,
        "steps_per_epoch": 468,
        "parameters": PARAMETERS,
        "keras": "keras 3.15.1",
        "data": "the images in a folder",
        "test_accuracy": accuracy,
        "sent_bytes": sent_bytes,
        "step_ms": step_ms,
    }


def table(capsys, dense, compressed):
    vision.print_comparison(dense, compressed)
    shown = capsys.readouterr().out
    return {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line}, shown


def test_table_averages_over_seeds(capsys):
    dense = [report(0.90, 13e6, 80.0), report(0.92, 13e6, 84.0)]
    compressed = [report(0.89, 1e6, 120.0), report(0.88, 1e6, 126.0)]
    rows, shown = table(capsys, dense, compressed)
    assert rows["dense"] == ["91.00", "+-", "1.00", "%", "13.00", "1.0", "82.0", "ms", "1.00"]
    assert rows["fft"] == ["88.50", "+-", "0.50", "%", "1.00", "13.0", "123.0", "ms", "1.50"]
    assert "2 seeds" in shown
    assert "did not pay here: a step took 50% longer" in shown


def test_table_of_one_seed_without_counted_bytes(capsys):
    rows, shown = table(capsys, [report(0.9, None, 80.0)], [report(0.9, None, 60.0)])
    assert rows["dense"] == ["90.00", "%", "-", "1.0", "80.0", "ms", "1.00"]
    assert rows["fft"] == ["90.00", "%", "-", "-", "60.0", "ms", "0.75"]
    assert "paid: a step took 25% less time" in shown


@pytest.mark.parametrize("relative", [0.971, 1.0, 1.03])
def test_small_differences_of_step_time_are_called_noise(relative):
    assert "no more than the noise" in vision.verdict(relative)
