"""A factor of `K + noise·I`, and what a strategy must offer to make one."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul
from kernax.kernels import AbstractKernel, Rows
from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _raw
from kernax.solvers._result import Result


class AbstractFactor(eqx.Module):
    """The few questions that every formula of kernax is written with."""

    jitter: eqx.AbstractVar[Float[Array, ""]]
    result: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def solve(self, b: Float[Array, "n *m"]) -> Float[Array, "n *m"]:
        """`(K + noise·I)⁻¹ b`."""

    @abc.abstractmethod
    def logdet(self) -> Float[Array, ""]:
        """`log det (K + noise·I)`."""

    def quadratic(self, b: Float[Array, "n *p"], solved: Float[Array, "n *p"]) -> Float[Array, "*p"]:
        """`bᵀ (K + noise·I)⁻¹ b` for every column, given `solved`, the answer of `solve(b)`."""
        return jnp.sum(b * solved, axis=0)

    @abc.abstractmethod
    def inverse_diagonal(self) -> Float[Array, " n"]:
        """`diag((K + noise·I)⁻¹)`."""

    @abc.abstractmethod
    def inverse_blocks(self, rows: Int[Array, "k m"]) -> Float[Array, "k m m"]:
        """Square blocks of `(K + noise·I)⁻¹`, one for each set of rows: what leaving out a fold asks for."""

    @abc.abstractmethod
    def condition_estimate(self) -> Float[Array, ""]:
        """The ratio of the largest to the smallest eigenvalue, to a digit or so."""

    def determined_without(self, rows: Int[Array, "k m"], filled: Bool[Array, "k m"]) -> Bool[Array, " k"]:
        """Whether what the kernel leaves free is determined by the rows outside each set: a spline's polynomials."""
        del filled
        return jnp.ones(rows.shape[0], bool)

    def shifted(self, noise: Any) -> "AbstractFactor":
        """The factor of `K + noise·I` for another noise, from the same factorisation, in O(n²): spectral factors know."""
        raise TypeError(
            f"a {type(self).__name__} cannot move to another noise (nor has noise given per row a common one): "
            "condition with solver=kx.Eigh() and one noise for all rows."
        )


class RawCholesky(derivatives.AbstractRaw):
    """`A = RᵀR`, R in the upper triangle; what stands below is never read."""

    upper: Float[Array, "n n"]

    def solve(self, b: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return _raw.solve_upper(self.upper, _raw.solve_upper_transposed(self.upper, b))

    def logdet(self) -> Float[Array, ""]:
        return 2.0 * jnp.sum(jnp.log(diagonal(self.upper)))

    def inverse_triangle(self) -> Float[Array, "n n"]:
        return _raw.inverse_triangle(self.upper)


class AbstractSolver(eqx.Module):
    """A strategy: one configured instance."""

    @abc.abstractmethod
    def factorise(
        self, kernel: AbstractKernel, x: Rows, noise: Float[Array, "*n"], mask: Bool[Array, " n"]
    ) -> AbstractFactor:
        """A factor of `K + noise·I` over the rows that count; `noise` is one number or one per row.

        It gets the kernel, not a matrix, so that a structured strategy can keep its structure.
        """


class DenseFactor(AbstractFactor):
    """A factor of an explicit matrix. The matrix carries the derivatives, the raw factor the numbers.

    Where the factorisation failed, the raw factor is that of the identity and every answer is NaN, chosen last: gradients
    behind a user's `where(ok, …)` stay finite.
    """

    matrix: Float[Array, "n n"]
    raw: Any
    mask: Bool[Array, " n"]
    jitter: Float[Array, ""]
    result: Any

    def solve(self, b):
        return self._or_nan(derivatives.solve(self.matrix, self.raw, b))

    def quadratic(self, b, solved):
        # What was solved is NaN where the factorisation failed, and no derivative is to meet it.
        solved = jnp.where(is_usable(self.result), solved, 0.0)
        return self._or_nan(derivatives.quadratic(self.matrix, b, solved))

    def logdet(self):
        return self._or_nan(derivatives.logdet(self.matrix, self.raw))

    def inverse_diagonal(self):
        return self._or_nan(derivatives.inverse_diagonal(self.matrix, self.raw))

    def inverse_blocks(self, rows):
        inverse = derivatives.inverse(self.matrix, self.raw)
        return self._or_nan(inverse[rows[:, :, None], rows[:, None, :]])

    def condition_estimate(self):
        return self._or_nan(_condition_estimate(*jax.lax.stop_gradient((self.matrix, self.raw)), self.mask))

    def _or_nan(self, value: Array) -> Array:
        return jnp.where(is_usable(self.result), value, jnp.nan)


def is_usable(result: Any) -> Bool[Array, "..."]:
    """Whether there are numbers behind a result (singular ones come from a jittered matrix)."""
    return (result == Result.successful) | (result == Result.singular)


def system_matrix(gram: Float[Array, "n n"], noise: Float[Array, "*n"], mask: Bool[Array, " n"]) -> Float[Array, "n n"]:
    """`K + noise·I` over the rows that count, the identity elsewhere: solves, determinants and derivatives are then
    exactly those of the smaller matrix."""
    diagonal = jnp.where(mask, noise, 1.0).astype(gram.dtype)
    return masked_gram(gram, mask) + jnp.diag(diagonal)


def masked_gram(gram: Float[Array, "n n"], mask: Bool[Array, " n"]) -> Float[Array, "n n"]:
    """K with zeros in the rows and columns that do not count."""
    return jnp.where(mask[:, None] & mask[None, :], gram, 0.0)


def jitter_ladder(dtype: Any, max_jitter: float | None) -> tuple[float, ...]:
    """Jitters to try in turn, relative to the mean diagonal: none, then factors of 10 from ten roundings to the cap."""
    eps = float(jnp.finfo(dtype).eps)
    cap = max_jitter if max_jitter is not None else (1e-6 if eps < 1e-10 else 1e-2)
    rungs, rung = [0.0], 10 * eps
    while rung <= cap:
        rungs.append(rung)
        rung *= 10
    return tuple(rungs)


def diagonal(matrix: Float[Array, "n n"]) -> Float[Array, " n"]:
    """The diagonal as a strided slice, which XLA compiles faster than the gather of `jnp.diagonal`."""
    n = matrix.shape[0]
    return matrix.reshape(-1)[:: n + 1]


def rounding_level(diagonal: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, " n"]:
    """What elimination leaves of each diagonal entry by rounding alone: a pivot no larger than that of its own row shows a
    matrix that is singular as far as its numbers can tell."""
    return rounding_share(jnp.sum(mask).astype(diagonal.dtype)) * diagonal


def rounding_share(count: Float[Array, ""]) -> Float[Array, ""]:
    """The share of a diagonal entry that elimination of that many rows leaves by rounding alone."""
    return 4 * jnp.finfo(count.dtype).eps * jnp.sqrt(count)


def mean_diagonal(diagonal: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """The mean diagonal entry over the rows that count; 0 if there are none."""
    return jnp.sum(jnp.where(mask, diagonal, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


def status(
    ok: Bool[Array, ""],
    matrix: Float[Array, "n n"],
    noise: Float[Array, "*n"],
    mask: Bool[Array, " n"],
    jitter: Float[Array, ""],
) -> Any:
    """The result of a factorisation that ended `ok` (or not) with this jitter."""
    # Only a failure is worth another pass over the matrix.
    finite = jax.lax.cond(ok, lambda: jnp.asarray(True), lambda: jnp.all(jnp.isfinite(matrix)))
    noise_free = jnp.any(jnp.where(mask, noise, 1.0) == 0)
    result = Result.where(finite, Result.not_positive_definite, Result.nonfinite)
    good = Result.where(noise_free & (jitter > 0), Result.singular, Result.successful)
    result = Result.where(ok, good, result)
    return Result.where(jnp.any(mask), result, Result.empty)


@eqx.filter_jit
def _condition_estimate(matrix: Float[Array, "n n"], raw: derivatives.AbstractRaw, mask: Bool[Array, " n"]) -> Array:
    """The largest eigenvalues of A and of A⁻¹, multiplied: a few dozen products and solves, O(n²)."""
    # A fixed start that favours no structure; masked rows stay 0 and so out of the estimate.
    start = jnp.where(mask, jnp.sin(1.0 + jnp.arange(mask.shape[0]) ** 2 % 997), 0.0).astype(matrix.dtype)
    largest = _power_iteration(lambda v: matmul(matrix, v), start)
    return largest * _power_iteration(lambda v: raw.solve(v[:, None])[:, 0], start)


def _power_iteration(apply: Any, start: Float[Array, " n"], steps: int = 30) -> Float[Array, ""]:
    def step(_, v):
        w = apply(v)
        return w / jnp.maximum(jnp.linalg.norm(w), jnp.finfo(w.dtype).tiny)

    return jnp.linalg.norm(apply(jax.lax.fori_loop(0, steps, step, start)))
