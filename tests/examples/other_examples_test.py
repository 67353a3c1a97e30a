# SPDX-License-Identifier: Apache-2.0
"""The other examples run, on text and images made here, and on what some of them make up."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import own_network
import pytest
from image_files import write_images

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture
def text(tmp_path, rng):
    path = tmp_path / "text.txt"
    words = np.array([a + b for a in "bcdfghjklm" for b in ("a", "en", "ist", "o")])
    path.write_text(" ".join(rng.choice(words, 60_000)))
    return path


def run(*command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    result = subprocess.run(
        [*own_network.prefix(), sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_language_model_trains_on_two_workers(text):
    launch = ("-m", "tf_gradcomp", "launch", "-n", 2)
    shown = run(*launch, EXAMPLES / "language.py", "--text", text, "--steps", 8)
    assert "dct: perplexity" in shown
    assert "lstm" in shown and ": view " in shown


def test_kept_energy_is_reported_layer_by_layer(text):
    shown = run(EXAMPLES / "kept_energy.py", "--text", text, "--steps", "1,2")
    rows = [line.split("|")[1:-1] for line in shown.splitlines() if line.startswith("| ")]
    assert len(rows) == 3 + 2 * (4 + 4 + 15)  # headers, and the layers of each model at 2 steps
    assert any(row[6].strip() == "hidden" for row in rows)


@pytest.mark.distributed
def test_layers_are_compared_with_the_model_at_equal_bytes(tmp_path, rng):
    images = write_images(tmp_path / "images", 256, 100, rng)
    arguments = ("--operators", "terngrad", "--epochs", 1, "--seeds", 1)
    shown = run(
        *(EXAMPLES / "layer_or_model.py", *arguments),
        *("--data", images, "--log-dir", tmp_path / "logs"),
    )
    assert "232,922 parameters, 2 workers, 1 epochs of 2 steps, 1 seeds" in shown
    row = re.search(r"^\| TernGrad \| no \| ([\d,]+) \| ([\d,]+) \| ", shown, re.MULTILINE)
    layer, model = (int(number.replace(",", "")) for number in row.groups())
    assert 0 < layer - model <= 0.01 * model  # four more scales and headers
    assert "`dithering:block=0,kind=standard,levels=1,scope=model,transport=all_gather`" in shown


def test_floors_are_reported_with_and_without_a_remedy():
    shown = run(EXAMPLES / "theta_floor.py")
    rows = [line.split("|")[1:-1] for line in shown.splitlines() if line.startswith("| 0.")]
    assert len(rows) == 2 * 2 * 3  # noise, codecs and thetas
    assert sum(row[1].strip() != "-" for row in rows) == 2 * 3
    assert all(float(constant) > float(growing) for _, _, constant, growing, _ in rows)


def recommend(users, items, batch, steps):
    """Returns the AUC and the three figures of bytes, by what they are of."""
    arguments = ("--users", users, "--items", items, "--batch", batch, "--steps", steps)
    shown = run("-m", "tf_gradcomp", "launch", "-n", 2, EXAMPLES / "recommender.py", *arguments)
    figures = re.findall(r"^.*  (rows|dense|counted).*: ([\d,]+)$", shown, re.MULTILINE)
    auc = re.search(r"AUC ([\d.]+)$", shown, re.MULTILINE)
    return float(auc[1]), {what: int(number.replace(",", "")) for what, number in figures}


@pytest.mark.distributed
def test_the_recommender_sends_the_rows_that_it_touches():
    auc, small = recommend(20_000, 5_000, 512, 300)
    assert auc > 0.7  # chance is 0.5
    _, large_tables = recommend(200_000, 50_000, 512, 60)
    _, large_batch = recommend(20_000, 5_000, 2048, 60)
    for figures in (small, large_tables, large_batch):
        # Two workers: each sends its payload once. Headers, and metrics of 9 kB a step or so.
        payload = figures["rows"] + figures["dense"]
        assert payload <= figures["counted"] <= 1.15 * payload + 20_000
        # Two indices and two rows of 32 values for each example at most; it is less, as some recur.
    assert small["rows"] <= 2 * 256 * 4 * 33
    # Of ten times as many users a few more are touched, not ten times as many.
    assert 1.0 <= large_tables["rows"] / small["rows"] <= 1.2
    # Four times the examples touch up to four times the rows.
    assert 2.5 <= large_batch["rows"] / small["rows"] <= 4.0
