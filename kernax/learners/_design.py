"""Common parts of the linear learners: the design matrix, its centring, predictions, and checks of arguments."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import as_floats, check_finite, is_concrete, matmul
from kernax._programs import compiled
from kernax.data import Data, refuse_gaps
from kernax.parameters import as_dtype
from kernax.rows import Rows, as_row_dtype, as_rows, take
from kernax.solvers import Result

_ENTRIES = 2**23
"""Features made at once for new points: 64 MB in float64."""


class AbstractLinearFit(eqx.Module):
    """`f(x) = φ(x)·coefficients + intercept`; call it with new rows."""

    features: eqx.AbstractVar[Any]
    coefficients: eqx.AbstractVar[Float[Array, "..."]]
    intercept: eqx.AbstractVar[Float[Array, "..."]]
    result: eqx.AbstractVar[Any]

    def __call__(self, x: Any) -> Float[Array, "m *p"]:
        """The function at the rows of x, O(q) a row, in blocks of bounded memory."""
        x = take(as_rows(x, "x", one="one new point is a row of its own"))
        for leaf in jax.tree.leaves(x):
            check_finite(leaf, "x")
        return _values(self.features, self.coefficients, self.intercept, x)


@compiled
def _values(features: Any, coefficients: Array, intercept: Array, x: Rows) -> Float[Array, "m *p"]:
    def at(a: Any) -> Array:
        phi = features(a)
        if phi.shape != coefficients.shape[:1]:
            raise ValueError(
                f"a row of x gives features of shape {phi.shape}, but the fit has {coefficients.shape[0]} coefficients: "
                "give rows with the columns of the data it was fitted to."
            )
        return matmul(phi, coefficients) + intercept

    x = as_row_dtype(x, coefficients.dtype)
    return jax.lax.map(at, x, batch_size=max(1, _ENTRIES // max(coefficients.shape[0], 1)))


class Design(NamedTuple):
    """The design matrix and the targets with zeros in the rows that do not count, centred if there is an intercept."""

    features: Any
    matrix: Float[Array, "n q"]
    targets: Float[Array, "n *p"]
    center: Float[Array, " q"]
    level: Float[Array, "*p"]
    result: Any
    """`successful`, `nonfinite` or `empty`; zeros stand in for numbers that are not finite."""

    def intercept(self, coefficients: Float[Array, "q *p"]) -> Float[Array, "*p"]:
        """The intercept of the data before centring: `ȳ - φ̄·θ`."""
        return self.level - matmul(self.center, coefficients)


def make_design(data: Data, features: Any, intercept: bool) -> Design:
    """Features of every row. An intercept that is not penalised is the same as centred columns and targets."""
    features = as_dtype(features, data.dtype)
    data, finite = data.finite_or_zero()
    matrix = jax.vmap(features)(take(data.x))
    if not isinstance(matrix, jax.Array) or matrix.ndim != 2:
        raise ValueError(
            f"features returns {jax.tree.map(lambda leaf: leaf.shape[1:], matrix)} for one point, but linear learners "
            "need a vector: return jnp.stack([…]) or jnp.ravel(…), and give features= for structured inputs."
        )
    matrix = data.zero_where_masked(matrix.astype(data.dtype))
    finite = finite & jnp.all(jnp.isfinite(matrix))
    matrix = jnp.where(finite, matrix, 0.0)
    matrix, center = _centred(data, matrix, intercept)
    targets, level = _centred(data, data.y, intercept)
    result = Result.where(finite, Result.successful, Result.nonfinite)
    result = Result.where(jnp.any(data.mask), result, Result.empty)
    return Design(features, matrix, targets, center, level, result)


def _centred(data: Data, values: Float[Array, "n *p"], wanted: bool) -> tuple[Float[Array, "n *p"], Float[Array, "*p"]]:
    """Columns less their means over the rows that count, and the means."""
    if not wanted:
        return values, jnp.zeros(values.shape[1:], values.dtype)
    count = jnp.maximum(data.count, 1)
    mean = jnp.sum(values, axis=0) / count
    # Once more, which takes away what summation had rounded off.
    mean = mean + jnp.sum(data.zero_where_masked(values - mean), axis=0) / count
    centred = data.zero_where_masked(values - mean)
    # A constant column leaves rounding, which a fit would take for a direction of its own. Its derivative stays.
    size, spread = (jnp.sum(jax.lax.stop_gradient(part) ** 2, axis=0) for part in (values, centred))
    constant = spread <= (4 * jnp.finfo(values.dtype).eps) ** 2 * size
    return centred - jax.lax.stop_gradient(jnp.where(constant, centred, 0.0)), mean


def check_data(data: Any, caller: str) -> None:
    """Raise if `data` is not a `Data`, or is a batch of them."""
    if not isinstance(data, Data):
        raise TypeError(f"the first argument of {caller} must be a kx.Data, got {type(data).__name__}: write kx.Data(x, y).")
    if data.mask.ndim != 1:
        raise ValueError(
            f"{caller} needs one dataset, got a batch of shape {data.mask.shape[:-1]}: map over it with jax.vmap."
        )
    refuse_gaps(data, caller)


def as_row_weights(weights: Any, data: Data) -> Float[Array, " n"]:
    """A weight for each row, 0 where the data is masked; finite and not negative elsewhere (not checked if traced)."""
    weights = as_floats(weights, "weights")
    if weights.shape != (data.n,):
        raise ValueError(f"weights must be one number for each of the {data.n} rows, got shape {weights.shape}.")
    if is_concrete(weights) and is_concrete(data.mask):
        counting = np.asarray(weights)[np.asarray(data.mask)]
        if not (np.isfinite(counting).all() and (counting >= 0).all()):
            raise ValueError("weights must be finite and 0 or more in every row that counts.")
        # NumPy compiles nothing.
        return jnp.asarray(np.where(np.asarray(data.mask), np.asarray(weights), 0.0), data.dtype)
    return jnp.where(data.mask, weights, 0.0).astype(data.dtype)


def as_penalties(value: Any, name: str, ndim: int = 0) -> Float[Array, "..."]:
    """A penalty, or a row of them, finite and not negative; traced numbers are not checked."""
    value = as_floats(value, name)
    if value.ndim != ndim or value.size == 0:
        wanted = "one number" if ndim == 0 else "a vector of one number or more"
        raise ValueError(f"{name} must be {wanted}, got shape {value.shape}.")
    if is_concrete(value) and not (np.isfinite(value).all() and (np.asarray(value) >= 0).all()):
        raise ValueError(f"{name} must be finite and 0 or more, got {np.asarray(value)}.")
    return value
