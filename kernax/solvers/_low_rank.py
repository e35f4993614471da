"""Few features instead of n rows: `A = U Uᵀ + D`, by a small matrix.

With r features, D the noise and `S = D^(-1/2) U`, everything follows from the r × r matrix `M = I + SᵀS`:

    A⁻¹ = D⁻¹ - D⁻¹ U M⁻¹ Uᵀ D⁻¹,   log det A = log det M + log det D,   Uᵀ A⁻¹ = M⁻¹ Uᵀ D⁻¹.

M has no unit and no eigenvalue below 1, so its Cholesky factorisation cannot break down unless the noise is below the
rounding errors of K. Then jitter is added to the noise, as `Cholesky` does.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul, whole_number
from kernax.grams import AbstractFeatures, AbstractGram, LowRankGram, OwnFeatures, masked
from kernax.rows import Rows, as_row_dtype, as_rows, check_same_columns, map_rows, take
from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _raw
from kernax.solvers import _spectral as spectral
from kernax.solvers._cholesky import RawCholesky, factorise_matrix
from kernax.solvers._features import Asked, InducingFeatures, Known, features_of, terms, weighted_moments
from kernax.solvers._jitter import diagonal, jitter_ladder, mean_diagonal, rounding_level
from kernax.solvers._pivots import pivots
from kernax.solvers._result import Result
from kernax.solvers._solver import AbstractSolver
from kernax.solvers._system import AbstractSystem, Evidence, Solution, is_usable, worse


class LowRankSystem(AbstractSystem):
    """The system `A = U Uᵀ + D`, solved by the small matrix `I + Uᵀ D⁻¹ U`. See the docstring of the module.

    **Arguments:**

    - `gram`: the kernel matrix.
    - `noise`: the noise variance, one number or one for each row.
    - `level`: the diagonal of D: noise and jitter; other positive numbers if the preparation failed.
    - `small`: the matrix `I + Uᵀ D⁻¹ U`.
    - `raw`: the Cholesky factor of `small`.
    - `moments`: the matrix `Uᵀ U`; `None` if the noise is given per row.
    - `missing`: the part of the prior variance of each row that the features do not explain.
    - `jitter`: the jitter that was added to the diagonal.
    - `result`: how the preparation ended.
    """

    gram: LowRankGram  # pyright: ignore[reportIncompatibleVariableOverride]
    noise: Float[Array, "*n"]
    level: Float[Array, "*n"]
    small: Float[Array, "r r"]
    raw: RawCholesky
    moments: Float[Array, "r r"] | None
    missing: Float[Array, " n"]
    jitter: Float[Array, ""]
    result: Any

    @property
    def is_exact(self):
        return isinstance(self.gram.features, OwnFeatures)

    @property
    def shift(self):
        return jnp.where(self.gram.mask, self.level, 1.0)

    @property
    def _numbers_per_row(self):
        return 4 * self.gram.rank

    def _solve(self, columns):
        seen = self._seen(columns)
        return Solution((columns - matmul(self.gram.u, seen)) / self.shift[:, None], self.result, kept=seen)

    def _logdet(self):
        return self._evidence(jnp.zeros((self.gram.n, 0), self.noise.dtype)).logdet

    def _evidence(self, columns):
        seen = self._seen(columns)
        missed = columns - matmul(self.gram.u, seen)
        level = self.shift if self.level.ndim else self.level
        asked = Asked(self.gram.features, take(self.gram.x), self.gram.mask, level, columns)
        known = Known(self.gram.u, self.small, self.raw, seen, missed, self.missing)
        quadratic, logdet, lack = terms(asked, known)
        # Titsias' bound, once for every output: the prior variance that the features miss counts against the model.
        correction = -0.5 * columns.shape[1] * lack
        return Evidence(quadratic, logdet + jnp.sum(jnp.log(self.shift)), correction, self.result)

    def _mean(self, x, solution):
        return map_rows(lambda block: matmul(self.gram.features(block), solution.kept), x, 2 * self.gram.rank)

    def _variance(self, x):
        values = self.gram.features(x)
        known = derivatives.explained(self._operator_of_small, self.raw, values.T)
        missing = self.gram.features.missing(x, jnp.sum(values**2, axis=1), values.shape[1])
        return Solution(missing + known, self.result)

    def _covariance(self, x, z):
        left = self.gram.features(x)
        right = left if z is None else self.gram.features(z)
        known = matmul(left, derivatives.solve_matrix(self.small, self.raw, right.T))
        return Solution(self.gram.features.missing_between(x, z, left, right) + known, self.result)

    def inverse_diagonal(self):
        share = derivatives.explained(self._operator_of_small, self.raw, self._scaled_features.T)
        return self._or_nan((1.0 - share) / self.shift)

    def inverse_blocks(self, rows):
        some, shift = self._scaled_features[rows], self.shift[rows]
        inverse = derivatives.inverse(self._operator_of_small, self.raw)
        same = rows[:, :, None] == rows[:, None, :]
        blocks = jnp.where(same, 1.0, 0.0) - matmul(matmul(some, inverse), jnp.swapaxes(some, 1, 2))
        return self._or_nan(blocks / jnp.sqrt(shift[:, :, None] * shift[:, None, :]))

    def shifted(self, noise):
        return _assembled(self.gram, noise, self._moments(), self.missing, _without_noise(self.result))

    def eigenvalues(self):
        """Those of `U Uᵀ`, which are those of `Uᵀ U` and zeros."""
        moments, n, rank = self._moments(), self.gram.n, self.gram.rank
        vectors, values = _raw.eigh(jax.lax.stop_gradient(moments))
        values = jnp.maximum(spectral.eigenvalues(moments, vectors, values), 0.0)
        values = jnp.concatenate([jnp.zeros(max(n - rank, 0), values.dtype), values])[-n:]
        # The last, largest ones belong to the rows that count.
        places, count = jnp.arange(n), jnp.sum(self.gram.mask)
        return self._or_nan(jnp.where(places < count, values[(places + n - count) % n], jnp.nan))

    def draw(self, key, number):
        first, second = jax.random.split(key)
        u = self.gram.u
        of_kernel = matmul(u, jax.random.normal(first, (u.shape[1], number), u.dtype))
        of_noise = jnp.sqrt(self.shift)[:, None] * jax.random.normal(second, (u.shape[0], number), u.dtype)
        return self._columns(of_kernel + of_noise)

    def expansion(self, solution):
        """`None`: `k(x, X) alpha` with the kernel itself is not the mean, which goes through the features."""
        del solution
        return None

    def _seen(self, columns: Float[Array, "n p"]) -> Float[Array, "r p"]:
        """`Uᵀ A⁻¹ b` for every column."""
        return derivatives.solve_matrix(self.small, self.raw, self.gram.transposed_mv(columns / self.shift[:, None]))

    @property
    def _operator_of_small(self) -> derivatives.Shifted:
        return derivatives.of_matrix(self.small)

    @property
    def _scaled_features(self) -> Float[Array, "n r"]:
        return self.gram.u / jnp.sqrt(self.shift)[:, None]

    def _moments(self) -> Float[Array, "r r"]:
        return matmul(self.gram.u.T, self.gram.u) if self.moments is None else self.moments


class LowRank(AbstractSolver):
    """Low-rank approximation by r features instead of the whole kernel matrix. O(n r²) time and O(n r) memory.

    If the kernel has finitely many features of its own (`Linear`, `Polynomial`, `Cosine`, `FeatureMap`, `RandomFeatures`,
    their sums and products), they are used, and every answer is exact. Otherwise the features are those of inducing rows
    (SGPR), and the likelihood is Titsias' lower bound of the exact one.

    Inducing rows suit smooth kernels in few columns. For rough kernels or many columns the bound is off by several nats a
    row (5 to 95 with 200 to 2000 inducing rows for Matérn-3/2 kernels fitted to data of 8 to 26 columns), and predictions
    are clearly worse than exact ones: use `kx.CG()` there.

    The noise must be positive, since `U Uᵀ` alone is singular. With noise 0 a small jitter is used instead, and the status
    is `singular`.

    **Arguments:**

    - `rank`: the largest number of rows of the data that serve as inducing rows. They are chosen at random, one after
      another. The probability of a row is proportional to its variance given the rows chosen before (randomly pivoted
      Cholesky).
    - `inducing`: inducing rows of your own; `rank` is then ignored. Predictions are differentiable with respect to them.
    - `tolerance`: fewer than `rank` rows are chosen if they leave less than this share of the prior variance of all rows;
      1e-12 in float64 and 1e-6 in float32 if not given. The bound on the log likelihood then misses at most about
      `tolerance · n · variance / noise` nats.
    - `seed`: the seed of the choice. The same rows are chosen at every call.
    - `chosen`: which of `inducing` are in use, if `settled` chose them. Do not set it.
    """

    rank: int = eqx.field(static=True, default=200, converter=lambda rank: whole_number(rank, "LowRank.rank"))
    inducing: Any = eqx.field(default=None, converter=lambda rows: None if rows is None else take(as_rows(rows, "inducing")))
    tolerance: float | None = eqx.field(static=True, default=None, kw_only=True)
    seed: int = eqx.field(static=True, default=0, kw_only=True)
    chosen: Bool[Array, " r"] | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise ValueError(f"LowRank.tolerance must lie between 0 and 1, got {self.tolerance}.")

    @property
    def num_refreshes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 2 if self.inducing is None or self.chosen is not None else 0

    def settled(self, gram, part=None):
        """This solver with fixed inducing rows, so that the objective of a fit does not jump when the choice changes.

        A call on the returned solver chooses again. The number of places for inducing rows does not change; places that
        are not needed stay unused.
        """
        del part
        if (self.inducing is not None and self.chosen is None) or _has_features(gram):
            return self
        gram = _held(gram)
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = 1e-12 if jnp.finfo(gram.diagonal().dtype).eps < 1e-10 else 1e-6
        rows, used = pivots(gram, min(self.rank, gram.n), tolerance, jax.random.key(self.seed))
        return dataclasses.replace(self, inducing=take(gram.x, rows), chosen=used)

    def prepare(self, gram, noise):
        features, result = self._features(gram, noise.dtype)
        x = take(gram.x)
        u, known = features_of(features, x, gram.mask)
        missing = jnp.where(gram.mask, features.missing(x, known, u.shape[1]), 0.0)
        # What is not finite is taken out, so that no gradient behind a `where` meets it.
        sound = jnp.all(jnp.isfinite(known)) & jnp.all(jnp.isfinite(missing))
        known, missing = jnp.where(sound, known, 0.0), jnp.where(sound, missing, 0.0)
        result = Result.where(sound | ~is_usable(result), result, Result.nonfinite)
        result = Result.where(jnp.any(gram.mask), result, Result.empty)
        moments = matmul(u.T, u) if noise.ndim == 0 else None
        gram = LowRankGram(gram.kernel, gram.x, gram.mask, features, u, known)
        return _assembled(gram, noise, moments, missing, result)

    def _features(self, gram: AbstractGram, dtype: Any) -> tuple[AbstractFeatures, Any]:
        """The features, and whether they exist."""
        if _has_features(gram):
            return OwnFeatures(gram.kernel), Result.successful
        solver = self if self.inducing is not None else self.settled(gram)
        inducing = as_row_dtype(solver.inducing, dtype)
        check_same_columns(inducing, gram.x, "LowRank.inducing", "x")
        counts = ~_repeated(inducing) if solver.chosen is None else solver.chosen
        matrix = masked(gram.kernel.gram(inducing, None), counts)
        system = factorise_matrix(matrix, jnp.zeros((), matrix.dtype), counts)
        root = derivatives.root(system.operator, system.raw, jnp.triu(system.raw.upper).T)
        return InducingFeatures(gram.kernel, inducing, counts, root), _without_noise(system.result)


def _without_noise(result: Any) -> Any:
    """A result in which jitter is no failure: whether the noise is enough is decided for each noise again."""
    return Result.where(is_usable(result), Result.successful, result)


def _held(tree: Any) -> Any:
    """The same numbers, which are not differentiated."""
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, tree)


def _has_features(gram: AbstractGram) -> bool:
    """Whether the kernel has finitely many features of its own."""
    if gram.kernel is None:
        raise TypeError("LowRank needs a kernel, and this is a matrix without one: use kx.Cholesky() or kx.Eigh().")
    return jax.eval_shape(lambda: gram.kernel.features(take(gram.x, slice(0, 1)))) is not None


def _repeated(rows: Rows) -> Bool[Array, " r"]:
    """Which rows are equal to an earlier one: as inducing rows they add nothing and make `k(Z, Z)` singular."""
    same: Any = True
    for leaf in jax.tree.leaves(rows):
        flat = leaf.reshape(leaf.shape[0], -1)
        same = same & jnp.all(flat[:, None] == flat[None, :], axis=-1)
    return jnp.any(jnp.tril(same, -1), axis=1)


def _assembled(
    gram: LowRankGram,
    noise: Float[Array, "*n"],
    moments: Float[Array, "r r"] | None,
    missing: Float[Array, " n"],
    result: Any,
) -> LowRankSystem:
    """The System for one noise; `result` says whether there are features."""
    moments = None if noise.ndim else moments
    raw, jitter, stand_in, ok = _factorised(*_held((gram, moments, noise)))
    level = jnp.where(ok, noise + jitter, stand_in)
    noise_free = jnp.any(jnp.where(gram.mask, noise, 1.0) == 0)
    enough = Result.where(noise_free & (jitter > 0), Result.singular, Result.successful)
    result = worse(result, Result.where(ok, enough, Result.not_positive_definite))
    small = _small_matrix(gram, moments, level)
    return LowRankSystem(
        gram=gram,
        noise=noise,
        level=level,
        small=small,
        raw=raw,
        moments=moments,
        missing=missing,
        jitter=jitter,
        result=result,
    )


def _small_matrix(gram: LowRankGram, moments: Float[Array, "r r"] | None, level: Float[Array, "*n"]) -> Float[Array, "r r"]:
    """`I + Uᵀ D⁻¹ U`."""
    identity = jnp.eye(gram.rank, dtype=gram.u.dtype)
    if moments is not None:
        return identity + moments / level
    return identity + weighted_moments(gram.u, 1.0 / jnp.where(gram.mask, level, 1.0))


def _factorised(
    gram: LowRankGram, moments: Float[Array, "r r"] | None, noise: Float[Array, "*n"]
) -> tuple[RawCholesky, Array, Array, Array]:
    """The factor of the small matrix with the least jitter on the ladder, that jitter, what stands in for the noise if
    there is none, and whether there is one."""
    mask, dtype = gram.mask, gram.u.dtype
    entries = gram.squares + jnp.where(mask, noise, 0.0)
    scale, floor = mean_diagonal(entries, mask), rounding_level(entries, mask)
    ladder = jitter_ladder(dtype, None)
    # One by one: a constant array would be hoisted out of a loop, batched, and refused by `custom_vmap`.
    rungs = jnp.stack([jnp.zeros_like(scale), *(rung * scale for rung in ladder[1:]), jnp.zeros_like(scale)])
    # With the trace for the noise, all eigenvalues of the small matrix lie between 1 and 2.
    trace = jnp.sum(gram.squares)
    stand_in = jnp.where(trace > 0, trace, 1.0)

    def climb(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rung = state[0] + 1
        given_up = rung == len(ladder)
        level = jnp.where(given_up, stand_in, noise + rungs[rung])
        small = _small_matrix(gram, moments, jnp.where(level > 0, level, stand_in))
        upper = _raw.cholesky(small, jnp.zeros_like(small[0]))
        # No pivot is below 1 but for rounding. NaN fails, too: no comparison with it holds.
        good = jnp.all((level > floor) | ~mask) & jnp.all(diagonal(upper) ** 2 > 0.5)
        return rung, upper, good | given_up

    start = (jnp.asarray(-1), jnp.zeros((gram.rank, gram.rank), dtype), jnp.asarray(False))
    rung, upper, _ = jax.lax.while_loop(lambda state: ~state[-1], climb, start)
    return RawCholesky(upper), rungs[rung], stand_in, rung < len(ladder)
