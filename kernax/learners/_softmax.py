"""The mode and the curvature of several latent functions behind a softmax (Rasmussen & Williams, 3.5).

With the probabilities `π_c` of class c in every row, `D_c = diag(π_c)` and `W = diag(D_1, …, D_k) - ΠΠᵀ`, where Π stacks the
`D_c`. All functions have the same K, so that

    (K⁻¹ + W)⁻¹ = K - K S K,   S = E - E R (Σ E_c)⁻¹ Rᵀ E,   E_c = (K + D_c⁻¹)⁻¹ = √D_c B_c⁻¹ √D_c,   B_c = I + √D_c K √D_c,

where R stacks k identities, and `log det(I + KW) = Σ log det B_c + log det Σ E_c`: k + 1 factorisations of n × n matrices.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.learners._newton import Minimum, minimise
from kernax.learners._stationarity import AbstractLinearised, AbstractTerm, Direction, Point
from kernax.solvers import CholeskySystem, KnownInverse, factorise_matrix, worse, worst

Matrix = Float[Array, "n n"]
Columns = Float[Array, "n k"]
"""One column for each class."""


class SoftmaxTerm(AbstractTerm):
    """`Σ log Σ_c e^{f_ic} - f_i,y_i` over the rows that count."""

    y: Columns
    """1 in the column of a row's class, else 0."""
    counts: Bool[Array, " n"]

    def probabilities(self, values: Columns) -> Columns:
        """π."""
        return jnp.where(self.counts[:, None], jax.nn.softmax(values, axis=1), 0.0)

    def pulls(self, values: Columns) -> Columns:
        return jnp.where(self.counts[:, None], self.y, 0.0) - self.probabilities(values)

    def curvatures(self, values: Columns) -> Columns:
        """The diagonal of W."""
        found = self.probabilities(values)
        return found * (1.0 - found)

    def losses(self, values: Columns) -> Float[Array, " n"]:
        lost = jax.nn.logsumexp(values, axis=1) - jnp.sum(self.y * values, axis=1)
        return jnp.where(self.counts, lost, 0.0)


class SoftmaxTask(eqx.Module):
    """What is minimised. Rows that do not count have zeros in `gram`."""

    gram: Matrix
    term: SoftmaxTerm


class SoftmaxCurvature(eqx.Module):
    """S, from the inverses of all B_c and the factor of `Σ E_c`."""

    roots: Float[Array, "k n"]
    """`√D_c`."""
    inverses: Float[Array, "k n n"]
    """`B_c⁻¹`."""
    logdets: Float[Array, " k"]
    """`log det B_c`."""
    total: CholeskySystem
    """`Σ E_c`."""
    jitter: Float[Array, ""]
    result: Any

    def logdet(self) -> Float[Array, ""]:
        """`log det(I + KW)`."""
        return jnp.sum(self.logdets) + self.total.logdet()

    def each(self, columns: Float[Array, "k n m"]) -> Float[Array, "k n m"]:
        """`E_c` times the columns of class c."""

        def of_class(part: Any) -> Array:
            roots, inverse, columns = part
            return roots[:, None] * matmul(inverse, roots[:, None] * columns)

        return jax.lax.map(of_class, (self.roots, self.inverses, columns))

    def __call__(self, v: Columns) -> Columns:
        """`S v`."""
        found = self.each(v.T[:, :, None])
        common = self.total.solve(jnp.sum(found, axis=0)).value
        return (found - self.each(jnp.broadcast_to(common, found.shape)))[:, :, 0].T


def curvature(
    gram: Matrix, probabilities: Columns, counts: Bool[Array, " n"], max_jitter: float | None, known: Any = None
) -> SoftmaxCurvature:
    """S with these probabilities; about kn³. If that of the same numbers is `known`, only the derivatives are new."""
    # The root's slope at 0 is infinite; there the probability itself does not move.
    positive = probabilities.T > 0
    roots = jnp.where(positive, jnp.sqrt(jnp.where(positive, probabilities.T, 1.0)), 0.0)

    def matrix_of(roots: Float[Array, " n"]) -> Matrix:
        return roots[:, None] * gram * roots[None, :]

    def factorised(roots: Float[Array, " n"]) -> tuple[Array, Array, Array, Any]:
        system = factorise_matrix(matrix_of(roots), jnp.ones((), gram.dtype), counts, max_jitter)
        return system.inverse(), system.logdet(), system.jitter, system.result

    def moved(roots: Float[Array, " n"], inverse: Matrix, logdet: Float[Array, ""]) -> tuple[Array, Array]:
        return KnownInverse(inverse, logdet).of(matrix_of(roots))

    if known is None:
        inverses, logdets, jitters, results = jax.lax.map(factorised, roots)
        jitter, result = jnp.max(jitters), worst(results)
    else:
        # Not `lax.map`: through a scan, JAX 0.10 loses part of the second derivatives in reverse mode.
        inverses, logdets = jax.vmap(moved)(roots, known.inverses, known.logdets)
        jitter, result = known.jitter, known.result

    def add(total: Matrix, part: tuple[Array, Array]) -> tuple[Matrix, None]:
        return total + part[0][:, None] * part[1] * part[0][None, :], None

    matrix = jax.lax.scan(add, jnp.zeros_like(gram), (roots, inverses))[0]
    if known is None:
        total = factorise_matrix(matrix, jnp.zeros((), gram.dtype), counts, max_jitter)
        jitter, result = jnp.maximum(jitter, total.jitter), worse(result, total.result)
    else:
        total = eqx.tree_at(lambda system: system.gram.matrix, known.total, matrix)
    return SoftmaxCurvature(roots, inverses, logdets, total, jitter, result)


class _Linearised(AbstractLinearised):
    """A Newton step by S."""

    gram: Matrix
    inner: SoftmaxCurvature

    @property
    def jitter(self):
        return self.inner.jitter

    @property
    def result(self):
        return self.inner.result

    def direction(self, at, pulls):
        change = newton_step(self.gram, self.inner, pulls - at.alpha)
        return Direction(change, jnp.zeros_like(at.intercept), matmul(self.gram, change))


class _Uniform(AbstractLinearised):
    """A Newton step from f = 0, where all probabilities are 1/k: with the factor of `I + K/k`, for all classes.

    There `W = (I - 11ᵀ/k)/k` between classes, and residuals add up to 0 over them, so that W is 1/k for them.
    """

    gram: Matrix
    system: CholeskySystem

    @property
    def jitter(self):
        return self.system.jitter

    @property
    def result(self):
        return self.system.result

    def direction(self, at, pulls):
        change = self.system.solve(pulls - at.alpha).value
        return Direction(change, jnp.zeros_like(at.intercept), matmul(self.gram, change))


def newton_step(gram: Matrix, inner: SoftmaxCurvature, residual: Columns) -> Columns:
    """`(I + WK)⁻¹ residual`."""
    return residual - inner(matmul(gram, residual))


def mode(task: SoftmaxTask, max_steps: int, max_jitter: float | None) -> Minimum:
    """The mode, from f = 0. Nothing of it is differentiable."""
    task = jax.lax.stop_gradient(task)
    zeros = jnp.zeros_like(task.term.y)

    def linearise(values: Columns, least: Columns) -> _Linearised:
        del least  # the probabilities bound the curvature: a full step is rarely too long
        probabilities = task.term.probabilities(values)
        return _Linearised(task.gram, curvature(task.gram, probabilities, task.term.counts, max_jitter))

    # A Gram matrix that is not finite makes NaN of zeros.
    start = Point(zeros, jnp.zeros((), zeros.dtype), matmul(task.gram, zeros))
    # The first moves need one factor instead of k + 1.
    system = factorise_matrix(task.gram / zeros.shape[1], jnp.ones((), zeros.dtype), task.term.counts, max_jitter)
    first = minimise(task.term, start, lambda values, least: _Uniform(task.gram, system), 1)
    sound = jnp.isfinite(first.gradient_norm)
    start = jax.tree.map(lambda moved, given: jnp.where(sound, moved, given), first.point, start)
    found = minimise(task.term, start, linearise, max_steps)
    return found._replace(num_steps=found.num_steps + 1)


@eqx.filter_custom_jvp
def _at_mode(task: SoftmaxTask, alpha: Columns, known: SoftmaxCurvature) -> Columns:
    return alpha


@_at_mode.def_jvp
def _at_mode_jvp(primals, tangents):
    task, _, known = primals
    # Not the constant: differentiated once more, it must still depend on the task.
    alpha = _at_mode(*primals)

    def residual(task: SoftmaxTask) -> Columns:
        return task.term.pulls(matmul(task.gram, alpha)) - alpha

    change = eqx.filter_jvp(residual, (task,), (tangents[0],))[1]
    probabilities = task.term.probabilities(matmul(task.gram, alpha))
    inner = curvature(task.gram, probabilities, task.term.counts, None, known)
    return alpha, newton_step(task.gram, inner, change)


def attached(task: SoftmaxTask, alpha: Columns, known: SoftmaxCurvature) -> Columns:
    """α at the mode with the derivatives, of any order, that it has as a function of `task`.

    At the mode `(I + WK) δα = δρ`: one more Newton step. It costs nothing unless differentiated.
    """
    return _at_mode(task, *jax.lax.stop_gradient((alpha, known)))
