"""The posterior of hyperparameters for samplers: a log-density of one vector without bounds."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.bijectors import Interval
from kernax.data import Data
from kernax.fitting._fitted import Fit
from kernax.model import AbstractModel, condition
from kernax.model._checks import check_model_and_data, model_of
from kernax.parameters import as_dtype, log_jacobian, log_prior, parameter_name, parameters, ravel, setting, split
from kernax.selection import log_marginal_likelihood
from kernax.solvers import AbstractSolver, is_usable


class LogPosterior(NamedTuple):
    """The log-density of a posterior over hyperparameters, as a function of one vector."""

    density: Callable[[Float[Array, " k"]], Float[Array, ""]]
    """The log-density of a vector, up to a constant."""
    start: Float[Array, " k"]
    """The vector of the given model."""
    rebuild: Callable[[Float[Array, " k"]], Any]
    """The model of a vector."""


def log_posterior(
    model: AbstractModel | Fit[Any], data: Data, *, trainable: Any = None, solver: AbstractSolver | None = None
) -> LogPosterior:
    """The log-density of the posterior over hyperparameters, `log p(y | θ) + log p(θ)`, for samplers such as NUTS.

    `density, start, rebuild = kx.fitting.log_posterior(model, data)` is all that BlackJAX or NumPyro needs.

    The density is a function of the vector that `kx.parameters.ravel` makes, in the unconstrained space, and includes the
    Jacobian of the change of variables. It can be differentiated, compiled and mapped. It is −∞ where the model cannot be
    conditioned.

    Every free parameter should have a prior (`kx.with_prior`). A parameter without a prior counts as uniform in its value.
    That is improper unless the parameter is bounded (`kx.bijectors.Interval`), and a warning says so.

    **Arguments:**

    - `model`: the model, or a `Fit`. Its parameters are the starting point.
    - `data`: the dataset.
    - `trainable`: a tree of booleans in the shape of the model, from `kx.freeze`; all parameters are free if `None`. The
      others keep their values.
    - `solver`: how to condition; `kx.Cholesky()` if `None`.

    **Returns:**

    A `LogPosterior(density, start, rebuild)`.
    """
    given = model_of(model)
    check_model_and_data(given, data, "log_posterior")
    begin: AbstractModel = as_dtype(given, data.dtype)
    flat = _without_prior(begin, trainable)
    if flat:
        warnings.warn(
            f"{', '.join(flat)} {'has' if len(flat) == 1 else 'have'} no prior, so that the posterior may be improper: give "
            "one with kx.with_prior, bounds with kx.with_bijector(…, kx.bijectors.Interval(…)), or hold it "
            "(trainable=kx.freeze(…)).",
            stacklevel=2,
        )
    start, rebuild = ravel(begin, trainable=trainable)

    def density(vector: Float[Array, " k"]) -> Float[Array, ""]:
        proposed = rebuild(vector)
        c = condition(proposed, data, solver, throw=False)
        free, _ = split(proposed, trainable)
        value = log_marginal_likelihood(c) + log_prior(proposed) + log_jacobian(free)
        return jnp.where(is_usable(c.result), value, -jnp.inf)

    return LogPosterior(density, start, rebuild)


def _without_prior(model: AbstractModel, trainable: Any) -> list[str]:
    """The names of free parameters with neither a prior nor two finite ends."""
    free, _ = split(model, trainable)
    kept = {jax.tree_util.keystr(path) for path, _ in parameters(free)}
    known = [(path, setting(model, path)) for path, _ in parameters(model) if jax.tree_util.keystr(path) in kept]
    return [parameter_name(path) for path, of in known if of.prior is None and not isinstance(of.bijector, Interval)]
