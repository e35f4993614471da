"""Fitting hyperparameters: minimise one scalar of a conditioned model."""

import dataclasses
import math
import os
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from kernax._arrays import is_concrete
from kernax._fingerprints import described, fingerprint
from kernax._programs import compiled
from kernax.data import Data
from kernax.fitting._checkpoint import FitCheckpoint
from kernax.fitting._convergence import Rules
from kernax.fitting._fitted import Fit, best_of
from kernax.fitting._lanes import run_traced
from kernax.fitting._loop import LoopState
from kernax.fitting._problem import Objective, Problem
from kernax.fitting._request import Request, identity_of
from kernax.fitting._rounds import best_lane, joined, run_rounds, values_of
from kernax.fitting._starts import starting_points
from kernax.fitting._stochastic import Stochastic
from kernax.model import AbstractModel, condition, settled
from kernax.model._checks import check_model_and_data, check_solver
from kernax.parameters import as_dtype, split
from kernax.selection import negative_log_marginal_likelihood
from kernax.solvers import AbstractSolver, Cholesky, Result, check_memory, throw_unless, warn_if_slow

M = TypeVar("M", bound=AbstractModel)


def fit(
    model: M | Fit[M],
    data: Data,
    *,
    objective: Objective = negative_log_marginal_likelihood,
    optimiser: optax.GradientTransformation | None = None,
    solver: AbstractSolver | None = None,
    max_steps: int = 500,
    gradient_tolerance: float | None = None,
    value_tolerance: float | None = None,
    patience: int | None = None,
    trainable: Any = None,
    restarts: int = 0,
    key: Key[Array, ""] | None = None,
    progress: bool = False,
    throw: bool = True,
    checkpoint: str | os.PathLike | None = None,
) -> Fit[M]:
    """Fit the model's free parameters: minimise `objective(condition(model, data)) - log_prior(model)`.

    The default objective gives maximum likelihood, or the mode of the posterior if the model has priors.

    The fit has converged when the curvature seen so far says that another step would gain less than `value_tolerance`, and
    no component of the gradient exceeds `gradient_tolerance`. For a likelihood both are in nats, so the offset and the scale
    of the targets do not matter. For other objectives they are relative to the best value. The best finite point is
    returned.

    A solver that chooses neighbours or inducing rows (`kx.Vecchia()`, `kx.LowRank()`) repeats its choice a few times, with
    the parameters reached so far, and the fit continues with the new choice. `Fit.num_refreshes` says how often.

    Compiled programs are reused for the same shapes, settings, and objective and optimiser objects, so make an optimiser
    once, not in every call. `fit` works inside `jit` and `vmap`, where it never raises for numerical reasons. It has no
    derivative itself. Ctrl-C returns the best point so far.

    **Arguments:**

    - `model`: where the fit starts. A `Fit` is continued from its end. With the same optimiser and the same free parameters
      the state of the optimiser is kept too (moments, curvature, its place in a schedule), so that two short fits with an
      optax optimiser make the same steps as one long fit. (The default schedule of a `Stochastic` objective starts again.)
    - `data`: the dataset.
    - `objective`: a function of a `Conditioned` that returns the scalar to minimise; the negative log marginal likelihood by
      default. Wrap it in `kx.fitting.Stochastic` if it is random at every step.
    - `optimiser`: any optax optimiser; L-BFGS if `None`.
    - `solver`: how to condition; `kx.Cholesky()` if `None`. With more than 5,000 rows a dense solver takes minutes, and a
      `kx.solvers.SlowSolverWarning` is given.
    - `max_steps`: the maximum number of evaluations. With a solver that repeats its choice, this applies to the last round.
    - `gradient_tolerance`: the largest component that the gradient may have at convergence. If `None`: 1e-3 for likelihoods
      and 1e-5 for other objectives; in float32 0.1 and 1e-3; 0.1 for likelihoods with a solver that repeats its choice.
    - `value_tolerance`: the gain from another step below which the fit has converged. If `None`: 1e-6 for likelihoods and
      1e-8 for other objectives; in float32 1e-4 and 1e-5; 1e-3 for likelihoods with a solver that repeats its choice.
    - `patience`: stop after this many steps without progress, that is, steps that together gained less than
      `value_tolerance`. If `None`: 20, or 100 with your own optimiser.
    - `trainable`: which parameters are fitted, as a tree of booleans in the shape of the model, from `kx.freeze`; all
      parameters if `None`.
    - `restarts`: the number of additional starts, drawn from the priors, or around the given model for parameters without a
      prior. The best result is returned.
    - `key`: random key for restarts and random objectives. The same key gives the same numbers.
    - `progress`: show the number of evaluations, the time of each, and how long the fit can take at most.
    - `throw`: raise `FailedError` if there is no usable answer at all. With `False` the status is in `Fit.result`.
    - `checkpoint`: a folder in which the state of the fit is saved every few seconds and at its end. The same call resumes
      an interrupted run with the same numbers, and returns at once if that run was complete. If the folder belongs to
      another model, dataset, objective, optimiser, solver, setting or version of kernax, `ValueError` is raised (see
      `kx.fit_many` for how functions are compared). Rows in a file are read once to compare them.

    **Returns:**

    A `Fit`.
    """
    earlier_fit, model = (model, model.model) if isinstance(model, Fit) else (None, model)
    check_model_and_data(model, data, "fit")
    solver = Cholesky() if solver is None else solver
    request = Request(
        objective=objective,
        optimiser=optimiser,
        solver=solver,
        trainable=trainable,
        restarts=restarts,
        key=key,
        max_steps=max_steps,
        gradient_tolerance=gradient_tolerance,
        value_tolerance=value_tolerance,
        patience=patience,
    )
    check_solver(model, data, solver)
    if isinstance(objective, Stochastic):
        objective.check(model, data, solver)
    in_batches = isinstance(objective, Stochastic) and objective.rows is not None
    if not in_batches:
        check_memory(model, data, solver, "fit", gradient=True)
    rules, key = request.rules(model, data.dtype, refreshes=solver.num_refreshes > 0), request.key_of_starts
    frees, held = prepared(model, trainable, data.dtype, restarts, key)
    before = None if earlier_fit is None else _resumable(earlier_fit.state, frees[0], rules)
    if rules.is_stochastic and optimiser is None:
        before = None  # the steps of its default optimiser fall to 0 within `max_steps`: a new schedule begins
    if before is not None and optimiser is not None:
        frees[0] = before.free  # L-BFGS goes on from the best point, with a new line
    # Inside a trace everything that was computed is traced, even if model and data are not.
    if any(not is_concrete(leaf) for leaf in jax.tree.leaves((frees, model, data)) if eqx.is_array(leaf)):
        problem = Problem(held, data, objective, settled(solver, model, data))
        if checkpoint is not None:
            raise ValueError(
                "a fit inside jit or vmap cannot have a checkpoint: leave out checkpoint=, or call kx.fit outside."
            )
        frees, problem = _without_derivative((frees, problem))
        return fit_of(run_traced(frees, problem, rules, key), problem.held, rules)
    if not in_batches:
        warn_if_slow(model, data, solver, progress=progress)
    kept = None
    if checkpoint is not None:
        about: dict[str, Any] = {"model": described(model)}
        more = {"kind": "fit", "device": jax.default_backend()} | identity_of(data, about)
        more |= {} if before is None else {"continued": fingerprint(jax.tree.leaves(before), "the fit that goes on")}
        identity, rules = request.identified(rules, model, data.dtype, about, **more)
        kept = FitCheckpoint(checkpoint, identity, about)
    *earlier, lanes = run_rounds(frees, held, data, request, rules, progress=progress, before=before, kept=kept)
    answer = with_own_history(fit_of(lanes, held, rules))
    last = dataclasses.replace(best_lane(lanes), history=jax.device_put(np.zeros(0, data.dtype)))
    firsts = earlier[0] if earlier else lanes
    ends = tuple(joined(state.best.free, held) for state in firsts) if len(firsts) > 1 else ()
    answer = dataclasses.replace(answer, data=data, solver=solver, state=last, start_models=ends)
    if earlier:
        answer = _with_rounds(answer, earlier)
    if throw:
        usable = ("max_steps_reached", "stalled", "diverged", "interrupted", "singular", "too_few_harmonics")
        throw_unless(usable if math.isfinite(float(answer.value)) else (), answer.result, "the fit")
    return answer


def _resumable(state: Any, free: AbstractModel, rules: Rules) -> LoopState | None:
    """The state at the end of an earlier fit, if it is one of the same free parameters and the same optimiser."""
    if state is None:
        return None
    params = eqx.filter(free, eqx.is_inexact_array)
    wanted: Any = (free, jax.eval_shape(rules.optimiser.init, params))
    given = (state.free, state.optimiser)
    same = jax.tree.structure(wanted) == jax.tree.structure(given)
    same = same and all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(*map(jax.tree.leaves, (wanted, given)), strict=True)
    )
    return state if same and (state.key is not None) == rules.is_stochastic else None


def with_own_history(answer: Fit[Any]) -> Fit[Any]:
    """The fit with its history cut to the steps made."""
    history = np.asarray(answer.history)[: int(answer.num_steps)]
    return eqx.tree_at(lambda a: a.history, answer, jax.device_put(history))


def _with_rounds(answer: Fit[Any], earlier: list[list[LoopState]]) -> Fit[Any]:
    """The fit with the history of all its rounds, and the status of its last solution, which the loop does not ask for."""
    best = [best_lane(lanes) for lanes in earlier]
    parts = [state.history[: int(state.step)] for state in best]
    assert answer.data is not None
    c = condition(answer.model, answer.data, answer.solver, throw=False)
    unusable = ~jnp.isfinite(answer.value) & (c.result != Result.successful)
    return dataclasses.replace(
        answer,
        history=jnp.concatenate([*parts, answer.history]),
        start_values=jnp.asarray(values_of(earlier[0]), answer.value.dtype),
        num_steps=answer.num_steps + sum(state.step for state in best),
        num_refreshes=len(earlier),
        jitter=jnp.maximum(answer.jitter, c.jitter),
        result=Result.where(unusable, c.result, answer.result),
    )


def _without_derivative(tree: Any) -> Any:
    """The tree. Raises `TypeError` with a remedy if it is being differentiated."""

    @jax.custom_jvp
    def same(leaves):
        return leaves

    @same.defjvp
    def refuse(primals, tangents):
        raise TypeError(
            "kx.fit has no derivative. Differentiate what comes after it (a quantity of the fitted model), take the model "
            "out of the derivative with jax.lax.stop_gradient before fitting, or differentiate the objective itself."
        )

    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(same(arrays), rest)


@compiled
def prepared(
    model: AbstractModel, trainable: AbstractModel | None, dtype: Any, restarts: int, key: Key[Array, ""] | None
) -> tuple[list[AbstractModel], AbstractModel]:
    """The starts, unconstrained, and what is held."""
    model = as_dtype(model, dtype)
    free, held = split(model, trainable)
    return starting_points(model, free, restarts, key), held


@compiled
def fit_of(lanes: list[LoopState], held: AbstractModel, rules: Rules) -> Fit[Any]:
    """The lane with the lowest finite value, as a `Fit`."""
    ended, history = best_of(lanes, held, rules)
    return Fit(**ended._asdict(), history=history)
