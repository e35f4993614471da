"""Functions drawn from the prior or the posterior."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax._arrays import check_finite, matmul
from kernax._programs import compiled
from kernax.grams import gram_of
from kernax.model import Conditioned, Model
from kernax.model._checks import check_known, of_function
from kernax.noises import noise_at
from kernax.parameters import as_dtype
from kernax.posterior._new_rows import new_rows
from kernax.posterior._predict import covariance, mean
from kernax.rows import Grid, Rows, as_row_dtype, as_rows, at_rows, num_rows, row_dtype, take
from kernax.solvers import AbstractSolver, draw_root


def sample(
    source: Any,
    x: Any,
    *,
    key: Key[Array, ""],
    num_samples: int = 1,
    noisy: bool = False,
    solver: AbstractSolver | None = None,
) -> Float[Array, "s m *p"]:
    """Draw functions from the prior of a `Model` or the posterior of a `Conditioned`.

    The draws are exact and joint over all rows, which takes O(m³) time and an m × m matrix. They are differentiable with
    respect to everything but the key. Some solvers need no such matrix: `kx.StateSpace()` draws exactly in O(n + m).
    `kx.Kronecker()`, and `kx.CG(kx.Kronecker())` with missing cells, draw exactly at the cells of another `kx.Grid`, with a
    matrix for each axis. `kx.CG(variance="pathwise")` takes one solve with `num_samples` right-hand sides and O(m n), and
    its draws are approximately Gaussian.

    **Arguments:**

    - `source`: a model, or a model conditioned on data. Of a conditioned `LatentGP`, its f is drawn.
    - `x`: inputs at which to draw, `(m, d)`, or a `kx.Grid`.
    - `key`: a JAX random key.
    - `num_samples`: how many functions to draw.
    - `noisy`: add noise, for observations instead of the function.
    - `solver`: for a model: `kx.StateSpace()` draws in O(m), and `kx.Kronecker()` on a grid. A `Conditioned` uses its own
      solver.

    **Returns:**

    An array of shape `(num_samples, m)`, or `(num_samples, m, p)` for p outputs.
    """
    if isinstance(source, Model):
        if source.kernel.trend() is not None or source.trend is not None:
            what = "polynomials" if source.trend is None else "its trend"
            raise ValueError(f"{source!r} leaves {what} free, so it has no prior to draw from: condition it on data first.")
        x = as_rows(x, "x")
        x = x if isinstance(x, Grid) and solver is not None else take(x)
        check_known(source, take(x))
        jax.tree.map(lambda leaf: check_finite(leaf, "x"), x)
        if noisy:
            noise_at(source.noise, take(x), row_dtype(x))
        return _draw_prior(source, x, key, num_samples, noisy, solver)
    if solver is not None:
        raise ValueError("solver= is for drawing from a model; a Conditioned draws with its own solver: leave it out.")
    source, given = of_function(source), source
    if noisy and source is not given:
        raise ValueError("noisy=True is for normal noise: draw f, and then observations from the likelihood, given f.")
    level, rows = mean(source, x), new_rows(source, x)
    if isinstance(x, Grid) and isinstance(source.data.x, Grid):
        rows = as_row_dtype(x, source.data.dtype)
    deviations = _pathwise(source, rows, key, (num_samples, *level.shape[1:]), noisy)
    if deviations is None:
        return _draw(level, covariance(source, x, noisy=noisy), key, num_samples)
    return level + deviations


@compiled
def _pathwise(c: Conditioned, x: Rows, key: Key[Array, ""], shape: tuple[int, ...], noisy: bool) -> Array | None:
    """Draws less the mean, if the System makes them without a covariance matrix."""
    drawn = c.system.posterior_draws(x, key, math.prod(shape))
    if drawn is None:
        return None
    noise = jnp.broadcast_to(noise_at(c.model.noise, take(x), drawn.dtype), drawn.shape[:1]) if noisy else None
    return _with_noise(drawn, noise, key, shape)


@compiled
def _draw_prior(
    model: Model, x: Rows, key: Key[Array, ""], num_samples: int, noisy: bool, solver: AbstractSolver | None
) -> Array:
    dtype = row_dtype(x)
    model = as_dtype(model, dtype)
    noise = jnp.broadcast_to(noise_at(model.noise, take(x), dtype), (num_rows(x),)) if noisy else None
    level = at_rows(model.mean, take(x)).astype(dtype)  # one column per output of the mean
    if solver is not None:
        return level + _path(model, x, key, (num_samples, *level.shape[1:]), noise, solver)
    matrix = model.kernel.gram(x, None)
    return _draw(level, matrix if noise is None else matrix + jnp.diag(noise), key, num_samples)


def _path(
    model: Model, x: Rows, key: Key[Array, ""], shape: tuple[int, ...], noise: Array | None, solver: AbstractSolver
) -> Float[Array, "s m *p"]:
    """Functions drawn from the prior, less its mean, without a matrix."""
    gram = gram_of(model.kernel, x, jnp.ones(num_rows(x), bool))
    number = math.prod(shape)
    some = jax.tree.map(lambda leaf: leaf[:1], x) if isinstance(x, Grid) else take(x, slice(0, 1))
    prior = solver.prepare(gram, jnp.ones((), row_dtype(x))).prior_draws(some, key, number)
    if prior is None:
        raise TypeError(
            f"{solver!r} does not draw from a model: leave out solver=, or write kx.StateSpace() for a kernel that has a "
            "state space, or kx.Kronecker() for a kx.Grid."
        )
    return _with_noise(prior[0], noise, key, shape)


def _with_noise(drawn: Float[Array, "m s"], noise: Array | None, key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    """Draws, with noise if there is any, in the shape of samples."""
    if noise is not None:
        drawn = drawn + jnp.sqrt(noise)[:, None] * jax.random.normal(jax.random.fold_in(key, 2), drawn.shape, drawn.dtype)
    return jnp.moveaxis(drawn.reshape(-1, *shape), 1, 0)


@compiled
def _draw(level: Float[Array, "m *p"], matrix: Float[Array, "m m"], key: Key[Array, ""], num_samples: int) -> Array:
    shocks = jax.random.normal(key, (num_samples, *level.shape), level.dtype)
    root = draw_root(matrix)
    return level + jax.vmap(lambda shock: matmul(root, shock))(shocks)
