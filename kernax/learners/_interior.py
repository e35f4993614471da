"""An interior-point method for the dual: slower than pivoting, and at ease where pivoting is not.

A singular K (few features, duplicate rows, a very smooth kernel) has many solutions α, and which coefficients are free is no
well-posed question. The method here never asks it. With `α = p - m`, `0 ≤ p ≤ upper`, `0 ≤ m ≤ -lower` and multipliers of
the four inequalities, it follows the solutions of "coefficient × multiplier = μ" down to μ = 0 by Newton steps, with
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


class Side(NamedTuple):
    """One of the two parts of α, which is between 0 and a bound."""

    value: Float[Array, " n"]
    room: Float[Array, " n"]
    """The bound less the value."""
    above_zero: Float[Array, " n"]
    """The multiplier of `value ≥ 0`."""
    below_bound: Float[Array, " n"]


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


class Interior(NamedTuple):
    """A point strictly inside all inequalities."""

    plus: Side
    minus: Side
    intercept: Float[Array, ""]
    num_steps: Int[Array, ""]
    gap: Float[Array, ""]
    """The mean product of a value and its multiplier."""
    ended: Bool[Array, ""]
    last: Point
    best: Point


def solve_inside(dual: Dual, intercept: bool, max_steps: Int[Array, ""]) -> Ends:
    """Follow the path to its end, or as far as rounding or `max_steps` let it."""
    if intercept:
        dual = dual._replace(gram=dual.gram + constant_level(dual.gram))
    bounds = (dual.upper, -dual.lower)
    exists = tuple(bound > 0 for bound in bounds)
    count = 2 * sum(jnp.sum(there) for there in exists)
    eps = jnp.finfo(dual.targets.dtype).eps
    size = jnp.max(jnp.abs(dual.targets)) + dual.epsilon + jnp.finfo(dual.targets.dtype).tiny

    def start(bound: Float[Array, " n"], there: Bool[Array, " n"]) -> Side:
        half = jnp.where(there, 0.5 * bound, 1.0)
        slope = jnp.where(there, size, 1.0)
        return Side(half, half, slope, slope)

    def complementarity(sides: tuple[Side, ...]) -> Float[Array, ""]:
        parts = [
            jnp.where(there, side.value * side.above_zero + side.room * side.below_bound, 0.0)
            for side, there in zip(sides, exists, strict=True)
        ]
        return sum(jnp.sum(part) for part in parts) / jnp.maximum(count, 1)

    def goes_on(state: Interior) -> Bool[Array, ""]:
        return ~state.ended & (state.num_steps < max_steps)

    def step(state: Interior) -> Interior:
        sides, b = (state.plus, state.minus), state.intercept
        alpha = jnp.where(exists[0], sides[0].value, 0.0) - jnp.where(exists[1], sides[1].value, 0.0)
        slope = matmul(dual.gram, alpha) - dual.targets + b
        # How far the stationarity of each part is from 0.
        missing = [
            side.above_zero - side.below_bound - dual.epsilon - sign * slope
            for sign, side in zip((1, -1), sides, strict=True)
        ]
        ease = [
            jnp.where(there, 1.0 / (side.above_zero / side.value + side.below_bound / side.room), 0.0)
            for side, there in zip(sides, exists, strict=True)
        ]
        root = jnp.sqrt(ease[0] + ease[1])
        matrix = jnp.eye(root.shape[0], dtype=root.dtype) + root[:, None] * dual.gram * root[None, :]
        factor = factorise_matrix(matrix, jnp.ones((), root.dtype), jnp.ones(root.shape, bool))
        against_b = factor.solve(root)

        def direction(products: list[tuple[Array, Array]]) -> tuple[list[Side], Array]:
            """The Newton step to where the products of values and multipliers change by these."""
            pulls = [
                gone + to_zero / side.value - to_bound / side.room
                for gone, side, (to_zero, to_bound) in zip(missing, sides, products, strict=True)
            ]
            right = ease[0] * pulls[0] - ease[1] * pulls[1]
            inner = factor.solve(jnp.where(root > 0, right / jnp.where(root > 0, root, 1.0), 0.0))
            carried = jnp.sum(root * against_b)
            d_b = (jnp.sum(root * inner) + jnp.sum(alpha)) / jnp.where(carried > 0, carried, 1.0) if intercept else 0.0
            d_slope = matmul(dual.gram, root * (inner - d_b * against_b)) + d_b
            moves = []
            for sign, side, easy, pull, (to_zero, to_bound) in zip((1, -1), sides, ease, pulls, products, strict=True):
                move = easy * (pull - sign * d_slope)
                d_zero = (to_zero - side.above_zero * move) / side.value
                d_bound = (to_bound + side.below_bound * move) / side.room
                moves.append(Side(move, -move, d_zero, d_bound))
            return moves, jnp.asarray(d_b, b.dtype)

        def length(moves: list[Side]) -> Float[Array, ""]:
            """The longest step, at most 1, that leaves nothing negative."""
            longest = jnp.ones((), b.dtype)
            for side, move, there in zip(sides, moves, exists, strict=True):
                for part, change in zip(side, move, strict=True):
                    shrinks = there & (change < 0)
                    longest = jnp.minimum(
                        longest, jnp.min(jnp.where(shrinks, part / jnp.where(shrinks, -change, 1.0), jnp.inf))
                    )
            return longest

        def moved(moves: list[Side], by: Float[Array, ""]) -> tuple[Side, Side]:
            plus, minus = (
                Side(*(jnp.where(there, part + by * change, part) for part, change in zip(side, move, strict=True)))
                for side, move, there in zip(sides, moves, exists, strict=True)
            )
            return plus, minus

        straight, _ = direction([(-side.value * side.above_zero, -side.room * side.below_bound) for side in sides])
        ahead = complementarity(moved(straight, length(straight)))
        target = state.gap * jnp.clip(ahead / state.gap, 0.0, 1.0) ** 3
        products = [
            (
                target - side.value * side.above_zero - move.value * move.above_zero,
                target - side.room * side.below_bound + move.value * move.below_bound,
            )
            for side, move in zip(sides, straight, strict=True)
        ]
        moves, d_b = direction(products)
        longest = length(moves)
        by = jnp.where(longest < 1.0, 0.995 * longest, 1.0)
        new = moved(moves, by)
        gap = complementarity(new)
        usable = jnp.isfinite(gap) & jnp.isfinite(by) & (gap > 0) & (gap < 10.0 * state.gap)
        # In units of what a coefficient at its bound could lose, down to rounding; or no more progress.
        scale = size * jnp.maximum(jnp.max(jnp.abs(alpha)), jnp.finfo(b.dtype).tiny)
        ended = ~usable | (gap <= 4 * eps * scale) | (by < 1e-8)
        last = _snapped(dual, new, b + by * d_b)
        better = last.kkt_residual < state.best.kkt_residual
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), last, state.best)
        new = Interior(*new, b + by * d_b, state.num_steps, gap, ended, last, best)
        chosen = jax.tree.map(lambda after, before: jnp.where(usable, after, before), new, state)
        return chosen._replace(num_steps=state.num_steps + 1, ended=ended)

    plus, minus = start(bounds[0], exists[0]), start(bounds[1], exists[1])
    b = jnp.zeros((), dual.targets.dtype)
    nothing = Point(jnp.zeros_like(dual.targets), b, jnp.full_like(b, jnp.inf))
    gap = complementarity((plus, minus))
    first = Interior(plus, minus, b, jnp.asarray(0), gap, jnp.asarray(count == 0), nothing, nothing)
    end = jax.lax.while_loop(goes_on, step, first)
    return Ends(end.last, end.best, end.num_steps)


def _snapped(dual: Dual, sides: tuple[Side, Side], b: Float[Array, ""]) -> Point:
    """The coefficients, exactly 0 or at a bound where the multiplier of that end outweighs the way to it: both as shares of
    what they could be, one of the two vanishes in the limit."""
    size = jnp.max(jnp.abs(dual.targets)) + dual.epsilon

    def part(side: Side, bound: Float[Array, " n"]) -> Float[Array, " n"]:
        at_zero = side.value * size < side.above_zero * bound
        at_bound = side.room * size < side.below_bound * bound
        # A side that does not exist was given numbers to compute with.
        return jnp.where(at_zero | (bound <= 0), 0.0, jnp.where(at_bound, bound, side.value))

    alpha = part(sides[0], dual.upper) - part(sides[1], -dual.lower)
    return Point(alpha, b, kkt_residual(slopes(dual, alpha, matmul(dual.gram, alpha) - dual.targets), b))
