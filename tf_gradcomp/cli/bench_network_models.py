# SPDX-License-Identifier: Apache-2.0
"""The models that `tf-gradcomp bench network` trains, in plain TensorFlow, on random data.

Without Keras, the same graph serves for a step with the exchange and for one without.
"""

from __future__ import annotations

import abc
import itertools
import math
import zlib
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from tf_gradcomp.cli import bench_network_workloads as workloads

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices

LEARNING_RATE = 1e-3
MOMENTUM = 0.9
_SEED = 7
_HIDDEN_UNITS = 64  # of the recommender
_FILTERS = (24, 48, 96)  # of the ResNet's stages
_BLOCKS = 5  # in each stage, of two convolutions each


class Model(Protocol):
    """One worker's share of a training step.

    Attributes:
      variables: what is trained; the same values on all workers at the start.
      computes: whether a step without an exchange does anything worth timing.
    """

    variables: Sequence[tf.Variable]
    computes: bool

    def gradients(self) -> list[Gradient]:
        """Returns this worker's gradient of each variable."""
        ...

    def use(self, sums: Sequence[Gradient]) -> list[Gradient]:
        """Does with the summed gradients what a step does, and returns what it must not skip."""
        ...


def build(workload: workloads.Workload, worker: int, momentum: float = MOMENTUM) -> Model:
    """Makes the model of a workload, and the data of a worker.

    Args:
      workload: what is trained.
      worker: index of the worker.
      momentum: the optimizer's; 0 if the exchange has it.
    """
    if isinstance(workload, workloads.Cnn):
        return CnnModel(workload.batch, worker, momentum)
    if isinstance(workload, workloads.Resnet):
        return ResnetModel(workload.batch, worker, momentum)
    if isinstance(workload, workloads.Recommender):
        return RecommenderModel(workload, worker, momentum)
    return ExchangeAlone(workload.gradient(worker))


class _Trained(abc.ABC):
    """A model with a loss, trained by SGD with momentum."""

    computes = True

    def __init__(self, variables: Sequence[tf.Variable], momentum: float) -> None:
        self.variables = variables
        self._momentum = momentum
        self._momenta = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

    @abc.abstractmethod
    def loss(self) -> tf.Tensor:
        """Returns the loss of this worker's batch, a float32 scalar."""

    def gradients(self) -> list[Gradient]:
        with tf.GradientTape() as tape:
            loss = self.loss()
        return tape.gradient(loss, self.variables)

    def use(self, sums: Sequence[Gradient]) -> list[Gradient]:
        for variable, momentum, total in zip(self.variables, self._momenta, sums, strict=True):
            if isinstance(total, tf.IndexedSlices):  # without momentum, which would touch all rows
                rows = tf.IndexedSlices(LEARNING_RATE * total.values, total.indices)
                variable.scatter_sub(rows)
                continue
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=momentum.handle,
                lr=LEARNING_RATE,
                grad=total,
                momentum=self._momentum,
            )
        return []


class CnnModel(_Trained):
    """The network of examples/vision.py: 3,266,730 parameters, 99 % of them in one layer."""

    def __init__(self, batch: int, worker: int, momentum: float = MOMENTUM) -> None:
        self._images, self._labels = _images(batch, worker)
        layers = {
            "conv2d": (3, 3, 1, 32),
            "conv2d_1": (3, 3, 32, 64),
            "dense": (12 * 12 * 64, 352),
            "dense_1": (352, 10),
        }
        variables = [v for name, shape in layers.items() for v in _layer(name, shape)]
        super().__init__(variables, momentum)

    def loss(self) -> tf.Tensor:
        kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3, kernel_4, bias_4 = self.variables
        x = tf.nn.relu(tf.nn.conv2d(self._images, kernel_1, 1, "VALID") + bias_1)
        x = tf.nn.relu(tf.nn.conv2d(x, kernel_2, 1, "VALID") + bias_2)
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.reshape(x, [x.shape[0], -1])
        x = tf.nn.relu(x @ kernel_3 + bias_3)
        return _cross_entropy(self._labels, x @ kernel_4 + bias_4)


class ResnetModel(_Trained):
    """A deep network with small layers: 1,041,394 parameters, 8 % of them in the largest.

    The one that He et al. have for small images (Deep Residual Learning, section 4.2), of 32
    layers, and half as wide again. Its first convolution halves the images. Batches are normalized
    by themselves: nothing is kept for inference.
    """

    def __init__(self, batch: int, worker: int, momentum: float = MOMENTUM) -> None:
        self._images, self._labels = _images(batch, worker)
        widths = [_FILTERS[0], *(width for width in _FILTERS for _ in range(2 * _BLOCKS))]
        variables = []
        for number, (inputs, outputs) in enumerate(itertools.pairwise([1, *widths])):
            suffix = f"_{number}" if number else ""
            norm = f"batch_normalization{suffix}"
            variables += [
                _kernel(f"conv2d{suffix}/kernel", (3, 3, inputs, outputs)),
                tf.Variable(tf.ones(outputs), name=f"{norm}/gamma"),
                tf.Variable(tf.zeros(outputs), name=f"{norm}/beta"),
            ]
        super().__init__([*variables, *_layer("dense", (widths[-1], 10))], momentum)

    def loss(self) -> tf.Tensor:
        *layers, kernel, bias = self.variables
        rest = iter(layers)

        def convolve(x: tf.Tensor, stride: int = 1) -> tf.Tensor:
            x = tf.nn.conv2d(x, next(rest), stride, "SAME")
            return tf.raw_ops.FusedBatchNormV3(
                x=x, scale=next(rest), offset=next(rest), mean=[], variance=[], epsilon=1e-3
            ).y

        x = tf.nn.relu(convolve(self._images, 2))
        for width in _FILTERS:
            for _ in range(_BLOCKS):
                new = width - x.shape[-1]  # filters, in the first block of a stage
                stride = 2 if new else 1
                past = tf.pad(x[:, ::stride, ::stride], [[0, 0], [0, 0], [0, 0], [0, new]])
                x = tf.nn.relu(past + convolve(tf.nn.relu(convolve(x, stride))))
        return _cross_entropy(self._labels, tf.reduce_mean(x, [1, 2]) @ kernel + bias)


class RecommenderModel(_Trained):
    """Embeddings of a user and of an item, side by side, through one hidden layer to a click."""

    def __init__(self, workload: workloads.Recommender, worker: int, momentum: float) -> None:
        rng = np.random.default_rng((_SEED, worker))
        self._users = tf.constant(_popular(rng, workload.users, workload.batch))
        self._items = tf.constant(_popular(rng, workload.items, workload.batch))
        self._clicks = tf.constant(rng.integers(0, 2, (workload.batch, 1)).astype(np.float32))
        super().__init__(
            [
                _kernel("users", (workload.users, workload.columns)),
                _kernel("items", (workload.items, workload.columns)),
                *_layer("hidden", (2 * workload.columns, _HIDDEN_UNITS)),
                *_layer("click", (_HIDDEN_UNITS, 1)),
            ],
            momentum,
        )

    def loss(self) -> tf.Tensor:
        users, items, kernel_1, bias_1, kernel_2, bias_2 = self.variables
        rows = (
            tf.nn.embedding_lookup(users, self._users),
            tf.nn.embedding_lookup(items, self._items),
        )
        x = tf.nn.relu(tf.concat(rows, axis=1) @ kernel_1 + bias_1)
        logits = x @ kernel_2 + bias_2
        return tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=self._clicks, logits=logits)
        )


class ExchangeAlone:
    """A gradient that is there already, and whose sum nobody uses."""

    computes = False

    def __init__(self, gradient: np.ndarray) -> None:
        self._gradient = tf.constant(gradient)
        self.variables: Sequence[tf.Variable] = (
            tf.Variable(tf.zeros_like(self._gradient), name="blocks"),
        )

    def gradients(self) -> list[Gradient]:
        return [tf.identity(self._gradient)]

    def use(self, sums: Sequence[Gradient]) -> list[Gradient]:
        return list(sums)


def _images(batch: int, worker: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a worker's images, float32 `[batch, 28, 28, 1]`, and labels, int32 `[batch]`."""
    rng = np.random.default_rng((_SEED, worker))
    images = rng.random((batch, 28, 28, 1), np.float32)
    return tf.constant(images), tf.constant(rng.integers(0, 10, batch, np.int32))


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(losses)


def _layer(name: str, shape: tuple[int, ...]) -> list[tf.Variable]:
    """Returns kernel and bias."""
    return [_kernel(f"{name}/kernel", shape), tf.Variable(tf.zeros(shape[-1]), name=f"{name}/bias")]


def _kernel(name: str, shape: tuple[int, ...]) -> tf.Variable:
    scale = math.sqrt(2 / math.prod(shape[:-1]))
    seed = (_SEED, zlib.crc32(name.encode()) >> 1)  # kernels of one shape differ
    values = tf.random.stateless_normal(shape, seed=seed, stddev=scale)
    return tf.Variable(values, name=name)


def _popular(rng: np.random.Generator, count: int, batch: int) -> np.ndarray:
    """Draws ids below `count`, small ones more often; int32 `[batch]`."""
    return ((rng.zipf(1.2, batch) - 1) % count).astype(np.int32)
