"""The default strategy: a Cholesky factorisation, with as little jitter as it takes."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.grams import GrownGram, MatrixGram, grown, masked
from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _raw
from kernax.solvers._jitter import diagonal, jitter_ladder, mean_diagonal, rounding_level, status
from kernax.solvers._result import Result
from kernax.solvers._solver import AbstractSolver
from kernax.solvers._system import AbstractSystem, Solution, is_usable


class RawCholesky(derivatives.AbstractRaw):
    """`A = RᵀR`, R in the upper triangle; what stands below is never read."""

    upper: Float[Array, "n n"]

    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return _raw.solve_upper(self.upper, self.half_solve(b))

    def half_solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """`R⁻ᵀ b`."""
        return _raw.solve_upper_transposed(self.upper, b)

    def logdet(self) -> Float[Array, ""]:
        return 2.0 * jnp.sum(jnp.log(diagonal(self.upper)))

    def inverse_triangle(self) -> Float[Array, "n n"]:
        return _raw.inverse_triangle(self.upper)


class GrownCholesky(derivatives.AbstractRaw):
    """The factor of a matrix that has grown: `R = [[R_1, S], [0, C]]`, of which R_1 stays where it is."""

    first: RawCholesky
    side: Float[Array, "k m"]
    """`S = R_1⁻ᵀ A_12`."""
    corner: Float[Array, "m m"]
    """C, upper triangular."""

    @property
    def upper(self) -> Float[Array, "n n"]:
        """R, as one matrix."""
        return jnp.block([[self.first.upper, self.side], [jnp.zeros_like(self.side.T), self.corner]])

    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        old, new = jnp.split(self.half_solve(b), [self.side.shape[0]])
        new = _raw.solve_upper(self.corner, new)
        return jnp.concatenate([_raw.solve_upper(self.first.upper, old - matmul(self.side, new)), new])

    def half_solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """`R⁻ᵀ b`."""
        old, new = jnp.split(b, [self.side.shape[0]])
        old = self.first.half_solve(old)
        return jnp.concatenate([old, _raw.solve_upper_transposed(self.corner, new - matmul(self.side.T, old))])

    def logdet(self) -> Float[Array, ""]:
        return self.first.logdet() + RawCholesky(self.corner).logdet()

    def inverse_triangle(self) -> Float[Array, "n n"]:
        return _raw.inverse_triangle(self.upper)


class CholeskySystem(AbstractSystem):
    """A system solved by Cholesky: the matrix K, with which derivatives are computed, and the factor of A.

    If the factorisation failed, the factor is that of the identity, and the base class returns NaN.

    **Arguments:**

    - `gram`: the kernel matrix.
    - `noise`: the noise variance, one number or one for each row.
    - `raw`: the Cholesky factor.
    - `jitter`: the jitter that was added to the diagonal.
    - `result`: how the preparation ended.
    """

    gram: MatrixGram | GrownGram  # pyright: ignore[reportIncompatibleVariableOverride]
    noise: Float[Array, "*n"]
    raw: RawCholesky | GrownCholesky
    jitter: Float[Array, ""]
    result: Any

    def _solve(self, columns):
        return Solution(derivatives.solve_by(self.operator, self.raw, columns), self.result)

    def _solve_grown(self, columns, known):
        raw, gram = self.raw, self.gram
        if not isinstance(raw, GrownCholesky) or not isinstance(gram, GrownGram) or gram.first.n != known.shape[0]:
            return self._solve(columns)
        # With S what the old rows leave of A_nn: α_n = S⁻¹ (b_n - A_no α), and α - A_oo⁻¹ A_on α_n for the old rows.
        numbers, side, old = jax.lax.stop_gradient((columns, gram.side, known))
        new = RawCholesky(raw.corner).solve(numbers[old.shape[0] :] - matmul(side.T, old))
        old = old - _raw.solve_upper(raw.first.upper, matmul(raw.side, new))
        value = derivatives.known_solution(self.operator, raw, columns, jnp.concatenate([old, new]))
        return Solution(value, self.result)

    def _logdet(self):
        return derivatives.logdet(self.operator, self.raw)

    def _variance(self, x):
        explained = derivatives.explained(self.operator, self.raw, self.gram.cross(x))
        return Solution(self.gram.kernel.diag(x) - explained, self.result)

    def inverse_diagonal(self):
        return self._or_nan(derivatives.inverse_diagonal(self.operator, self.raw))

    def inverse(self) -> Float[Array, "n n"]:
        """The inverse of A.

        **Returns:**

        A matrix of shape `(n, n)`.
        """
        return self._or_nan(derivatives.inverse(self.operator, self.raw))

    def inverse_blocks(self, rows):
        inverse = derivatives.inverse(self.operator, self.raw)
        return self._or_nan(inverse[rows[:, :, None], rows[:, None, :]])

    def appended(self, gram, noise):
        # The factor grows by the new columns R⁻ᵀ A_on and the factor of what they leave of A_nn: O(n²) a row.
        longer = grown(self._gathered.gram, gram)
        system = dataclasses.replace(self._gathered, gram=longer, noise=noise)
        side, corner, entries, shift = jax.lax.stop_gradient(
            (longer.side, longer.corner, longer.diagonal() + system.shift, system.shift)
        )
        raw, n = system.raw, longer.first.n
        if isinstance(raw, GrownCholesky):
            known = raw.side.shape[1]
            first, side = raw.first, jnp.concatenate([raw.side, raw.first.half_solve(side[:, known:])], axis=1)
        else:
            first, side = raw, raw.half_solve(side)
        corner = _raw.cholesky(corner - matmul(side.T, side), shift[n:])
        ok = jnp.all(diagonal(corner) ** 2 > rounding_level(entries, gram.mask)[n:])
        corner = jnp.where(ok, corner, jnp.eye(gram.n - n, dtype=corner.dtype))
        result = Result.where(ok | ~is_usable(self.result), self.result, Result.not_positive_definite)
        return dataclasses.replace(system, raw=GrownCholesky(first, side, corner), result=result)

    @property
    def _gathered(self) -> "CholeskySystem":
        """This System with its factor in one piece, once a quarter of its rows have been added to the first."""
        if not isinstance(self.raw, GrownCholesky) or 4 * self.raw.side.shape[1] < self.raw.side.shape[0]:
            return self
        return dataclasses.replace(self, gram=self.gram.evaluated(), raw=RawCholesky(self.raw.upper))

    def draw(self, key, number):
        shocks = jax.random.normal(key, (self.gram.n, number), self.raw.upper.dtype)
        return self._columns(matmul(jnp.triu(self.raw.upper).T, shocks))


class Cholesky(AbstractSolver):
    """Cholesky factorisation: exact, O(n³/3) once and O(n²) for each right-hand side. The default solver.

    The factorisation is first tried without jitter. If the matrix is not numerically positive definite, jitter is added to
    the diagonal of the rows that count. It starts at ten rounding errors of the mean diagonal and grows by factors of 10.
    The jitter that was needed is reported as `jitter` and never counted as noise.

    **Arguments:**

    - `max_jitter`: the largest jitter allowed, relative to the mean diagonal; 1e-6 in float64 and 1e-2 in float32 if
      `None`.
    """

    max_jitter: float | None = eqx.field(static=True, default=None)
    suits_machines = True

    def bytes_needed(self, n, itemsize, *, gradient=False):
        # K and its factor; for the gradient also the inverse and the derivative. Measured: 2.15, and 4.15 to 5.2.
        return (4 if gradient else 2) * n * n * itemsize

    def prepare(self, gram, noise):
        gram = gram.evaluated()
        fixed, variance = jax.lax.stop_gradient((gram.matrix, noise))
        shift = jnp.where(gram.mask, variance, 1.0).astype(fixed.dtype)
        upper, jitter, ok = jittered(fixed, shift, gram.mask, jitter_ladder(fixed.dtype, self.max_jitter))
        result = status(ok, fixed, variance, gram.mask, jitter)
        return CholeskySystem(gram=gram, noise=noise, raw=RawCholesky(upper), jitter=jitter, result=result)


def jittered(
    matrix: Float[Array, "n n"], shift: Float[Array, " n"], mask: Bool[Array, " n"], ladder: tuple[float, ...]
) -> tuple[Float[Array, "n n"], Float[Array, ""], Bool[Array, ""]]:
    """The upper factor of `matrix + diag(shift)` with the least jitter on the ladder, that jitter, and whether it exists."""
    entries = diagonal(matrix) + shift
    scale, floor = mean_diagonal(entries, mask), rounding_level(entries, mask)
    lowest = ladder[1] * scale if len(ladder) > 1 else jnp.zeros_like(scale)

    def climb(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        rung = state[0] + 1
        # Past the last rung stands ∞, which factorises the identity instead: a failed factor is finite, and flagged.
        # The rungs are computed one by one: for an array of all of them XLA compiles an operation for each.
        gave_up = rung == len(ladder)
        jitter = jnp.where(gave_up, jnp.inf, jnp.where(rung == 1, lowest, 10.0 * state[1]))
        # On rows that count only: on others it would change the determinant.
        upper = _raw.cholesky(matrix, jnp.where(mask | gave_up, shift + jitter, shift))
        # Not definite for a NaN pivot, too: no comparison with it holds.
        definite = gave_up | jnp.all(diagonal(upper) ** 2 > floor)
        return rung, jitter, upper, definite

    start = (jnp.asarray(-1), jnp.zeros_like(scale), matrix, jnp.asarray(False))
    rung, jitter, upper, _ = jax.lax.while_loop(lambda state: ~state[-1], climb, start)
    ok = rung < len(ladder)
    return upper, jnp.where(ok, jitter, 0.0), ok


def factorise_matrix(
    matrix: Float[Array, "n n"], noise: Float[Array, "*n"], mask: Bool[Array, " n"], max_jitter: float | None = None
) -> CholeskySystem:
    """The System of `matrix + noise·I` for an explicit symmetric matrix.

    **Arguments:**

    - `matrix`: symmetric, positive semi-definite.
    - `noise`: one number, or one for each row.
    - `mask`: which rows and columns count.
    - `max_jitter`: see `Cholesky`.

    **Returns:**

    A System with `solve` and `logdet`. It cannot predict at new rows.
    """
    return Cholesky(max_jitter).prepare(MatrixGram(None, None, mask, masked(matrix, mask)), noise)


def draw_root(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A root `L` with `L Lᵀ = matrix`, for drawing samples with this covariance. Differentiable.

    A covariance may be semi-definite (at an interpolated point the variance is 0), so jitter of up to 1e-2 of the mean
    diagonal is allowed.

    **Arguments:**

    - `matrix`: a covariance, symmetric and positive semi-definite.

    **Returns:**

    A lower triangular matrix; NaN if the factorisation failed.
    """
    n = matrix.shape[0]
    system = factorise_matrix(matrix, jnp.zeros((), matrix.dtype), jnp.ones(n, bool), max_jitter=1e-2)
    lower = derivatives.root(system.operator, system.raw, jnp.triu(system.raw.upper).T)
    return jnp.where(is_usable(system.result), lower, jnp.nan)


class KnownInverse(derivatives.AbstractRaw):
    """A positive definite matrix whose inverse and log determinant are known.

    **Arguments:**

    - `inverse`: the inverse.
    - `log_determinant`: the log determinant of the matrix.
    """

    inverse: Float[Array, "n n"]
    log_determinant: Float[Array, ""]

    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return matmul(self.inverse, b)

    def logdet(self) -> Float[Array, ""]:
        return self.log_determinant

    def inverse_triangle(self) -> Float[Array, "n n"]:
        return self.inverse

    def of(self, matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
        """Attach derivatives to the inverse and the log determinant.

        **Arguments:**

        - `matrix`: the matrix.

        **Returns:**

        The inverse and the log determinant, with their derivatives with respect to the matrix.
        """
        operator = derivatives.of_matrix(matrix)
        return derivatives.inverse(operator, self), derivatives.logdet(operator, self)


class RawDefinite(derivatives.AbstractRaw):
    """A itself, factorised again in every call: for small systems that are used once."""

    matrix: Float[Array, "n n"]

    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return _raw.solve_definite(self.matrix, b)

    def logdet(self) -> Float[Array, ""]:
        nothing = jnp.zeros(self.matrix.shape[0], self.matrix.dtype)
        return RawCholesky(_raw.cholesky(self.matrix, nothing)).logdet()

    def inverse_triangle(self) -> Float[Array, "n n"]:
        return self.solve(jnp.eye(self.matrix.shape[0], dtype=self.matrix.dtype))


def solve_definite(matrix: Float[Array, "n n"], b: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
    """Solve `A x = b` for a small positive definite matrix, without jitter. Differentiable.

    **Arguments:**

    - `matrix`: A, symmetric and positive definite.
    - `b`: one or several right-hand sides, `(n,)` or `(n, m)`.

    **Returns:**

    `A⁻¹ b`, in the shape of `b`; NaN if A is not positive definite.
    """
    return derivatives.solve_matrix(matrix, RawDefinite(jax.lax.stop_gradient(matrix)), b)


def logdet_definite(matrix: Float[Array, "n n"]) -> Float[Array, ""]:
    """The log determinant of a small positive definite matrix, without jitter. Differentiable.

    **Arguments:**

    - `matrix`: symmetric and positive definite.

    **Returns:**

    One number; NaN if the matrix is not positive definite.
    """
    return derivatives.logdet(derivatives.of_matrix(matrix), RawDefinite(jax.lax.stop_gradient(matrix)))
