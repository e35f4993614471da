"""The one loop of fitting: evaluate, remember the best, ask the optimiser for the next point, stop when it is time."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from kernax.data import Data
from kernax.fitting._convergence import Ends, nothing_tried, ravel, sizes
from kernax.fitting._curvature import Curvature, inverse_hessian_times, pair_between, with_pair
from kernax.fitting._lbfgs import begun_anew
from kernax.fitting._packing import Packing, Vectors
from kernax.fitting._stochastic import Kept, Stochastic, key_of_steps
from kernax.model import AbstractModel, Conditioned, condition
from kernax.parameters import as_dtype, join, log_prior
from kernax.solvers import AbstractSolver, Result

Objective = Callable[[Any], Float[Array, ""]]


class AbstractProblem(eqx.Module):
    """A scalar of the free parameters, to be minimised."""

    held: eqx.AbstractVar[AbstractModel]

    @property
    @abc.abstractmethod
    def largest_matrix(self) -> int:
        """Rows of the largest matrix that an evaluation factorises."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The floating type of the value."""

    @abc.abstractmethod
    def sizes(self, free: AbstractModel) -> Float[Array, " k"]:
        """What counts as a step of ordinary length, for every free parameter."""

    @abc.abstractmethod
    def __call__(
        self, free: AbstractModel, key: Key[Array, ""] | None
    ) -> tuple[Float[Array, ""], tuple[Any, Float[Array, ""]]]:
        """The value, and beside it the factorisation's result and jitter. `key` is for objectives that are random."""


class Problem(AbstractProblem):
    """What `fit` minimises: `objective(condition(model, data)) - log_prior(model)`."""

    held: AbstractModel
    data: Data
    objective: Objective = eqx.field(static=True)
    solver: AbstractSolver

    @property
    def dtype(self):
        return self.data.dtype

    @property
    def largest_matrix(self):
        return self.solver.largest_matrix(self.data.n)

    def sizes(self, free):
        return sizes(free, self.data)

    def __call__(self, free, key):
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
        return value.astype(self.data.dtype), (source.result, source.jitter)


class Rules(eqx.Module):
    """How to walk, and when to stop."""

    optimiser: optax.GradientTransformation = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    gradient_tolerance: float = eqx.field(static=True)
    """Converged only if no component of the gradient exceeds this, in nats or relative to the best value."""
    value_tolerance: float = eqx.field(static=True)
    """Converged only if another step could gain no more than this, and a step that gained less made no progress."""
    patience: int = eqx.field(static=True)
    """How many steps without progress end the fit."""
    in_nats: bool = eqx.field(static=True)
    """Whether the objective is a negative log-likelihood. Its tolerances are absolute."""
    keep_history: bool = eqx.field(static=True, default=True)
    """Whether the value of every step is kept: of thousands of fits it would fill the memory."""
    keep: Kept = eqx.field(static=True, default="best")
    """Which point is the answer; see `Stochastic`."""
    over: int = eqx.field(static=True, default=1)
    """Of how many points it is the average."""
    is_stochastic: bool = eqx.field(static=True, default=False)
    """Whether the objective is random: then only the number of steps ends the fit."""


class Best(eqx.Module):
    """The best finite point so far. Among values that differ by rounding only, the one with the smaller gradient.

    Of a random objective it may be the last point, or the average of the last ones.
    """

    free: AbstractModel
    value: Float[Array, ""]
    gradient: Float[Array, " k"]
    """In the parameters' own units, without what would push a parameter out of its range."""
    gain: Float[Array, ""]
    """What another step could gain, as far as is known."""
    jitter: Float[Array, ""]

    @property
    def gradient_norm(self) -> Float[Array, ""]:
        """The largest component."""
        return jnp.max(jnp.abs(self.gradient), initial=0.0)


class LoopState(eqx.Module):
    """Everything the loop carries from turn to turn."""

    free: AbstractModel
    optimiser: PyTree
    best: Best
    curvature: Curvature
    """Learned between the best points, in the parameters' own units."""
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


def advance(state: LoopState, problem: AbstractProblem, rules: Rules, until: Int[Array, ""]) -> LoopState:
    """Go on until the loop stops by itself or `until` steps have been made in all."""
    # The history stays apart: a long one would be copied with every turn.
    packing = Packing.of(dataclasses.replace(state, history=state.history[:0]))
    own_units = problem.sizes(state.free)

    def apart(state: LoopState) -> tuple[Vectors, Array]:
        return packing.pack(dataclasses.replace(state, history=state.history[:0])), state.history

    def joined(carry: tuple[Vectors, Array]) -> LoopState:
        return dataclasses.replace(packing.unpack(carry[0]), history=carry[1])

    def goes_on(carry: tuple[Vectors, Array]) -> Bool[Array, ""]:
        state = packing.unpack(carry[0])
        return state.running & (state.step < until)

    def turn(carry: tuple[Vectors, Array]) -> tuple[Vectors, Array]:
        return apart(_turn(joined(carry), problem, rules, own_units))

    return joined(jax.lax.while_loop(goes_on, turn, apart(state)))


def _turn(state: LoopState, problem: AbstractProblem, rules: Rules, own_units: Float[Array, " k"]) -> LoopState:
    following, key = (None, None) if state.key is None else jax.random.split(state.key)
    evaluated = jax.value_and_grad(problem, has_aux=True)(state.free, key)
    moved = stepped(state, evaluated, lambda free: problem(free, key)[0], rules, own_units)
    return dataclasses.replace(moved, key=following)


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
    x, unravel = jax.flatten_util.ravel_pytree(state.free)
    ends = Ends.of(state.free)
    slopes = ends.inward(ravel(gradient), x) * own_units
    first = state.step == 0
    first_value = jnp.where(first, value, state.first_value)
    first_status = Result.where(first, status, state.first_status)

    if rules.keep == "best":
        best, curvature, better = _compared(state, value, slopes, jitter, own_units)
    else:
        best, curvature, better = _averaged(state, value, slopes, jitter, rules.over), state.curvature, jnp.asarray(True)
    scale = _scale(best, first_value, rules)
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


def _averaged(
    state: LoopState, value: Float[Array, ""], slopes: Float[Array, " k"], jitter: Float[Array, ""], over: int
) -> Best:
    """The mean of about the last `over` points, with their values and slopes: of 1, the last. One without a value is left
    out."""
    finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(slopes))
    share = 1.0 / jnp.minimum(state.step + 1, over).astype(value.dtype)
    share = jnp.where(jnp.isfinite(state.best.value), share, 1.0)
    new = Best(state.free, value, slopes, jnp.zeros_like(value), jitter)

    def moved(old: Array, new: Array) -> Array:
        # With a share of 1 the old is not looked at: it may be infinite.
        mixed = jnp.where(share == 1.0, new, old + share.astype(old.dtype) * (new - old))
        return jnp.where(finite, mixed, old)

    return jax.tree.map(moved, state.best, new)


def _compared(
    state: LoopState, value: Float[Array, ""], slopes: Float[Array, " k"], jitter: Float[Array, ""], own_units: Array
) -> tuple[Best, Curvature, Bool[Array, ""]]:
    """The best point with this one, the curvature with the step between them, and whether this one is better."""
    old = state.best
    norm, rounding = jnp.max(jnp.abs(slopes), initial=0.0), 10 * jnp.finfo(value.dtype).eps * jnp.abs(old.value)
    better = (value < old.value - rounding) | ((value <= old.value + rounding) & (norm < old.gradient_norm))
    better = better & jnp.isfinite(value) & jnp.isfinite(norm)
    here, there = ravel(state.free) / own_units, ravel(old.free) / own_units
    pair = pair_between(here, slopes, there, old.gradient)
    curvature = with_pair(state.curvature, pair, better & jnp.isfinite(old.value))
    gain = 0.5 * jnp.vdot(slopes, inverse_hessian_times(slopes, curvature)).astype(value.dtype)
    gain = jnp.where(gain >= 0, gain, jnp.inf)  # rounding has spoilt the curvature
    new = Best(state.free, value, slopes, gain, jitter)
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), new, old), curvature, better


def _scale(best: Best, first_value: Float[Array, ""], rules: Rules) -> Float[Array, ""]:
    """What the tolerances are relative to: one nat, or the best value; at the least the rounding of the first one."""
    if rules.in_nats:
        return jnp.ones_like(best.value)
    return jnp.abs(best.value) + jnp.finfo(best.value.dtype).eps * jnp.abs(first_value)


def converged(best: Best, first_value: Float[Array, ""], rules: Rules, slack: float = 1.0) -> Bool[Array, ""]:
    """Whether nothing is left to gain at the best point, up to a factor `slack`."""
    limit = slack * _scale(best, first_value, rules)
    flat = best.gradient_norm <= rules.gradient_tolerance * limit
    return jnp.isfinite(best.value) & flat & (best.gain <= rules.value_tolerance * limit)


def outcome(state: LoopState, rules: Rules) -> Any:
    """How the loop ended; `interrupted` if it had not."""
    out_of_patience = state.idle >= rules.patience
    far_above = state.last_value - state.best.value > jnp.abs(state.best.value) + rules.in_nats
    ended = Result.where(~jnp.isfinite(state.last_value) | far_above, Result.diverged, Result.stalled)
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
