"""Gaussian processes with a likelihood that is not normal, by Laplace's approximation at the mode.

The mode of the posterior, `min Σ -log p(y_i | f_i) + ½‖f‖²`, is the solution of a kernel machine with λ = ½. Around it
the posterior is approximated by a normal distribution with precision `K⁻¹ + W` and
`W = -∂² log p(y | f)` (Rasmussen & Williams, 3.4 and 5.5.1).
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax._programs import compiled
from kernax.data import Data
from kernax.grams import AbstractGram, gram_of
from kernax.kernels import AbstractKernel
from kernax.learners._classes import softmax_gp
from kernax.learners._losses import AbstractLoss, Logistic, as_loss
from kernax.learners._machines import (
    AbstractExpansion,
    AbstractMachine,
    check_machine,
    check_targets,
    described,
    max_jitter_of,
)
from kernax.learners._modes import approximation, attached, mode, prior_of
from kernax.learners._predictive import averaged, interval, log_density
from kernax.learners._smooth_machine import (
    SmoothMachine,
    check_classifier,
    check_observed,
    data_term,
    ended,
    has_answer,
    initialised_kernel,
    solve,
)
from kernax.learners._stationarity import Curvature, DataTerm, Task, curvature
from kernax.learners._votes import sign
from kernax.model import Conditioned, Model
from kernax.posterior import Interval, rows_like
from kernax.rows import Rows
from kernax.selection import log_marginal_likelihood
from kernax.solvers import AbstractSolver, AbstractSystem, Result, Solution, is_usable

_MAX_STEPS = 100


class LatentGP(AbstractMachine):
    """A Gaussian process f with any likelihood: observations `y_i ~ p(y | f(x_i))`, `p = e^-loss / Z`.

    `kx.condition(gp, data)` finds the mode and Laplace's approximation around it, in five to ten steps of O(n³/3) each.
    `kx.fit(gp, data)` maximises the approximate marginal likelihood. For a constant level, add `kx.Constant()` to the
    kernel.

    Any solver that accepts a noise for each row can be used: each step is a regression with noise `1/W`, where W is the
    curvature of the loss. `kx.condition(gp, data, kx.StateSpace())` takes O(n) a step. With `kx.Vecchia()` and `kx.Eigh()`
    the loss must be curved everywhere, as those of `Poisson` and `Logistic` are; otherwise the result may be `stalled`.
    """

    kernel: AbstractKernel
    """The kernel."""
    likelihood: AbstractLoss
    """The likelihood, such as `learners.Poisson()`."""
    intercept: bool = eqx.field(static=True, repr=False)
    takes_any_solver: ClassVar[bool] = True

    def __init__(self, kernel: Any, likelihood: Any = None):
        self.kernel = kernel
        self.likelihood = Logistic() if likelihood is None else as_loss(likelihood)
        self.intercept = False

    def __check_init__(self):
        check_machine(self)
        jax.eval_shape(self.likelihood.log_normaliser)

    @property
    def penalty(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """λ = ½: the prior is that of K itself."""
        return jnp.asarray(0.5)

    def check(self, data, caller):
        check_targets(self, data, caller)
        check_observed(self.likelihood, data, False, "LatentGP", is_likelihood=True)

    def can_be_fitted(self, data):
        if not self.likelihood.labels and self.likelihood.num_classes is None:
            return super().can_be_fitted(data)
        # A single row has a single class.
        several = self.likelihood.has_minimum(data.y, data.mask) | (data.count <= 1)
        return super().can_be_fitted(data) & several

    def conditioned(self, data, finite, solver):
        if self.likelihood.num_functions > 1:
            return softmax_gp(self, data, finite, solver, _MAX_STEPS)
        # Cholesky factorises `I + √W K √W`, whose eigenvalues are all at least 1, and several moves share a factor.
        by = _by_factors if solver.suits_machines else _by_conditioning
        return by(self, data, finite, solver)

    def initialised(self, data):
        return eqx.tree_at(lambda m: m.kernel, self, initialised_kernel(self.kernel, self.likelihood, data))

    @property
    def wants_labels(self):
        return self.likelihood.labels

    def held_out_loss(self, y, values):
        return jax.vmap(self.likelihood.held_out)(y, values)


def GPClassifier(kernel: Any) -> LatentGP:  # noqa: N802
    """Gaussian process classification of labels −1 and +1: `P(y = 1) = 1 / (1 + exp(-f))`, where f has this kernel.

    **Arguments:**

    - `kernel`: the covariance of the latent function f.

    **Returns:**

    A model for `kx.condition` and `kx.fit`. Conditioned, it has `probability(x)` and `classify(x)`.
    """
    return LatentGP(kernel, Logistic())


class Latent(NamedTuple):
    """Mean and variance of f at each row."""

    mean: Float[Array, " m"]
    variance: Float[Array, " m"]


class LaplaceGP(AbstractExpansion):
    """A `LatentGP` conditioned on data. Call it with new rows for the mean of f there.

    Differentiable of any order with respect to the kernel's and the likelihood's parameters, x and y.
    """

    model: LatentGP
    """The model."""
    data: Data
    """The dataset."""
    solver: AbstractSolver
    """The solver."""
    coefficients: Float[Array, " n"]
    """`α = ∂ log p(y | f)` at the mode; 0 in masked rows."""
    intercept: Float[Array, ""]
    """0."""
    values: Float[Array, " n"]
    """The mode of f at the data."""
    system: AbstractSystem
    """`K + W⁻¹`."""
    solution: Solution
    """The solution from which predictions are made."""
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

    def latent(self, x: Any) -> Latent:
        """Mean `k_xX α` and variance `k(x,x) - k_xX (K + W⁻¹)⁻¹ k_Xx` of f. O(n²) a row with a dense solver.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        A `Latent(mean, variance)` of two arrays `(m,)`.
        """
        return _latent(self, rows_like(self.model, self.data, x))

    def as_regression(self) -> Conditioned:
        """The regression with the same posterior of f: targets `f + W⁻¹α` at the mode, and noise `W⁻¹` in each row."""
        noise = self.system.noise
        targets = self.data.zero_where_masked(self.values + noise * self.coefficients)
        result = Result.where(jnp.isfinite(self.intercept), self.solution.result, self.result)
        solution = self.solution._replace(result=result)
        data = eqx.tree_at(lambda d: d.y, self.data, targets)
        return Conditioned(Model(self.model.kernel, noise), data, self.system, targets, solution, self.solver)

    def _sum(self, x):
        return self.system.mean(x, self.solution)

    def probability(self, x: Any) -> Float[Array, "m *k"]:
        """The probability of each label, averaged over the uncertainty of f: closer to ½ than the sigmoid of the mean of f.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        `P(y = +1)` for each row, `(m,)`; for grades (`Ordinal`) the probabilities of all k grades, `(m, k)`. Raises
        `TypeError` if the likelihood gives no probabilities.
        """
        return averaged(self.model.likelihood.probability, *self.latent(x))

    def mean(self, x: Any) -> Float[Array, " m"]:
        """The mean of a new observation, averaged over the uncertainty of f.

        For counts it is the mean of `e^f`, which is larger than `e` to the mean of f. For grades it is the mean of
        0, …, k - 1.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m,)`.
        """
        return averaged(self.model.likelihood.mean, *self.latent(x))

    def interval(self, x: Any, level: float = 0.95) -> Interval:
        """The interval that contains a new observation with probability `level`, from its quantiles `(1 ± level)/2`.

        The ends are whole numbers for counts and grades. The uncertainty of f is included. Not differentiable.

        **Arguments:**

        - `x`: new inputs, `(m, d)`.
        - `level`: the probability, between 0 and 1.

        **Returns:**

        An `Interval(lower, upper)` of two arrays `(m,)`.
        """
        return interval(self.model.likelihood, *self.latent(x), level)

    def log_density(self, x: Any, y: Any) -> Float[Array, " m"]:
        """The log density `log p(y | x)` of new observations, averaged over the uncertainty of f.

        **Arguments:**

        - `x`: new rows, `(m, d)`.
        - `y`: new observations, `(m,)`.

        **Returns:**

        An array of shape `(m,)`.
        """
        return log_density(self.model.likelihood, *self.latent(x), y)

    def classify(self, x: Any) -> Float[Array, " m"] | Int[Array, " m"]:
        """The most probable class of each row.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m,)`: -1 or +1, 0 or 1 (`Bernoulli`), or a grade (`Ordinal`).
        """
        likelihood = self.model.likelihood
        if likelihood.num_classes is None:
            check_classifier(likelihood)
            return sign(self(x))
        probability = self.probability(x)
        return jnp.argmax(probability, axis=1) if probability.ndim > 1 else (probability > 0.5).astype(int)


@compiled
def _latent(c: LaplaceGP, x: Rows) -> Latent:
    mean, spread = c.system.mean_and_variance(x, c.solution)
    ok, variance = jnp.isfinite(c.intercept), jnp.where(spread.value < 0, 0.0, spread.value)
    return Latent(jnp.where(ok, mean, jnp.nan), jnp.where(ok, variance, jnp.nan))


class CurvedSystem(AbstractSystem):
    """`K + W⁻¹` by the factor of `I + √W K √W`."""

    gram: AbstractGram
    noise: Float[Array, " n"]
    """`W⁻¹`; the largest number there is where W is 0."""
    curvature: Curvature
    jitter: Float[Array, ""]
    result: Any

    def _solve(self, columns):
        return Solution(self.curvature(columns), self.result)

    def _logdet(self):
        return self.curvature.system.logdet() + jnp.sum(jnp.log(self.shift))


def _by_factors(model: LatentGP, data: Data, finite: Bool[Array, ""], solver: AbstractSolver) -> LaplaceGP:
    solved = solve(model, model.likelihood, data, finite, solver, _MAX_STEPS, keep_curvature=True)
    inner = solved.curvature
    assert inner is not None
    weights = inner.roots**2
    system = CurvedSystem(
        gram=gram_of(model.kernel, data.x, data.mask),
        noise=1.0 / jnp.where(weights > 0, weights, jnp.finfo(data.dtype).tiny),
        curvature=inner,
        jitter=inner.system.jitter,
        result=inner.system.result,
    )
    ok = jnp.isfinite(solved.intercept)
    return LaplaceGP(
        model=model,
        data=data,
        solver=solver,
        coefficients=solved.coefficients,
        intercept=solved.intercept,
        values=solved.values,
        system=system,
        solution=Solution(jnp.where(ok, solved.coefficients, 0.0), system.result),
        log_likelihood=_laplace(solved.objective, inner, model.likelihood, data),
        gradient_norm=solved.gradient_norm,
        num_steps=solved.num_steps,
        result=solved.result,
        jitter=solved.jitter,
    )


def _by_conditioning(model: LatentGP, data: Data, finite: Bool[Array, ""], solver: AbstractSolver) -> LaplaceGP:
    """By the System of `K + W⁻¹`, which any solver prepares."""
    if not solver.solves:
        raise TypeError(f"LatentGP needs all rows, but {solver!r} uses only some of them: leave out part=.")
    likelihood, dtype = model.likelihood, data.dtype
    term, allowed = data_term(likelihood, data, jnp.ones((), dtype))
    prior = prior_of(gram_of(model.kernel, data.x, data.mask), solver, term)
    found = mode(prior, term, _MAX_STEPS)
    result = ended(found.result, likelihood, data, allowed, finite)
    usable = has_answer(result)
    alpha, values = (jnp.where(usable, part, 0.0) for part in (found.point.alpha, found.point.fitted))
    alpha, values = attached(prior, term, alpha, values)
    near = approximation(prior, term, values)
    result = Result.where(usable & ~is_usable(near.solution.result), near.solution.result, result)
    has_numbers = has_answer(result)
    terms = near.system.evidence(values + term.pulls(values) / near.weights)
    volume = terms.logdet + jnp.sum(jnp.where(data.mask, jnp.log(near.weights), 0.0))
    constant = data.count.astype(dtype) * likelihood.log_normaliser().astype(dtype)
    objective = jnp.sum(term.losses(values)) + 0.5 * jnp.sum(alpha * values)

    def or_nan(part: Array) -> Array:
        return jnp.where(has_numbers, part, jnp.nan)

    return LaplaceGP(
        model=model,
        data=data,
        solver=solver,
        coefficients=or_nan(alpha),
        intercept=or_nan(jnp.zeros((), dtype)),
        values=or_nan(values),
        system=near.system,
        solution=near.solution,
        log_likelihood=or_nan(-objective - constant - 0.5 * volume + terms.correction),
        gradient_norm=found.gradient_norm,
        num_steps=found.num_steps,
        result=result,
        jitter=found.jitter,
    )


@log_marginal_likelihood.register(LaplaceGP)
def _(c: LaplaceGP) -> Float[Array, ""]:
    return c.log_likelihood


@log_marginal_likelihood.register(SmoothMachine)
def _(c: SmoothMachine) -> Float[Array, ""]:
    """Laplace's approximation for the prior `K/(2λ)`, in one more factorisation."""
    model = c.model
    jax.eval_shape(model.loss.log_normaliser)
    if model.intercept or model.is_per_row:
        what = "an intercept, which has no prior" if model.intercept else "a penalty for each row, which reweights them"
        raise TypeError(
            f"a KernelMachine with {what}, has no marginal likelihood: give `fit` another objective, such as "
            "kx.learners.kfold_loss, or take intercept=False (add kx.Constant() to the kernel) and one penalty."
        )
    return _laplace_of_machine(c)


@compiled
def _laplace_of_machine(c: SmoothMachine) -> Float[Array, ""]:
    model, counts = c.model, c.data.mask
    usable = jnp.isfinite(c.objective)
    gram = gram_of(model.kernel, c.data.x, counts).dense()
    task = Task(gram, DataTerm(jnp.where(counts, model.C, 0.0), c.data.y, model.loss), intercept=False)
    inner = curvature(task, jnp.where(usable, c.values, 0.0), max_jitter_of(c.solver, "KernelMachine"))
    return jnp.where(usable, _laplace(c.objective / model.C, inner, model.loss, c.data), jnp.nan)


def _laplace(objective: Float[Array, ""], inner: Curvature, likelihood: AbstractLoss, data: Data) -> Float[Array, ""]:
    """`Σ log p(y_i | f_i) - ½‖f‖² - ½ log det B` at the mode, of which `objective` is `Σ loss_i + ½‖f‖²`."""
    constant = data.count.astype(data.dtype) * likelihood.log_normaliser().astype(data.dtype)
    return -objective - constant - 0.5 * inner.system.logdet()
