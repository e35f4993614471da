"""Kernels that leave polynomials free: the system with its border, solved in the space where the kernel is definite.

A conditionally definite kernel comes with a basis P of functions that cost nothing, and the bordered system

    [[K + noise·I, P], [Pᵀ, 0]] [alpha; beta] = [y; 0].

Its border says `Pᵀ alpha = 0`. With the projection `M = I - P(PᵀP)⁻¹Pᵀ` onto such vectors, `M K M` is positive
semi-definite, and the upper left block of the bordered inverse is `B = M A⁻¹ M` with the definite matrix
`A = M(K + noise·I)M + level·P(PᵀP)⁻¹Pᵀ`.
B is to this system what `(K + noise·I)⁻¹` is to the plain one: alpha, leave-one-out, folds, degrees of freedom and the
(restricted) likelihood are the same formulas in it. Any strategy that factorises a definite matrix serves.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.kernels import AbstractKernel, Rows, free_functions, num_rows
from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _raw
from kernax.solvers._factor import AbstractFactor, RawCholesky, diagonal, is_usable, masked_gram
from kernax.solvers._result import Result


class Projection(eqx.Module):
    """The border P, what undoes it, and the level on which its directions are kept out of the way."""

    basis: Float[Array, "n q"]
    """P, zero in masked rows."""
    weights: Float[Array, "n q"]
    """`W = P(PᵀP)⁻¹`: `W p(x)` are weights on the rows that reproduce every free function at x."""
    carried: Float[Array, "n q"]
    """`K W`."""
    level: Float[Array, ""]
    independent: Bool[Array, ""]

    def __call__(self, columns: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """`M v`."""
        return columns - matmul(self.weights, matmul(self.basis.T, columns))

    def of_matrix(self, matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
        """`M A M + level·P(PᵀP)⁻¹Pᵀ`, O(n² q)."""
        half = self(matrix)
        whole = half - matmul(matmul(half, self.basis), self.weights.T) + self.level * matmul(self.weights, self.basis.T)
        return 0.5 * (whole + whole.T)


class ProjectedFactor(AbstractFactor):
    """A factor of the bordered system: `solve` gives `B b`, `logdet` that of the system on vectors with `Pᵀv = 0`."""

    inner: AbstractFactor
    projection: Projection
    noise: Float[Array, "*n"]
    least_noise: Float[Array, ""]
    """Over the rows that count: what lies on the inner matrix's diagonal."""
    jitter: Float[Array, ""]
    result: Any

    def solve(self, b):
        columns = b[:, None] if b.ndim == 1 else b
        return self._or_nan(self.projection(self.inner.solve(self.projection(columns)))).reshape(b.shape)

    def logdet(self):
        return self._or_nan(self.inner.logdet() - self.projection.basis.shape[1] * jnp.log(self._level))

    def inverse_diagonal(self):
        free = jnp.sum(self.projection.weights * self.projection.basis, axis=1)
        entries = self.inner.inverse_diagonal() - free / self._level
        # A row that alone determines a free function has the entry 0, which the difference shows to rounding only.
        alone = 1.0 - free < 1e3 * jnp.finfo(free.dtype).eps
        return self._or_nan(jnp.where(alone, 0.0, entries))

    def inverse_blocks(self, rows):
        free = matmul(self.projection.weights[rows], jnp.swapaxes(self.projection.basis[rows], 1, 2))
        return self._or_nan(self.inner.inverse_blocks(rows) - free / self._level)

    def determined_without(self, rows, filled):
        basis = self.projection.basis
        moments = matmul(basis.T, basis)

        def determined(rows: Array, filled: Array) -> Array:
            gone = jnp.where(filled[:, None], basis[rows], 0.0)
            return are_independent(jax.lax.stop_gradient(moments - matmul(gone.T, gone)))[0]

        return jax.vmap(determined)(rows, filled)

    def condition_estimate(self):
        return self._or_nan(self.inner.condition_estimate())

    def shifted(self, noise):
        if self.noise.ndim:
            raise TypeError("noise given per row has no common shift: give the model one noise for all rows.")
        noise = jnp.asarray(noise, self.noise.dtype)
        return _wrapped(self.inner.shifted(noise), self.projection, noise, noise)

    @property
    def carried(self) -> Float[Array, "n q"]:
        """`(K + noise·I) W`."""
        noise = self.noise[:, None] if self.noise.ndim else self.noise
        return self.projection.carried + (noise + self.jitter) * self.projection.weights

    @property
    def _level(self) -> Float[Array, ""]:
        return self.projection.level + self.least_noise + self.jitter

    def _or_nan(self, value: Array) -> Array:
        return jnp.where(is_usable(self.result), value, jnp.nan)


def projected(
    kernel: AbstractKernel,
    x: Rows,
    noise: Float[Array, "*n"],
    mask: Bool[Array, " n"],
    factorise: Callable[[Array, Array, Array], AbstractFactor],
) -> AbstractFactor:
    """`factorise(gram, noise, mask)`, for a conditionally definite kernel in the space where it is definite."""
    gram = kernel.gram(x, None)
    if not kernel.is_conditional:
        return factorise(gram, noise, mask)
    gram = masked_gram(gram, mask)
    projection = _projection(kernel, gram, x, mask)
    # The projection of unequal noise is no diagonal: what exceeds the smallest one belongs to the matrix.
    least = jnp.min(jnp.where(mask, noise, jnp.inf)) if noise.ndim else noise
    uneven = gram + jnp.diag(jnp.where(mask, noise - least, 0.0)) if noise.ndim else gram
    return _wrapped(factorise(projection.of_matrix(uneven), least, mask), projection, noise, least)


def _wrapped(
    inner: AbstractFactor, projection: Projection, noise: Float[Array, "*n"], least: Float[Array, ""]
) -> ProjectedFactor:
    enough = projection.independent | (inner.result == Result.empty)
    result = Result.where(enough, inner.result, Result.rank_deficient)
    return ProjectedFactor(
        inner=inner, projection=projection, noise=noise, least_noise=least, jitter=inner.jitter, result=result
    )


def are_independent(moments: Float[Array, "q q"]) -> tuple[Bool[Array, ""], Float[Array, "q q"]]:
    """Whether columns of order 1 with these moments are linearly independent to rounding, and the moments' factor."""
    upper = _raw.cholesky(moments, jnp.zeros_like(diagonal(moments)))
    # A pivot this small shows columns that depend on each other. NaN fails, too.
    least = 1e3 * jnp.finfo(moments.dtype).eps * jnp.maximum(diagonal(moments), 1.0)
    return jnp.all(diagonal(upper) ** 2 > least), upper


def _projection(kernel: AbstractKernel, gram: Float[Array, "n n"], x: Rows, mask: Bool[Array, " n"]) -> Projection:
    basis = jnp.where(mask[:, None], free_functions(kernel, x, x, mask), 0.0)
    rows, columns = basis.shape
    if rows < columns:
        raise ValueError(
            f"{kernel!r} leaves {columns} functions free (its polynomials), which {num_rows(x)} rows cannot determine: "
            f"give at least {columns} rows."
        )
    moments = matmul(basis.T, basis)
    independent, upper = are_independent(jax.lax.stop_gradient(moments))
    identity = jnp.eye(columns, dtype=moments.dtype)
    moments = jnp.where(independent, moments, identity)
    weights = derivatives.solve(moments, RawCholesky(jnp.where(independent, upper, identity)), basis.T).T
    # The mean eigenvalue of M K M: lifted to there, the free directions change no condition number.
    of_free = jnp.sum(weights * matmul(gram, basis))
    level = jax.lax.stop_gradient((jnp.sum(diagonal(gram)) - of_free) / jnp.maximum(jnp.sum(mask) - columns, 1))
    return Projection(basis, weights, matmul(gram, weights), jnp.where(level > 0, level, 1.0), independent)
