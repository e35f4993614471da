"""One model fitted to many datasets at once: the sum of their objectives."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kernax.data import Data
from kernax.data._many import HostData, stacked
from kernax.data._shapes import LEAST_ROWS, by_shape, plan_rows
from kernax.fitting._convergence import sizes
from kernax.fitting._fit import best_of, prepared, with_own_history
from kernax.fitting._fits import Fit
from kernax.fitting._lanes import run_lanes
from kernax.fitting._loop import AbstractProblem, Objective, Rules
from kernax.fitting._models import Models
from kernax.fitting._starts import initialise as initialised
from kernax.model import AbstractModel, condition
from kernax.parameters import as_dtype, join, log_prior
from kernax.parameters import trainable as all_trainable
from kernax.solvers import AbstractSolver, is_usable


class SharedProblem(AbstractProblem):
    """`Σ_i objective(condition(model, data_i)) - log_prior(model)`."""

    held: AbstractModel
    batches: tuple[Data, ...]
    """The datasets, padded to a few shapes; each shape's with a leading axis."""
    objective: Objective = eqx.field(static=True)
    solver: AbstractSolver
    together: bool = eqx.field(static=True)

    @property
    def dtype(self):
        return self.batches[0].dtype

    @property
    def largest_matrix(self):
        return self.solver.largest_matrix(max(data.mask.shape[-1] for data in self.batches))

    def sizes(self, free):
        return jnp.max(jnp.stack([sizes(free, data) for data in self.batches]), axis=0)

    def __call__(self, free):
        value, status, jitter = _with_own_gradient(self._sums)(free)
        model = as_dtype(join(free, self.held), self.dtype)
        return value - log_prior(model).astype(self.dtype), (status, jitter)

    def _sums(self, free: AbstractModel) -> tuple[tuple[Float[Array, ""], Any, Float[Array, ""]], AbstractModel]:
        """The summed value with the worst status and the largest jitter, and the summed gradient."""

        def of_dataset(free: AbstractModel, data: Data) -> tuple[Float[Array, ""], tuple[Any, Float[Array, ""]]]:
            c = condition(as_dtype(join(free, self.held), self.dtype), data, self.solver, throw=False)
            return self.objective(c).astype(self.dtype), (c.result, c.jitter)

        def of_lane(data: Data):
            return jax.value_and_grad(of_dataset, has_aux=True)(free, data)

        lanes = [jax.vmap(of_lane)(data) if self.together else jax.lax.map(of_lane, data) for data in self.batches]
        (values, (status, jitter)), gradients = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *lanes)
        worst = jax.tree.map(lambda leaf: leaf[jnp.argmin(is_usable(status))], status)
        return (jnp.sum(values), worst, jnp.max(jitter)), jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), gradients)


def _with_own_gradient(sums: Any) -> Any:
    """`sums(free)[0]`, whose first entry has the gradient `sums(free)[1]`: each dataset is pulled back by itself, so that
    the matrices of one are alive at a time, and not those of all."""

    @jax.custom_vjp
    def total(free: AbstractModel) -> Any:
        return sums(free)[0]

    def back(gradient: AbstractModel, cotangents: Any) -> tuple[AbstractModel]:
        return (jax.tree.map(lambda leaf: cotangents[0] * leaf, gradient),)

    total.defvjp(sums, back)
    return total


def shared_batches(datasets: list[HostData]) -> tuple[Data, ...]:
    """The datasets by shape, those without rows left out: they add nothing. NaN is refused: it would be everybody's."""
    for data in datasets:
        arrays = (data.y, *jax.tree.leaves(data.x))
        if not all(np.isfinite(array[data.mask]).all() for array in arrays):
            raise ValueError(f"{data.name} has NaN or infinite values: drop them, or mark them with mask=False.")
    filled = [data for data in datasets if data.mask.any()]
    if not filled:
        raise ValueError("there is no dataset with rows to fit.")
    sizes = [max(data.n, LEAST_ROWS) for data in filled]
    shapes = by_shape(filled, sizes, plan_rows(sizes))
    return tuple(jax.tree.map(jnp.asarray, stacked(members, rows)) for rows, members in shapes)


def fit_shared(
    models: Models,
    datasets: list[HostData],
    rules: Rules,
    *,
    objective: Objective,
    solver: AbstractSolver,
    trainable: AbstractModel | None,
    initialise: bool,
    restarts: int,
    key: Key[Array, ""] | None,
    together: bool,
    progress: bool,
) -> Fit:
    """One model for all datasets."""
    batches = shared_batches(datasets)
    model: AbstractModel = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, models.model)
    if initialise:
        begin = initialised(model, _pooled(datasets))
        # What is held keeps the given values.
        free_ones = all_trainable(model) if trainable is None else trainable
        model = jax.tree.map(lambda new, old, free: new if free else old, begin, model, free_ones)
    frees, held = prepared(model, trainable, batches[0].dtype, restarts, key)
    problem = SharedProblem(held, batches, objective, solver, together)
    return with_own_history(best_of(run_lanes(frees, problem, rules, progress=progress), problem, rules))


def _pooled(datasets: list[HostData]) -> Data:
    """All rows in one dataset, for starting values."""
    filled = [data for data in datasets if data.n]
    x = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(data.x for data in filled))
    return Data(x, np.concatenate([data.y for data in filled]), np.concatenate([data.mask for data in filled]))
