"""Any System with functions P left free: splines and universal kriging.

The bordered system is `[[A, P], [Pᵀ, 0]] [alpha; beta] = [b; 0]`. The upper left block of its inverse,

    B = A⁻¹ - A⁻¹P (PᵀA⁻¹P)⁻¹ PᵀA⁻¹,

is to it what `A⁻¹` is to the plain system: alpha, leave-one-out, folds and degrees of freedom are the same formulas in B.
The evidence is the restricted one, that of the data's orthonormal contrasts that do not see P. It needs `_solve`, `_mean`
and `_variance` of the System inside and nothing else, so it wraps every System.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.kernels import AbstractTrend
from kernax.rows import Rows, take
from kernax.solvers import _raw
from kernax.solvers import _spectral as spectral
from kernax.solvers._cholesky import logdet_definite, solve_definite
from kernax.solvers._jitter import diagonal
from kernax.solvers._result import Result
from kernax.solvers._system import AbstractSystem, Solution, is_usable, worse


class Bordered(AbstractSystem):
    """A System in which the coefficients of the functions of a trend are free. See the docstring of the module.

    **Arguments:**

    - `inner`: the System of the kernel alone.
    - `trend`: the functions.
    - `scale`: the numbers by which the functions are divided, so that they are of order 1 on the rows that count.
    - `basis`: P, the values of the functions; 0 in masked rows.
    - `carried`: `A⁻¹ P`, from which the inner System predicts.
    - `moments`: the matrix `Pᵀ A⁻¹ P`.
    - `result`: how the preparation ended.
    """

    inner: AbstractSystem
    trend: AbstractTrend
    scale: Float[Array, " q"]
    basis: Float[Array, "n q"]
    carried: Solution
    moments: Float[Array, "q q"]
    result: Any

    @property
    def gram(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.gram

    @property
    def noise(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.noise

    @property
    def jitter(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.jitter

    @property
    def is_exact(self):
        return self.inner.is_exact

    @property
    def num_free(self):
        return self.basis.shape[1]

    @property
    def _numbers_per_row(self):
        return self.inner._numbers_per_row

    def _solve(self, columns):
        plain = self.inner._solve(columns)
        free = self._of_moments(matmul(self.carried.value.T, columns))
        value = plain.value - matmul(self.carried.value, free)
        return plain._replace(value=value, kept=(free, plain))

    def _logdet(self):
        return self.inner._logdet() + self._logdet_of_free()

    def _evidence(self, columns):
        plain, seen = self.inner._evidence(columns), matmul(self.carried.value.T, columns)
        free = jnp.sum(seen * self._of_moments(seen), axis=0)
        return plain._replace(quadratic=plain.quadratic - free, logdet=plain.logdet + self._logdet_of_free())

    def _located(self, x):
        return x, self.inner._located(x)

    def _mean(self, x, solution):
        free, plain = solution.kept
        return self.inner._mean(x[1], plain) + matmul(self._missed(x), free)

    def _variance(self, x):
        plain, missed = self.inner._variance(x[1]), self._missed(x).T
        return plain._replace(value=plain.value + jnp.sum(missed * self._of_moments(missed), axis=0))

    def _covariance(self, x, z):
        plain, left = self.inner._covariance(x, z), self._missed(self._located(x))
        right = left if z is None else self._missed(self._located(z))
        return plain._replace(value=plain.value + matmul(left, self._of_moments(right.T)))

    def expansion(self, solution):
        free, _ = solution.kept
        plain = self.inner.expansion(solution)
        return None if plain is None else (plain[0], free / self.scale[:, None])

    def summand_moments(self, x, solution, owners):
        free, plain = solution.kept
        number = plain.value.shape[1]
        both = jax.tree.map(
            lambda one, other: jnp.concatenate([one, other], axis=-1),
            (plain.value, plain.kept),
            (self.carried.value, self.carried.kept),
        )
        moments = self.inner.summand_moments(x, plain._replace(value=both[0], kept=both[1]), owners)
        if moments is None:
            return None
        means, carried = moments[0][..., :number], moments[0][..., number:]  # the latter are `PᵀA⁻¹k_j(X, x)`
        own = np.arange(len(carried))[:, None, None] == np.array(owners, int)
        missed = jnp.where(own, self.trend(x) / self.scale, 0.0) - carried
        of_free = jax.vmap(lambda rows: jnp.sum(rows * self._of_moments(rows.T).T, axis=1))(missed)
        return means + matmul(missed, free), moments[1] + of_free

    def inverse_diagonal(self):
        entries, carried = self.inner.inverse_diagonal(), self.carried.value
        if entries is None:
            return None
        entries = entries - jnp.sum(carried * self._of_moments(carried.T).T, axis=1)
        # A row that alone determines a free function has the entry 0, which the difference shows to rounding only.
        share = jnp.sum(self.basis * solve_definite(self._plain_moments(), self.basis.T).T, axis=1)
        alone = 1.0 - share < 1e3 * jnp.finfo(share.dtype).eps
        return self._or_nan(jnp.where(alone, 0.0, entries))

    def inverse_blocks(self, rows):
        entries, some = self.inner.inverse_blocks(rows), self.carried.value[rows]
        if entries is None:
            return None
        free = self._of_moments(jnp.eye(self.num_free, dtype=some.dtype))
        return self._or_nan(entries - matmul(matmul(some, free), jnp.swapaxes(some, 1, 2)))

    def ending(self, columns):
        return self.inner.ending(columns)

    def shifted(self, noise):
        inner = self.inner.shifted(noise)
        return None if inner is None else _wrapped(inner, self.trend, self.scale, self.basis)

    def restricted(self, mask):
        inner = self.inner.restricted(mask)
        return None if inner is None else with_trend(inner, self.trend)

    def appended(self, gram, noise):
        inner = self.inner.appended(gram, noise)
        return None if inner is None else with_trend(inner, self.trend)

    def eigenvalues(self):
        """The eigenvalues of `M K M`, where M projects onto vectors orthogonal to P; 0 for the directions of P. O(n³)."""
        if self.inner.eigenvalues() is None:
            return None
        weights = solve_definite(self._plain_moments(), self.basis.T).T
        half = self.gram.dense()
        half = half - matmul(weights, matmul(self.basis.T, half))
        matrix = half - matmul(matmul(half, self.basis), weights.T)
        matrix = 0.5 * (matrix + matrix.T)
        vectors, values = _raw.eigh(jax.lax.stop_gradient(matrix))
        values = spectral.eigenvalues(matrix, vectors, values)
        # Masked rows bring zeros: the smallest values in size are theirs.
        last = jnp.argsort(jnp.argsort(-jnp.abs(jax.lax.stop_gradient(values)))) >= jnp.sum(self.gram.mask)
        return jnp.where(last, jnp.nan, values)

    def determined_without(self, rows, filled):
        basis = jax.lax.stop_gradient(self.basis)
        moments = matmul(basis.T, basis)

        def determined(rows: Array, filled: Array) -> Array:
            gone = jnp.where(filled[:, None], basis[rows], 0.0)
            return _are_independent(moments - matmul(gone.T, gone))

        return jax.vmap(determined)(rows, filled)

    def _of_moments(self, b: Float[Array, "q m"]) -> Float[Array, "q m"]:
        return solve_definite(self.moments, b)

    def _plain_moments(self) -> Float[Array, "q q"]:
        """`PᵀP`; the identity where that is singular."""
        moments = matmul(self.basis.T, self.basis)
        return jnp.where(is_usable(self.result), moments, jnp.eye(self.num_free, dtype=moments.dtype))

    def _logdet_of_free(self) -> Float[Array, ""]:
        return logdet_definite(self.moments) - logdet_definite(self._plain_moments())

    def _missed(self, x: tuple[Rows, Rows]) -> Float[Array, "m q"]:
        """`p(x) - PᵀA⁻¹k(X, x)`: what the kernel does not carry over of the free functions, at rows from `_located`."""
        return self.trend(x[0]) / self.scale - self.inner._mean(x[1], self.carried)


def with_trend(inner: AbstractSystem, trend: AbstractTrend) -> Bordered:
    """A System in which the coefficients of a trend's functions are free.

    **Arguments:**

    - `inner`: the System of the kernel alone.
    - `trend`: the functions.

    **Returns:**

    A `Bordered` System. Its `result` is `rank_deficient` if the data do not determine the coefficients. Raises `ValueError`
    if there are fewer rows than functions.
    """
    gram = inner.gram
    x = take(gram.x)
    trend = trend.scaled(x, gram.mask)
    values = inner._columns(trend(x))
    n, number = values.shape
    if n < number:
        raise ValueError(
            f"the trend leaves {number} functions free (of a spline, its polynomials), which {n} rows cannot determine: "
            f"give at least {number} rows."
        )
    size = jax.lax.stop_gradient(jnp.sqrt(jnp.sum(values**2, axis=0) / jnp.maximum(jnp.sum(gram.mask), 1)))
    scale = jnp.where(size > 0, size, 1.0)
    return _wrapped(inner, trend, scale, values / scale)


def _wrapped(inner: AbstractSystem, trend: AbstractTrend, scale: Array, basis: Array) -> Bordered:
    independent = _are_independent(jax.lax.stop_gradient(matmul(basis.T, basis)))
    carried = inner._solve(basis)
    carried = carried._replace(value=inner._columns(carried.value))
    moments = matmul(basis.T, carried.value)
    # Where there is nothing to invert, the identity keeps every derivative finite.
    good = independent & is_usable(inner.result)
    moments = jnp.where(good, 0.5 * (moments + moments.T), jnp.eye(basis.shape[1], dtype=basis.dtype))
    result = worse(inner.result, carried.result)
    result = Result.where(independent | (inner.result == Result.empty), result, Result.rank_deficient)
    return Bordered(  # pyright: ignore[reportCallIssue]
        inner=inner, trend=trend, scale=scale, basis=basis, carried=carried, moments=moments, result=result
    )


def _are_independent(moments: Float[Array, "q q"]) -> Bool[Array, ""]:
    """Whether columns of order 1 with these moments are linearly independent to rounding."""
    upper = _raw.cholesky(moments, jnp.zeros(moments.shape[0], moments.dtype))
    # A pivot this small shows columns that depend on each other. NaN fails, too.
    least = 1e3 * jnp.finfo(moments.dtype).eps * jnp.maximum(diagonal(moments), 1.0)
    return jnp.all(diagonal(upper) ** 2 > least)
