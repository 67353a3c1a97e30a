# SPDX-License-Identifier: Apache-2.0
"""What the loader says when TensorFlow or the library is missing or does not fit."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Prints the one-line message of the ImportError that CALL raises, as `import tf_gradcomp` would.
PROGRAM = """
import importlib.abc, importlib.util, sys
mode, path, call = sys.argv[1:]
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
if mode == "without":
    sys.meta_path.insert(0, Blocker())
spec = importlib.util.spec_from_file_location("loader", path)
loader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loader)
try:
    getattr(loader, call)()
    print("fits")
except ImportError as error:
    print(error)
assert call == "load" or "tensorflow" not in sys.modules, "check() must be cheap"
"""


def load_module(path: Path):
    spec = importlib.util.spec_from_file_location("loader_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installed package (no setup.py around it) without a library."""
    folder = tmp_path / "site/tf_gradcomp/ops"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "tf_gradcomp/ops/loader.py", folder)
    return folder


def run(package: Path, call: str = "check", mode: str = "with", **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if "GRADCOMP" not in name}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode, str(package / "loader.py"), call],
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.strip().splitlines()
    return line


def installed_version() -> str:
    return load_module(ROOT / "tf_gradcomp/ops/loader.py").tensorflow_version()


def put_library(package: Path, version: str, **record: object) -> Path:
    library = package / f"_gradcomp_ops.tf{version}.so"
    library.write_bytes(b"not a library")
    library.with_suffix(".json").write_text(json.dumps(record))
    return library


def test_version_is_that_of_the_module():
    import tensorflow as tf

    # Metadata and module may write a pre-release differently; the number is the same.
    assert installed_version().startswith(tf.__version__.partition("-")[0])


def test_without_tensorflow(package: Path):
    message = run(package, mode="without")
    assert "needs TensorFlow" in message
    assert 'pip install "tf-gradcomp[cpu]"' in message


def test_not_built_in_a_checkout(package: Path):
    (package.parents[1] / "setup.py").touch()
    message = run(package)
    assert "not built" in message
    assert "python setup.py build_ops" in message


def test_not_built_in_an_installation(package: Path):
    message = run(package)
    assert "setup.py" not in message
    assert "pip install" in message
    assert "--no-build-isolation" in message


def test_built_for_another_tensorflow(package: Path):
    put_library(package, "2.3.4", tensorflow="2.3.4")
    message = run(package)
    assert "built for TensorFlow 2.3.4" in message
    assert f"but {installed_version()} is installed" in message
    assert "run: pip install" in message


def test_record_of_another_tensorflow(package: Path):
    # As when a file was renamed: the name fits, the record does not.
    put_library(package, installed_version(), tensorflow="2.3.4")
    assert "built for TensorFlow 2.3.4" in run(package)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_broken_record(package: Path, text: str):
    put_library(package, installed_version()).with_suffix(".json").write_text(text)
    message = run(package)
    assert "is not a build record" in message
    assert "run: " in message


def test_library_that_fits_is_accepted_unloaded(package: Path):
    put_library(package, installed_version(), tensorflow=installed_version())
    assert run(package) == "fits"


def test_named_library(package: Path, tmp_path: Path):
    gone = str(tmp_path / "gone.so")
    message = run(package, TF_GRADCOMP_OPS_LIBRARY=gone)
    assert f"TF_GRADCOMP_OPS_LIBRARY names {gone}" in message
    there = put_library(tmp_path, "x", tensorflow="2.3.4")
    assert "built for TensorFlow 2.3.4" in run(package, TF_GRADCOMP_OPS_LIBRARY=str(there))
    # Bazel's library has no record.
    there.with_suffix(".json").unlink()
    assert run(package, TF_GRADCOMP_OPS_LIBRARY=str(there)) == "fits"


def test_undefined_symbol(package: Path):
    library = put_library(package, installed_version(), tensorflow=installed_version())
    source = package / "undefined.cc"
    source.write_text(
        "void missing_in_this_tensorflow();\nint x = (missing_in_this_tensorflow(), 1);"
    )
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library], check=True)
    message = run(package, call="load")
    assert f"does not fit TensorFlow {installed_version()}" in message
    assert "missing_in_this_tensorflow" in message
    assert "run: pip install" in message


def test_import_of_the_package_says_it_too(tmp_path: Path):
    package = tmp_path / "tf_gradcomp"
    shutil.copytree(
        ROOT / "tf_gradcomp",
        package,
        ignore=shutil.ignore_patterns("_gradcomp_ops.*", "__pycache__"),
    )
    result = subprocess.run(
        [sys.executable, "-c", "import tf_gradcomp"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if "GRADCOMP" not in name},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the native library of tf_gradcomp is not built; run: ")


def test_load_gives_the_operations_once():
    from tf_gradcomp.ops import loader

    operations = loader.load()
    assert operations is loader.load()
    assert hasattr(operations, "gradcomp_top_k_select")
