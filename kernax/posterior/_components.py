"""The posterior of each summand of a sum kernel."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._programs import compiled
from kernax.kernels import AbstractKernel
from kernax.means import mean_values
from kernax.model import Conditioned
from kernax.model._checks import check_conditioned, of_function
from kernax.posterior._new_rows import new_rows
from kernax.rows import Rows, take
from kernax.solvers import offered


class SumComponents(eqx.Module):
    """What each summand of a kernel contributes to the posterior.

    `mean.sum(axis=0) + rest` is the posterior mean. Variances do not add up: the summands are correlated given the data.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    """The summands, as text."""
    mean: Float[Array, "k m *p"]
    """The posterior mean of each summand at each row."""
    variance: Float[Array, "k m"]
    """The posterior variance of each summand at each row."""
    rest: Float[Array, "m *p"]
    """The rest of the posterior mean: the mean function, and the model's `trend` with its fitted coefficients."""

    def __repr__(self):
        return f"SumComponents({', '.join(self.names)})"


def components(c: Any, x: Any) -> SumComponents:
    """Posterior mean and variance of each summand of a sum kernel, at new inputs.

    With `k = k_1 + k_2 + …` the function is a sum of independent ones, and given the data each has the mean
    `k_j(x, X) alpha` and the variance `k_j(x, x) - k_j(x, X) (K + noise·I)⁻¹ k_j(X, x)`. The polynomials that a spline
    leaves free are part of its component. (If several splines leave the constant free, it is part of the first.)

    O(n + m) with `StateSpace`; other solvers solve for every new row.

    **Arguments:**

    - `c`: a model conditioned on data, from [`kernax.condition`][]. A kernel that is not a sum counts as one summand.
    - `x`: new inputs, `(m, d)`.

    **Returns:**

    A `SumComponents` with `names`, `mean`, `variance` and `rest`; the means and `rest` add up to the posterior mean.
    """
    c = of_function(c)
    check_conditioned(c)
    names = tuple(repr(part) for part in c.model.kernel.summands())
    return SumComponents(names, *_components(c, new_rows(c, x), _owners(c.model.kernel, c.system.num_free, c.data.x)))


def _owners(kernel: AbstractKernel, number: int, x: Any) -> tuple[int, ...]:
    """For each function that is left free, the summand that it belongs to; -1 for those of the model's own trend.

    In the order of `joined_trends`: the constant, then the other functions of each summand, then those of the model.
    """
    trends = [(place, trend) for place, part in enumerate(kernel.summands()) if (trend := part.trend()) is not None]
    others = [
        place
        for place, trend in trends
        for _ in range(jax.eval_shape(lambda x, trend=trend: trend.functions(take(x)), x).shape[1])
    ]
    # Several splines have the constant in common.
    constant = next((place for place, trend in trends if trend.has_constant), -1)
    return (constant, *others, *[-1] * number)[:number]


@compiled
def _components(c: Conditioned, x: Rows, owners: tuple[int, ...]) -> tuple[Array, Array, Array]:
    moments = c.system.summand_moments(x, c.solution, owners)
    mean, variance = offered(moments, c.solver, "the components of a kernel", "predictions of the form k(x, X) alpha")
    mean = jnp.where(c.ok, mean, jnp.nan).reshape(*mean.shape[:2], *c.residual.shape[1:])
    variance = jnp.where(c.ok, jnp.maximum(variance, 0.0), jnp.nan)
    whole = c.system.mean(x, c.solution)
    return mean, variance, whole - jnp.sum(mean, axis=0) + mean_values(c.model.mean, x, whole)
