"""The derivatives of what a factorisation answers, in closed form, once for every dense strategy.

Autodiff *through* a factorisation costs several times the factorisation. Here the factor is a constant (`stop_gradient`),
and the derivatives are those of the matrix A itself:

    δ(A⁻¹ b) = A⁻¹ (δb - δA A⁻¹ b),   δ log det A = tr(A⁻¹ δA),   δ A⁻¹ = -A⁻¹ δA A⁻¹.

Each rule is itself written with these functions, so derivatives of any order, forward and reverse, are right. (A plain
`custom_jvp` for `solve` would not be: its transpose would fall back on the raw solve, whose factor is constant.)
"""

from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul


class RawFactor(Protocol):
    """What a strategy knows to do with its own factor of A; never differentiated."""

    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]: ...

    def logdet(self) -> Float[Array, ""]: ...

    def inverse(self) -> Float[Array, "n n"]: ...


def solve(matrix: Float[Array, "n n"], raw: RawFactor, b: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
    """`A⁻¹ b`."""
    columns = b[:, None] if b.ndim == 1 else b
    answer = jax.lax.custom_linear_solve(
        lambda v: matmul(matrix, v), columns, solve=lambda _, v: raw.solve(v), symmetric=True
    )
    return answer.reshape(b.shape)


@jax.custom_jvp
def logdet(matrix: Float[Array, "n n"], raw: RawFactor) -> Float[Array, ""]:
    """`log det A`."""
    return raw.logdet()


@logdet.defjvp
def _logdet_jvp(primals, tangents):
    (matrix, raw), (d_matrix, _) = primals, tangents
    return raw.logdet(), jnp.vdot(inverse(matrix, raw), d_matrix, precision="highest")


@jax.custom_jvp
def inverse(matrix: Float[Array, "n n"], raw: RawFactor) -> Float[Array, "n n"]:
    """`A⁻¹`, whole."""
    return raw.inverse()


@inverse.defjvp
def _inverse_jvp(primals, tangents):
    (matrix, raw), (d_matrix, _) = primals, tangents
    value = inverse(matrix, raw)
    return value, -matmul(matmul(value, d_matrix), value)


@jax.custom_jvp
def inverse_diagonal(matrix: Float[Array, "n n"], raw: RawFactor) -> Float[Array, " n"]:
    """`diag(A⁻¹)`."""
    return jnp.diagonal(raw.inverse())


@inverse_diagonal.defjvp
def _inverse_diagonal_jvp(primals, tangents):
    (matrix, raw), (d_matrix, _) = primals, tangents
    value = inverse(matrix, raw)
    # The diagonal of A⁻¹ δA A⁻¹ needs one product, not two; its transpose, A⁻¹ diag(v) A⁻¹, also needs one.
    return jnp.diagonal(value), -jnp.sum(matmul(value, d_matrix) * value, axis=1)


@jax.custom_jvp
def root(matrix: Float[Array, "n n"], raw: RawFactor, lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
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
