"""Least squares by QR, and the saddle-point form of ridge regression: numbers from a factor, derivatives in closed form."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernax._arrays import matmul
from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _raw
from kernax.solvers._jitter import diagonal
from kernax.solvers._result import Result


class RawQR(derivatives.AbstractRaw):
    """`ΦᵀΦ` by the triangle of `Φ[:, order] = Q R`."""

    upper: Float[Array, "q q"]
    order: Int[Array, " q"]

    def solve(self, b: Float[Array, "q m"]) -> Float[Array, "q m"]:
        return self.half_solve(_raw.solve_upper_transposed(self.upper, b[self.order]))

    def half_solve(self, b: Float[Array, "q m"]) -> Float[Array, "q m"]:
        """`R⁻¹ b`, in the order of the columns."""
        return jnp.zeros_like(b).at[self.order].set(_raw.solve_upper(self.upper, b))

    def logdet(self) -> Float[Array, ""]:
        return 2.0 * jnp.sum(jnp.log(jnp.abs(diagonal(self.upper))))

    def inverse_triangle(self) -> Float[Array, "q q"]:
        return self.solve(jnp.eye(self.upper.shape[0], dtype=self.upper.dtype))


class ColumnFactor(eqx.Module):
    """The factorisation `Q R` of a design `Φ` (n ≥ q) whose columns are first scaled to length 1.

    Rows that do not count are rows of zeros. If the columns are linearly dependent, every answer is NaN, and `result` is
    `rank_deficient`.

    **Arguments:**

    - `design`: Φ with scaled columns.
    - `scale`: the lengths of the columns before.
    - `basis`: Q.
    - `raw`: the factorisation as LAPACK stores it.
    - `rank`: the numerical rank of Φ.
    - `result`: `successful` or `rank_deficient`.
    """

    design: Float[Array, "n q"]
    scale: Float[Array, " q"]
    basis: Float[Array, "n q"]
    raw: RawQR
    rank: Int[Array, ""]
    result: Any

    def solve(self, y: Float[Array, "n *p"]) -> Float[Array, "q *p"]:
        """The θ that minimises `‖y - Φθ‖²`, as `R⁻¹ Qᵀ y`. Errors grow with the condition number of Φ, not its square.

        **Arguments:**

        - `y`: targets, `(n,)` or `(n, p)`.

        **Returns:**

        The coefficients, `(q,)` or `(q, p)`.
        """
        columns = y[:, None] if y.ndim == 1 else y
        weights = _coefficients(self.design, columns, self.basis, self.raw) / self.scale[:, None]
        return self._or_nan(weights.reshape((-1, *y.shape[1:])))

    def leverage(self) -> Float[Array, " n"]:
        """The leverage of each row, `diag(Φ(ΦᵀΦ)⁻¹Φᵀ)`: the squared norms of the rows of Q.

        **Returns:**

        An array `(n,)`.
        """
        return self._or_nan(_leverage(self.design, self.basis, self.raw))

    def _or_nan(self, value: Array) -> Array:
        return jnp.where(self.result == Result.successful, value, jnp.nan)


def factorise_columns(design: Float[Array, "n q"]) -> ColumnFactor:
    """The QR factorisation of a design matrix, with its numerical rank. O(nq²).

    **Arguments:**

    - `design`: `(n, q)` with n ≥ q. Rows that do not count are rows of zeros.

    **Returns:**

    A `ColumnFactor`. Its `result` is `rank_deficient` if the columns depend linearly on each other.
    """
    n, q = design.shape
    norms = jnp.linalg.norm(jax.lax.stop_gradient(design), axis=0)
    scale = jnp.where(norms > 0, norms, 1.0)
    scaled = design / scale
    basis, upper, order = _raw.qr(jax.lax.stop_gradient(scaled))
    sizes = jnp.abs(diagonal(upper))
    rank = jnp.sum(sizes > jnp.finfo(design.dtype).eps * max(n, q) * sizes[0])
    full = rank == q
    raw = RawQR(jnp.where(full, upper, jnp.eye(q, dtype=design.dtype)), order)
    result = Result.where(full, Result.successful, Result.rank_deficient)
    return ColumnFactor(scaled, scale, basis, raw, rank, result)


@jax.custom_jvp
def _coefficients(
    design: Float[Array, "n q"], y: Float[Array, "n p"], basis: Float[Array, "n q"], raw: RawQR
) -> Float[Array, "q p"]:
    return raw.half_solve(matmul(basis.T, y))


@_coefficients.defjvp
def _coefficients_jvp(primals, tangents):
    (design, y, basis, raw), (d_design, d_y, _, _) = primals, tangents
    # `_coefficients` itself and the differentiable `solve`, so that derivatives of any order are right.
    value = _coefficients(design, y, basis, raw)
    residual = y - matmul(design, value)
    change = matmul(design.T, d_y - matmul(d_design, value)) + matmul(d_design.T, residual)
    return value, derivatives.solve_matrix(matmul(design.T, design), raw, change)


@jax.custom_jvp
def _leverage(design: Float[Array, "n q"], basis: Float[Array, "n q"], raw: RawQR) -> Float[Array, " n"]:
    return jnp.sum(basis**2, axis=1)


@_leverage.defjvp
def _leverage_jvp(primals, tangents):
    (design, basis, raw), (d_design, _, _) = primals, tangents

    def by_normal_equations(design: Array) -> Array:
        return jnp.sum(design * derivatives.solve_matrix(matmul(design.T, design), raw, design.T).T, axis=1)

    _, change = jax.jvp(by_normal_equations, (design,), (d_design,))
    return _leverage(design, basis, raw), change


class RawLU(derivatives.AbstractRaw):
    """Any invertible matrix, as `L U` with its rows reordered."""

    packed: Float[Array, "n n"]
    order: Int[Array, " n"]

    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return _raw.solve_lu(self.packed, self.order, b)

    def logdet(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(jnp.abs(diagonal(self.packed))))

    def inverse_triangle(self) -> Float[Array, "n n"]:
        return self.solve(jnp.eye(self.packed.shape[0], dtype=self.packed.dtype))


def solve_saddle_point(
    design: Float[Array, "n q"], ridge: Float[Array, ""], y: Float[Array, "n *p"]
) -> tuple[Float[Array, "q *p"], Any]:
    """Solve `[[λI, Ψ], [Ψᵀ, -I]] [c; r] = [0; y]` with `Ψ = Φᵀ`: ridge regression without forming `ΦᵀΦ`. O((n + q)³).

    The system is symmetric and indefinite, and is solved by LU. It contains Φ itself, and no square of it.

    **Arguments:**

    - `design`: Φ, `(n, q)`.
    - `ridge`: λ, one number.
    - `y`: targets, `(n,)` or `(n, p)`.

    **Returns:**

    The coefficients `c`, `(q,)` or `(q, p)`, and the status. The coefficients are NaN if the status is `rank_deficient`.
    """
    n, q = design.shape
    # Columns of length 1, at the price of one ridge a column: the pivots then show a singular system whatever the units.
    norms = jnp.linalg.norm(jax.lax.stop_gradient(design), axis=0)
    scale = jnp.where(norms > 0, norms, 1.0)
    scaled = design / scale
    identity = jnp.eye(n, dtype=design.dtype)
    matrix = jnp.block([[jnp.diag(ridge / scale**2), scaled.T], [scaled, -identity]])
    packed, order = _raw.lu(jax.lax.stop_gradient(matrix))
    pivots = jnp.abs(diagonal(packed))
    regular = jnp.min(pivots) > jnp.finfo(design.dtype).eps * (n + q)
    raw = RawLU(jnp.where(regular, packed, jnp.eye(n + q, dtype=design.dtype)), order)
    columns = y[:, None] if y.ndim == 1 else y
    right = jnp.concatenate([jnp.zeros((q, columns.shape[1]), y.dtype), columns])
    weights = derivatives.solve_matrix(matrix, raw, right)[:q] / scale[:, None]
    answer = jnp.where(regular, weights, jnp.nan).reshape((q, *y.shape[1:]))
    return answer, Result.where(regular, Result.successful, Result.rank_deficient)
