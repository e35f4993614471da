"""Declaring hyperparameters: fields of a class with a constraint."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import equinox as eqx
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from kernax._arrays import as_floats, is_concrete
from kernax.bijectors import AbstractBijector, Interval, Positive, Real
from kernax.priors import Prior

_REQUIRED: Any = dataclasses.MISSING


if TYPE_CHECKING:

    class Parameter:
        """The annotation of a parameter for type checkers: it is set from a number or anything like an array, and read as
        an array."""

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
    """Declare a positive parameter. A fit optimises its logarithm.

    ```python
    class Tent(kx.AbstractKernel):
        width: kx.parameters.Parameter = kx.positive(default=1.0)
    ```

    **Arguments:**

    - `default`: the value if none is given. Without a default, the class requires a value. With `None`, the parameter is
        optional.
    - `floor`, `ceiling`: the smallest and the largest value.
    - `scalar`: accept one number only, no arrays.
    - `unit`: the unit of measurement, shown by [`kernax.report`][]: "x" (the unit of the input columns), "y", "y²",
        "y²/x²", "1/x", …

    **Returns:**

    A field with the constraint [`kernax.bijectors.Positive`][].
    """
    return _parameter(Positive(floor, ceiling), default, unit, scalar)


def non_negative(
    *, default: Any = _REQUIRED, scalar: bool = False, unit: str = "", converter: Callable[[Any], Any] | None = None
) -> Any:
    """Declare a parameter that is positive or 0. A parameter that is 0 cannot be fitted: freeze it, or start above 0.

    **Arguments:**

    - `default`: the value if none is given. Without it, the class requires one.
    - `scalar`: accept one number only, no arrays.
    - `unit`: the unit of measurement, as in [`kernax.positive`][].
    - `converter`: replaces the check that the value is a number, for a field that also accepts modules.

    **Returns:**

    A field with the constraint [`kernax.bijectors.Positive`][] with `zero_allowed=True`.
    """
    return _parameter(Positive(zero_allowed=True), default, unit, scalar, converter)


def real(*, default: Any = _REQUIRED, unit: str = "") -> Any:
    """Declare a parameter without a constraint.

    **Arguments:**

    - `default`: the value if none is given. Without it, the class requires one.
    - `unit`: the unit of measurement, as in [`kernax.positive`][].

    **Returns:**

    A field with the constraint [`kernax.bijectors.Real`][].
    """
    return _parameter(Real(), default, unit)


def interval(lower: float, upper: float, *, default: Any = _REQUIRED, scalar: bool = False, unit: str = "") -> Any:
    """Declare a parameter between two bounds.

    **Arguments:**

    - `lower`, `upper`: the bounds, both finite.
    - `default`: the value if none is given. Without it, the class requires one.
    - `scalar`: accept one number only, no arrays.
    - `unit`: the unit of measurement, as in [`kernax.positive`][].

    **Returns:**

    A field with the constraint [`kernax.bijectors.Interval`][].
    """
    return _parameter(Interval(lower, upper), default, unit, scalar)


def _parameter(
    bijector: AbstractBijector,
    default: Any,
    unit: str,
    scalar: bool = False,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    metadata = {"bijector": bijector, "scalar": scalar, "unit": unit}
    converter = _AsParameter(is_optional=default is None) if converter is None else converter
    return eqx.field(converter=converter, default=default, metadata=metadata)


class _AsParameter:
    """Converts a value to an array of floats. Errors name the field. A parameter with the default `None` may be missing."""

    name = "a hyperparameter"

    def __init__(self, *, is_optional: bool):
        self.is_optional = is_optional

    def __call__(self, value: Any) -> Float[Array, "..."] | None:
        if value is None and self.is_optional:
            return None
        return as_floats(value, self.name)


@dataclasses.dataclass(frozen=True)
class Setting:
    """Bijector and prior of one parameter of one instance, where they differ from what the field declares."""

    bijector: AbstractBijector | None = None
    prior: Prior | None = None


class Parametrised(eqx.Module):
    """Base class of modules with hyperparameters. The parameters are stored as constrained values.

    A module of your own derives from it and declares its parameters with [`kernax.positive`][],
    [`kernax.parameters.real`][], [`kernax.parameters.non_negative`][] or [`kernax.parameters.interval`][]. Kernels derive
    from [`kernax.AbstractKernel`][], which is a `Parametrised`.
    """

    settings: tuple[tuple[str, Setting], ...] = eqx.field(static=True, default=(), kw_only=True, repr=False)

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for name, field in vars(cls).items():
            converter = getattr(field, "metadata", {}).get("converter")
            if isinstance(converter, _AsParameter):
                converter.name = f"{cls.__name__}.{name}"

    def __check_init__(self):
        if "settings" not in vars(self):
            # A class with its own `__init__` does not set them, and trees with and without this field would not match.
            object.__setattr__(self, "settings", ())
        for field in dataclasses.fields(self):
            bijector = field.metadata.get("bijector")
            value = getattr(self, field.name, None)
            if bijector is None or value is None or not eqx.is_array(value):
                continue
            name = f"{type(self).__name__}.{field.name}"
            if field.metadata["scalar"] and value.ndim:
                raise ValueError(f"{name} must be one number, got shape {value.shape}.")
            fault = bijector.fault(np.asarray(value)) if is_concrete(value) else None
            if fault is not None:
                raise ValueError(f"{name} must be {fault}, got {_shown(value).removesuffix('.')}.")

    def __repr__(self):
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name, None)
            if field.repr and value is not None:
                parts.append(f"{field.name}={_shown(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def setting(self, name: str) -> Setting:
        """The bijector and the prior of a parameter.

        **Arguments:**

        - `name`: the name of its field.

        **Returns:**

        An object with the attributes `bijector` and `prior`.
        """
        own = dict(self.settings).get(name, Setting())
        if own.bijector is not None:
            return own
        for field in dataclasses.fields(self):
            if field.name == name:
                return dataclasses.replace(own, bijector=field.metadata.get("bijector", Real()))
        return dataclasses.replace(own, bijector=Real())

    def with_setting(self, name: str, **changes: Any) -> "Parametrised":
        """A copy in which a parameter has another bijector or prior.

        **Arguments:**

        - `name`: the name of its field.
        - `changes`: `bijector=` or `prior=`.

        **Returns:**

        The copy.
        """
        own = dict(self.settings)
        own[name] = dataclasses.replace(own.get(name, Setting()), **changes)
        copy = object.__new__(type(self))
        for field in dataclasses.fields(self):
            if hasattr(self, field.name):
                object.__setattr__(copy, field.name, getattr(self, field.name))
        object.__setattr__(copy, "settings", tuple(sorted(own.items())))
        return copy


def _shown(value: Any) -> str:
    """A value as text, with four digits. Traced and long arrays are shown by their shape."""
    if eqx.is_array(value):
        if not is_concrete(value) or value.size > 12:
            return f"{value.dtype}{list(value.shape)}"
        return np.array2string(np.asarray(value), precision=4, separator=", ")
    if isinstance(value, tuple):
        return "(" + ", ".join(_shown(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


class Function(eqx.Module):
    """A Python function wrapped as a module without parameters, for models that are passed to `jax.jit`.

    **Arguments:**

    - `function`: the function.
    """

    function: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __repr__(self):
        return getattr(self.function, "__name__", repr(self.function))


def as_function(value: Any) -> Any:
    """Convert a callable to a part of a model.

    **Arguments:**

    - `value`: a callable Equinox module, whose arrays are then parameters of the model, or a Python function.

    **Returns:**

    The module itself, or the function as a [`kernax.parameters.Function`][].
    """
    if not callable(value):
        raise TypeError(f"expected a function of one point, or a callable Equinox module, got {value!r}.")
    return value if isinstance(value, eqx.Module) else Function(value)
