"""How an input column is distributed, and integrals of kernels over it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import is_concrete, matmul, whole_number
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._stationary import RBF

_NODES = 128
"""Points by which a normal distribution is replaced for kernels without a closed form."""
_REACH = 8.5
"""How many standard deviations these points reach; beyond, there is nothing in float64."""
_GROUPS = 64
"""Groups of close values into which a column of the data is summed up."""


@dataclasses.dataclass(frozen=True)
class NormalInputs:
    """A normal distribution of one column. Integrals of an `RBF` over it have a closed form.

    **Arguments:**

    - `mean`, `scale`: its mean and its standard deviation. The defaults suit standardised columns.
    """

    mean: Any = 0.0
    scale: Any = 1.0

    def __post_init__(self):
        if not (is_concrete(self.mean) and is_concrete(self.scale)):
            raise TypeError("NormalInputs are a part of a kernel's structure: make them outside of jit, vmap and grad.")
        object.__setattr__(self, "mean", float(self.mean))
        object.__setattr__(self, "scale", float(self.scale))
        if not (np.isfinite(self.mean) and 0 < self.scale < np.inf):
            raise ValueError(f"NormalInputs needs a finite mean and a positive scale, got {self.mean} and {self.scale}.")

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Evenly spaced points and weights that approximate the distribution, accurate to rounding for integrals of kernels.

        **Returns:**

        Points and weights.
        """
        points = np.linspace(-_REACH, _REACH, _NODES)
        weights = np.exp(-0.5 * points**2)
        return self.mean + self.scale * points, weights / weights.sum()

    def quantile(self, level: Float[Array, "..."]) -> Float[Array, "..."]:
        """The quantile of the column.

        **Arguments:**

        - `level`: a probability, between 0 and 1.

        **Returns:**

        The value below which this share of the column lies.
        """
        return self.mean + self.scale * jax.scipy.special.ndtri(level)


@dataclasses.dataclass(frozen=True, repr=False)
class PointInputs:
    """A discrete distribution of one column: a few values with weights, such as the values that were observed.

    **Arguments:**

    - `points`: the values.
    - `weights`: their weights, not negative; equal ones by default. They are divided by their sum.
    """

    points: Any
    weights: Any = None

    def __post_init__(self):
        if not (is_concrete(self.points) and is_concrete(self.weights)):
            raise TypeError("PointInputs are a part of a kernel's structure: make them outside of jit, vmap and grad.")
        points = np.asarray(self.points, float)
        weights = np.ones(points.shape) if self.weights is None else np.asarray(self.weights, float)
        if points.ndim != 1 or not points.size or weights.shape != points.shape or not np.isfinite(points).all():
            raise ValueError(
                f"PointInputs needs finite points and a weight for each, got shapes {points.shape} and {weights.shape}."
            )
        if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.sum() > 0):
            raise ValueError("PointInputs needs weights that are not negative, and one that is positive.")
        object.__setattr__(self, "points", tuple(points.tolist()))
        object.__setattr__(self, "weights", tuple((weights / weights.sum()).tolist()))

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """The points and their weights, divided by their sum.

        **Returns:**

        Points and weights.
        """
        return np.asarray(self.points), np.asarray(self.weights)

    def quantile(self, level: Float[Array, "..."]) -> Float[Array, "..."]:
        """The quantile of the column.

        **Arguments:**

        - `level`: a probability, between 0 and 1.

        **Returns:**

        The value below which this share of the column lies.
        """
        points, weights = self.nodes()
        order = np.argsort(points)
        place = jnp.searchsorted(jnp.asarray(np.cumsum(weights[order]), level.dtype), level)
        return jnp.asarray(points[order], level.dtype)[jnp.minimum(place, len(points) - 1)]

    def __repr__(self):
        return f"PointInputs({len(self.points)} points from {min(self.points):.4g} to {max(self.points):.4g})"


Inputs = NormalInputs | PointInputs


def uniform_inputs(lower: Any, upper: Any, number: int = 32) -> PointInputs:
    """A column that is uniformly distributed between two bounds, by Gauss–Legendre points.

    **Arguments:**

    - `lower`, `upper`: the bounds.
    - `number`: how many points. Integrals of polynomials up to degree `2 · number - 1` are exact.

    **Returns:**

    A [`kernax.kernels.PointInputs`][].
    """
    if not -np.inf < lower < upper < np.inf:
        raise ValueError(f"uniform_inputs needs two finite bounds, the lower one first, got {lower} and {upper}.")
    points, weights = np.polynomial.legendre.leggauss(whole_number(number, "number"))
    return PointInputs(tuple(0.5 * (lower + upper) + 0.5 * (upper - lower) * points), weights)


def as_inputs(inputs: Any, columns: int) -> tuple[Inputs, ...]:
    """Convert what a user may give as the distributions of columns.

    **Arguments:**

    - `inputs`: one distribution for all columns, or one for each; or rows `(n, columns)`: each column is then represented by
      the means of 64 groups of close values.
    - `columns`: how many columns there are.

    **Returns:**

    A distribution for each column.
    """
    if isinstance(inputs, Inputs):
        return (inputs,) * columns
    if isinstance(inputs, Sequence) and inputs and all(isinstance(part, Inputs) for part in inputs):
        if len(inputs) != columns:
            raise ValueError(f"inputs has {len(inputs)} distributions, and there are {columns} columns: give one for each.")
        return tuple(inputs)
    if not is_concrete(inputs):
        raise TypeError("inputs must be known before tracing: give them outside of jit, vmap and grad.")
    try:
        rows = np.asarray(inputs, float)
    except (TypeError, ValueError):
        raise TypeError(
            f"inputs must be NormalInputs, PointInputs, one of them for each column, or rows, got {inputs!r}."
        ) from None
    if rows.ndim != 2 or rows.shape[1] != columns or not len(rows) or not np.isfinite(rows).all():
        raise ValueError(f"inputs must be finite rows of {columns} columns, or distributions, got shape {rows.shape}.")
    groups = [np.array_split(np.sort(column), min(len(column), _GROUPS)) for column in rows.T]
    return tuple(PointInputs(tuple(map(np.mean, parts)), [len(part) for part in parts]) for parts in groups)


def mean_over(kernel: AbstractKernel, inputs: Inputs, x: Float[Array, "n 1"]) -> Float[Array, " n"]:
    """`E k(x_i, s)` with s distributed like the inputs, for a kernel of one column."""
    normal = closed_form(kernel, inputs)
    if normal is not None:
        square, spread = _square(kernel), normal.scale**2
        return jnp.sqrt(square / (square + spread)) * jnp.exp(-0.5 * (x[:, 0] - normal.mean) ** 2 / (square + spread))
    values, weights = _at_nodes(kernel, inputs, x)
    return matmul(values, weights)


def covariance_over(
    kernel: AbstractKernel, other: AbstractKernel, inputs: Inputs, x: Float[Array, "n 1"], z: Float[Array, "m 1"]
) -> Float[Array, "n m"]:
    """`Cov(k(x_i, s), k'(z_j, s))` with s distributed like the inputs, for kernels of one column."""
    (u, weights), (v, _) = _at_nodes(kernel, inputs, x), _at_nodes(other, inputs, z)
    # Centred first: for a long lengthscale the values hardly differ.
    u, v = (values - matmul(values, weights)[:, None] for values in (u, v))
    by_nodes = matmul(u * weights, v.T)
    normal = closed_form(kernel, inputs)
    if normal is None or closed_form(other, inputs) is None:
        return by_nodes
    # The nodes are too far apart for a short lengthscale, and the closed form cancels for a long one.
    closed = rbf_product(x, _square(kernel), z, _square(other), normal)
    closed = closed - mean_over(kernel, inputs, x)[:, None] * mean_over(other, inputs, z)
    return jnp.where(jnp.minimum(_square(kernel), _square(other)) > normal.scale**2, by_nodes, closed)


def rbf_product(x: Any, a: Any, z: Any, b: Any, inputs: NormalInputs) -> Float[Array, "n m"]:
    """`E exp(-(x_i - s)²/2a) exp(-(z_j - s)²/2b)` for s that is normal."""
    u, v = x[:, :1] - inputs.mean, (z[:, 0] - inputs.mean)[None]
    spread = inputs.scale**2 + a * b / (a + b)
    centre = (b * u + a * v) / (a + b)
    return jnp.sqrt(a * b / (a + b) / spread) * jnp.exp(-0.5 * ((u - v) ** 2 / (a + b) + centre**2 / spread))


def closed_form(kernel: AbstractKernel, inputs: Inputs) -> NormalInputs | None:
    """The inputs, if integrals of the kernel over them have a closed form."""
    return inputs if isinstance(kernel, RBF) and isinstance(inputs, NormalInputs) else None


def _square(kernel: AbstractKernel) -> Float[Array, ""]:
    return kernel.lengthscale.reshape(()) ** 2


def _at_nodes(kernel: AbstractKernel, inputs: Inputs, x: Float[Array, "n 1"]) -> tuple[Array, Array]:
    points, weights = inputs.nodes()
    return kernel.gram(x, jnp.asarray(points[:, None], x.dtype)), jnp.asarray(weights, x.dtype)
