"""The spectral strategy: one eigendecomposition serves every noise."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.grams import MatrixGram, masked
from kernax.solvers import _raw
from kernax.solvers import _spectral as spectral
from kernax.solvers._jitter import diagonal, jitter_ladder, mean_diagonal, rounding_share
from kernax.solvers._result import Result
from kernax.solvers._solver import AbstractSolver
from kernax.solvers._system import AbstractSystem, Solution, is_usable


class Outlook(eqx.Module):
    """A few numbers that decide, for any noise, whether the matrix can be factorised and with which jitter."""

    lowest: Float[Array, ""]
    """The smallest eigenvalue."""
    mean_diagonal: Float[Array, ""]
    largest_diagonal: Float[Array, ""]
    count: Float[Array, ""]
    failure: Any
    """The status if no jitter is enough."""

    def at(self, noise: Float[Array, ""], noise_free: Bool[Array, ""], max_jitter: float | None) -> tuple[Array, Any]:
        """The least jitter that lifts all eigenvalues above rounding, and the status."""
        dtype = self.lowest.dtype
        rungs = jnp.asarray(jitter_ladder(dtype, max_jitter), dtype) * (self.mean_diagonal + noise)
        floor = rounding_share(self.count) * (self.largest_diagonal + noise)
        jitter = jnp.min(jnp.where(self.lowest + noise + rungs > floor, rungs, jnp.inf))
        good = Result.where(noise_free & (jitter > 0), Result.singular, Result.successful)
        failure = Result.where(jnp.isfinite(noise), self.failure, Result.nonfinite)
        ok = jnp.isfinite(jitter)
        result = Result.where(self.count > 0, Result.where(ok, good, failure), Result.empty)
        return jnp.where(ok, jitter, 0.0), result


class EighSystem(AbstractSystem):
    """A system solved by `K = V Λ Vᵀ`. Another noise costs O(n²), without forming `K + noise·I`.

    Many noises under `vmap` share one n × n matrix of eigenvectors. If the noise is given per row, the eigenvectors are
    those of `K + diag(noise)`.

    **Arguments:**

    - `gram`: the kernel matrix.
    - `noise`: the noise variance, one number or one for each row.
    - `spectrum`: eigenvalues and eigenvectors.
    - `outlook`: which jitter other noises would need.
    - `jitter`: the jitter that was added to the diagonal.
    - `result`: how the preparation ended.
    - `max_jitter`: as in [`kernax.Eigh`][].
    """

    gram: MatrixGram  # pyright: ignore[reportIncompatibleVariableOverride]
    noise: Float[Array, "*n"]
    spectrum: spectral.Spectrum
    outlook: Outlook
    jitter: Float[Array, ""]
    result: Any
    max_jitter: float | None = eqx.field(static=True)

    def _solve(self, columns):
        return Solution(spectral.shifted_solve(*self._parts, columns), self.result)

    def _logdet(self):
        return spectral.shifted_logdet(*self._parts)

    def inverse_diagonal(self):
        entries = spectral.shifted_inverse_diagonal(*self._parts, 1)
        return self._or_nan(jnp.where(self.gram.mask, entries, 1.0))

    def inverse_blocks(self, rows):
        return self._or_nan(spectral.shifted_inverse_blocks(*self._parts, rows, 1))

    def shifted(self, noise):
        if self.noise.ndim:
            return None
        return _assembled(self.gram, noise, self.spectrum, self.outlook, self.max_jitter)

    def eigenvalues(self):
        if self.noise.ndim:
            return None
        values = spectral.eigenvalues(self.gram.matrix, self.spectrum.vectors, self.spectrum.values)
        return jnp.where(self.spectrum.counts, values, jnp.nan)

    def draw(self, key, number):
        matrix, spectrum, shift = self._parts
        roots = jnp.where(spectrum.counts, jnp.sqrt(jnp.maximum(spectrum.values + shift, 0.0)), 0.0)
        shocks = jax.random.normal(key, (self.gram.n, number), matrix.dtype)
        return self._columns(matmul(spectrum.vectors, roots[:, None] * shocks))

    @property
    def _parts(self) -> tuple[Array, spectral.Spectrum, Array]:
        """The matrix whose eigenvectors are known, those, and what is added to its eigenvalues."""
        matrix, shift = _decomposed(self.gram, self.noise)
        shift = shift + self.jitter
        # What failed answers as the identity, behind a NaN that is chosen last. Only the eigenvalues are exchanged: they
        # are one vector for each noise, where the vectors are one matrix for all.
        stand_in = 1.0 - jax.lax.stop_gradient(shift)
        values = jnp.where(is_usable(self.result), self.spectrum.values, stand_in)
        return matrix, spectral.Spectrum(self.spectrum.vectors, values, self.spectrum.counts), shift


class Eigh(AbstractSolver):
    """Eigendecomposition of K: O(n³), about 15 times as slow as Cholesky at n = 1000. Any other noise then costs only O(n²).

    **Arguments:**

    - `max_jitter`: the largest jitter allowed, relative to the mean diagonal; 1e-6 in float64 and 1e-2 in float32 if
      `None`.
    """

    max_jitter: float | None = eqx.field(static=True, default=None)

    def bytes_needed(self, n, itemsize, *, gradient=False):
        # K, its eigenvectors, and what LAPACK works in. Measured: 5.15, and 6.15 to 7.15 with the gradient.
        return (6 if gradient else 5) * n * n * itemsize

    def prepare(self, gram, noise):
        gram = gram.evaluated()
        constant = jax.lax.stop_gradient(_decomposed(gram, noise)[0])
        spectrum = _spectrum(constant, gram.mask)
        return _assembled(gram, noise, spectrum, _outlook(constant, spectrum, gram.mask), self.max_jitter)


def _decomposed(gram: MatrixGram, noise: Float[Array, "*n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """The matrix to decompose and the common shift: K and the noise, or `K + diag(noise)` and 0."""
    if noise.ndim == 0:
        return gram.matrix, noise
    return gram.matrix + jnp.diag(jnp.where(gram.mask, noise, 0.0)), jnp.zeros((), noise.dtype)


def _spectrum(matrix: Float[Array, "n n"], mask: Bool[Array, " n"]) -> spectral.Spectrum:
    """The spectrum over the rows that count, those of masked rows put last."""
    # Masked rows get an eigenvalue above all others, so that they come last and mix with none.
    trace = jnp.sum(jnp.abs(jnp.where(mask, diagonal(matrix), 0.0)))
    above = jnp.where(trace > 0, 2.0 * trace, 1.0)
    vectors, values = _raw.eigh(masked(matrix, mask) + jnp.diag(jnp.where(mask, 0.0, above)))
    # A matrix with NaN has no eigenvectors: those of the identity stand in, and the eigenvalues say that it failed.
    sound = jnp.all(jnp.isfinite(values))
    vectors = jnp.where(sound, vectors, jnp.eye(mask.shape[0], dtype=matrix.dtype))
    counts = jnp.arange(mask.shape[0]) < jnp.sum(mask)
    return spectral.Spectrum(vectors, jnp.where(sound, values, jnp.nan), counts)


def _outlook(matrix: Float[Array, "n n"], spectrum: spectral.Spectrum, mask: Bool[Array, " n"]) -> Outlook:
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


def _assembled(
    gram: MatrixGram,
    noise: Float[Array, "*n"],
    spectrum: spectral.Spectrum,
    outlook: Outlook,
    max_jitter: float | None,
) -> EighSystem:
    constant = jax.lax.stop_gradient(noise)
    noise_free = jnp.any(jnp.where(gram.mask, constant, 1.0) == 0)
    common = constant if noise.ndim == 0 else jnp.zeros((), noise.dtype)
    jitter, result = outlook.at(common, noise_free, max_jitter)
    return EighSystem(
        gram=gram,
        noise=noise,
        spectrum=spectrum,
        outlook=outlook,
        jitter=jitter,
        result=result,
        max_jitter=max_jitter,
    )
