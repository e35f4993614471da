"""Leave-one-out quantities from a single factorisation, instead of n refits.

Row i of `K̃⁻¹` knows what happens without point i: with `alpha = K̃⁻¹(y-μ)`, the residual of the fit without i at x_i is
`alpha_i / [K̃⁻¹]_ii` and the variance of y_i given the others is `1 / [K̃⁻¹]_ii`. The mean function is not refitted.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._programs import compiled
from kernax.model import Conditioned
from kernax.model._checks import LEARN_AGAIN, check_conditioned
from kernax.posterior import normal_negative_log_density
from kernax.solvers import offered


@compiled
def loo_residuals(c: Conditioned) -> Float[Array, "n *p"]:
    """Leave-one-out residuals `y_i - f⁽⁻ⁱ⁾(x_i)`.

    They need the diagonal of the inverse: O(n³) with `Cholesky`, O(n²) with `Eigh`, O(n) with `StateSpace`.

    **Arguments:**

    - `c`: a model conditioned on data, with a solver that offers the diagonal of the inverse (all but `CG`).

    **Returns:**

    An array in the shape of y; 0 where the data is masked, NaN for a row without which a trend is not determined.
    """
    entries = _like(inverse_diagonal(c, "leave-one-out"), c.alpha)
    determined = entries > 0
    residuals = jnp.where(determined, c.alpha / jnp.where(determined, entries, 1.0), jnp.nan)
    return c.data.zero_where_masked(residuals)


@compiled
def loo_mean(c: Conditioned) -> Float[Array, "n *p"]:
    """Leave-one-out predictions: the prediction at `x_i` of the fit without row i. See [`kernax.loo_residuals`][].

    **Arguments:**

    - `c`: a model conditioned on data.

    **Returns:**

    An array of the shape of the targets.
    """
    return c.data.zero_where_masked(c.data.y - loo_residuals(c))


@compiled
def loo_variance(c: Conditioned, *, noisy: bool = False) -> Float[Array, "n *p"]:
    """Leave-one-out variances: the variance at x_i of the fit without row i.

    **Arguments:**

    - `c`: a model conditioned on data; see `loo_residuals`.
    - `noisy`: the variance of the observation, `1/[K̃⁻¹]_ii`, instead of that of the function.

    **Returns:**

    An array of shape `(n,)`, or `(n, p)` if the outputs are not observed in the same rows; 0 where the data is masked.
    """
    observed = 1.0 / inverse_diagonal(c, "leave-one-out")
    values = observed if noisy else jnp.maximum(observed - c.system.ridge, 0.0)
    return c.data.zero_where_masked(values)


@compiled
def loo_mse(c: Conditioned) -> Float[Array, ""]:
    """Mean squared leave-one-out residual over the observed entries. Can be used as an objective of a fit.

    **Arguments:**

    - `c`: a model conditioned on data.

    **Returns:**

    One number. See [`kernax.loo_residuals`][] for the formula.
    """
    squares = loo_residuals(c) ** 2
    return jnp.sum(squares) / c.data.num_observed


@compiled
def loo_negative_log_density(c: Conditioned) -> Float[Array, ""]:
    """Negative leave-one-out log density, `-Σ log p(y_i | all others)`. Can be used as an objective of a fit.

    It judges the predicted variances as well as the means, unlike [`kernax.loo_mse`][].

    **Arguments:**

    - `c`: a model conditioned on data.

    **Returns:**

    One number, a sum over the rows.
    """
    variances = 1.0 / _like(inverse_diagonal(c, "leave-one-out"), c.alpha)
    return jnp.sum(c.data.zero_where_masked(normal_negative_log_density(c.alpha * variances, variances)))


def offers_left_out(c: Conditioned) -> bool:
    """Whether the solver offers leave-one-out predictions; nothing is computed."""
    return eqx.filter_eval_shape(lambda system: system.inverse_diagonal(), c.system) is not None


def inverse_diagonal(c: Conditioned, quantity: str) -> Float[Array, "n *p"]:
    """`diag(K̃⁻¹)`, or an error that names a solver that offers it."""
    check_conditioned(c, quantity, LEARN_AGAIN)
    return offered(c.system.inverse_diagonal(), c.solver, quantity, "the diagonal of the inverse")


def _like(rows: Float[Array, "n ..."], values: Float[Array, "n *p"]) -> Array:
    return rows[:, None] if values.ndim > rows.ndim else rows
