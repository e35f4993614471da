"""Data of values, slopes and averages. Without targets, rows at which to predict them."""

from typing import Any, overload

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import as_floats, is_concrete, whole_number
from kernax.data import Data
from kernax.kernels import AbstractKernel, OfFunctionals
from kernax.rows import Functionals, as_rows, values_at

_MOST = 4096
"""Points of one average, at the most."""


@overload
def values(x: Any, y: None = None) -> Functionals: ...
@overload
def values(x: Any, y: Any) -> Data: ...
def values(x: Any, y: Any = None) -> Any:
    """Rows that observe values of the function, `f(x)`.

    **Arguments:**

    - `x`: points, `(n, d)`.
    - `y`: values, `(n,)`; if not given, the rows alone are returned, to predict at.

    **Returns:**

    A `kx.Data`, or rows.
    """
    return _with_targets(values_at(_points(x, "x")), y, "y")


@overload
def slopes(x: Any, directions: Any, dy: None = None) -> Functionals: ...
@overload
def slopes(x: Any, directions: Any, dy: Any) -> Data: ...
def slopes(x: Any, directions: Any, dy: Any = None) -> Any:
    """Rows that observe directional derivatives, `v · ∇f(x)`.

    **Arguments:**

    - `x`: points, `(n, d)`.
    - `directions`: one vector v of d numbers for all points, or one for each, `(n, d)`. The slope is proportional to the
      length of v.
    - `dy`: the slopes, `(n,)`; if not given, the rows alone are returned, to predict at.

    **Returns:**

    A `kx.Data`, or rows.
    """
    x = _points(x, "x")
    directions = as_floats(directions, "directions")
    if directions.shape not in (x.shape, x.shape[1:]):
        raise ValueError(
            f"directions has shape {directions.shape}, but x has shape {x.shape}: give one vector of {x.shape[1]} numbers, "
            "or one for each point."
        )
    along = jnp.broadcast_to(directions, x.shape).astype(x.dtype)
    return _with_targets(Functionals(x[:, None], jnp.zeros((x.shape[0], 1), x.dtype), along[:, None]), dy, "dy")


@overload
def gradients(x: Any) -> Functionals: ...
@overload
def gradients(x: Any, y: Any, dy: Any) -> Data: ...
@overload
def gradients(x: Any, *, dy: Any) -> Data: ...
def gradients(x: Any, y: Any = None, dy: Any = None) -> Any:
    """Rows that observe the function and its gradient, or the gradient alone.

    **Arguments:**

    - `x`: points, `(n, d)`.
    - `y`: values, `(n,)`. If not given, only the gradients are observed.
    - `dy`: gradients, `(n, d)`. If not given, the rows of all gradients are returned, to predict at.

    **Returns:**

    A `kx.Data` with `n(1 + d)` rows, each point's value before its d slopes; or with `n d` rows, if there are no values.
    Without targets, `n d` rows: predictions at them have the shape `(n, d)` after `.reshape(n, d)`.
    """
    x = _points(x, "x")
    n, d = x.shape
    each = slopes(jnp.repeat(x, d, axis=0), jnp.tile(jnp.eye(d, dtype=x.dtype), (n, 1)))
    if dy is None:
        if y is not None:
            raise ValueError("gradients got values y, but no dy: give both, or write kx.observe.values(x, y).")
        return each
    dy = _targets(dy, "dy")
    if dy.shape != x.shape:
        raise ValueError(f"dy has shape {dy.shape}, but x has shape {x.shape}: give one gradient for each point.")
    if y is None:
        return Data(each, dy.reshape(-1))
    y = _targets(y, "y")
    if y.shape != (n,):
        raise ValueError(f"y has shape {y.shape}, but x has {n} rows: give one value for each point, {(n,)}.")
    weight = jnp.tile(jnp.eye(1 + d, dtype=x.dtype)[:, :1], (n, 1))
    along = jnp.tile(jnp.eye(1 + d, dtype=x.dtype)[:, None, 1:], (n, 1, 1))
    rows = Functionals(jnp.repeat(x, 1 + d, axis=0)[:, None], weight, along)
    return Data(rows, jnp.concatenate([y[:, None], dy], axis=1).reshape(-1))


@overload
def averages(points: Any, y: None = None, *, weights: Any = None) -> Functionals: ...
@overload
def averages(points: Any, y: Any, *, weights: Any = None) -> Data: ...
def averages(points: Any, y: Any = None, *, weights: Any = None) -> Any:
    """Rows that observe averages over points, `Σ_q w_q f(x_q)`. Time grows with the square of the number of points.

    **Arguments:**

    - `points`: q points for each row, `(n, q, d)`.
    - `y`: averages, `(n,)`; if not given, the rows alone are returned, to predict at.
    - `weights`: the weights w of the points, `(q,)` or `(n, q)`; `1/q` if not given. They need not add up to 1, nor be
      positive: `(1, -1)` observes a difference.

    **Returns:**

    A `kx.Data`, or rows.
    """
    points = as_floats(points, "points")
    if points.ndim != 3 or 0 in points.shape:
        raise ValueError(
            f"points has shape {points.shape}: give q points for each of n rows, (n, q, d), with n, q and d at least 1."
        )
    shape = points.shape[:2]
    weights = as_floats(1.0 / shape[1] if weights is None else weights, "weights")
    if weights.shape not in ((), shape[1:], shape):
        raise ValueError(
            f"weights has shape {weights.shape}, but points has shape {points.shape}: give {shape[1:]} or {shape}."
        )
    weights = jnp.broadcast_to(weights, shape).astype(points.dtype)
    return _with_targets(Functionals(points, weights), y, "y")


@overload
def averages_between(low: Any, high: Any, y: None = None, *, nodes: int = 8) -> Functionals: ...
@overload
def averages_between(low: Any, high: Any, y: Any, *, nodes: int = 8) -> Data: ...
def averages_between(low: Any, high: Any, y: Any = None, *, nodes: int = 8) -> Any:
    """Rows that observe averages over intervals, or over boxes of several columns: `∫ f(x) dx / volume`.

    Computed by Gauss and Legendre's quadrature, which is exact for polynomials of degree `2·nodes - 1`. A smooth function
    that turns a few times inside the interval is integrated to many digits. The nodes must be closer to each other than the
    kernel's lengthscale: otherwise the average is that of a few separate points, and no warning is given.
    [`kernax.observe.average_error`][] estimates the error for a kernel.

    **Arguments:**

    - `low`, `high`: the ends, `(n, d)`. A column with equal ends is not integrated over.
    - `y`: averages, `(n,)`; if not given, the rows alone are returned, to predict at.
    - `nodes`: points in each column, more than the interval has lengthscales. A box of d columns has `nodes**d` points.

    **Returns:**

    A `kx.Data`, or rows.
    """
    low, high = _points(low, "low"), _points(high, "high")
    if low.shape != high.shape:
        raise ValueError(f"low has shape {low.shape} and high has {high.shape}: give both ends of each interval.")
    if is_concrete(low) and is_concrete(high) and np.any(np.asarray(high) < np.asarray(low)):
        row = int(np.argmax(np.any(np.asarray(high) < np.asarray(low), axis=1)))
        raise ValueError(f"high is less than low in row {row}: swap them.")
    d, nodes = low.shape[1], whole_number(nodes, "nodes")
    if nodes**d > _MOST:
        raise ValueError(
            f"{nodes} nodes in each of {d} columns are {nodes**d} points, too many: use fewer nodes, or kx.observe.averages "
            "with random points of each box."
        )
    places, shares = np.polynomial.legendre.leggauss(nodes)
    unit = np.stack(np.meshgrid(*[places] * d, indexing="ij"), axis=-1).reshape(-1, d)
    weights = np.prod(np.stack(np.meshgrid(*[shares / 2] * d, indexing="ij"), axis=-1).reshape(-1, d), axis=1)
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    points = middle[:, None] + half[:, None] * jnp.asarray(unit, middle.dtype)
    return averages(points, y, weights=jnp.asarray(weights, points.dtype))


def average_error(kernel: AbstractKernel, low: Any, high: Any, *, nodes: int = 8) -> Float[Array, " n"]:
    """Estimate the relative error of `averages_between` for functions with this kernel.

    It is the relative change of the prior variance of each average if there are twice as many nodes. If it is not small,
    such as 1e-6, take more nodes. Check it again with the kernel that a fit has found: its lengthscale may be shorter.

    **Arguments:**

    - `kernel`: the kernel of the function.
    - `low`, `high`: the ends, `(n, d)`.
    - `nodes`: points in each column.

    **Returns:**

    An array of n numbers.
    """
    nodes = whole_number(nodes, "nodes")
    few, more = (OfFunctionals(kernel).diag(averages_between(low, high, nodes=number)) for number in (nodes, 2 * nodes))
    return jnp.abs(few - more) / jnp.where(more > 0, more, 1.0)


@overload
def together(*parts: Functionals) -> Functionals: ...
@overload
def together(*parts: Data) -> Data: ...
def together(*parts: Any) -> Any:
    """Join several data of `kx.observe`, or several of its rows without targets.

    If one part has averages of q points, every row has q points afterwards, so values take as long as averages.

    **Arguments:**

    - `parts`: several `kx.Data`, or several rows.

    **Returns:**

    One `kx.Data`, or rows.
    """
    rows = [part.x if isinstance(part, Data) else part for part in parts]
    if not parts or len({isinstance(part, Data) for part in parts}) > 1 or not all(isinstance(x, Functionals) for x in rows):
        raise TypeError("together needs several kx.Data made by kx.observe, or several of its rows without targets.")
    if len({x.x.shape[2] for x in rows}) > 1:
        raise ValueError(
            f"the parts have {[x.x.shape[2] for x in rows]} columns: give parts with the same number of columns."
        )
    most, has_slopes = max(x.x.shape[1] for x in rows), any(x.has_slopes for x in rows)
    rows = [x.padded(most - x.x.shape[1], slopes=has_slopes) for x in rows]
    slope = jnp.concatenate([x.slope for x in rows if x.slope is not None]) if has_slopes else None
    joined = Functionals(jnp.concatenate([x.x for x in rows]), jnp.concatenate([x.weight for x in rows]), slope)
    if not isinstance(parts[0], Data):
        return joined
    return Data(joined, jnp.concatenate([part.y for part in parts]), jnp.concatenate([part.mask for part in parts]))


def _points(x: Any, name: str) -> Float[Array, "n d"]:
    x = as_rows(x, name)
    if not hasattr(x, "ndim") or x.ndim != 2:
        raise ValueError(f"kx.observe needs {name} as one (n, d) array of numbers.")
    return jnp.asarray(x)


def _targets(y: Any, name: str) -> Array:
    return jnp.asarray(as_floats(y, name))


def _with_targets(rows: Functionals, y: Any, name: str) -> Any:
    if y is None:
        return rows
    y = _targets(y, name)
    if y.ndim not in (1, 2) or y.shape[0] != rows.x.shape[0]:
        raise ValueError(f"{name} has shape {y.shape}, but there are {rows.x.shape[0]} rows: give one number for each.")
    return Data(rows, y)
