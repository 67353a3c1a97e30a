# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels against the core: on an emulated device always, and on a GPU where there is one.

The emulated device (cuda_emulation.h) runs the very sources that nvcc compiles, under the address
and undefined-behaviour sanitizers. It needs g++ only: neither TensorFlow nor CUDA.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from core_build import CHECKOUT, CoreBuild, run

CUDA = sorted((CHECKOUT / "custom_ops" / "cuda").glob("*_cuda.cu.cc"))
CORE = sorted((CHECKOUT / "custom_ops" / "core").glob("*.cc"))
TESTS = sorted((CHECKOUT / "tests" / "cuda").glob("*_cuda_test.cc"))
# What has kernels of its own, which nvcc would have to compile.
EMULATED_TESTS = [
    CHECKOUT / "tests" / "cuda" / "cuda_emulation_test.cc",
    CHECKOUT / "tests" / "cuda" / "block_scan_emulated_test.cc",
]

HOST_FLAGS = ["-g", "-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-pthread"]
EMULATION_FLAGS = [
    *HOST_FLAGS,
    "-O1",
    "-Werror",
    # Kernels write 16-bit indices into memory that hosts read as 32-bit words.
    "-fno-strict-aliasing",
    "-DGRADCOMP_CUDA_EMULATION",
    "-DGRADCOMP_NO_MULTIVERSION",
    "-fsanitize=address,undefined",
    "-fsanitize-sections=gradcomp_shared",
    "-fno-sanitize-recover=all",
]
# Those of native_build.py that decide about results.
NVCC_FLAGS = ["-x", "cu", "-O3", "-std=c++17", "--fmad=false", "-Xcompiler=-ffp-contract=off"]


def compile_all(compiler: list[str | Path], sources: list[Path], folder: Path) -> list[Path]:
    def compile_one(source: Path) -> Path:
        obj = folder / f"{source.name}.o"
        run([*compiler, "-I", CHECKOUT, "-c", source, "-o", obj])
        return obj

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_one, sources))


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("nvcc", path=f"{home}/bin") if home else shutil.which("nvcc")


@functools.cache
def missing_for_device() -> str | None:
    """What this machine lacks to run kernels on a GPU; None if nothing."""
    if find_nvcc() is None:
        return "no nvcc"
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi, hence no GPU"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    if listed.returncode != 0 or "GPU " not in listed.stdout:
        return f"no GPU: nvidia-smi -L says {(listed.stdout + listed.stderr).strip()!r}"
    return None


@pytest.fixture(scope="session")
def emulated(
    core_build: Callable[[str], CoreBuild], tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """Kernels for the emulated device, and the core."""
    kernels = compile_all(["g++", *EMULATION_FLAGS], CUDA, tmp_path_factory.mktemp("emulated"))
    return [*kernels, *core_build("sanitized").core]


@pytest.fixture(scope="session")
def device_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Kernels for the GPU of this machine, and the core."""
    folder = tmp_path_factory.mktemp("device")
    nvcc = find_nvcc()
    return [
        *compile_all([nvcc, *NVCC_FLAGS, "-arch=native"], CUDA, folder),
        *compile_all(["g++", *HOST_FLAGS, "-O2"], CORE, folder),
    ]


def test_there_are_kernels_and_tests() -> None:
    stems = {source.name.removesuffix("_cuda.cu.cc") for source in CUDA}
    assert stems >= {"positions", "range_float", "top_k"}
    assert {test.name.removesuffix("_cuda_test.cc") for test in TESTS} == stems


@pytest.mark.parametrize("test", EMULATED_TESTS + TESTS, ids=lambda test: test.stem)
def test_on_emulated_device(test: Path, emulated: list[Path], tmp_path: Path) -> None:
    binary = tmp_path / test.stem
    run(["g++", *EMULATION_FLAGS, "-I", CHECKOUT, test, *emulated, "-o", binary])
    run([binary])


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
def test_nvcc_compiles_without_a_warning(tmp_path: Path) -> None:
    # One architecture, the oldest that CUDA 13 knows; setup.py compiles for all.
    for source in CUDA:
        command = [find_nvcc(), *NVCC_FLAGS, "-arch=sm_75", "-I", CHECKOUT, "-c", source]
        output = run([*command, "-o", tmp_path / "kernels.o"])
        assert "warning" not in output, output


@pytest.mark.skipif(
    missing_for_device() is not None, reason=f"not run on a GPU: {missing_for_device()}"
)
@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.stem)
def test_on_gpu(test: Path, device_objects: list[Path], tmp_path: Path) -> None:
    binary = tmp_path / test.stem
    nvcc = find_nvcc()
    run([nvcc, *NVCC_FLAGS[2:], "-I", CHECKOUT, test, *device_objects, "-o", binary])
    run([binary])
