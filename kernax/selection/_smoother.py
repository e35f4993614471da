"""The fit as a linear smoother, `f̂_X - μ = H (y - μ)`: how many parameters it spends, and its generalised cross-validation.

`I - H = diag(noise) K̃⁻¹`, so that everything is read off `diag(K̃⁻¹)`, without forming H.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.model import Conditioned, check_conditioned


def fit_residuals(c: Conditioned) -> Float[Array, "n *p"]:
    """`y - f̂(X) = noise · alpha`, without the loss of digits of a difference; 0 where the data is masked."""
    noise = c.model.noise + c.jitter
    return c.data.zero_where_masked((noise[:, None] if noise.ndim < c.alpha.ndim and noise.ndim else noise) * c.alpha)


@eqx.filter_jit
def effective_degrees_of_freedom(c: Conditioned) -> Float[Array, ""]:
    """`tr H = n - Σ noise_i [K̃⁻¹]_ii`: how many free parameters the fit is worth. n at ridge 0, towards 0 as it grows
    (towards the number of polynomials for a spline)."""
    check_conditioned(c)
    left = c.data.zero_where_masked((c.model.noise + c.jitter) * c.factor.inverse_diagonal())
    return c.data.count.astype(c.data.dtype) - jnp.sum(left)


@eqx.filter_jit
def gcv(c: Conditioned) -> Float[Array, ""]:
    """`(1/n)‖y - f̂_X‖² / (1 - tr H/n)²`: leave-one-out with every point's leverage set to the mean one. An objective.

    A common noise cancels from the quotient, which is therefore formed without it: at noise 0 the limit is right.
    """
    check_conditioned(c)
    noise = jnp.broadcast_to(c.model.noise + c.jitter, c.data.mask.shape)
    level = jnp.sum(c.data.zero_where_masked(noise)) / jnp.maximum(c.data.count, 1)
    share = jnp.where(level > 0, noise / jnp.where(level > 0, level, 1.0), 1.0)
    share = share if c.model.noise.ndim else jnp.ones_like(noise)
    residuals = c.data.zero_where_masked((share[:, None] if c.alpha.ndim == 2 else share) * c.alpha)
    count = c.data.count.astype(c.data.dtype)
    outputs = 1 if c.alpha.ndim == 1 else c.alpha.shape[1]
    left = jnp.sum(c.data.zero_where_masked(share * c.factor.inverse_diagonal())) / count
    return jnp.sum(residuals**2) / (count * outputs) / left**2
