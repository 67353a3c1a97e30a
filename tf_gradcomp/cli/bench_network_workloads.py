# SPDX-License-Identifier: Apache-2.0
"""The workloads of `tf-gradcomp bench network`, as plain data; bench_network_models.py has models.

A spec is a name, then parameters: `block-sparse:density=0.05,overlap=full`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, TypeAlias

import numpy as np

from tf_gradcomp.cli.refusal import Refusal

BLOCK = 256  # elements, the block of OmniReduce
_OVERLAPS = ("random", "full", "none")
_MAX_ELEMENTS = 1 << 30
_SEED = 2021


@dataclasses.dataclass(frozen=True)
class Cnn:
    """The demo's CNN of 3.27 million parameters, on random images of Fashion-MNIST's shape.

    Attributes:
      batch: images a worker and step.
    """

    name: ClassVar[str] = "cnn"
    batch: int = 64

    def check(self, num_workers: int) -> None:
        _require(self, "batch", 1, 1 << 16)


@dataclasses.dataclass(frozen=True)
class Resnet:
    """A ResNet of 32 layers and 1.04 million parameters, on images like those of `cnn`.

    Attributes:
      batch: images a worker and step.
    """

    name: ClassVar[str] = "resnet"
    batch: int = 64

    def check(self, num_workers: int) -> None:
        _require(self, "batch", 1, 1 << 16)


@dataclasses.dataclass(frozen=True)
class Recommender:
    """Two embeddings and a small network on top; ids follow a power law, as real ones do.

    Attributes:
      users: rows of the first embedding.
      items: rows of the second one.
      columns: columns of both.
      batch: pairs a worker and step.
    """

    name: ClassVar[str] = "recommender"
    users: int = 100_000
    items: int = 20_000
    columns: int = 64
    batch: int = 1024

    def check(self, num_workers: int) -> None:
        for field in ("users", "items", "batch"):
            _require(self, field, 1, 1 << 24)
        _require(self, "columns", 1, 1 << 12)


@dataclasses.dataclass(frozen=True)
class BlockSparse:
    """One gradient of which most blocks of 256 neighbours are zero, exchanged without computing.

    Attributes:
      density: share of the blocks that are not zero, in (0, 1].
      elements: a multiple of 256.
      overlap: which blocks those are: drawn by each worker alone ("random"), the same on all
        workers ("full"), or none that another worker has ("none").
    """

    name: ClassVar[str] = "block-sparse"
    density: float = 0.01
    elements: int = 4 << 20
    overlap: str = "random"

    def check(self, num_workers: int) -> None:
        _require(self, "elements", BLOCK, _MAX_ELEMENTS)
        if self.elements % BLOCK:
            raise Refusal(f"{self.name}: elements must be a multiple of {BLOCK}")
        if not 0 < self.density <= 1:
            raise Refusal(f"{self.name}: density must be in (0, 1], got {self.density:g}")
        if self.overlap not in _OVERLAPS:
            raise Refusal(
                f"{self.name}: overlap must be one of {', '.join(_OVERLAPS)}, got {self.overlap!r}"
            )
        if self.overlap == "none" and num_workers * self.num_kept > self.num_blocks:
            raise Refusal(
                f"{self.name}: with overlap=none the blocks of {num_workers} workers at density "
                f"{self.density:g} do not fit in {self.num_blocks}"
            )

    @property
    def num_blocks(self) -> int:
        """Blocks in the gradient."""
        return self.elements // BLOCK

    @property
    def num_kept(self) -> int:
        """Blocks that are not zero, on each worker."""
        return max(1, round(self.density * self.num_blocks))

    def gradient(self, worker: int) -> np.ndarray:
        """Returns a worker's gradient, float32 `[num_blocks, 256]`; the same every time."""
        own = np.random.default_rng((_SEED, worker))
        shared = own if self.overlap == "random" else np.random.default_rng(_SEED)
        start = worker * self.num_kept if self.overlap == "none" else 0
        kept = shared.permutation(self.num_blocks)[start : start + self.num_kept]
        gradient = np.zeros((self.num_blocks, BLOCK), np.float32)
        gradient[kept] = own.standard_normal((len(kept), BLOCK))
        return gradient


Workload: TypeAlias = Cnn | Resnet | Recommender | BlockSparse

_WORKLOADS: dict[str, type[Cnn] | type[Resnet] | type[Recommender] | type[BlockSparse]] = {
    kind.name: kind for kind in (Cnn, Resnet, Recommender, BlockSparse)
}


def parse(spec: str, num_workers: int) -> Workload:
    """Reads a workload's spec.

    Raises:
      Refusal: it cannot be read, or makes no sense for so many workers.
    """
    name, _, rest = spec.partition(":")
    if name not in _WORKLOADS:
        raise Refusal(f"unknown workload {name!r}; there are {', '.join(_WORKLOADS)}")
    kind = _WORKLOADS[name]
    defaults = dataclasses.asdict(kind())
    values = {}
    for item in filter(None, rest.split(",")):
        key, equals, text = item.partition("=")
        if not equals:
            raise Refusal(f"workload {spec!r}: expected key=value, got {item!r}")
        if key not in defaults:
            raise Refusal(f"workload {spec!r}: no parameter {key!r}; it has {', '.join(defaults)}")
        if key in values:
            raise Refusal(f"workload {spec!r}: {key!r} is given twice")
        type_of_value = type(defaults[key])
        try:
            values[key] = type_of_value(text)
        except ValueError:
            wanted = "a whole number" if type_of_value is int else "a number"
            raise Refusal(f"workload {spec!r}: {key} must be {wanted}, got {text!r}") from None
    workload = kind(**values)
    workload.check(num_workers)
    return workload


def _require(workload: Workload, field: str, low: int, high: int) -> None:
    value = getattr(workload, field)
    if not low <= value <= high:
        raise Refusal(f"{workload.name}: {field} must be in {low}..{high}, got {value}")
