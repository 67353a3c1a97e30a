# SPDX-License-Identifier: Apache-2.0
"""The rules of the house that can be read off the sources: who may use whom, names, flags, licence.

Each rule is a function from a path and a text to a list of complaints, shown to work on snippets
below, and then run over the tree.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tf_gradcomp", "custom_ops", "tests", "examples")
CXX_SUFFIXES = (".h", ".cc", ".cu", ".cuh")
BUILD_FILES = ("BUILD", "WORKSPACE", "Makefile", ".bazelrc", "pyproject.toml", ".ci/run")
SOURCE_SUFFIXES = (".py", ".bzl", ".sh", *CXX_SUFFIXES, *BUILD_FILES)


def tree() -> Iterator[str]:
    """Paths of the sources, relative to the root, with forward slashes."""
    for path in sorted(ROOT.iterdir()):
        if path.is_file():
            yield path.name
    for folder in (*FOLDERS, ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix()


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


# --- What a file uses --------------------------------------------------------------------------


def python_uses(path: str, text: str) -> set[str]:
    """Every module that the file may import, and `tensorflow.keras` where tf.keras is used."""
    package = Path(path).with_suffix("").parts[:-1]
    uses = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            uses.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            # `from a import b`: b may be a module of a.
            uses.add(".".join(base))
            uses.update(".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func)
            if called.endswith(("import_module", "__import__", "LazyLoader")):
                uses.add(str(node.args[0].value))
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in (
            "tf.keras",
            "tensorflow.keras",
        ):
            uses.add("tensorflow.keras")
    return uses


def cxx_uses(text: str) -> set[str]:
    return set(re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE))


def within(name: str, *parents: str) -> bool:
    return any(name == parent or name.startswith(parent + ".") for parent in parents)


# --- The rules ---------------------------------------------------------------------------------


def check_python_arrows(path: str, text: str) -> list[str]:
    """DESIGN: codecs use ops only; transports and controllers no codec; one door to private API."""
    in_distribute = path.startswith("tf_gradcomp/distribute/")
    wrong = []
    for name in sorted(python_uses(path, text)):
        ours = within(name, "tf_gradcomp")
        keras = within(name, "keras", "tf_keras", "tensorflow.keras", "tensorflow_addons")
        if path.startswith("tf_gradcomp/codecs/"):
            allowed = name == "tf_gradcomp" or within(name, "tf_gradcomp.ops", "tf_gradcomp.codecs")
            if ours and not allowed:
                wrong.append(f"a codec uses {name}")
        if path.startswith(("tf_gradcomp/transports/", "tf_gradcomp/controllers/")) and within(
            name, "tf_gradcomp.codecs"
        ):
            wrong.append(f"a transport or controller uses {name}")
        if path.startswith("tf_gradcomp/"):
            if keras and not (in_distribute or path == "tf_gradcomp/callbacks.py"):
                wrong.append(f"only distribute/ and callbacks.py may use {name}")
            if within(name, "tensorflow.python") and not in_distribute:
                wrong.append(f"only distribute/ may use {name}")
        if path.startswith("tests/reference/") and (ours or within(name, "tensorflow")):
            wrong.append(f"an oracle uses {name}")
    return wrong


# Folders of custom_ops/ that a folder may include.
CXX_ARROWS = {
    "core": {"core"},
    "cuda": {"core", "cuda"},
    "ops": {"core", "ops"},
    "kernels": {"core", "cuda", "kernels"},
}


def check_cxx_arrows(path: str, text: str) -> list[str]:
    """DESIGN: core <- cuda <- kernels; core and cuda include nothing of TensorFlow or Eigen."""
    folder = path.split("/")[1] if path.startswith("custom_ops/") else ""
    if folder not in CXX_ARROWS:
        return []
    wrong = []
    for name in sorted(cxx_uses(text)):
        framework = re.match(
            r"(unsupported/|third_party/)?(tensorflow|tsl|xla|Eigen|absl|eigen3)\b", name
        )
        if folder in ("core", "cuda") and framework:
            wrong.append(f"{folder} includes {name}")
        if folder == "core" and re.match(r"cuda|cub/|thrust/|nvtx", name):
            wrong.append(f"core includes {name}")
        if name.startswith("custom_ops/"):
            if name.split("/")[1] not in CXX_ARROWS[folder]:
                wrong.append(f"{folder} includes {name}")
        elif name.startswith("."):
            wrong.append(f"{name}: include by the path from the root")
    return wrong


def check_flags(path: str, text: str) -> list[str]:
    """No flag that changes results between machines, anywhere but in prose."""
    if path.endswith(".md") or path == "tests/source_rules_test.py":
        return []
    pattern = (
        r"-m(?:arch|tune|cpu)=native|-f(?:no-)?(?:fast-math|unsafe-math\S*|finite-math\S*"
        r"|associative-math)|-Ofast|-{1,2}use_fast_math|-{1,2}ftz=true|-{1,2}fmad=true"
        r"|-ffp-contract=(?:fast|on)|FP_CONTRACT\s+ON|optimize\s*\(?\s*\"[^\"]*(?:fast|unsafe)"
    )
    return [f"{found} changes results between machines" for found in re.findall(pattern, text)]


def check_licence(path: str, text: str) -> list[str]:
    """The first line, or the one after `#!`, names the licence."""
    if not path.endswith(SOURCE_SUFFIXES):
        return []
    lines = text.splitlines()
    first = lines[1:2] if text.startswith("#!") else lines[:1]
    comment = "//" if path.endswith(CXX_SUFFIXES) else "#"
    wanted = f"{comment} SPDX-License-Identifier: Apache-2.0"
    return [] if first == [wanted] else [f"the first line must be: {wanted}"]


def duplicate_names(paths: list[str]) -> list[str]:
    """C++ sources and tests are found by their file name alone."""
    found = defaultdict(list)
    for path in paths:
        name = Path(path).name
        if name.endswith((*CXX_SUFFIXES, "_test.py", "_reference.py")):
            found[name].append(path)
    return [f"{name}: {', '.join(where)}" for name, where in found.items() if len(where) > 1]


# --- The rules fail where they should ------------------------------------------------------------

Rule = Callable[[str, str], list[str]]
SPDX = "SPDX-License-Identifier: Apache-2.0"

BAD = [
    (check_python_arrows, "tf_gradcomp/codecs/x.py", "from tf_gradcomp.transports import dense"),
    (check_python_arrows, "tf_gradcomp/codecs/x.py", "from tf_gradcomp import plan"),
    (check_python_arrows, "tf_gradcomp/codecs/x.py", "from ..feedback import residual"),
    (check_python_arrows, "tf_gradcomp/codecs/x.py", "from .. import state"),
    (check_python_arrows, "tf_gradcomp/codecs/x.py", "def f():\n  import tf_gradcomp.reducer"),
    (check_python_arrows, "tf_gradcomp/transports/x.py", "from tf_gradcomp.codecs import base"),
    (check_python_arrows, "tf_gradcomp/transports/x.py", "from tf_gradcomp import codecs"),
    (check_python_arrows, "tf_gradcomp/controllers/x.py", "import tf_gradcomp.codecs.top_k as t"),
    (check_python_arrows, "tf_gradcomp/controllers/x.py", "from ..codecs import base"),
    (check_python_arrows, "tf_gradcomp/strategy.py", "import keras"),
    (check_python_arrows, "tf_gradcomp/strategy.py", "from keras.optimizers import SGD"),
    (check_python_arrows, "tf_gradcomp/strategy.py", "from tensorflow import keras"),
    (check_python_arrows, "tf_gradcomp/strategy.py", "import tensorflow as tf\ntf.keras.Model()"),
    (check_python_arrows, "tf_gradcomp/metrics.py", "import_module('keras.src')"),
    (check_python_arrows, "tf_gradcomp/reducer.py", "import tf_keras"),
    (check_python_arrows, "tf_gradcomp/reducer.py", "from tensorflow.python.ops import math_ops"),
    (check_python_arrows, "tf_gradcomp/callbacks.py", "from tensorflow.python import pywrap"),
    (check_python_arrows, "tests/reference/x_reference.py", "from tf_gradcomp.ops import top_k"),
    (check_python_arrows, "tests/reference/x_reference.py", "import tensorflow as tf"),
    (check_cxx_arrows, "custom_ops/core/x.h", '#include "tensorflow/core/lib/core/status.h"'),
    (check_cxx_arrows, "custom_ops/core/x.cc", "#  include <Eigen/Dense>"),
    (check_cxx_arrows, "custom_ops/core/x.cc", "#include <unsupported/Eigen/CXX11/Tensor>"),
    (check_cxx_arrows, "custom_ops/core/x.h", '#include "custom_ops/cuda/x_cuda.h"'),
    (check_cxx_arrows, "custom_ops/core/x.h", "#include <cuda_runtime.h>"),
    (check_cxx_arrows, "custom_ops/core/x.cc", '#include "../core/x.h"'),
    (check_cxx_arrows, "custom_ops/cuda/x_cuda.cu.cc", '#include "tensorflow/core/util/gpu.h"'),
    (check_cxx_arrows, "custom_ops/cuda/x_cuda.h", '#include "custom_ops/kernels/kernel_util.h"'),
    (check_cxx_arrows, "custom_ops/ops/x_ops.cc", '#include "custom_ops/kernels/kernel_util.h"'),
    (check_flags, "custom_ops/native_build.py", '"-march=native"'),
    (check_flags, "Makefile", "CXXFLAGS = -O3 -ffast-math"),
    (check_flags, "custom_ops/core/BUILD", 'copts = ["-Ofast"]'),
    (check_flags, "custom_ops/native_build.py", '"--use_fast_math"'),
    (check_flags, "custom_ops/native_build.py", '"--ftz=true"'),
    (check_flags, "custom_ops/core/x.cc", '__attribute__((optimize("fast-math")))'),
    (check_flags, "custom_ops/core/x.cc", '#pragma GCC optimize "Ofast,fast-math"'),
    (check_flags, "custom_ops/core/x.cc", "#pragma STDC FP_CONTRACT ON"),
    (check_licence, "tf_gradcomp/x.py", "import os\n"),
    (check_licence, "tf_gradcomp/x.py", f"import os\n# {SPDX}\n"),
    (check_licence, "custom_ops/core/x.h", f"# {SPDX}\n"),
    (check_licence, "custom_ops/core/x.cc", ""),
    (check_licence, ".ci/run", "#!/bin/bash\nset -e\n"),
]

GOOD = [
    (check_python_arrows, "tf_gradcomp/codecs/x.py", "from tf_gradcomp.ops import top_k"),
    (check_python_arrows, "tf_gradcomp/codecs/x.py", "from .base import Codec\nimport tensorflow"),
    (check_python_arrows, "tf_gradcomp/transports/x.py", "from tf_gradcomp.distribute import a"),
    (check_python_arrows, "tf_gradcomp/distribute/keras3.py", "import keras"),
    (check_python_arrows, "tf_gradcomp/distribute/x.py", "from tensorflow.python.ops import a"),
    (check_python_arrows, "tf_gradcomp/callbacks.py", "import tensorflow as tf\ntf.keras"),
    (check_python_arrows, "tf_gradcomp/strategy.py", "# import keras\ns = 'import keras'"),
    (check_python_arrows, "examples/vision.py", "import keras"),
    (check_python_arrows, "tests/reference/x_reference.py", "import numpy\nimport top_k_reference"),
    (check_cxx_arrows, "custom_ops/core/x.cc", '#include <vector>\n#include "custom_ops/core/x.h"'),
    (check_cxx_arrows, "custom_ops/cuda/x.cu.cc", "#include <cub/cub.cuh>\n#include <cuda.h>"),
    (check_cxx_arrows, "custom_ops/kernels/x.cc", '#include "tensorflow/core/framework/op.h"'),
    (check_cxx_arrows, "custom_ops/kernels/x.cc", '#include "custom_ops/cuda/x_cuda.h"'),
    (check_flags, "custom_ops/native_build.py", '"-O3", "-ffp-contract=off", "--fmad=false"'),
    (check_flags, "custom_ops/core/x.h", "// no fast-math here"),
    (check_flags, "docs/numerics.md", "never -march=native"),
    (check_licence, "tf_gradcomp/x.py", f"# {SPDX}\nimport os\n"),
    (check_licence, "tf_gradcomp/x.py", f"#!/usr/bin/env python3\n# {SPDX}\n"),
    (check_licence, "custom_ops/core/x.h", f"// {SPDX}\n"),
    (check_licence, "README.md", "tf_gradcomp\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_rule_refuses(rule: Rule, path: str, text: str):
    assert rule(path, text)


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_rule_accepts(rule: Rule, path: str, text: str):
    assert rule(path, text) == []


def test_duplicate_names_are_found():
    paths = ["custom_ops/core/a.h", "custom_ops/cuda/a.h", "tests/ops/b_test.py", "tests/b_test.py"]
    assert len(duplicate_names(paths)) == 2
    assert duplicate_names(["custom_ops/core/a.h", "custom_ops/core/a.cc", "tests/BUILD"]) == []


# --- The tree keeps them -------------------------------------------------------------------------


def test_the_tree_is_read():
    # Guards the tests below: an empty tree keeps every rule.
    paths = list(tree())
    for path in ("setup.py", ".ci/run", "tf_gradcomp/ops/loader.py", "tests/source_rules_test.py"):
        assert path in paths
    assert sum(path.startswith("custom_ops/core/") and path.endswith(".cc") for path in paths) >= 1


def complaints(rule: Rule, suffixes: tuple[str, ...]) -> list[str]:
    return [
        f"{path}: {complaint}"
        for path in tree()
        if path.endswith(suffixes)
        for complaint in rule(path, read(path))
    ]


def test_python_arrows():
    assert complaints(check_python_arrows, (".py",)) == []


def test_cxx_arrows():
    assert complaints(check_cxx_arrows, CXX_SUFFIXES) == []


def test_flags():
    assert complaints(check_flags, SOURCE_SUFFIXES) == []


def test_licence():
    assert complaints(check_licence, SOURCE_SUFFIXES) == []


def test_names_are_unique():
    assert duplicate_names(list(tree())) == []
