# SPDX-License-Identifier: Apache-2.0
"""`tf-gradcomp doctor`: says whether this machine can train, and what to do if it cannot.

This file judges; what TensorFlow has to say is found out by probe.py in another process.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tf_gradcomp.cli.probe import (
    PROBE_OPTION,
    Facts,
    first_line,
    gather_facts,
    run_probes,
    uses_legacy_keras,
)

_OLDEST_TENSORFLOW = (2, 15)
_OLDEST_KERAS_3 = (3, 5)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
      status: "ok"; "warn" for what works but slower or not as meant; "FAIL" for what does not work.
      subject: what was looked at.
      text: what was found.
      remedy: what to do about it, empty if nothing.
    """

    status: Literal["ok", "warn", "FAIL"]
    subject: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.status:<4}  {self.subject:<13} {self.text}"
        return f"{line}\n{'':<20}-> {self.remedy}" if self.remedy else line


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the parser of `doctor`."""
    parser = subparsers.add_parser(
        "doctor",
        help="check this machine's set-up and say what to do",
        description="Checks Python, TensorFlow, Keras, the native library, GPUs and TF_CONFIG. "
        "Returns 1 if anything does not work, else 0.",
    )
    parser.add_argument(PROBE_OPTION, action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Prints the report, or facts for the process that makes it (`--probe`).

    Returns:
      1 if any finding is a FAIL, else 0.
    """
    if args.probe:
        run_probes()
        return 0
    statuses = []
    for finding in findings():
        print(finding, flush=True)
        statuses.append(finding.status)
    failures = statuses.count("FAIL")
    print(f"\n{failures} failed, {statuses.count('warn')} warned, {statuses.count('ok')} ok")
    return 1 if failures else 0


def findings() -> Iterator[Finding]:
    """Yields the findings from the machine up: a failure early often explains the later ones."""
    yield check_python(sys.version_info[:3])
    yield check_platform(platform.system(), platform.machine())
    yield check_cpu(_read("/proc/cpuinfo"))
    facts = gather_facts()
    for check in (check_tensorflow, check_keras, check_native, check_strategy):
        yield check(facts)
    yield check_gpus(facts, len(glob.glob("/dev/nvidia[0-9]*")))
    yield check_nvcc(shutil.which("nvcc"))
    yield check_tf_config(os.environ.get("TF_CONFIG"))


# What can be seen without TensorFlow.


def check_python(version: tuple[int, int, int]) -> Finding:
    """Judges the running Python."""
    text = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version < (3, 11):
        return Finding("FAIL", "Python", text, "use Python 3.11 or later")
    return Finding("ok", "Python", text)


def check_platform(system: str, machine: str) -> Finding:
    """Judges the operating system and the kind of CPU."""
    text = f"{system} {platform.release()}, {machine}, {os.cpu_count()} cores"
    if system != "Linux":
        return Finding("warn", "platform", text, "only Linux is tested")
    return Finding("ok", "platform", text)


def check_cpu(cpuinfo: str) -> Finding:
    """Judges the vector instructions named in Linux' /proc/cpuinfo."""
    flags: set[str] = set()
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):  # x86, Arm
            flags = set(value.split())
            break
    if not flags:
        return Finding("ok", "CPU", "vector instructions unknown")
    present = [name for name in ("avx2", "avx512f", "asimd", "sve") if name in flags]
    if not present:
        return Finding(
            "warn", "CPU", "neither avx2 nor avx512f", "encoding works but is slow on this CPU"
        )
    return Finding("ok", "CPU", " ".join(present))


def check_nvcc(path: str | None) -> Finding:
    """Says whether CUDA code can be compiled here; most machines need not."""
    if path is None:
        return Finding("ok", "nvcc", "none; needed only to build the native library for GPUs")
    try:
        version = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("warn", "nvcc", f"{path} does not run: {first_line(error)}")
    release = next((line for line in version.splitlines() if "release" in line), version.strip())
    return Finding("ok", "nvcc", f"{path}: {release}")


def check_tf_config(value: str | None) -> Finding:
    """Judges TF_CONFIG: its form, that the task is in the cluster, that its port can be used.

    Other workers' addresses are not tried: they may well start later than this one.
    """
    if value is None:
        return Finding("ok", "TF_CONFIG", "not set: one worker, unless tf-gradcomp launch sets it")
    try:
        config = json.loads(value)
        cluster, task = config["cluster"], config["task"]
        kind, index = task["type"], task["index"]
        addresses = [address for kinds in cluster.values() for address in kinds]
        hosts_and_ports = [_host_and_port(address) for address in addresses]
    except json.JSONDecodeError as error:
        return _bad_tf_config(f"not JSON: {error}")
    except (KeyError, TypeError, AttributeError) as error:
        return _bad_tf_config(f"not of the right form: {type(error).__name__}: {error}")
    except ValueError as error:
        return _bad_tf_config(str(error))
    if len(set(addresses)) < len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        return _bad_tf_config(f"{twice} is listed twice")
    if kind not in cluster:
        return _bad_tf_config(f"task type {kind!r} is not in the cluster: {', '.join(cluster)}")
    if type(index) is not int or not 0 <= index < len(cluster[kind]):
        return _bad_tf_config(
            f"task index must be in 0..{len(cluster[kind]) - 1} for {kind!r}, got {index!r}"
        )
    host, port = hosts_and_ports[addresses.index(cluster[kind][index])]
    return _check_own_address(f"{kind} {index} of {len(addresses)} at {host}:{port}", host, port)


def _host_and_port(address: object) -> tuple[str, int]:
    host, separator, port = str(address).rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit():
        raise ValueError(f"{address!r} is not of the form host:port")
    if not 1 <= int(port) <= 65535:
        raise ValueError(f"the port of {address!r} is not in 1..65535")
    return host.strip("[]"), int(port)


def _bad_tf_config(text: str) -> Finding:
    form = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
    return Finding("FAIL", "TF_CONFIG", text, f"it should read like {form}")


def _check_own_address(task: str, host: str, port: int) -> Finding:
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Finding(
            "FAIL",
            "TF_CONFIG",
            f"{task}: the host does not resolve ({error.strerror})",
            "use a name that every worker can resolve, or an IP address",
        )
    try:
        # As TensorFlow's server binds: on every interface, over connections in TIME_WAIT.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError as error:
        return Finding(
            "FAIL",
            "TF_CONFIG",
            f"{task}: the port cannot be used ({error.strerror})",
            "if this worker is already running, all is well; else choose another port",
        )
    if not any(_is_local(family, address) for family, *_, address in candidates):
        return Finding(
            "warn",
            "TF_CONFIG",
            f"{task}: {candidates[0][4][0]} is not an address of this machine",
            "check that the address leads here (a service or NAT in front), and the task's index",
        )
    return Finding("ok", "TF_CONFIG", task)


def _is_local(family: int, address: tuple[Any, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0, *address[2:]))  # port 0: only the address is in question
    except OSError:
        return False
    return True


# What only TensorFlow can say.


def check_tensorflow(facts: Mapping[str, Facts]) -> Finding:
    """Judges TensorFlow's version, or why there is none."""
    tensorflow = facts["tensorflow"]
    if tensorflow.get("is_missing"):
        remedy = 'pip install "tf-gradcomp[cpu]" (or [gpu], or [tfa] for TensorFlow Addons)'
        return Finding("FAIL", "TensorFlow", "not installed", remedy)
    if "error" in tensorflow:
        remedy = "reinstall it; a wheel for another CPU or a mix of packages does this"
        return Finding("FAIL", "TensorFlow", tensorflow["error"], remedy)
    version = tensorflow["version"]
    if _version(version) < _OLDEST_TENSORFLOW:
        return Finding("FAIL", "TensorFlow", version, "install TensorFlow 2.15 or later")
    return Finding("ok", "TensorFlow", version)


def check_keras(facts: Mapping[str, Facts]) -> Finding:
    """Says which Keras `tf.keras` is, and judges its version and backend."""
    if "version" not in facts["tensorflow"]:
        return Finding("warn", "Keras", f"needs TensorFlow; {_installed_keras()}")
    keras = facts["keras"]
    if "error" in keras:
        remedy = 'pip install "keras>=3.5"'
        if uses_legacy_keras():
            remedy = "pip install tf-keras, or unset TF_USE_LEGACY_KERAS"
        return Finding("FAIL", "Keras", keras["error"], remedy)
    version, package = keras["version"], keras["package"].replace("_", "-")
    text = f"tf.keras is Keras {_version(version)[0]} ({package} {version}); {_installed_keras()}"
    if (3, 0) <= _version(version) < _OLDEST_KERAS_3:
        remedy = 'pip install "keras>=3.5": earlier ones sum gradients wrongly over workers'
        return Finding("FAIL", "Keras", text, remedy)
    if keras["backend"] not in ("", "tensorflow"):
        remedy = "unset KERAS_BACKEND: the strategy is TensorFlow's"
        return Finding("FAIL", "Keras", f"{text}; its backend is {keras['backend']}", remedy)
    return Finding("ok", "Keras", text)


def check_native(facts: Mapping[str, Facts]) -> Finding:
    """Says whether the native library is there and what it was built for."""
    native = facts["native"]
    if "error" in native:
        # The loader's own errors end with the command to run.
        text, _, remedy = native["error"].partition("; run: ")
        return Finding("FAIL", "native ops", text, remedy)
    compiled = f"compiled by {native.get('compiler', 'an unknown compiler')}"
    cuda = "with CUDA" if native.get("cuda") else "without CUDA"
    text = f"for TensorFlow {native.get('tensorflow', 'unknown')}, {compiled}, {cuda}"
    return Finding("ok", "native ops", text)


def check_strategy(facts: Mapping[str, Facts]) -> Finding:
    """Says whether the strategy fits the private interfaces of this TensorFlow and Keras."""
    strategy = facts["strategy"]
    if "error" in strategy:
        return Finding("FAIL", "strategy", strategy["error"])
    return Finding("ok", "strategy", f"{strategy['name']} can be imported")


def check_gpus(facts: Mapping[str, Facts], device_files: int) -> Finding:
    """Compares the GPUs that TensorFlow sees with the machine's."""
    gpus = facts["gpus"]
    names = gpus.get("names", [])
    if "error" in gpus:
        return Finding("warn", "GPUs", "unknown without TensorFlow")
    if not names and device_files:
        return Finding(
            "warn",
            "GPUs",
            f"TensorFlow sees none of this machine's {device_files}",
            'pip install "tf-gradcomp[gpu]", and check nvidia-smi and CUDA_VISIBLE_DEVICES',
        )
    if names and not facts["native"].get("cuda"):
        return Finding(
            "warn",
            "GPUs",
            f"{', '.join(names)}; but the native library was built without CUDA",
            "rebuild with nvcc on the PATH: TF_GRADCOMP_CUDA=1 python setup.py build_ops",
        )
    return Finding("ok", "GPUs", ", ".join(names) or "none")


# Helpers.


def _installed_keras() -> str:
    versions = []
    for name in ("keras", "tf-keras", "tensorflow-addons"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"installed: {', '.join(versions) or 'none'}"


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version, such as (2, 21) of "2.21.0-rc1"."""
    numbers = [int(part) for part in text.split(".")[:2] if part.isdigit()]
    return tuple(numbers)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
