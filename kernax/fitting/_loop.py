"""The one loop of fitting: evaluate, remember the best, ask the optimiser for the next point, stop when it is time."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from kernax.data import Data
from kernax.fitting._programs import Packing, Vectors
from kernax.model import AbstractModel, condition
from kernax.parameters import as_dtype, join, log_prior
from kernax.solvers import AbstractSolver, Result

Objective = Callable[[Any], Float[Array, ""]]


class AbstractProblem(eqx.Module):
    """A scalar of the free parameters, to be minimised."""

    held: eqx.AbstractVar[AbstractModel]

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The floating type of the value."""

    @abc.abstractmethod
    def __call__(self, free: AbstractModel) -> tuple[Float[Array, ""], tuple[Any, Float[Array, ""]]]:
        """The value, and beside it the factorisation's result and jitter."""


class Problem(AbstractProblem):
    """What `fit` minimises: `objective(condition(model, data)) - log_prior(model)`."""

    held: AbstractModel
    data: Data
    objective: Objective = eqx.field(static=True)
    solver: AbstractSolver

    @property
    def dtype(self):
        return self.data.dtype

    def __call__(self, free):
        model = as_dtype(join(free, self.held), self.data.dtype)
        c = condition(model, self.data, self.solver, throw=False)
        value = self.objective(c) - log_prior(model).astype(self.data.dtype)
        return value.astype(self.data.dtype), (c.result, c.jitter)


class Rules(eqx.Module):
    """How to walk, and when to stop. "The scale" is `scale_of`."""

    optimiser: optax.GradientTransformation = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    gradient_tolerance: float = eqx.field(static=True)
    """Converged when no component of the gradient exceeds this times the scale."""
    value_tolerance: float = eqx.field(static=True)
    """A step whose progress is less than this times the scale counts as none."""
    patience: int = eqx.field(static=True)
    """How many steps without progress end the fit."""
    keep_history: bool = eqx.field(static=True, default=True)
    """Whether the value of every step is kept: of thousands of fits it would fill the memory."""


class Best(eqx.Module):
    """The best finite point so far."""

    free: AbstractModel
    value: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    jitter: Float[Array, ""]


class LoopState(eqx.Module):
    """Everything the loop carries from turn to turn."""

    free: AbstractModel
    optimiser: PyTree
    best: Best
    first_value: Float[Array, ""]
    first_status: Any
    last_value: Float[Array, ""]
    milestone: Float[Array, ""]
    """The best value when progress was last made."""
    idle: Int[Array, ""]
    """Steps since then."""
    step: Int[Array, ""]
    history: Float[Array, " steps"]
    running: Bool[Array, ""]


def start(free: AbstractModel, dtype: Any, rules: Rules) -> LoopState:
    """The state before the first evaluation."""
    unknown = jnp.full((), jnp.inf, dtype)
    best = Best(free, unknown, unknown, jnp.zeros((), dtype))
    count = jnp.zeros((), jnp.int32)
    return LoopState(
        free=free,
        optimiser=rules.optimiser.init(eqx.filter(free, eqx.is_inexact_array)),  # pyright: ignore[reportArgumentType]
        best=best,
        first_value=unknown,
        first_status=Result.where(jnp.asarray(True), Result.successful, Result.empty),
        last_value=unknown,
        milestone=unknown,
        idle=count,
        step=count,
        history=jnp.full(rules.max_steps if rules.keep_history else 0, jnp.nan, dtype),
        running=jnp.asarray(rules.max_steps > 0),
    )


def advance(state: LoopState, problem: AbstractProblem, rules: Rules, until: Int[Array, ""]) -> LoopState:
    """Go on until the loop stops by itself or `until` steps have been made in all."""
    # The history stays apart: a long one would be copied with every turn.
    packing = Packing.of(dataclasses.replace(state, history=state.history[:0]))

    def apart(state: LoopState) -> tuple[Vectors, Array]:
        return packing.pack(dataclasses.replace(state, history=state.history[:0])), state.history

    def joined(carry: tuple[Vectors, Array]) -> LoopState:
        return dataclasses.replace(packing.unpack(carry[0]), history=carry[1])

    def goes_on(carry: tuple[Vectors, Array]) -> Bool[Array, ""]:
        state = packing.unpack(carry[0])
        return state.running & (state.step < until)

    def turn(carry: tuple[Vectors, Array]) -> tuple[Vectors, Array]:
        return apart(_turn(joined(carry), problem, rules))

    return joined(jax.lax.while_loop(goes_on, turn, apart(state)))


def _turn(state: LoopState, problem: AbstractProblem, rules: Rules) -> LoopState:
    (value, (status, jitter)), gradient = jax.value_and_grad(problem, has_aux=True)(state.free)
    norm = jnp.max(jnp.stack([jnp.max(jnp.abs(g), initial=0.0) for g in jax.tree.leaves(gradient)]))
    first = state.step == 0
    first_value = jnp.where(first, value, state.first_value)
    first_status = Result.where(first, status, state.first_status)

    better = jnp.isfinite(value) & jnp.isfinite(norm) & (value < state.best.value)
    candidate = Best(state.free, value, norm.astype(value.dtype), jitter)
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), candidate, state.best)

    scale = scale_of(best, first_value)
    progress = better & ~(state.milestone - value <= rules.value_tolerance * scale)
    milestone = jnp.where(progress, value, state.milestone)
    idle = jnp.where(progress, 0, state.idle + 1)

    updates, optimiser = optax.with_extra_args_support(rules.optimiser).update(
        gradient,  # pyright: ignore[reportArgumentType]
        state.optimiser,
        state.free,  # pyright: ignore[reportArgumentType]
        value=value,
        grad=gradient,
        value_fn=lambda free: problem(free)[0],
    )
    step = state.step + 1
    # A start without a finite value gives an optimiser nothing to go by.
    hopeless = first & ~jnp.isfinite(value)
    stop = converged(best, first_value, rules) | (idle >= rules.patience) | (step >= rules.max_steps) | hopeless
    return LoopState(
        free=optax.apply_updates(state.free, updates),  # pyright: ignore[reportArgumentType]
        optimiser=optimiser,
        best=best,
        first_value=first_value,
        first_status=first_status,
        last_value=value,
        milestone=milestone,
        idle=idle.astype(state.idle.dtype),
        step=step,
        history=state.history.at[state.step].set(value) if rules.keep_history else state.history,
        running=~stop,
    )


def scale_of(best: Best, first_value: Float[Array, ""]) -> Float[Array, ""]:
    """The objective's own size, so that tolerances mean the same in every unit: the best value, and (lest that be 0 by
    chance) a hundredth of the way come so far."""
    made = 0.01 * jnp.abs(first_value - best.value)
    return jnp.abs(best.value) + jnp.where(jnp.isfinite(made), made, 0.0)


def converged(best: Best, first_value: Float[Array, ""], rules: Rules, slack: float = 1.0) -> Bool[Array, ""]:
    """Whether the gradient at the best point is small, up to a factor `slack`."""
    limit = slack * rules.gradient_tolerance * scale_of(best, first_value)
    return jnp.isfinite(best.value) & (best.gradient_norm <= limit)


def outcome(state: LoopState, rules: Rules) -> Any:
    """How the loop ended; `interrupted` if it had not."""
    out_of_patience = state.idle >= rules.patience
    scale = scale_of(state.best, state.first_value)
    lost = ~jnp.isfinite(state.last_value) | (state.last_value - state.best.value > scale)
    ended = Result.where(lost, Result.diverged, Result.stalled)
    # Values that no longer change, at a gradient that is nearly small enough: as far as the arithmetic goes.
    ended = Result.where(converged(state.best, state.first_value, rules, slack=100.0), Result.successful, ended)
    result = Result.where(out_of_patience, ended, Result.max_steps_reached)
    result = Result.where(state.running, Result.interrupted, result)
    result = Result.where(converged(state.best, state.first_value, rules), Result.successful, result)
    unusable = Result.where(state.first_status == Result.successful, Result.nonfinite, state.first_status)
    return Result.where(jnp.isfinite(state.best.value), result, unusable)
