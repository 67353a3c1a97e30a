# SPDX-License-Identifier: Apache-2.0
"""Views: transforms along the axes of each variable's own shape.

A transform pays where neighbours are alike. Neighbours in a flattened gradient rarely are; those
along the right axis of the tensor often are, and its few largest coefficients then hold far more
energy than its few largest elements do. Which axis that is depends on the layer: see
``docs/methods/view.md`` and the measurements in ``docs/performance.md``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_gradcomp.codecs import base
from tf_gradcomp.codecs.axis_transform import BASES, transform_axes
from tf_gradcomp.codecs.learned_basis import Rotation, Side, side_of
from tf_gradcomp.codecs.top_k import num_kept
from tf_gradcomp.ops.top_k import top_k_select

AXES = ("output", "input", "spatial", "hidden", "flat")
LEARNED = "learned"


@dataclasses.dataclass(frozen=True)
class View(base.Transform):
    """An orthonormal transform along axes of each variable; item ``i`` is coefficient ``i``.

    A variable that lacks the named axes stays as it is. Axes are transformed in blocks of at most
    64 elements. Coefficients are as many as elements and have the same energy.

    Attributes:
      view: ``"identity"``, no transform; or axes, joined by ``+``: ``output``, the last axis;
        ``input``, the one before; ``spatial``, those before that (of a convolution's kernel);
        ``hidden``, the positions that a Flatten hid in the first axis of a dense kernel;
        ``flat``, all of the flattened variable; last, ``learned``, a basis of one side of the
        matrix that it is, which follows its gradients; or ``"auto"``: the view of each variable
        that keeps most energy at the density that a payload has room for, measured on all workers'
        gradients, ever more rarely; or ``"auto+learned"``, with learned bases among the candidates.
      basis: ``"dct"`` or ``"fft"``, both real and orthonormal, of what is not learned.

    Raises:
      ValueError: an unknown view or basis.
    """

    view: str = "identity"
    basis: str = "dct"

    def __post_init__(self) -> None:
        if self.view not in ("identity", "auto", f"auto+{LEARNED}"):
            names = self.view.split("+") if isinstance(self.view, str) else []
            axes = names[:-1] if names[-1:] == [LEARNED] else names
            if not names or len(set(axes)) < len(axes) or not set(axes) <= set(AXES):
                raise ValueError(
                    f"view: view must be identity, auto, auto+{LEARNED}, or some of "
                    f"{', '.join(AXES)} and, as the last, {LEARNED}, joined by '+', "
                    f"got {self.view!r}"
                )
        if self.basis not in BASES:
            raise ValueError(f"view: basis must be one of {', '.join(BASES)}, got {self.basis!r}")

    @property
    def learns(self) -> bool:
        return self.view.endswith(LEARNED)

    def left_out(self, variables: Sequence[base.VariableShape]) -> str:
        if self.view != "auto" or not any(side_of(variable.shape) for variable in variables):
            return ""
        return f"learned bases, for the time that they take; view=auto+{LEARNED} compares them, too"

    def layout(self, num_elements: int) -> base.Layout:
        return base.Layout(num_elements)

    def fit(self, variables: Sequence[base.VariableShape]) -> FittedView:
        sides = [side_of(variable.shape) if self.learns else None for variable in variables]
        candidates = [
            _candidates(variable, side)
            if self.view.startswith("auto")
            else (_without_missing(self.view, variable, side),)
            for variable, side in zip(variables, sides, strict=True)
        ]
        return FittedView(self.basis, tuple(variables), tuple(candidates), tuple(sides))

    def forward(self, bucket: tf.Tensor) -> tf.Tensor:
        return self._fit_flat(bucket.shape[0]).forward(bucket)

    def inverse(self, coefficients: tf.Tensor, num_elements: int) -> tf.Tensor:
        return self._fit_flat(num_elements).inverse(coefficients, num_elements)

    def _fit_flat(self, num_elements: int) -> FittedView:
        """Takes a bucket of which nothing else is known for one flat variable."""
        return self.fit([base.VariableShape((num_elements,))])


@dataclasses.dataclass(frozen=True)
class FittedView(base.Transform):
    """A view of a bucket of known variables.

    Attributes:
      basis: as in ``View``.
      variables: the bucket's variables, in the order in which they are packed.
      candidates: the views that each may have.
      learned: the side of each of which a basis is learned, or ``None``.
      choice: as in ``at``.
      bases: as in ``at``.
    """

    basis: str
    variables: tuple[base.VariableShape, ...]
    candidates: tuple[tuple[str, ...], ...]
    learned: tuple[Side | None, ...]
    choice: tf.Tensor | None = None
    bases: Sequence[Sequence[Rotation]] = ()

    def layout(self, num_elements: int) -> base.Layout:
        return base.Layout(num_elements)

    def at(
        self, choice: tf.Tensor | None = None, bases: Sequence[Sequence[Rotation]] = ()
    ) -> FittedView:
        return dataclasses.replace(self, choice=choice, bases=bases)

    def forward(self, bucket: tf.Tensor) -> tf.Tensor:
        return self._map(bucket, inverse=False)

    def inverse(self, coefficients: tf.Tensor, num_elements: int) -> tf.Tensor:
        return self._map(coefficients, inverse=True)

    @property
    def _num_columns(self) -> int:
        return max(map(len, self.candidates))

    def learned_candidates(self) -> list[list[bool]]:
        return [
            [_split_name(name)[1] for name in names] + [False] * (self._num_columns - len(names))
            for names in self.candidates
        ]

    def kept_energy(self, bucket: tf.Tensor, density: float) -> tf.Tensor:
        num_columns = self._num_columns
        energies = []
        for index, part in enumerate(self._split(bucket)):
            names = self.candidates[index]
            count = num_kept(density, self.variables[index].num_elements)
            row = [
                _energy(top_k_select(self._apply(part, index, name, inverse=False), count)[1])
                for name in names
            ]
            row += [tf.constant(0, tf.float64)] * (num_columns - len(row))
            energies.append(tf.stack(row))
        return tf.stack(energies)

    def samples(self, coefficients: tf.Tensor, step: tf.Tensor) -> list[tf.Tensor]:
        return [
            self._chosen(index, functools.partial(self._sample, part, index, step=step))
            for index, part in enumerate(self._split(coefficients))
            if self.learned[index] is not None
        ]

    def _sample(self, part: tf.Tensor, index: int, name: str, step: tf.Tensor) -> tf.Tensor:
        """Returns a sample of a variable's coefficients, with its side as the basis finds it."""
        side = self.learned[index]
        assert side is not None
        sample = side.sample(tf.reshape(part, [side.rows, side.columns]), step)
        axes, is_learned = _split_name(name)
        if is_learned:
            return side.turn(sample, self.bases[index], inverse=True)
        # Across the side, what was transformed leaves its Gram matrix as it is.
        shape = sample.shape
        for step_shape, places in reversed([_axes(self.variables[index], axis) for axis in axes]):
            part_shape, part_places = _along(side, step_shape, places)
            sample = transform_axes(sample, part_shape, part_places, self.basis, inverse=True)
        return tf.reshape(sample, shape)

    def _map(self, bucket: tf.Tensor, inverse: bool) -> tf.Tensor:
        if all(names == ("identity",) for names in self.candidates):
            return bucket
        parts = [
            self._chosen(index, functools.partial(self._apply, part, index, inverse=inverse))
            for index, part in enumerate(self._split(bucket))
        ]
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)

    def _chosen(self, index: int, by_name: Callable[..., tf.Tensor]) -> tf.Tensor:
        """Returns a function of the name of the view that a variable has."""
        names = self.candidates[index]
        if self.choice is None or len(names) == 1:
            return by_name(name=names[0])
        branches = [functools.partial(by_name, name=name) for name in names]
        return tf.switch_case(self.choice[index], branches)

    def _split(self, bucket: tf.Tensor) -> list[tf.Tensor]:
        sizes = [variable.num_elements for variable in self.variables]
        return [bucket] if len(sizes) == 1 else tf.split(bucket, sizes)

    def _apply(self, part: tf.Tensor, index: int, name: str, inverse: bool) -> tf.Tensor:
        """Maps the elements of a variable to a view's coefficients, or back."""
        axes, is_learned = _split_name(name)
        steps = [_axes(self.variables[index], axis) for axis in axes]
        if is_learned and inverse:
            part = self._turn(part, index, inverse)
        for shape, places in reversed(steps) if inverse else steps:
            part = transform_axes(part, shape, places, self.basis, inverse)
        if is_learned and not inverse:
            part = self._turn(part, index, inverse)
        return tf.identity(part)  # a branch must not return what it was given

    def _turn(self, part: tf.Tensor, index: int, inverse: bool) -> tf.Tensor:
        """Turns what a variable is to its learned basis, or back."""
        side = self.learned[index]
        if side is None or not self.bases:
            return part
        matrix = tf.reshape(part, [side.rows, side.columns])
        return tf.reshape(side.turn(matrix, self.bases[index], inverse), [-1])


def _split_name(name: str) -> tuple[list[str], bool]:
    """Returns the axes that a view's name has, and whether a learned basis comes after them."""
    names = name.split("+")
    is_learned = names[-1] == LEARNED
    return (names[:-1] if is_learned else names), is_learned


def _without_missing(name: str, variable: base.VariableShape, side: Side | None) -> str:
    """Returns what a view comes to for a variable that lacks some of its axes, or a side."""
    axes, is_learned = _split_name(name)
    names = [axis for axis in axes if _axes(variable, axis)[1]]
    if is_learned and side is not None:
        names.append(LEARNED)
    return "+".join(names) or "identity"


def _along(
    side: Side, shape: tuple[int, ...], axes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shape of a sample, and which of some axes are the side's.

    Args:
      side: what is sampled.
      shape: to see the variable in.
      axes: of that shape.
    """
    cut = next(cut for cut in range(len(shape)) if math.prod(shape[:cut]) == side.rows)
    if side.is_left:
        return (*shape[:cut], side.num_sampled), tuple(axis for axis in axes if axis < cut)
    return (side.num_sampled, *shape[cut:]), tuple(axis - cut + 1 for axis in axes if axis >= cut)


def _candidates(variable: base.VariableShape, side: Side | None) -> tuple[str, ...]:
    """Returns the views worth comparing: those along axes that the variable has.

    Args:
      variable: its shape.
      side: of which a basis is learned, if any is: then also with it, but for axes of that side.
    """
    names = ["identity"]
    names += [name for name in ("hidden", "spatial") if _axes(variable, name)[1]]
    if len(variable.shape) >= 2:
        names += [name for name in ("output", "input") if _axes(variable, name)[1]]
    if len(variable.shape) == 2 and len(names) == 3:
        names.append("output+input")
    if side is not None:
        for name in tuple(names):
            steps = [_axes(variable, axis) for axis in name.split("+")]
            if not any(_along(side, shape, axes)[1] for shape, axes in steps):
                names.append(LEARNED if name == "identity" else f"{name}+{LEARNED}")
    return tuple(names)


def _axes(variable: base.VariableShape, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shape to see a variable in, and the axes of that shape that a name stands for."""
    shape = variable.shape
    rank = len(shape)
    axes: Sequence[int] = ()
    if name == "flat":
        shape, axes = (variable.num_elements,), (0,)
    elif name == "output" and rank >= 1:
        axes = (rank - 1,)
    elif name == "input" and rank >= 2:
        axes = (rank - 2,)
    elif name == "spatial":
        axes = range(rank - 2)
    elif name == "hidden" and variable.hidden:
        shape = (*variable.hidden, *shape[1:])
        axes = range(len(variable.hidden) - 1)
    return shape, tuple(axis for axis in axes if shape[axis] > 1)


def _energy(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(tf.cast(values, tf.float64)))
