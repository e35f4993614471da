"""The base class of noises, one variance for all rows, and sums."""

import abc
import functools
import numbers
import operator
from typing import Any

from jaxtyping import Array, Float

from kernax.noises._noises import as_noise
from kernax.parameters import Parameter, Parametrised, positive


class AbstractNoise(Parametrised):
    """Base class of noises: functions from one row to the variance of its noise. Independent noises are added with `+`.

    A noise of your own does not have to derive from it: any callable Equinox module or function can be used.
    """

    # NumPy would otherwise take `array + noise` apart, entry by entry.
    __array_ufunc__ = None

    @abc.abstractmethod
    def __call__(self, row: Any) -> Float[Array, ""]:
        """The variance of the noise of one row.

        **Arguments:**

        - `row`: one row.

        **Returns:**

        One number, 0 or more.
        """

    def check(self, x: Any) -> None:
        """Raise `ValueError` if the noise does not accept some rows, as far as that can be checked before tracing.

        **Arguments:**

        - `x`: rows, as arrays of JAX or NumPy.
        """
        del x

    def initialised(self, variance: Float[Array, ""]) -> "AbstractNoise":
        """This noise with starting values of about a given variance, for `kx.initialise`. By default it is unchanged.

        **Arguments:**

        - `variance`: the variance, one number.

        **Returns:**

        A noise of the same structure.
        """
        del variance
        return self

    def __add__(self, other: Any) -> "Sum":
        return Sum((self, other))

    def __radd__(self, other: Any) -> "Sum":
        return Sum((other, self))


class Constant(AbstractNoise):
    """One variance for all rows, as a part of a sum.

    If it is the only noise, write the number: `kx.Model(kernel, noise=0.1)`.

    **Arguments:**

    - `variance`: a positive number.
    """

    variance: Float[Parameter, ""] = positive(default=0.1, scalar=True, unit="y²")

    def __call__(self, row: Any) -> Float[Array, ""]:
        return self.variance

    def initialised(self, variance):
        return Constant(variance, settings=self.settings)


def _as_parts(parts: Any) -> tuple[Any, ...]:
    found = []
    for part in parts:
        if isinstance(part, Sum):
            found += part.parts
        elif isinstance(part, numbers.Real) or (hasattr(part, "ndim") and part.ndim == 0):
            found.append(Constant(part))  # pyright: ignore[reportArgumentType]
        elif callable(part) and not hasattr(part, "dtype"):
            found.append(as_noise(part))
        else:
            raise TypeError(
                f"a sum of noises accepts noises, functions of one row and numbers, got {type(part).__name__}: write a "
                'variance for each row into the rows, {"x": x, "variance": v}, and add kx.noises.Known("variance").'
            )
    return tuple(found)


class Sum(AbstractNoise):
    """The sum of several noises. Written with `+`; a number becomes a [`kernax.noises.Constant`][], which is fitted.

    **Arguments:**

    - `parts`: noises, functions of one row, or numbers.
    """

    parts: tuple[Any, ...]

    def __init__(self, parts: Any):
        self.parts = _as_parts(parts)

    def __call__(self, row: Any) -> Float[Array, ""]:
        return functools.reduce(operator.add, [part(row) for part in self.parts])

    def check(self, x: Any) -> None:
        """Raise `ValueError` if one of the parts does not accept some rows."""
        for part in self.parts:
            if hasattr(part, "check"):
                part.check(x)

    def initialised(self, variance):
        parts = [part.initialised(variance) if isinstance(part, AbstractNoise) else part for part in self.parts]
        return Sum(parts)
