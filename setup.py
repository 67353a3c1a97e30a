# SPDX-License-Identifier: Apache-2.0
"""Builds and packages tf_gradcomp.

`python setup.py build_ops` compiles the native library in place, for the TensorFlow of this Python.
`pip install --no-build-isolation .` (or `-e .`) does the same and installs the package. Set
TF_GRADCOMP_CUDA=1 for GPU kernels (TF_GRADCOMP_CUDA_ARCHS="80 90" chooses the architectures).
"""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Command, Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("tf_gradcomp/ops")

# From the oldest to the newest TensorFlow that the tests run on. Private names are used, so the
# upper bound moves only after the tests have passed on a newer one. Keras 3 before 3.5 sums
# gradients wrongly under a distribution strategy.
TENSORFLOW_RANGE = ">=2.15.1,<2.22"
KERAS = "keras!=3.0.*,!=3.1.*,!=3.2.*,!=3.3.*,!=3.4.*"

EXTRAS = {
    "cpu": [f"tensorflow-cpu{TENSORFLOW_RANGE}", KERAS],
    "gpu": [f"tensorflow[and-cuda]{TENSORFLOW_RANGE}", KERAS],
    # The last TensorFlow that tensorflow-addons supports; its wheels are built for NumPy 1.
    "tfa": ["tensorflow-cpu==2.15.1", "tensorflow-addons==0.23.0", "keras==2.15.*", "numpy<2"],
    # Formatters decide what CI accepts, so their versions are fixed.
    "dev": [
        "absl-py",
        "clang-format==18.1.8",
        "hypothesis>=6.100",
        "mypy>=1.10",
        "pytest>=9",
        "pytest-xdist>=3.5",
        "ruff==0.17.6",
        "setuptools>=65",
        "wheel",
    ],
}


def load_by_path(path: str) -> ModuleType:
    """Loads one module of the checkout without importing the package around it."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def read_version() -> str:
    text = (ROOT / "tf_gradcomp/version.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE).group(1)


def build_library(output_dir: Path, jobs: int, force: bool) -> Path:
    native_build = load_by_path("custom_ops/native_build.py")
    try:
        return native_build.build(
            root=ROOT,
            output_dir=output_dir,
            cache_dir=ROOT / "build" / "ops",
            loader=load_by_path("tf_gradcomp/ops/loader.py"),
            library_version=read_version(),
            jobs=jobs,
            force=force,
        )
    except native_build.BuildError as error:
        raise SetupError(str(error)) from None  # setuptools prints it as one line and exits


class BuildOps(Command):
    """python setup.py build_ops: the library alone, into the source tree."""

    description = "compile the native library for the installed TensorFlow"
    user_options = [
        ("output-dir=", "o", f"folder for the library (default: {PACKAGE})"),
        ("jobs=", "j", "compilers to run at once (default: 2)"),
        ("force", "f", "compile everything again"),
    ]
    boolean_options = ["force"]

    def initialize_options(self):
        self.output_dir = None
        self.jobs = 2
        self.force = False

    def finalize_options(self):
        self.output_dir = Path(self.output_dir).resolve() if self.output_dir else ROOT / PACKAGE
        self.jobs = int(self.jobs)

    def run(self):
        build_library(self.output_dir, self.jobs, bool(self.force))


class BuildExt(build_ext):
    """Lets pip and `build_ext` build the library; the wheel gets only the one for this TF."""

    def run(self):
        self._in_place = bool(self.inplace or getattr(self, "editable_mode", False))
        base = ROOT if self._in_place else Path(self.build_lib)
        if not self._in_place:
            # Left by a wheel for another TensorFlow; the whole folder goes into the wheel.
            for stale in (base / PACKAGE).glob("_gradcomp_ops.*"):
                stale.unlink()
        self._library = build_library(base / PACKAGE, int(self.parallel or 2), bool(self.force))

    def get_outputs(self):
        if self._in_place:
            return []
        return [str(self._library), str(self._library.with_suffix(".json"))]

    def get_output_mapping(self):
        return {}

    def get_source_files(self):
        suffixes = (".cc", ".h", ".py", ".md")
        files = sorted((ROOT / "custom_ops").rglob("*"))
        return [str(path.relative_to(ROOT)) for path in files if path.suffix in suffixes]


setup(
    name="tf-gradcomp",
    version=read_version(),
    description="Gradient compression for Keras multi-worker training on TensorFlow",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8")
    if (ROOT / "README.md").exists()
    else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["tf_gradcomp", "tf_gradcomp.*"]),
    package_data={"tf_gradcomp": ["py.typed"]},
    install_requires=["absl-py>=1.0", "numpy>=1.23"],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["tf-gradcomp = tf_gradcomp.cli:main"]},
    ext_modules=[Extension("tf_gradcomp.ops._gradcomp_ops", sources=[])],
    cmdclass={"build_ops": BuildOps, "build_ext": BuildExt},
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: C++",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
