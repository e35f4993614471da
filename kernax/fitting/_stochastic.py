"""Objectives that are random: other numbers, or other rows, at every step of a fit."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from kernax.data import Data
from kernax.model import AbstractModel
from kernax.rows import Grid, is_on_disk
from kernax.selection import loo_negative_log_density, negative_log_marginal_likelihood
from kernax.solvers import AbstractSolver

Kept = Literal["average", "last", "best"]
IN_NATS = (negative_log_marginal_likelihood, loo_negative_log_density)
"""Objectives that are sums over rows, in nats."""


class Stochastic:
    """An objective that uses a new random key, or new random rows, at every step of a fit.

    A fit of a random objective always makes `max_steps` steps, since values that differ by chance cannot show convergence.
    Its default optimiser is `optax.adam` with a step that falls from 0.1 to 0 along a cosine.

    For random numbers that are the same at every step, give `fit` an ordinary objective that holds its key:
    `functools.partial(kx.kfold_mse, key=key)`.

    **Arguments:**

    - `objective`: a function of a `Conditioned`, such as `kx.selection.negative_log_marginal_likelihood`. If it
      has an argument named `key`, as `kx.kfold_mse` has, it is given one.
    - `rows`: condition on this many rows instead of all of them, drawn at every step without replacement. A likelihood is
      scaled up to all rows. `None` for all rows.
    - `keep`: what the fit returns: `"average"`, the mean of about the last `over` points in the unconstrained space (the
      weights of older ones fall geometrically); `"last"`, the last point; `"best"`, the one with the lowest value, which may
      be low by chance. `Fit.value` and `Fit.gradient_norm` are averaged, or chosen, in the same way.
    - `over`: how many points are averaged.
    """

    def __init__(self, objective: Callable[..., Any], *, rows: int | None = None, keep: str = "average", over: int = 50):
        if not callable(objective):
            raise TypeError(f"objective must be a function of a Conditioned, such as kx.kfold_mse, got {objective!r}.")
        if keep not in get_args(Kept):
            raise ValueError(f"keep must be one of {', '.join(get_args(Kept))}, got {keep!r}.")
        whole = isinstance(over, int | np.integer) and (rows is None or isinstance(rows, int | np.integer))
        if not whole or over < 1 or (rows is not None and rows < 1):
            raise ValueError(f"rows and over must be 1 or more, and whole, got rows={rows} and over={over}.")
        self.objective, self.rows, self.over = objective, rows, over
        self.keep: Kept = cast(Kept, keep)
        self.takes_key = "key" in inspect.signature(objective).parameters
        if not self.takes_key and rows is None:
            raise ValueError(
                f"there is nothing random: {getattr(objective, '__name__', objective)!r} has no argument named key, and "
                "rows= is not given."
            )

    def _fields(self) -> tuple[Any, ...]:
        return self.objective, self.rows, self.keep, self.over

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Stochastic) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __call__(self, c: Any, key: Key[Array, ""], scale: Float[Array, ""] | float = 1.0) -> Float[Array, ""]:
        """The value with this key. `scale` is how many times as many rows there are as in the batch."""
        value = self.objective(c, key=key) if self.takes_key else self.objective(c)
        return value * scale if self.objective in IN_NATS else value

    def batch(self, data: Data, key: Key[Array, ""]) -> tuple[Data, Float[Array, ""] | float]:
        """The rows of a step, and the ratio of all rows to these."""
        if self.rows is None or self.rows >= data.n:
            return data, 1.0
        # Random numbers for all rows, of which the largest are taken: without repetition, rows that count first.
        draws = jnp.where(data.mask, jax.random.uniform(key, (data.n,)), -1.0)
        chosen = jax.lax.top_k(draws, self.rows)[1]
        part: Data = jax.tree.map(lambda leaf: leaf[chosen], data)
        return part, (data.count / jnp.maximum(part.count, 1)).astype(data.dtype)

    def check(self, model: AbstractModel, data: Data, solver: AbstractSolver) -> None:
        """Raise `TypeError` or `ValueError` if the data, the model or the solver cannot be used in batches."""
        if self.rows is None:
            return
        if isinstance(data.x, Grid) or is_on_disk(data.x) or data.gaps is not None:
            raise TypeError(
                "rows= needs data in memory with one mask for all outputs, not a grid, a file or a mask per entry: "
                "leave out rows=."
            )
        if model.is_per_row:
            raise ValueError("the model's noise (or penalty) is given per row, and a batch has other rows: give one number.")
        self.check_solver(solver)

    def check_solver(self, solver: AbstractSolver) -> None:
        """Raise `TypeError` if the solver cannot condition on a batch."""
        if self.rows is not None and type(solver).settled is not AbstractSolver.settled:
            raise TypeError(f"{solver!r} chooses among all rows: use kx.Cholesky() for batches, or leave out rows=.")


@functools.cache
def default_optimiser(max_steps: int) -> optax.GradientTransformation:
    """Adam, with a step that falls to 0 in that many steps. Cached, so that compiled programs are found again."""
    return optax.adam(optax.cosine_decay_schedule(0.1, max_steps))


def key_of_steps(key: Key[Array, ""] | None) -> Key[Array, ""]:
    """From the key of a fit, if it has one, that of its steps: another than those of its random starts."""
    return jax.random.fold_in(jax.random.key(0) if key is None else key, 2**31 - 1)
