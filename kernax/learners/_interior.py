"""An interior-point method for the dual: slower than pivoting, but it also converges where pivoting does not.

A singular K (few features, duplicate rows, a very smooth kernel) has many solutions α, and which coefficients are free is
not well defined. The method here does not need to know. With `α = p - m`, `0 ≤ p ≤ upper`, `0 ≤ m ≤ -lower` and multipliers
of the four inequalities, it follows the solutions of "coefficient × multiplier = μ" down to μ = 0 by Newton steps, with
Mehrotra's prediction and correction. Each step solves a system with `B = I + D^½ K D^½`, whose eigenvalues are 1 or more; D
is 0 in rows that do not count. Where C is so large that rounding spoils the end of the path, the best point is the answer.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul
from kernax.learners._dual import Dual, constant_level, kkt_residual, slopes
from kernax.solvers import factorise_matrix

Both = Float[Array, "2 n"]
"""A number for every p and every m."""
Sides = Float[Array, "4 2 n"]
"""p and m; the room that they leave below their bounds; the multipliers of `value ≥ 0` and of `room ≥ 0`. All positive. In
one array, since XLA compiles a program for each that is computed."""


class Point(NamedTuple):
    """Coefficients, exactly 0 or at a bound where they tend to it, with their intercept."""

    alpha: Float[Array, " n"]
    intercept: Float[Array, ""]
    kkt_residual: Float[Array, ""]


class Ends(NamedTuple):
    """Where the path led to."""

    last: Point
    """Its end, whose places are right even where rounding has spoilt its numbers."""
    best: Point
    """The point that violates the conditions of optimality least."""
    num_steps: Int[Array, ""]


class _Path(NamedTuple):
    sides: Sides
    intercept: Float[Array, ""]
    gap: Float[Array, ""]
    """The mean product of a value and its multiplier."""
    last: Point
    best: Point
    num_steps: Int[Array, ""]
    ended: Bool[Array, ""]


def solve_inside(dual: Dual, intercept: bool, max_steps: Int[Array, ""]) -> Ends:
    """Follow the path to its end, or as far as rounding or `max_steps` let it."""
    level = constant_level(dual.gram) if intercept else jnp.zeros((), dual.gram.dtype)
    bounds = _bounds(dual)
    exists = bounds > 0
    half = jnp.where(exists, 0.5 * bounds, 1.0)
    slope = jnp.where(exists, _size(dual), 1.0)
    sides = jnp.stack([half, half, slope, slope])
    b = jnp.zeros((), dual.targets.dtype)
    nowhere = Point(jnp.zeros_like(dual.targets), b, jnp.full_like(b, jnp.inf))
    start = _Path(sides, b, _gap(sides, exists), nowhere, nowhere, jnp.asarray(0), ~jnp.any(exists))
    end = jax.lax.while_loop(
        lambda path: ~path.ended & (path.num_steps < max_steps),
        lambda path: _step(dual, level, exists, intercept, path),
        start,
    )
    return Ends(end.last, end.best, end.num_steps)


def _step(dual: Dual, level: Float[Array, ""], exists: Bool[Array, "2 n"], intercept: bool, path: _Path) -> _Path:
    gram = dual.gram + level
    sides, b = path.sides, path.intercept
    value, room, above_zero, below_bound = sides
    alpha = _difference(jnp.where(exists, value, 0.0))
    slope = matmul(gram, alpha) - dual.targets + b
    # How far each part's derivative of the Lagrangian is from 0.
    missing = above_zero - below_bound - dual.epsilon - _opposed(slope)
    ease = jnp.where(exists, 1.0 / (above_zero / value + below_bound / room), 0.0)
    root = jnp.sqrt(jnp.sum(ease, axis=0))
    # I + √E K √E, which no E makes singular.
    system = factorise_matrix(root[:, None] * gram * root[None, :], jnp.ones((), root.dtype), jnp.ones(root.shape, bool))
    safe_root = jnp.where(root > 0, root, 1.0)

    def direction(corrects: Int[Array, ""], before: tuple[Sides, Float[Array, ""]]) -> tuple[Sides, Float[Array, ""]]:
        """The Newton step to where all products of a multiplier are 0; once that is known, one to where they are as small
        as it shows to be within reach, corrected by the products of its own changes."""
        straight, _ = before
        d_value, _, d_above_zero, d_below_bound = straight
        ahead = _gap(_moved(sides, straight, exists, _longest(sides, straight, exists)), exists)
        target = jnp.where(corrects, path.gap * jnp.clip(ahead / path.gap, 0.0, 1.0) ** 3, 0.0)
        to_zero = target - value * above_zero - d_value * d_above_zero
        to_bound = target - room * below_bound + d_value * d_below_bound
        pull = missing + to_zero / value - to_bound / room
        right = _difference(ease * pull)
        columns = jnp.stack([jnp.where(root > 0, right / safe_root, 0.0), root], axis=1)
        inner, against_b = system.solve(columns).value.T
        carried = jnp.sum(root * against_b)
        d_b = (jnp.sum(root * inner) + jnp.sum(alpha)) / jnp.where(carried > 0, carried, 1.0)
        d_b = d_b if intercept else jnp.zeros_like(d_b)
        d_slope = matmul(gram, root * (inner - d_b * against_b)) + d_b
        move = ease * (pull - _opposed(d_slope))
        d_zero, d_bound = (to_zero - above_zero * move) / value, (to_bound + below_bound * move) / room
        return jnp.stack([move, -move, d_zero, d_bound]), d_b

    # A loop of two, so that it is compiled once.
    moves, d_b = jax.lax.fori_loop(0, 2, direction, (jnp.zeros_like(sides), jnp.zeros_like(b)))
    longest = _longest(sides, moves, exists)
    length = jnp.where(longest < 1.0, 0.995 * longest, 1.0)
    new, new_b = _moved(sides, moves, exists, length), b + length * d_b
    gap = _gap(new, exists)
    usable = jnp.isfinite(gap) & (gap > 0) & (gap < 10.0 * path.gap) & jnp.isfinite(length)
    # In units of what the largest coefficient could lose, down to rounding; or no more progress.
    scale = _size(dual) * jnp.maximum(jnp.max(jnp.abs(alpha)), jnp.finfo(b.dtype).tiny)
    ended = ~usable | (gap <= 4 * jnp.finfo(b.dtype).eps * scale) | (length < 1e-8)

    last = _snapped(dual, level, new, new_b)
    better = last.kkt_residual < path.best.kkt_residual
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), last, path.best)
    after = path._replace(sides=new, intercept=new_b, gap=gap, last=last, best=best)
    chosen = jax.tree.map(lambda new, old: jnp.where(usable, new, old), after, path)
    return chosen._replace(num_steps=path.num_steps + 1, ended=ended)


def _bounds(dual: Dual) -> Both:
    """What p and m may be at most; 0 for a side that does not exist, which gets numbers to compute with."""
    return jnp.stack([dual.upper, -dual.lower])


def _size(dual: Dual) -> Float[Array, ""]:
    """The size of multipliers."""
    return jnp.max(jnp.abs(dual.targets)) + dual.epsilon + jnp.finfo(dual.targets.dtype).tiny


def _difference(of: Both) -> Float[Array, " n"]:
    return of[0] - of[1]


def _opposed(of: Float[Array, " n"]) -> Both:
    return jnp.stack([of, -of])


def _gap(sides: Sides, exists: Bool[Array, "2 n"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(exists, sides[:2] * sides[2:], 0.0)) / jnp.maximum(2 * jnp.sum(exists), 1)


def _longest(sides: Sides, moves: Sides, exists: Bool[Array, "2 n"]) -> Float[Array, ""]:
    """The longest step, at most 1, that leaves nothing negative."""
    shrinks = exists & (moves < 0)
    return jnp.minimum(1.0, jnp.min(jnp.where(shrinks, sides / jnp.where(shrinks, -moves, 1.0), jnp.inf)))


def _moved(sides: Sides, moves: Sides, exists: Bool[Array, "2 n"], by: Float[Array, ""]) -> Sides:
    return jnp.where(exists, sides + by * moves, sides)


def _snapped(dual: Dual, level: Float[Array, ""], sides: Sides, b: Float[Array, ""]) -> Point:
    """The coefficients, exactly 0 or at a bound where the multiplier of that end outweighs the way to it: both as shares of
    what they could be, one of the two vanishes in the limit."""
    bounds, size = _bounds(dual), _size(dual)
    value, room, above_zero, below_bound = sides
    at_zero = (value * size < above_zero * bounds) | (bounds <= 0)
    at_bound = room * size < below_bound * bounds
    alpha = _difference(jnp.where(at_zero, 0.0, jnp.where(at_bound, bounds, value)))
    # What was added to K acts like an intercept, where Σα is not quite 0.
    b = b + level * jnp.sum(alpha)
    return Point(alpha, b, kkt_residual(slopes(dual, alpha, matmul(dual.gram, alpha) - dual.targets), b))
