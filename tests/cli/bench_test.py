# SPDX-License-Identifier: Apache-2.0
"""`tf-gradcomp bench`: what it measures is the real job, and what it reports adds up."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tf_gradcomp.cli import bench_codecs, bench_pipelines, main
from tf_gradcomp.compression import Compression

CHECKOUT = Path(__file__).resolve().parents[2]
FFT = "fft:density=0.15,bits=10"
DENSITY = 0.15
LENGTH = 4096  # of a row of the transform
ELEMENTS = 10_000  # three rows, the last one padded


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict]]:
    """Output and JSON of one small run."""
    path = tmp_path_factory.mktemp("bench") / "figures.json"
    options = ["--elements", str(2 * LENGTH), "--threads", "1", "--workers", "3", "--repeats", "2"]
    run = python("-m", "tf_gradcomp", "bench", "codecs", *options, "--json", str(path))
    assert run.returncode == 0, run.stderr
    return run.stdout, json.loads(path.read_text(encoding="utf-8"))


def pipeline(name: str, num_elements: int = ELEMENTS) -> bench_pipelines.Pipeline:
    if name == bench_codecs.BASELINE:
        return bench_pipelines.PythonBaseline(num_elements)
    return bench_pipelines.CodecPipeline(Compression.from_spec(name), num_elements)


def dropped_share(gradient: np.ndarray) -> float:
    """Share of the energy outside the largest bins, by Parseval's identity; whole rows only."""
    energies = np.abs(np.fft.rfft(gradient.astype(np.float64).reshape(-1, LENGTH))) ** 2
    energies[:, 1:-1] *= 2  # bins that stand for their conjugates too
    energies = np.sort(energies, axis=None)
    num_kept = math.ceil(DENSITY * energies.size)
    return energies[:-num_kept].sum() / energies.sum()


def assert_error_is_that_of_top_k(error: float, dropped: float) -> None:
    """At best what is dropped; at worst 2^-7 of each value kept too, and float32's rounding."""
    assert dropped * (1 - 1e-5) <= error**2 <= dropped + (1 - dropped) * 2**-14 + 1e-5


# --- The report ---------------------------------------------------------------------------------


def test_json_has_one_object_per_codec(report):
    _, results = report
    assert [result["codec"] for result in results] == [FFT, "identity", "python-baseline"]
    for result in results:
        assert set(result) >= {
            "codec",
            "elements",
            "threads",
            "encode_ms",
            "decode_sum_ms",
            "copy_ms",
            "wire_bits_per_element",
            "relative_error",
        }
        assert (result["elements"], result["threads"], result["workers"]) == (2 * LENGTH, 1, 3)


def test_times_and_ratios_fit(report):
    _, results = report
    assert len({result["copy_ms"] for result in results}) == 1
    for result in results:
        assert min(result["encode_ms"], result["decode_sum_ms"], result["copy_ms"]) > 0
        seconds = result["encode_ms"] / 1000
        assert result["encode_gb_per_s"] == pytest.approx(2 * LENGTH * 4 / seconds / 1e9)
        for action in ("encode", "decode_sum"):
            ratio = result[f"{action}_ms"] / result["copy_ms"]
            assert result[f"{action}_over_copy"] == pytest.approx(ratio)


def test_wire_bits(report):
    _, results = report
    bits = {result["codec"]: result["wire_bits_per_element"] for result in results}
    # By FORMAT.md: 2 rows of 2,049 bins, of which ceil(0.15 * 4098) = 615 are kept. Positions:
    # bitmap of ceil(4098 / 32) = 129 words, of which Elias-Fano would save less than a third. Range
    # float: 3 words and ceil(1230 * 10 / 32) = 385.
    assert bits[FFT] == 32 * (129 + 3 + 385) / (2 * LENGTH)
    assert bits["identity"] == 32
    # A scale, 615 indices, 615 pairs of float16.
    assert bits["python-baseline"] == 32 * (1 + 615 + 615) / (2 * LENGTH)


def test_identity_has_no_error(report):
    _, results = report
    (identity,) = (result for result in results if result["codec"] == "identity")
    assert identity["relative_error"] == 0


def test_reported_errors_are_those_of_the_sample(report):
    _, results = report
    dropped = dropped_share(bench_codecs.sample_gradient(2 * LENGTH, 0))
    for result in results:
        if result["codec"] != "identity":
            assert_error_is_that_of_top_k(result["relative_error"], dropped)


def test_table(report):
    out, results = report
    assert "TensorFlow " + tf.__version__ in out
    assert "1 intra-op threads" in out
    assert f"{len(os.sched_getaffinity(0))} cores" in out
    lines = out.splitlines()
    baseline_ms = results[-1]["encode_ms"]
    for result in results:
        (line,) = (line for line in lines if line.startswith(result["codec"] + " "))
        figures = [float(figure) for figure in line.removeprefix(result["codec"]).split()]
        expected = [
            result["encode_ms"],
            result["encode_gb_per_s"],
            result["encode_over_copy"],
            baseline_ms / result["encode_ms"],
            result["decode_sum_ms"],
            result["decode_sum_over_copy"],
            result["wire_bits_per_element"],
            result["relative_error"],
        ]
        assert figures == pytest.approx(expected, abs=0.06)


def test_help_needs_no_tensorflow():
    code = (
        "import sys\n"
        "from tf_gradcomp.cli import main\n"
        "try: main(['bench', 'codecs', '--help'])\n"
        "finally: assert 'tensorflow' not in sys.modules"
    )
    run = python("-c", "import sys; sys.argv[0] = 'tf-gradcomp'\n" + code)
    assert run.returncode == 0, run.stderr
    assert "--elements" in run.stdout


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--elements", "0"], "--elements must be in 1..1073741824, got 0"),
        (["--elements", "1073741825"], "--elements must be in 1..1073741824, got 1073741825"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--workers", "-1"], "--workers must be at least 1, got -1"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--codec", "nosuch"], "unknown codec 'nosuch'"),
        (["--codec", "identity", "fft:density=2"], "density must be in (0, 1.0], got 2"),
        (["--codec", "identity", "--codec", "fft:density"], "expected key=value, got 'density'"),
        (["--codec", "none"], "'none' is no codec"),
        (["--codec", "powersgd:rank=2"], "'powersgd:rank=2' cannot be timed here"),
        (["--json", "missing/figures.json"], "--json missing/figures.json: not a file in an"),
        (["--json", "."], "--json .: not a file in an existing folder"),
    ],
)
def test_bad_input_is_one_line(options, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "codecs", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tf-gradcomp bench codecs: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_missing_library_is_one_line(capsys, monkeypatch):
    monkeypatch.setenv("TF_GRADCOMP_OPS_LIBRARY", "missing.so")
    assert main(["bench", "codecs"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "build_ops" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["bench"], ["bench", "nosuch"]])
def test_benchmark_must_be_named(arguments, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert "BENCHMARK" in capsys.readouterr().err


# --- What is measured ---------------------------------------------------------------------------


def test_actions_take_turns_and_the_warm_up_is_dropped():
    calls = []

    def slow_at_first() -> None:
        calls.append("a")
        # Five rounds of warm-up, and the first of the two runs in each later round.
        if calls.count("a") <= 10 or calls.count("a") % 2:
            time.sleep(0.05)

    def slow() -> None:
        calls.append("b")
        time.sleep(0.05)

    times = bench_codecs.median_ms({("x", "a"): slow_at_first, ("x", "b"): slow}, repeats=3)
    assert calls == ["a", "a", "b", "b"] * 8
    assert times["x", "a"] < 25
    assert times["x", "b"] >= 50


def test_samples_are_reproducible_and_differ_by_worker():
    first = bench_codecs.sample_gradient(3000, 0)
    assert (first.dtype, first.shape) == (np.float32, (3000,))
    np.testing.assert_array_equal(first, bench_codecs.sample_gradient(3000, 0))
    assert not np.array_equal(first, bench_codecs.sample_gradient(3000, 1))


def test_relative_error():
    expected = np.array([3, 0, 4], np.float32)
    assert bench_codecs.relative_error(expected, np.array([3, 1, 4], np.float32)) == 0.2


@pytest.mark.parametrize("name", [FFT, bench_codecs.BASELINE])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_largest_bins_are_sent(name, scale, rng):
    # Whole rows: an error that falls on padding is cut off, and the bounds would not hold.
    gradient = (scale * rng.standard_t(3, 3 * LENGTH)).astype(np.float32)
    subject = pipeline(name, gradient.size)
    payload = subject.encode(tf.constant(gradient))
    decoded = subject.decode_sum(payload[tf.newaxis]).numpy()
    error = bench_codecs.relative_error(gradient, decoded)
    assert_error_is_that_of_top_k(error, dropped_share(gradient))


@pytest.mark.parametrize("name", [FFT, "identity", bench_codecs.BASELINE])
def test_decode_sum_adds_the_workers(name, rng):
    subject = pipeline(name)
    gradients = [tf.constant(rng.standard_normal(ELEMENTS), tf.float32) for _ in range(3)]
    payloads = bench_codecs.first_payloads(subject, gradients)
    alone = [subject.decode_sum(payloads[w : w + 1]).numpy() for w in range(3)]
    # A sum of three and the transform's rounding, on values around 1.
    np.testing.assert_allclose(subject.decode_sum(payloads).numpy(), sum(alone), atol=1e-5)


@pytest.mark.parametrize("name", [FFT, bench_codecs.BASELINE])
def test_what_was_lost_is_sent_later(name, rng):
    gradient = rng.standard_normal(ELEMENTS).astype(np.float32)
    subject = pipeline(name)
    total = np.zeros(ELEMENTS)
    rounds = 60
    for number in range(rounds):
        bucket = tf.constant(gradient) if number == 0 else tf.zeros(ELEMENTS)
        total += subject.decode_sum(subject.encode(bucket)[tf.newaxis]).numpy()
    # Each round sends at least its density of the residual's energy, up to 2^-7 of each value.
    bound = (1 - DENSITY * (1 - 2**-14)) ** (rounds / 2)
    assert bench_codecs.relative_error(gradient, total) <= bound


@pytest.mark.parametrize("name", [FFT, bench_codecs.BASELINE])
def test_reset_forgets_the_residual(name, rng):
    subject = pipeline(name)
    bucket = tf.constant(rng.standard_normal(ELEMENTS), tf.float32)
    first, second = subject.encode(bucket).numpy(), subject.encode(bucket).numpy()
    assert not np.array_equal(first, second)
    subject.reset()
    np.testing.assert_array_equal(subject.encode(bucket).numpy(), first)


@pytest.mark.parametrize("name", [FFT, bench_codecs.BASELINE])
def test_first_payloads_know_no_residual(name, rng):
    buckets = [tf.constant(rng.standard_normal(ELEMENTS), tf.float32) for _ in range(2)]
    pipelines = [pipeline(name), pipeline(name)]
    alone = [p.encode(bucket).numpy() for p, bucket in zip(pipelines, buckets, strict=True)]
    payloads = bench_codecs.first_payloads(pipeline(name), buckets)
    np.testing.assert_array_equal(payloads.numpy(), alone)


@pytest.mark.parametrize("name", [FFT, bench_codecs.BASELINE])
@pytest.mark.parametrize("num_elements", [1, 4096, 4097])
def test_awkward_sizes(name, num_elements):
    subject = pipeline(name, num_elements)
    payload = subject.encode(tf.ones(num_elements))
    assert subject.decode_sum(payload[tf.newaxis]).shape == (num_elements,)
    subject.reset()
    zeros = subject.decode_sum(subject.encode(tf.zeros(num_elements))[tf.newaxis]).numpy()
    np.testing.assert_array_equal(zeros, np.zeros(num_elements, np.float32))
