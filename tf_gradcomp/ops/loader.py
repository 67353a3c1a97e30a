# SPDX-License-Identifier: Apache-2.0
"""Finds the native library that fits the installed TensorFlow, and loads it once.

TensorFlow keeps no binary interface between its versions, so there is one library per version:
`_gradcomp_ops.tf2.21.0.so`, with what it was built from in a `.json` file of the same name. Both
lie beside this module; the environment variable TF_GRADCOMP_OPS_LIBRARY may name another file
(Bazel's tests do). Every failure is an ImportError of one line which says what to run.

This module imports only the standard library, and setup.py loads it by path: builder and loader
thus agree on the version and the file name. Keep it so.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARY_VARIABLE = "TF_GRADCOMP_OPS_LIBRARY"

_PACKAGE_DIR = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE_DIR.parent.parent
_INSTALL = 'pip install "tf-gradcomp[cpu]" (or [gpu], or [tfa] for TensorFlow Addons)'

# The distributions that install the import package `tensorflow`. Asking for their metadata takes
# about a millisecond; importing TensorFlow to read `__version__` takes seconds.
_TENSORFLOW_DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "tensorflow-macos",
    "tensorflow-cpu-aws",
    "tf-nightly",
    "tf-nightly-cpu",
)


def tensorflow_version() -> str | None:
    """Version of the installed TensorFlow, such as "2.21.0"; None if there is none."""
    try:
        if importlib.util.find_spec("tensorflow") is None:
            return None
    except (ImportError, ValueError):
        return None
    for distribution in _TENSORFLOW_DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    # Built from source and put on the path by hand: no metadata, so ask the module itself.
    import tensorflow as tf

    return str(tf.__version__)


def file_name(tf_version: str) -> str:
    """File name of the library built for `tf_version`."""
    return f"_gradcomp_ops.tf{tf_version}.so"


def info_path(library: Path) -> Path:
    """Path of the file that says what `library` was built from."""
    return library.with_suffix(".json")


def library_path() -> Path:
    """Path of the native library for the installed TensorFlow.

    Raises:
      ImportError: TensorFlow is missing, or there is no library for it. One line, with the remedy.
    """
    tf_version = tensorflow_version()
    if tf_version is None:
        raise ImportError(f"tf_gradcomp needs TensorFlow, which is not installed; run: {_INSTALL}")

    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        library = Path(named)
        if not library.is_file():
            raise ImportError(
                f"{LIBRARY_VARIABLE} names {named}, which does not exist; "
                f"unset it, or run: {_rebuild_command()}"
            )
    else:
        library = _PACKAGE_DIR / file_name(tf_version)
        if not library.is_file():
            raise ImportError(_missing_message(tf_version))

    built_for = _read_info(library).get("tensorflow", tf_version)
    if built_for != tf_version:
        raise ImportError(_mismatch_message(str(built_for), tf_version))
    return library


def build_info() -> dict[str, Any]:
    """What the library for the installed TensorFlow was built from.

    Returns:
      A dict with the keys `tensorflow` (version), `library` (version of tf_gradcomp), `compiler`,
      `cuda` (bool) and `cuda_archs` (list of str); empty for a library without such a record.

    Raises:
      ImportError: as `library_path`.
    """
    return _read_info(library_path())


def check() -> None:
    """Raises ImportError unless TensorFlow and a library for it are installed.

    Cheap: neither TensorFlow nor the library is loaded.
    """
    library_path()


@functools.lru_cache(maxsize=1)
def load() -> ModuleType:
    """Loads the native library, once per process.

    Returns:
      A module with one function per operation, such as `gradcomp_top_k_select`.

    Raises:
      ImportError: as `library_path`, or the library does not fit the running TensorFlow.
    """
    library = library_path()
    import tensorflow as tf

    try:
        return tf.load_op_library(str(library))
    except (tf.errors.OpError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ImportError(
            f"the native library does not fit TensorFlow {tf.__version__} ({reason}); "
            f"run: {_rebuild_command()}"
        ) from None


def _read_info(library: Path) -> dict[str, Any]:
    try:
        info = json.loads(info_path(library).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise ImportError(f"{info_path(library)} is not a build record; run: {_rebuild_command()}")
    return info


def _missing_message(tf_version: str) -> str:
    others = sorted(_PACKAGE_DIR.glob(file_name("*")))
    versions = [re.sub(r"^_gradcomp_ops\.tf|\.so$", "", other.name) for other in others]
    if versions:
        return _mismatch_message(", ".join(versions), tf_version)
    return f"the native library of tf_gradcomp is not built; run: {_rebuild_command()}"


def _mismatch_message(built_for: str, installed: str) -> str:
    return (
        f"the native library of tf_gradcomp was built for TensorFlow {built_for}, but {installed} "
        f"is installed; run: {_rebuild_command()}"
    )


def _rebuild_command() -> str:
    if (_CHECKOUT / "setup.py").is_file():
        return f"python setup.py build_ops (in {_CHECKOUT})"
    return (
        "pip install --force-reinstall --no-deps --no-build-isolation --no-binary tf-gradcomp "
        "tf-gradcomp"
    )
