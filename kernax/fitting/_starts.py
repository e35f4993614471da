"""Where fits start: values that suit the data, and random starts."""

import math
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from kernax._programs import compiled
from kernax.bijectors import Real
from kernax.data import Data
from kernax.fitting._fitted import Fit
from kernax.kernels import AbstractStationary
from kernax.model import AbstractModel, condition
from kernax.model._checks import check_model_and_data, model_of
from kernax.parameters import as_dtype, constrain, log_prior, parameters, setting, unconstrain
from kernax.selection import negative_log_marginal_likelihood
from kernax.solvers import AbstractSolver

AnyModel = TypeVar("AnyModel", bound=AbstractModel)

_RATIO, _ROWS_OF_LENGTHSCALE = 4.0, 10
"""Lengthscales are tried in this ratio, down to a few times the distance of neighbouring rows."""


def initialise(model: AnyModel | Fit[AnyModel], data: Data, *, solver: AbstractSolver | None = None) -> AnyModel:
    """The model with starting values that suit the data's scales; fits from there take fewer steps and rarely fail.

    - Lengthscales of stationary kernels become d/(d+2) of the median distance of two rows, for d columns; if there is one
      lengthscale for each column, the median distance is that in the column. Lengthscales of summands of one kind keep their
      ratios.
    - The summands of the kernel share the variance of the targets equally.
    - The noise becomes a tenth of that variance, as does the variance of `noises.Constant` and `noises.Heteroscedastic`.
    - A constant mean becomes the mean of the targets.
    - Periods, exponents, the functions of `kx.Warp`, a noise of 0 and noise per row or group do not change.

    All values stay within the bounds of their parameters. A kernel or noise of your own can define a method `initialised`.

    **Arguments:**

    - `model`: a `kx.Model`, or another model that `kx.fit` takes, or a `Fit`.
    - `data`: the dataset that it will be fitted to.
    - `solver`: if given, the lengthscales of stationary kernels are then multiplied by 1, 1/4, 1/16 and so on, and those
      with the largest likelihood for this solver are kept. Use it if the function turns many times, as in a long series:
      there the distances of rows say little about the lengthscale, and a fit may explain everything as noise.

    **Returns:**

    A model like `model`, with other values.
    """
    given = model_of(model)
    check_model_and_data(given, data, "initialise")
    start = _initialised(given, data)
    return start if solver is None else with_best_lengthscales(start, data, solver)


def with_best_lengthscales(model: AnyModel, data: Data, solver: AbstractSolver | None, movable: Any = None) -> AnyModel:
    """The model with the lengthscales of its stationary kernels times 1, 1/4, 1/16 … that have the largest likelihood.

    **Arguments:**

    - `model`, `data`: what is to be fitted, and to what.
    - `solver`: how the likelihood is computed.
    - `movable`: a tree of booleans, which parameters may change; `None` for all.

    **Returns:**

    A model like `model`, with other lengthscales.
    """
    flags = jax.tree.map(lambda _: True, model) if movable is None else movable

    def shortened(factor: float) -> AnyModel:
        def of_part(part: Any, may_change: Any) -> Any:
            if not isinstance(part, AbstractStationary) or not may_change.lengthscale:
                return part
            return eqx.tree_at(lambda k: k.lengthscale, part, factor * part.lengthscale)

        shorter = jax.tree.map(of_part, model, flags, is_leaf=lambda part: isinstance(part, AbstractStationary))
        return jax.tree.map(_within_bounds, shorter, constrain(unconstrain(shorter)))

    def value(start: AnyModel) -> float:
        found = negative_log_marginal_likelihood(condition(start, data, solver, throw=False)) - log_prior(start)
        return float(jnp.where(jnp.isfinite(found), found, jnp.inf))

    # A function that turns within a few rows cannot be told from noise.
    number = 1 + int(math.log(max(data.n / _ROWS_OF_LENGTHSCALE, 1.0), _RATIO))
    if number == 1 or eqx.tree_equal(shortened(1.0), shortened(1.0 / _RATIO)):
        return model
    return min((shortened(_RATIO**-k) for k in range(number)), key=value)


@compiled
def _initialised(model: AnyModel, data: Data) -> AnyModel:
    start: Any = as_dtype(model, data.dtype).initialised(data)
    return jax.tree.map(_within_bounds, start, constrain(unconstrain(start)))


def _within_bounds(value: Any, bounded: Any) -> Any:
    """The value, or where its bijector cannot reach it, the nearest one that it can; 0 stands for "none" and stays."""
    if not eqx.is_inexact_array(value):
        return value
    reached = jnp.abs(bounded - value) <= 1e-3 * jnp.abs(value)
    return jnp.where(reached | (value == 0), value, bounded)


def starting_points(
    model: AbstractModel, free: AbstractModel, restarts: int, key: Key[Array, ""] | None
) -> list[AbstractModel]:
    """The given start and `restarts` random ones.

    A parameter is drawn from its prior if that can be sampled (and allows the value); otherwise it moves a normal step away
    in the unconstrained space: by a factor of about e if it is bounded, by half its size and 0.1 if it is any real number.
    """
    keys = [] if key is None else jax.random.split(key, restarts)
    return [free, *(_random_start(model, free, k) for k in keys)]


def _random_start(model: AbstractModel, free: AbstractModel, key: Key[Array, ""]) -> AbstractModel:
    paths = parameters(free)
    keys = dict(zip((path for path, _ in paths), jax.random.split(key, len(paths)), strict=True))

    def drawn(path: tuple, leaf: Array) -> Array:
        if path not in keys:
            return leaf
        known = setting(model, path)
        assert known.bijector is not None
        size = 0.1 + 0.5 * jnp.abs(leaf) if isinstance(known.bijector, Real) else 1.0
        nearby = leaf + size * jax.random.normal(keys[path], leaf.shape, leaf.dtype)
        sampler = getattr(known.prior, "sample", None)
        if sampler is None:
            return nearby
        value = sampler(keys[path], leaf.shape, leaf.dtype)
        free = known.bijector.inverse(value)
        allowed = jnp.abs(known.bijector.forward(free) - value) <= 1e-3 * jnp.abs(value)
        return jnp.where(allowed, free, nearby)

    return jax.tree_util.tree_map_with_path(drawn, free)
