# SPDX-License-Identifier: Apache-2.0
"""Views: transforms along the axes of each variable's own shape.

A transform pays where neighbours are alike. Neighbours in a flattened gradient rarely are; those
along the right axis of the tensor often are, and its few largest coefficients then hold far more
energy than its few largest elements do. Which axis that is depends on the layer: see
``docs/methods/view.md`` and the measurements in ``docs/performance.md``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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
        gradients, ever more rarely.
      basis: ``"dct"`` or ``"fft"``, both real and orthonormal, of what is not learned.

    Raises:
      ValueError: an unknown view or basis.
    """

    view: str = "identity"
    basis: str = "dct"

    def __post_init__(self) -> None:
        if self.view not in ("identity", "auto"):
            names = self.view.split("+") if isinstance(self.view, str) else []
            axes = names[:-1] if names[-1:] == [LEARNED] else names
            if not names or len(set(axes)) < len(axes) or not set(axes) <= set(AXES):
                raise ValueError(
                    f"view: view must be identity, auto, or some of {', '.join(AXES)} and, as the "
                    f"last, {LEARNED}, joined by '+', got {self.view!r}"
                )
        if self.basis not in BASES:
            raise ValueError(f"view: basis must be one of {', '.join(BASES)}, got {self.basis!r}")

    @property
    def learns(self) -> bool:
        return self.view.endswith(LEARNED)

    def layout(self, num_elements: int) -> base.Layout:
        return base.Layout(num_elements)

    def fit(self, variables: Sequence[base.VariableShape]) -> FittedView:
        candidates = tuple(
            _candidates(variable) if self.view == "auto" else (self.view,) for variable in variables
        )
        sides = [side_of(variable.shape) for variable in variables] if self.learns else []
        return FittedView(self.basis, tuple(variables), candidates, tuple(sides))

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
      learned: the side of each of which a basis is learned; empty if none is.
      choice: as in ``at``.
      bases: as in ``at``.
    """

    basis: str
    variables: tuple[base.VariableShape, ...]
    candidates: tuple[tuple[str, ...], ...]
    learned: tuple[Side | None, ...] = ()
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

    def kept_energy(self, bucket: tf.Tensor, density: float) -> tf.Tensor:
        num_columns = max(map(len, self.candidates))
        energies = []
        for index, part in enumerate(self._split(bucket)):
            names = self.candidates[index]
            count = num_kept(density, self.variables[index].num_elements)
            row = [
                _energy(top_k_select(self._apply(part, index, name, False), count)[1])
                for name in names
            ]
            row += [tf.constant(0, tf.float64)] * (num_columns - len(row))
            energies.append(tf.stack(row))
        return tf.stack(energies)

    def _map(self, bucket: tf.Tensor, inverse: bool) -> tf.Tensor:
        if all(names == ("identity",) for names in self.candidates):
            return bucket
        parts = []
        for index, part in enumerate(self._split(bucket)):
            branches = [
                lambda part=part, index=index, name=name: self._apply(part, index, name, inverse)
                for name in self.candidates[index]
            ]
            if self.choice is None or len(branches) == 1:
                parts.append(branches[0]())
            else:
                parts.append(tf.switch_case(self.choice[index], branches))
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)

    def _split(self, bucket: tf.Tensor) -> list[tf.Tensor]:
        sizes = [variable.num_elements for variable in self.variables]
        return [bucket] if len(sizes) == 1 else tf.split(bucket, sizes)

    def _apply(self, part: tf.Tensor, index: int, name: str, inverse: bool) -> tf.Tensor:
        """Maps the elements of a variable to a view's coefficients, or back."""
        names = name.split("+")
        is_learned = names[-1] == LEARNED
        axes = names[:-1] if is_learned else names
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


def _candidates(variable: base.VariableShape) -> tuple[str, ...]:
    """Returns the views worth comparing: those along axes that the variable has."""
    names = ["identity"]
    names += [name for name in ("hidden", "spatial") if _axes(variable, name)[1]]
    if len(variable.shape) >= 2:
        names += [name for name in ("output", "input") if _axes(variable, name)[1]]
    if len(variable.shape) == 2 and len(names) == 3:
        names.append("output+input")
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
