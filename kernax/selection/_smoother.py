"""The fit as a linear smoother, `f̂_X - μ = H (y - μ)`: its effective number of parameters, and its GCV score.

`I - H = diag(noise) K̃⁻¹`, so that everything is read off `diag(K̃⁻¹)`, without forming H.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._programs import compiled
from kernax.model import Conditioned
from kernax.selection._leave_one_out import inverse_diagonal


def fit_residuals(c: Conditioned) -> Float[Array, "n *p"]:
    """`y - f̂(X) = noise · alpha`, without the loss of digits of a difference; 0 where the data is masked."""
    return c.data.zero_where_masked(_rows(c.system.ridge, c) * c.alpha)


@compiled
def effective_degrees_of_freedom(c: Conditioned) -> Float[Array, "*p"]:
    """The effective number of parameters of the fit: `tr H = n - Σ noise_i [K̃⁻¹]_ii`.

    It is n at ridge 0 and falls towards 0 as the ridge grows (towards the number of functions that a trend leaves free).

    **Arguments:**

    - `c`: a model conditioned on data, with a solver that offers the diagonal of the inverse (all but `CG`).

    **Returns:**

    A scalar, the same for every output; one for each output if these are not observed in the same rows.
    """
    entries = inverse_diagonal(c, "the degrees of freedom")
    left = c.data.zero_where_masked(c.system.ridge * entries)
    return c.data.counts.astype(c.data.dtype) - jnp.sum(left, axis=0)


@compiled
def gcv(c: Conditioned) -> Float[Array, ""]:
    """Generalised cross-validation, `(1/n)‖y - f̂_X‖² / (1 - tr H/n)²`. It can be an objective of a fit.

    It is the leave-one-out error with every leverage replaced by the mean leverage. With several outputs it is the mean over
    all entries.

    **Arguments:**

    - `c`: a model conditioned on data, with a solver that offers the diagonal of the inverse (all but `CG`).

    **Returns:**

    A scalar.
    """
    # A common noise cancels from the quotient, which is therefore formed without it: at noise 0 the limit is right. The
    # quotient comes before the square, so that no unit of the kernel over- or underflows.
    entries, noise = inverse_diagonal(c, "GCV"), c.system.ridge
    level = jnp.max(c.data.zero_where_masked(noise), axis=0) if noise.ndim else jnp.zeros_like(noise)
    share = jnp.where(level > 0, noise / jnp.where(level > 0, level, 1.0), 1.0)
    left = jnp.sum(c.data.zero_where_masked(share * entries), axis=0) / c.data.counts
    residuals = c.data.zero_where_masked(_rows(share, c) * c.alpha / left)
    return jnp.sum(residuals**2) / c.data.num_observed


def _rows(values: Float[Array, "..."], c: Conditioned) -> Array:
    """One number, or one per row, beside outputs."""
    return values[:, None] if 0 < values.ndim < c.alpha.ndim else values
