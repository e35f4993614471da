"""Gaussian processes for several classes, by Laplace's approximation."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import as_floats, matmul
from kernax._programs import compiled
from kernax.data import Data
from kernax.grams import gram_of
from kernax.learners._machines import AbstractExpansion, AbstractMachine, described, max_jitter_of
from kernax.learners._smooth_machine import ended, has_answer
from kernax.learners._softmax import SoftmaxCurvature, SoftmaxTask, SoftmaxTerm, attached, curvature, mode
from kernax.posterior import rows_like
from kernax.rows import Rows, map_rows
from kernax.selection import log_marginal_likelihood
from kernax.solvers import AbstractSolver

_NODES = 2048


class LatentClasses(NamedTuple):
    """Mean and covariance of the latent functions at each row."""

    mean: Float[Array, "m k"]
    """`(m, k)` for k classes."""
    covariance: Float[Array, "m k k"]
    """`(m, k, k)`."""


class SoftmaxGP(AbstractExpansion):
    """A `LatentGP` with the likelihood `Softmax`, conditioned on data. Call it with new rows for the means of all f there.

    Differentiable of any order with respect to the kernel's parameters and x.
    """

    model: AbstractMachine
    """The model."""
    data: Data
    """The dataset."""
    solver: AbstractSolver
    """The solver."""
    coefficients: Float[Array, "n k"]
    """`α = y - π` at the mode, y being 1 in the column of a row's class; 0 in masked rows."""
    intercept: Float[Array, ""]
    """0."""
    values: Float[Array, "n k"]
    """The mode of all f at the data."""
    inner: SoftmaxCurvature
    """The factorisation from which variances are computed."""
    log_likelihood: Float[Array, ""]
    """The approximate marginal likelihood, which `kx.log_marginal_likelihood` returns."""
    gradient_norm: Float[Array, ""]
    """The largest component of the gradient at the mode, relative to the size of its terms."""
    num_steps: Int[Array, ""]
    """The number of Newton steps."""
    result: Any
    """How the computation ended."""
    jitter: Float[Array, ""]
    """The jitter that was added to the diagonal."""

    def __repr__(self):
        return described(self, "log_likelihood", "gradient_norm")

    def latent(self, x: Any) -> LatentClasses:
        """Means and covariances of the latent functions. O(kn²) a row for k classes.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        A `LatentClasses(mean, covariance)` of shapes `(m, k)` and `(m, k, k)`.
        """
        return _latent(self, rows_like(self.model, self.data, x))

    def probability(self, x: Any) -> Float[Array, "m k"]:
        """The probability of each class, averaged over the uncertainty of the latent functions.

        The average is taken over 2,048 fixed quasi-random nodes (Sobol's sequence, mapped to the normal distribution), with
        an error of about 1e-3. The same call gives the same numbers.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m, k)`, whose rows add up to 1.
        """
        return _probability(*self.latent(x))

    def classify(self, x: Any) -> Int[Array, " m"]:
        """The most probable class of each row.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        Whole numbers from 0 to k - 1, `(m,)`.
        """
        return jnp.argmax(self.probability(x), axis=1)

    def log_density(self, x: Any, y: Any) -> Float[Array, " m"]:
        """`log P(y | x)` of new classes y `(m,)`, 0 to k - 1, at the rows of x, averaged over f; -∞ for any other y."""
        probability = self.probability(x)
        y = as_floats(y, "y")
        if y.shape != probability.shape[:1]:
            raise ValueError(f"y has shape {y.shape}, but x has {len(probability)} rows: give one class for each.")
        chosen = y[:, None] == jnp.arange(probability.shape[1])
        return jnp.log(jnp.sum(jnp.where(chosen, probability, 0.0), axis=1))

    def _sum(self, x):
        coefficients = jnp.where(jnp.isfinite(self.intercept), self.coefficients, 0.0)
        return gram_of(self.model.kernel, self.data.x, self.data.mask).cross_mv(x, coefficients)


def softmax_gp(model: Any, data: Data, finite: Bool[Array, ""], solver: AbstractSolver, max_steps: int) -> SoftmaxGP:
    """The mode, and the normal approximation around it."""
    max_jitter = max_jitter_of(solver, "LatentGP with Softmax")
    likelihood = model.likelihood
    allowed = jax.vmap(likelihood.allows)(data.y) | ~data.mask
    labels = jnp.arange(likelihood.classes, dtype=data.dtype)
    chosen = jnp.where(allowed, data.y, 0.0)[:, None] == labels
    term = SoftmaxTerm(chosen.astype(data.dtype), data.mask)
    task = SoftmaxTask(gram_of(model.kernel, data.x, data.mask).dense(), term)

    found = mode(task, max_steps, max_jitter)
    result = ended(found.result, likelihood, data, jnp.all(allowed), finite)
    has_numbers = has_answer(result)
    alpha = jnp.where(has_numbers, found.point.alpha, 0.0)
    fixed: SoftmaxTask = jax.lax.stop_gradient(task)
    known = curvature(fixed.gram, fixed.term.probabilities(matmul(fixed.gram, alpha)), data.mask, max_jitter)
    alpha = attached(task, alpha, known)
    values = matmul(task.gram, alpha)
    inner = curvature(task.gram, term.probabilities(values), data.mask, max_jitter, known)
    objective = jnp.sum(term.losses(values)) + 0.5 * jnp.sum(alpha * values)

    def or_nan(part: Array) -> Array:
        return jnp.where(has_numbers, part, jnp.nan)

    return SoftmaxGP(
        model=model,
        data=data,
        solver=solver,
        coefficients=or_nan(alpha),
        intercept=or_nan(jnp.zeros((), data.dtype)),
        values=or_nan(values),
        inner=inner,
        log_likelihood=or_nan(-objective - 0.5 * inner.logdet()),
        gradient_norm=found.gradient_norm,
        num_steps=found.num_steps,
        result=result,
        jitter=found.jitter,
    )


@log_marginal_likelihood.register(SoftmaxGP)
def _(c: SoftmaxGP) -> Float[Array, ""]:
    return c.log_likelihood


@compiled
def _latent(c: SoftmaxGP, x: Rows) -> LatentClasses:
    gram = gram_of(c.model.kernel, c.data.x, c.data.mask)
    classes = c.coefficients.shape[1]

    def of_block(rows: Rows) -> Array:
        cross = gram.cross(rows)
        own = c.inner.each(jnp.broadcast_to(cross, (classes, *cross.shape)))
        explained = jnp.einsum("nm,cnm->mc", cross, own, precision="highest")
        shared = c.inner.total.solve(jnp.moveaxis(own, 0, 1).reshape(c.data.n, -1)).value.reshape(c.data.n, classes, -1)
        between = jnp.einsum("ncm,dnm->mcd", shared, own, precision="highest")
        spread = gram.kernel.diag(rows)[:, None] - explained
        return spread[:, :, None] * jnp.eye(classes, dtype=cross.dtype) + between

    covariance = map_rows(of_block, x, 3 * classes * c.data.n)
    ok = jnp.isfinite(c.intercept)
    return LatentClasses(c(x), jnp.where(ok, covariance, jnp.nan))


@functools.cache
def _nodes(dimensions: int) -> np.ndarray:
    """Points of Sobol's sequence in the unit cube, and their mirror images."""
    from scipy.stats import qmc  # takes half a second to import

    points = qmc.Sobol(dimensions, scramble=False).random(_NODES // 2) + 1.0 / _NODES
    return np.concatenate([points, 1.0 - points])


@compiled
def _probability(mean: Float[Array, "m k"], covariance: Float[Array, "m k k"]) -> Float[Array, "m k"]:
    classes = mean.shape[1]
    nodes = jax.scipy.special.ndtri(jnp.asarray(_nodes(classes), mean.dtype))

    def of_block(part: tuple[Array, Array]) -> Array:
        mean, roots = part
        draws = mean[:, None, :] + jnp.einsum("sd,mcd->msc", nodes, roots, precision="highest")
        return jnp.mean(jax.nn.softmax(draws, axis=2), axis=1)

    return map_rows(of_block, (mean, _roots(covariance)), 2 * _NODES * classes)


def _roots(covariances: Float[Array, "m k k"]) -> Float[Array, "m k k"]:
    """L with `L Lᵀ = covariance` for each of many small matrices, column by column; a variance of 0 leaves a column of 0."""
    size = jnp.max(jnp.diagonal(covariances, axis1=1, axis2=2), axis=1)
    least = 10 * jnp.finfo(covariances.dtype).eps * size

    def column(rest: Array, at: Array) -> tuple[Array, Array]:
        pivot = rest[:, at, at]
        sound = pivot > least
        root = jnp.sqrt(jnp.where(sound, pivot, 1.0))
        chosen = jnp.where(sound[:, None], rest[:, :, at] / root[:, None], 0.0)
        return rest - chosen[:, :, None] * chosen[:, None, :], chosen

    _, columns = jax.lax.scan(column, covariances, jnp.arange(covariances.shape[1]))
    return jnp.moveaxis(columns, 0, 2)
