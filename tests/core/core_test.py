# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the C++ tests of the core under sanitizers, and as shipped.

Neither TensorFlow nor a built extension is needed, only g++.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
TESTS = sorted((CHECKOUT / "tests" / "core").glob("*_core_test.cc"))

COMMON_FLAGS = ["-g", "-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-pthread"]

# Plain code under the sanitizers, and the code that ships: vectorised, several variants a function.
BUILDS = {
    "sanitized": [
        "-O1",
        "-DGRADCOMP_NO_MULTIVERSION",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ],
    "shipped": ["-O3", "-fPIC"],
    # On a machine with AVX-512 the shipped code never takes its AVX2 variants.
    "avx2": ["-O3", '-DGRADCOMP_MULTIVERSION=__attribute__((target("arch=x86-64-v3")))'],
}


@pytest.fixture(scope="session", params=BUILDS)
def binaries(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """All tests of one build, by name."""
    if request.param == "avx2" and not cpu_has("avx2"):
        pytest.skip("this CPU has no AVX2")
    folder = tmp_path_factory.mktemp(f"core_{request.param}")
    compile_flags = ["g++", *COMMON_FLAGS, *BUILDS[request.param], "-I", CHECKOUT]
    sources = sorted((CHECKOUT / "custom_ops" / "core").glob("*.cc"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    binaries = {test.stem: folder / test.stem for test in TESTS}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pairs = zip(sources, objects, strict=True)
        list(pool.map(lambda pair: run([*compile_flags, "-c", pair[0], "-o", pair[1]]), pairs))
        # The tests themselves need no speed.
        links = [[*compile_flags, "-O1", t, *objects, "-o", binaries[t.stem]] for t in TESTS]
        list(pool.map(run, links))
    return binaries


def cpu_has(flag: str) -> bool:
    cpu_info = Path("/proc/cpuinfo")
    return cpu_info.is_file() and f" {flag} " in cpu_info.read_text(encoding="utf-8")


def run(command: list[str | Path]) -> None:
    """Runs `command` and fails the test with its output if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


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
