# SPDX-License-Identifier: Apache-2.0
"""The other examples run, on a text made here."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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
        [sys.executable, *map(str, command)],
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
    assert len(rows) == 2 * (1 + 2 * 4)  # headers, and 4 layers of each model at 2 steps
    assert any(row[6].strip() == "hidden" for row in rows)
