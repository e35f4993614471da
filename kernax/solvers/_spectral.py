"""The derivatives of `(K + shift·I)⁻ᵖ` where K is known by its eigenvectors, for many shifts that share them.

Nothing of size n × n is formed for a derivative in the shift alone.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul


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
    """Whether nothing is differentiated there, so that the O(n³) terms of a derivative in K can be left out."""
    return isinstance(tangent, SymbolicZero)


@jax.custom_jvp
def eigenvalues(matrix: Float[Array, "n n"], vectors: Float[Array, "n n"], values: Float[Array, " n"]) -> Float[Array, " n"]:
    """The eigenvalues of a symmetric matrix, differentiable to first order: `vᵀ δK v`.

    Of equal eigenvalues only the sum of derivatives is right, and a symmetric function of them asks for no more.
    """
    return values


@eigenvalues.defjvp
def _eigenvalues_jvp(primals, tangents):
    (matrix, vectors, values), (d_matrix, _, _) = primals, tangents
    return eigenvalues(matrix, vectors, values), jnp.sum(vectors * matmul(d_matrix, vectors), axis=0)
