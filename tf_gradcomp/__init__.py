# SPDX-License-Identifier: Apache-2.0
"""tf_gradcomp: Keras multi-worker training that sends less.

Importing the package loads neither TensorFlow nor the native library; the first use of a name
does, so that the command line starts at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from tf_gradcomp.ops import loader as _loader
from tf_gradcomp.version import __version__

if TYPE_CHECKING:
    from tf_gradcomp import callbacks, methods
    from tf_gradcomp.agreement import PlanMismatchError
    from tf_gradcomp.checkpoint import ExchangeState
    from tf_gradcomp.compression import Compression
    from tf_gradcomp.distribute.gradient_scope import all_reduce_gradients
    from tf_gradcomp.drift import DriftCheck
    from tf_gradcomp.plan import Plan
    from tf_gradcomp.policy import Policy
    from tf_gradcomp.strategy import CompressedMultiWorkerMirroredStrategy

_EXPORTS = {
    "Compression": "tf_gradcomp.compression",
    "DriftCheck": "tf_gradcomp.drift",
    "ExchangeState": "tf_gradcomp.checkpoint",
    "CompressedMultiWorkerMirroredStrategy": "tf_gradcomp.strategy",
    "Plan": "tf_gradcomp.plan",
    "PlanMismatchError": "tf_gradcomp.agreement",
    "Policy": "tf_gradcomp.policy",
    "all_reduce_gradients": "tf_gradcomp.distribute.gradient_scope",
}
_MODULES = ("callbacks", "methods")

__all__ = [
    "CompressedMultiWorkerMirroredStrategy",
    "Compression",
    "DriftCheck",
    "ExchangeState",
    "Plan",
    "PlanMismatchError",
    "Policy",
    "__version__",
    "all_reduce_gradients",
    "callbacks",
    "methods",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tf_gradcomp.{name}")
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'tf_gradcomp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _is_command_line() -> bool:
    """Whether the command line is starting: it must run, and explain, where TensorFlow is not."""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    as_module = ("-m", "tf_gradcomp") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return program.startswith("tf-gradcomp") or (sys.argv[:1] == ["-m"] and as_module)


if not _is_command_line():
    _loader.check()
