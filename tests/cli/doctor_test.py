# SPDX-License-Identifier: Apache-2.0
"""The doctor's judgements, and that a broken TensorFlow is a line of the report."""

from __future__ import annotations

import json
import socket

import pytest

from tf_gradcomp.cli import doctor, main

_TF = {"tensorflow": {"version": "2.21.0"}}


def report(stdout: str) -> dict[str, tuple[str, str]]:
    """Status and text, with the remedy, by subject."""
    lines: dict[str, tuple[str, str]] = {}
    subject = ""
    for line in stdout.split("\n\n")[0].splitlines():
        if line.startswith(" "):
            status, text = lines[subject]
            lines[subject] = (status, f"{text} {line.strip()}")
        else:
            subject = line[6:20].strip()
            lines[subject] = (line[:4].strip(), line[20:])
    return lines


def fake_tensorflow(command_line, text: str) -> str:
    """Puts a package in TensorFlow's place; returns the value of PYTHONPATH that does it."""
    package = command_line.directory / "fake" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    return str(package.parent)


# The whole report.


def test_this_environment_is_healthy(command_line):
    import tensorflow

    code, out, err = command_line.run("doctor")
    lines = report(out)
    assert code == 0, out + err
    assert lines["TensorFlow"] == ("ok", tensorflow.__version__)
    generation = tensorflow.keras.Model.__module__.partition(".")[0].replace("_", "-")
    assert f"({generation} " in lines["Keras"][1]
    assert lines["native ops"][0] == lines["strategy"][0] == "ok"
    assert lines["TF_CONFIG"][0] == "ok"


def test_without_tensorflow(command_line):
    path = fake_tensorflow(
        command_line,
        "raise ModuleNotFoundError(\"No module named 'tensorflow'\", name='tensorflow')",
    )
    code, out, err = command_line.run("doctor", PYTHONPATH=path)
    lines = report(out)
    assert (code, err) == (1, "")
    assert lines["TensorFlow"][0] == "FAIL"
    assert lines["TensorFlow"][1].startswith("not installed -> pip install")
    assert lines["Python"][0] == "ok"
    assert lines["TF_CONFIG"][0] == "ok"


def test_tensorflow_that_crashes(command_line):
    path = fake_tensorflow(
        command_line, "import os, signal; print('{', 7); os.kill(os.getpid(), signal.SIGILL)"
    )
    code, out, err = command_line.run("doctor", PYTHONPATH=path)
    lines = report(out)
    assert (code, err) == (1, "")
    assert lines["TensorFlow"][0] == "FAIL"
    assert "killed by SIGILL" in lines["TensorFlow"][1]
    assert lines["native ops"][0] == "FAIL"
    assert "ended while it looked at tensorflow" in lines["native ops"][1]
    assert "TF_CONFIG" in lines


def test_crash_after_tensorflow_is_told_from_one_in_it(command_line):
    path = fake_tensorflow(command_line, "__version__ = '2.21.0'")
    private_part = command_line.directory / "fake" / "tensorflow" / "python.py"
    private_part.write_text("import os; os._exit(9)")
    code, out, _ = command_line.run("doctor", PYTHONPATH=path)
    lines = report(out)
    assert code == 1
    assert lines["TensorFlow"] == ("ok", "2.21.0")
    assert lines["Keras"][0] == "FAIL"
    assert "exit code 9" in lines["Keras"][1]


def test_bad_tf_config_is_reported_beside_a_broken_tensorflow(command_line):
    path = fake_tensorflow(command_line, "raise ImportError('broken')")
    code, out, _ = command_line.run("doctor", PYTHONPATH=path, TF_CONFIG="{")
    lines = report(out)
    assert code == 1
    assert lines["TensorFlow"][1].startswith("broken -> ")
    assert lines["TF_CONFIG"][0] == "FAIL"


@pytest.mark.parametrize(
    ("statuses", "code"), [(["ok"], 0), (["ok", "warn"], 0), (["FAIL", "ok"], 1)]
)
def test_exit_code(monkeypatch, capsys, statuses, code):
    findings = [doctor.Finding(status, "thing", "is so", "do this") for status in statuses]
    monkeypatch.setattr(doctor, "findings", lambda: iter(findings))
    assert main(["doctor"]) == code
    out = capsys.readouterr().out
    assert [line[:4].strip() for line in out.splitlines() if "thing" in line] == statuses
    assert out.count("-> do this") == len(statuses)


# TF_CONFIG.


def tf_config(*workers: str, index: object = 0, kind: str = "worker") -> str:
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": kind, "index": index}})


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def test_good_tf_config(port):
    for host in ("127.0.0.1", "localhost", socket.gethostname()):
        finding = doctor.check_tf_config(tf_config("127.0.0.1:1", f"{host}:{port}", index=1))
        assert finding.status == "ok", finding
        assert f"worker 1 of 2 at {host}:{port}" in finding.text


def test_no_tf_config():
    assert doctor.check_tf_config(None).status == "ok"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not of the right form"),
        ("{}", "'cluster'"),
        ('{"cluster": {"worker": ["a:1"]}}', "'task'"),
        ('{"cluster": ["a:1"], "task": {"type": "worker", "index": 0}}', "not of the right form"),
        (tf_config("a:1", kind="trainer"), "task type 'trainer' is not in the cluster"),
        (tf_config("a:1", index=1), "task index must be in 0..0 for 'worker', got 1"),
        (tf_config("a:1", index=-1), "task index must be in 0..0"),
        (tf_config("a:1", index="0"), "got '0'"),
        (tf_config("a:1", index=False), "got False"),
        (tf_config("a:1", "b:1", "a:1"), "a:1 is listed twice"),
        (tf_config("a"), "'a' is not of the form host:port"),
        (tf_config("a:b"), "'a:b' is not of the form host:port"),
        (tf_config("a:65536"), "the port of 'a:65536' is not in 1..65535"),
        (tf_config("a:0"), "the port of 'a:0' is not in 1..65535"),
    ],
)
def test_malformed_tf_config(value, text):
    finding = doctor.check_tf_config(value)
    assert finding.status == "FAIL"
    assert text in finding.text
    assert '"cluster"' in finding.remedy


def test_own_port_in_use():
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        finding = doctor.check_tf_config(tf_config(f"127.0.0.1:{port}"))
    assert finding.status == "FAIL"
    assert "cannot be used" in finding.text


def test_own_host_unknown(port):
    finding = doctor.check_tf_config(tf_config(f"no-such-host.invalid:{port}"))
    assert finding.status == "FAIL"
    assert "does not resolve" in finding.text


def test_own_address_elsewhere(port):
    # 192.0.2.0/24 is reserved for documentation (RFC 5737).
    finding = doctor.check_tf_config(tf_config(f"192.0.2.7:{port}"))
    assert finding.status == "warn"
    assert "not an address of this machine" in finding.text


# TensorFlow, Keras, native library, GPUs, CPU.


def test_old_tensorflow():
    assert doctor.check_tensorflow({"tensorflow": {"version": "2.14.1"}}).status == "FAIL"
    assert doctor.check_tensorflow({"tensorflow": {"version": "2.15.1"}}).status == "ok"


@pytest.mark.parametrize(
    ("package", "version", "backend", "status", "text"),
    [
        ("keras", "3.15.1", "tensorflow", "ok", "Keras 3 (keras 3.15.1)"),
        ("keras", "3.5.0", "tensorflow", "ok", "Keras 3"),
        ("keras", "3.4.1", "tensorflow", "FAIL", "Keras 3 (keras 3.4.1)"),
        ("keras", "3.15.1", "jax", "FAIL", "backend is jax"),
        ("keras", "2.15.0", "tensorflow", "ok", "Keras 2 (keras 2.15.0)"),
        ("tf_keras", "2.21.0", "tensorflow", "ok", "Keras 2 (tf-keras 2.21.0)"),
    ],
)
def test_keras_generations(package, version, backend, status, text):
    keras = {"package": package, "version": version, "backend": backend}
    finding = doctor.check_keras({**_TF, "keras": keras})
    assert finding.status == status
    assert text in finding.text
    assert bool(finding.remedy) == (status == "FAIL")


def test_legacy_keras_wanted_but_missing(monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    finding = doctor.check_keras({**_TF, "keras": {"error": "no tf_keras"}})
    assert finding.status == "FAIL"
    assert "pip install tf-keras" in finding.remedy


def test_native_library():
    error = "was built for TensorFlow 2.15.1, but 2.21.0 is installed; run: python setup.py x"
    finding = doctor.check_native({"native": {"error": error}})
    assert (finding.status, finding.remedy) == ("FAIL", "python setup.py x")
    assert finding.text.endswith("2.21.0 is installed")
    info = {"tensorflow": "2.21.0", "compiler": "g++ 12", "cuda": True}
    finding = doctor.check_native({"native": info})
    assert finding.status == "ok"
    assert finding.text == "for TensorFlow 2.21.0, compiled by g++ 12, with CUDA"


@pytest.mark.parametrize(
    ("gpus", "cuda", "device_files", "status"),
    [
        ({"names": []}, False, 0, "ok"),
        ({"names": []}, False, 2, "warn"),
        ({"names": ["H200"]}, False, 1, "warn"),
        ({"names": ["H200"]}, True, 1, "ok"),
        ({"error": "crashed"}, True, 1, "warn"),
    ],
)
def test_gpus(gpus, cuda, device_files, status):
    finding = doctor.check_gpus({"gpus": gpus, "native": {"cuda": cuda}}, device_files)
    assert finding.status == status


def test_cpu_and_python():
    assert doctor.check_cpu("flags\t\t: fpu sse2 avx2 avx512f\n").text == "avx2 avx512f"
    assert doctor.check_cpu("flags\t\t: fpu sse2\n").status == "warn"
    assert doctor.check_cpu("Features\t: fp asimd\n").text == "asimd"
    assert doctor.check_cpu("").status == "ok"
    assert doctor.check_python((3, 10, 9)).status == "FAIL"
    assert doctor.check_python((3, 11, 0)).status == "ok"
    assert doctor.check_platform("Darwin", "arm64").status == "warn"
    assert doctor.check_nvcc(None).status == "ok"
    assert doctor.check_nvcc("/nonexistent/nvcc").status == "warn"
