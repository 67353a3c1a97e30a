# SPDX-License-Identifier: Apache-2.0
"""Every private name of TensorFlow and Keras that this package uses, checked when imported.

The names are the same from TensorFlow 2.15 to 2.21. A version that lacks one fails here, at
import, with a message that names it.
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

SUPPORTED_TENSORFLOW = "2.15 to 2.21"

_TENSORFLOW_NAMES = {
    "tensorflow.python.distribute.collective_all_reduce_strategy": (
        "CollectiveAllReduceExtended._call_for_each_replica",
        "CollectiveAllReduceExtended._initialize_strategy",
        "CollectiveAllReduceExtended._use_merge_call",
    ),
    "tensorflow.python.distribute.collective_util": ("Options.merge",),
    "tensorflow.python.distribute.cross_device_ops": (
        "CollectiveAllReduce._all_reduce",
        "CollectiveAllReduce._all_reduce_per_replica_values",
    ),
    "tensorflow.python.distribute.cross_device_utils": (
        "CollectiveReplicaLauncher.all_reduce",
        "CollectiveReplicaLauncher._all_gather",
        "CollectiveReplicaLauncher._next_instance_key",
        "CollectiveKeys.get_group_key",
    ),
    "tensorflow.python.distribute.distribute_utils": ("regroup",),
    "tensorflow.python.distribute.values": ("Mirrored",),
    "tensorflow.python.ops.resource_variable_ops": ("ResourceVariable",),
}


def require(module_name: str, path: str, package: str, supported: str) -> Any:
    """Returns ``module_name.path``.

    Raises:
      ImportError: it does not exist; names the package, its version and what is supported.
    """
    try:
        value: Any = importlib.import_module(module_name)
        for name in path.split("."):
            value = getattr(value, name)
        return value
    except (ImportError, AttributeError):
        version = getattr(importlib.import_module(package), "__version__", "unknown")
        raise ImportError(
            f"tf_gradcomp needs {module_name}.{path}, which {package} {version} does not have; "
            f"supported: {supported}"
        ) from None


def _check_tensorflow() -> None:
    for module_name, paths in _TENSORFLOW_NAMES.items():
        for path in paths:
            require(module_name, path, "tensorflow", SUPPORTED_TENSORFLOW)


_check_tensorflow()

from tensorflow.python.distribute.collective_all_reduce_strategy import (  # noqa: E402
    CollectiveAllReduceExtended,
)
from tensorflow.python.distribute.collective_util import Options  # noqa: E402
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce  # noqa: E402
from tensorflow.python.distribute.cross_device_utils import (  # noqa: E402
    CollectiveReplicaLauncher,
)
from tensorflow.python.distribute.distribute_utils import regroup  # noqa: E402
from tensorflow.python.distribute.values import Mirrored  # noqa: E402
from tensorflow.python.ops.resource_variable_ops import ResourceVariable  # noqa: E402

__all__ = [
    "CollectiveAllReduce",
    "CollectiveAllReduceExtended",
    "CollectiveReplicaLauncher",
    "Mirrored",
    "Options",
    "ResourceVariable",
    "regroup",
    "require",
]


def local_variable(initial_value: Any, name: str) -> tf.Variable:
    """Makes a variable that belongs to this worker alone.

    Unlike ``tf.Variable``, this does not pass through the strategy's variable creator, which
    would mirror the variable and broadcast worker 0's value to the others. It may be called
    while a ``tf.function`` is traced: the variable is made outside of the graph.

    Args:
      initial_value: a function that returns the initial value.
      name: name of the variable.
    """
    with tf.init_scope():
        return ResourceVariable(initial_value(), trainable=False, name=name)
