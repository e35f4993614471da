"""Trends: functions that a model or a spline leaves free. Their coefficients have no prior and are not penalised."""

import abc
import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import whole_number
from kernax.parameters import as_function
from kernax.rows import Rows, functionals_in, num_rows, observed, row_dtype, take


class AbstractTrend(eqx.Module):
    """Base class of trends: a few functions of a row whose coefficients have no prior."""

    @property
    @abc.abstractmethod
    def has_constant(self) -> bool:
        """Whether the constant function is among them. A sum of several trends contains it only once."""

    @abc.abstractmethod
    def functions(self, x: Rows) -> Float[Array, "n q"]:
        """The values at every row of the functions other than the constant.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        An array with a column for each function.
        """

    def scaled(self, x: Rows, mask: Bool[Array, " n"]) -> "AbstractTrend":
        """The same space of functions, written so that its functions are of order 1 on the rows that count.

        **Arguments:**

        - `x`: rows.
        - `mask`: which rows count.

        **Returns:**

        A trend.
        """
        del x, mask
        return self

    def __call__(self, x: Rows) -> Float[Array, "n q"]:
        """The values of all functions at every row.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        An array with a column for each function; the constant comes first if there is one.
        """
        if functionals_in(x):
            return observed(self, x)
        values = self.functions(take(x))
        if not self.has_constant:
            return values
        return jnp.concatenate([jnp.ones((num_rows(x), 1), values.dtype), values], axis=1)


class PolynomialTrend(AbstractTrend):
    """All monomials of the columns up to a degree: 0 is a constant, 1 a straight line or plane.

    **Arguments:**

    - `degree`: the highest degree, 0 or more.
    """

    degree: int = eqx.field(static=True, default=1)
    middle: Float[Array, " d"] | None = None
    half: Float[Array, " d"] | None = None
    """The columns are first shifted and scaled by `middle` and `half`. The functions still span the same polynomials."""

    def __check_init__(self):
        if self.degree != 0:
            whole_number(self.degree, "PolynomialTrend.degree")

    @property
    def has_constant(self):
        return True

    def functions(self, x):
        if not eqx.is_array(x):
            raise TypeError("a PolynomialTrend needs rows that are one (n, d) array: give the trend as a function of a row.")
        if self.middle is not None:
            x = (x - self.middle) / self.half
        columns = x.T
        terms = [
            math.prod(columns[i] for i in chosen)
            for power in range(1, self.degree + 1)
            for chosen in itertools.combinations_with_replacement(range(columns.shape[0]), power)
        ]
        return jnp.stack(terms, axis=1) if terms else jnp.zeros((x.shape[0], 0), x.dtype)

    def scaled(self, x, mask):
        if self.middle is not None or not eqx.is_array(x):
            return self
        return PolynomialTrend(self.degree, *middle_and_half(x, mask))


def middle_and_half(x: Float[Array, "n d"], mask: Bool[Array, " n"]) -> tuple[Array, Array]:
    """The middle and half the width of each column over the rows that count; width 1 for a constant column."""
    fixed = jax.lax.stop_gradient(x)
    low = jnp.min(jnp.where(mask[:, None], fixed, jnp.inf), axis=0)
    high = jnp.max(jnp.where(mask[:, None], fixed, -jnp.inf), axis=0)
    some, wide = jnp.isfinite(low), jnp.isfinite(low) & (high > low)
    return jnp.where(some, 0.5 * (low + high), 0.0), jnp.where(wide, 0.5 * (high - low), 1.0)


class ViewedTrend(AbstractTrend):
    """A trend of a view of the rows: chosen columns, or what a map makes of them."""

    trend: AbstractTrend
    owner: Any
    """The kernel whose `view` it is."""

    @property
    def has_constant(self):
        return self.trend.has_constant

    def functions(self, x):
        return self.trend.functions(self.owner.view(x))

    def scaled(self, x, mask):
        return ViewedTrend(self.trend.scaled(self.owner.view(x), mask), self.owner)


class TrendSum(AbstractTrend):
    """The functions of several trends together."""

    trends: tuple[AbstractTrend, ...]

    @property
    def has_constant(self):
        return any(trend.has_constant for trend in self.trends)

    def functions(self, x):
        return jnp.concatenate([trend.functions(x) for trend in self.trends], axis=1)

    def scaled(self, x, mask):
        return TrendSum(tuple(trend.scaled(x, mask) for trend in self.trends))


class FunctionTrend(AbstractTrend):
    """Functions from the user: any callable from one row to a vector of values."""

    function: Callable[[Any], Any] = eqx.field(converter=as_function)

    @property
    def has_constant(self):
        return False

    def functions(self, x):
        values = jax.vmap(self.function)(x)
        return values.reshape(num_rows(x), -1).astype(row_dtype(x))


def joined_trends(*trends: AbstractTrend | None) -> AbstractTrend | None:
    """One trend with the functions of several.

    **Arguments:**

    - `trends`: trends, or `None` for those that do not exist.

    **Returns:**

    The joint trend; `None` if there are no functions at all.
    """
    found = [trend for trend in trends if trend is not None]
    return None if not found else (found[0] if len(found) == 1 else TrendSum(tuple(found)))


def as_trend(value: Any) -> AbstractTrend | None:
    """Convert what a user may pass as a trend.

    **Arguments:**

    - `value`: `None`, the degree of a polynomial, a trend, a polynomial kernel, or a function of one row.

    **Returns:**

    The trend, or `None`.
    """
    from kernax.kernels._dot_product import Polynomial

    if value is None or isinstance(value, AbstractTrend):
        return value
    if isinstance(value, Polynomial):
        return PolynomialTrend(value.degree)
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return PolynomialTrend(int(value))
    if not callable(value):
        raise TypeError(f"trend must be a degree, such as 1, or a function of one row that returns a vector, got {value!r}.")
    return FunctionTrend(value)
