"""Losses as likelihoods (F36), kernel machines with smooth losses, and classification by Laplace's approximation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression, PoissonRegressor

import kernax as kx
from kernax import learners

from ._oracles import LENGTHSCALE, NOISE, VARIANCE, X, Y, Z, assert_close, finite_differences, rbf

LABELS = np.where(Y > 0, 1.0, -1.0)
COUNTS = np.array([0.0, 3.0, 1.0, 7.0, 2.0, 0.0, 12.0, 1.0, 4.0, 2.0])
KERNEL = VARIANCE * kx.RBF(LENGTHSCALE)
K = rbf(X, X)
PHI = np.linalg.cholesky(K)
PHI_Z = np.linalg.solve(PHI, rbf(X, Z)).T
"""Features whose inner product is the kernel: `‖f‖ = ‖w‖` for `f = Φw`."""
PENALTIES = np.linspace(0.1, 0.9, 10)
ROWS = np.arange(10)


def exponential(y, f):
    """A loss of a user's own."""
    return jnp.exp(-y * f)


def huber(y, f):
    return np.where(np.abs(y - f) < 0.4, 0.5 * (y - f) ** 2, 0.4 * (np.abs(y - f) - 0.2))


def smooth_pinball(y, f):
    return 0.75 * (y - f) + 0.2 * np.logaddexp(0.0, (f - y) / 0.2)


LOSSES = {
    "logistic": (learners.Logistic(), LABELS, lambda y, f: np.logaddexp(0.0, -y * f), NOISE, True),
    "squared hinge": (learners.SquaredHinge(), LABELS, lambda y, f: np.maximum(1 - y * f, 0) ** 2, PENALTIES, True),
    "exponential": (exponential, LABELS, lambda y, f: np.exp(-y * f), NOISE, True),
    "squared": (learners.Squared(), Y, lambda y, f: (y - f) ** 2, NOISE, False),
    "Huber": (learners.Huber(0.4), Y + 5.0 * (ROWS == 3), huber, NOISE, False),
    "quantile": (learners.SmoothQuantile(0.75, 0.2), Y, smooth_pinball, NOISE, True),
    "Poisson": (learners.Poisson(), COUNTS, lambda y, f: np.exp(f) - y * f + scipy.special.gammaln(y + 1), NOISE, True),
}


# F36: losses and likelihoods


def test_f36_losses_that_normalise_are_negative_log_likelihoods():
    """`Σ_y p(y | f) = 1` or `∫ p(y | f) dy = 1`, whatever f is."""
    for f in (-1.3, 0.0, 2.1):
        for loss in (learners.Squared(), learners.Huber(0.7), learners.SmoothQuantile(0.2, 0.5)):
            density = jax.jit(lambda y, loss=loss, f=f: jnp.exp(loss.log_density(y, jnp.asarray(f))))
            edges = (-np.inf, f - 0.7, f, f + 0.7, np.inf)
            mass = sum(scipy.integrate.quad(density, a, b)[0] for a, b in itertools.pairwise(edges))
            assert mass == pytest.approx(1.0, abs=1e-7)
        logistic = [learners.Logistic().log_density(jnp.asarray(y), jnp.asarray(f)) for y in (-1.0, 1.0)]
        assert np.sum(np.exp(logistic)) == pytest.approx(1.0, abs=1e-14)
        counts = jnp.arange(120.0)
        poisson = jax.vmap(lambda y, f=f: learners.Poisson().log_density(y, jnp.asarray(f)))(counts)
        assert_close(poisson[:20], scipy.stats.poisson.logpmf(np.arange(20), np.exp(f)), 1e-13)
        assert np.sum(np.exp(poisson)) == pytest.approx(1.0, abs=1e-12)


def test_f36_hinges_do_not_normalise():
    """The mass of `e^-loss` over y = ±1 depends on f: 0.736 at 0 and 1.135 at 1 (squared: 0.736 and 1.018)."""
    for power, at_one in ((1, 1.135), (2, 1.018)):
        mass = [sum(np.exp(-(max(0.0, 1 - y * f) ** power)) for y in (-1, 1)) for f in (0.0, 1.0)]
        np.testing.assert_allclose(mass, [0.736, at_one], atol=5e-4)
    machine = kx.condition(learners.KernelMachine(KERNEL, learners.SquaredHinge(), penalty=PENALTIES), kx.Data(X, LABELS))
    with pytest.raises(TypeError, match=r"not a negative log-likelihood.*kfold_loss"):
        kx.log_marginal_likelihood(machine)
    for loss in (learners.SquaredHinge(), exponential):
        with pytest.raises(TypeError, match="not a negative log-likelihood"):
            learners.LatentGP(KERNEL, loss)


def test_f36_what_a_loss_estimates():
    """At one point, seven of ten labels +1: the logistic loss gives logit η, the exponential one half of it."""
    data = kx.Data(np.ones((10, 2)), np.where(ROWS < 7, 1.0, -1.0))
    logit = np.log(7 / 3)
    logistic = kx.condition(learners.KernelMachine(KERNEL), data)
    np.testing.assert_allclose(logistic(Z), logit, rtol=1e-12)
    np.testing.assert_allclose(logistic.probability(Z), 0.7, rtol=1e-12)
    other = kx.condition(learners.KernelMachine(KERNEL, exponential), data)
    np.testing.assert_allclose(other.intercept, logit / 2, rtol=1e-9)
    quartile = kx.condition(learners.KernelMachine(KERNEL, learners.SmoothQuantile(0.75, 1e-3)), kx.Data(data.x, ROWS))
    assert 6.99 < float(quartile.intercept) < 7.01


def test_f36_the_minimiser_is_the_posterior_mode():
    """`argmin Σ loss + λ‖f‖²` maximises `Σ log p(y | f) + log N(f; 0, K/2λ)`: there its slope is 0."""
    c = kx.condition(learners.KernelMachine(KERNEL, learners.Huber(0.5), penalty=NOISE, intercept=False), kx.Data(X, Y))
    prior = scipy.stats.multivariate_normal(np.zeros(10), K / (2 * NOISE))
    densities = jax.jit(jax.vmap(c.model.loss.log_density))
    slope = finite_differences(lambda f: np.sum(densities(Y, f)) + prior.logpdf(f), np.asarray(c.values))
    assert np.max(np.abs(slope)) < 1e-7


# Machines


def minimised(loss, y, weights, intercept):
    """`Σ C loss + ½‖w‖²` over w and b, by BFGS."""

    def objective(w):
        return np.sum(weights * loss(y, PHI @ w[:10] + (w[10] if intercept else 0.0))) + 0.5 * w[:10] @ w[:10]

    start = np.append(np.zeros(10), np.log(3.0) if y is COUNTS else 0.0)
    best = scipy.optimize.minimize(objective, start, method="BFGS", options={"gtol": 1e-8})
    return best.fun, best.x[:10], best.x[10] if intercept else 0.0


@pytest.mark.parametrize("name", LOSSES)
def test_machines_minimise(name):
    """Against BFGS on features; with one penalty or one a row, with an intercept or without."""
    loss, y, plain, penalty, intercept = LOSSES[name]
    c = kx.condition(learners.KernelMachine(KERNEL, loss, penalty=penalty, intercept=intercept), kx.Data(X, y))
    value, w, b = minimised(plain, y, 0.5 / penalty, intercept)
    assert c.result == kx.Result.successful
    assert float(c.gradient_norm) < 1e-11
    assert float(c.objective) == pytest.approx(value, rel=1e-8)
    np.testing.assert_allclose(c(Z), PHI_Z @ w + b, atol=2e-5)
    np.testing.assert_allclose(PHI @ w + b, c.values, atol=2e-5)
    if intercept:
        assert abs(float(np.sum(c.coefficients))) < 1e-11


def test_the_logistic_machine_is_logistic_regression_on_features():
    C = 2.5
    c = kx.condition(learners.KernelMachine(KERNEL, C=C), kx.Data(X, LABELS))
    peer = LogisticRegression(C=C, tol=1e-12, max_iter=10_000).fit(PHI, LABELS)
    np.testing.assert_allclose(c(Z), peer.decision_function(PHI_Z), atol=1e-6)
    np.testing.assert_allclose(c.probability(Z), peer.predict_proba(PHI_Z)[:, 1], atol=1e-7)
    np.testing.assert_array_equal(c.classify(Z), peer.predict(PHI_Z))


def test_counts_are_poisson_regression_on_features():
    """scikit-learn divides the loss by n: its alpha is 2λ/n."""
    c = kx.condition(learners.KernelMachine(KERNEL, learners.Poisson(), penalty=NOISE), kx.Data(X, COUNTS))
    peer = PoissonRegressor(alpha=2 * NOISE / 10, solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(PHI, COUNTS)
    np.testing.assert_allclose(jnp.exp(c(Z)), peer.predict(PHI_Z), rtol=1e-8)


def test_counts_of_any_size():
    """No overflow on the way to `e^f = 10⁶`: steps that would are halved."""
    y = np.array([0.0, 1e6, 3.0, 1e5, 0.0, 0.0, 40.0, 2.0, 1e3, 7.0])
    c = kx.condition(learners.KernelMachine(KERNEL, learners.Poisson(), penalty=1e-3), kx.Data(X, y))
    # Newton's method stops at eps^¾ of the largest force, 5e8: 8e-4.
    np.testing.assert_allclose(c.coefficients, 500 * (y - np.exp(c.values)), rtol=1e-6, atol=1e-3)


def test_squares_are_kernel_ridge_regression():
    """The same function as `kx.Model`, and, with noise ½ and the kernel over 2λ, the same marginal likelihood."""
    data = kx.Data(X, Y)
    c = kx.condition(learners.KernelMachine(KERNEL, learners.Squared(), penalty=NOISE, intercept=False), data)
    assert_close(c(Z), kx.mean(kx.condition(kx.Model(KERNEL, noise=NOISE), data), Z), 1e-12)
    peer = kx.condition(kx.Model((0.5 / NOISE) * KERNEL, noise=0.5), data)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), kx.log_marginal_likelihood(peer), rtol=1e-12)


# Derivatives


def value_slope_and_curvature(function, theta):
    """A function's gradient and its Hessian along a fixed direction, by derivatives and by finite differences."""
    direction = np.cos(1.0 + np.arange(len(theta)))
    # One program for all: (value, gradient) and their slopes along the direction.
    ask = jax.jit(lambda theta: jax.jvp(jax.value_and_grad(function), (theta,), (direction,)))
    (_, slope), (_, curvature) = ask(theta)
    along = finite_differences(lambda step: ask(theta + step[0] * direction)[0][1], [0.0])[:, 0]
    return (slope, curvature), (finite_differences(lambda theta: ask(theta)[0][0], theta), along)


def test_derivatives_are_those_of_finite_differences():
    """First and second, in kernel, penalty, loss, y and x."""

    def answer(theta):
        variance, lengthscale, penalty, width, y, x = theta
        loss = learners.SmoothQuantile(0.75, width)
        model = learners.KernelMachine(variance * kx.RBF(lengthscale), loss, penalty=penalty)
        c = kx.condition(model, kx.Data(jnp.asarray(X).at[4, 1].set(x), jnp.asarray(Y).at[2].set(y)))
        return c(Z)[0] - 2.0 * c(Z)[1] + 0.1 * c.objective

    theta = np.array([VARIANCE, LENGTHSCALE, NOISE, 0.3, Y[2], X[4, 1]])
    found, expected = value_slope_and_curvature(answer, theta)
    assert_close(found[0], expected[0], 1e-8)
    assert_close(found[1], expected[1], 1e-7)


def test_derivatives_of_laplaces_likelihood_are_those_of_finite_differences():
    """Through the mode as well, which moves."""

    def likelihood(theta):
        model = learners.LatentGP(theta[0] * kx.RBF(theta[1]), learners.Poisson())
        return kx.log_marginal_likelihood(kx.condition(model, kx.Data(jnp.asarray(X).at[4, 1].set(theta[2]), COUNTS)))

    found, expected = value_slope_and_curvature(likelihood, np.array([VARIANCE, LENGTHSCALE, X[4, 1]]))
    assert_close(found[0], expected[0], 1e-8)
    assert_close(found[1], expected[1], 1e-7)


# Gaussian process classification


def test_classification_is_that_of_scikit_learn():
    """Mode, log marginal likelihood, its gradient and, to what its five error functions allow, the probabilities."""
    data = kx.Data(X, LABELS)
    peer = GaussianProcessClassifier(ConstantKernel(VARIANCE) * RBF(LENGTHSCALE), optimizer=None).fit(X, LABELS)
    c = kx.condition(learners.GPClassifier(KERNEL), data)
    np.testing.assert_allclose(jax.nn.sigmoid(c.values), peer.base_estimator_.pi_, atol=1e-9)
    np.testing.assert_allclose(c.probability(Z), peer.predict_proba(Z)[:, 1], atol=5e-4)
    np.testing.assert_array_equal(c.classify(Z), peer.predict(Z))

    np.testing.assert_allclose(c.latent(X).mean, c.values, atol=1e-11)

    expected, gradient = peer.log_marginal_likelihood(peer.kernel_.theta, eval_gradient=True)
    assert float(kx.log_marginal_likelihood(c)) == pytest.approx(expected, rel=1e-9)
    machine = learners.KernelMachine(KERNEL, penalty=0.5, intercept=False)
    ask = jax.jit(jax.value_and_grad(lambda model: kx.log_marginal_likelihood(kx.condition(model, data))))
    value, slopes = ask(machine)
    assert float(value) == pytest.approx(expected, rel=1e-9)
    theta = [slopes.kernel.variance * VARIANCE, slopes.kernel.kernel.lengthscale * LENGTHSCALE]
    np.testing.assert_allclose(theta, gradient, rtol=1e-6)
    # The prior is K/(2λ).
    assert float(slopes.penalty) * 0.5 == pytest.approx(-gradient[0], rel=1e-6)


def test_probabilities_are_averaged_over_the_latent_function():
    """Quadrature to 1e-10, also where f is very uncertain."""
    data = kx.Data(X, LABELS)
    for variance in (VARIANCE, 90.0):
        c = kx.condition(learners.GPClassifier(variance * kx.RBF(LENGTHSCALE)), data)
        mean, spread = c.latent(Z).mean, np.sqrt(c.latent(Z).variance)
        for m, s, p in zip(mean, spread, c.probability(Z), strict=True):
            exact = scipy.integrate.quad(
                lambda f, m=m, s=s: scipy.stats.norm.pdf(f, m, s) / (1 + np.exp(-f)),
                m - 9 * s,
                m + 9 * s,
                epsabs=1e-12,
                limit=200,
            )[0]
            assert float(p) == pytest.approx(exact, abs=1e-10)
        # A plain machine takes f for certain.
        assert np.all(np.abs(c.probability(Z) - 0.5) < np.abs(jax.nn.sigmoid(c(Z)) - 0.5))


def test_fitting_a_classifier():
    """`kx.fit` as it stands, with restarts, reaches scikit-learn's optimum."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 2))
    y = np.where(x[:, 0] + 0.7 * rng.normal(size=30) > 0, 1.0, -1.0)
    fit = kx.fit(learners.GPClassifier(1.0 * kx.RBF()), kx.Data(x, y), restarts=1)
    assert fit.result == kx.Result.successful
    bounds = (1e-3, 1e4)
    peer = GaussianProcessClassifier(ConstantKernel(1.0, bounds) * RBF(1.0, bounds), n_restarts_optimizer=1, random_state=0)
    assert -float(fit.value) >= peer.fit(x, y).log_marginal_likelihood_value_ - 1e-5
