"""The derivatives of what a factorisation answers, in closed form, once for every dense strategy.

Autodiff *through* a factorisation costs several times the factorisation. Here the factor is a constant (`stop_gradient`),
and the derivatives are those of the matrix A itself:

    δ(A⁻¹ b) = A⁻¹ (δb - δA A⁻¹ b),   δ log det A = tr(A⁻¹ δA),   δ A⁻¹ = -A⁻¹ δA A⁻¹.

Each rule is itself written with these functions, so derivatives of any order, forward and reverse, are right. (A plain
`custom_jvp` for `solve` would not be: its transpose would fall back on the raw solve, whose factor is constant.)
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul


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


def solve(matrix: Float[Array, "n n"], raw: AbstractRaw, b: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
    """`A⁻¹ b`."""
    columns = b[:, None] if b.ndim == 1 else b
    answer = jax.lax.custom_linear_solve(
        lambda v: matmul(matrix, v), columns, solve=lambda _, v: raw.solve(v), symmetric=True
    )
    return answer.reshape(b.shape)


@jax.custom_jvp
def logdet(matrix: Float[Array, "n n"], raw: AbstractRaw) -> Float[Array, ""]:
    """`log det A`."""
    return raw.logdet()


@logdet.defjvp
def _logdet_jvp(primals, tangents):
    (matrix, raw), (d_matrix, _) = primals, tangents
    # A and δA are symmetric: one triangle of the inverse, off-diagonal entries twice, spares its mirroring.
    triangle = inverse_triangle(matrix, raw)
    weighted = jnp.where(jnp.eye(matrix.shape[0], dtype=bool), triangle, 2.0 * triangle)
    # `logdet` itself, not the raw number: differentiated once more, the value must still depend on A.
    return logdet(matrix, raw), jnp.vdot(weighted, d_matrix, precision="highest")


@jax.custom_jvp
def inverse_triangle(matrix: Float[Array, "n n"], raw: AbstractRaw) -> Float[Array, "n n"]:
    """The upper triangle of `A⁻¹`, zeros below."""
    return jnp.triu(raw.inverse_triangle())


@inverse_triangle.defjvp
def _inverse_triangle_jvp(primals, tangents):
    (matrix, raw), (d_matrix, _) = primals, tangents
    triangle = inverse_triangle(matrix, raw)
    whole = _mirrored(triangle)
    return triangle, -jnp.triu(matmul(matmul(whole, d_matrix), whole))


def inverse(matrix: Float[Array, "n n"], raw: AbstractRaw) -> Float[Array, "n n"]:
    """`A⁻¹`, whole."""
    return _mirrored(inverse_triangle(matrix, raw))


def _mirrored(triangle: Float[Array, "n n"]) -> Float[Array, "n n"]:
    # Not `where(i <= j, P, P.T)`: jaxlib 0.10 crashes on CPU for some fusions of it.
    return triangle + jnp.triu(triangle, 1).T


@jax.custom_jvp
def inverse_diagonal(matrix: Float[Array, "n n"], raw: AbstractRaw) -> Float[Array, " n"]:
    """`diag(A⁻¹)`."""
    return jnp.diagonal(raw.inverse_triangle())


@inverse_diagonal.defjvp
def _inverse_diagonal_jvp(primals, tangents):
    (matrix, raw), (d_matrix, _) = primals, tangents
    value = inverse(matrix, raw)
    # The diagonal of A⁻¹ δA A⁻¹ needs one product, not two; its transpose, A⁻¹ diag(v) A⁻¹, also needs one.
    return jnp.diagonal(value), -jnp.sum(matmul(d_matrix, value) * value, axis=0)


@jax.custom_jvp
def root(matrix: Float[Array, "n n"], raw: AbstractRaw, lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The lower Cholesky factor itself, differentiable: `δL = L Φ(L⁻¹ δA L⁻ᵀ)`, Φ the lower half. For drawing samples."""
    return lower


@root.defjvp
def _root_jvp(primals, tangents):
    (matrix, raw, lower), (d_matrix, _, _) = primals, tangents
    value = root(matrix, raw, lower)
    # L⁻¹ as Lᵀ A⁻¹, so that it is differentiable in A as well.
    inverse_root = matmul(value.T, inverse(matrix, raw))
    inner = matmul(matmul(inverse_root, d_matrix), inverse_root.T)
    half = jnp.tril(inner) - 0.5 * jnp.diag(jnp.diagonal(inner))
    return value, matmul(value, half)
