"""L-BFGS with a line search, as an optax optimiser that needs exactly one evaluation a turn.

`optax.lbfgs` runs its line search to the end inside one update, with evaluations of its own: in a batch every lane then
waits for the slowest search, and the objective is compiled several times over. Here each call of `update` receives the
value and gradient at the point it asked for, and answers with the next point to look at, whether that is a further trial
along the present line or the start of a new one. So it sits in the same loop as any other optax optimiser.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from kernax.fitting._curvature import Curvature, inverse_hessian_times, no_curvature, pair_between, with_pair

_DECREASE, _CURVATURE = 1e-4, 0.9
_LONGEST_FIRST_TRIAL = 4.0
"""In the largest component: a factor of e⁴ in a parameter walked in its logarithm."""
_GROWTH = 4.0
"""How much the inverse Hessian may grow with one step, also in directions that were not tried. Far from the optimum the
objective of data with a large offset bends a million times as much as near it. Steps would stay a millionth too short for
parameters that begin to matter later (the noise). It also saves a tenth of the steps of ordinary fits."""


class _Line(NamedTuple):
    """The line being searched. A point is its step along the line, the value there, and the slope.

    The state keeps it as one vector, and points are vectors too: XLA compiles a program for every array of a loop's state.
    """

    start: Float[Array, " 3"]
    """The start's value and slope; in place of its step, which is 0, the step of the point now asked for."""
    low: Float[Array, " 3"]
    """The best point so far that decreased the value; the start, while there is none."""
    high: Float[Array, " 3"]
    """The other end of the bracket; its step is ∞ while there is none."""
    num_trials: Float[Array, ""]
    num_resets: Float[Array, ""]

    @classmethod
    def of(cls, vector: Float[Array, " 11"]) -> "_Line":
        return cls(vector[:3], vector[3:6], vector[6:9], vector[9], vector[10])

    def vector(self) -> Float[Array, " 11"]:
        return jnp.concatenate([self.start, self.low, self.high, jnp.stack([self.num_trials, self.num_resets])])


class _State(NamedTuple):
    started: Bool[Array, ""]
    line: Float[Array, " 11"]
    anchor: Float[Array, " k"]
    """Where the line starts."""
    direction: Float[Array, " k"]
    anchor_gradient: Float[Array, " k"]
    low_gradient: Float[Array, " k"]
    curvature: Curvature


@functools.cache
def lbfgs(memory_size: int = 10, max_trials: int = 15) -> optax.GradientTransformationExtraArgs:
    """Limited-memory BFGS with a strong-Wolfe line search, as an optax optimiser.

    Each call of `update` evaluates nothing itself: it needs `value=`, the objective at `params`. The function is cached, so
    the same arguments return the same object, and compiled programs are reused.

    **Arguments:**

    - `memory_size`: how many of the last steps are kept to estimate the curvature. With at most twice as many parameters,
      the full inverse Hessian is kept instead (BFGS).
    - `max_trials`: the most evaluations in one line search.

    **Returns:**

    An `optax.GradientTransformationExtraArgs`.
    """

    # Partial functions, not nested ones: they can be sent to other processes.
    init, update = functools.partial(_init, memory_size=memory_size), functools.partial(_update, max_trials=max_trials)
    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _init(params, memory_size: int) -> _State:
    x, _ = jax.flatten_util.ravel_pytree(params)
    vector, line = jnp.zeros_like(x), jnp.zeros(11, x.dtype)
    return _State(jnp.asarray(False), line, vector, vector, vector, vector, no_curvature(x, memory_size))


def _update(updates, state: _State, params=None, *, value, max_trials: int, ends=(-jnp.inf, jnp.inf), **extra):
    del extra
    if params is None:
        raise ValueError("lbfgs needs the parameters: update(gradient, state, params, value=value).")
    gradient, _ = jax.flatten_util.ravel_pytree(updates)
    x, unravel = jax.flatten_util.ravel_pytree(params)
    line = _Line.of(state.line)
    trial = jnp.stack([line.start[0], value.astype(x.dtype), jnp.vdot(gradient, state.direction)])
    finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
    longest = _longest_step(state.anchor, state.direction, ends)
    searched, done, new_low, exhausted = _search(line, trial, finite, max_trials, longest)

    # The next line starts here if this one is done (or none was begun), at the best point of a search that ended
    # without the Wolfe conditions, or else where this line started, downhill and more cautiously.
    here = ~state.started | done
    at_low = ~here & exhausted & (searched.low[0] > 0)
    restart = ~here & exhausted & ~at_low
    here, at_low, restart, new_low = once(here, at_low, restart, new_low)
    new_line = here | at_low | restart
    low_gradient = jnp.where(new_low, gradient, state.low_gradient)
    base = jnp.where(here, trial, jnp.where(at_low, searched.low, _at_step(line.start, 0.0)))
    base_gradient = jnp.where(here, gradient, jnp.where(at_low, low_gradient, state.anchor_gradient))
    taken = jnp.where(new_line, base[0], 0.0)
    # Here is `x`, which may differ from the point asked for: a fit keeps its parameters in their ranges.
    anchor = jnp.where(here, x, state.anchor + taken * state.direction)

    pair = pair_between(anchor, base_gradient, state.anchor, state.anchor_gradient)
    curvature = with_pair(state.curvature, pair, state.started & (here | at_low), growth=_GROWTH)
    curvature = curvature._replace(num_pairs=jnp.where(restart, 0, curvature.num_pairs))
    num_resets = jnp.where(restart, line.num_resets + 1, jnp.where(new_line, 0.0, line.num_resets))
    # A parameter at an end of its range has a slope of exactly 0 if it would have to go further out. It stays there.
    newton = jnp.where(base_gradient == 0, 0.0, -inverse_hessian_times(base_gradient, curvature))
    newton = jnp.where(((anchor <= ends[0]) & (newton < 0)) | ((anchor >= ends[1]) & (newton > 0)), 0.0, newton)
    is_descent = (curvature.num_pairs > 0) & (jnp.vdot(newton, base_gradient) < 0)
    fresh = jnp.where(is_descent, newton, 0.1**num_resets * _steepest(base_gradient))
    direction = jnp.where(new_line, fresh, state.direction)

    largest = jnp.max(jnp.abs(direction), initial=0.0)
    first_trial = jnp.minimum(1.0, _LONGEST_FIRST_TRIAL / jnp.maximum(largest, _LONGEST_FIRST_TRIAL))
    first_trial = jnp.minimum(first_trial, _longest_step(anchor, direction, ends))
    start = jnp.stack([first_trial, base[1], jnp.vdot(base_gradient, direction)])
    none = jnp.array([jnp.inf, 0.0, 0.0], x.dtype)
    begun = _Line(start, _at_step(start, 0.0), none, jnp.zeros_like(num_resets), num_resets)
    next_line = jnp.where(new_line, begun.vector(), searched.vector())
    next_state = _State(
        started=jnp.asarray(True),
        line=next_line,
        anchor=anchor,
        direction=direction,
        anchor_gradient=jnp.where(new_line, base_gradient, state.anchor_gradient),
        low_gradient=jnp.where(new_line, base_gradient, low_gradient),
        curvature=curvature,
    )
    return unravel(anchor + next_line[0] * direction - x), next_state


def begun_anew(state: Any) -> Any:
    """The state with which to begin on a similar function: what L-BFGS knows of the curvature stays, its line does not.

    The state of another optimiser stays as it is.
    """
    return state._replace(started=jnp.zeros_like(state.started)) if isinstance(state, _State) else state


def _longest_step(anchor: Float[Array, " k"], direction: Float[Array, " k"], ends: Any) -> Float[Array, ""]:
    """The step along the line at which the first parameter reaches an end of its range, and a rounding further."""
    low, high = ends
    moving = jnp.where(direction == 0, 1.0, direction)
    steps = jnp.where(direction > 0, high - anchor, low - anchor) / moving
    return (1 + 4 * jnp.finfo(anchor.dtype).eps) * jnp.min(jnp.where(direction == 0, jnp.inf, steps), initial=jnp.inf)


def once(*values: Array) -> Array:
    """The values, computed once: XLA would compile what leads to them into each of their many uses, all over again."""
    return jax.lax.optimization_barrier(jnp.stack(values))


def _at_step(point: Float[Array, " 3"], step: Float[Array, ""] | float) -> Float[Array, " 3"]:
    """The point with another step."""
    return jnp.where(np.array([True, False, False]), step, point)


def _search(
    line: _Line, trial: Float[Array, " 3"], finite: Bool[Array, ""], max_trials: int, longest: Float[Array, ""]
) -> tuple[_Line, Bool[Array, ""], Bool[Array, ""], Bool[Array, ""]]:
    """Judge the trial: the line with a smaller bracket and its next trial, whether the line is done, whether this was the
    best point of it, and whether it is no use going on."""
    (step, value, slope), (_, start_value, start_slope), (low_step, low_value, _) = trial, line.start, line.low
    # Close to the optimum rounding hides the decrease; a value as low and a smaller slope are then as good (Hager, Zhang).
    rounding = 10 * jnp.finfo(value.dtype).eps * jnp.abs(start_value)
    decreased = value <= start_value + _DECREASE * step * start_slope
    decreased |= (value <= start_value + rounding) & (slope <= (2 * _DECREASE - 1) * start_slope)
    (decreased,) = once(decreased & finite)
    # Between the ends of a bracket there may be a point that would do, and yet be worse than the better end.
    is_worse = (low_step > 0) & (value > low_value + rounding)
    # At the end of a parameter's range the line is over, however steep it still is.
    done = decreased & ((jnp.abs(slope) <= -_CURVATURE * start_slope) | (step >= longest)) & ~is_worse

    too_far = ~decreased | ((low_step > 0) & (value >= low_value))
    towards_high = jnp.where(jnp.isfinite(line.high[0]), line.high[0] - low_step, 1.0)
    turned = ~too_far & (slope * towards_high >= 0)
    too_far, turned = once(too_far, turned)
    point = jnp.where(finite, trial, _at_step(jnp.array([0.0, jnp.inf, 0.0], trial.dtype), step))
    high = jnp.where(too_far, point, jnp.where(turned, line.low, line.high))
    low = jnp.where(too_far, line.low, point)

    bracketed = jnp.isfinite(high[0])
    following = jnp.where(bracketed, _interpolate(*low, *high), jnp.minimum(_extrapolate(line, step, slope), longest))
    narrow = bracketed & (jnp.abs(high[0] - low[0]) <= 1e-9 * jnp.maximum(jnp.abs(high[0]), jnp.abs(low[0])))
    num_trials = line.num_trials + 1
    searched = _Line(_at_step(line.start, following), low, high, num_trials, line.num_resets)
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


def _extrapolate(line: _Line, step: Float[Array, ""], slope: Float[Array, ""]) -> Float[Array, ""]:
    """Where the slope would vanish if it went on changing as it did, between 1.5 and 8 times as far."""
    change = line.low[2] - slope
    ahead = step + (step - line.low[0]) * slope / jnp.where(change == 0, -1.0, change)
    ahead = jnp.where(jnp.isfinite(ahead) & (change < 0), ahead, 4.0 * step)
    return jnp.clip(ahead, 1.5 * step, 8.0 * step)


def _steepest(gradient: Float[Array, " k"]) -> Float[Array, " k"]:
    """Downhill, no further than 1: a factor of e in a parameter walked in its logarithm."""
    finite = jnp.where(jnp.isfinite(gradient), gradient, 0.0)
    return -finite / jnp.maximum(1.0, jnp.linalg.norm(finite))
