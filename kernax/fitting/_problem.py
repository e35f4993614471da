"""What a fit minimises: a scalar of the free parameters."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax.data import Data
from kernax.fitting._stochastic import Stochastic
from kernax.model import AbstractModel, Conditioned, condition
from kernax.parameters import as_dtype, join, log_prior
from kernax.solvers import AbstractSolver, Result

Objective = Callable[[Any], Float[Array, ""]]


class Problem(eqx.Module):
    """What `fit` minimises: `objective(condition(model, data)) - log_prior(model)`."""

    held: AbstractModel
    data: Data
    objective: Objective = eqx.field(static=True)
    solver: AbstractSolver

    @property
    def dtype(self) -> Any:
        """The floating type of the value."""
        return self.data.dtype

    def __call__(
        self, free: AbstractModel, key: Key[Array, ""] | None
    ) -> tuple[Float[Array, ""], tuple[Any, Float[Array, ""]]]:
        """The value, and beside it the factorisation's result and jitter. `key` is for objectives that are random."""
        model = as_dtype(join(free, self.held), self.data.dtype)
        objective: Any = self.objective
        if isinstance(objective, Stochastic):
            assert key is not None
            keys = jax.random.split(key)
            batch, scale = objective.batch(self.data, keys[0])
            c = condition(model, batch, self.solver, throw=False)
            value = objective(c, keys[1], scale)
        else:
            c = condition(model, self.data, self.solver, throw=False)
            value = objective(c)
        value = value - log_prior(model).astype(self.data.dtype)
        # Of the System, not of its solution, for which an iterative solver would have to solve once more.
        source = c.system if isinstance(c, Conditioned) else c
        result, known = source.result, model.can_be_fitted(self.data)
        if known is not True:  # `fit` has refused such data; of many datasets, each has a status of its own
            value, result = jnp.where(known, value, jnp.nan), Result.where(known, result, Result.unknown_labels)
        return value.astype(self.data.dtype), (result, source.jitter)
