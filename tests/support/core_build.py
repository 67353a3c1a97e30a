# SPDX-License-Identifier: Apache-2.0
"""Compiles the core, and programs that use it, with nothing but g++."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

COMMON_FLAGS = ["-g1", "-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-pthread"]

# Plain code under the sanitizers, and code as it ships, but vectorised for AVX2: a machine with
# AVX-512 never takes those variants of the shipped code, which Bazel builds and runs the tests on.
BUILDS = {
    "sanitized": [
        "-O1",
        "-DGRADCOMP_NO_MULTIVERSION",
        "-DGRADCOMP_CACHED_FLOATS=500",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ],
    "avx2": [
        "-O3",
        '-DGRADCOMP_MULTIVERSION=__attribute__((target("arch=x86-64-v3")))',
        "-DGRADCOMP_CACHED_FLOATS=500",
    ],
}


class CoreBuild:
    """The core, compiled in one of the ways of BUILDS, for programs to be linked with.

    Attributes:
      core: the core's objects.

    Args:
      name: a key of BUILDS.
      folder: where objects and programs go. Other processes may share it.
    """

    def __init__(self, name: str, folder: Path):
        self._flags = [*COMMON_FLAGS, *BUILDS[name]]
        self._folder = folder
        folder.mkdir(exist_ok=True)
        sources = sorted((CHECKOUT / "custom_ops" / "core").glob("*.cc"))
        self.core = self._objects(sources)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "built").exists():
                self.compile(sources)
                (folder / "built").touch()

    def compile(self, sources: Sequence[Path], flags: Sequence[str] = ()) -> list[Path]:
        """The objects of `sources`; `flags` are added to those of the build."""
        objects = self._objects(sources)
        self._run_all(
            [*self._flags, *flags, "-c", source, "-o", compiled]
            for source, compiled in zip(sources, objects, strict=True)
        )
        return objects

    def link(
        self, sources: Sequence[Path], flags: Sequence[str] = (), objects: Sequence[Path] = ()
    ) -> dict[str, Path]:
        """A program of each source with the core and `objects`, by the source's stem."""
        programs = {source.stem: self._folder / source.stem for source in sources}
        self._run_all(
            [*self._flags, *flags, source, *objects, *self.core, "-o", programs[source.stem]]
            for source in sources
        )
        return programs

    def _objects(self, sources: Sequence[Path]) -> list[Path]:
        return [self._folder / f"{source.stem}.o" for source in sources]

    def _run_all(self, arguments):
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda of_one: run(["g++", "-I", CHECKOUT, *of_one]), arguments))


def run(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    """Runs `command`, fails the test with its output if it fails, and returns that output."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr
