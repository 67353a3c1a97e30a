# SPDX-License-Identifier: Apache-2.0
"""What a layer window saves, counted: kernels that TensorFlow launches in a step, and bytes.

`python -m pytest tests/launched_kernels_test.py -s` prints the figures of docs/methods.
"""

import itertools
import re
import time
import weakref
from pathlib import Path
from typing import NamedTuple

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tf_gradcomp.policy import Policy, VariableInfo
from tf_gradcomp.reducer import GradientReducer

NUM_LAYERS = 10
SHAPE = (64, 64)
LAYER_BYTES = 4 * 64 * 64
STEPS = 10
BUDGETS = (1.0, 0.5, 0.2)
CODECS = ("identity:transport=all_reduce", "topk:density=0.01")
# They choose which kernels run, pass tensors on or rename them: there is nothing to launch.
NO_KERNELS = {
    "_Arg", "_Retval", "_SwitchN", "Const", "ExpandDims", "Identity", "IdentityN", "Merge", "NoOp",
    "Reshape", "Squeeze", "Switch",
}  # fmt: skip


class Kernel(NamedTuple):
    """A kernel that ran: the name of its node in the graph, and its operation."""

    node: str
    op: str


def is_collective(kernel):
    return kernel.op.startswith("Collective")


class Twins:
    """Collectives of two workers, of which the other one always has the same to say.

    Made of TensorFlow's collectives in a group of one.
    """

    device = "/device:CPU:0"
    worker_index = 0
    num_workers = 2
    keys = itertools.count(20181128)  # other than those of anybody else in the process

    def all_gather(self, words):
        return tf.stack(2 * [tf.raw_ops.CollectiveGatherV2(input=words, **self._group())])

    def all_reduce(self, tensor):
        addends = {"merge_op": "Add", "final_op": "Id"}
        return tf.raw_ops.CollectiveReduceV2(input=tensor + tensor, **self._group(), **addends)

    def gather_text(self, text):
        return [text, text]

    def _group(self):
        return {
            "group_size": tf.constant(1),
            "group_key": tf.constant(20181128),
            "instance_key": tf.constant(next(self.keys)),
            "ordering_token": [],
        }


class Reduction:
    """Reductions of the gradients of a few layers of the same size, in a graph."""

    def __init__(self, codec, controller):
        policy = Policy("none", rules=(("*", f"{codec},scope=layer,controller={controller}"),))
        self._reducer = reducer = GradientReducer(policy, Twins())
        names = [f"v{number}" for number in range(NUM_LAYERS)]
        self._owners = {name: tf.Variable(tf.ones(SHAPE)) for name in names}
        owners = {name: weakref.ref(owner) for name, owner in self._owners.items()}
        infos = [VariableInfo(name, SHAPE, "float32") for name in names]
        self._step = tf.function(
            lambda *gradients: reducer.reduce(gradients, infos, owners), autograph=False
        )
        self._gradients = [tf.random.stateless_normal(SHAPE, (1, i)) for i in range(NUM_LAYERS)]
        self.step()  # in which the graph is made, and parts of it run to simplify it

    def densities(self):
        """Returns those of the next step, by the number of the bucket."""
        decisions = self._reducer.decisions()
        (plan,) = self._reducer.plans
        return [decisions[plan.variables[b.indices[0]].name]["density"] for b in plan.buckets]

    def bytes_sent(self):
        ((_, _, num_bytes),) = self._reducer.counted_bytes(set(self._owners))
        return num_bytes

    def step(self):
        self._step(*self._gradients)


def launched(folder, work):
    """Returns the kernels that ran while ``work()`` did, in which none runs twice.

    Of collectives some versions tell twice: when they are begun, and when they are done.
    """
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=3, python_tracer_level=0, device_tracer_level=0
    )
    with tf.profiler.experimental.Profile(str(folder), options):
        work()
        time.sleep(0.05)  # a collective's end is noted after its result is there
    (path,) = Path(folder).rglob("*.xplane.pb")
    kernels = set()
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                match = re.fullmatch(r"([^:]+):([\w>]+)", name)
                if match and match[2] not in NO_KERNELS:
                    kernels.add(Kernel(*match.groups()))
    return kernels


class Counts(NamedTuple):
    """What was counted of ``STEPS`` steps: layers that were sent, and what that took."""

    layers: int
    num_bytes: int
    kernels: int
    collectives: int

    def __str__(self):
        layers, num_bytes, kernels, collectives = (count / STEPS for count in self)
        return (
            f"{layers:.1f} layers, {num_bytes:,.0f} bytes, {kernels:.1f} kernels, "
            f"{collectives:.1f} collectives a step"
        )


def count(folder, codec, budget):
    reduction = Reduction(codec, f"layer_window(budget={budget})")
    layers, before, kernels = 0, reduction.bytes_sent(), []
    for step in range(STEPS):
        layers += sum(density > 0 for density in reduction.densities())
        kernels += launched(folder / str(step), reduction.step)
    num_bytes = reduction.bytes_sent() - before
    return Counts(layers, num_bytes, len(kernels), sum(map(is_collective, kernels)))


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_and_kernels_of_a_step_fall_with_the_budget(tmp_path, codec):
    counts = [count(tmp_path / str(budget), codec, budget) for budget in BUDGETS]
    for budget, of_budget in zip(BUDGETS, counts, strict=True):
        print(f"\n{codec}, budget {budget}: {of_budget}")
        assert 0 < of_budget.layers <= budget * NUM_LAYERS * STEPS
        # One tells all workers whether the step is finite.
        assert of_budget.collectives == of_budget.layers + STEPS
        bytes_of_layer = of_budget.num_bytes / of_budget.layers
        if "identity" in codec:
            assert bytes_of_layer == LAYER_BYTES
        else:
            assert bytes_of_layer < LAYER_BYTES / 20
    for more, less in itertools.pairwise(counts):
        assert less.layers < more.layers
        assert less.num_bytes < more.num_bytes
        # Of a layer that is sent, at least the message and what makes and unmakes it.
        assert less.kernels <= more.kernels - (more.layers - less.layers)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_withheld_is_added_to_the_residual_and_checked_and_no_more(tmp_path, codec):
    reduction = Reduction(codec, "layer_window(budget=0.2)")
    densities = reduction.densities()
    assert 0 < sum(density > 0 for density in densities) < NUM_LAYERS
    kernels = launched(tmp_path, reduction.step)
    for number, density in enumerate(densities):
        # Beside what looks at the decision, in the bucket's branches.
        inside = f"gradient_exchange_bucket_{number}/switch_case/"
        own = [kernel for kernel in kernels if inside in kernel.node]
        ops = [kernel.op for kernel in own]
        has_collective = any(map(is_collective, own))
        has_codec = any(op.startswith("Gradcomp>") for op in ops)
        if density == 0:
            assert not has_collective and not has_codec, own
            assert set(ops) == {"AddV2", "IsFinite", "All"}
            assert ops.count("AddV2") == ops.count("IsFinite") == 1
        else:
            assert has_collective
            assert has_codec == ("topk" in codec)
