"""Conditioning a model on data, and the choices that a solver makes before it."""

import functools
from typing import Any, overload

import numpy as np

from kernax._arrays import is_concrete
from kernax._programs import compiled, is_traced
from kernax._threads import with_threads_for
from kernax.data import Data
from kernax.grams import gram_of
from kernax.model._checks import check_model_and_data, check_solver
from kernax.model._model import AbstractModel, Conditioned, Model, condition_compiled, trend_of
from kernax.parameters import as_dtype
from kernax.rows import (
    take,
)
from kernax.solvers import (
    AbstractSolver,
    Cholesky,
    check_memory,
    result_name,
    throw_unless,
)


@overload
def condition(model: Model, data: Data, solver: Any = None, *, throw: bool = True) -> Conditioned: ...


@overload
def condition(model: AbstractModel, data: Data, solver: Any = None, *, throw: bool = True) -> Any: ...


def condition(model: AbstractModel, data: Data, solver: Any = None, *, throw: bool = True) -> Any:
    """Condition a model on data. Predictions and scores are then functions of the result.

    **Arguments:**

    - `model`: a `kx.Model`, or a machine of `kx.learners`. It is cast to the data's floating type.
    - `data`: the dataset.
    - `solver`: a configured solver, such as `kx.Eigh()`; `kx.Cholesky()` if not given, O(n³).
    - `throw`: raise `FailedError` if the system cannot be solved; with `False` the status is in `result`. Inside `jit`,
      `grad` and `vmap` no error is raised.

    **Returns:**

    A `Conditioned`; for a machine of `kx.learners`, its own class of results. If the solver keeps dense
    matrices that do not fit into the available memory, `MemoryError` is raised before anything is allocated; see
    `kx.suggest_solver`.
    """
    check_model_and_data(model, data, "condition")
    if solver is not None and not isinstance(solver, AbstractSolver):
        raise TypeError(f"solver must be a configured instance, such as kx.Eigh(), got {solver!r}.")
    solver = Cholesky() if solver is None else solver
    check_solver(model, data, solver)
    check_memory(model, data, solver, "condition")
    run = functools.partial(condition_compiled, model) if is_traced((model, data, solver)) else model.conditioned_now
    conditioned = with_threads_for(solver.largest_matrix(data.n), run, data, solver)
    if throw:
        throw_unless(("several_modes",), conditioned.result, f"conditioning{_how_it_went(conditioned)}")
    return conditioned


def _how_it_went(conditioned: Any) -> str:
    """Steps and residual of an iterative solve, for the message of a failure."""
    solution = getattr(conditioned, "solution", None)
    steps = getattr(solution, "steps", 0)
    if solution is None or not is_concrete(steps) or np.ndim(steps) > 0 or int(steps) == 0:
        return ""
    remedy = ""
    if result_name(conditioned.result) == "max_steps_reached":
        remedy = "; a preconditioner of higher rank helps, such as kx.CG(kx.LowRank(2000))"
    return f" ({int(steps)} steps, relative residual {float(solution.residual):.1e}{remedy})"


def settled(solver: AbstractSolver, model: AbstractModel, data: Data, part: int | None = None) -> AbstractSolver:
    """The solver with its data-dependent choices made for this model and data. `fit` calls it in each round.

    **Arguments:**

    - `solver`: a solver.
    - `model`, `data`: the model and the dataset.
    - `part`: about how many random rows are enough for an estimate of the likelihood; all rows if not given.

    **Returns:**

    A solver; the same one if it makes no such choices.
    """
    if not has_choices(solver):
        return solver
    if trend_of(model) is not None or not isinstance(model, Model):
        # Free functions and modes are solved for, with all rows.
        part = None
    return _settled(solver, model, data, part)


def has_choices(solver: AbstractSolver) -> bool:
    """Whether the solver makes choices that depend on the data, by its method `settled`."""
    return type(solver).settled is not AbstractSolver.settled


@compiled
def _settled(solver: AbstractSolver, model: AbstractModel, data: Data, part: int | None) -> AbstractSolver:
    data, _ = data.finite_or_zero()
    kernel = as_dtype(model.kernel, data.dtype)
    if kernel.trend() is not None:
        kernel = kernel.definite(take(data.x), data.mask)
    return solver.settled(gram_of(kernel, data.x, data.mask), part)
