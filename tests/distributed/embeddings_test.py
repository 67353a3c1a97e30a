# SPDX-License-Identifier: Apache-2.0
"""Bytes of two large embeddings under ``model.fit``: as many as the rows touched ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import own_network
import pytest

pytestmark = pytest.mark.distributed

ROWS = 128, 256, 512  # of each table, that a worker touches in a step
SIZES = 20_000, 200_000  # of each table, in rows; a bitmap of them would not be shorter than a list
ROW_BYTES = 4 * (1 + 32)  # an index and the columns
REPEATED = SIZES[0], ROWS[0], 4
CASES = [*((size, rows, 1) for size in SIZES for rows in ROWS), REPEATED]

PROGRAM = """
import json, sys, cluster
print(json.dumps(cluster.run_cluster("embeddings", sys.argv[1:])[0].result))
"""

Figures = dict[tuple[int, int, int], dict[str, Any]]


@pytest.fixture(name="figures", scope="module")
def train() -> Figures:
    """What `CompressionMonitor` says of each case, in a network without other programs."""
    cases = [",".join(map(str, case)) for case in CASES]
    result = subprocess.run(
        [*own_network.prefix(), sys.executable, "-c", PROGRAM, *cases],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return dict(zip(CASES, json.loads(result.stdout.splitlines()[-1])["figures"], strict=True))


def test_bytes_on_the_wire_grow_with_the_rows_touched(figures: Figures):
    for size in SIZES:
        counted = [figures[size, rows, 1]["sent_bytes"] for rows in ROWS]
        touched = 2 * np.array(ROWS)  # two tables
        slope, fixed = np.polyfit(touched, counted, 1)
        # Two workers: each sends its rows once. Headers are less than 1 % in packets of 64 kB.
        assert slope == pytest.approx(ROW_BYTES, rel=0.02)
        np.testing.assert_allclose(slope * touched + fixed, counted, rtol=0.01)
        # Without rows: the dense layers, the loss, and what workers say to each other besides.
        dense = figures[size, ROWS[0], 1]["payload_bytes"]
        assert dense < fixed < dense + 10_000


def test_bytes_on_the_wire_do_not_depend_on_the_size_of_the_tables(figures: Figures):
    small, large = SIZES
    for rows in ROWS:
        ratio = figures[large, rows, 1]["sent_bytes"] / figures[small, rows, 1]["sent_bytes"]
        assert ratio == pytest.approx(1, rel=0.01)


def test_a_row_travels_once_however_often_a_batch_has_it(figures: Figures):
    size, rows, _ = REPEATED
    once, often = figures[size, rows, 1], figures[REPEATED]
    assert often["row_sparse_bytes"] == once["row_sparse_bytes"]
    assert often["sent_bytes"] == pytest.approx(once["sent_bytes"], rel=0.01)


def test_the_monitor_counts_what_the_format_says(figures: Figures):
    for (_, rows, _), figure in figures.items():
        # The number of rows of each table, and two payloads with a word of padding.
        assert figure["row_sparse_bytes"] == 2 * rows * ROW_BYTES + 4 * (2 + 1 + 1)
