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


class _Line(NamedTuple):
    """The line being searched, as numbers along it: steps, values and slopes."""

    trial: Float[Array, ""]
    """How far along the line the point now asked for lies."""
    value: Float[Array, ""]
    slope: Float[Array, ""]
    """Value and slope at the line's start."""
    low_step: Float[Array, ""]
    low_value: Float[Array, ""]
    low_slope: Float[Array, ""]
    """The best point so far that decreased the value; the start, while there is none."""
    high_step: Float[Array, ""]
    high_value: Float[Array, ""]
    high_slope: Float[Array, ""]
    """The other end of the bracket; its step is ∞ while there is none."""
    num_trials: Float[Array, ""]
    num_resets: Float[Array, ""]


class _State(NamedTuple):
    started: Bool[Array, ""]
    line: Float[Array, " 11"]
    """A `_Line` as one vector: eleven numbers of their own would each be compiled into a program of their own."""
    anchor: Float[Array, " k"]
    direction: Float[Array, " k"]
    anchor_gradient: Float[Array, " k"]
    low_gradient: Float[Array, " k"]
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
        vector, pairs = jnp.zeros_like(x), jnp.zeros((memory_size, x.size), x.dtype)
        line = jnp.zeros(len(_Line._fields), x.dtype)
        return _State(jnp.asarray(False), line, vector, vector, vector, vector, pairs, pairs, jnp.zeros((), jnp.int32))

    def update(updates, state: _State, params=None, *, value, **extra):
        del extra
        if params is None:
            raise ValueError("lbfgs needs the parameters: update(gradient, state, params, value=value).")
        gradient, _ = jax.flatten_util.ravel_pytree(updates)
        x, unravel = jax.flatten_util.ravel_pytree(params)
        line = _Line(*state.line)
        slope = jnp.vdot(gradient, state.direction)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        searched, done, new_low, exhausted = _search(line, value.astype(x.dtype), slope, finite, max_trials)

        # The next line starts here if this one is done (or none was begun), at the best point of a search that ended
        # without the Wolfe conditions, or else where this line started, downhill and more cautiously.
        here = ~state.started | done
        at_low = ~here & exhausted & (searched.low_step > 0)
        restart = ~here & exhausted & ~at_low
        new_line = here | at_low | restart
        low_gradient = jnp.where(new_low, gradient, state.low_gradient)
        taken = jnp.where(here, line.trial, jnp.where(at_low, searched.low_step, 0.0))
        base_value = jnp.where(here, value, jnp.where(at_low, searched.low_value, line.value))
        base_gradient = jnp.where(here, gradient, jnp.where(at_low, low_gradient, state.anchor_gradient))
        anchor = jnp.where(state.started, jnp.where(new_line, state.anchor + taken * state.direction, state.anchor), x)

        moved = state.started & (here | at_low)
        steps, changes, num_pairs = _remember(state, anchor - state.anchor, base_gradient - state.anchor_gradient, moved)
        num_pairs = jnp.where(restart, 0, num_pairs)
        num_resets = jnp.where(restart, line.num_resets + 1, jnp.where(new_line, 0.0, line.num_resets))
        newton = _two_loops(base_gradient, steps, changes, num_pairs)
        is_descent = (num_pairs > 0) & (jnp.vdot(newton, base_gradient) < 0)
        fresh = jnp.where(is_descent, newton, 0.1**num_resets * _steepest(base_gradient))
        direction = jnp.where(new_line, fresh, state.direction)

        longest = jnp.max(jnp.abs(direction), initial=0.0)
        first_trial = jnp.minimum(1.0, _LONGEST_FIRST_TRIAL / jnp.maximum(longest, _LONGEST_FIRST_TRIAL))
        base_slope = jnp.vdot(base_gradient, direction)
        zero, none = jnp.zeros((), x.dtype), jnp.full((), jnp.inf, x.dtype)
        begun = _Line(first_trial, base_value, base_slope, zero, base_value, base_slope, none, zero, zero, zero, num_resets)
        next_line = jnp.where(new_line, jnp.stack([v.astype(x.dtype) for v in begun]), jnp.stack(searched))
        next_state = _State(
            started=jnp.asarray(True),
            line=next_line,
            anchor=anchor,
            direction=direction,
            anchor_gradient=jnp.where(new_line, base_gradient, state.anchor_gradient),
            low_gradient=jnp.where(new_line, base_gradient, low_gradient),
            steps=steps,
            changes=changes,
            num_pairs=num_pairs,
        )
        return unravel(anchor + next_line[0] * direction - x), next_state

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _search(
    line: _Line, value: Float[Array, ""], slope: Float[Array, ""], finite: Bool[Array, ""], max_trials: int
) -> tuple[_Line, Bool[Array, ""], Bool[Array, ""], Bool[Array, ""]]:
    """Judge the trial: the line with a smaller bracket and its next trial, whether the line is done, whether this was the
    best point of it, and whether it is no use going on."""
    # Close to the optimum rounding hides the decrease; a value as low and a smaller slope are then as good (Hager, Zhang).
    rounding = 10 * jnp.finfo(value.dtype).eps * jnp.abs(line.value)
    decreased = value <= line.value + _DECREASE * line.trial * line.slope
    decreased |= (value <= line.value + rounding) & (slope <= (2 * _DECREASE - 1) * line.slope)
    decreased &= finite
    done = decreased & (jnp.abs(slope) <= -_CURVATURE * line.slope)

    too_far = ~decreased | ((line.low_step > 0) & (value >= line.low_value))
    towards_high = jnp.where(jnp.isfinite(line.high_step), line.high_step - line.low_step, 1.0)
    turned = ~too_far & (slope * towards_high >= 0)
    here = (line.trial, jnp.where(finite, value, jnp.inf), slope)
    low = (line.low_step, line.low_value, line.low_slope)
    high = (line.high_step, line.high_value, line.high_slope)
    new_high = [jnp.where(too_far, h, jnp.where(turned, lo, hi)) for h, lo, hi in zip(here, low, high, strict=True)]
    new_low = [jnp.where(too_far, lo, h) for h, lo in zip(here, low, strict=True)]

    bracketed = jnp.isfinite(new_high[0])
    trial = jnp.where(bracketed, _interpolate(*new_low, *new_high), _extrapolate(line, slope))
    width = jnp.abs(new_high[0] - new_low[0])
    narrow = bracketed & (width <= 1e-9 * jnp.maximum(jnp.abs(new_high[0]), jnp.abs(new_low[0])))
    num_trials = line.num_trials + 1
    searched = _Line(*[trial, line.value, line.slope, *new_low, *new_high, num_trials, line.num_resets])
    return searched, done, ~too_far, (num_trials >= max_trials) | narrow


def _interpolate(low, low_value, low_slope, high, high_value, high_slope) -> Float[Array, ""]:
    """The minimum of the cubic through both ends, kept off them; a tenth of the way to an end without a finite value."""
    width = high - low
    a = low_slope + high_slope - 3.0 * (high_value - low_value) / jnp.where(width == 0, 1.0, width)
    b = jnp.sqrt(jnp.maximum(a * a - low_slope * high_slope, 0.0)) * jnp.sign(width)
    bottom = high_slope - low_slope + 2.0 * b
    share = 1.0 - (high_slope + b - a) / jnp.where(bottom == 0, 1.0, bottom)
    share = jnp.where(jnp.isfinite(share) & (bottom != 0), jnp.clip(share, 0.1, 0.9), 0.5)
    return low + jnp.where(jnp.isfinite(high_value), share, 0.1) * width


def _extrapolate(line: _Line, slope: Float[Array, ""]) -> Float[Array, ""]:
    """Where the slope would vanish if it went on changing as it did, between 1.5 and 8 times as far."""
    change = line.low_slope - slope
    ahead = line.trial + (line.trial - line.low_step) * slope / jnp.where(change == 0, -1.0, change)
    ahead = jnp.where(jnp.isfinite(ahead) & (change < 0), ahead, 4.0 * line.trial)
    return jnp.clip(ahead, 1.5 * line.trial, 8.0 * line.trial)


def _remember(
    state: _State, step: Float[Array, " k"], change: Float[Array, " k"], moved: Bool[Array, ""]
) -> tuple[Array, Array, Array]:
    """The kept pairs with this one added, if it has the curvature that keeps the inverse Hessian positive."""
    curvature = jnp.vdot(step, change)
    large = jnp.finfo(step.dtype).eps * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    keep = moved & (curvature > large)
    steps = jnp.where(keep, jnp.concatenate([state.steps[1:], step[None]]), state.steps)
    changes = jnp.where(keep, jnp.concatenate([state.changes[1:], change[None]]), state.changes)
    return steps, changes, jnp.minimum(state.num_pairs + keep, steps.shape[0])


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

    def backwards(direction, pair):
        step, change, weight = pair
        share = weight * jnp.vdot(step, direction)
        return direction - share * change, share

    def forwards(direction, pair):
        step, change, weight, share = pair
        return direction + (share - weight * jnp.vdot(change, direction)) * step, None

    direction, shares = jax.lax.scan(backwards, gradient, (steps, changes, weights), reverse=True)
    square = jnp.sum(changes[-1] ** 2)
    direction = direction * jnp.where(num_pairs > 0, curvatures[-1] / jnp.where(num_pairs > 0, square, 1.0), 1.0)
    direction, _ = jax.lax.scan(forwards, direction, (steps, changes, weights, shares))
    return -direction
