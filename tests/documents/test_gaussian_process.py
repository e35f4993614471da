"""Gaussian process regression, the power function and the kernel cookbook (F14–F18, F20)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.kernel_ridge import KernelRidge

import kernax as kx

from ._oracles import LENGTHSCALE, NOISE, VARIANCE, X, Y, Z, assert_close, rbf

DATA = kx.Data(X, Y)
SLOPE, INTERCEPT = np.array([0.8, -0.5]), 1.4


def squared_exponential(noise):
    return kx.Model(VARIANCE * kx.RBF(LENGTHSCALE), noise=noise)


@pytest.fixture(scope="module")
def noisy():
    return kx.condition(squared_exponential(NOISE), DATA)


@pytest.fixture(scope="module")
def exact():
    """The interpolant: the same points, without noise."""
    return kx.condition(squared_exponential(0.0), DATA)


def test_f14_the_posterior_is_the_conditional_of_the_joint_normal():
    """Mean `μ(z) + k_zX K̃⁻¹(y - μ_X)`, covariance `k - k_zX K̃⁻¹ k_Xz'`: against the joint precision matrix's blocks."""
    model = kx.Model(VARIANCE * kx.RBF(LENGTHSCALE), noise=NOISE, mean=kx.means.Linear(SLOPE, INTERCEPT))
    c = kx.condition(model, DATA)
    joint = np.block([[rbf(Z, Z), rbf(Z, X)], [rbf(X, Z), rbf(X, X) + NOISE * np.eye(10)]])
    precision = np.linalg.inv(joint)
    covariance = np.linalg.inv(precision[:4, :4])
    mean = Z @ SLOPE + INTERCEPT - covariance @ precision[:4, 4:] @ (Y - X @ SLOPE - INTERCEPT)

    assert_close(kx.mean(c, Z), mean)
    assert_close(kx.covariance(c, Z), covariance)
    assert_close(kx.covariance(c, Z, Z[::-1]), covariance[:, ::-1])
    assert_close(kx.variance(c, Z), np.diagonal(covariance))
    assert_close(kx.covariance(c, Z, noisy=True), covariance + NOISE * np.eye(4))
    prediction = kx.predict(c, Z)
    assert_close(prediction.mean, mean)
    assert_close(prediction.variance, np.diagonal(covariance))


def test_f15_the_mean_depends_on_the_ratio_of_the_variances_only():
    """`y = φᵀw + ε`: scaling σ_w² and σ_ε² together leaves the mean and scales the variances."""
    factor = 7.3
    one = kx.condition(kx.Model(VARIANCE * kx.Linear(), noise=NOISE), DATA)
    other = kx.condition(kx.Model(factor * VARIANCE * kx.Linear(), noise=factor * NOISE), DATA)
    only_one = kx.condition(kx.Model(factor * VARIANCE * kx.Linear(), noise=NOISE), DATA)
    assert_close(kx.mean(other, Z), kx.mean(one, Z), 1e-13)
    assert np.max(np.abs(np.asarray(kx.mean(only_one, Z)) - np.asarray(kx.mean(one, Z)))) > 1e-3
    assert_close(kx.variance(other, Z), factor * np.asarray(kx.variance(one, Z)))
    assert_close(kx.variance(other, Z, noisy=True), factor * np.asarray(kx.variance(one, Z, noisy=True)))


def test_f15_predictive_variance_with_and_without_the_noise():
    """`σ_w²c + σ_ε² - σ_w²kᵀ(K + ρI)⁻¹k` is that of a new observation; of the function, without σ_ε²."""
    c = kx.condition(kx.Model(VARIANCE * kx.Linear(), noise=NOISE), DATA)
    # Bayesian linear regression in the space of the weights.
    weights_precision = X.T @ X / NOISE + np.eye(2) / VARIANCE
    weights = np.linalg.solve(weights_precision, X.T @ Y / NOISE)
    latent = np.sum(Z * np.linalg.solve(weights_precision, Z.T).T, axis=1)
    assert_close(kx.mean(c, Z), Z @ weights)
    assert_close(kx.variance(c, Z), latent)
    assert_close(kx.variance(c, Z, noisy=True), latent + NOISE)
    # As the document prints it.
    ratio, k = NOISE / VARIANCE, X @ Z.T
    printed = np.sum(Z * Z, axis=1) - np.sum(k * np.linalg.solve(X @ X.T + ratio * np.eye(10), k), axis=0)
    assert_close(kx.variance(c, Z, noisy=True), VARIANCE * printed + NOISE)


def test_f16_ridge_regression_is_the_mean_of_the_process(noisy):
    """KRR with ridge λ = GP mean with noise variance λ: both of scikit-learn's give the one mean."""
    ridge = KernelRidge(alpha=NOISE, kernel="precomputed").fit(rbf(X, X), Y)
    kernel = sk.ConstantKernel(VARIANCE) * sk.RBF(LENGTHSCALE)
    process = GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None).fit(X, Y)
    mean, deviation = process.predict(Z, return_std=True)
    assert_close(kx.mean(noisy, Z), ridge.predict(rbf(Z, X)))
    assert_close(kx.mean(noisy, Z), mean)
    assert_close(kx.variance(noisy, Z), deviation**2)


def test_f16_ridge_regression_as_map_is_too_sure_of_itself(noisy, exact):
    """With `α ~ N(0, K⁻¹)`, `y | α ~ N(Kα, λ)` the mean is the same, but the variance is smaller by `P²(x*)`."""
    K, k = rbf(X, X), rbf(X, Z)
    precision = K + K @ K / NOISE
    map_estimate = np.linalg.solve(precision, K @ Y / NOISE)
    degenerate = np.sum(k * np.linalg.solve(precision, k), axis=0)
    assert_close(kx.mean(noisy, Z), k.T @ map_estimate, 1e-9)
    gap = np.asarray(kx.variance(noisy, Z)) - degenerate
    assert np.max(gap) > 0.1
    assert_close(gap, kx.power_function(exact, Z) ** 2, 1e-9)
    # At the data themselves nothing is missing.
    at_data = np.sum(K * np.linalg.solve(precision, K), axis=0)
    assert_close(kx.variance(noisy, X), at_data, 1e-9)


def test_f17_noise_belongs_to_observations_not_to_places():
    """Two observations at one place have independent errors; noise by `x = x'` would make the matrix singular."""
    x, y = X.copy(), Y.copy()
    x[9] = x[0]
    y[9] = y[0] + 1.0
    same_place = np.all(x[:, None] == x[None], axis=-1)
    assert np.linalg.matrix_rank(rbf(x, x) + NOISE * same_place) == 9

    c = kx.condition(squared_exponential(NOISE), kx.Data(x, y))
    assert float(c.jitter) == 0.0
    K = rbf(x, x) + NOISE * np.eye(10)
    assert_close(c.alpha, np.linalg.solve(K, y))
    assert_close(kx.mean(c, Z), rbf(Z, x) @ np.linalg.solve(K, y))

    # Two observations are one of their mean, with half the noise.
    once = kx.Data(x[:9], np.append((y[0] + y[9]) / 2, y[1:9]))
    merged = kx.condition(squared_exponential(np.append(NOISE / 2, np.full(8, NOISE))), once)
    assert_close(kx.mean(c, Z), kx.mean(merged, Z))
    assert_close(kx.variance(c, Z), kx.variance(merged, Z))


def test_f18_the_power_function_is_the_posterior_deviation(exact):
    """`P²(y) = k(y,y) - k_yX K⁻¹ k_Xy = 1/(K⁻¹_X'X')_yy` = posterior variance, and 0 at the data."""
    power = np.asarray(kx.power_function(exact, Z))
    K, k = rbf(X, X), rbf(X, Z)
    assert_close(power**2, VARIANCE - np.sum(k * np.linalg.solve(K, k), axis=0), 1e-10)
    for point, value in zip(Z, power, strict=True):
        bordered = np.vstack([X, point])
        assert value**2 == pytest.approx(1 / np.linalg.inv(rbf(bordered, bordered))[-1, -1], rel=1e-9)
    assert_close(power**2, kx.variance(exact, Z), 1e-14)
    assert np.max(kx.power_function(exact, X)) < 1e-6  # the root of rounding


CENTRES = np.array([[-1.0, 0.5], [0.3, -1.2], [1.6, 1.1]])
COEFFICIENTS = np.array([1.0, -1.5, 0.8])


def truth(x):
    """A function of known norm."""
    return rbf(x, CENTRES) @ COEFFICIENTS


TRUE_NORM = np.sqrt(COEFFICIENTS @ rbf(CENTRES, CENTRES) @ COEFFICIENTS)


def test_f18_error_bound_and_every_step_of_its_proof():
    """`e(y)² ≤ P²(y)(‖f‖² - ‖f̂‖²)` for a function of known norm."""
    c = kx.condition(squared_exponential(0.0), kx.Data(X, truth(X)))
    power, bound = np.asarray(kx.power_function(c, Z)), np.asarray(kx.posterior.error_bound(c, Z, TRUE_NORM))
    interpolated = np.asarray(kx.mean(c, Z))
    norm_squared = float(kx.posterior.rkhs_norm(c)) ** 2
    assert norm_squared == pytest.approx(truth(X) @ np.linalg.solve(rbf(X, X), truth(X)), rel=1e-10)
    assert_close(bound, power * np.sqrt(TRUE_NORM**2 - norm_squared), 1e-9)
    assert np.all(np.abs(truth(Z) - interpolated) <= bound)

    for point, p, guess in zip(Z, power, interpolated, strict=True):
        error = truth(point[None])[0] - guess
        larger = kx.Data(np.vstack([X, point]), truth(np.vstack([X, point])))
        through = kx.condition(squared_exponential(0.0), larger)  # f̃: interpolates at y as well
        through_squared = float(kx.posterior.rkhs_norm(through)) ** 2
        assert norm_squared <= through_squared <= TRUE_NORM**2
        # ⟨f̃ - f̂, f̂⟩ = 0, so the squared norms differ by ‖e‖² = (K⁻¹_X'X')_yy e(y)².
        assert float(kx.posterior.rkhs_inner(through, c)) == pytest.approx(norm_squared, rel=1e-10)
        inverse = np.linalg.inv(rbf(larger.x, larger.x))[-1, -1]
        assert through_squared - norm_squared == pytest.approx(inverse * error**2, rel=1e-6)
        # The bound is sharp: f̃ itself attains it.
        attained = kx.posterior.error_bound(c, point[None], np.sqrt(through_squared))
        assert float(attained[0]) == pytest.approx(abs(error), rel=1e-6)
        assert p * np.sqrt(inverse) == pytest.approx(1.0, rel=1e-9)


def test_f18_error_bound_with_noise_and_a_mean():
    """With noise λ the bound is `P(x) √(norm² - (y-μ)ᵀK̃⁻¹(y-μ))`; errors e of the targets add `‖e‖²/λ` to the norm²."""
    errors = 0.2 * np.cos(np.arange(10.0))
    model = kx.Model(VARIANCE * kx.RBF(LENGTHSCALE), noise=NOISE, mean=kx.means.Linear(SLOPE, INTERCEPT))
    c = kx.condition(model, kx.Data(X, truth(X) + X @ SLOPE + INTERCEPT + errors))
    targets, K, k = truth(X) + errors, rbf(X, X) + NOISE * np.eye(10), rbf(X, Z)
    norm = np.sqrt(TRUE_NORM**2 + errors @ errors / NOISE)
    power = np.sqrt(VARIANCE - np.sum(k * np.linalg.solve(K, k), axis=0))
    bound = np.asarray(kx.posterior.error_bound(c, Z, norm))
    assert_close(kx.power_function(c, Z), power)
    assert_close(bound, power * np.sqrt(norm**2 - targets @ np.linalg.solve(K, targets)))
    assert np.all(np.abs(truth(Z) + Z @ SLOPE + INTERCEPT - np.asarray(kx.mean(c, Z))) <= bound)
    smallest = np.sqrt(targets @ np.linalg.solve(K, targets))
    with pytest.raises(ValueError, match="no function of norm"):
        kx.posterior.error_bound(c, Z, 0.99 * smallest)


COOKBOOK = {
    "squared exponential": (kx.RBF(np.array([0.7])), sk.RBF(0.7)),
    "rational quadratic": (kx.RationalQuadratic(0.7, alpha=1.6), sk.RationalQuadratic(0.7, alpha=1.6)),
    "periodic": (kx.Periodic(lengthscale=0.8, period=1.9), sk.ExpSineSquared(0.8, periodicity=1.9)),
    "linear": (kx.Linear(), sk.DotProduct(0.0)),
    "constant": (kx.Constant(1.3), sk.ConstantKernel(1.3)),
    "Matern 1/2": (kx.Matern12(0.7), sk.Matern(0.7, nu=0.5)),
    "Matern 3/2": (kx.Matern32(0.7), sk.Matern(0.7, nu=1.5)),
    "Matern 5/2": (kx.Matern52(0.7), sk.Matern(0.7, nu=2.5)),
    "affine": (kx.Linear() + 1.21, sk.DotProduct(1.1)),
    "quadratic": ((kx.Linear() + 1.21) ** 2, sk.DotProduct(1.1) ** 2),
    "locally periodic": (
        1.7 * kx.RBF(2.0) * kx.Periodic(0.8, 1.9),
        sk.ConstantKernel(1.7) * sk.RBF(2.0) * sk.ExpSineSquared(0.8, 1.9),
    ),
    "trend and season": (
        kx.RBF(1.5) + 0.4 * kx.Periodic(0.8, 1.9) + (kx.Linear() + 0.25) * kx.Matern32(1.2),
        sk.RBF(1.5) + 0.4 * sk.ExpSineSquared(0.8, 1.9) + sk.DotProduct(0.5) * sk.Matern(1.2, nu=1.5),
    ),
}


@pytest.fixture(scope="module")
def cookbook():
    """Every kernel's matrices, compiled together."""
    x, z = jnp.asarray(X[:, :1]), jnp.asarray(Z[:, :1])
    return jax.jit(lambda x, z: {name: (k(x), k(x, z), k.diag(x)) for name, (k, _) in COOKBOOK.items()})(x, z)


@pytest.mark.parametrize("name", COOKBOOK)
def test_f20_the_kernel_cookbook(name, cookbook):
    """Every kernel of the cookbook, and sums and products of them, has scikit-learn's values."""
    (gram, cross, diagonal), (_, theirs) = cookbook[name], COOKBOOK[name]
    assert_close(gram, theirs(X[:, :1]), 1e-13)
    assert_close(cross, theirs(X[:, :1], Z[:, :1]), 1e-13)
    assert_close(diagonal, theirs.diag(X[:, :1]), 1e-13)


def test_f20_a_composite_kernel_gives_the_same_process():
    """Prediction, deviation and likelihood under a sum of products are scikit-learn's."""
    ours, theirs = COOKBOOK["trend and season"]
    c = kx.condition(kx.Model(ours, noise=NOISE), kx.Data(X[:, :1], Y))
    process = GaussianProcessRegressor(theirs, alpha=NOISE, optimizer=None).fit(X[:, :1], Y)
    mean, deviation = process.predict(Z[:, :1], return_std=True)
    assert_close(kx.mean(c, Z[:, :1]), mean)
    assert_close(kx.variance(c, Z[:, :1]), deviation**2)
    assert_close(kx.log_marginal_likelihood(c), process.log_marginal_likelihood_value_)
