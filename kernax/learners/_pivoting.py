"""The solver of the dual: a few cheap steps to guess which coefficients are free, then pivoting on whole blocks of them.

*Pair steps* (sequential minimal optimisation) move the two coefficients that gain most (one, without an intercept), O(n)
each. They come near the solution quickly and to it slowly: the larger C, the slower. There are at most n of them.

*Block pivoting* guesses the place of every coefficient and solves the linear system of the free ones. Free coefficients that
left their bounds are put there, and the others whose residual contradicts their place are freed, all at once. Where no place
changes, the solution is exact: zeros and bounds to the bit, the conditions to rounding. From a cold start it may cycle;
after the pair steps it takes about ten systems, whatever C.

Should the places that change no longer become fewer, as with a singular K, an interior-point method takes over, and pivoting
starts once more from its answer; if that does not settle either, the answer stands as it is.

A solution of a similar problem may stand in for the pair steps: these are then the second attempt.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul
from kernax.learners._dual import (
    AT_LOWER,
    AT_UPPER,
    FREE_ABOVE,
    FREE_BELOW,
    Dual,
    held_at,
    kkt_residual,
    middle,
    places,
    slopes,
    solve_face,
)
from kernax.learners._interior import Ends, Point, solve_inside
from kernax.solvers import one_at_a_time_on_cpu

_ENOUGH = 1e-3
"""The share of the first violation at which pair steps end: most machines for two of ten digits (366 rows) then need
one system then."""

_PATIENCE = 5
"""Systems in turn after which the places that change must have become fewer."""


class Solution(NamedTuple):
    """An α within its bounds, and how it was found."""

    alpha: Float[Array, " n"]
    intercept: Float[Array, ""]
    num_systems: Int[Array, ""]
    """Linear systems solved."""
    jitter: Float[Array, ""]
    """What the last system needed on its diagonal."""
    used_up: Bool[Array, ""]
    """Whether the interior-point method was stopped by `max_steps`."""
    settled: Bool[Array, ""]
    """Whether pivoting arrived at the exact solution."""


def solve_dual(
    dual: Dual,
    intercept: bool,
    max_steps: Int[Array, ""],
    start: Float[Array, " n"] | None = None,
    by_pivoting_alone: bool = False,
) -> Solution:
    """The minimiser. Not to be differentiated: see `attached`.

    `max_steps` is for the interior-point method, which is not even compiled `by_pivoting_alone`. `start` is the solution of
    a similar problem.
    """
    solve = _solver(intercept, start is not None, by_pivoting_alone)
    return Solution(*solve(*dual, max_steps, jnp.zeros_like(dual.targets) if start is None else start))


class _Pairs(NamedTuple):
    alpha: Float[Array, " n"]
    gradient: Float[Array, " n"]
    """`Kα - y`."""
    num_steps: Int[Array, ""]
    ended: Bool[Array, ""]


class _Pivots(NamedTuple):
    place: Int[Array, " n"]
    alpha: Float[Array, " n"]
    intercept: Float[Array, ""]
    jitter: Float[Array, ""]
    changes: Int[Array, ""]
    fewest: Int[Array, ""]
    idle: Int[Array, ""]
    num_systems: Int[Array, ""]


class _Round(NamedTuple):
    number: Int[Array, ""]
    """Which attempt comes next."""
    near: Point
    """The best point before pivoting, which is the answer if that does not settle."""
    pivots: _Pivots
    num_systems: Int[Array, ""]
    used_up: Bool[Array, ""]


@cache
def _solver(intercept: bool, has_start: bool, by_pivoting_alone: bool) -> Callable[..., Any]:
    attempts = (0 if has_start else 1, 2 if by_pivoting_alone else 3)
    return one_at_a_time_on_cpu(partial(_solve, intercept=intercept, attempts=attempts))


def _solve(gram, targets, epsilon, lower, upper, max_steps, start, intercept: bool, attempts: tuple[int, int]):
    dual = Dual(gram, targets, epsilon, lower, upper)
    zero, nothing = jnp.asarray(0), jnp.zeros((), targets.dtype)
    nowhere = Point(jnp.zeros_like(targets), nothing, jnp.full_like(nothing, jnp.inf))

    def at(alpha: Float[Array, " n"]) -> Ends:
        around = slopes(dual, alpha, matmul(gram, alpha) - targets)
        b = middle(around) if intercept else nothing
        near = Point(alpha, b, kkt_residual(around, b))
        return Ends(near, near, zero)

    def near_start() -> Ends:
        return at(jnp.clip(start, lower, upper))

    def by_pairs() -> Ends:
        return at(_pair_steps(dual, intercept))

    def from_inside() -> Ends:
        return solve_inside(dual, intercept, max_steps)

    def go(state: _Round) -> _Round:
        # One call of each: every further one would be compiled by itself.
        attempt = jax.lax.switch(state.number - first, ways[first:last])
        pivots = _pivot_until_settled(dual, intercept, attempt.last.alpha)
        better = attempt.best.kkt_residual < state.near.kkt_residual
        near = jax.tree.map(lambda new, old: jnp.where(better, new, old), attempt.best, state.near)
        systems = state.num_systems + attempt.num_steps + pivots.num_systems
        return _Round(state.number + 1, near, pivots, systems, attempt.num_steps >= max_steps)

    (first, last), ways = attempts, [near_start, by_pairs, from_inside]
    begin = _Round(jnp.asarray(first), nowhere, _unsettled(dual, nowhere.alpha), zero, jnp.asarray(False))
    end = jax.lax.while_loop(lambda state: (state.number < last) & (state.pivots.changes > 0), go, begin)
    settled = end.pivots.changes == 0
    alpha = jnp.where(settled, jnp.clip(end.pivots.alpha, lower, upper), end.near.alpha)
    b = jnp.where(settled, end.pivots.intercept, end.near.intercept)
    return alpha, b, end.num_systems, end.pivots.jitter, end.used_up & ~settled, settled


def _pair_steps(dual: Dual, intercept: bool) -> Float[Array, " n"]:
    """The coefficients after n steps from 0, or fewer if there is hardly anything left to gain."""
    targets, entries = dual.targets, jnp.diagonal(dual.gram)
    at_start = slopes(dual, jnp.zeros_like(targets), -targets)
    up, down = jnp.max(-at_start.up), jnp.max(at_start.down)
    enough = _ENOUGH * (up + down if intercept else jnp.maximum(up, down))
    enough = jnp.where(jnp.isfinite(enough), enough, 0.0)
    pairs = jax.lax.while_loop(
        lambda pairs: ~pairs.ended & (pairs.num_steps < targets.shape[0]),
        partial(_pair_step, dual, entries, enough, intercept),
        _Pairs(jnp.zeros_like(targets), -targets, jnp.asarray(0), jnp.asarray(False)),
    )
    return pairs.alpha


def _pair_step(dual: Dual, entries: Float[Array, " n"], enough: Float[Array, ""], intercept: bool, pairs: _Pairs) -> _Pairs:
    """The most that two coefficients can gain, one going up and the other as far down; one alone, without an intercept."""
    alpha, gradient = pairs.alpha, pairs.gradient
    up, down = slopes(dual, alpha, gradient)
    tiny = jnp.finfo(alpha.dtype).eps * jnp.max(entries) + jnp.finfo(alpha.dtype).tiny
    if intercept:
        i = _place_of_largest(-up)
        row = dual.gram[i]
        gain = jnp.maximum(down - up[i], 0.0)
        curvature = jnp.maximum(entries[i] + entries - 2.0 * row, tiny)
        j = _place_of_largest(gain**2 / curvature)
        top, bottom = _end_above(dual, alpha, i), _end_below(dual, alpha, j)
        step = jnp.minimum(gain[j] / curvature[j], jnp.minimum(top - alpha[i], alpha[j] - bottom))
        # Exactly the end where that is reached: in floats `a + (u - a)` need not be u.
        moved = alpha.at[i].set(jnp.where(step >= top - alpha[i], top, alpha[i] + step))
        moved = moved.at[j].set(jnp.where(step >= alpha[j] - bottom, bottom, alpha[j] - step))
        near = jnp.max(gain) <= jnp.maximum(enough, tiny)
        return _Pairs(moved, gradient + step * (row - dual.gram[j]), pairs.num_steps + 1, near)
    gain = jnp.maximum(jnp.maximum(-up, down), 0.0)
    curvature = jnp.maximum(entries, tiny)
    i = _place_of_largest(gain**2 / curvature)
    upwards = -up[i] >= down[i]
    end = jnp.where(upwards, _end_above(dual, alpha, i), _end_below(dual, alpha, i))
    room = jnp.abs(end - alpha[i])
    step = jnp.minimum(gain[i] / curvature[i], room)
    signed = jnp.where(upwards, step, -step)
    value = jnp.where(step >= room, end, alpha[i] + signed)
    near = jnp.max(gain) <= jnp.maximum(enough, tiny)
    return _Pairs(alpha.at[i].set(value), gradient + signed * dual.gram[i], pairs.num_steps + 1, near)


def _place_of_largest(values: Float[Array, " n"]) -> Int[Array, ""]:
    """`argmax`, which XLA compiles to code that takes four times as long."""
    n = values.shape[0]
    return jnp.min(jnp.where(values == jnp.max(values), jnp.arange(n), n - 1))


def _end_above(dual: Dual, alpha: Float[Array, " n"], i: Int[Array, ""]) -> Float[Array, ""]:
    """How high a coefficient can go in one step: to its bound, or to 0, where the slope changes."""
    return jnp.where(alpha[i] < 0, 0.0, dual.upper[i])


def _end_below(dual: Dual, alpha: Float[Array, " n"], i: Int[Array, ""]) -> Float[Array, ""]:
    return jnp.where(alpha[i] > 0, 0.0, dual.lower[i])


def _pivot_until_settled(dual: Dual, intercept: bool, alpha: Float[Array, " n"]) -> _Pivots:
    def goes_on(pivots: _Pivots) -> Bool[Array, ""]:
        return (pivots.changes > 0) & (pivots.idle < _PATIENCE)

    return jax.lax.while_loop(goes_on, partial(_pivot, dual, intercept), _unsettled(dual, alpha))


def _unsettled(dual: Dual, alpha: Float[Array, " n"]) -> _Pivots:
    zero, nothing, many = jnp.asarray(0), jnp.zeros((), alpha.dtype), jnp.asarray(alpha.shape[0] + 1)
    return _Pivots(places(dual, alpha), alpha, nothing, nothing, many, many, zero, zero)


def _pivot(dual: Dual, intercept: bool, pivots: _Pivots) -> _Pivots:
    """Solve for the free coefficients, and change every place that the answer contradicts."""
    place = pivots.place
    free, signs = jnp.abs(place) == 1, jnp.sign(place).astype(dual.targets.dtype)
    # Corrected, not computed again: where K_FF is singular, the nearest of its many solutions is wanted.
    near = jnp.where(free, jnp.clip(pivots.alpha, dual.lower, dual.upper), held_at(dual, place))
    missing = dual.targets - matmul(dual.gram, near) - dual.epsilon * signs
    face = solve_face(dual.gram, free, missing, -jnp.sum(near), intercept)
    alpha = near + face.alpha
    gradient = matmul(dual.gram, alpha) - dual.targets
    b = face.intercept
    if intercept:
        b = jnp.where(jnp.any(free), b, middle(slopes(dual, alpha, gradient)))
    residual = -gradient - b
    new = _contradicted(dual, place, alpha, residual)
    changes = jnp.sum(new != place)
    # Without a free coefficient nothing makes the sum 0; and a system that had no solution says nothing.
    size = jnp.sum(jnp.abs(alpha))
    balanced = jnp.abs(jnp.sum(alpha)) <= 64 * jnp.finfo(alpha.dtype).eps * size if intercept else jnp.asarray(True)
    useless = ~jnp.isfinite(size) | (~jnp.any(free) & ~balanced)
    changes = jnp.where(useless, place.shape[0] + 1, changes)
    fewer = changes < pivots.fewest
    return _Pivots(
        place=jnp.where(changes == 0, place, new),
        alpha=alpha,
        intercept=b,
        jitter=face.jitter,
        changes=changes,
        fewest=jnp.minimum(changes, pivots.fewest),
        idle=jnp.where(useless, _PATIENCE, jnp.where(fewer, 0, pivots.idle + 1)),
        num_systems=pivots.num_systems + 1,
    )


def _contradicted(
    dual: Dual, place: Int[Array, " n"], alpha: Float[Array, " n"], residual: Float[Array, " n"]
) -> Int[Array, " n"]:
    """The places after an answer: out of bounds becomes held, and a residual on the wrong side of the tube becomes free."""
    eps = jnp.finfo(alpha.dtype).eps
    # What rounding makes of residuals (through Kα) and of coefficients.
    scale = jnp.max(jnp.abs(dual.targets)) + jnp.max(jnp.abs(jnp.diagonal(dual.gram))) * jnp.sum(jnp.abs(alpha))
    slack, give = 8 * eps * scale, 64 * eps * jnp.max(jnp.abs(alpha))
    above, below = residual - dual.epsilon, -residual - dual.epsilon
    free_above, free_below = place == FREE_ABOVE, place == FREE_BELOW
    new = place
    new = jnp.where(free_above & (alpha < -give) | free_below & (alpha > give), 0, new)
    new = jnp.where(free_above & (alpha > dual.upper + give), AT_UPPER, new)
    new = jnp.where(free_below & (alpha < dual.lower - give), AT_LOWER, new)
    at_zero = place == 0
    opens_above = (at_zero & (dual.upper > 0) & (above > slack)) | ((place == AT_UPPER) & (above < -slack))
    opens_below = (at_zero & (dual.lower < 0) & (below > slack)) | ((place == AT_LOWER) & (below < -slack))
    return jnp.where(opens_above, FREE_ABOVE, jnp.where(opens_below, FREE_BELOW, new))
