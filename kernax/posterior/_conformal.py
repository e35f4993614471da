"""Intervals that are valid even if the model is wrong: jackknife+, from a single factorisation."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._programs import compiled
from kernax.data import refuse_gaps
from kernax.model import Conditioned
from kernax.model._checks import check_conditioned
from kernax.posterior._new_rows import rows_like
from kernax.posterior._predict import mean
from kernax.rows import Rows, map_rows
from kernax.solvers import offered


class Interval(NamedTuple):
    """The ends of an interval at each row."""

    lower: Float[Array, "m *p"]
    """The lower ends, one for each row."""
    upper: Float[Array, "m *p"]
    """The upper ends."""


def conformal(c: Conditioned, x: Any, level: float = 0.9) -> Interval:
    """Intervals for new observations by jackknife+, from leave-one-out residuals instead of the model's variance.

    Let f⁽⁻ⁱ⁾ be the fit without row i, and `R_i = y_i - f⁽⁻ⁱ⁾(x_i)` its residual there. Its predictions are
    `f⁽⁻ⁱ⁾(x) = f(x) - w_i(x) R_i`, with the weights of `f(x) = Σ w_i(x) y_i`. The ends of the interval are quantiles over i
    of `f⁽⁻ⁱ⁾(x) ± |R_i|`. If rows are exchangeable and the hyperparameters were not fitted to them, the interval contains a
    new observation with a probability of at least `2·level - 1`, and usually of about `level`, even if the model is wrong
    (Barber, Candès, Ramdas & Tibshirani, 2021). O(n³) with `Cholesky`.

    **Arguments:**

    - `c`: a model conditioned on data, with a solver that offers the diagonal of the inverse (all but `CG`).
    - `x`: new inputs, `(m, d)`.
    - `level`: the probability, between 0 and 1.

    **Returns:**

    An `Interval(lower, upper)` of two arrays `(m,)` or `(m, p)`. With fewer than `level/(1 - level)` rows they are infinite.
    """
    check_conditioned(c)
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")
    refuse_gaps(c.data, "conformal")
    return _conformal(c, rows_like(c.model, c.data, x), level)


@compiled
def _conformal(c: Conditioned, x: Rows, level: float) -> Interval:
    n, mask = c.data.n, c.data.mask
    inverse = offered(c.system.inverse_diagonal(), c.solver, "conformal", "the diagonal of the inverse")
    entries = inverse[:, None] if inverse.ndim == 1 else inverse
    alpha = c.alpha.reshape(n, -1)
    residuals = jnp.where(entries > 0, alpha / jnp.where(entries > 0, entries, 1.0), jnp.nan)
    weights_of = c.system.solve(jnp.eye(n, dtype=c.data.dtype))
    rank = jnp.ceil(level * (c.data.count + 1) - 1e-4).astype(int)

    def of_block(rows: Rows) -> Interval:
        weights, values = c.system.mean(rows, weights_of), mean(c, rows)
        without = values.reshape(-1, 1, residuals.shape[1]) - weights[:, :, None] * residuals
        # A row without which the model is not determined says nothing: its interval is everything.
        low, high = (jnp.where(jnp.isnan(end), end_of_all, end) for end, end_of_all in _ends(without, jnp.abs(residuals)))
        low = jnp.sort(jnp.where(mask[:, None], -low, jnp.inf), axis=1)
        high = jnp.sort(jnp.where(mask[:, None], high, jnp.inf), axis=1)
        ends = [jnp.where(rank <= c.data.count, end[:, jnp.minimum(rank, n) - 1], jnp.inf) for end in (low, high)]
        # The smallest ones of the lower ends are the largest ones of their negatives.
        return Interval(-ends[0].reshape(values.shape), ends[1].reshape(values.shape))

    return map_rows(of_block, x, 6 * n * residuals.shape[1])


def _ends(values: Array, spread: Array) -> list[tuple[Array, float]]:
    return [(values - spread, -jnp.inf), (values + spread, jnp.inf)]
