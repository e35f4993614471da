"""How a hyperparameter is declared: a field that carries its constraint."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import equinox as eqx
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from kernax._arrays import as_floats, is_concrete
from kernax.parameters._bijectors import AbstractBijector, Interval, Positive, Real
from kernax.parameters._priors import Prior

_REQUIRED: Any = dataclasses.MISSING


if TYPE_CHECKING:

    class Parameter:
        """What type checkers know of a declared parameter: it is given as a number or anything like an array of them, and
        read as an array."""

        @overload
        def __get__(self, instance: None, owner: Any) -> Any: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> Array: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: Any, value: ArrayLike | Sequence[float] | Sequence[Sequence[float]]) -> None: ...

else:
    Parameter = Array


def positive(
    *, default: Any = _REQUIRED, floor: float = 1e-15, ceiling: float = 1e15, scalar: bool = False, unit: str = ""
) -> Any:
    """A field for a positive parameter, optimised in its logarithm. `scalar` refuses vectors.

    `unit` says what it is measured in, for `kx.report`: "x" (that of the input columns), "y", "y²", "y²/x²", "1/x", …
    """
    return _parameter(Positive(floor, ceiling), default, unit, scalar)


def non_negative(
    *, default: Any = _REQUIRED, scalar: bool = False, unit: str = "", converter: Callable[[Any], Any] | None = None
) -> Any:
    """Like `positive`, but 0 may be stored. A parameter that is 0 cannot be fitted: freeze it or start above.

    `converter` takes the place of the check that the value is a number: for a field that also takes modules.
    """
    return _parameter(Positive(zero_allowed=True), default, unit, scalar, converter)


def real(*, default: Any = _REQUIRED, unit: str = "") -> Any:
    """A field for a parameter without a constraint."""
    return _parameter(Real(), default, unit)


def interval(lower: float, upper: float, *, default: Any = _REQUIRED, unit: str = "") -> Any:
    """A field for a parameter between two numbers."""
    return _parameter(Interval(lower, upper), default, unit)


def _parameter(
    bijector: AbstractBijector,
    default: Any,
    unit: str,
    scalar: bool = False,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    metadata = {"bijector": bijector, "scalar": scalar, "unit": unit}
    converter = _AsParameter() if converter is None else converter
    return eqx.field(converter=converter, default=default, metadata=metadata)


class _AsParameter:
    """Turns a value into an array of floats, or refuses it by the name of the field that it was meant for."""

    name = "a hyperparameter"

    def __call__(self, value: Any) -> Float[Array, "..."]:
        return as_floats(value, self.name)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What one instance says about one of its parameters beyond the field's declaration."""

    bijector: AbstractBijector | None = None
    prior: Prior | None = None


class Parametrised(eqx.Module):
    """A module with declared hyperparameters. It stores plain, constrained values: what is printed is what counts."""

    settings: tuple[tuple[str, Setting], ...] = eqx.field(static=True, default=(), kw_only=True, repr=False)

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for name, field in vars(cls).items():
            converter = getattr(field, "metadata", {}).get("converter")
            if isinstance(converter, _AsParameter):
                converter.name = f"{cls.__name__}.{name}"

    def __check_init__(self):
        if "settings" not in vars(self):
            # An `__init__` of the class's own has not set them, and two trees are alike only if both have.
            object.__setattr__(self, "settings", ())
        for field in dataclasses.fields(self):
            bijector = field.metadata.get("bijector")
            value = getattr(self, field.name, None)
            if bijector is None or not eqx.is_array(value):
                continue
            name = f"{type(self).__name__}.{field.name}"
            if field.metadata["scalar"] and value.ndim:
                raise ValueError(f"{name} must be one number, got shape {value.shape}.")
            fault = bijector.fault(np.asarray(value)) if is_concrete(value) else None
            if fault is not None:
                raise ValueError(f"{name} must be {fault}, got {_shown(value)}.")

    def __repr__(self):
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name, None)
            if field.repr and value is not None:
                parts.append(f"{field.name}={_shown(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def setting(self, name: str) -> Setting:
        """The effective bijector and prior of the parameter `name`."""
        own = dict(self.settings).get(name, Setting())
        if own.bijector is not None:
            return own
        for field in dataclasses.fields(self):
            if field.name == name:
                return dataclasses.replace(own, bijector=field.metadata.get("bijector", Real()))
        return dataclasses.replace(own, bijector=Real())

    def with_setting(self, name: str, **changes: Any) -> "Parametrised":
        """A copy whose parameter `name` has another bijector or prior."""
        own = dict(self.settings)
        own[name] = dataclasses.replace(own.get(name, Setting()), **changes)
        copy = object.__new__(type(self))
        for field in dataclasses.fields(self):
            if hasattr(self, field.name):
                object.__setattr__(copy, field.name, getattr(self, field.name))
        object.__setattr__(copy, "settings", tuple(sorted(own.items())))
        return copy


def _shown(value: Any) -> str:
    """A value as a reader wants it: four digits; the shape only, while traced or long."""
    if eqx.is_array(value):
        if not is_concrete(value) or value.size > 12:
            return f"{value.dtype}{list(value.shape)}"
        return np.array2string(np.asarray(value), precision=4, separator=", ")
    if isinstance(value, tuple):
        return "(" + ", ".join(_shown(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


class Function(eqx.Module):
    """A plain Python function as a module without parameters, so that `jax.jit` and `jax.vmap` take models that hold it."""

    function: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __repr__(self):
        return getattr(self.function, "__name__", repr(self.function))


def as_function(value: Any) -> Any:
    """A callable as part of a model: modules stay (their parameters are trained), functions are wrapped."""
    if not callable(value):
        raise TypeError(f"expected a function or a callable Equinox module of one point, got {value!r}.")
    return value if isinstance(value, eqx.Module) else Function(value)
