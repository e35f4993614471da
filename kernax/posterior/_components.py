"""The posterior of each summand of a sum kernel."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._programs import compiled
from kernax.grams import gram_of
from kernax.means import mean_values
from kernax.model import Conditioned, check_conditioned
from kernax.posterior._new_rows import new_rows
from kernax.rows import Rows, map_rows
from kernax.solvers import offered


class SumComponents(eqx.Module):
    """What each summand of a kernel contributes to the posterior.

    `mean.sum(axis=0) + rest` is the posterior mean. Variances do not add up: the summands are correlated given the data.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    """The summands, as they print."""
    mean: Float[Array, "k m *p"]
    variance: Float[Array, "k m"]
    rest: Float[Array, "m *p"]
    """What belongs to no summand: the mean function, and the trend with its fitted coefficients."""

    def __repr__(self):
        return f"SumComponents({', '.join(self.names)})"


def components(c: Any, x: Any) -> SumComponents:
    """Posterior mean and variance of each summand of a sum kernel, at new inputs.

    With `k = k_1 + k_2 + …` the function is a sum of independent ones, and given the data each has the mean
    `k_j(x, X) alpha` and the variance `k_j(x, x) - k_j(x, X) (K + noise·I)⁻¹ k_j(X, x)`. O(n + m) with `StateSpace`; other
    solvers solve for every new row.

    **Arguments:**

    - `c`: a model conditioned on data, from [`kernax.condition`][]. A kernel that is not a sum is its own only summand.
    - `x`: new inputs, `(m, d)`.

    **Returns:**

    A `SumComponents` with `names`, `mean`, `variance` and `rest`; the means and `rest` add up to the posterior mean.
    """
    check_conditioned(c)
    names = tuple(repr(part) for part in c.model.kernel.summands())
    return SumComponents(names, *_components(c, new_rows(c, x)))


@compiled
def _components(c: Conditioned, x: Rows) -> tuple[Array, Array, Array]:
    moments = c.system.summand_moments(x, c.solution)
    mean, variance = _by_crosses(c, x) if moments is None else moments
    mean = jnp.where(c.ok, mean, jnp.nan).reshape(*mean.shape[:2], *c.residual.shape[1:])
    variance = jnp.where(c.ok, jnp.maximum(variance, 0.0), jnp.nan)
    whole = c.system.mean(x, c.solution)
    return mean, variance, whole - jnp.sum(mean, axis=0) + mean_values(c.model.mean, x, whole)


def _by_crosses(c: Conditioned, x: Rows) -> tuple[Float[Array, "k m p"], Float[Array, "k m"]]:
    """From the matrices `k_j(X, x)`, in blocks of new rows, with a solve for each row."""
    weights = c.system.expansion(c.solution)
    alpha, _ = offered(weights, c.solver, "the components of a kernel", "predictions of the form k(x, X) alpha")
    alpha = jnp.where(c.ok, alpha, 0.0).reshape(c.data.n, -1)
    # A spline's own kernel is not definite: the System has one that is, up to the trend.
    grams = [gram_of(part, c.data.x, c.data.mask) for part in c.system.gram.kernel.summands()]

    def of_block(block: Rows) -> tuple[Array, Array]:
        crosses = [gram.cross(block) for gram in grams]
        means = [jnp.matmul(cross.T, alpha, precision="highest") for cross in crosses]
        solved = [jnp.where(c.ok, c.system.solve(cross).value, 0.0) for cross in crosses]
        spreads = [
            gram.kernel.diag(block) - jnp.sum(cross * part, axis=0)
            for gram, cross, part in zip(grams, crosses, solved, strict=True)
        ]
        return jnp.stack(means, axis=1), jnp.stack(spreads, axis=1)

    answers = map_rows(of_block, x, 4 * len(grams) * c.data.n)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), answers)
