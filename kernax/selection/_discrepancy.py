"""The discrepancy principle: the mean squared residual should equal the known variance of the noise."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.model import Conditioned, recondition
from kernax.selection._ridge_path import check_one_noise
from kernax.selection._search import bracketed_root
from kernax.selection._smoother import fit_residuals
from kernax.solvers import Result, is_usable, largest_eigenvalue, result_name, throw_unless


class Discrepancy(eqx.Module):
    """The ridge at which `‖y - f̂_X‖² = n σ²`, and the status of the search."""

    ridge: Float[Array, ""]
    """The ridge; NaN if there is none."""
    result: Any
    """How the search ended."""

    def __repr__(self):
        if not is_concrete(self.ridge) or self.ridge.ndim:
            return "Discrepancy(…)"
        return f"Discrepancy(ridge={float(self.ridge):.4g}, {result_name(self.result)})"


def discrepancy(c: Conditioned, noise_variance: Any, *, throw: bool = True) -> Discrepancy:
    """The discrepancy principle: the ridge at which the mean squared residual equals the variance of the noise.

    The norm of the residual increases with the ridge, up to `‖y - μ‖`. So there is at most one such ridge, and there is none
    if `n σ² ≥ ‖y - μ‖²`, or if the residual at ridge 0 is larger already. With several outputs the mean is also over
    outputs. About ten steps, O(n²) each with `Eigh`.

    **Arguments:**

    - `c`: a model conditioned with a solver that can move to another noise: `kx.condition(model, data, kx.Eigh())`.
    - `noise_variance`: the variance σ² of the noise, one positive number.
    - `throw`: raise `FailedError` if there is no such ridge; with `False`, or traced, the status is `no_root`.

    **Returns:**

    A `Discrepancy` with `ridge` and `result`.
    """
    check_one_noise(c)
    one_number = noise_variance is not None and np.ndim(noise_variance) == 0
    if not one_number or (is_concrete(noise_variance) and not 0 < np.asarray(noise_variance) < np.inf):
        raise ValueError(
            f"the discrepancy principle needs the variance of the noise, one positive number, got {noise_variance}."
        )
    answer = _discrepancy(c, jnp.asarray(noise_variance, c.data.dtype))
    if throw:
        throw_unless((), answer.result, "the discrepancy principle")
    return answer


def excess(at: Float[Array, ""], c: Conditioned, noise_variance: Float[Array, ""]) -> Float[Array, ""]:
    """`log` of the mean squared residual at `λ = exp(at)`, less `log σ²`."""
    square = mean_squared_residual(recondition(c, noise=jnp.exp(at)))
    # A residual of 0 (or one that underflows) is below every noise.
    return jnp.log(jnp.maximum(square, jnp.finfo(square.dtype).tiny)) - jnp.log(noise_variance)


def mean_squared_residual(c: Conditioned) -> Float[Array, ""]:
    """`‖y - f̂_X‖² / n`, over outputs as well."""
    residuals = fit_residuals(c)
    return jnp.sum(residuals**2) / c.data.num_observed


@compiled
def _discrepancy(c: Conditioned, noise_variance: Float[Array, ""]) -> Discrepancy:
    eps = jnp.finfo(c.data.dtype).eps
    top = largest_eigenvalue(c.system)
    # Below, rounding (and jitter against it) decides; above, the fit is 0 to rounding.
    low = jnp.log(top) + jnp.log(100 * eps * jnp.sqrt(c.data.count.astype(top.dtype)))
    high = jnp.log(top) - 0.8 * jnp.log(eps)

    def missing(at: Float[Array, ""]) -> Float[Array, ""]:
        return excess(at, c, noise_variance)

    ends = jax.lax.map(missing, jnp.stack([low, high]))
    found = (ends[0] < 0) & (ends[1] > 0)
    place = bracketed_root(missing, low, high, 0.5 * (low + high))
    result = Result.where(is_usable(c.result), Result.where(found, Result.successful, Result.no_root), c.result)
    return Discrepancy(jnp.where(found, jnp.exp(jnp.where(found, place, 0.0)), jnp.nan), result)
