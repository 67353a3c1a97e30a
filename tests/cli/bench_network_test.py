# SPDX-License-Identifier: Apache-2.0
"""`tf-gradcomp bench network`: options, workloads, reports, and the way of a run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import own_network
import pytest
import tensorflow as tf

from tf_gradcomp import plan as plan_lib
from tf_gradcomp.cli import bench_network, bench_network_models, bench_network_worker, main
from tf_gradcomp.cli import bench_network_workloads as workloads
from tf_gradcomp.cli.bench_network_links import ShapedNetwork
from tf_gradcomp.cli.bench_network_parts import Parts
from tf_gradcomp.cli.refusal import Refusal
from tf_gradcomp.distribute.flattened_shape import flattened_shape
from tf_gradcomp.policy import VariableInfo, as_policy
from tf_gradcomp.transports import TRANSPORTS

CHECKOUT = Path(__file__).parents[2]
FIGURES = {
    "step_ms": 50.0,
    "mean_step_ms": 51.0,
    "compute_ms": 40.0,
    "encode_ms": 3.0,
    "decode_ms": 2.0,
    "wire_bytes_per_step": 2e4,
    "payload_bytes": 15e3,
    "dense_bytes": 1e6,
    "estimate_ms": 6.5,
    "dense_estimate_ms": 70.0,
}


# --- Options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1gbit", 1e9), ("100mbit", 1e8), ("2.5Gbit", 2.5e9), ("2000kbit", 2e6), ("none", None)],
)
def test_rates(text, rate):
    assert bench_network.parse_rate(text) == rate


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "fast"], "--rate must be from 1mbit to 100gbit"),
        (["--rate", "1gbit", "1"], "or none; got 1"),
        (["--rate", "10kbit"], "got 10kbit"),
        (["--rate", "1tbit"], "got 1tbit"),
        (["--workers", "1"], "--workers must be in 2..64, got 1"),
        (["--workers", "65"], "--workers must be in 2..64, got 65"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--warm-up", "0"], "--warm-up must be at least 1, got 0"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--workload", "nosuch"], "unknown workload 'nosuch'; there are cnn, resnet, recomm"),
        (["--workload", "cnn:batch"], "expected key=value, got 'batch'"),
        (["--workload", "cnn:size=1"], "no parameter 'size'; it has batch"),
        (["--workload", "cnn:batch=2,batch=3"], "'batch' is given twice"),
        (["--workload", "cnn:batch=x"], "batch must be a whole number, got 'x'"),
        (["--workload", "cnn:batch=0"], "batch must be in 1..65536, got 0"),
        (["--workload", "resnet:batch=65537"], "batch must be in 1..65536, got 65537"),
        (["--workload", "recommender:users=0"], "users must be in 1..16777216, got 0"),
        (["--workload", "block-sparse:density=nan"], "density must be in (0, 1], got nan"),
        (["--workload", "block-sparse:density=0"], "density must be in (0, 1], got 0"),
        (["--workload", "block-sparse:elements=1000"], "elements must be a multiple of 256"),
        (["--workload", "block-sparse:overlap=some"], "overlap must be one of random, full, none"),
        (["--workload", "block-sparse:density=0.6,overlap=none"], "do not fit in 16384"),
        (["--json", "missing/figures.json"], "--json missing/figures.json: not a file in an"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(options, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert main(["bench", "network", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tf-gradcomp bench network: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_methods_are_checked(capsys):
    assert bench_network_worker.main(["--check", "dense", "stock", "dct", "powersgd:rank=2"]) == 0
    assert bench_network_worker.main(["--check", "dense", "fft:density=2"]) == 2
    assert "density must be in (0, 1.0], got 2" in capsys.readouterr().err


# --- Workloads ----------------------------------------------------------------------------------


def blocks(spec: str, worker: int) -> set[int]:
    workload = workloads.parse(spec, 4)
    assert isinstance(workload, workloads.BlockSparse)
    gradient = workload.gradient(worker)
    assert (gradient.dtype, gradient.size) == (np.float32, workload.elements)
    return set(np.flatnonzero(np.any(gradient, axis=1)))


def test_block_sparse_has_the_density_asked_for():
    workload = workloads.parse("block-sparse:density=0.05,elements=51200", 2)
    assert isinstance(workload, workloads.BlockSparse)
    gradient = workload.gradient(1)
    assert np.count_nonzero(np.any(gradient, axis=1)) == 10
    np.testing.assert_array_equal(gradient, workload.gradient(1))


def test_a_gradient_has_one_block_at_least():
    assert len(blocks("block-sparse:density=1e-9,elements=512", 0)) == 1


def test_overlap_none_has_no_block_twice():
    found = [blocks("block-sparse:density=0.25,elements=25600,overlap=none", w) for w in range(4)]
    assert sorted(block for own in found for block in own) == list(range(100))


def test_overlap_full_has_the_same_blocks_everywhere():
    spec = "block-sparse:density=0.1,elements=25600,overlap=full"
    assert blocks(spec, 0) == blocks(spec, 3)
    workload = workloads.parse(spec, 4)
    assert isinstance(workload, workloads.BlockSparse)
    assert not np.array_equal(workload.gradient(0), workload.gradient(3))


def test_overlap_random_is_drawn_by_each_worker():
    assert blocks("block-sparse:elements=256000", 0) != blocks("block-sparse:elements=256000", 1)


@pytest.mark.parametrize(
    "spec", ["cnn:batch=4", "resnet:batch=4", "recommender:users=50,items=20,batch=16"]
)
def test_models_learn(spec):
    model = bench_network_models.build(workloads.parse(spec, 2), worker=1)
    assert isinstance(model, bench_network_models._Trained)
    step = tf.function(lambda: model.use(model.gradients()), autograph=False)
    before = float(model.loss())
    for _ in range(20):
        step()
    assert float(model.loss()) < before


def test_the_cnn_is_the_demo_s():
    model = bench_network_models.CnnModel(batch=2, worker=0)
    sizes = [int(tf.size(variable)) for variable in model.variables]
    assert sizes == [288, 32, 18432, 64, 9216 * 352, 352, 3520, 10]


def test_the_resnet_has_32_layers():
    model = bench_network_models.ResnetModel(batch=2, worker=0)
    layers = [tuple(v.shape) for v in model.variables if len(v.shape) > 1]
    stages = [[(3, 3, width // 2, width), *9 * [(3, 3, width, width)]] for width in (48, 96)]
    first = [(3, 3, 1, 24), *10 * [(3, 3, 24, 24)]]
    assert layers == [*first, *itertools.chain(*stages), (96, 10)]
    # A normalized batch has a scale and an offset for each filter, in place of a bias.
    norms = [v.shape[0] for v in model.variables if len(v.shape) == 1]
    assert norms == [*22 * [24], *20 * [48], *20 * [96], 10]
    assert len({v.name for v in model.variables}) == len(model.variables)


def test_every_layer_of_the_resnet_learns_on_its_own():
    model = bench_network_models.ResnetModel(batch=2, worker=0)
    gradients = tf.function(model.gradients, autograph=False)()
    assert all(np.any(gradient) for gradient in gradients)
    kernels = [v.numpy() for v in model.variables if tuple(v.shape) == (3, 3, 48, 48)]
    assert len({kernel.tobytes() for kernel in kernels}) == 9


def test_the_flattened_shape_of_the_cnn_is_found():
    model = bench_network_models.CnnModel(batch=2, worker=0)
    shapes = []

    @tf.function(autograph=False)
    def look() -> None:
        shapes.extend(flattened_shape(gradient) for gradient in model.gradients())

    look.get_concrete_function()
    assert shapes[4] == (12, 12, 64)


@pytest.mark.parametrize("spec", ["cnn:batch=2", "resnet:batch=2"])
def test_workers_start_alike_and_have_their_own_data(spec):
    workload = workloads.parse(spec, 2)
    first, second = (bench_network_models.build(workload, worker=w) for w in range(2))
    assert isinstance(first, bench_network_models._Trained)
    assert isinstance(second, bench_network_models._Trained)
    for one, other in zip(first.variables, second.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert float(first.loss()) != float(second.loss())


# --- Parts --------------------------------------------------------------------------------------

NETWORK: Any = SimpleNamespace(num_workers=2, worker_index=1, device="/device:CPU:0")
VARIABLES = [VariableInfo("a", (64, 96), "float32"), VariableInfo("bias", (96,), "float32")]


def make_parts(spec: str) -> Parts:
    return Parts(plan_lib.make_plan(VARIABLES, as_policy(spec), 2), NETWORK)


def sample(rng: np.random.Generator) -> list[tf.Tensor]:
    return [tf.constant(rng.standard_normal(v.shape), tf.float32) for v in VARIABLES]


def test_parts_lead_from_gradients_to_the_sum(rng):
    parts, own, other = make_parts("identity"), sample(rng), sample(rng)
    payloads = [parts.encode(gradients, tf.constant(1))[0] for gradients in (own, other)]
    (total,) = parts.decode(own, [tf.stack(payloads)], tf.constant(1))
    np.testing.assert_array_equal(total, own[0] + other[0])


def test_drawn_positions_are_decoded_with_their_own_step(rng):
    parts, gradients = make_parts("randomk:density=0.2"), sample(rng)
    (payload,) = parts.encode(gradients, tf.constant(5))
    parts.decode(gradients, [tf.stack([payload] * 2)], tf.constant(5))
    with pytest.raises(tf.errors.InvalidArgumentError, match="different exchanges"):
        parts.decode(gradients, [tf.stack([payload] * 2)], tf.constant(6))


def test_encoding_stores_the_residual(rng):
    parts, gradients = make_parts("topk:density=0.1"), sample(rng)
    (first,), (second,) = (parts.encode(gradients, tf.constant(step)) for step in (1, 2))
    assert first.shape == second.shape
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    "spec",
    ["none", "powersgd", "acpsgd"]
    + [f"float16:transport={name}" for name in TRANSPORTS if name != "all_gather"],
)
def test_what_cannot_be_cut_is_all_encoding(spec, rng):
    parts, gradients = make_parts(spec), sample(rng)
    for step in range(1, 4):
        assert parts.encode(gradients, tf.constant(step)) == []
        assert parts.decode(gradients, [], tf.constant(step)) == []


def test_rows_of_sparse_gradients_are_all_encoding(rng):
    table = VariableInfo("table", (50, 4), "float32", sparse=True)
    plan = plan_lib.make_plan([table, *VARIABLES], as_policy("identity"), 2)
    parts = Parts(plan, NETWORK)
    rows = tf.IndexedSlices(tf.ones([3, 4]), tf.constant([7, 2, 7]), tf.constant(table.shape))
    gradients = [rows, *sample(rng)]
    (payload,) = parts.encode(gradients, tf.constant(1))
    (total,) = parts.decode(gradients, [tf.stack([payload] * 2)], tf.constant(1))
    np.testing.assert_array_equal(total, 2 * gradients[1])
    assert [int(e.sent) for e in parts._exchanges if e.bucket.row_sparse] == [4 * (1 + 3 + 9)]


def test_adaptive_views_work_in_parts(rng):
    parts, gradients = make_parts("dct:density=0.1"), sample(rng)
    (payload,) = parts.encode(gradients, tf.constant(1))
    (total,) = parts.decode(gradients, [tf.stack([payload] * 2)], tf.constant(1))
    # What is kept is 10 % of the items at least, and the largest of them.
    error, norm = np.linalg.norm(total - 2 * gradients[0]), 2 * np.linalg.norm(gradients[0])
    assert 0 < error < np.sqrt(0.9) * norm


# --- Reports ------------------------------------------------------------------------------------


def results_of(**rounds: list[dict[str, float]]) -> list[bench_network.Result]:
    """Of each method, what differs from FIGURES in each round."""
    args: Any = SimpleNamespace(methods=list(rounds), workload="cnn", workers=2, threads=1, steps=5)
    measured = [[FIGURES | figures for figures in own] for own in rounds.values()]
    return bench_network.results_of(args, {"1gbit": measured})


def make_results(**wire: float) -> list[bench_network.Result]:
    return results_of(**{m: [{"wire_bytes_per_step": 2 * value}] for m, value in wire.items()})


def test_figures_are_means_over_the_workers():
    workers = [FIGURES | {"wire_bytes_per_step": value} for value in (1e4, 3e4)]
    assert bench_network.mean_figures(workers) == FIGURES | {"wire_bytes_per_step": 2e4}


def test_the_exchange_is_what_is_left():
    (result,) = make_results(dct=1e4)
    assert result.exchange_ms == 50 - 40 - 3 - 2


def test_results_are_medians_over_the_rounds_and_ratios_are_of_each_round():
    topk, lags = results_of(
        topk=[{"step_ms": value} for value in (50.0, 100.0, 80.0)],
        lags=[{"step_ms": value, "compute_ms": value / 2} for value in (40.0, 90.0, 20.0)],
    )
    assert (topk.rounds, lags.rounds) == (3, 3)
    assert (topk.step_ms, lags.step_ms, lags.compute_ms) == (80, 40, 20)
    assert lags.exchange_ms == 40 - 20 - 3 - 2
    assert topk.step_over_compute == [50 / 40, 100 / 40, 80 / 40]
    assert lags.step_over_compute == [2, 2, 2]
    assert topk.step_over_first == [1, 1, 1]
    assert lags.step_over_first == [40 / 50, 90 / 100, 20 / 80]
    heading, _, _, row = bench_network.summary([topk, lags]).splitlines()
    assert heading.endswith(", 5 steps in each of 3 rounds")
    assert row.split()[:4] == ["lags", "40.0", "2.00", "0.80"]


def test_what_a_round_that_ended_early_has_shown_is_told():
    half = {"step_ms": 25.0}
    topk, lags = results_of(topk=[{}, {}], lags=[half], late=[])
    assert (topk.rounds, lags.method, lags.rounds) == (2, "lags", 1)
    assert lags.step_over_first == [0.5]


def test_table():
    dense, dct = make_results(dense=1e6, dct=1e4)
    dense = dataclasses.replace(dense, estimate_ms=0.0)  # nothing is compressed
    header, names, *rows = bench_network.summary([dense, dct]).splitlines()
    assert header == "cnn, 2 workers, rate 1gbit, 1 intra-op threads each, 5 steps"
    assert names.startswith("method  step ms  x compute")
    dense_row = "dense 50.0 1.25 1.00 40.0 3.0 5.0 2.0 - 2000.0 1.0 15.0"
    dct_row = "dct 50.0 1.25 1.00 40.0 3.0 5.0 2.0 6.5 20.0 100.0 15.0"
    assert [" ".join(row.split()) for row in rows] == [dense_row, dct_row]


def test_table_without_dense_or_computing():
    (result,) = results_of(dct=[{"compute_ms": 0.0}])
    cells = bench_network.summary([result]).splitlines()[2].split()
    assert (cells[2], cells[10]) == ("-", "-")


# --- A run, with workers that only look like some -----------------------------------------------


def bench(worker: str, *options: str, **keywords: Any) -> subprocess.Popen[str]:
    """Starts the benchmark with a program in place of the worker, and methods unchecked."""
    code = (
        "import signal, sys; sys.argv[0] = 'tf-gradcomp'\n"
        # A shell ignores SIGINT for what it runs in the background, and so would this.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tf_gradcomp.cli import bench_network, main\n"
        f"bench_network._WORKER = (sys.executable, '-u', '-c', {worker!r})\n"
        "bench_network._check_methods = lambda methods: None\n"
        f"sys.exit(main(['bench', 'network', *{options!r}]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **keywords,
    )


def test_a_run_reports_what_the_workers_print(tmp_path):
    worker = (
        "import json, os, sys\n"
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "print('of no interest')\n"
        "assert os.environ['TF_NUM_INTRAOP_THREADS'] == '3'\n"
        "assert 'https_proxy' not in os.environ\n"
        f"print('RESULT ' + json.dumps({FIGURES!r} | {{'step_ms': 100.0 + index}}))"
    )
    options = ["--rate", "none", "--methods", "dense", "topk", "--threads", "3"]
    os.environ["https_proxy"] = "http://localhost:1"
    try:
        process = bench(worker, *options, "--json", str(tmp_path / "figures.json"))
    finally:
        del os.environ["https_proxy"]
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    results = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert [result["method"] for result in results] == ["dense", "topk"]
    for result in results:
        assert (result["workload"], result["workers"], result["rate"]) == ("cnn", 2, "none")
        assert result["step_ms"] == 100.5
        assert result["compute_ms"] == FIGURES["compute_ms"]
    assert "of no interest" not in out + err
    assert "topk" in out


def test_methods_take_turns_and_reach_the_workers_as_they_are(tmp_path):
    lags = "topk:density=0.01,scope=bucket,bucket_bytes=32768,controller=lags(period=20,ratio=9)"
    worker = (
        "import json, os, sys\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 0:\n"
        f"    open({str(tmp_path / 'seen')!r}, 'a').write(' '.join(sys.argv[1:5]) + '\\n')\n"
        f"print('RESULT ' + json.dumps({FIGURES!r}))"
    )
    options = ["--rate", "none", "--rounds", "2", "--methods", "topk", lags, "--workload", "resnet"]
    process = bench(worker, *options, "--json", str(tmp_path / "figures.json"))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    seen = (tmp_path / "seen").read_text(encoding="utf-8").splitlines()
    assert seen == 2 * [f"--method {name} --workload resnet" for name in ("topk", lags)]
    assert f"resnet, rate none: {lags} (4 of 4)" in err
    assert lags in out
    results = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert [(result["method"], result["rounds"]) for result in results] == [("topk", 2), (lags, 2)]


def test_a_worker_s_failure_is_the_run_s():
    process = bench("import sys; print('broken'); sys.exit(3)", "--rate", "none")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert "tf-gradcomp bench network: worker" in err
    assert "broken" in err


def test_ctrl_c_ends_the_workers():
    worker = "import os, time; os.kill(os.getppid(), 2); time.sleep(60)"
    process = bench(worker, "--rate", "none")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "tf-gradcomp bench network: SIGINT; ending" in err


# --- The network --------------------------------------------------------------------------------

SERVER = """
import socket, time
server = socket.create_server(("", 5000))
print("ready", flush=True)
connection = server.accept()[0]
size, start = 0, None
while data := connection.recv(1 << 20):
    start = start or time.perf_counter()
    size += len(data)
print(size, time.perf_counter() - start)
"""
CLIENT = """
import socket
with socket.create_connection(("10.0.0.1", 5000)) as connection:
    connection.sendall(bytes(2_000_000))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
counters = open("/proc/net/dev").read().split("eth0:")[1].split()
print(counters[8])
"""


@pytest.fixture(name="networks")
def make_networks():
    """Two networks at once, as of two runs."""
    first, second = ShapedNetwork(2, 1e8), ShapedNetwork(3, 1e9)
    try:
        with first, second:
            yield first, second
    except Refusal as refusal:
        pytest.skip(str(refusal))


def start(network: ShapedNetwork, worker: int, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*bench_network.ENTER_NAMESPACE, sys.executable, "-c", code],
        env={**os.environ, **network.environments[worker]},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_link_has_its_rate_and_its_counter(networks):
    network, _ = networks
    assert [address.partition(":")[0] for address in network.addresses] == ["10.0.0.1", "10.0.0.2"]
    server = start(network, 0, SERVER)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    sent, _ = start(network, 1, CLIENT).communicate(timeout=60)
    size, seconds = server.communicate(timeout=60)[0].split()
    assert int(size) == 2_000_000
    # TCP and Ethernet take 66 bytes of 1,514; the burst is 1 % of what is sent.
    assert 2_000_000 < int(sent) < 2_000_000 * 1.07
    # Not sooner than the rate and the bursts of two shapers allow; later, on a busy machine.
    assert 8 * (2_000_000 - 4 * 16_384) / 1e8 < float(seconds) < 10 * 8 * 2_000_000 / 1e8


def test_a_killed_run_leaves_nothing(networks, still_running):
    code = (
        "import sys, time; sys.argv[0] = 'tf-gradcomp'\n"
        "from tf_gradcomp.cli.bench_network_links import ShapedNetwork\n"
        "with ShapedNetwork(2, 1e9) as network:\n"
        "    print(*[int(v) for e in network.environments for v in e.values()], flush=True)\n"
        "    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    holders = [int(pid) for pid in process.stdout.readline().split()]
    assert len(holders) == 2
    process.kill()
    process.communicate()
    assert still_running(holders, 10) == []


def stub(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_who_may_not_make_networks_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refusal, match="ip is missing: install iproute2, or give --rate none"):
        ShapedNetwork(2, 1e9).__enter__()
    for name in ("ip", "tc", "nsenter"):
        stub(tmp_path, name, "exit 1")
    stub(tmp_path, "unshare", "echo 'unshare: Operation not permitted' >&2; exit 1")
    with pytest.raises(Refusal, match="Operation not permitted; network namespaces need root: run"):
        ShapedNetwork(2, 1e9).__enter__()


# --- From end to end ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.distributed
def test_fft_sends_less_in_a_network_of_1_gbit(networks, tmp_path):
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tf_gradcomp", "bench", "network", "--rate", "1gbit"]
    command += ["--methods", "dense", "fft", "--steps", "6", "--warm-up", "2", "--json", str(path)]
    run = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr
    dense, fft = json.loads(path.read_text(encoding="utf-8"))
    for result in (dense, fft):
        assert (result["workload"], result["workers"], result["rate"]) == ("cnn", 2, "1gbit")
        assert min(result["step_ms"], result["compute_ms"], result["encode_ms"]) > 0
        # Headers, and what workers say to each other besides.
        sent = result["wire_bytes_per_step"]
        assert result["payload_bytes"] < sent < 1.1 * result["payload_bytes"] + 10_000
    assert dense["dense_bytes"] == dense["payload_bytes"] == 4 * 3_266_730
    assert dense["wire_bytes_per_step"] > 12 * fft["wire_bytes_per_step"]
    # Two shapers, each of which lets a burst pass.
    assert dense["step_ms"] > 8 * dense["payload_bytes"] / 1e6 - 2
    # The plan has measured the network. A ring of two sends a bucket once.
    at_rate = 8 * 4 * 9216 * 352 / 1e6
    assert 0.8 * at_rate < fft["dense_estimate_ms"] < 2 * at_rate
    assert dense["estimate_ms"] == 0 < fft["estimate_ms"] < fft["dense_estimate_ms"]


@pytest.mark.slow
@pytest.mark.distributed
def test_tensorflow_s_own_strategy_sends_every_row_of_a_batch(tmp_path):
    path = tmp_path / "figures.json"
    command = [*own_network.prefix(), sys.executable, "-m", "tf_gradcomp", "bench", "network"]
    command += ["--rate", "none", "--workload", "recommender", "--methods", "stock", "dense"]
    run = subprocess.run(
        [*command, "--steps", "4", "--warm-up", "1", "--json", str(path)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr
    stock, dense = json.loads(path.read_text(encoding="utf-8"))
    assert (stock["method"], stock["encode_ms"], stock["decode_ms"]) == ("stock", 0, 0)
    assert min(stock["step_ms"], stock["compute_ms"], dense["encode_ms"]) > 0
    for result in (stock, dense):
        assert result["payload_bytes"] == result["dense_bytes"] == 4 * ((128 * 64 + 64) + (64 + 1))
    # Of each example an index and 64 values from both tables; of rows that recur, ours sends one.
    expected = 1024 * 2 * 4 * (1 + 64) + stock["payload_bytes"]
    assert expected < stock["wire_bytes_per_step"] < 1.1 * expected
    assert dense["wire_bytes_per_step"] < 0.6 * stock["wire_bytes_per_step"]
