"""Conjugate gradients: any Gram that multiplies, without an n × n matrix.

The preconditioner P is a System of another, cheaper solver. It solves, it draws the probes `z` with covariance P, and its
determinant is known exactly, so that only the rest has to be estimated:

    log det A = log det P + E[zᵀ P^(-1/2) log(P^(-1/2) A P^(-1/2)) P^(-1/2) z].

A run of conjugate gradients from z holds a Lanczos matrix, and with it the quadrature of that expression (stochastic
Lanczos quadrature). The derivative is `E[(A⁻¹z)ᵀ δA (P⁻¹z)]`, again less that of P plus the exact one.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from kernax._arrays import whole_number
from kernax.grams import AbstractGram
from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _raw
from kernax.solvers._low_rank import LowRank
from kernax.solvers._result import Result
from kernax.solvers._system import AbstractSolver, AbstractSystem, Evidence, Solution, is_usable

_QUADRATURE = 100
"""Steps of each probe that enter the quadrature. It converges before the solve does, and its `eigh` has this static size."""


class _Run(NamedTuple):
    """How a run of conjugate gradients ended, and the numbers of which the Lanczos matrices are made."""

    steps: Array
    converged: Bool[Array, ""]
    residual: Float[Array, ""]
    """The largest `‖b - A x‖ / ‖b‖` of any column."""
    lengths: Float[Array, "q p"]
    ratios: Float[Array, "q p"]


class CGSystem(AbstractSystem):
    """A Gram that multiplies, and the preconditioner. See the module's docstring."""

    gram: AbstractGram
    noise: Float[Array, "*n"]
    preconditioner: AbstractSystem
    jitter: Float[Array, ""]
    result: Any
    tolerance: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    num_probes: int = eqx.field(static=True)
    seed: int = eqx.field(static=True)

    @property
    def _numbers_per_row(self):
        # The columns of a run: solution, residual, direction, product, and what the preconditioner makes of them.
        return 8 * self.gram.n

    def _solve(self, columns):
        value, run = derivatives.solve(self.operator, self._run, columns)
        return Solution(value, self._ended(run), run.steps, residual=run.residual)

    def _logdet(self):
        return self._evidence(jnp.zeros((self.gram.n, 1), self.noise.dtype)).logdet

    def _evidence(self, columns):
        # Right-hand sides and probes in one run: computing a tile of K costs more than multiplying by it.
        number, probes = columns.shape[1], self._probes()
        both, run = derivatives.solve(self.operator, self._run, jnp.concatenate([columns, probes], axis=1))
        solved, left = both[:, :number], both[:, number:]
        own = self.preconditioner._solve(probes).value
        right = jax.lax.stop_gradient(own)
        entries = jax.vmap(_log_entry, in_axes=1)(run.lengths[:, number:], run.ratios[:, number:])
        value = jnp.mean(jnp.sum(probes * right, axis=0) * entries)
        rest = derivatives.probed_logdet(self.operator, jax.lax.stop_gradient(value), left, right)
        # A control variate: for the preconditioner the same estimate is taken off, and the exact derivative put on.
        rest = rest - derivatives.probed_logdet(self.preconditioner.operator, jnp.zeros_like(value), own, right)
        quadratic = derivatives.quadratic(self.operator, columns, solved)
        nothing = jnp.zeros((), columns.dtype)
        return Evidence(quadratic, self.preconditioner._logdet() + rest, nothing, self._ended(run))

    def _probes(self) -> Float[Array, "n s"]:
        key = jax.random.key(self.seed)
        drawn = self.preconditioner.draw(key, self.num_probes)
        if drawn is None:
            raise TypeError(
                f"the likelihood by CG needs a preconditioner that draws from N(0, P), and a "
                f"{type(self.preconditioner).__name__} does not: use kx.CG(preconditioner=kx.LowRank())."
            )
        return jax.lax.stop_gradient(self._columns(drawn))

    def _run(self, columns: Float[Array, "n p"]) -> tuple[Array, _Run]:
        return _conjugate_gradients(self.operator, self.preconditioner, columns, self.tolerance, self.max_steps)

    def _ended(self, run: _Run) -> Any:
        return Result.where(run.converged, self.result, Result.max_steps_reached)


class CG(AbstractSolver):
    """Preconditioned conjugate gradients: products with K only, tile by tile, in O(n) memory beside the preconditioner.

    Solutions are exact to `tolerance`. The log determinant of the likelihood, and its derivative, are estimated by random
    probes. The seed is fixed, so the same numbers come at every call, and a fit sees one smooth function.

    If the steps do not suffice, the status is `max_steps_reached`, and the last iterate is kept, which is the closest one
    to the solution in the norm of A. The remedies are a larger `max_steps`, a preconditioner of higher rank, or more noise.
    Every variance at new rows is a solve of its own.

    **Arguments:**

    - `preconditioner`: a solver for an easier system that is close to this one; `kx.LowRank(200)` if not given.
    - `tolerance`: the residual `‖b - A x‖ / ‖b‖` at which a solve ends; 1e-8 in float64 and 1e-5 in float32 if not given.
      For a likelihood in the course of a fit, 1e-2 is often enough.
    - `max_steps`: the most products with K in one solve.
    - `num_probes`: the number of random probes for the log determinant. Its error falls with the root of it.
    - `seed`: the seed of the probes.
    - `tile`: rows and columns of a tile of K; 1024 if not given.
    - `mesh`: a `jax.sharding.Mesh` with one axis, over whose devices the rows are spread.
    """

    preconditioner: AbstractSolver = eqx.field(default_factory=LowRank)
    tolerance: float | None = eqx.field(static=True, default=None)
    max_steps: int = eqx.field(static=True, default=500, converter=lambda steps: whole_number(steps, "CG.max_steps"))
    num_probes: int = eqx.field(static=True, default=16, converter=lambda number: whole_number(number, "CG.num_probes"))
    seed: int = eqx.field(static=True, default=0)
    tile: int | None = eqx.field(static=True, default=None)
    mesh: Mesh | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if not isinstance(self.preconditioner, AbstractSolver):
            raise TypeError(f"CG.preconditioner must be a solver, such as kx.LowRank(500), got {self.preconditioner!r}.")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ValueError(f"CG.tolerance must lie between 0 and 1, got {self.tolerance}.")
        if self.tile is not None:
            whole_number(self.tile, "CG.tile")
        if self.mesh is not None and len(self.mesh.axis_names) != 1:
            raise ValueError(f"CG.mesh must have one axis, got {self.mesh.axis_names}: rows are spread over one.")

    def settled(self, gram, part=None):
        del part
        return eqx.tree_at(lambda s: s.preconditioner, self, self.preconditioner.settled(gram))

    def prepare(self, gram, noise):
        gram = gram.tiled(self.tile, self.mesh)
        easy = self.preconditioner.prepare(gram, noise)
        # Jitter of the preconditioner is not on A: it only makes the preconditioner a slightly different one.
        result = Result.where(is_usable(easy.result), Result.successful, easy.result)
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = 1e-8 if jnp.finfo(noise.dtype).eps < 1e-10 else 1e-5
        return CGSystem(
            gram=gram,
            noise=noise,
            preconditioner=easy,
            jitter=jnp.zeros((), noise.dtype),
            result=result,
            tolerance=tolerance,
            max_steps=self.max_steps,
            num_probes=self.num_probes,
            seed=self.seed,
        )


@eqx.filter_jit
def _conjugate_gradients(
    operator: derivatives.Shifted,
    preconditioner: AbstractSystem,
    columns: Float[Array, "n p"],
    tolerance: float,
    max_steps: int,
) -> tuple[Float[Array, "n p"], _Run]:
    """All columns at once, each with its own step lengths."""
    size = jnp.maximum(jnp.linalg.norm(columns, axis=0), jnp.finfo(columns.dtype).tiny)
    kept = min(max_steps, _QUADRATURE)

    def residual(r: Array) -> Array:
        return jnp.linalg.norm(r, axis=0) / size

    def goes_on(state: tuple[Array, ...]) -> Array:
        return (state[-1] < max_steps) & jnp.any(residual(state[1]) > tolerance)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        x, r, direction, square, lengths, ratios, number = state
        product = operator.mv(direction)
        curvature = jnp.sum(direction * product, axis=0)
        # A column that is done goes a little further while others need it, and then rests: its numbers would be rounding.
        live = (residual(r) > 0.01 * tolerance) & (curvature > 0)
        length = jnp.where(live, square / jnp.where(live, curvature, 1.0), 0.0)
        x, r = x + length * direction, r - length * product
        seen = preconditioner._solve(r).value
        new_square = jnp.where(live, jnp.sum(r * seen, axis=0), square)
        ratio = jnp.where(live & (square > 0), new_square / jnp.where(square > 0, square, 1.0), 0.0)
        # Past the end of the arrays, nothing is written.
        lengths, ratios = lengths.at[number].set(length, mode="drop"), ratios.at[number].set(ratio, mode="drop")
        return x, r, seen + ratio * direction, new_square, lengths, ratios, number + 1

    first, empty = preconditioner._solve(columns).value, jnp.zeros((kept, columns.shape[1]), columns.dtype)
    start = (jnp.zeros_like(columns), columns, first, jnp.sum(columns * first, axis=0), empty, empty, jnp.asarray(0))
    x, r, _, _, lengths, ratios, steps = jax.lax.while_loop(goes_on, step, start)
    # The iteration's own residual forgets its rounding errors, so what is reported is computed anew.
    left = residual(columns - operator.mv(x))
    return x, _Run(steps, jnp.all(residual(r) <= tolerance), jnp.max(left), lengths, ratios)


def _log_entry(lengths: Float[Array, " q"], ratios: Float[Array, " q"]) -> Float[Array, ""]:
    """`e₁ᵀ log(T) e₁` for the Lanczos matrix T of one column of a run."""
    on = lengths > 0
    safe = jnp.where(on, lengths, 1.0)
    places = jnp.arange(lengths.shape[0])
    before = jnp.where(places > 0, jnp.roll(jnp.where(on, ratios, 0.0) / safe, 1), 0.0)
    # Steps that were not made are cut off from the others, and have the logarithm 0.
    beside = jnp.where(jnp.roll(on, -1) & (places < lengths.shape[0] - 1), jnp.sqrt(jnp.maximum(ratios, 0.0)) / safe, 0.0)
    upper = jnp.where(places[:, None] + 1 == places[None, :], beside[:, None], 0.0)
    matrix = jnp.where(places[:, None] == places[None, :], jnp.where(on, 1.0 / safe + before, 1.0), upper + upper.T)
    vectors, values = _raw.eigh(matrix)
    return jnp.sum(vectors[0] ** 2 * jnp.log(jnp.maximum(values, jnp.finfo(values.dtype).tiny)))
