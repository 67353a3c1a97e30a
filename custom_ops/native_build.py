# SPDX-License-Identifier: Apache-2.0
"""Compiles the native library against the installed TensorFlow, for setup.py.

Objects are cached in a folder per TensorFlow version. An object is compiled again when its command
line, its source or a header it includes has changed; the library is linked again when an object
has. Flags keep results equal on every machine and device: no fast-math, no contraction into fused
multiply-add, no instruction set beyond the platform's baseline (hot loops choose theirs at run
time).
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

_CXX_FLAGS = [
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
]
_NVCC_FLAGS = ["-O3", "-std=c++17", "--fmad=false", "-Xcompiler=-fPIC,-ffp-contract=off,-Wall"]
_DEFAULT_CUDA_ARCHS = ["70", "75", "80", "86", "89", "90"]

# TensorFlow's headers are nearly all that the compiler reads of a kernel or an op. For as many
# sources as this it pays to compile them beforehand.
_TF_HEADERS = ("op.h", "op_kernel.h", "shape_inference.h")
_MANY_SOURCES = 8
_SCRATCH_PREFIX = "headers-"

_TF_FLAGS_PROGRAM = (
    "import json, tensorflow as tf; "
    "print(json.dumps([tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()]))"
)


class BuildError(Exception):
    """The build cannot go on; the message is one line that says what to run."""


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit and the GPU architectures to compile for, such as "90"."""

    nvcc: str
    root: Path
    archs: list[str]

    def arch_flags(self) -> list[str]:
        """Machine code for every architecture, and PTX of the newest for later GPUs."""
        newest = max(self.archs, key=int)
        flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in self.archs]
        return [*flags, f"-gencode=arch=compute_{newest},code=compute_{newest}"]


@dataclass(frozen=True)
class Unit:
    """An object, the command that makes it, and whether that reads TensorFlow's headers."""

    obj: Path
    command: list[str]
    includes_tensorflow: bool


def build(
    root: Path,
    output_dir: Path,
    cache_dir: Path,
    loader: ModuleType,
    library_version: str,
    jobs: int = 2,
    force: bool = False,
) -> Path:
    """Brings the library for the installed TensorFlow up to date.

    Args:
      root: the checkout, which holds `custom_ops/`.
      output_dir: where the library and its build record go.
      cache_dir: where objects are kept between builds.
      loader: the module tf_gradcomp/ops/loader.py, which knows version and file name.
      library_version: version of tf_gradcomp, for the record.
      jobs: how many compilers run at once.
      force: compile and link everything.

    Returns:
      The path of the library.

    Raises:
      BuildError: TensorFlow, a compiler or a source is missing, or compiling failed.
    """
    tf_version = loader.tensorflow_version()
    if tf_version is None:
        raise BuildError(
            "TensorFlow is not installed for this Python; run: pip install tensorflow-cpu "
            "(and pip install with --no-build-isolation, so that the build can see it)"
        )
    cxx = _find_compiler()
    cuda = _find_cuda()
    sources = _find_sources(root / "custom_ops", cuda is not None)

    cache = cache_dir / f"tf{tf_version}{'-cuda' if cuda else ''}"
    cache.mkdir(parents=True, exist_ok=True)
    output_dir.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Two builds of one checkout wait for each other instead of mixing their objects.
        fcntl.flock(lock, fcntl.LOCK_EX)
        tf_compile_flags, tf_link_flags = _tensorflow_flags(cache, tf_version)
        units = [
            Unit(
                cache / f"{source.relative_to(root)}.o",
                _compile_command(source, root, cxx, cuda, tf_compile_flags),
                _includes_tensorflow(source),
            )
            for source in sources
        ]
        stale = [unit for unit in units if force or _is_stale(unit)]
        _compile_all(stale, root, cache, jobs)

        objects = [unit.obj for unit in units]
        library = output_dir / loader.file_name(tf_version)
        link = [*cxx, "-shared", *map(str, objects), *tf_link_flags]
        if cuda:
            link += [f"-L{cuda.root}/lib64", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
        info = {
            "tensorflow": tf_version,
            "library": library_version,
            "compiler": _first_line([*cxx, "--version"]),
            "cuda": cuda is not None,
            "cuda_archs": cuda.archs if cuda else [],
        }
        record = loader.info_path(library)
        if stale or _link_is_stale(library, record, info, objects, link, cache):
            _link(library, link, root)
            (cache / "link.cmd").write_text(_fingerprint(link))
            _write_atomically(record, json.dumps(info, indent=2) + "\n")
            print(f"built {library} ({len(stale)} of {len(units)} files compiled)")
        else:
            print(f"{library} is up to date")
    return library


def _find_compiler() -> list[str]:
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if not compiler or shutil.which(compiler[0]) is None:
        name = compiler[0] if compiler else "g++"
        raise BuildError(
            f"the C++ compiler {name} was not found; run: apt-get install g++ "
            "(or set CXX to another C++17 compiler)"
        )
    return compiler


def _find_cuda() -> Cuda | None:
    wanted = os.environ.get("TF_GRADCOMP_CUDA", "0")
    if wanted in ("", "0"):
        return None
    if wanted != "1":
        raise BuildError(f"TF_GRADCOMP_CUDA must be 0 or 1, but is {wanted!r}")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        nvcc = shutil.which(f"{home}/bin/nvcc")
    else:
        nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        where = f"in {home}/bin" if home else "on the path"
        raise BuildError(
            f"TF_GRADCOMP_CUDA=1, but there is no nvcc {where}; install the CUDA toolkit and set "
            "CUDA_HOME, or build for the CPU only: TF_GRADCOMP_CUDA=0 python setup.py build_ops"
        )
    # nvcc on the path may be a wrapper script, so its own folder need not be the toolkit's.
    candidates = [home, str(Path(nvcc).resolve().parent.parent), "/usr/local/cuda"]
    for candidate in candidates:
        if candidate and (Path(candidate) / "include" / "cuda_runtime.h").is_file():
            return Cuda(nvcc, Path(candidate), _cuda_archs(nvcc))
    raise BuildError(f"no cuda_runtime.h belongs to {nvcc}; set CUDA_HOME to the CUDA toolkit")


def _cuda_archs(nvcc: str) -> list[str]:
    named = os.environ.get("TF_GRADCOMP_CUDA_ARCHS", "")
    archs = [arch.removeprefix("sm_") for arch in named.replace(";", " ").replace(",", " ").split()]
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True).stdout
    supported = [line.strip().removeprefix("compute_") for line in listed.splitlines()]
    for arch in archs:
        if arch not in supported:
            raise BuildError(
                f"TF_GRADCOMP_CUDA_ARCHS names {arch}, but {nvcc} supports {', '.join(supported)}"
            )
    archs = archs or [arch for arch in _DEFAULT_CUDA_ARCHS if arch in supported]
    if not archs:
        raise BuildError(f"{nvcc} supports none of {', '.join(_DEFAULT_CUDA_ARCHS)}")
    return archs


def _find_sources(custom_ops: Path, cuda: bool) -> list[Path]:
    sources = [
        source
        for folder in ("core", "kernels", "ops")
        for source in sorted((custom_ops / folder).glob("*.cc"))
        if cuda or not source.name.endswith("_gpu.cc")
    ]
    if not sources:
        raise BuildError(f"no C++ sources in {custom_ops}; run this from a complete checkout")
    if cuda:
        sources += sorted((custom_ops / "cuda").glob("*.cu.cc"))
    return sources


def _tensorflow_flags(cache: Path, tf_version: str) -> tuple[list[str], list[str]]:
    """Compile and link flags of TensorFlow; importing it takes seconds, so they are kept."""
    kept = cache / f"tensorflow_flags.{zlib.crc32(sys.prefix.encode()):08x}.json"
    if not kept.is_file():
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        result = subprocess.run(
            [sys.executable, "-c", _TF_FLAGS_PROGRAM],
            capture_output=True,
            text=True,
            env=environment,
        )
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise BuildError(
                f"TensorFlow {tf_version} cannot be imported ({reason}); "
                f"run: {sys.executable} -c 'import tensorflow'"
            )
        _write_atomically(kept, result.stdout.strip().splitlines()[-1])
    compile_flags, link_flags = json.loads(kept.read_text())
    # As system headers they give no warnings of ours and are not tracked as dependencies.
    includes = [flag.replace("-I", "-isystem", 1) for flag in compile_flags if flag[:2] == "-I"]
    defines = [flag for flag in compile_flags if flag[:2] == "-D"]
    return [*includes, *defines], link_flags


def _compile_command(
    source: Path, root: Path, cxx: list[str], cuda: Cuda | None, tf_flags: list[str]
) -> list[str]:
    if source.name.endswith(".cu.cc"):
        assert cuda is not None
        flags = [cuda.nvcc, "-x", "cu", "-ccbin", cxx[0], *_NVCC_FLAGS, *cuda.arch_flags()]
        return [*flags, f"-I{root}", "-c", str(source)]
    command = [*cxx, *_CXX_FLAGS, f"-I{root}"]
    if _includes_tensorflow(source):
        command += tf_flags
        if cuda:
            command += [
                "-DGOOGLE_CUDA=1",
                "-DEIGEN_USE_GPU",
                f"-isystem{cuda.root}/include",
            ]
    return [*command, "-c", str(source)]


def _includes_tensorflow(source: Path) -> bool:
    """The core must compile without TensorFlow's headers."""
    return source.parent.name != "core" and not source.name.endswith(".cu.cc")


def _fingerprint(command: list[str]) -> str:
    """The command, but alike in every virtual environment: the cache is per TensorFlow version."""
    return shlex.join(command).replace(sys.prefix, "<prefix>")


def _is_stale(unit: Unit) -> bool:
    try:
        if unit.obj.with_suffix(".cmd").read_text() != _fingerprint(unit.command):
            return True
        built = unit.obj.stat().st_mtime_ns
        return any(Path(header).stat().st_mtime_ns > built for header in _dependencies(unit.obj))
    except OSError:  # an object, a record or a header is gone
        return True


def _dependencies(obj: Path) -> list[str]:
    """The source and headers that the compiler wrote down in make's syntax."""
    _, _, names = obj.with_suffix(".d").read_text().partition(": ")
    return shlex.split(names.replace("\\\n", " "))


def _compile_all(units: list[Unit], root: Path, cache: Path, jobs: int) -> None:
    for left_over in cache.glob(f"{_SCRATCH_PREFIX}*"):  # by a build that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with_tensorflow = [unit for unit in units if unit.includes_tensorflow]
    with (
        tempfile.TemporaryDirectory(dir=cache, prefix=_SCRATCH_PREFIX) as scratch,
        ThreadPoolExecutor(max(1, jobs)) as pool,
    ):
        headers: Future[list[str]] | None = None
        if len(with_tensorflow) >= _MANY_SOURCES:
            # The first job, so that those that wait for it do not keep it from running.
            headers = pool.submit(_precompile_headers, with_tensorflow[0], root, Path(scratch))

        def compile_one(unit: Unit) -> None:
            found = headers.result() if headers and unit.includes_tensorflow else []
            _compile(unit, root, found)

        # list() waits for all and raises the first error.
        list(pool.map(compile_one, units))


def _precompile_headers(unit: Unit, root: Path, scratch: Path) -> list[str]:
    """Compiles TensorFlow's headers with the flags of a unit; returns those to find the result.

    A system header is no dependency of what includes it, so it may go when the build has ended.
    """
    header = scratch / "tensorflow_headers.h"
    header.write_text("".join(f"#include <tensorflow/core/framework/{h}>\n" for h in _TF_HEADERS))
    flags = unit.command[: unit.command.index("-c")]
    _run([*flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"], root)
    # GCC would read the headers themselves without a word if the result did not fit.
    return ["-isystem", str(scratch), "-include", header.name, "-Werror=invalid-pch"]


def _compile(unit: Unit, root: Path, extra_flags: list[str]) -> None:
    obj = unit.obj
    obj.parent.mkdir(parents=True, exist_ok=True)
    obj.with_suffix(".cmd").unlink(missing_ok=True)
    # The time stamp is the start's: a header saved while the compiler runs counts as newer.
    started = _now(obj.parent)
    outputs = ["-o", str(obj), "-MMD", "-MF", str(obj.with_suffix(".d"))]
    _run([*unit.command, *extra_flags, *outputs], root)
    os.utime(obj, ns=(started, started))
    obj.with_suffix(".cmd").write_text(_fingerprint(unit.command))


def _now(folder: Path) -> int:
    stamp = folder / "now"
    stamp.touch()
    return stamp.stat().st_mtime_ns


def _link_is_stale(
    library: Path,
    record: Path,
    info: dict[str, Any],
    objects: list[Path],
    command: list[str],
    cache: Path,
) -> bool:
    try:
        if json.loads(record.read_text()) != info:
            return True
        if (cache / "link.cmd").read_text() != _fingerprint(command):
            return True
        linked = library.stat().st_mtime_ns
        return any(obj.stat().st_mtime_ns > linked for obj in objects)
    except (OSError, ValueError):
        return True


def _link(library: Path, command: list[str], root: Path) -> None:
    # Renamed into place: a process that has the old library mapped keeps the old file.
    partial = library.with_suffix(".partial")
    _run([*command, "-o", str(partial)], root)
    os.replace(partial, library)


def _run(command: list[str], root: Path) -> None:
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    # The compiler's own words go out whole, warnings too; the exception is the one-line summary.
    sys.stderr.write(result.stderr)
    if result.returncode != 0:
        raise BuildError(
            f"this command failed with exit code {result.returncode}: {shlex.join(command)}"
        )


def _first_line(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    return (result.stdout.splitlines() or ["unknown"])[0]


def _write_atomically(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
