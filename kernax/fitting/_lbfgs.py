"""L-BFGS with a line search, as an optax optimiser that needs exactly one evaluation a turn.

`optax.lbfgs` runs its line search to the end inside one update, with evaluations of its own: in a batch every lane then
waits for the slowest search, and the objective is compiled several times over. Here each call of `update` receives the
value and gradient at the point it asked for, and answers with the next point to look at, whether that is a further trial
along the present line or the start of a new one. So it sits in the same loop as any other optax optimiser.
"""

import functools
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

_DECREASE, _CURVATURE = 1e-4, 0.9
_LONGEST_FIRST_TRIAL = 4.0
"""In the largest component: a factor of e⁴ in a parameter walked in its logarithm."""


class _Point(NamedTuple):
    """A point on the line: how far along, value, slope, gradient."""

    step: Float[Array, ""]
    value: Float[Array, ""]
    slope: Float[Array, ""]
    gradient: Float[Array, " k"]


class _State(NamedTuple):
    started: Bool[Array, ""]
    anchor: Float[Array, " k"]
    origin: _Point
    """The line's start: step 0."""
    direction: Float[Array, " k"]
    trial: Float[Array, ""]
    low: _Point
    """The best point of the line so far that decreased the value."""
    high: _Point
    """The other end of the bracket; its step is ∞ while there is none."""
    num_trials: Int[Array, ""]
    num_resets: Int[Array, ""]
    steps: Float[Array, "m k"]
    changes: Float[Array, "m k"]
    num_pairs: Int[Array, ""]


@functools.cache
def lbfgs(memory_size: int = 10, max_trials: int = 15) -> optax.GradientTransformationExtraArgs:
    """Limited-memory BFGS with a strong-Wolfe line search; `update` wants `value=`, the objective at `params`.

    Cached, so that equal settings are the same object and compiled programs are found again.
    """

    def init(params):
        x, _ = jax.flatten_util.ravel_pytree(params)
        zero, vector = jnp.zeros((), x.dtype), jnp.zeros_like(x)
        nowhere = _Point(zero, zero, zero, vector)
        pairs = jnp.zeros((memory_size, x.size), x.dtype)
        count = jnp.zeros((), jnp.int32)
        return _State(
            jnp.asarray(False), vector, nowhere, vector, zero, nowhere, nowhere, count, count, pairs, pairs, count
        )

    def update(updates, state: _State, params=None, *, value, **extra):
        del extra
        if params is None:
            raise ValueError("lbfgs needs the parameters: update(gradient, state, params, value=value).")
        gradient, _ = jax.flatten_util.ravel_pytree(updates)
        x, unravel = jax.flatten_util.ravel_pytree(params)
        here = _Point(state.trial, value.astype(x.dtype), jnp.vdot(gradient, state.direction), gradient)
        searched, done, exhausted = _search(state, here, max_trials)
        # Where a search ends without the Wolfe conditions, its best point serves if it is any better than the start.
        use_low = ~done & exhausted & (searched.low.step > 0)
        reset = ~done & exhausted & ~use_low & state.started
        reached = _choose(done, here, searched.low)
        new_line = ~state.started | done | use_low
        reached = _choose(state.started, reached, here)
        anchor = jnp.where(state.started, state.anchor + reached.step * state.direction, x)
        moved = _moved(searched, anchor, reached, state.started)
        again = _from_scratch(searched)
        next_state = _choose(new_line, moved, _choose(reset, again, searched))
        target = next_state.anchor + next_state.trial * next_state.direction
        return unravel(target - x), next_state

    return optax.GradientTransformationExtraArgs(init, update)


def _search(state: _State, here: _Point, max_trials: int) -> tuple[_State, Array, Array]:
    """Judge the trial `here`: whether the line is done, and if not, a smaller bracket and the next trial in it."""
    origin, low, high = state.origin, state.low, state.high
    finite = jnp.isfinite(here.value) & jnp.all(jnp.isfinite(here.gradient))
    # Close to the optimum rounding hides the decrease; a value as low and a smaller slope are then as good (Hager, Zhang).
    rounding = 10 * jnp.finfo(here.value.dtype).eps * jnp.abs(origin.value)
    decreased = here.value <= origin.value + _DECREASE * here.step * origin.slope
    decreased |= (here.value <= origin.value + rounding) & (here.slope <= (2 * _DECREASE - 1) * origin.slope)
    decreased &= finite
    done = state.started & decreased & (jnp.abs(here.slope) <= -_CURVATURE * origin.slope)

    too_far = ~decreased | ((low.step > 0) & (here.value >= low.value))
    uphill = here.slope * jnp.where(jnp.isfinite(high.step), high.step - low.step, 1.0) >= 0
    here_or_worst = here._replace(value=jnp.where(finite, here.value, jnp.inf))
    new_high = _choose(too_far, here_or_worst, _choose(uphill, low, high))
    new_low = _choose(too_far, low, here)

    bracketed = jnp.isfinite(new_high.step)
    between = _interpolate(new_low, new_high)
    beyond = _extrapolate(low, here)
    trial = jnp.where(bracketed, between, beyond)
    num_trials = state.num_trials + 1
    narrow = bracketed & (
        jnp.abs(new_high.step - new_low.step) <= 1e-9 * jnp.maximum(jnp.abs(new_high.step), jnp.abs(new_low.step))
    )
    exhausted = (num_trials >= max_trials) | narrow
    searched = state._replace(low=new_low, high=new_high, trial=trial, num_trials=num_trials)
    return searched, done, exhausted


def _interpolate(low: _Point, high: _Point) -> Float[Array, ""]:
    """The minimum of the cubic through both ends, kept off them; a tenth of the way to an end without a finite value."""
    width = high.step - low.step
    safe = jnp.where(width == 0, 1.0, width)
    a = low.slope + high.slope - 3.0 * (high.value - low.value) / safe
    b = jnp.sqrt(jnp.maximum(a * a - low.slope * high.slope, 0.0)) * jnp.sign(width)
    bottom = high.slope - low.slope + 2.0 * b
    share = 1.0 - (high.slope + b - a) / jnp.where(bottom == 0, 1.0, bottom)
    usable = jnp.isfinite(share) & (bottom != 0)
    share = jnp.where(usable, jnp.clip(share, 0.1, 0.9), 0.5)
    return low.step + jnp.where(jnp.isfinite(high.value), share, 0.1) * width


def _extrapolate(low: _Point, here: _Point) -> Float[Array, ""]:
    """Where the slope would vanish if it went on changing as it did, between 1.5 and 8 times as far."""
    change = low.slope - here.slope
    ahead = here.step + (here.step - low.step) * here.slope / jnp.where(change == 0, -1.0, change)
    ahead = jnp.where(jnp.isfinite(ahead) & (change < 0), ahead, 4.0 * here.step)
    return jnp.clip(ahead, 1.5 * here.step, 8.0 * here.step)


def _moved(state: _State, anchor: Float[Array, " k"], reached: _Point, is_step: Bool[Array, ""]) -> _State:
    """A new line from the point reached, along the quasi-Newton direction there."""
    step = anchor - state.anchor
    change = reached.gradient - state.origin.gradient
    curvature = jnp.vdot(step, change)
    eps = jnp.finfo(step.dtype).eps
    keep = is_step & (curvature > eps * jnp.linalg.norm(step) * jnp.linalg.norm(change)) & jnp.isfinite(curvature)
    steps = jnp.where(keep, jnp.roll(state.steps, -1, axis=0).at[-1].set(step), state.steps)
    changes = jnp.where(keep, jnp.roll(state.changes, -1, axis=0).at[-1].set(change), state.changes)
    num_pairs = jnp.where(keep, jnp.minimum(state.num_pairs + 1, steps.shape[0]), state.num_pairs)
    newton = _two_loops(reached.gradient, steps, changes, num_pairs)
    use_newton = (num_pairs > 0) & (jnp.vdot(newton, reached.gradient) < 0) & jnp.all(jnp.isfinite(newton))
    direction = jnp.where(use_newton, newton, _steepest(reached.gradient))
    line = state._replace(
        started=jnp.asarray(True),
        steps=steps,
        changes=changes,
        num_pairs=jnp.where(use_newton, num_pairs, 0),
        num_resets=jnp.zeros_like(state.num_resets),
    )
    return _on_line(line, anchor, reached.value, reached.gradient, direction)


def _from_scratch(state: _State) -> _State:
    """The same start again along the steepest descent, more cautiously each time."""
    caution = 0.1 ** (state.num_resets + 1).astype(state.anchor.dtype)
    line = state._replace(num_pairs=jnp.zeros_like(state.num_pairs), num_resets=state.num_resets + 1)
    return _on_line(line, state.anchor, state.origin.value, state.origin.gradient, caution * _steepest(state.origin.gradient))


def _on_line(state: _State, anchor: Array, value: Array, gradient: Array, direction: Array) -> _State:
    zero = jnp.zeros((), anchor.dtype)
    origin = _Point(zero, value, jnp.vdot(gradient, direction), gradient)
    longest = jnp.max(jnp.abs(direction), initial=0.0)
    trial = jnp.where(longest > _LONGEST_FIRST_TRIAL, _LONGEST_FIRST_TRIAL / longest, 1.0)
    return state._replace(
        anchor=anchor,
        origin=origin,
        direction=direction,
        trial=trial,
        low=origin,
        high=origin._replace(step=zero + jnp.inf),
        num_trials=jnp.zeros_like(state.num_trials),
    )


def _steepest(gradient: Float[Array, " k"]) -> Float[Array, " k"]:
    """Downhill, no further than 1: a factor of e in a parameter walked in its logarithm."""
    finite = jnp.where(jnp.isfinite(gradient), gradient, 0.0)
    return -finite / jnp.maximum(1.0, jnp.linalg.norm(finite))


def _two_loops(
    gradient: Float[Array, " k"], steps: Float[Array, "m k"], changes: Float[Array, "m k"], num_pairs: Int[Array, ""]
) -> Float[Array, " k"]:
    """`-H gradient` for the inverse Hessian H that the kept pairs (the last `num_pairs`) imply."""
    m = steps.shape[0]
    kept = jnp.arange(m) >= m - num_pairs
    curvatures = jnp.sum(steps * changes, axis=1)
    weights = jnp.where(kept, 1.0 / jnp.where(kept, curvatures, 1.0), 0.0)
    direction, shares = gradient, [jnp.zeros((), gradient.dtype)] * m
    for i in reversed(range(m)):
        shares[i] = weights[i] * jnp.vdot(steps[i], direction)
        direction = direction - shares[i] * changes[i]
    square = jnp.vdot(changes[-1], changes[-1])
    direction = direction * jnp.where((num_pairs > 0) & (square > 0), curvatures[-1] / jnp.where(square > 0, square, 1.0), 1.0)
    for i in range(m):
        direction = direction + (shares[i] - weights[i] * jnp.vdot(changes[i], direction)) * steps[i]
    return -direction


def _choose(condition: Array, a, b):
    return jax.tree.map(lambda p, q: jnp.where(condition, p, q), a, b)
