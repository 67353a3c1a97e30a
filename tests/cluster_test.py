# SPDX-License-Identifier: Apache-2.0
"""TF_CONFIG, right and wrong, before TensorFlow sees it."""

import json
import re

import pytest
import tensorflow as tf

import tf_gradcomp as tfgc
from tf_gradcomp import cluster

ADDRESSES = ["host0:2222", "host1:2222"]
WORKER = {"type": "worker", "index": 0}


def config(task=WORKER, **jobs):
    return {"cluster": {"worker": ADDRESSES, **jobs}, "task": task}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "it is not JSON (Expecting value: line 1 column 1 (char 0)), got ''"),
        ("{'cluster': {}}", "it is not JSON"),
        ("[1]", "it must be a JSON object, got '[1]'"),
        ({"task": WORKER}, "there is a 'task', but no 'cluster'"),
        ({"cluster": ADDRESSES, "task": WORKER}, "'cluster' must be an object, got ['host0"),
        ({"cluster": {"worker": ADDRESSES}}, "'type' and 'index' of this process, got None"),
        (config({"type": "worker"}), "'task' must hold the 'type' and 'index'"),
        (config({"index": 0}), "'task' must hold the 'type' and 'index'"),
        (
            config({"type": "worker", "index": 2}),
            "must be in 0..1, for 'worker' of 'cluster' has 2",
        ),
        (config({"type": "worker", "index": -1}), "must be in 0..1"),
        (config({"type": "worker", "index": "x"}), "has 2, got 'x'"),
        (config({"type": "worker", "index": True}), "has 2, got True"),
        (config({"type": "chief", "index": 0}), "'type' of 'task' must be of worker, got 'chief'"),
        (config({"type": "evaluator", "index": 0}), "must be of worker, got 'evaluator'"),
        (config({"type": "chief", "index": 0}, chief=[]), "must be of worker, got 'chief'"),
        (config(ps=["host2:2222"]), "must be of chief, worker, evaluator, got 'ps'"),
        (config(master=["host2:2222"]), "must be of chief, worker, evaluator, got 'master'"),
        (config(chief=["a:1", "b:1"]), "at most one chief, got ['a:1', 'b:1']"),
        (config(worker="host0:2222"), "'worker' of 'cluster' must be a list of addresses"),
        (
            config(worker=["host0:2222", "host0:2222"]),
            "worker 0 and worker 1 have the same address",
        ),
        (config(chief=["host1:2222"]), "chief 0 and worker 1 have the same address, 'host1:2222'"),
        *(
            (config(worker=["host0:2222", address]), f"port in 1..65535, got {address!r}")
            for address in ("host1", "host1:", ":2222", "host1:0", "host1:65536", "host1:x", 2222)
        ),
        (config(worker=["http://host0:2222"]), "must be host:port"),
        (config(worker=["::1:2001", "::1:2002"]), "must be host:port"),
        (config(worker=[]), "'cluster' lists no addresses"),
    ],
)
def test_what_is_wrong_is_said(value, problem):
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        cluster.check_tf_config({"TF_CONFIG": text})
    assert str(caught.value).startswith("TF_CONFIG: ")
    assert "It should look like this, for the first of two workers" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"cluster": {}, "task": {"type": "master", "index": 0}},
        config(),
        config({"type": "worker", "index": "1"}),
        config({"type": "chief", "index": 0}, chief=["host2:2222"], ps=[]),
        config({"type": "evaluator", "index": 0}, evaluator=["host2:2222"]),
        config(worker=["10.0.0.1:1", "[fe80::1]:65535"]) | {"rpc_layer": "grpc"},
    ],
)
def test_what_is_right_passes(value, caplog):
    cluster.check_tf_config({"TF_CONFIG": json.dumps(value), "WORLD_SIZE": "1"})
    assert not caplog.records


def test_the_strategy_checks_before_tensorflow_waits(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps(config(worker=["host0:2222", "host0:2222"])))
    with pytest.raises(ValueError, match="TF_CONFIG: worker 0 and worker 1 have the same address"):
        tfgc.CompressedMultiWorkerMirroredStrategy("fft")


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"])
def test_several_processes_without_tf_config_are_warned(variable, caplog):
    cluster.check_tf_config({variable: "4"})
    assert f"This process trains alone, for TF_CONFIG names no cluster; but {variable}=4" in (
        caplog.text
    )


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1"}, {"PMI_SIZE": "many"}])
def test_one_process_without_tf_config_is_not(environment, caplog):
    cluster.check_tf_config(environment)
    assert not caplog.records


def resolver(jobs, task_type, task_id):
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type=task_type, task_id=task_id
    )


def test_members_come_in_worker_order():
    jobs = {"worker": ADDRESSES, "evaluator": ["host3:2222"], "chief": ["host2:2222"]}
    members = cluster.from_resolver(resolver(jobs, "worker", 1))
    assert members.own == "worker 1"
    assert list(members.addresses) == ["chief 0", "worker 0", "worker 1"]
    assert members.others == {"chief 0": "host2:2222", "worker 0": "host0:2222"}


def test_left_out_tasks_are_no_members():
    members = cluster.from_resolver(resolver({"worker": {0: "a:1", 5: "b:1"}}, "worker", 5))
    assert members.addresses == {"worker 0": "a:1", "worker 5": "b:1"}


@pytest.mark.parametrize(
    ("jobs", "task_type", "task_id"),
    [
        ({}, None, None),
        ({"worker": ADDRESSES}, None, None),
        ({"evaluator": ["a:1"]}, "evaluator", 0),
    ],
)
def test_who_is_no_member_has_no_cluster(jobs, task_type, task_id):
    assert cluster.from_resolver(resolver(jobs, task_type, task_id)) is None
