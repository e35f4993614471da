"""The spectral strategy: one eigendecomposition serves every noise."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _raw
from kernax.solvers._factor import (
    AbstractFactor,
    AbstractSolver,
    DenseFactor,
    diagonal,
    jitter_ladder,
    mean_diagonal,
    rounding_level,
    status,
    system_matrix,
)


class RawEigh(derivatives.AbstractRaw):
    """`A = V diag(values) Vᵀ`; entries that belong to masked rows are 1."""

    vectors: Float[Array, "n n"]
    values: Float[Array, " n"]

    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return matmul(self.vectors, matmul(self.vectors.T, b) / self.values[:, None])

    def logdet(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(self.values))

    def inverse_triangle(self) -> Float[Array, "n n"]:
        return matmul(self.vectors / self.values, self.vectors.T)


class SpectralFactor(AbstractFactor):
    """A factor that can be moved to another noise in O(n²): what a whole ridge path asks for."""

    dense: DenseFactor
    gram: Float[Array, "n n"]
    vectors: Float[Array, "n n"]
    spectrum: Float[Array, " n"]
    jitter: Float[Array, ""]
    result: Any
    max_jitter: float | None = eqx.field(static=True)

    def solve(self, b):
        return self.dense.solve(b)

    def logdet(self):
        return self.dense.logdet()

    def inverse_diagonal(self):
        return self.dense.inverse_diagonal()

    def condition_estimate(self):
        values = jnp.where(jnp.arange(self.spectrum.shape[0]) < jnp.sum(self.dense.mask), self.dense.raw.values, jnp.nan)
        return jnp.nanmax(values) / jnp.nanmin(values)

    def shifted(self, noise: Any) -> "SpectralFactor":
        """The factor of `K + noise·I` for another noise, from the same eigendecomposition."""
        noise = jnp.asarray(noise, self.gram.dtype)
        if noise.ndim:
            raise ValueError("a spectral factor moves to another noise only if the noise is one number for all rows.")
        return _assemble(self.gram, self.vectors, self.spectrum, noise, self.dense.mask, self.max_jitter)


class Eigh(AbstractSolver):
    """`K = V Λ Vᵀ`, O(n³), some 15 times a Cholesky factorisation at n = 1000, then any noise in O(n²).

    Noise given per row leaves no common shift: the eigendecomposition is then of `K + diag(noise)` itself.
    """

    max_jitter: float | None = eqx.field(static=True, default=None)

    def factorise(self, kernel, x, noise, mask):
        gram = kernel.gram(x, None)
        on_rows = jax.lax.stop_gradient(jnp.where(mask[:, None] & mask[None, :], gram, 0.0))
        if noise.ndim == 1:
            on_rows = on_rows + jnp.diag(jnp.where(mask, jax.lax.stop_gradient(noise), 0.0).astype(gram.dtype))
        # Masked rows get an eigenvalue above all others, so that they come last and mix with none.
        trace = jnp.sum(jnp.abs(diagonal(on_rows)))
        above = jnp.where(trace > 0, 2.0 * trace, 1.0)
        vectors, spectrum = _raw.eigh(on_rows + jnp.diag(jnp.where(mask, 0.0, above)))
        factor = _assemble(gram, vectors, spectrum, noise, mask, self.max_jitter)
        return factor.dense if noise.ndim == 1 else factor


def _assemble(
    gram: Float[Array, "n n"],
    vectors: Float[Array, "n n"],
    spectrum: Float[Array, " n"],
    noise: Float[Array, "*n"],
    mask: Bool[Array, " n"],
    max_jitter: float | None,
) -> SpectralFactor:
    """`spectrum` is that of K for one noise, that of `K + diag(noise)` for noise given per row."""
    matrix = system_matrix(gram, noise, mask)
    constant, fixed_noise = jax.lax.stop_gradient((matrix, noise))
    entries = diagonal(constant)
    counts = jnp.arange(mask.shape[0]) < jnp.sum(mask)
    values = spectrum if noise.ndim else spectrum + fixed_noise
    rungs = jnp.asarray(jitter_ladder(matrix.dtype, max_jitter), matrix.dtype) * mean_diagonal(entries, mask)
    enough = jnp.min(jnp.where(counts, values, jnp.inf)) + rungs > jnp.max(
        jnp.where(mask, rounding_level(entries, mask), 0.0)
    )
    ok = jnp.any(enough)
    jitter = jnp.where(ok, rungs[jnp.argmax(enough)], 0.0)
    values = jnp.where(counts & ok, values + jitter, 1.0)
    identity = jnp.eye(mask.shape[0], dtype=matrix.dtype)
    result = status(ok, constant, fixed_noise, mask, jitter)
    raw = RawEigh(jnp.where(ok, vectors, identity), values)
    dense = DenseFactor(matrix + jitter * identity, raw, mask, jitter, result)
    return SpectralFactor(
        dense=dense, gram=gram, vectors=vectors, spectrum=spectrum, jitter=jitter, result=result, max_jitter=max_jitter
    )
