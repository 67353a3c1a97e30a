# SPDX-License-Identifier: Apache-2.0
"""Every private name of TensorFlow and Keras that this package uses, checked when imported.

The names are the same from TensorFlow 2.15 to 2.21. A version that lacks one fails with a message
that names it: here, at import, or when the first strategy is made, for what only an object has.
The adapters ``keras2`` and ``keras3`` check their Keras' names in the same way, one by one, as
they need them.
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

SUPPORTED_TENSORFLOW = "2.15 to 2.21"

_TENSORFLOW_NAMES = {
    "tensorflow.python.distribute.collective_all_reduce_strategy": (
        "CollectiveAllReduceExtended._call_for_each_replica",
        "CollectiveAllReduceExtended._distribute_datasets_from_function",
        "CollectiveAllReduceExtended._experimental_distribute_dataset",
        "CollectiveAllReduceExtended._initialize_strategy",
        "CollectiveAllReduceExtended._get_replica_id_in_sync_group",
    ),
    "tensorflow.python.distribute.collective_util": ("Options.merge",),
    "tensorflow.python.distribute.cross_device_ops": (
        "CollectiveAllReduce._all_reduce",
        "CollectiveAllReduce._all_reduce_per_replica_values",
    ),
    "tensorflow.python.distribute.cross_device_utils": (
        "CollectiveReplicaLauncher.all_reduce",
        "CollectiveReplicaLauncher.all_reduce_indexed_slices",
        "CollectiveReplicaLauncher._all_gather",
        "CollectiveReplicaLauncher._get_ordering_token",
        "CollectiveReplicaLauncher._next_instance_key",
        "CollectiveKeys.get_group_key",
    ),
    "tensorflow.python.distribute.distribute_utils": ("regroup", "select_replica"),
    "tensorflow.python.distribute.values": ("Mirrored",),
    "tensorflow.python.framework.config": ("is_op_determinism_enabled",),
    "tensorflow.python.ops.resource_variable_ops": ("ResourceVariable",),
}


# Attributes that objects of these classes have, by the name of the class.
_OBJECT_NAMES = {
    "CollectiveAllReduceExtended": (
        "_collective_keys",
        "_communication_options",
        "_cross_device_ops",
        "_devices",
        "_id_in_cluster",
    ),
    "CollectiveAllReduce": ("_devices", "_group_size", "_launchers", "_lock"),
    "CollectiveReplicaLauncher": ("_device", "_group_key", "_group_size", "_options"),
}
# Read where present only: "_distributed_container" and "_unique_id" of variables.


def check_object(value: Any, class_name: str) -> None:
    """Raises ImportError unless an object has the private attributes that are used of it."""
    for name in _OBJECT_NAMES[class_name]:
        if not hasattr(value, name):
            raise ImportError(
                f"tf_gradcomp needs {class_name}.{name}, which tensorflow {tf.__version__} does "
                f"not have; supported: {SUPPORTED_TENSORFLOW}"
            )


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
from tensorflow.python.distribute.distribute_utils import (  # noqa: E402
    regroup,
    select_replica,
)
from tensorflow.python.distribute.values import Mirrored  # noqa: E402
from tensorflow.python.framework.config import is_op_determinism_enabled  # noqa: E402
from tensorflow.python.ops.resource_variable_ops import ResourceVariable  # noqa: E402

__all__ = [
    "CollectiveAllReduce",
    "CollectiveAllReduceExtended",
    "CollectiveReplicaLauncher",
    "Mirrored",
    "Options",
    "ResourceVariable",
    "check_object",
    "is_op_determinism_enabled",
    "local_variable",
    "regroup",
    "require",
    "select_replica",
]


def local_variable(initial_value: Any, device: str, name: str) -> tf.Variable:
    """Makes a variable that belongs to this worker alone.

    Unlike ``tf.Variable``, this does not pass through the strategy's variable creator, which
    would mirror the variable and broadcast worker 0's value to the others. It may be called
    while a ``tf.function`` is traced: the variable is made outside of the graph.

    Args:
      initial_value: a function that returns the initial value.
      device: where the variable lives.
      name: name of the variable.
    """
    with tf.init_scope(), tf.device(device):
        return ResourceVariable(initial_value(), trainable=False, name=name)
