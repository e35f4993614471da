"""Newton's method for `Σ C_i loss(y_i, h_i) + ½ αᵀKα`, `h = Kα + b`, and the derivatives of its answer.

At the minimum `α = -C·loss'(h)` and `Σα = 0`. With the curvatures `W = C·loss''(h)` a step solves

    (I + WK) δα + W δb = ρ = -C·loss'(h) - α,   Σδα = -Σα,

where `(I + WK)⁻¹ = I - SK`, `S = √W B⁻¹ √W` and `B = I + √W K √W` (Rasmussen & Williams, algorithm 3.1, with an intercept).
No eigenvalue of B is below 1, whatever K is; nothing is divided by W, which Huber's loss and the squared hinge make 0.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul
from kernax.learners._losses import AbstractLoss, row_curvatures, row_losses, row_slopes
from kernax.solvers import DenseFactor, Result, factorise_matrix

Scalar = Float[Array, ""]
Row = Float[Array, " n"]

_HALVINGS = 60


class Task(eqx.Module):
    """What is minimised. Rows that do not count have zeros in `gram` and a weight of 0."""

    gram: Float[Array, "n n"]
    weights: Row
    """C, for each row."""
    y: Row
    loss: AbstractLoss
    intercept: bool = eqx.field(static=True)

    def pulls(self, values: Row) -> Row:
        """`-C·loss'`: what α is at the minimum."""
        return -self._counted(row_slopes(self.loss, self.y, values))

    def curvatures(self, values: Row) -> Row:
        """`C·loss''`, 0 where rounding (or a loss that is not convex) makes it negative."""
        return jnp.maximum(self._counted(row_curvatures(self.loss, self.y, values)), 0.0)

    def losses(self, values: Row) -> Row:
        """`C·loss`."""
        return self._counted(row_losses(self.loss, self.y, values))

    def values(self, alpha: Row, intercept: Scalar) -> Row:
        """`Kα + b`; b in rows that do not count."""
        return matmul(self.gram, alpha) + intercept

    def _counted(self, rows: Row) -> Row:
        # A plain product would make NaN of a loss that is infinite at what stands behind a mask.
        return jnp.where(self.weights > 0, self.weights * rows, 0.0)


class Curvature(eqx.Module):
    """`S = √W B⁻¹ √W`, as the factor of B and the roots of W."""

    roots: Row
    factor: DenseFactor

    def __call__(self, v: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
        """`S v`."""
        roots = self.roots if v.ndim == 1 else self.roots[:, None]
        return roots * self.factor.solve(roots * v)

    def along(self, task: Task) -> Row | None:
        """`S1`: what a change of the intercept meets; None without one."""
        return self(jnp.ones_like(self.roots)) if task.intercept else None


def curvature(task: Task, values: Row, max_jitter: float | None, raw: DenseFactor | None = None) -> Curvature:
    """S at these values; O(n³/3). With `raw`, a factor of the same numbers, only the derivatives are new."""
    weights = task.curvatures(values)
    # The root's slope at 0 is infinite; there the weight itself does not move.
    roots = jnp.where(weights > 0, jnp.sqrt(jnp.where(weights > 0, weights, 1.0)), 0.0)
    matrix = roots[:, None] * task.gram * roots[None, :] + jnp.eye(roots.shape[0], dtype=roots.dtype)
    if raw is not None:
        matrix = matrix + raw.jitter * jnp.eye(roots.shape[0], dtype=roots.dtype)
        return Curvature(roots, DenseFactor(matrix, raw.raw, raw.mask, raw.jitter, raw.result))
    return Curvature(roots, factorise_matrix(matrix, jnp.ones((), matrix.dtype), jnp.ones(roots.shape, bool), max_jitter))


class Minimum(NamedTuple):
    """Where the iteration ended, and how; numbers without derivatives."""

    alpha: Row
    intercept: Scalar
    gradient_norm: Scalar
    """The largest of `|ρ|` and `|Σα|`, relative to the largest of `|α|` and `|C·loss'|`."""
    num_steps: Int[Array, ""]
    jitter: Scalar
    result: Any


class Direction(NamedTuple):
    """A change of α and b, and `Kδα`."""

    alpha: Row
    intercept: Scalar
    fitted: Row


class _Point(NamedTuple):
    alpha: Row
    intercept: Scalar
    fitted: Row
    """`Kα`."""

    @property
    def values(self) -> Row:
        return self.fitted + self.intercept

    def moved(self, by: Direction, length: Scalar) -> "_Point":
        # A direction of length 0 may be NaN.
        return _Point(*(jnp.where(length > 0, old + length * change, old) for old, change in zip(self, by, strict=True)))


class _Moves(NamedTuple):
    point: _Point
    norm: Scalar
    helped: Bool[Array, ""]
    """Whether the last move made the gradient four times smaller, or there was none yet."""
    last: Bool[Array, ""]
    """Whether the first move had nothing to gain."""
    number: Int[Array, ""]


class _State(NamedTuple):
    point: _Point
    norm: Scalar
    steps: Int[Array, ""]
    jitter: Scalar
    factor_result: Any
    done: Bool[Array, ""]


def minimise(task: Task, max_steps: int, max_jitter: float | None) -> Minimum:
    """Newton steps, halved while the objective does not fall, until the gradient is nothing but rounding.

    O(n³/3) a step. The start is α = 0 and the constant that is best for the data.
    """
    task = jax.lax.stop_gradient(task)
    eps = jnp.finfo(task.y.dtype).eps
    zeros, zero = jnp.zeros_like(task.y), jnp.zeros((), task.y.dtype)
    at_zero, pull_at_zero = jnp.sum(jnp.abs(task.losses(zeros))), jnp.max(jnp.abs(task.pulls(zeros)))

    def norm(alpha: Row, pulls: Row) -> Scalar:
        largest = jnp.max(jnp.maximum(jnp.abs(alpha), jnp.abs(pulls)))
        # Where all forces vanish (a constant target), rounding is measured against what they were at f = 0.
        scale = largest + eps**0.5 * jnp.where(jnp.isfinite(pull_at_zero), pull_at_zero, 0.0)
        off = jnp.max(jnp.abs(pulls - alpha)) + (jnp.abs(jnp.sum(alpha)) if task.intercept else 0.0)
        return off / jnp.where(scale == 0, 1.0, scale)

    def step(state: _State) -> _State:
        inner = curvature(task, state.point.values, max_jitter)
        along = inner.along(task)

        def move(moves: _Moves) -> _Moves:
            at = moves.point
            pulls = task.pulls(at.values)
            floor = 1e-10 * jnp.sum(jnp.abs(pulls))
            direction = newton_step(task, inner, along, pulls - at.alpha, -jnp.sum(at.alpha), floor)
            length, decrease, level = _line_search(task, at, pulls, direction)
            point = at.moved(direction, length)
            now = norm(point.alpha, task.pulls(point.values))
            # Where no more than rounding was to be gained, this was the last step: an error of √ε becomes one of ε.
            last = (decrease <= eps * level + eps**1.5 * at_zero) | (length == 0)
            return _Moves(
                point, now, now < 0.25 * moves.norm, jnp.where(moves.number == 0, last, moves.last), moves.number + 1
            )

        # Near the minimum W hardly changes, and moves with the old factor, O(n²) each, are almost as good as new ones.
        yes, no = jnp.asarray(True), jnp.asarray(False)
        start = _Moves(state.point, state.norm, yes, no, jnp.asarray(0))
        end = jax.lax.while_loop(lambda moves: moves.helped & (moves.norm > eps**0.75), move, start)
        factor = inner.factor
        done = end.last | ~(end.norm > eps**0.75)
        return _State(end.point, end.norm, state.steps + 1, factor.jitter, factor.result, done)

    intercept = _best_constant(task) if task.intercept else zero
    first = norm(zeros, task.pulls(zeros + intercept))
    fitted = matmul(task.gram, zeros)
    # Not `first <= …`: NaN is to end the loop. A Gram matrix that is not finite makes NaN of zeros.
    done = ~(first > eps**0.75) | jnp.any(jnp.isnan(fitted))
    fine = Result.where(jnp.asarray(True), Result.successful, Result.empty)
    start = _State(_Point(zeros, intercept, fitted), first, jnp.asarray(0), zero, fine, done)
    end = jax.lax.while_loop(lambda s: ~s.done & (s.steps < max_steps), step, start)

    result = Result.where(end.done, Result.stalled, Result.max_steps_reached)
    result = Result.where(end.norm <= eps**0.4, Result.successful, result)
    result = Result.where(end.factor_result == Result.successful, result, end.factor_result)
    result = Result.where(jnp.isfinite(end.norm) & jnp.all(jnp.isfinite(end.point.values)), result, Result.nonfinite)
    return Minimum(end.point.alpha, end.point.intercept, end.norm, end.steps, end.jitter, result)


def newton_step(task: Task, inner: Curvature, along: Row | None, residual: Row, total: Scalar, floor: Any) -> Direction:
    """`δα` and `δb` with `(I + WK)δα + Wδb = residual` and `Σδα = total`; linear in both. `along` is `S1`.

    Where the curvature along b is less than `floor`, the floor takes its place; where both are 0, b stays.
    """
    alpha, intercept = residual - inner(matmul(task.gram, residual)), jnp.zeros_like(total)
    if along is not None:
        stiffness = jnp.maximum(jnp.sum(along), floor)
        intercept = jnp.where(stiffness > 0, (jnp.sum(alpha) - total) / jnp.where(stiffness > 0, stiffness, 1.0), 0.0)
        alpha = alpha - intercept * along
    return Direction(alpha, intercept, matmul(task.gram, alpha))


def _line_search(task: Task, at: _Point, pulls: Row, direction: Direction) -> tuple[Scalar, Scalar, Scalar]:
    """The largest of 1, ½, ¼, … that makes the objective fall as it should (0 if none does), the decrease that the quadratic
    model promises, and the size of the objective's terms. O(n) a trial: K is not met again."""
    eps = jnp.finfo(task.y.dtype).eps
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
        losses = task.losses(at.values + length * change)
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


def _best_constant(task: Task) -> Scalar:
    """A constant close to the minimum of `Σ C loss(y, b)`, whose slope rises: doubled until it is passed, then halved."""

    def slope(b: Scalar) -> Scalar:
        return -jnp.sum(task.pulls(jnp.full_like(task.y, b)))

    zero = jnp.zeros((), task.y.dtype)
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


def attached(task: Task, alpha: Row, intercept: Scalar, max_jitter: float | None, raw: DenseFactor | None = None) -> Any:
    """α and b with the derivatives that they have as functions of everything in `task`, of any order: at the minimum
    `(I + WK)δα + Wδb = δρ` with `Σδα = 0`, one more system like that of a step. Nothing, if they are not asked for."""
    arrays, static = eqx.partition(task, eqx.is_inexact_array)
    constants = jax.lax.stop_gradient((alpha, intercept))

    @jax.custom_jvp
    def at_minimum(arrays: Any, constants: Any, raw: Any) -> Any:
        return constants

    @at_minimum.defjvp
    def _(primals, tangents):
        arrays, constants, raw = primals
        # Not the constants: differentiated once more, these must still depend on the arrays.
        alpha, intercept = at_minimum(arrays, constants, raw)

        def residual(arrays: Any) -> Row:
            task: Task = eqx.combine(arrays, static)
            return task.pulls(task.values(alpha, intercept)) - alpha

        _, change = jax.jvp(residual, (arrays,), (tangents[0],))
        task = eqx.combine(arrays, static)
        inner = curvature(task, task.values(alpha, intercept), max_jitter, raw)
        step = newton_step(task, inner, inner.along(task), change, jnp.zeros_like(intercept), 0.0)
        return (alpha, intercept), (step.alpha, step.intercept)

    return at_minimum(arrays, constants, raw)
