# SPDX-License-Identifier: Apache-2.0
"""How gradients are compressed, as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_gradcomp import specs
from tf_gradcomp.codecs import base, registry
from tf_gradcomp.controllers import registry as controllers
from tf_gradcomp.controllers import schedules
from tf_gradcomp.controllers.base import Controller
from tf_gradcomp.transports import TRANSPORTS

SCOPES = ("layer", "bucket", "model")
AUTO_TRANSPORT = "auto"
DEFAULT_BUCKET_BYTES = 32 * 2**20
_LAST_EXCHANGE = 2**31 - 1
# What float32 can tell from 0 and from 1, with room for squares and quotients.
_SMALLEST = 1e-18
_EPSILON = 2.0**-24


@dataclasses.dataclass(frozen=True)
class Compression:
    """A codec or low-rank method with its parameters, and how it is applied.

    Plain data: printable, comparable, hashable, and convertible to a dict and to a one-line spec
    and back. ``Compression.from_spec("fft:density=0.1,scope=layer")`` reads such a spec: a
    codec's name, then its parameters and the fields below in any order.

    Attributes:
      codec: name of the codec or low-rank method; ``"none"`` means no compression at all:
        TensorFlow's own dense all-reduce, the baseline.
      params: the codec's parameters, as a sorted tuple of ``(name, value)``; give a dict. All
        parameters are stored, defaults included. ``density`` and ``bits`` may be functions of the
        number of exchanges so far, such as the objects in ``keras.optimizers.schedules``; they
        become ``schedules.Scheduled``, which a spec cannot say.
      error_feedback: whether what the codec lost is added to the next step's gradient. ``None``
        means yes for biased codecs and low-rank methods, no for others.
      scope: what is encoded as one: ``"layer"`` (every variable alone), ``"bucket"`` (variables
        fused up to ``bucket_bytes``) or ``"model"``.
      bucket_bytes: size limit of a bucket of scope ``"bucket"``, in bytes of float32 gradient.
      transport: how what a codec keeps travels: ``"all_gather"``, ``"scatter_reduce"``,
        ``"block_sparse"``, ``"integer"`` or, for ``"identity"``, ``"float16"`` and ``"bfloat16"``,
        ``"all_reduce"``. ``"auto"`` is one of the first two. Low-rank methods and ``"none"`` have
        one way of travelling.
      warmup: number of the first exchanges that send more: their density falls from 1/4 by way of
        the powers of 1/4, in stages of equal length, to the codec's; see ``schedules.WarmUp``. 0
        for none. This field and the next one are for codecs that keep a given share of the items.
      grow_after: number of the exchange from which on the density grows towards 1: the share that
        is dropped falls as ``grow_after`` over the number of the exchange; see
        ``schedules.Growth``. 0 for a density that does not grow.
      start_after: number of the first exchanges that send gradients as they are.
      controller: decides from measurements how much of each bucket is sent; an object or a spec,
        such as ``"lags"`` or ``"layer_window(budget=0.1)"``. ``None`` for none.
      momentum: momentum correction, in [0, 1): every worker's own momentum takes the place of its
        gradient, and what is sent of it begins anew (DGC). The optimizer must have none.
      global_momentum: in [0, 1): the same with the momentum that all workers have in common (GMC).
      clip_norm: bound of the Euclidean norm of all gradients of a step, as an optimizer's
        ``global_clipnorm``: each of ``W`` workers scales its own down to ``clip_norm / sqrt(W)``.
        ``None`` for none.
      lr_correction: whether residuals are multiplied by the last learning rate over this one, so
        that they are repaid in full when it has changed.

    Raises:
      ValueError: a field has a bad value; the message names the field and what is allowed. That of
        a Keras schedule is found when the strategy is made, or by ``build``.
    """

    codec: str = "fft"
    params: tuple[tuple[str, Any], ...] = ()
    error_feedback: bool | None = None
    scope: str = "bucket"
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    transport: str = AUTO_TRANSPORT
    warmup: int = 0
    grow_after: int = 0
    start_after: int = 0
    controller: Controller | None = None
    momentum: float = 0.0
    global_momentum: float = 0.0
    clip_norm: float | None = None
    lr_correction: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.codec, str):
            raise ValueError(f"codec must be a name, got {self.codec!r}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
        params = {key: _plain(key, value) for key, value in dict(self.params).items()}
        is_none = self.codec == "none"
        if is_none and params:
            raise ValueError(f"codec 'none' has no parameter {next(iter(params))!r}")
        if not is_none:
            codec = registry.build(self.codec, _at_first(params, with_keras=False))
            known = registry.parameters(self.codec, params)
            params = {**known, **params}
        object.__setattr__(self, "params", tuple(sorted(params.items())))
        spec: Any = self.controller
        if isinstance(spec, str):
            controller = None if spec == "none" else controllers.from_spec(spec)
            object.__setattr__(self, "controller", controller)
        if self.controller is not None and not isinstance(self.controller, Controller):
            raise ValueError(
                f"controller must be a controller, a spec or none, got {self.controller!r}"
            )
        if self.scope not in SCOPES:
            raise ValueError(f"scope must be one of {', '.join(SCOPES)}, got {self.scope!r}")
        if self.error_feedback is not None and not isinstance(self.error_feedback, bool):
            raise ValueError(
                f"error_feedback must be true, false or none, got {self.error_feedback!r}"
            )
        if is_none and self.error_feedback:
            raise ValueError("error_feedback has no meaning with codec 'none', which loses nothing")
        error_feedback = self.error_feedback
        if error_feedback is None:
            error_feedback = not is_none and (codec.biased or self.withholds)
        object.__setattr__(self, "error_feedback", error_feedback)
        if (
            isinstance(self.bucket_bytes, bool)
            or not isinstance(self.bucket_bytes, int)
            or self.bucket_bytes < 4
        ):
            raise ValueError(
                f"bucket_bytes must be an integer of at least 4, got {self.bucket_bytes!r}"
            )
        coded = codec if not is_none and isinstance(codec, base.Codec) else None
        self._check_feedback(coded is not None)
        allowed = [AUTO_TRANSPORT]
        adding = [name for name, transport in TRANSPORTS.items() if transport.needs_addable]
        if not is_none and isinstance(codec, base.Codec):
            is_addable = codec.addable is not None
            allowed += [name for name in TRANSPORTS if is_addable or name not in adding]
        if self.transport not in allowed:
            can_be_added = f", which is for {', '.join(registry.addable())} only"
            raise ValueError(
                f"transport of {self.codec!r} must be {' or '.join(allowed)}, "
                f"got {self.transport!r}{can_be_added if self.transport in adding else ''}"
            )
        self._check_schedules(coded)
        self._check_controller(coded)

    def _check_schedules(self, codec: base.Codec | None) -> None:
        """Checks what changes with the number of the exchange."""
        adjustable = frozenset() if codec is None else codec.adjustable
        for field in ("warmup", "grow_after", "start_after"):
            value = getattr(self, field)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if not is_integer or not 0 <= value <= _LAST_EXCHANGE:
                raise ValueError(
                    f"{field} must be an integer from 0 to {_LAST_EXCHANGE}, got {value!r}"
                )
        for field in ("warmup", "grow_after"):
            if getattr(self, field) and "density" not in adjustable:
                raise ValueError(
                    f"{field} changes a density, so codec must be one of "
                    f"{', '.join(registry.adjustable('density'))}, got {self.codec!r}"
                )
        for name in self.scheduled:
            if name not in adjustable:
                raise ValueError(
                    f"{name} of {self.codec!r} must be a plain value: what may change is "
                    f"{' and '.join(sorted(adjustable)) or 'nothing'}"
                )
        if "density" in self.scheduled and (self.warmup or self.grow_after):
            raise ValueError("density is a schedule: warmup and grow_after must be 0")
        if self.warmup and dict(self.params)["density"] >= schedules.FIRST_DENSITY:
            raise ValueError(
                f"warmup begins with a density of {schedules.FIRST_DENSITY}: density must be less, "
                f"got {dict(self.params)['density']}"
            )
        if self.start_after and codec is None:
            raise ValueError(f"start_after is for codecs, got {self.codec!r}")

    def _check_controller(self, codec: base.Codec | None) -> None:
        controller = self.controller
        if controller is None:
            return
        spec = controllers.to_spec(controller)
        if codec is None:
            raise ValueError(f"controller {spec} is for codecs, got {self.codec!r}")
        if controller.adjusts and "density" not in codec.adjustable:
            raise ValueError(
                f"controller {spec} changes a density, so codec must be one of "
                f"{', '.join(registry.adjustable('density'))}, got {self.codec!r}"
            )
        if "density" in self.scheduled or self.warmup or self.grow_after:
            raise ValueError(
                f"controller {spec} decides what is sent: density must be a number, and warmup "
                "and grow_after 0"
            )
        if controller.withholds and not self.error_feedback:
            raise ValueError(
                f"controller {spec} withholds gradients, which error feedback keeps for later: it "
                "needs error_feedback=true"
            )
        if controller.withholds and self.global_momentum:
            raise ValueError(
                f"controller {spec} withholds gradients, of which global_momentum knows no sum"
            )

    def _check_feedback(self, is_coded: bool) -> None:
        """Checks what is fed back beside the residual, and what is done before."""
        for field in ("momentum", "global_momentum"):
            factor = getattr(self, field)
            if not _is_number(factor) or not (factor == 0 or _SMALLEST <= factor <= 1 - _EPSILON):
                raise ValueError(f"{field} must be in [0, 1), got {factor!r}")
            object.__setattr__(self, field, float(factor))
            if factor and not is_coded:
                raise ValueError(
                    f"{field} is for codecs; with {self.codec!r} the optimizer has the momentum"
                )
            if factor and not self.error_feedback:
                raise ValueError(
                    f"{field} is the momentum of what error feedback holds back: it needs "
                    "error_feedback=true"
                )
        if self.momentum and self.global_momentum:
            raise ValueError("momentum and global_momentum exclude each other")
        if not isinstance(self.lr_correction, bool):
            raise ValueError(f"lr_correction must be true or false, got {self.lr_correction!r}")
        if self.lr_correction and not self.error_feedback:
            raise ValueError("lr_correction corrects residuals: it needs error_feedback=true")
        if self.clip_norm is None:
            return
        if not _is_number(self.clip_norm) or not _SMALLEST <= self.clip_norm <= 1 / _SMALLEST:
            raise ValueError(
                f"clip_norm must be none or from {_SMALLEST:g} to {1 / _SMALLEST:g}, "
                f"got {self.clip_norm!r}"
            )
        if self.is_dense:
            raise ValueError("clip_norm has no meaning with codec 'none': let the optimizer clip")
        object.__setattr__(self, "clip_norm", float(self.clip_norm))

    @property
    def is_dense(self) -> bool:
        """Whether gradients travel as they are, through TensorFlow's all-reduce."""
        return self.codec == "none"

    def build(self, density: float | None = None) -> base.Codec | base.LowRank:
        """Makes the codec or low-rank method, as it is at the first exchange.

        Args:
          density: takes the place of its own, if it has any; ``None`` does not.

        Raises:
          ValueError: the codec is ``"none"``, for which there is nothing to make.
        """
        if self.is_dense:
            raise ValueError("codec 'none' sends gradients as they are: there is nothing to build")
        return registry.build(self.codec, self._steady_params(density))

    @property
    def scheduled(self) -> dict[str, schedules.Scheduled]:
        """The parameters that are functions of the number of exchanges."""
        return {k: value for k, value in self.params if isinstance(value, schedules.Scheduled)}

    @property
    def bits_range(self) -> tuple[int, int]:
        """The fewest and the most bits that a schedule can give the values; 0 without bits."""
        codec = self.build()
        if not isinstance(codec, base.Codec) or "bits" not in codec.adjustable:
            return 0, 0
        return codec.bits_range

    @property
    def withholds(self) -> bool:
        """Whether some buckets may be kept back whole at some exchanges."""
        return self.controller is not None and self.controller.withholds

    @property
    def changes(self) -> bool:
        """Whether what is sent may differ in size from exchange to exchange by any of these."""
        return bool(
            self.start_after
            or self.scheduled
            or self.controller
            or self.changes_density
            or self.learns
        )

    @property
    def learns(self) -> bool:
        """Whether the codec learns bases, on which workers agree by messages of their own."""
        return self._transform is not None and self._transform.learns

    def left_out(self, variables: Sequence[base.VariableShape]) -> str:
        """Says what the codec does not choose from for a bucket of these; empty for nothing."""
        return "" if self._transform is None else self._transform.left_out(variables)

    @property
    def _transform(self) -> base.Transform | None:
        codec = None if self.is_dense else self.build()
        return codec.transform if isinstance(codec, base.Codec) else None

    @property
    def changes_density(self) -> bool:
        """Whether the density may be another than the codec's, and not 0."""
        return bool(
            self.warmup
            or self.grow_after
            or "density" in self.scheduled
            or (self.controller is not None and self.controller.adjusts)
        )

    @property
    def density_schedule(self) -> schedules.Schedule | None:
        """The density at each exchange by ``warmup`` and ``grow_after``; ``None`` for neither."""
        parts: list[schedules.Schedule] = []
        if self.warmup:
            parts.append(schedules.WarmUp(dict(self.params)["density"], self.warmup))
        if self.grow_after:
            parts.append(schedules.Growth(dict(self.params)["density"], self.grow_after))
        return schedules.Highest(tuple(parts)) if parts else None

    def steady(self, density: float | None = None) -> Compression:
        """Returns the same with what the first exchange has of schedules, at every exchange.

        Args:
          density: takes the place of the codec's, if it has any; ``None`` does not.
        """
        return dataclasses.replace(
            self,
            params=tuple(self._steady_params(density).items()),
            warmup=0,
            grow_after=0,
            start_after=0,
            controller=None,
        )

    def _steady_params(self, density: float | None) -> dict[str, Any]:
        params = _at_first(dict(self.params))
        if density is not None and "density" in params:
            params["density"] = density
        return params

    @classmethod
    def from_spec(cls, spec: str) -> Compression:
        """Reads a one-line spec, ``name`` or ``name:key=value,key=value``.

        Values are numbers, ``true``, ``false``, ``none``, words, or, for a controller, a name and
        fields in parentheses.

        Raises:
          ValueError: the spec cannot be read, or a field has a bad value.
        """
        if not isinstance(spec, str):
            raise ValueError(f"a compression spec is a string, got {type(spec).__name__}")
        name, _, rest = spec.strip().partition(":")
        try:
            return cls._from_fields(name.strip(), specs.parse_fields(rest))
        except ValueError as error:
            raise ValueError(f"compression spec {spec!r}: {error}") from None

    @classmethod
    def _from_fields(cls, name: str, values: Mapping[str, Any]) -> Compression:
        if name != "none":
            _refuse_methods(name)
            registry.parameters(name, {})
        own = {field.name for field in dataclasses.fields(cls)} - {"codec", "params"}
        fields = {key: value for key, value in values.items() if key in own}
        params = {key: value for key, value in values.items() if key not in own}
        return cls(codec=name, params=tuple(params.items()), **fields)

    def to_spec(self) -> str:
        """Returns the shortest spec that ``from_spec`` reads back as an equal object.

        Schedules other than ``warmup`` and the like are only described: no spec can say them.
        """
        params = dict(self.params)
        usual = {} if self.is_dense else registry.parameters(self.codec, params)
        items = [(key, value) for key, value in self.params if usual[key] != value]
        plain = Compression(codec=self.codec, params=self.params)
        items += [
            (field.name, getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name not in ("codec", "params")
            and getattr(self, field.name) != getattr(plain, field.name)
        ]
        fields = dict(items)
        if self.controller is not None:
            fields["controller"] = controllers.to_spec(self.controller)
        rest = specs.format_fields(fields.items())
        return f"{self.codec}:{rest}" if rest else self.codec

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON-compatible data; schedule objects are only described."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        params = {key: str(value) if key in self.scheduled else value for key, value in self.params}
        controller = None if self.controller is None else controllers.to_spec(self.controller)
        return {**fields, "params": params, "controller": controller}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Compression:
        """Makes an object from what ``to_dict`` returned.

        Raises:
          ValueError: an unknown field, or a bad value.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for key in data:
            if key not in known:
                raise ValueError(
                    f"Compression has no field {key!r}; its fields: {', '.join(sorted(known))}"
                )
        params = tuple(dict(data.get("params", {})).items())
        return cls(**{**data, "params": params})

    def __str__(self) -> str:
        return self.to_spec()


def _refuse_methods(name: str) -> None:
    """Says so if a spec names a published method."""
    from tf_gradcomp import methods  # which imports this file

    if name not in registry.names() and callable(getattr(methods, name, None)):
        raise ValueError(
            f"{name!r} is a published method, no codec: give what tf_gradcomp.methods.{name}() "
            "returns in place of a spec"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(name: str, value: Any) -> Any:
    """Returns a parameter as Python's own number, or as a schedule."""
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        raise ValueError(
            f"{name} must be a number, or a function of the exchanges so far, such as a Keras "
            f"schedule, got {value!r}, which would be read once"
        )
    if isinstance(value, np.generic):
        return value.item()
    return schedules.as_scheduled(value) if callable(value) else value


def _at_first(params: Mapping[str, Any], with_keras: bool = True) -> dict[str, Any]:
    """Returns parameters with the first value of each schedule, or without those of Keras."""
    values = {}
    for key, value in params.items():
        if isinstance(value, schedules.Scheduled) and value.is_keras and not with_keras:
            continue
        if isinstance(value, schedules.Scheduled):
            first = value.first
            value = round(first) if key == "bits" and math.isfinite(first) else first
        values[key] = value
    return values
