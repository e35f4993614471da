"""The default strategy: a Cholesky factorisation, with as little jitter as it takes."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _raw
from kernax.solvers._factor import (
    AbstractSolver,
    DenseFactor,
    RawCholesky,
    diagonal,
    is_usable,
    jitter_ladder,
    mean_diagonal,
    rounding_level,
    status,
    system_matrix,
)
from kernax.solvers._tail import projected


class Cholesky(AbstractSolver):
    """Direct and exact: O(n³/3) once, O(n²) per right-hand side.

    Tried first without jitter; if the matrix is not numerically definite, jitter grows by factors of 10 from ten
    roundings of the mean diagonal up to `max_jitter` (relative; default 1e-6 in float64, 1e-2 in float32). What was
    needed is reported as `jitter` and never counted as noise.
    """

    max_jitter: float | None = eqx.field(static=True, default=None)

    def factorise(self, kernel, x, noise, mask):
        def of_gram(gram, noise, mask):
            return factorise_matrix(system_matrix(gram, noise, mask), noise, mask, self.max_jitter)

        return projected(kernel, x, noise, mask, of_gram)


def factorise_matrix(
    matrix: Float[Array, "n n"], noise: Float[Array, "*n"], mask: Bool[Array, " n"], max_jitter: float | None = None
) -> DenseFactor:
    """A Cholesky factor of an explicit symmetric matrix, masked rows being rows of the identity."""
    constant = jax.lax.stop_gradient(matrix)
    upper, jitter, ok = _jittered(constant, mask, jitter_ladder(matrix.dtype, max_jitter))
    result = status(ok, constant, jax.lax.stop_gradient(noise), mask, jitter)
    shifted = matrix + jnp.diag(jnp.where(mask, jitter, 0.0))
    return DenseFactor(shifted, RawCholesky(upper), mask, jitter, result)


def _jittered(
    matrix: Float[Array, "n n"], mask: Bool[Array, " n"], ladder: tuple[float, ...]
) -> tuple[Float[Array, "n n"], Float[Array, ""], Bool[Array, ""]]:
    """The upper factor of the matrix with the least jitter on the ladder, that jitter, and whether there was one."""
    entries = diagonal(matrix)
    scale, floor = mean_diagonal(entries, mask), rounding_level(entries, mask)
    # Past the last rung stands ∞, which factorises the identity instead: a failed factor is finite, and flagged.
    # One by one: a constant array would be hoisted out of a loop, batched, and refused by `custom_vmap`.
    rungs = jnp.stack([jnp.zeros_like(scale), *(rung * scale for rung in ladder[1:]), jnp.full_like(scale, jnp.inf)])

    def climb(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rung = state[0] + 1
        upper = _raw.cholesky(matrix, jnp.where(mask | jnp.isinf(rungs[rung]), rungs[rung], 0.0))
        # Not definite for a NaN pivot, too: no comparison with it holds.
        definite = (rung == len(ladder)) | jnp.all(diagonal(upper) ** 2 > floor)
        return rung, upper, definite

    start = (jnp.asarray(-1), matrix, jnp.asarray(False))
    rung, upper, _ = jax.lax.while_loop(lambda state: ~state[-1], climb, start)
    ok = rung < len(ladder)
    return upper, jnp.where(ok, rungs[rung], 0.0), ok


def draw_root(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`L` with `L Lᵀ = matrix`, jittered if need be, differentiable: a covariance's root for drawing samples.

    A covariance may be semi-definite (an interpolated point has variance 0), so the whole ladder of jitter is allowed.
    """
    n = matrix.shape[0]
    factor = factorise_matrix(matrix, jnp.ones((), matrix.dtype), jnp.ones(n, bool), max_jitter=1e-2)
    lower = derivatives.root(factor.matrix, factor.raw, jnp.triu(factor.raw.upper).T)
    return jnp.where(is_usable(factor.result), lower, jnp.nan)


class RawDefinite(derivatives.AbstractRaw):
    """A itself, factorised anew for every question: for small systems that are asked once."""

    matrix: Float[Array, "n n"]

    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return _raw.solve_definite(self.matrix, b)

    def logdet(self) -> Float[Array, ""]:
        return RawCholesky(_raw.cholesky(self.matrix, jnp.zeros_like(diagonal(self.matrix)))).logdet()

    def inverse_triangle(self) -> Float[Array, "n n"]:
        return self.solve(jnp.eye(self.matrix.shape[0], dtype=self.matrix.dtype))


def solve_definite(matrix: Float[Array, "n n"], b: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
    """`A⁻¹ b` for a matrix that is definite as it stands, differentiable; NaN if it is not."""
    return derivatives.solve(matrix, RawDefinite(jax.lax.stop_gradient(matrix)), b)
