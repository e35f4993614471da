"""The one loop of fitting: evaluate, remember the best, ask the optimiser for the next point, stop when it is time."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from kernax.fitting._convergence import (
    Best,
    Ends,
    Rules,
    averaged,
    compared,
    converged,
    nothing_tried,
    ravel,
    scale_of,
    sizes,
)
from kernax.fitting._curvature import Curvature
from kernax.fitting._lbfgs import begun_anew, once
from kernax.fitting._packing import Packing, Vectors
from kernax.fitting._problem import Problem
from kernax.fitting._stochastic import key_of_steps
from kernax.model import AbstractModel
from kernax.solvers import Result


class LoopState(eqx.Module):
    """Everything the loop carries from turn to turn."""

    free: AbstractModel
    optimiser: PyTree
    best: Best
    curvature: Curvature
    """Learned between the best points, in the parameters' own units."""
    first_value: Float[Array, ""]
    first_status: Any
    """That of the first evaluation, unless a later one is `too_few_harmonics`: the wall at which a fit may end."""
    last_value: Float[Array, ""]
    milestone: Float[Array, ""]
    """The best value when progress was last made."""
    idle: Int[Array, ""]
    """Steps since then."""
    step: Int[Array, ""]
    history: Float[Array, " steps"]
    running: Bool[Array, ""]
    key: Key[Array, ""] | None
    """For the steps to come, if the objective is random."""


def start(
    free: AbstractModel,
    dtype: Any,
    rules: Rules,
    key: Key[Array, ""] | None = None,
    before: LoopState | None = None,
) -> LoopState:
    """The state before the first evaluation; with what was learned `before`, in a fit of a similar problem.

    `key` is that of the fit, for objectives that are random.
    """
    if rules.is_stochastic:
        key = key_of_steps(key) if before is None else before.key
    unknown = jnp.full((), jnp.inf, dtype)
    x, unravel = jax.flatten_util.ravel_pytree(free)
    free = unravel(Ends.of(free).inside(x))
    best = Best(free, unknown, jnp.full_like(x, jnp.inf), unknown, jnp.zeros((), dtype))
    count = jnp.zeros((), jnp.int32)
    optimiser = rules.optimiser.init(eqx.filter(free, eqx.is_inexact_array))  # pyright: ignore[reportArgumentType]
    return LoopState(
        free=free,
        optimiser=optimiser if before is None else begun_anew(before.optimiser),
        best=best,
        curvature=nothing_tried(x) if before is None else before.curvature,
        first_value=unknown,
        first_status=Result.where(jnp.asarray(True), Result.successful, Result.empty),
        last_value=unknown,
        milestone=unknown,
        idle=count,
        step=count,
        history=jnp.full(rules.max_steps if rules.keep_history else 0, jnp.nan, dtype),
        running=jnp.asarray(rules.max_steps > 0),
        key=key if rules.is_stochastic else None,
    )


def packing_of(state: LoopState) -> Packing:
    """How such a state is packed. The history has a vector of its own, the last: a long one would be copied every turn."""
    return Packing.of(state, alone=state.history)


def advance(state: Vectors, packing: Packing, problem: Problem, rules: Rules, until: Int[Array, ""]) -> Vectors:
    """Go on, with a packed state, until the loop stops by itself or `until` steps have been made in all."""
    own_units = sizes(packing.unpack(state).free, problem.data)

    def goes_on(packed: Vectors) -> Bool[Array, ""]:
        state = packing.unpack(packed)
        return state.running & (state.step < until)

    def turn(packed: Vectors) -> Vectors:
        state = packing.unpack(packed)
        following, key = (None, None) if state.key is None else jax.random.split(state.key)
        evaluated = jax.value_and_grad(problem, has_aux=True)(state.free, key)
        moved = stepped(state, evaluated, lambda free: problem(free, key)[0], rules, own_units)
        return packing.pack(dataclasses.replace(moved, key=following))

    return jax.lax.while_loop(goes_on, turn, state)


Evaluated = tuple[tuple[Float[Array, ""], tuple[Any, Float[Array, ""]]], AbstractModel]
"""The value, the factorisation's result and jitter, and the gradient."""


def stepped(
    state: LoopState,
    evaluated: Evaluated,
    value_at: Callable[[AbstractModel], Float[Array, ""]],
    rules: Rules,
    own_units: Float[Array, " k"],
) -> LoopState:
    """The state after one evaluation, at `state.free`. Few optimisers ask for further values, by `value_at`."""
    (value, (status, jitter)), gradient = evaluated
    value, jitter = once(value, jitter)
    x, unravel = jax.flatten_util.ravel_pytree(state.free)
    ends = Ends.of(state.free)
    slopes = ends.inward(ravel(gradient), x) * own_units
    first = state.step == 0
    first_value = jnp.where(first, value, state.first_value)
    first_status = Result.where(first | (status == Result.too_few_harmonics), status, state.first_status)

    here = Best(state.free, value, slopes, jnp.zeros_like(value), jitter)
    if rules.keep == "best":
        best, curvature, better = compared(state.best, here, state.curvature, own_units)
    else:
        best, curvature, better = averaged(state.best, here, state.step, rules.over), state.curvature, jnp.asarray(True)
    scale = scale_of(best, first_value, rules)
    progress = better & ~(state.milestone - value <= rules.value_tolerance * scale)
    milestone = jnp.where(progress, value, state.milestone)
    idle = jnp.where(progress, 0, state.idle + 1)

    # The optimiser walks in the parameters' own units, in which steps of length 1 suit all of them.
    updates, optimiser = optax.with_extra_args_support(rules.optimiser).update(
        unravel(slopes),
        state.optimiser,
        unravel(x / own_units),
        value=value,
        grad=unravel(slopes),
        # optax hands what its optimisers do not know to this function.
        value_fn=lambda free, ends=None: value_at(unravel(ravel(free) * own_units)),
        ends=(ends.low / own_units, ends.high / own_units),
    )
    free = unravel(ends.inside(x + ravel(updates) * own_units))
    step = state.step + 1
    # A start without a finite value gives an optimiser nothing to go by.
    hopeless = first & ~jnp.isfinite(value)
    stop = (step >= rules.max_steps) | hopeless
    if not rules.is_stochastic:
        stop = stop | converged(best, first_value, rules) | (idle >= rules.patience)
    return LoopState(
        free=free,
        optimiser=optimiser,
        best=best,
        curvature=curvature,
        first_value=first_value,
        first_status=first_status,
        last_value=value,
        milestone=milestone,
        idle=idle.astype(state.idle.dtype),
        step=step,
        history=state.history.at[state.step].set(value) if rules.keep_history else state.history,
        running=~stop,
        key=state.key,
    )


def outcome(state: LoopState, rules: Rules) -> Any:
    """How the loop ended; `interrupted` if it had not."""
    out_of_patience = state.idle >= rules.patience
    far_above = state.last_value - state.best.value > jnp.abs(state.best.value) + rules.in_nats
    ended = Result.where(~jnp.isfinite(state.last_value) | far_above, Result.diverged, Result.stalled)
    ended = Result.where(state.first_status == Result.too_few_harmonics, state.first_status, ended)
    # Values that no longer change, with nearly nothing to gain: as far as the arithmetic goes.
    ended = Result.where(converged(state.best, state.first_value, rules, slack=10.0), Result.successful, ended)
    result = Result.where(out_of_patience, ended, Result.max_steps_reached)
    result = Result.where(state.running, Result.interrupted, result)
    result = Result.where(converged(state.best, state.first_value, rules), Result.successful, result)
    if rules.is_stochastic:
        ended = Result.where(jnp.isfinite(state.last_value), Result.successful, Result.diverged)
        result = Result.where(state.running, Result.interrupted, ended)
    unusable = Result.where(state.first_status == Result.successful, Result.nonfinite, state.first_status)
    return Result.where(jnp.isfinite(state.best.value), result, unusable)
