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
    is_usable,
    jitter_ladder,
    masked_gram,
    mean_diagonal,
    rounding_share,
    system_matrix,
)
from kernax.solvers._result import Result
from kernax.solvers._tail import projected


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


class Outlook(eqx.Module):
    """What decides, for any noise, whether the matrix can be factorised: a few numbers, found once."""

    lowest: Float[Array, ""]
    """The smallest eigenvalue of K."""
    mean_diagonal: Float[Array, ""]
    largest_diagonal: Float[Array, ""]
    count: Float[Array, ""]
    failure: Any
    """The status if no jitter is enough."""

    def at(self, noise: Float[Array, ""], max_jitter: float | None) -> tuple[Float[Array, ""], Any]:
        """The least jitter that lifts all eigenvalues above rounding, and the status."""
        dtype = self.lowest.dtype
        rungs = jnp.asarray(jitter_ladder(dtype, max_jitter), dtype) * (self.mean_diagonal + noise)
        floor = rounding_share(self.count) * (self.largest_diagonal + noise)
        jitter = jnp.min(jnp.where(self.lowest + noise + rungs > floor, rungs, jnp.inf))
        good = Result.where((noise == 0) & (jitter > 0), Result.singular, Result.successful)
        failure = Result.where(jnp.isfinite(noise), self.failure, Result.nonfinite)
        ok = jnp.isfinite(jitter)
        result = Result.where(self.count > 0, Result.where(ok, good, failure), Result.empty)
        return jnp.where(ok, jitter, 0.0), result


class SpectralFactor(AbstractFactor):
    """A factor that can be moved to another noise: what a whole ridge path asks for.

    The matrix `K + noise·I` is never formed, so that many noises under `vmap` share the one n × n matrix of eigenvectors;
    each answers `solve`, `logdet` and `inverse_diagonal` in O(n²).
    """

    gram: Float[Array, "n n"]
    spectrum: derivatives.Spectrum
    outlook: Outlook
    noise: Float[Array, ""]
    mask: Bool[Array, " n"]
    jitter: Float[Array, ""]
    result: Any
    max_jitter: float | None = eqx.field(static=True)

    def solve(self, b):
        on_rows = jnp.where(self.mask[:, None], b[:, None] if b.ndim == 1 else b, 0.0)
        answer = derivatives.shifted_solve(self.gram, self._spectrum, self._shift, on_rows)
        return self._or_nan(jnp.where(self.mask[:, None], answer, 0.0).reshape(b.shape))

    def logdet(self):
        return self._or_nan(derivatives.shifted_logdet(self.gram, self._spectrum, self._shift))

    def inverse_diagonal(self):
        entries = derivatives.shifted_inverse_diagonal(self.gram, self._spectrum, self._shift, 1)
        return self._or_nan(jnp.where(self.mask, entries, 1.0))

    def inverse_blocks(self, rows):
        return self._or_nan(derivatives.shifted_inverse_blocks(self.gram, self._spectrum, self._shift, rows, 1))

    def condition_estimate(self):
        values = jnp.where(self.spectrum.counts, self.spectrum.values + self._shift, jnp.nan)
        return self._or_nan(jnp.nanmax(values) / jnp.nanmin(values))

    def shifted(self, noise):
        noise = jnp.asarray(noise, self.gram.dtype)
        if noise.ndim:
            raise ValueError("a spectral factor moves to another noise only if the noise is one number for all rows.")
        return _assemble(self.gram, self.spectrum, self.outlook, noise, self.mask, self.max_jitter)

    @property
    def _spectrum(self) -> derivatives.Spectrum:
        """What failed answers as the identity, behind a NaN that is chosen last. Only the eigenvalues are exchanged: they
        are one vector per noise, where the vectors are one matrix for all."""
        stand_in = 1.0 - jax.lax.stop_gradient(self._shift)
        values = jnp.where(is_usable(self.result), self.spectrum.values, stand_in)
        return derivatives.Spectrum(self.spectrum.vectors, values, self.spectrum.counts)

    @property
    def _shift(self) -> Float[Array, ""]:
        return self.noise + self.jitter

    def _or_nan(self, value: Array) -> Array:
        return jnp.where(is_usable(self.result), value, jnp.nan)


class Eigh(AbstractSolver):
    """`K = V Λ Vᵀ`, O(n³), some 15 times a Cholesky factorisation at n = 1000, then any noise in O(n²).

    Noise given per row leaves no common shift: the eigendecomposition is then of `K + diag(noise)` itself.
    """

    max_jitter: float | None = eqx.field(static=True, default=None)

    def factorise(self, kernel, x, noise, mask):
        return projected(kernel, x, noise, mask, self._of_gram)

    def _of_gram(self, gram: Float[Array, "n n"], noise: Float[Array, "*n"], mask: Bool[Array, " n"]) -> AbstractFactor:
        if noise.ndim == 1:
            return _dense(system_matrix(gram, noise, mask), noise, mask, self.max_jitter)
        gram = masked_gram(gram, mask)
        constant = jax.lax.stop_gradient(gram)
        spectrum = _decompose(constant, mask)
        return _assemble(gram, spectrum, _outlook(constant, spectrum, mask), noise, mask, self.max_jitter)


def _decompose(gram: Float[Array, "n n"], mask: Bool[Array, " n"]) -> derivatives.Spectrum:
    """The spectrum over the rows that count, those of masked rows put last."""
    # Masked rows get an eigenvalue above all others, so that they come last and mix with none.
    trace = jnp.sum(jnp.abs(jnp.where(mask, diagonal(gram), 0.0)))
    above = jnp.where(trace > 0, 2.0 * trace, 1.0)
    vectors, values = _raw.eigh(jnp.where(mask[:, None] & mask[None, :], gram, 0.0) + jnp.diag(jnp.where(mask, 0.0, above)))
    # A matrix with NaN has no eigenvectors: those of the identity stand in, and the eigenvalues say that it failed.
    sound = jnp.all(jnp.isfinite(values))
    vectors = jnp.where(sound, vectors, jnp.eye(mask.shape[0], dtype=gram.dtype))
    counts = jnp.arange(mask.shape[0]) < jnp.sum(mask)
    return derivatives.Spectrum(vectors, jnp.where(sound, values, jnp.nan), counts)


def _outlook(matrix: Float[Array, "n n"], spectrum: derivatives.Spectrum, mask: Bool[Array, " n"]) -> Outlook:
    entries = jnp.where(mask, diagonal(matrix), 0.0)
    # An eigenvalue that is no number shows entries that are none; only such a failure is worth a pass over the matrix.
    sound = jnp.isfinite(spectrum.values[0])
    finite = jax.lax.cond(sound, lambda: jnp.asarray(True), lambda: jnp.all(jnp.isfinite(matrix)))
    return Outlook(
        lowest=jnp.min(jnp.where(spectrum.counts, spectrum.values, jnp.inf)),
        mean_diagonal=mean_diagonal(entries, mask),
        largest_diagonal=jnp.max(entries),
        count=jnp.sum(mask).astype(matrix.dtype),
        failure=Result.where(finite, Result.not_positive_definite, Result.nonfinite),
    )


def _dense(
    matrix: Float[Array, "n n"], noise: Float[Array, " n"], mask: Bool[Array, " n"], max_jitter: float | None
) -> DenseFactor:
    constant = jax.lax.stop_gradient(matrix)
    spectrum = _decompose(constant, mask)
    jitter, result = _outlook(constant, spectrum, mask).at(jnp.zeros((), matrix.dtype), max_jitter)
    ok = is_usable(result)
    noise_free = jnp.any(jnp.where(mask, jax.lax.stop_gradient(noise), 1.0) == 0)
    result = Result.where(ok & ~noise_free, Result.successful, result)
    raw = RawEigh(spectrum.vectors, jnp.where(spectrum.counts & ok, spectrum.values + jitter, 1.0))
    shifted = matrix + jitter * jnp.eye(mask.shape[0], dtype=matrix.dtype)
    return DenseFactor(matrix=shifted, raw=raw, mask=mask, jitter=jitter, result=result)


def _assemble(
    gram: Float[Array, "n n"],
    spectrum: derivatives.Spectrum,
    outlook: Outlook,
    noise: Float[Array, ""],
    mask: Bool[Array, " n"],
    max_jitter: float | None,
) -> SpectralFactor:
    jitter, result = outlook.at(jax.lax.stop_gradient(noise), max_jitter)
    noise = jnp.where(jnp.isfinite(noise), noise, 0.0)
    return SpectralFactor(
        gram=gram,
        spectrum=spectrum,
        outlook=outlook,
        noise=noise,
        mask=mask,
        jitter=jitter,
        result=result,
        max_jitter=max_jitter,
    )
