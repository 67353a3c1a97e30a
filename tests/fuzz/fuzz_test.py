# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz targets for a little while, under the address and undefined-behaviour sanitizers.

CONTRIBUTING.md says how to run one for longer, and with libFuzzer.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from core_build import CHECKOUT, CoreBuild, run

FOLDER = CHECKOUT / "tests" / "fuzz"
TARGETS = sorted(FOLDER.glob("*_fuzz.cc"))
NAMES = [target.stem for target in TARGETS]
SHARED = sorted(set(FOLDER.glob("*.cc")) - set(TARGETS))

# Few inputs run in less time than optimising takes.
FLAGS = ["-O0"]

# Reads beyond every input of more than 100 bytes.
CARELESS = """
#include <cstddef>
#include <cstdint>
#include <cstdio>
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 100) std::printf("%d", data[size]);
  return 0;
}
"""


@pytest.fixture(scope="session")
def shared_objects(core_build: Callable[[str], CoreBuild]) -> list[Path]:
    """What every target is linked with."""
    return core_build("sanitized").compile(SHARED, FLAGS)


@pytest.fixture(scope="session")
def targets(core_build: Callable[[str], CoreBuild], shared_objects: list[Path]) -> dict[str, Path]:
    """All targets, by name."""
    return core_build("sanitized").link(TARGETS, FLAGS, shared_objects)


def test_every_part_that_reads_a_payload_has_a_target() -> None:
    headers = (CHECKOUT / "custom_ops" / "core").glob("*.h")
    reads = {
        header.stem
        for header in headers
        if re.search(r"^Status \w+\(\s*const uint32_t\*", header.read_text(), re.MULTILINE)
    }
    assert "positions" in reads and "natural" in reads
    assert {f"{part}_fuzz" for part in reads} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_input_does_harm(name: str, targets: dict[str, Path], tmp_path: Path) -> None:
    run([targets[name], "-runs=600"], cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_input_of_many_does_harm(name: str, targets: dict[str, Path], tmp_path: Path) -> None:
    seconds = 60 // len(NAMES)
    run([targets[name], "-seed=2", f"-max_total_time={seconds}"], cwd=tmp_path)


def test_an_input_that_does_harm_is_kept(
    core_build: Callable[[str], CoreBuild], shared_objects: list[Path], tmp_path: Path
) -> None:
    source = tmp_path / "careless.cc"
    source.write_text(CARELESS)
    target = core_build("sanitized").link([source], FLAGS, shared_objects)["careless"]
    result = subprocess.run([target], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr
    [kept] = tmp_path.glob("crash-1-*")
    assert f"the input is in {kept.name}" in result.stderr
    again = subprocess.run([target, kept], cwd=tmp_path, capture_output=True, timeout=60)
    assert again.returncode != 0
