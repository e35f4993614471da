"""The derivatives of what a System answers, in closed form, over one operator `A = K + diag(shift)`.

Autodiff *through* a factorisation costs several times the factorisation. Here the factor is a constant, and the derivatives
are those of A itself:

    δ(A⁻¹ b) = A⁻¹ (δb - δA A⁻¹ b),   δ(bᵀA⁻¹b) = 2 sᵀδb - sᵀδA s,   δ log det A = tr(A⁻¹ δA),   δ A⁻¹ = -A⁻¹ δA A⁻¹.

`δA v` is JAX's derivative of the operator's `mv`, whether A consists of numbers (`MatrixGram`) or of hyperparameters and
rows (`Gram`). Each rule is written with functions that have rules themselves, so derivatives of any order, forward and
reverse, are right. (A plain `custom_jvp` for `solve` would not be: its transpose would fall back on the raw solve, whose
factor is constant.) Nothing is computed for what is not differentiated: its tangent is `None`.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.grams import AbstractGram, MatrixGram
from kernax.solvers import _raw


class AbstractRaw(eqx.Module):
    """What a strategy knows to do with its own factor of A; never differentiated."""

    @abc.abstractmethod
    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """`A⁻¹ b`."""

    @abc.abstractmethod
    def logdet(self) -> Float[Array, ""]:
        """`log det A`."""

    @abc.abstractmethod
    def inverse_triangle(self) -> Float[Array, "n n"]:
        """The upper triangle of `A⁻¹`; below it may stand anything."""


class Shifted(eqx.Module):
    """`A = K + diag(shift)` as an operator."""

    gram: AbstractGram
    shift: Float[Array, " n"]

    def mv(self, v: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """`A v`."""
        return self.gram.mv(v) + self.shift[:, None] * v

    def dense(self) -> Float[Array, "n n"]:
        """A, evaluated."""
        return self.gram.dense() + jnp.diag(self.shift)


def of_matrix(matrix: Float[Array, "n n"]) -> Shifted:
    """An explicit matrix as an operator."""
    n = matrix.shape[0]
    return Shifted(MatrixGram(None, None, jnp.ones(n, bool), matrix), jnp.zeros(n, matrix.dtype))


def solve(
    operator: Shifted, run: Callable[[Array], tuple[Array, Any]], b: Float[Array, "n p"]
) -> tuple[Float[Array, "n p"], Any]:
    """`A⁻¹ b` for every column, and what `run` reports beside it; `run` solves with numbers and is never differentiated."""
    return jax.lax.custom_linear_solve(operator.mv, b, lambda _, v: run(v), symmetric=True, has_aux=True)


def solve_by(operator: Shifted, raw: AbstractRaw, b: Float[Array, "n p"]) -> Float[Array, "n p"]:
    """`A⁻¹ b` for every column, by a raw factor."""
    return jax.lax.custom_linear_solve(operator.mv, b, lambda _, v: raw.solve(v), symmetric=True)


@eqx.filter_custom_jvp
def known_solution(
    operator: Shifted, raw: AbstractRaw, b: Float[Array, "n p"], solved: Float[Array, "n p"]
) -> Float[Array, "n p"]:
    """`A⁻¹ b`, which is known to be `solved`, with the derivatives of `solve_by`."""
    return solved


@known_solution.def_jvp
def _known_solution_jvp(primals, tangents):
    (operator, raw, b, _), (change, _, d_b, _) = primals, tangents
    moved = eqx.filter_jvp(lambda operator, b: solve_by(operator, raw, b), (operator, b), (change, d_b))[1]
    return known_solution(*primals), moved


def solve_matrix(matrix: Float[Array, "n n"], raw: AbstractRaw, b: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
    """`A⁻¹ b` for an explicit symmetric matrix and a raw factor of it."""
    columns = b[:, None] if b.ndim == 1 else b
    answer = jax.lax.custom_linear_solve(
        lambda v: matmul(matrix, v), columns, solve=lambda _, v: raw.solve(v), symmetric=True
    )
    return answer.reshape(b.shape)


def _moved(function: Callable[[Shifted], Array], operator: Shifted, change: Any) -> Array:
    """The derivative of `function(operator)` along a change of the operator."""
    return eqx.filter_jvp(function, (operator,), (change,))[1]


@eqx.filter_custom_jvp
def quadratic(operator: Shifted, b: Float[Array, "n p"], solved: Float[Array, "n p"]) -> Float[Array, " p"]:
    """`bᵀ A⁻¹ b` for every column of b, from `solved = A⁻¹ b`."""
    return jnp.sum(b * solved, axis=0)


@quadratic.def_jvp
def _quadratic_jvp(primals, tangents):
    # Through `solved` it would be the same, for the price of another solve.
    (operator, b, solved), (change, d_b, _) = primals, tangents
    return quadratic(operator, b, solved), _slope_of_quadratic(operator, solved, change, d_b)


def _slope_of_quadratic(operator: Shifted, solved: Float[Array, "n p"], change: Any, d_b: Array | None) -> Array:
    """`2 sᵀδb - sᵀδA s` for every column."""
    slope = _moved(lambda a: -jnp.sum(solved * a.mv(solved), axis=0), operator, change)
    return slope if d_b is None else slope + 2.0 * jnp.sum(solved * d_b, axis=0)


@eqx.filter_custom_jvp
def explained(operator: Shifted, raw: Any, cross: Float[Array, "n m"]) -> Float[Array, " m"]:
    """`cᵀ A⁻¹ c` for every column, by one triangular solve; only the derivative needs the second one."""
    return jnp.sum(raw.half_solve(cross) ** 2, axis=0)


@explained.def_jvp
def _explained_jvp(primals, tangents):
    (operator, raw, cross), (change, _, d_cross) = primals, tangents
    slope = _slope_of_quadratic(operator, solve_by(operator, raw, cross), change, d_cross)
    return explained(operator, raw, cross), slope


@eqx.filter_custom_jvp
def logdet(operator: Shifted, raw: AbstractRaw) -> Float[Array, ""]:
    """`log det A` if K is stored."""
    return raw.logdet()


@logdet.def_jvp
def _logdet_jvp(primals, tangents):
    (operator, raw), (change, _) = primals, tangents
    if operator.gram.kernel is None:
        # The tangent of a matrix from the user may be non-zero in a single entry.
        weights = inverse(operator, raw)
    else:
        # A kernel's K and δK are symmetric: one triangle of the inverse, off-diagonal entries twice, spares its mirroring.
        triangle = inverse_triangle(operator, raw)
        weights = jnp.where(jnp.eye(operator.gram.n, dtype=bool), triangle, 2.0 * triangle)
    entries = jnp.diagonal(weights)

    def trace(a: Shifted) -> Array:
        return jnp.vdot(weights, a.gram.dense(), precision="highest") + jnp.sum(entries * a.shift)

    # `logdet` itself, not the raw number: differentiated once more, the value must still depend on A.
    return logdet(operator, raw), _moved(trace, operator, change)


@eqx.filter_custom_jvp
def inverse_triangle(operator: Shifted, raw: AbstractRaw) -> Float[Array, "n n"]:
    """The upper triangle of `A⁻¹`, zeros below."""
    return jnp.triu(raw.inverse_triangle())


@inverse_triangle.def_jvp
def _inverse_triangle_jvp(primals, tangents):
    (operator, raw), (change, _) = primals, tangents
    triangle = inverse_triangle(operator, raw)
    whole = _mirrored(triangle)
    d_matrix = _moved(lambda a: a.dense(), operator, change)
    return triangle, -jnp.triu(matmul(matmul(whole, d_matrix), whole))


def inverse(operator: Shifted, raw: AbstractRaw) -> Float[Array, "n n"]:
    """`A⁻¹`, whole."""
    return _mirrored(inverse_triangle(operator, raw))


def _mirrored(triangle: Float[Array, "n n"]) -> Float[Array, "n n"]:
    # Not `where(i <= j, P, P.T)`: jaxlib 0.10 crashes on CPU for some fusions of it.
    return triangle + jnp.triu(triangle, 1).T


@eqx.filter_custom_jvp
def inverse_diagonal(operator: Shifted, raw: AbstractRaw) -> Float[Array, " n"]:
    """`diag(A⁻¹)`."""
    return jnp.diagonal(raw.inverse_triangle())


@inverse_diagonal.def_jvp
def _inverse_diagonal_jvp(primals, tangents):
    (operator, raw), (change, _) = primals, tangents
    value = inverse(operator, raw)
    d_matrix = _moved(lambda a: a.dense(), operator, change)
    # The diagonal of A⁻¹ δA A⁻¹ needs one product, not two; its transpose, A⁻¹ diag(v) A⁻¹, also needs one.
    return jnp.diagonal(value), -jnp.sum(matmul(d_matrix, value) * value, axis=0)


def half_solve(lower: Float[Array, "n n"], b: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`L⁻¹ b` for a lower triangular matrix, differentiable in both."""
    upper = jax.lax.stop_gradient(lower).T
    return jax.lax.custom_linear_solve(
        lambda v: matmul(lower, v),
        b,
        solve=lambda _, v: _raw.solve_upper_transposed(upper, v),
        transpose_solve=lambda _, v: _raw.solve_upper(upper, v),
    )


def half_solve_transposed(lower: Float[Array, "n n"], b: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`L⁻ᵀ b` for a lower triangular matrix, differentiable in both."""
    upper = jax.lax.stop_gradient(lower).T
    return jax.lax.custom_linear_solve(
        lambda v: matmul(lower.T, v),
        b,
        solve=lambda _, v: _raw.solve_upper(upper, v),
        transpose_solve=lambda _, v: _raw.solve_upper_transposed(upper, v),
    )


@eqx.filter_custom_jvp
def root(operator: Shifted, raw: AbstractRaw, lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The lower Cholesky factor itself, differentiable: `δL = L Φ(L⁻¹ δA L⁻ᵀ)`, Φ the lower half. For drawing samples."""
    return lower


@root.def_jvp
def _root_jvp(primals, tangents):
    (operator, raw, lower), (change, _, _) = primals, tangents
    value = root(operator, raw, lower)
    # By triangular solves: with the inverse of A, the error would be that of its condition number, not of the root of it.
    left = half_solve(value, _moved(lambda a: a.dense(), operator, change))
    inner = half_solve(value, left.T).T
    half = jnp.tril(inner) - 0.5 * jnp.diag(jnp.diagonal(inner))
    return value, matmul(value, half)


@eqx.filter_custom_jvp
def probed_logdet(
    operator: Shifted, value: Float[Array, ""], left: Float[Array, "n s"], right: Float[Array, "n s"]
) -> Float[Array, ""]:
    """`log det A` that was estimated as `value`.

    Its derivative is the mean of `leftᵀ δA right` over columns, where `left rightᵀ` is `A⁻¹` in the mean.
    """
    return value


@probed_logdet.def_jvp
def _probed_logdet_jvp(primals, tangents):
    (operator, value, left, right), (change, *_) = primals, tangents
    slope = _moved(lambda a: jnp.sum(left * a.mv(right)) / right.shape[1], operator, change)
    return probed_logdet(operator, value, left, right), slope
