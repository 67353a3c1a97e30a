# SPDX-License-Identifier: Apache-2.0
"""setup.py on a small tree of its own: what it builds, when, and what it says when it cannot."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEADER = "// SPDX-License-Identifier: Apache-2.0\nnamespace gradcomp {\nint Answer();\n}\n"
SOURCE = '#include "custom_ops/core/answer.h"\nint gradcomp::Answer() { return 42; }\n'
SECOND = "int gradcomp_second() { return 2; }\n"

# Runs setup.py as if TensorFlow were not installed.
WITHOUT_TENSORFLOW = """
import importlib.abc, runpy, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
sys.argv = ["setup.py", *sys.argv[1:]]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose native library is two small files without TensorFlow's headers."""
    for name in (
        "setup.py",
        "pyproject.toml",
        "custom_ops/native_build.py",
        "tf_gradcomp/version.py",
        "tf_gradcomp/ops/__init__.py",
        "tf_gradcomp/ops/loader.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tf_gradcomp/__init__.py").touch()
    core = tmp_path / "custom_ops/core"
    core.mkdir()
    (core / "answer.h").write_text(HEADER)
    (core / "answer.cc").write_text(SOURCE)
    (core / "second.cc").write_text(SECOND)
    # Asking TensorFlow for its flags takes seconds, and the build of this checkout has done it.
    for kept in ROOT.glob("build/ops/*/tensorflow_flags.*.json"):
        for folder in {kept.parent.name, f"{kept.parent.name}-cuda"}:
            copy = tmp_path / "build" / "ops" / folder / kept.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(kept, copy)
    return tmp_path


def build(tree: Path, *arguments: str, program: str | None = None, **variables: str | None):
    """Runs build_ops; a variable that is None is not set."""
    environment = {**os.environ, "TF_GRADCOMP_CUDA": "0", **variables}
    environment = {name: value for name, value in environment.items() if value is not None}
    start = ["-c", program] if program else ["setup.py"]
    return subprocess.run(
        [sys.executable, *start, "build_ops", *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def assert_one_line(result: subprocess.CompletedProcess, *words: str):
    assert result.returncode != 0
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


def counted(result: subprocess.CompletedProcess) -> tuple[int, int] | None:
    """(files compiled, files in all); None if the library was up to date."""
    assert result.returncode == 0, result.stderr
    found = re.search(r"\((\d+) of (\d+) files compiled\)", result.stdout)
    assert found or "is up to date" in result.stdout
    return (int(found[1]), int(found[2])) if found else None


def test_without_compiler(tree: Path, tmp_path_factory: pytest.TempPathFactory):
    empty = str(tmp_path_factory.mktemp("bin"))
    result = build(tree, PATH=empty, CXX=None)
    assert_one_line(result, "compiler g++ was not found", "apt-get install g++")
    assert not list(tree.glob("tf_gradcomp/ops/_gradcomp_ops*"))


def test_named_compiler_is_missing(tree: Path):
    assert_one_line(build(tree, CXX="no-such-c++ -v"), "no-such-c++", "CXX")


def test_without_tensorflow(tree: Path):
    result = build(tree, program=WITHOUT_TENSORFLOW)
    assert_one_line(result, "TensorFlow is not installed", "pip install", "--no-build-isolation")


def test_tensorflow_that_cannot_be_imported(tree: Path, tmp_path_factory: pytest.TempPathFactory):
    site = tmp_path_factory.mktemp("site")
    (site / "tensorflow").mkdir()
    (site / "tensorflow/__init__.py").write_text("raise OSError('wrong ELF class')")
    (site / "tensorflow-9.9.9.dist-info").mkdir()
    (site / "tensorflow-9.9.9.dist-info/METADATA").write_text("Name: tensorflow\nVersion: 9.9.9\n")
    result = build(tree, PYTHONPATH=str(site))
    assert_one_line(result, "TensorFlow 9.9.9 cannot be imported", "wrong ELF class")


def test_without_sources(tree: Path):
    shutil.rmtree(tree / "custom_ops/core")
    assert_one_line(build(tree), "no C++ sources")


def test_cuda_wanted_without_nvcc(tree: Path):
    result = build(tree, TF_GRADCOMP_CUDA="1", CUDA_HOME=str(tree))
    assert_one_line(result, "no nvcc", "CUDA_HOME", "TF_GRADCOMP_CUDA=0")


def test_cuda_switch_is_checked(tree: Path):
    assert_one_line(build(tree, TF_GRADCOMP_CUDA="yes"), "TF_GRADCOMP_CUDA", "0 or 1", "'yes'")


@pytest.fixture
def cuda_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toolkit whose nvcc only lists architectures and writes its command line down."""
    home = tmp_path_factory.mktemp("cuda")
    for name in ("bin", "include", "lib64"):
        (home / name).mkdir()
    (home / "include/cuda_runtime.h").touch()
    nvcc = home / "bin/nvcc"
    nvcc.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --list-gpu-arch ]; then printf "compute_80\\ncompute_90\\ncompute_120\\n"\n'
        f'else echo "$@" >> {home}/commands; exit 1; fi\n'
    )
    nvcc.chmod(0o755)
    return home


def test_cuda_architecture_that_nvcc_does_not_know(tree: Path, cuda_home: Path):
    result = build(
        tree, TF_GRADCOMP_CUDA="1", CUDA_HOME=str(cuda_home), TF_GRADCOMP_CUDA_ARCHS="80;61"
    )
    assert_one_line(result, "61", "80, 90, 120")


def test_cuda_sources_go_to_nvcc_with_plain_arithmetic(tree: Path, cuda_home: Path):
    (tree / "custom_ops/cuda").mkdir()
    (tree / "custom_ops/cuda/answer_cuda.cu.cc").write_text("\n")
    result = build(tree, TF_GRADCOMP_CUDA="1", CUDA_HOME=str(cuda_home))
    assert result.returncode != 0  # this nvcc fails
    command = (cuda_home / "commands").read_text()
    assert "answer_cuda.cu.cc" in command
    assert "--fmad=false" in command
    assert "fast" not in command
    # Of the default architectures those that this nvcc knows, and PTX of the newest.
    codes = re.findall(r",code=(\w+)", command)
    assert codes == ["sm_80", "sm_90", "compute_90"]


def test_builds_what_has_changed(tree: Path):
    assert counted(build(tree)) == (2, 2)
    assert counted(build(tree)) is None

    (tree / "custom_ops/core/answer.h").touch()
    assert counted(build(tree)) == (1, 2)

    library = next(tree.glob("tf_gradcomp/ops/_gradcomp_ops.tf*.so"))
    library.unlink()
    assert counted(build(tree)) == (0, 2)
    assert library.is_file()

    assert counted(build(tree, CXX="g++ -DOTHER")) == (2, 2)
    assert counted(build(tree, "--force", CXX="g++ -DOTHER")) == (2, 2)

    # A source that is gone leaves the library, too.
    (tree / "custom_ops/core/second.cc").unlink()
    assert counted(build(tree, CXX="g++ -DOTHER")) == (0, 1)
    assert b"gradcomp_second" not in library.read_bytes()


def test_compile_error_is_shown_and_leaves_no_library(tree: Path):
    (tree / "custom_ops/core/second.cc").write_text("int broken( {\n")
    result = build(tree)
    assert result.returncode != 0
    assert "second.cc:1" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tree.glob("tf_gradcomp/ops/_gradcomp_ops*"))


def test_core_sees_no_tensorflow_header(tree: Path):
    source = tree / "custom_ops/core/second.cc"
    source.write_text('#include "tensorflow/core/public/version.h"\n')
    result = build(tree)
    assert result.returncode != 0
    assert "tensorflow/core/public/version.h" in result.stderr


def test_output_dir_and_record(tree: Path, tmp_path_factory: pytest.TempPathFactory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert counted(build(tree, f"--output-dir={elsewhere}")) == (2, 2)
    assert not list(tree.glob("tf_gradcomp/ops/_gradcomp_ops*"))
    (library,) = elsewhere.glob("*.so")
    info = json.loads(library.with_suffix(".json").read_text())
    assert library.name == f"_gradcomp_ops.tf{info['tensorflow']}.so"
    assert info["cuda"] is False
    assert "g++" in info["compiler"]
    assert info["library"] in (ROOT / "tf_gradcomp/version.py").read_text()


def test_wheel_holds_the_library_for_this_tensorflow_alone(tree: Path):
    # Left in the tree and in setuptools' build folder by builds for another TensorFlow.
    built = f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for folder in (tree, tree / built):
        (folder / "tf_gradcomp/ops").mkdir(parents=True, exist_ok=True)
        (folder / "tf_gradcomp/ops/_gradcomp_ops.tf1.0.0.so").touch()
    result = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", "w", "."],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0, result.stderr
    (wheel,) = (tree / "w").glob("*.whl")
    # The library depends on the platform.
    assert "linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (library,) = [name for name in names if name.endswith(".so")]
        assert "tf1.0.0" not in library
        record = archive.read(library.removesuffix(".so") + ".json").decode()
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith("/METADATA")]
        (scripts,) = [archive.read(n).decode() for n in names if n.endswith("/entry_points.txt")]
    assert str(tree) not in record
    assert "tf-gradcomp = tf_gradcomp.cli:main" in scripts
    assert set(re.findall(r"Provides-Extra: (\w+)", metadata)) == {"cpu", "gpu", "tfa", "dev"}
    # The user chooses the TensorFlow, so that it is never a requirement of the package itself.
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert not [line for line in required if "tensorflow" in line and "extra ==" not in line]


def test_bazel_compiles_with_the_same_flags():
    spec = importlib.util.spec_from_file_location(
        "native_build_flags", ROOT / "custom_ops/native_build.py"
    )
    native_build = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = native_build
    spec.loader.exec_module(native_build)
    bazel = (ROOT / "custom_ops/bazel/gradcomp.bzl").read_text()
    flags = re.findall(r'"(-[^"]+)"', bazel.partition("GRADCOMP_COPTS = [")[2].partition("]")[0])
    assert [flag for flag in native_build._CXX_FLAGS if flag != "-fPIC"] == flags


def test_every_folder_with_python_is_a_package():
    # setuptools leaves the others out of the wheel without a word.
    folders = {path.parent for path in (ROOT / "tf_gradcomp").rglob("*.py")}
    assert [str(f) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []
