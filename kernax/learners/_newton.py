"""Newton's method for `Σ C_i loss(y_i, h_i) + ½ αᵀKα`, `h = Kα + b`, with a line search."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax.learners._stationarity import AbstractLinearised, AbstractTerm, DataTerm, Direction, Point
from kernax.solvers import Result

Scalar = Float[Array, ""]
Row = Float[Array, "n *k"]

_HALVINGS = 60


class Minimum(NamedTuple):
    """The end of the iteration, without derivatives."""

    point: Point
    gradient_norm: Scalar
    """The largest of `|ρ|` and `|Σα|`, relative to the largest of `|α|` and `|C·loss'|`."""
    num_steps: Int[Array, ""]
    jitter: Scalar
    result: Any


class _Moves(NamedTuple):
    least: Row
    point: Point
    norm: Scalar
    helped: Bool[Array, ""]
    """Whether the last move made the gradient four times smaller, or there was none yet."""
    last: Bool[Array, ""]
    """Whether the first move had nothing to gain."""
    number: Int[Array, ""]


class _State(NamedTuple):
    least: Row
    """What W is taken for at least."""
    point: Point
    norm: Scalar
    steps: Int[Array, ""]
    jitter: Scalar
    factor_result: Any
    done: Bool[Array, ""]


def minimise(
    term: AbstractTerm,
    start: Point,
    linearise: Callable[[Row, Row], AbstractLinearised],
    max_steps: int,
    *,
    intercept: bool = False,
    reuse: bool = True,
) -> Minimum:
    """Newton steps, halved while the objective does not fall, until the gradient is only rounding error.

    **Arguments:**

    - `term`: what is minimised, beside `½ αᵀKα`.
    - `start`: where to start.
    - `linearise`: the linear conditions with the curvatures at given values, none of them below its second argument.
    - `max_steps`: how many times it is called at the most.
    - `intercept`: whether `Σα = 0` is a condition.
    - `reuse`: whether several moves are made with one W, because `linearise` costs much more than a move.

    **Returns:**

    A `Minimum`. Nothing of it is differentiable.
    """
    term = jax.lax.stop_gradient(term)
    eps = jnp.finfo(term.y.dtype).eps
    zeros, zero = jnp.zeros_like(term.y), jnp.zeros((), term.y.dtype)
    at_zero = jnp.sum(jnp.abs(term.losses(zeros)))

    def norm(point: Point) -> Scalar:
        alpha, pulls = point.alpha, term.pulls(point.values)
        largest = jnp.max(jnp.maximum(jnp.abs(alpha), jnp.abs(pulls)))
        # Where all forces vanish (a constant target), what rounding of f makes of them is still to count as nothing.
        rounding = 10 * eps * jnp.max(term.curvatures(point.values)) * jnp.max(jnp.abs(point.values))
        scale = largest + jnp.where(jnp.isfinite(rounding), rounding, 0.0) / eps**0.75
        off = jnp.max(jnp.abs(pulls - alpha)) + (jnp.abs(jnp.sum(alpha)) if intercept else 0.0)
        return off / jnp.where(scale == 0, 1.0, scale)

    def step(state: _State) -> _State:
        linear = linearise(state.point.values, state.least)

        def move(moves: _Moves) -> _Moves:
            at = moves.point
            pulls = term.pulls(at.values)
            direction = linear.direction(at, pulls)
            length, decrease, level = _line_search(term, at, pulls, direction)
            point = at.moved(direction, length)
            now = norm(point)
            # Where no more than rounding was to be gained, this was the last step: an error of √ε becomes one of ε.
            last = (decrease <= eps * level + eps**2 * at_zero) | (length == 0)
            # A step that was too long says how curved the loss is on its way: no less curved it is taken for next time.
            change = direction.fitted + direction.intercept
            fall = (pulls - term.pulls(at.values + change)) / jnp.where(change == 0, 1.0, change)
            least = jnp.where((length < 0.1) & (fall > 0) & jnp.isfinite(fall**2), fall, 0.0)
            return _Moves(
                least, point, now, now < 0.25 * moves.norm, jnp.where(moves.number == 0, last, moves.last), moves.number + 1
            )

        yes, no = jnp.asarray(True), jnp.asarray(False)
        before = _Moves(state.least, state.point, state.norm, yes, no, jnp.asarray(0))

        # Near the minimum W hardly changes, and moves with the old factor, O(n²) each, are almost as good as new ones.
        def another(moves: _Moves) -> Bool[Array, ""]:
            return moves.helped & (moves.norm > eps**0.75)

        end = jax.lax.while_loop(another, move, before) if reuse else move(before)
        settled = (end.norm <= eps**0.4) & (end.norm > 0.5 * state.norm)
        done = end.last | settled | ~(end.norm > eps**0.75)
        return _State(end.least, end.point, end.norm, state.steps + 1, linear.jitter, linear.result, done)

    first = norm(start)
    # Not `first <= …`: NaN is to end the loop.
    done = ~(first > eps**0.75) | jnp.any(jnp.isnan(start.fitted))
    fine = Result.where(jnp.asarray(True), Result.successful, Result.empty)
    begin = _State(zeros, start, first, jnp.asarray(0), zero, fine, done)
    end = jax.lax.while_loop(lambda s: ~s.done & (s.steps < max_steps), step, begin)

    result = Result.where(end.done, Result.stalled, Result.max_steps_reached)
    # With a tiny penalty α hangs on the last digits of f: then f is what was found as well as it can be.
    values = end.point.values
    rounding = 10 * eps * jnp.max(term.curvatures(values)) * jnp.max(jnp.abs(values))
    exact = end.done & (jnp.max(jnp.abs(term.pulls(values) - end.point.alpha)) <= rounding)
    result = Result.where((end.norm <= eps**0.4) | exact, Result.successful, result)
    result = Result.where(end.factor_result == Result.successful, result, end.factor_result)
    result = Result.where(jnp.isfinite(end.norm) & jnp.all(jnp.isfinite(values)), result, Result.nonfinite)
    return Minimum(end.point, end.norm, end.steps, end.jitter, result)


def best_of_two_starts(term: DataTerm, start: Point, run: Callable[[DataTerm, Point], Minimum]) -> Minimum:
    """`run(term, start)`, for a loss that is not convex also from the minimum of its convex surrogate: the lower of the two.

    If they end at different places, the result is `several_modes`.
    """
    first, surrogate = run(term, start), term.loss.surrogate
    if surrogate is None:
        return first
    second = run(term, run(dataclasses.replace(term, loss=surrogate), start).point)

    def objective(found: Minimum) -> Scalar:
        point = found.point
        value = jnp.sum(term.losses(point.values)) + 0.5 * jnp.sum(point.alpha * point.fitted)
        return jnp.where(jnp.isfinite(value), value, jnp.inf)

    is_first = objective(first) <= objective(second)
    best: Minimum = jax.tree.map(lambda one, other: jnp.where(is_first, one, other), first, second)
    values = (first.point.values, second.point.values)
    size = jnp.max(jnp.abs(jnp.where(term.weights > 0, jnp.stack(values), 0.0)))
    apart = jnp.max(jnp.abs(jnp.where(term.weights > 0, values[0] - values[1], 0.0)))
    differ = (first.result == Result.successful) & (second.result == Result.successful) & (apart > 1e-3 * size)
    return best._replace(result=Result.where(differ, Result.several_modes, best.result))


def _line_search(term: AbstractTerm, at: Point, pulls: Row, direction: Direction) -> tuple[Scalar, Scalar, Scalar]:
    """The largest of 1, ½, ¼, … that makes the objective fall as it should (0 if none does), the decrease that the quadratic
    model promises, and the size of the objective's terms. O(n) a trial, without products with K."""
    eps = jnp.finfo(term.y.dtype).eps
    squares = jnp.stack(
        [
            jnp.sum(at.alpha * at.fitted),
            jnp.sum(at.alpha * direction.fitted),
            jnp.sum(direction.alpha * direction.fitted),
        ]
    )
    forces = jnp.sum((pulls - at.alpha) * direction.fitted) + jnp.sum(pulls) * direction.intercept
    change = direction.fitted + direction.intercept

    def objective(length: Scalar) -> tuple[Scalar, Scalar]:
        losses = term.losses(at.values + length * change)
        norm = squares[0] + 2.0 * length * squares[1] + length**2 * squares[2]
        return jnp.sum(losses) + 0.5 * norm, jnp.sum(jnp.abs(losses)) + 0.5 * jnp.abs(squares[0])

    before, level = objective(jnp.zeros_like(forces))

    def falls(length: Scalar) -> Bool[Array, ""]:
        # A comparison with NaN fails, and so does one with an overflow.
        return objective(length)[0] <= before - 1e-4 * length * forces + 8 * eps * level

    def halve(trial: tuple[Array, Array]) -> tuple[Array, Array]:
        return 0.5 * trial[0], trial[1] + 1

    length, halvings = jax.lax.while_loop(
        lambda trial: ~falls(trial[0]) & (trial[1] < _HALVINGS), halve, (jnp.ones_like(forces), jnp.asarray(0))
    )
    return jnp.where(halvings < _HALVINGS, length, 0.0), 0.5 * forces, level


def best_constant(term: DataTerm) -> Scalar:
    """A constant close to the minimum of `Σ C loss(y, b)`, whose slope rises: doubled until it is passed, then halved."""

    def slope(b: Scalar) -> Scalar:
        return -jnp.sum(term.pulls(jnp.full_like(term.y, b)))

    zero = jnp.zeros((), term.y.dtype)
    sign = -jnp.sign(slope(zero))

    def widen(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        _, high, count = state
        return high, 2.0 * high, count + 1

    def not_passed(state: tuple[Array, Array, Array]) -> Bool[Array, ""]:
        return (sign * slope(sign * state[1]) < 0) & (state[2] < 60)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (ends[0] + ends[1])
        short = sign * slope(sign * middle) < 0
        return jnp.where(short, middle, ends[0]), jnp.where(short, ends[1], middle)

    low, high, count = jax.lax.while_loop(not_passed, widen, (zero, zero + 1.0, jnp.asarray(0)))
    low, high = jax.lax.fori_loop(0, 12, halve, (low, high))
    # A sum of slopes that falls for ever: the status will say so, the loop starts from 0.
    return jnp.where(count < 60, sign * 0.5 * (low + high), zero)
