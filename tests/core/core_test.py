# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the C++ tests of the core under sanitizers, and vectorised.

Neither TensorFlow nor a built extension is needed, only g++.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from core_build import BUILDS, CHECKOUT, COMMON_FLAGS, CoreBuild, run

TESTS = sorted((CHECKOUT / "tests" / "core").glob("*_core_test.cc"))


@pytest.fixture(scope="session", params=BUILDS)
def binaries(
    request: pytest.FixtureRequest, core_build: Callable[[str], CoreBuild]
) -> dict[str, Path]:
    """All tests of one build, by name."""
    if request.param == "avx2" and not cpu_has("avx2"):
        pytest.skip("this CPU has no AVX2")
    # The tests themselves need no speed.
    return core_build(request.param).link(TESTS, flags=["-O1"])


def cpu_has(flag: str) -> bool:
    cpu_info = Path("/proc/cpuinfo")
    return cpu_info.is_file() and f" {flag} " in cpu_info.read_text(encoding="utf-8")


def test_there_are_core_tests() -> None:
    assert len(TESTS) >= 6


@pytest.mark.parametrize("name", [test.stem for test in TESTS])
def test_core(name: str, binaries: dict[str, Path]) -> None:
    run([binaries[name]])


@pytest.mark.parametrize("part", ["deadline", "release"])
def test_what_shares_data_between_threads_has_no_race(part: str, tmp_path: Path) -> None:
    sources = [
        CHECKOUT / "tests" / "core" / f"{part}_core_test.cc",
        CHECKOUT / "custom_ops" / "core" / f"{part}.cc",
    ]
    binary = tmp_path / part
    run(["g++", *COMMON_FLAGS, "-O1", "-fsanitize=thread", "-I", CHECKOUT, *sources, "-o", binary])
    result = subprocess.run([binary], capture_output=True, text=True, timeout=300)
    if "unexpected memory mapping" in result.stderr:
        # Older sanitizers do not know as much address randomization as newer kernels do.
        result = subprocess.run(
            ["setarch", "-R", binary], capture_output=True, text=True, timeout=300
        )
        if "Operation not permitted" in result.stderr:
            pytest.skip("the thread sanitizer cannot run here: address randomization")
    assert result.returncode == 0, result.stderr
