# SPDX-License-Identifier: Apache-2.0
"""Finds out what TensorFlow has to say, in a process of its own.

A TensorFlow which is missing, hangs, or crashes (built for another CPU, say) thus becomes one line
of the doctor's report instead of its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

PROBE_OPTION = "--probe"  # makes `tf-gradcomp doctor` that other process

_TIMEOUT_SECONDS = 180  # a first import from a cold network file system takes its time

Facts = Mapping[str, Any]

# A probe returns facts as a JSON object, or raises.


def _probe_tensorflow() -> Facts:
    import tensorflow as tf

    return {"version": tf.__version__}


def _probe_keras() -> Facts:
    from tf_gradcomp.distribute.keras_adapters import load_active_keras

    load_active_keras()
    package = "tf_keras" if uses_legacy_keras() else "keras"  # TensorFlow's own rule
    if package not in sys.modules:
        raise ImportError(f"tf.keras is {package}, which is missing or cannot be imported")
    keras = sys.modules[package]
    return {
        "package": package,
        "version": keras.__version__,
        "backend": keras.backend.backend(),
    }


def _probe_native() -> Facts:
    from tf_gradcomp.ops import loader

    loader.load()
    return loader.build_info()


def _probe_strategy() -> Facts:
    import tf_gradcomp

    return {"name": tf_gradcomp.CompressedMultiWorkerMirroredStrategy.__name__}


def _probe_gpus() -> Facts:
    import tensorflow as tf

    devices = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(device) for device in devices]
    return {"names": [detail.get("device_name", "GPU") for detail in details]}


_PROBES: dict[str, Callable[[], Facts]] = {
    "tensorflow": _probe_tensorflow,
    "keras": _probe_keras,
    "native": _probe_native,
    "strategy": _probe_strategy,
    "gpus": _probe_gpus,
}


def run_probes() -> None:
    """Prints each probe's facts, or its `error`, as one line of JSON as soon as they are known."""
    for name, probe in _PROBES.items():
        print(json.dumps({"probing": name}), flush=True)
        try:
            facts: Facts = probe()
        except Exception as error:  # a broken installation raises anything
            facts = {"error": first_line(error), "is_missing": _is_missing(error, name)}
        print(json.dumps({name: facts}), flush=True)


def gather_facts() -> dict[str, Facts]:
    """Runs the probes in a process of their own.

    Returns:
      The facts by name of probe; a probe that did not end well has an `error`.
    """
    # TF_CONFIG is judged by itself; here it could only make TensorFlow wait for other workers.
    environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # what this process finds, it finds too
    try:
        process = subprocess.run(
            [sys.executable, "-m", "tf_gradcomp", "doctor", PROBE_OPTION],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
        )
        output, how = process.stdout, _describe_end(process.returncode, process.stderr)
    except subprocess.TimeoutExpired as error:
        output, how = error.stdout or b"", f"took longer than {_TIMEOUT_SECONDS} s"

    results: dict[str, Facts] = {}
    current = "tensorflow"
    for line in output.decode("utf-8", "replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # what an imported package prints
            continue
        if isinstance(entry, dict):
            current = entry.pop("probing", current)
            results.update(entry)
    results.setdefault(current, {"error": how})
    skipped = {"error": f"not looked at, since Python ended while it looked at {current}"}
    return {name: results.get(name, skipped) for name in _PROBES}


def uses_legacy_keras() -> bool:
    """Whether the environment asks TensorFlow for Keras 2 from the package tf-keras."""
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


def first_line(error: BaseException) -> str:
    """What an error says, in one line. An ImportError says enough without its name."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0] if isinstance(error, ImportError) else f"{type(error).__name__}: {lines[0]}"


def _is_missing(error: Exception, package: str) -> bool:
    return isinstance(error, ModuleNotFoundError) and error.name == package


def _describe_end(returncode: int, stderr: bytes) -> str:
    if returncode < 0:
        return f"Python was killed by {signal.Signals(-returncode).name}"
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return f"Python ended with exit code {returncode}: {lines[-1] if lines else 'no message'}"
