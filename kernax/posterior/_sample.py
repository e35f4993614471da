"""Functions drawn from the prior or the posterior."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax._arrays import check_finite, matmul
from kernax.kernels import Rows, as_rows, num_rows
from kernax.model import Conditioned, Model
from kernax.parameters import as_dtype
from kernax.posterior._predict import check_common_noise, covariance, mean
from kernax.solvers import draw_root


def sample(
    source: Model | Conditioned, x: Any, *, key: Key[Array, ""], num_samples: int = 1, noisy: bool = False
) -> Float[Array, "s m *p"]:
    """Functions drawn from the prior of a `Model` or the posterior of a `Conditioned`, at the rows of `x`.

    Exact and joint over all rows, so O(m³) and an m × m matrix. `noisy=True` draws observations. Differentiable in
    everything but the key.
    """
    if isinstance(source, Model):
        if source.kernel.is_conditional:
            raise ValueError(
                f"{source.kernel!r} leaves polynomials free, so there is no prior to draw from: condition it on data first."
            )
        x = as_rows(x, "x")
        jax.tree.map(lambda leaf: check_finite(leaf, "x"), x)
        if noisy:
            check_common_noise(source)
        return _draw_prior(source, x, key, num_samples, noisy)
    return _draw(mean(source, x), covariance(source, x, noisy=noisy), key, num_samples)


@eqx.filter_jit
def _draw_prior(model: Model, x: Rows, key: Key[Array, ""], num_samples: int, noisy: bool) -> Array:
    dtype = jnp.result_type(*jax.tree.leaves(x))
    model = as_dtype(model, dtype)
    matrix = model.kernel.gram(x, None)
    if noisy:
        matrix = matrix + model.noise * jnp.eye(num_rows(x), dtype=dtype)
    level = jax.vmap(model.mean)(x).astype(dtype)  # one column per output of the mean
    return _draw(level, matrix, key, num_samples)


@eqx.filter_jit
def _draw(level: Float[Array, "m *p"], matrix: Float[Array, "m m"], key: Key[Array, ""], num_samples: int) -> Array:
    shocks = jax.random.normal(key, (num_samples, *level.shape), level.dtype)
    root = draw_root(matrix)
    return level + jax.vmap(lambda shock: matmul(root, shock))(shocks)
