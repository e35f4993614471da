"""Mean functions are callables of one point: the named ones, a user's function, or an Equinox module."""

import math
import numbers
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax._labels import check_labels, check_one_each, known_labels, labels_at
from kernax.parameters import Parameter, Parametrised, as_function, real
from kernax.rows import Grid, Rows, at_rows, map_rows


class Zero(Parametrised):
    """The mean 0."""

    def __call__(self, a: Any) -> Float[Array, ""]:
        """The mean at one point.

        **Arguments:**

        - `a`: one point.

        **Returns:**

        One number.
        """
        return jnp.zeros(())


class Constant(Parametrised):
    """A constant mean.

    **Arguments:**

    - `value`: the constant, one number, or p numbers for p outputs. It is fitted.
    """

    value: Float[Parameter, "*p"] = real(default=0.0, unit="y")

    def __call__(self, a: Any) -> Float[Array, "*p"]:
        """The mean at one point.

        **Arguments:**

        - `a`: one point.

        **Returns:**

        One number, or p numbers for p outputs.
        """
        return self.value


class Linear(Parametrised):
    """A linear mean, `slope · a + intercept`. Both are fitted.

    **Arguments:**

    - `slope`: one number for each column, `(d,)`, or `(d, p)` for p outputs.
    - `intercept`: one number, or `(p,)` for p outputs.
    """

    slope: Float[Parameter, "d *p"] = real(unit="y/x")
    intercept: Float[Parameter, "*p"] = real(default=0.0, unit="y")

    def __call__(self, a: Float[Array, " d"]) -> Float[Array, "*p"]:
        """The mean at one point.

        **Arguments:**

        - `a`: one point.

        **Returns:**

        One number, or p numbers for p outputs.
        """
        return matmul(a, self.slope) + self.intercept


class PerGroup(Parametrised):
    """One level for each group of rows, such as the level of each task, fitted like any other parameter.

    **Arguments:**

    - `key`: the key of the group in a row `{key: …}`. Groups are integers, numbered from 0.
    - `values`: one number for each group.
    """

    key: str = eqx.field(static=True)
    values: Float[Parameter, " groups"] = real(unit="y")

    def __check_init__(self):
        check_one_each(self.values, "means.PerGroup", "number")

    def __call__(self, a: Any) -> Float[Array, ""]:
        """The mean at one point.

        **Arguments:**

        - `a`: one point.

        **Returns:**

        One number; NaN for a group without a level.
        """
        group, known = known_labels(self._labels(a), self.values.shape[-1])
        return jnp.where(known, self.values[group], jnp.nan)

    def check(self, x: Any) -> None:
        """Raise `ValueError` if a row belongs to a group without a level.

        **Arguments:**

        - `x`: rows, as arrays of JAX or NumPy.

        **Returns:**

        `None`.
        """
        check_labels(self._labels(x), self.values.shape[-1], self._name, "group", has="values")

    def levels(self, x: Rows, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, " groups"]:
        """The mean of the targets of each group.

        **Arguments:**

        - `x`: rows.
        - `y`: targets, `(n,)`.
        - `mask`: which rows count.

        **Returns:**

        One number for each group; the mean of all targets for a group without rows that count.
        """
        groups = jax.nn.one_hot(self._labels(x), self.values.shape[-1], dtype=y.dtype) * mask[:, None]
        counts = jnp.sum(groups, axis=0)
        overall = jnp.sum(jnp.where(mask, y, 0.0)) / jnp.maximum(jnp.sum(mask), 1)
        return jnp.where(counts > 0, matmul(jnp.where(mask, y, 0.0), groups) / jnp.maximum(counts, 1.0), overall)

    def _labels(self, x: Any) -> Any:
        return labels_at(x, self.key, self._name, "group")

    @property
    def _name(self) -> str:
        return f"means.PerGroup({self.key!r})"


def as_mean(value: Any) -> Any:
    """Convert what a user may pass as a mean.

    **Arguments:**

    - `value`: a number, a function of one row, or a module.

    **Returns:**

    A `Constant` for a number, a module for a function, and a module unchanged.
    """
    if isinstance(value, numbers.Real) or (hasattr(value, "ndim") and value.ndim <= 1):
        return Constant(value)  # pyright: ignore[reportArgumentType]
    return as_function(value)


def mean_values(mean: Any, x: Rows, like: Float[Array, "n *p"]) -> Float[Array, "n *p"]:
    """The values of a mean function at every row.

    **Arguments:**

    - `mean`: a function or module of one row.
    - `x`: rows.
    - `like`: the targets, `(n,)` or `(n, p)`, whose shape and dtype the answer has.

    **Returns:**

    An array in the shape of `like`. One value for each row is repeated for all outputs. Raises `ValueError` if the mean
    returns a shape that does not fit.
    """
    values = map_rows(partial(at_rows, mean), x, math.prod(like.shape[1:])).astype(like.dtype)
    if values.ndim == 1 and like.ndim == 2:
        values = values[:, None]
    if values.ndim > like.ndim or (values.ndim == like.ndim == 2 and values.shape[1] not in (1, like.shape[1])):
        raise ValueError(
            f"the mean function gives shape {values.shape} for targets of shape {like.shape}: "
            "return one number for one output, or one per output."
        )
    return jnp.broadcast_to(values, like.shape)


def check_mean(mean: Any, x: Any) -> None:
    """Raise `ValueError` if the mean cannot be computed for these rows, as far as that can be checked before tracing."""
    if isinstance(mean, PerGroup):
        mean.check(x.with_labels() if isinstance(x, Grid) else x)
