"""Mean functions are callables of one point: the named ones, a user's function, or an Equinox module."""

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.parameters import Parameter, Parametrised, as_function, real
from kernax.rows import Rows, map_rows


class Zero(Parametrised):
    """0 everywhere."""

    def __call__(self, a: Any) -> Float[Array, ""]:
        return jnp.zeros(())


class Constant(Parametrised):
    """One level; a vector of p levels for p outputs."""

    value: Float[Parameter, "*p"] = real(default=0.0, unit="y")

    def __call__(self, a: Any) -> Float[Array, "*p"]:
        return self.value


class Linear(Parametrised):
    """`slope · a + intercept`; for p outputs, slope is `(d, p)` and intercept `(p,)`."""

    slope: Float[Parameter, "d *p"] = real(unit="y/x")
    intercept: Float[Parameter, "*p"] = real(default=0.0, unit="y")

    def __call__(self, a: Float[Array, " d"]) -> Float[Array, "*p"]:
        return matmul(a, self.slope) + self.intercept


def as_mean(value: Any) -> Any:
    """A number as a `Constant`, a function as a module without parameters."""
    if isinstance(value, numbers.Real) or (hasattr(value, "ndim") and value.ndim <= 1):
        return Constant(value)  # pyright: ignore[reportArgumentType]
    return as_function(value)


def mean_values(mean: Any, x: Rows, like: Float[Array, "n *p"]) -> Float[Array, "n *p"]:
    """The mean at every row, in the shape and dtype of the targets `like`."""
    values = map_rows(jax.vmap(mean), x, math.prod(like.shape[1:])).astype(like.dtype)
    if values.ndim == 1 and like.ndim == 2:
        values = values[:, None]
    if values.ndim > like.ndim or (values.ndim == like.ndim == 2 and values.shape[1] not in (1, like.shape[1])):
        raise ValueError(
            f"the mean function gives shape {values.shape} for targets of shape {like.shape}: "
            "return one number for one output, or one per output."
        )
    return jnp.broadcast_to(values, like.shape)
