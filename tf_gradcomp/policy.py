# SPDX-License-Identifier: Apache-2.0
"""Which variable is compressed how."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Collection
from typing import NamedTuple

from tf_gradcomp.compression import Compression

COMPRESSIBLE_DTYPES = ("float32", "float16", "bfloat16")


class VariableInfo(NamedTuple):
    """What is known of a variable whose gradient is exchanged.

    Attributes:
      name: path of the variable in its model, for patterns and messages.
      shape: static shape.
      dtype: name of the gradient's dtype.
      hidden: for a dense kernel behind a Flatten, the shape that was flattened into its first
        axis, without the batch; else empty.
      sparse: whether the gradient is a ``tf.IndexedSlices``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    hidden: tuple[int, ...] = ()
    sparse: bool = False

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Policy:
    """Maps variables to compressions.

    A variable takes the compression of the first rule whose pattern matches its name, else the
    default one, provided that its rank is at least ``min_rank`` (biases and normalization
    parameters are few bytes and sensitive), that it has at least ``min_elements`` elements and
    a floating-point type of at most 32 bits. Everything else is sent dense, fused. A rule is
    the user's word: ``min_rank`` and ``min_elements`` do not apply to a variable it matches.

    A sparse gradient (``tf.IndexedSlices``, of an embedding) is exchanged row by row, without loss.
    Only a rule that matches its variable compresses it, and makes it dense first.

    An optimizer is one for all variables, and so is what takes the place of its momentum and
    clipping: it must be the same in all compressions, and what is sent as it is has it, too.

    Attributes:
      default: compression of variables that no rule matches.
      rules: ``(pattern, compression)`` pairs; patterns as in ``fnmatch``, for example
        ``"*embedding*"``; compressions as objects or specs.
      min_rank: smallest rank compressed by default.
      min_elements: smallest number of elements compressed by default.

    Raises:
      ValueError: a compression or limit is not valid, or compressions differ in ``momentum``,
        ``global_momentum`` or ``clip_norm``.
    """

    default: Compression = Compression()
    rules: tuple[tuple[str, Compression], ...] = ()
    min_rank: int = 2
    min_elements: int = 4096

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", as_compression(self.default))
        rules = []
        for rule in self.rules:
            if len(rule) != 2 or not isinstance(rule[0], str):
                raise ValueError(f"Policy: a rule is a pair (pattern, compression), got {rule!r}")
            rules.append((rule[0], as_compression(rule[1])))
        object.__setattr__(self, "rules", tuple(rules))
        for field in ("min_rank", "min_elements"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"Policy: {field} must be an integer of at least 0, got {value!r}")
        for field in ("momentum", "global_momentum", "clip_norm"):
            values = {getattr(compression, field) for compression in self._compressions()}
            if len(values) > 1:
                raise ValueError(
                    f"Policy: {field} must be the same in all compressions, got "
                    f"{' and '.join(sorted(map(str, values)))}"
                )

    def compression_for(self, variable: VariableInfo) -> Compression | None:
        """Returns the variable's compression, or ``None`` if it is sent as it is."""
        compression = self._rule_for(variable.name)
        if compression is None:
            compression = self.default
            if variable.sparse:
                return None
            if len(variable.shape) < self.min_rank or variable.num_elements < self.min_elements:
                return None
        if compression.is_dense or variable.dtype not in COMPRESSIBLE_DTYPES:
            return None
        return compression if variable.num_elements else None

    @property
    def is_dense(self) -> bool:
        """Whether nothing is compressed, whatever the variables."""
        return not self._compressions()

    @property
    def momentum(self) -> float:
        """The momentum that the optimizer leaves to the exchange; 0 for none."""
        return max((c.momentum or c.global_momentum for c in self._compressions()), default=0.0)

    @property
    def clip_norm(self) -> float | None:
        """Bound of the norm of a step's gradients; ``None`` for none."""
        return next((c.clip_norm for c in self._compressions()), None)

    @property
    def lr_correction(self) -> bool:
        """Whether any compression needs to know the learning rate."""
        return any(compression.lr_correction for compression in self._compressions())

    def check_schedules(self) -> None:
        """Asks Keras schedules for their first values, once TensorFlow may run operations.

        Raises:
          ValueError: a value is not one that the codec accepts.
        """
        for compression in self._compressions():
            compression.build()

    def _compressions(self) -> list[Compression]:
        """Returns all compressions but those that send gradients as they are."""
        compressions = [self.default, *(compression for _, compression in self.rules)]
        return [compression for compression in compressions if not compression.is_dense]

    def unmatched_patterns(self, names: Collection[str]) -> list[str]:
        """Returns the rules' patterns that none of the names matches."""
        return [
            pattern
            for pattern, _ in self.rules
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names)
        ]

    def _rule_for(self, name: str) -> Compression | None:
        matches = (rule for rule in self.rules if fnmatch.fnmatchcase(name, rule[0]))
        return next((compression for _, compression in matches), None)

    def __str__(self) -> str:
        rules = "".join(f"{pattern} -> {compression}; " for pattern, compression in self.rules)
        return (
            f"{rules}default {self.default} for rank >= {self.min_rank} "
            f"and at least {self.min_elements} elements"
        )


def as_compression(value: Compression | str | None) -> Compression:
    """Returns ``value`` as a ``Compression``; ``None`` is ``"none"``.

    Raises:
      ValueError: not a compression nor a valid spec.
    """
    if isinstance(value, Compression):
        return value
    if value is None:
        return Compression("none")
    if isinstance(value, str):
        return Compression.from_spec(value)
    call = "; call it, to get a Compression" if callable(value) else ""
    raise ValueError(
        f"expected a Compression, a spec such as 'fft:density=0.15' or None, got {value!r}{call}"
    )


def as_policy(value: Policy | Compression | str | None) -> Policy:
    """Returns ``value`` as a ``Policy``.

    Raises:
      ValueError: as ``as_compression``.
    """
    return value if isinstance(value, Policy) else Policy(default=as_compression(value))
