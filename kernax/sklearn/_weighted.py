"""A Gaussian process whose rows have weights: a row of weight w is w observations of the same value."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.data import Data
from kernax.kernels import AbstractKernel
from kernax.model import AbstractModel, Conditioned, Model, check_kernel
from kernax.parameters import Parameter, non_negative, positive
from kernax.selection import log_marginal_likelihood


class WeightedModel(AbstractModel):
    """`Model` with the noise `noise / weights`, one noise for all rows (or one each) and weights that are held in a fit."""

    kernel: AbstractKernel
    noise: Float[Parameter, "*n"] = non_negative()
    weights: Float[Parameter, " n"] = positive()

    def __check_init__(self):
        check_kernel(self)

    @property
    def is_per_row(self):
        return True

    @property
    def unweighted(self) -> Model:
        """The model of a single observation."""
        return Model(self.kernel, self.noise)

    def check(self, data, caller):
        self.unweighted.check(data, caller)

    def conditioned(self, data, finite, solver):
        inner = Model(self.kernel, self.noise / self.weights).conditioned(data, finite, solver)
        return WeightedConditioned(self, inner)

    def initialised(self, data):
        start: Any = self.unweighted.initialised(data)
        return WeightedModel(start.kernel, start.noise, self.weights)


class WeightedConditioned(eqx.Module):
    """A `WeightedModel` that has seen data: `inner` answers everything but the likelihood."""

    model: WeightedModel
    inner: Conditioned

    @property
    def data(self) -> Data:
        return self.inner.data

    @property
    def result(self) -> Any:
        return self.inner.result

    @property
    def jitter(self) -> Float[Array, "..."]:
        return self.inner.jitter


@log_marginal_likelihood.register(WeightedConditioned)
def _(c: WeightedConditioned) -> Float[Array, ""]:
    """That of all observations: of their means, `log_marginal_likelihood(inner)`, and given the means of the rest.

    w equal observations with noise variance σ² have `-½ ((w - 1) log 2πσ² + log w)` beyond their mean of variance σ²/w.
    """
    noise, w = c.model.noise, c.model.weights
    # Without noise the rest has no density: as if each was seen once.
    rest = jnp.where(noise > 0, (w - 1.0) * jnp.log(2.0 * jnp.pi * jnp.where(noise > 0, noise, 1.0)) + jnp.log(w), 0.0)
    return log_marginal_likelihood(c.inner) - 0.5 * c.data.num_outputs * jnp.sum(c.data.zero_where_masked(rest))
