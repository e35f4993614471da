"""Leave-one-out quantities from the one factorisation, instead of n refits.

Row i of `K̃⁻¹` knows what happens without point i: with `alpha = K̃⁻¹(y-μ)`, the residual of the fit without i at x_i is
`alpha_i / [K̃⁻¹]_ii` and the variance of y_i given the others is `1 / [K̃⁻¹]_ii`. The mean function is not refitted.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.model import Conditioned, check_conditioned
from kernax.posterior import normal_negative_log_density


def loo_residuals(c: Conditioned) -> Float[Array, "n *p"]:
    """`y_i - f⁽⁻ⁱ⁾(x_i)` for every i; 0 where the data is masked. The inverse's diagonal, O(n³), is all it costs.

    NaN for a row without which a spline's polynomials are not determined.
    """
    check_conditioned(c)
    entries = _like(c.factor.inverse_diagonal(), c.alpha)
    determined = entries > 0
    residuals = jnp.where(determined, c.alpha / jnp.where(determined, entries, 1.0), jnp.nan)
    return c.data.zero_where_masked(residuals)


def loo_mean(c: Conditioned) -> Float[Array, "n *p"]:
    """`f⁽⁻ⁱ⁾(x_i)`: what the fit without i predicts at x_i."""
    return c.data.zero_where_masked(c.data.y - loo_residuals(c))


def loo_variance(c: Conditioned, *, noisy: bool = False) -> Float[Array, " n"]:
    """The variance at x_i of the fit without i: of the function, or with `noisy=True` of the observation, `1/[K̃⁻¹]_ii`."""
    check_conditioned(c)
    observed = 1.0 / c.factor.inverse_diagonal()
    values = observed if noisy else jnp.maximum(observed - c.model.noise - c.jitter, 0.0)
    return c.data.zero_where_masked(values)


def loo_mse(c: Conditioned) -> Float[Array, ""]:
    """The mean squared leave-one-out residual, over rows that count and outputs. An objective."""
    squares = loo_residuals(c) ** 2
    return jnp.sum(squares) / (c.data.count * c.data.num_outputs)


def loo_negative_log_density(c: Conditioned) -> Float[Array, ""]:
    """`-Σ log p(y_i | the others)`: the leave-one-out pseudo-likelihood, which also judges the variances. An objective."""
    check_conditioned(c)
    variances = 1.0 / _like(c.factor.inverse_diagonal(), c.alpha)
    return jnp.sum(c.data.zero_where_masked(normal_negative_log_density(c.alpha * variances, variances)))


def _like(rows: Float[Array, " n"], values: Float[Array, "n *p"]) -> Array:
    return rows[:, None] if values.ndim == 2 else rows
