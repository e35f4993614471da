"""A grid with missing cells, by conjugate gradients in which every step is one solve with the whole grid.

Let B be the System of all cells, which is solved directly, o the cells that count and m the missing ones. The System that is
wanted is `A = B_oo`. Instead of leaving cells out, add a large noise τ to them, and precondition with B. The matrix of the
iteration is then `I + τ (B⁻¹)_mm` in the missing cells, and the identity beside it. For τ → ∞ these are conjugate gradients
for `S = (B⁻¹)_mm`, with as many unknowns as cells are missing:

    A⁻¹ b = (B⁻¹ (b + f))_o,   S f = -(B⁻¹ b)_m,   log det A = log det B + log det S.

f are the targets that the model predicts in the missing cells. With them the whole grid has the weights 0 there, up to
rounding. Predictions are made from the whole grid: their error is that of f, where without the tiny weights it would be
theirs times the condition number of B. Variances are those of the whole grid plus `wᵀ S⁻¹ w`, with the weights w that the
missing cells have in its predictions.

Why it is stable: `S⁻¹` is the covariance of targets in the missing cells, given the others, which is the noise plus the
posterior covariance of the function there. The condition number of S is at most 1 plus the largest eigenvalue of that
posterior covariance divided by the noise: a small number for scattered holes at any size of the grid, and larger for wide
holes of which the other cells know nothing. (The matrix `(B⁻¹)_oo` as a preconditioner of A has the eigenvalues of `B_mm S`
instead, with the prior covariance where S has the posterior one: several times as many steps.) A residual r of S leaves
`b - A x = B_om r`, so the iteration ends at the tolerance divided by the condition number of B, or at rounding.

`log det B` is exact, derivatives included. `log det S` is a sum over unit vectors of the missing cells if there are no more
of these than probes: exact as well. Otherwise it is estimated from random signs in the missing cells, by the quadrature of
`_conjugate_gradients.py`, and its derivative is `-E[(B⁻¹ S⁻¹ z)ᵀ δB (B⁻¹ z)]`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.grams import AbstractGram
from kernax.rows import Rows
from kernax.solvers import _derivatives as derivatives
from kernax.solvers._conjugate_gradients import Run, conjugate_gradients, log_entries
from kernax.solvers._kronecker import grid_draws
from kernax.solvers._largest_eigenvalue import largest_eigenvalue
from kernax.solvers._result import Result
from kernax.solvers._system import AbstractSystem, Evidence, Solution, worse


class MissingCellsSystem(AbstractSystem):
    """The system of a grid with missing cells. See the docstring of the module.

    **Arguments:**

    - `gram`: the kernel matrix.
    - `noise`: the noise variance, one number.
    - `whole`: B, the System of all cells.
    - `largest`: an upper bound of the largest eigenvalue of B, close to it.
    - `jitter`: the jitter that was added to the diagonal.
    - `result`: how the preparation ended.
    - `tolerance`, `max_steps`, `num_probes`, `seed`: as in [`kernax.CG`][].
    """

    gram: AbstractGram
    noise: Float[Array, ""]
    whole: AbstractSystem
    largest: Float[Array, ""]
    jitter: Float[Array, ""]
    result: Any
    tolerance: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    num_probes: int = eqx.field(static=True)
    seed: int = eqx.field(static=True)

    @property
    def _numbers_per_row(self):
        # The columns of a run, and what solves with the whole grid make of them.
        return 8 * self.gram.n

    def _solve(self, columns):
        # The smallest residual of S for which that of A is below the tolerance. What is smaller than rounding is the same.
        least = jnp.maximum(self.ridge / self.largest, jnp.finfo(columns.dtype).eps / self.tolerance)
        filled, run = self._run(-self._where_missing(self.whole._solve(columns).value), jax.lax.stop_gradient(least))
        kept = self.whole._solve(columns + filled).value
        value = self._columns(kept)
        left = jax.lax.stop_gradient(columns - self.operator.mv(value))
        sizes = jnp.linalg.norm(jax.lax.stop_gradient(columns), axis=0)
        residual = jnp.max(jnp.linalg.norm(left, axis=0) / jnp.where(sizes > 0, sizes, 1.0), initial=0.0)
        return Solution(value, _ended(run), run.steps, kept, residual)

    def _run(self, columns: Float[Array, "n p"], least: Any = 1.0) -> tuple[Float[Array, "n p"], Run]:
        """`S⁻¹ b` in the missing cells, to the tolerance times `least`."""

        def solve(_: Any, b: Array) -> tuple[Array, Run]:
            size = least * jnp.linalg.norm(b, axis=0)
            return conjugate_gradients(self._times_inverse, _unchanged, b, self.tolerance, self.max_steps, size)

        return jax.lax.custom_linear_solve(self._times_inverse, columns, solve, symmetric=True, has_aux=True)

    def _times_inverse(self, columns: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """`S b` in the missing cells, and b in the others."""
        seen = self.whole._solve(self._where_missing(columns)).value
        return jnp.where(self.gram.mask[:, None], columns, seen)

    def _where_missing(self, columns: Float[Array, "n p"]) -> Float[Array, "n p"]:
        return jnp.where(self.gram.mask[:, None], 0.0, columns)

    def _mean(self, x, solution):
        return self.whole._mean(x, solution._replace(value=solution.kept))

    def _variance(self, x):
        seen = self._weights(x)
        lost, run = self._run(seen)
        return Solution(self.whole._variance(x).value + jnp.sum(seen * lost, axis=0), _ended(run))

    def _covariance(self, x, z):
        seen = self._weights(x)
        lost, run = self._run(seen if z is None else self._weights(z))
        return Solution(self.whole._covariance(x, z).value + matmul(seen.T, lost), _ended(run))

    def _weights(self, x: Rows) -> Float[Array, "n m"]:
        """The weights that the missing cells have in predictions from the whole grid."""
        return self._where_missing(self.whole._solve(self.whole.gram.cross(x)).value)

    def _logdet(self):
        return self._determinant()[0]

    def _evidence(self, columns):
        solution = self._solve(columns)
        quadratic = derivatives.quadratic(self.operator, columns, solution.value)
        logdet, error, run = self._determinant()
        result = worse(solution.result, _ended(run))
        return Evidence(quadratic, logdet, jnp.zeros((), columns.dtype), result, error)

    def _determinant(self) -> tuple[Float[Array, ""], Float[Array, ""], Run]:
        """`log det A`, its standard error, and how the solves with the probes ended."""
        probes, is_exact = self._probes()
        solved, run = self._run(probes)
        estimates = jnp.sum(probes**2, axis=0) * log_entries(run.lengths, run.ratios)
        value = jax.lax.stop_gradient(jnp.where(run.definite, jnp.mean(estimates), jnp.nan))
        left, right = self.whole._solve(-solved).value, self.whole._solve(probes).value
        rest = derivatives.probed_logdet(self.whole.operator, value, left, right)
        spread = jnp.std(estimates, ddof=1) if self.num_probes > 1 else jnp.asarray(jnp.inf, probes.dtype)
        error = jnp.where(is_exact, 0.0, jax.lax.stop_gradient(spread) / self.num_probes**0.5)
        return self.whole._logdet() + rest, error, run

    def _probes(self) -> tuple[Float[Array, "n s"], Array]:
        """Columns z in the missing cells for which the mean of `z zᵀ` is the identity, and whether it is for these alone."""
        n, number, dtype = self.gram.n, self.num_probes, self.noise.dtype
        missing = ~self.gram.mask
        is_exact = jnp.sum(missing) <= number
        # One cell for each column; a column that is left over is 0.
        places = jnp.nonzero(missing, size=number, fill_value=n)[0]
        units = number**0.5 * jax.nn.one_hot(places, n, axis=0, dtype=dtype)
        signs = jax.random.rademacher(jax.random.key(self.seed), (n, number), dtype)
        return jnp.where(is_exact, units, self._where_missing(signs)), is_exact

    def shifted(self, noise):
        whole = self.whole.shifted(noise)
        if whole is None:
            return None
        return without_cells(whole, self.gram, self.tolerance, self.max_steps, self.num_probes, self.seed)

    def prior_draws(self, x, key, number):
        return grid_draws(self.gram, x, key, number)

    def draw(self, key, number):
        drawn = self.whole.draw(key, number)
        return None if drawn is None else self._columns(drawn)


def without_cells(
    whole: AbstractSystem, gram: AbstractGram, tolerance: float, max_steps: int, num_probes: int, seed: int
) -> MissingCellsSystem:
    """The System of the rows that count in `gram`, from that of all rows. The other arguments are those of `kx.CG`."""
    return MissingCellsSystem(
        gram=gram,
        noise=whole.noise,
        whole=whole,
        largest=largest_eigenvalue(whole) + jax.lax.stop_gradient(whole.ridge),
        # Unlike that of other preconditioners, jitter of B is jitter of A.
        jitter=whole.jitter,
        result=Result.where(jnp.any(gram.mask), whole.result, Result.empty),
        tolerance=tolerance,
        max_steps=max_steps,
        num_probes=num_probes,
        seed=seed,
    )


def _unchanged(columns: Float[Array, "n p"]) -> Float[Array, "n p"]:
    return columns


def _ended(run: Run) -> Any:
    result = Result.where(run.converged, Result.successful, Result.max_steps_reached)
    result = Result.where(run.definite, result, Result.not_positive_definite)
    return Result.where(jnp.isfinite(run.residual), result, Result.nonfinite)
