"""Conjugate gradients: any Gram that multiplies, without an n × n matrix.

The preconditioner P is a System of another, cheaper solver. It solves, it draws the probes `z` with covariance P, and its
determinant is known exactly, so that only the rest has to be estimated:

    log det A = log det P + E[zᵀ P^(-1/2) log(P^(-1/2) A P^(-1/2)) P^(-1/2) z].

A run of conjugate gradients from z holds a Lanczos matrix, and with it the quadrature of that expression (stochastic
Lanczos quadrature). The derivative is `E[(A⁻¹z)ᵀ δA (P⁻¹z)]`, again less that of P plus the exact one. Probes are scaled to
`zᵀ P⁻¹ z = n`, which leaves both expectations as they are and takes the spread of the lengths out of them.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Key

from kernax._arrays import whole_number
from kernax.grams import AbstractGram, MatrixGram
from kernax.rows import Rows, map_rows, take
from kernax.solvers import _derivatives as derivatives
from kernax.solvers._conjugate_gradients import Run, conjugate_gradients, log_entries
from kernax.solvers._local import predicted, with_nearest
from kernax.solvers._low_rank import LowRank
from kernax.solvers._missing_cells import without_cells
from kernax.solvers._pathwise import prior_draws
from kernax.solvers._preconditioner import Preconditioner
from kernax.solvers._result import Result
from kernax.solvers._solver import AbstractSolver
from kernax.solvers._system import AbstractSystem, Evidence, Solution, is_usable

_STORED = 2**31
"""Bytes up to which K is stored if the user does not say: 16,384 rows in float64, 23,170 in float32."""
_VARIANCES = ("exact", "pathwise", "local")


class CGSystem(AbstractSystem):
    """A system solved by conjugate gradients, with a preconditioner. See the docstring of the module.

    **Arguments:**

    - `gram`: the kernel matrix.
    - `noise`: the noise variance, one number or one for each row.
    - `preconditioner`: the prepared preconditioner.
    - `matrix`: K as numbers, for the products of the iteration; `None` if it is multiplied tile by tile. It has no
      derivatives.
    - `paths`: `A⁻¹ (f(X) + ε)` for the drawn functions f from which variances are estimated; `None` if each variance is a
      solve.
    - `jitter`: the jitter that was added to the diagonal.
    - `result`: how the preparation ended.
    - `tolerance`, `max_steps`, `num_probes`, `num_samples`, `seed`: as in [`kernax.CG`][].
    - `neighbours`: how many rows a variance is predicted from; `None` for all of them.
    """

    gram: AbstractGram
    noise: Float[Array, "*n"]
    preconditioner: Preconditioner
    matrix: Float[Array, "n n"] | None
    paths: Solution | None
    jitter: Float[Array, ""]
    result: Any
    tolerance: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    num_probes: int = eqx.field(static=True)
    num_samples: int = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    neighbours: int | None = eqx.field(static=True)

    @property
    def _numbers_per_row(self):
        # The columns of a run: solution, residual, direction, product, and what the preconditioner makes of them.
        if self.neighbours is not None:
            return 4 * min(self.neighbours, self.gram.n) ** 2
        return 8 * self.gram.n if self.paths is None else 2 * self.gram.n

    def _located(self, x):
        return x if self.neighbours is None else with_nearest(self.gram, x, self.neighbours)

    def _mean(self, x, solution):
        return super()._mean(x if self.neighbours is None else x.rows, solution)

    def _solve(self, columns):
        value, run = derivatives.solve(self.operator, self._run, columns)
        return Solution(value, self._ended(run), run.steps, residual=run.residual)

    def _logdet(self):
        return self._evidence(jnp.zeros((self.gram.n, 1), self.noise.dtype)).logdet

    def _evidence(self, columns):
        # Right-hand sides and probes in one run: computing a tile of K costs more than multiplying by it.
        number, (probes, right) = columns.shape[1], self._probes()
        both, run = derivatives.solve(self.operator, self._run, jnp.concatenate([columns, probes], axis=1))
        solved, left = both[:, :number], both[:, number:]
        estimates = jnp.sum(self.gram.mask) * log_entries(run.lengths[:, number:], run.ratios[:, number:])
        # An indefinite matrix has no such logarithm. The status says so, and the objective of a fit must not be a number.
        value = jax.lax.stop_gradient(jnp.where(run.definite, jnp.mean(estimates), jnp.nan))
        rest = derivatives.probed_logdet(self.operator, value, left, right)
        logdet = rest + self.preconditioner.logdet_beside(self.preconditioner.solve(probes), right)
        # A spread of the estimates cannot be seen in one of them.
        spread = jnp.std(estimates, ddof=1) if self.num_probes > 1 else jnp.asarray(jnp.inf, columns.dtype)
        error = jax.lax.stop_gradient(spread) / self.num_probes**0.5
        quadratic = derivatives.quadratic(self.operator, columns, solved)
        return Evidence(quadratic, logdet, jnp.zeros((), columns.dtype), self._ended(run), error)

    def _variance(self, x):
        if self.neighbours is not None:
            nothing = jnp.zeros((self.gram.n, 0), self.noise.dtype)
            return Solution(predicted(self.gram, self.noise, x, nothing)[1], self.result)
        if self.paths is None:
            return super()._variance(x)
        draws = self._deviations(x, self._key_of_paths, self.num_samples, self.paths.value)
        return self.paths._replace(value=jnp.mean(draws**2, axis=1))

    def posterior_draws(self, x, key, number):
        if self.paths is None:
            return None
        paths = self._solved_paths(key, number)
        draws = map_rows(lambda rows: self._deviations(rows, key, number, paths.value), x, self._numbers_per_row)
        return self._or_nan(draws)

    def _deviations(self, x: Rows, key: Key[Array, ""], number: int, weights: Float[Array, "n s"]) -> Float[Array, "m s"]:
        """Draws of the posterior less its mean at new rows. See `_pathwise.py`."""
        prior = prior_draws(self.gram.kernel, self.gram.x, key, number)
        return prior(x) - self.gram.cross_mv(x, weights)

    def _solved_paths(self, key: Key[Array, ""], number: int) -> Solution:
        """`A⁻¹ (f(X) + ε)` for functions f drawn from the prior."""
        values = prior_draws(self.gram.kernel, self.gram.x, key, number)(take(self.gram.x))
        noise = jax.random.normal(jax.random.fold_in(key, 1), values.shape, values.dtype)
        return self._solve(self._columns(values + jnp.sqrt(self.shift)[:, None] * noise))

    @property
    def _key_of_paths(self) -> Key[Array, ""]:
        return jax.random.fold_in(jax.random.key(self.seed), 1)

    def _probes(self) -> tuple[Float[Array, "n s"], Float[Array, "n s"]]:
        """Probes z with `zᵀ P⁻¹ z = n`, and `P⁻¹ z`."""
        drawn = self._columns(self.preconditioner.draw(jax.random.key(self.seed), self.num_probes))
        seen = self.preconditioner.solve(drawn)
        square = jnp.sum(drawn * seen, axis=0)
        scale = jnp.sqrt(jnp.sum(self.gram.mask) / jnp.where(square > 0, square, 1.0))
        return jax.lax.stop_gradient((scale * drawn, scale * seen))

    def _run(self, columns: Float[Array, "n p"]) -> tuple[Array, Run]:
        gram = self.gram if self.matrix is None else MatrixGram(None, None, self.gram.mask, self.matrix)
        operator = derivatives.Shifted(gram, self.shift)
        return conjugate_gradients(operator.mv, self.preconditioner.solve, columns, self.tolerance, self.max_steps)

    def _ended(self, run: Run) -> Any:
        fine = Result.where(self.preconditioner.works, Result.successful, Result.preconditioner_failed)
        result = Result.where(run.converged, fine, Result.max_steps_reached)
        result = Result.where(run.definite, result, Result.not_positive_definite)
        return Result.where(jnp.isfinite(run.residual), result, Result.nonfinite)


class CG(AbstractSolver):
    """Preconditioned conjugate gradients, which only need products with K.

    Memory is O(n) plus the preconditioner and, optionally, K.

    Solutions are exact to `tolerance`; `c.solution.steps` and `c.solution.residual` are the number of steps and the
    residual. The log determinant of the likelihood, and its derivative, are estimated by random probes. The seed is fixed,
    so every call gives the same numbers, and a fit optimises one smooth function.
    `kx.selection.likelihood_terms(c).standard_error` is the standard error of the likelihood that is due to the probes.

    If the steps do not suffice, the status is `max_steps_reached`, and the last iterate is kept, which is the closest one to
    the solution in the norm of A. The remedies are a larger `max_steps`, a preconditioner of higher rank, or more noise. If
    the preconditioner cannot be prepared, the diagonal of A is used instead, and the status is `preconditioner_failed`: the
    answers are right, but take more steps.

    **Arguments:**

    - `preconditioner`: a solver for an easier system that is close to this one; `kx.LowRank(500)` if not given.
      `kx.Kronecker()` is for grids with missing cells: see the how-to "Choose a solver".
    - `tolerance`: the residual `‖b - A x‖ / ‖b‖` at which a solve ends; 1e-8 in float64 and 1e-5 in float32 if not given.
      For the likelihood in a fit, 1e-2 is often enough.
    - `max_steps`: the largest number of products with K in one solve.
    - `num_probes`: the number of random probes for the log determinant. Its error falls with the square root of this number.
    - `seed`: the seed of probes and samples.
    - `stored`: whether K is computed once and stored, which is faster than computing its tiles at every step. By default it
      is stored if it takes no more than 2 GiB. Gradients are always computed tile by tile.
    - `tile`: rows and columns of a tile of K; 512 if not given.
    - `mesh`: a `jax.sharding.Mesh` with one axis, over whose devices the rows are spread. K is not stored then.
    - `variance`: how variances at new rows are computed. `"exact"`: a solve for every row. `"pathwise"`: from `num_samples`
      functions drawn from the posterior, which takes as many solves at conditioning and none later; `kx.sample` then also
      draws without an m × m matrix. It is for sums of stationary kernels and kernels with features. `"local"`: from the
      `neighbours` nearest rows only. This is fast and suits large problems; the variances are slightly too large, because
      they use fewer rows.
    - `num_samples`: the number of functions for pathwise variances. The relative standard error of a variance is about
      `√(2 / num_samples)`: 0.18 for 64, which is 0.09 for the standard deviation.
    - `neighbours`: the number of rows for local variances.
    """

    preconditioner: AbstractSolver = eqx.field(default_factory=lambda: LowRank(500))
    tolerance: float | None = eqx.field(static=True, default=None)
    max_steps: int = eqx.field(static=True, default=500, converter=lambda steps: whole_number(steps, "CG.max_steps"))
    num_probes: int = eqx.field(static=True, default=16, converter=lambda number: whole_number(number, "CG.num_probes"))
    seed: int = eqx.field(static=True, default=0)
    stored: bool | None = eqx.field(static=True, default=None)
    tile: int | None = eqx.field(static=True, default=None)
    mesh: Mesh | None = eqx.field(static=True, default=None)
    variance: str = eqx.field(static=True, default="exact")
    num_samples: int = eqx.field(static=True, default=64, converter=lambda number: whole_number(number, "CG.num_samples"))
    neighbours: int = eqx.field(static=True, default=128, converter=lambda number: whole_number(number, "CG.neighbours"))

    def __check_init__(self):
        if not isinstance(self.preconditioner, AbstractSolver):
            raise TypeError(f"CG.preconditioner must be a solver, such as kx.LowRank(500), got {self.preconditioner!r}.")
        if self.preconditioner.needs_every_row and self.variance != "exact":
            raise ValueError(
                f"CG(kx.Kronecker(), variance={self.variance!r}) is not possible, as variances on a grid are exact: leave "
                "out variance=."
            )
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ValueError(f"CG.tolerance must lie between 0 and 1, got {self.tolerance}.")
        if self.tile is not None:
            whole_number(self.tile, "CG.tile")
        if self.mesh is not None and len(self.mesh.axis_names) != 1:
            raise ValueError(f"CG.mesh must have one axis, got {self.mesh.axis_names}: rows are spread over one.")
        if self.stored and self.mesh is not None:
            raise ValueError("CG(stored=True) keeps K on one device: leave out mesh=, or write stored=False.")
        if self.variance not in _VARIANCES:
            raise ValueError(f"CG.variance must be one of {', '.join(map(repr, _VARIANCES))}, got {self.variance!r}.")

    def settled(self, gram, part=None):
        del part
        return eqx.tree_at(lambda s: s.preconditioner, self, self.preconditioner.settled(gram))

    @property
    def needs_grid(self):
        return self.preconditioner.needs_grid

    def check(self, x, mask):
        if self.preconditioner.needs_every_row:
            self.preconditioner.check(x, jnp.ones_like(mask))

    def prepare(self, gram, noise):
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = 1e-8 if jnp.finfo(noise.dtype).eps < 1e-10 else 1e-5
        if self.preconditioner.needs_every_row:
            whole = self.preconditioner.prepare(dataclasses.replace(gram, mask=jnp.ones_like(gram.mask)), noise)
            return without_cells(whole, gram, tolerance, self.max_steps, self.num_probes, self.seed)
        gram = gram.tiled(self.tile, self.mesh)
        easy = self.preconditioner.prepare(gram, noise)
        # Jitter of the preconditioner is not on A: it only makes the preconditioner a slightly different one.
        works = is_usable(easy.result)
        hopeless = (easy.result == Result.nonfinite) | (easy.result == Result.empty)
        shift = jnp.where(gram.mask, noise, 1.0)
        diagonal = jax.lax.stop_gradient(gram.diagonal() + shift)
        diagonal = jnp.where(diagonal > 0, diagonal, 1.0)
        system = CGSystem(
            gram=gram,
            noise=noise,
            preconditioner=Preconditioner(easy, works, diagonal),
            matrix=jax.lax.stop_gradient(gram.dense()) if self._stores(gram, noise.dtype) else None,
            paths=None,
            jitter=jnp.zeros((), noise.dtype),
            result=Result.where(hopeless, easy.result, Result.successful),
            tolerance=tolerance,
            max_steps=self.max_steps,
            num_probes=self.num_probes,
            num_samples=self.num_samples,
            seed=self.seed,
            neighbours=self.neighbours if self.variance == "local" else None,
        )
        if self.variance != "pathwise":
            return system
        return dataclasses.replace(system, paths=system._solved_paths(system._key_of_paths, self.num_samples))

    def _stores(self, gram: AbstractGram, dtype: Any) -> bool:
        if self.stored is not None or not gram.is_tiled or self.mesh is not None:
            return bool(self.stored) and gram.is_tiled
        return gram.n**2 * jnp.dtype(dtype).itemsize <= _STORED
