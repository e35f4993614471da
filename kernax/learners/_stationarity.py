"""The minimum of `Σ C_i loss(y_i, h_i) + ½ αᵀKα`, `h = Kα + b`: its conditions, a Newton step, and its derivatives.

At the minimum `α = -C·loss'(h)` and `Σα = 0`. With the curvatures `W = C·loss''(h)` a step solves

    (I + WK) δα + W δb = ρ = -C·loss'(h) - α,   Σδα = -Σα,

where `(I + WK)⁻¹ = I - SK`, `S = √W B⁻¹ √W` and `B = I + √W K √W` (Rasmussen & Williams, algorithm 3.1, with an intercept).
No eigenvalue of B is below 1, whatever K is; nothing is divided by W, which Huber's loss and the squared hinge make 0.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.learners._losses import AbstractLoss, row_curvatures, row_losses, row_slopes
from kernax.solvers import CholeskySystem, factorise_matrix

Scalar = Float[Array, ""]
Row = Float[Array, "n *k"]
"""One number for each row, or one for each row and latent function."""


class AbstractTerm(eqx.Module):
    """A sum of losses of rows, and its derivatives; 0 in rows that do not count."""

    y: eqx.AbstractVar[Row]
    """Targets, in the shape of the latent values."""

    @abc.abstractmethod
    def pulls(self, values: Row) -> Row:
        """The negative slopes: what α is at the minimum."""

    @abc.abstractmethod
    def curvatures(self, values: Row) -> Row:
        """The second derivatives, none of them negative."""

    @abc.abstractmethod
    def losses(self, values: Row) -> Float[Array, " n"]:
        """The loss of each row."""


class DataTerm(AbstractTerm):
    """`Σ C_i loss(y_i, f_i)` and its derivatives. Rows that do not count have a weight of 0."""

    weights: Row
    """C, for each row."""
    y: Row
    loss: AbstractLoss

    def pulls(self, values: Row) -> Row:
        """`-C·loss'`: what α is at the minimum."""
        return -self._counted(row_slopes(self.loss, self.y, values))

    def curvatures(self, values: Row) -> Row:
        """`C·loss''`, 0 where rounding (or a loss that is not convex) makes it negative."""
        return jnp.maximum(self.second_slopes(values), 0.0)

    def second_slopes(self, values: Row) -> Row:
        """`C·loss''`, of any sign."""
        return self._counted(row_curvatures(self.loss, self.y, values))

    def losses(self, values: Row) -> Row:
        """`C·loss`."""
        return self._counted(row_losses(self.loss, self.y, values))

    def _counted(self, rows: Row) -> Row:
        # A plain product would make NaN of a loss that is infinite at what stands behind a mask.
        return jnp.where(self.weights > 0, self.weights * rows, 0.0)


class Task(eqx.Module):
    """What is minimised. Rows that do not count have zeros in `gram`."""

    gram: Float[Array, "n n"]
    term: DataTerm
    intercept: bool = eqx.field(static=True)

    def values(self, alpha: Row, intercept: Scalar) -> Row:
        """`Kα + b`; b in rows that do not count."""
        return matmul(self.gram, alpha) + intercept


class Curvature(eqx.Module):
    """`S = √W B⁻¹ √W`, as the System of `B = I + √W K √W` and the roots of W."""

    roots: Row
    system: CholeskySystem

    def __call__(self, v: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
        """`S v`."""
        roots = self.roots if v.ndim == 1 else self.roots[:, None]
        return roots * self.system.solve(roots * v).value

    def along(self, task: Task) -> Row | None:
        """`S1`: what a change of the intercept meets; None without one."""
        return self(jnp.ones_like(self.roots)) if task.intercept else None


def curvature(
    task: Task, values: Row, max_jitter: float | None, known: CholeskySystem | None = None, least: Row | None = None
) -> Curvature:
    """S at these values, with no W below `least`; O(n³/3). If the System of the same numbers is `known`, only the
    derivatives are new, and nothing is factorised."""
    weights = task.term.curvatures(values) if least is None else jnp.maximum(task.term.curvatures(values), least)
    # The root's slope at 0 is infinite; there the weight itself does not move.
    roots = jnp.where(weights > 0, jnp.sqrt(jnp.where(weights > 0, weights, 1.0)), 0.0)
    matrix = roots[:, None] * task.gram * roots[None, :]
    if known is not None:
        return Curvature(roots, eqx.tree_at(lambda system: system.gram.matrix, known, matrix))
    # Rows that do not count have a weight of 0, so a row of the identity: no jitter belongs there.
    return Curvature(roots, factorise_matrix(matrix, jnp.ones((), matrix.dtype), task.term.weights > 0, max_jitter))


class Direction(NamedTuple):
    """A change of α and b, and `Kδα`."""

    alpha: Row
    intercept: Scalar
    fitted: Row


class Point(NamedTuple):
    """α, b and `Kα`."""

    alpha: Row
    intercept: Scalar
    fitted: Row

    @property
    def values(self) -> Row:
        return self.fitted + self.intercept

    def moved(self, by: Direction, length: Scalar) -> "Point":
        # A direction of length 0 may be NaN.
        return Point(*(jnp.where(length > 0, old + length * change, old) for old, change in zip(self, by, strict=True)))


class AbstractLinearised(eqx.Module):
    """The conditions of a minimum, made linear with the curvatures W at some point."""

    @property
    @abc.abstractmethod
    def jitter(self) -> Scalar:
        """What had to be added to a diagonal."""

    @property
    @abc.abstractmethod
    def result(self) -> Any:
        """How the preparation ended."""

    @abc.abstractmethod
    def direction(self, at: Point, pulls: Row) -> Direction:
        """The Newton step from a point with these pulls."""


class Factorised(AbstractLinearised):
    """By the factor of `I + √W K √W`."""

    task: Task
    inner: Curvature
    along: Row | None
    """`S1`."""

    @property
    def jitter(self):
        return self.inner.system.jitter

    @property
    def result(self):
        return self.inner.system.result

    def direction(self, at, pulls):
        floor = 1e-10 * jnp.sum(jnp.abs(pulls))
        return newton_step(self.task, self.inner, self.along, pulls - at.alpha, -jnp.sum(at.alpha), floor)


def factorised(task: Task, values: Row, max_jitter: float | None, least: Row) -> Factorised:
    """The conditions with the curvatures at these values, none of them below `least`; O(n³/3)."""
    inner = curvature(task, values, max_jitter, least=least)
    return Factorised(task, inner, inner.along(task))


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


def missing_force(follows: Callable[[Row], Row], missing: Row, change: Row) -> Row:
    """The force `Vh` of a negative curvature -V that a step took for 0; O(n³).

    A force v moves the values by `Σv = follows(v)`, Σ symmetric. With the change `h₀` that the step found, the right one is
    `h = h₀ + ΣVh`, so that `√V h = (I - √V Σ √V)⁻¹ √V h₀`. The matrix is definite where the minimum is strict.
    """
    roots = jnp.where(missing > 0, jnp.sqrt(jnp.where(missing > 0, missing, 1.0)), 0.0)
    matrix = jnp.eye(len(roots), dtype=roots.dtype) - roots * jax.vmap(follows)(jnp.diag(roots))
    system = factorise_matrix(0.5 * (matrix + matrix.T), jnp.zeros((), roots.dtype), jnp.ones(len(roots), bool))
    return roots * system.solve(roots * change).value


def attached(
    task: Task, alpha: Row, intercept: Scalar, max_jitter: float | None, known: CholeskySystem | None = None
) -> Any:
    """α and b with the derivatives that they have as functions of everything in `task`, of any order.

    At the minimum `(I + WK)δα + Wδb = δρ` with `Σδα = 0`: one more system like that of a step. It costs nothing unless
    differentiated.
    """
    arrays, static = eqx.partition(task, eqx.is_inexact_array)
    constants = jax.lax.stop_gradient((alpha, intercept))

    @jax.custom_jvp
    def at_minimum(arrays: Any, constants: Any, known: Any) -> Any:
        return constants

    @at_minimum.defjvp
    def _(primals, tangents):
        arrays, constants, known = primals
        # Not the constants: differentiated once more, these must still depend on the arrays.
        alpha, intercept = at_minimum(arrays, constants, known)

        def residual(arrays: Any) -> Row:
            task: Task = eqx.combine(arrays, static)
            return task.term.pulls(task.values(alpha, intercept)) - alpha

        _, change = jax.jvp(residual, (arrays,), (tangents[0],))
        task = eqx.combine(arrays, static)
        inner = curvature(task, task.values(alpha, intercept), max_jitter, known)
        along = inner.along(task)
        step = newton_step(task, inner, along, change, jnp.zeros_like(intercept), 0.0)[:2]
        if task.term.loss.surrogate is not None:
            # Where the loss bends down, W was taken for 0 in this step.
            missing = jnp.maximum(-task.term.second_slopes(task.values(alpha, intercept)), 0.0)

            def step_by(force: Row) -> Direction:
                return newton_step(task, inner, along, force, jnp.zeros_like(intercept), 0.0)

            def follows(force: Row) -> Row:
                found = step_by(force)
                return found.fitted + found.intercept

            more = step_by(missing_force(follows, missing, matmul(task.gram, step[0]) + step[1]))
            step = (step[0] + more.alpha, step[1] + more.intercept)
        return (alpha, intercept), step

    return at_minimum(arrays, constants, known)
