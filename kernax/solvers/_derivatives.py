"""The derivatives of what a factorisation answers, in closed form, once for every dense strategy.

Autodiff *through* a factorisation costs several times the factorisation. Here the factor is a constant (`stop_gradient`),
and the derivatives are those of the matrix A itself:

    δ(A⁻¹ b) = A⁻¹ (δb - δA A⁻¹ b),   δ log det A = tr(A⁻¹ δA),   δ A⁻¹ = -A⁻¹ δA A⁻¹.

Each rule is itself written with these functions, so derivatives of any order, forward and reverse, are right. (A plain
`custom_jvp` for `solve` would not be: its transpose would fall back on the raw solve, whose factor is constant.)
"""

import abc
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, Int

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
def quadratic(matrix: Float[Array, "n n"], b: Float[Array, "n *p"], solved: Float[Array, "n *p"]) -> Float[Array, "*p"]:
    """`bᵀ A⁻¹ b` for every column of b, from `solved = A⁻¹ b`."""
    return jnp.sum(b * solved, axis=0)


@quadratic.defjvp
def _quadratic_jvp(primals, tangents):
    # Through `solved` it would be the same, for the price of another solve: δ(bᵀA⁻¹b) = 2 sᵀδb - sᵀδA s.
    (matrix, b, solved), (d_matrix, d_b, _) = primals, tangents
    through_matrix = jnp.sum(solved * matmul(d_matrix, solved), axis=0)
    return quadratic(matrix, b, solved), 2.0 * jnp.sum(solved * d_b, axis=0) - through_matrix


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


class Spectrum(eqx.Module):
    """`K = V diag(values) Vᵀ` over the rows that count: constants, with the derivatives in the functions below."""

    vectors: Float[Array, "n n"]
    values: Float[Array, " n"]
    counts: Bool[Array, " n"]

    def inverse_powers(self, shift: Float[Array, ""], power: int) -> Float[Array, " n"]:
        """`(values + shift)⁻ᵖ`, 0 for the eigenvectors of masked rows."""
        safe = jnp.where(self.counts, self.values + shift, 1.0)
        return jnp.where(self.counts, safe**-power, 0.0)


def shifted_solve(
    gram: Float[Array, "n n"], spectrum: Spectrum, shift: Float[Array, ""], b: Float[Array, "n m"]
) -> Float[Array, "n m"]:
    """`(K + shift·I)⁻¹ b`, O(n²), without forming the matrix: many shifts under `vmap` share K and its vectors."""
    vectors, weights = spectrum.vectors, spectrum.inverse_powers(jax.lax.stop_gradient(shift), 1)
    return jax.lax.custom_linear_solve(
        lambda v: matmul(gram, v) + shift * v,
        b,
        solve=lambda _, v: matmul(vectors, weights[:, None] * matmul(vectors.T, v)),
        symmetric=True,
    )


@jax.custom_jvp
def shifted_logdet(gram: Float[Array, "n n"], spectrum: Spectrum, shift: Float[Array, ""]) -> Float[Array, ""]:
    """`log det (K + shift·I)` over the rows that count."""
    return jnp.sum(jnp.log(jnp.where(spectrum.counts, spectrum.values + shift, 1.0)))


@partial(shifted_logdet.defjvp, symbolic_zeros=True)
def _shifted_logdet_jvp(primals, tangents):
    (gram, spectrum, shift), (d_gram, _, d_shift) = primals, tangents
    slope = jnp.zeros_like(shift)
    if not _is_zero(d_shift):
        slope = jnp.sum(shifted_inverse_diagonal(gram, spectrum, shift, 1)) * d_shift
    if not _is_zero(d_gram):
        slope = slope + jnp.vdot(_shifted_inverse(gram, spectrum, shift, 1), d_gram, precision="highest")
    return shifted_logdet(gram, spectrum, shift), slope


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def shifted_inverse_diagonal(
    gram: Float[Array, "n n"], spectrum: Spectrum, shift: Float[Array, ""], power: int
) -> Float[Array, " n"]:
    """`diag((K + shift·I)⁻ᵖ)`, O(n²); 0 in masked rows. Higher powers are what its derivatives ask for."""
    return matmul(spectrum.vectors**2, spectrum.inverse_powers(shift, power))


@partial(shifted_inverse_diagonal.defjvp, symbolic_zeros=True)
def _shifted_inverse_diagonal_jvp(power, primals, tangents):
    return _power_and_slope(
        lambda p: shifted_inverse_diagonal(*primals, p),
        lambda left, change, right: jnp.sum(matmul(left, change) * right, axis=1),
        power,
        primals,
        tangents,
    )


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def shifted_inverse_blocks(
    gram: Float[Array, "n n"], spectrum: Spectrum, shift: Float[Array, ""], rows: Int[Array, "k m"], power: int
) -> Float[Array, "k m m"]:
    """Square blocks of `(K + shift·I)⁻ᵖ`, one for each set of rows: O(k m² n)."""
    some = spectrum.vectors[rows]
    return matmul(some * spectrum.inverse_powers(shift, power), jnp.swapaxes(some, 1, 2))


@partial(shifted_inverse_blocks.defjvp, symbolic_zeros=True)
def _shifted_inverse_blocks_jvp(power, primals, tangents):
    rows = primals[3]
    return _power_and_slope(
        lambda p: shifted_inverse_blocks(*primals, p),
        lambda left, change, right: matmul(left[rows], matmul(change, right[:, rows].swapaxes(0, 1))),
        power,
        primals[:3],
        tangents[:3],
    )


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _shifted_inverse(
    gram: Float[Array, "n n"], spectrum: Spectrum, shift: Float[Array, ""], power: int
) -> Float[Array, "n n"]:
    """`(K + shift·I)⁻ᵖ`, whole, O(n³)."""
    return matmul(spectrum.vectors * spectrum.inverse_powers(shift, power), spectrum.vectors.T)


@partial(_shifted_inverse.defjvp, symbolic_zeros=True)
def _shifted_inverse_jvp(power, primals, tangents):
    return _power_and_slope(
        lambda p: _shifted_inverse(*primals, p),
        lambda left, change, right: matmul(matmul(left, change), right),
        power,
        primals,
        tangents,
    )


def _power_and_slope(part, between, power, primals, tangents):
    """`part(p)` of `A⁻ᵖ` for `A = K + shift·I`, and its derivative: `-p·part(p+1)` in the shift; in K, where
    `δ(A⁻ᵖ) = -Σ_j A⁻ʲ δK A^-(p+1-j)`, the same part of each product, as `between` computes it."""
    (gram, spectrum, shift), (d_gram, _, d_shift) = primals, tangents
    value = part(power)
    slope = jnp.zeros_like(value)
    if not _is_zero(d_shift):
        slope = -power * part(power + 1) * d_shift
    if not _is_zero(d_gram):
        inverses = [_shifted_inverse(gram, spectrum, shift, j) for j in range(1, power + 1)]
        for left, right in zip(inverses, reversed(inverses), strict=True):
            slope = slope - between(left, d_gram, right)
    return value, slope


def _is_zero(tangent) -> bool:
    """Whether nothing is differentiated there: the O(n³) terms of a derivative in the shift alone are left out."""
    return isinstance(tangent, SymbolicZero)
