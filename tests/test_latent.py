"""Laplace's approximation with solvers other than Cholesky, against Newton's method in plain NumPy."""

import jax
import numpy as np
import pytest
from scipy.linalg import cho_factor, cho_solve
from scipy.special import gammaln
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

import kernax as kx
from kernax import learners

RNG = np.random.default_rng(3)
N = 14
X = RNG.uniform(0.0, 6.0, (N, 1))
NEW = np.array([[-0.5], [1.3], [4.4], [7.0]])
COUNTS = RNG.poisson(np.exp(1.0 + np.sin(X[:, 0]))).astype(float)
LABELS = np.where(np.sin(X[:, 0]) + 0.4 * RNG.normal(size=N) > 0, 1.0, -1.0)
THETA = np.array([1.4, 0.9])


def poisson(y, f):
    return np.exp(f) - y * f + gammaln(y + 1), y - np.exp(f), np.exp(f)


def logistic(y, f):
    p = 1 / (1 + np.exp(-f))
    return np.logaddexp(0.0, -y * f), (y + 1) / 2 - p, p * (1 - p)


def huber(y, f):
    r, near = y - f, np.abs(y - f) < 0.5
    z = np.log(np.sqrt(2 * np.pi) * 0.38292492254802624 + 4.0 * np.exp(-0.125))
    return np.where(near, 0.5 * r**2, 0.5 * (np.abs(r) - 0.25)) + z, np.clip(r, -0.5, 0.5), near.astype(float)


def matern(x, z, theta):
    r = np.sqrt(3) * np.abs(x[:, 0][:, None] - z[:, 0][None]) / theta[1]
    return theta[0] * (1 + r) * np.exp(-r)


def line(x, z, theta):
    return 0.1 * theta[0] * x @ z.T + theta[1]


def oracle(kernel, likelihood, theta, x, y, new=NEW, steps=60):
    """Mode by damped Newton steps, evidence, and mean and variance at new rows, with dense matrices."""
    k, n = kernel(x, x, theta), len(y)
    alpha = np.zeros(n)

    def objective(alpha):
        with np.errstate(over="ignore"):
            return np.sum(likelihood(y, k @ alpha)[0]) + 0.5 * alpha @ k @ alpha

    for _ in range(steps):
        f = k @ alpha
        _, g, w = likelihood(y, f)
        root = np.sqrt(w)
        factor = cho_factor(np.eye(n) + root[:, None] * k * root[None])
        change = g - alpha - root * cho_solve(factor, root * (k @ g - f))
        length, before = 1.0, objective(alpha)
        while length > 1e-9 and not objective(alpha + length * change) <= before + 1e-12 * abs(before):
            length /= 2
        alpha = alpha + length * change
        if np.max(np.abs(change)) < 1e-12 * np.max(np.abs(alpha)):
            break
    f = k @ alpha
    loss, _, w = likelihood(y, f)
    b = np.eye(n) + np.sqrt(w)[:, None] * k * np.sqrt(w)[None]
    cross = kernel(x, new, theta)
    half = np.sqrt(w)[:, None] * cross
    evidence = -np.sum(loss) - 0.5 * alpha @ f - 0.5 * np.linalg.slogdet(b)[1]
    spread = np.diag(kernel(new, new, theta)) - np.sum(half * np.linalg.solve(b, half), axis=0)
    return evidence, cross.T @ alpha, spread, f


def slopes(function, theta):
    step = 1e-3
    moves = step * np.eye(len(theta))
    near = [function(theta + m) - function(theta - m) for m in moves]
    far = [function(theta + 2 * m) - function(theta - 2 * m) for m in moves]
    return (8 * np.array(near) - np.array(far)) / (12 * step)


def state_space_kernel(theta):
    return theta[0] * kx.Matern32(theta[1])


def feature_kernel(theta):
    return kx.Linear(0.1 * theta[0]) + kx.Constant(theta[1])


CASES = {
    "state space": (kx.StateSpace(), state_space_kernel, matern, learners.Poisson(), poisson, COUNTS),
    "features": (kx.LowRank(), feature_kernel, line, learners.Logistic(), logistic, LABELS),
}


def padded(y):
    """Garbage in three more rows, which do not count."""
    x = np.concatenate([X, [[2.0], [1e3], [-1e3]]])
    return kx.Data(x, np.concatenate([y, [1e9, -5.0, 0.5]]), mask=np.arange(N + 3) < N)


def answers(theta, data, kernel, likelihood, solver):
    c = kx.condition(learners.LatentGP(kernel(theta), likelihood), data, solver)
    latent = c.latent(NEW)
    return kx.log_marginal_likelihood(c), (latent.mean, latent.variance, c.values, c(NEW), c.coefficients)


def assert_equal_to_dense(found, expected):
    value, (mean, variance, mode, called, alpha) = found
    np.testing.assert_allclose(value, expected[0], rtol=1e-10)
    np.testing.assert_allclose(mean, expected[1], atol=1e-9)
    np.testing.assert_allclose(variance, expected[2], atol=1e-9)
    np.testing.assert_allclose(mode[:N], expected[3], atol=1e-9)
    np.testing.assert_array_equal([mode[N:], alpha[N:]], 0.0)
    np.testing.assert_allclose(called, mean, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_equal_to_dense_newton_in_numpy(name):
    """Evidence, its gradient (by finite differences), mode, mean and variance; garbage behind the mask changes nothing."""
    solver, kernel, dense, likelihood, own, y = CASES[name]
    ask = jax.jit(jax.value_and_grad(lambda theta, data: answers(theta, data, kernel, likelihood, solver), has_aux=True))
    found, slope = ask(THETA, padded(y))
    assert_equal_to_dense(found, oracle(dense, own, THETA, X, y))
    np.testing.assert_allclose(slope, slopes(lambda theta: oracle(dense, own, theta, X, y)[0], THETA), rtol=1e-7, atol=1e-8)


def test_second_derivatives_are_those_of_finite_differences():
    """Along a direction, from the slopes of the evidence in NumPy, which are differences themselves."""
    solver, kernel, dense, likelihood, own, y = CASES["features"]
    direction = np.array([0.6, -0.8])

    def value(step):
        return answers(THETA + step * direction, kx.Data(X, y), kernel, likelihood, solver)[0]

    curvature = jax.jit(jax.jacfwd(jax.grad(value)))(0.0)
    at = {step: oracle(dense, own, THETA + step * direction, X, y)[0] for step in 0.02 * np.arange(-2, 3)}
    far, near, middle, ahead, beyond = at.values()
    np.testing.assert_allclose(curvature, (16 * (near + ahead) - far - beyond - 30 * middle) / (12 * 0.02**2), rtol=1e-5)


def test_neighbours_are_exact_if_they_are_all_rows():
    model = learners.LatentGP(state_space_kernel(THETA), learners.Poisson())
    c = kx.condition(model, padded(COUNTS), kx.Vecchia(neighbours=N + 3))
    expected = oracle(matern, poisson, THETA, X, COUNTS)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), expected[0], rtol=1e-10)
    np.testing.assert_allclose(c.values[:N], expected[3], atol=1e-9)


def test_labels_of_a_series_are_those_of_scikit_learn():
    peer = GaussianProcessClassifier(ConstantKernel(THETA[0]) * Matern(THETA[1], nu=1.5), optimizer=None).fit(X, LABELS)
    c = kx.condition(learners.GPClassifier(state_space_kernel(THETA)), kx.Data(X, LABELS), kx.StateSpace())
    assert float(kx.log_marginal_likelihood(c)) == pytest.approx(peer.log_marginal_likelihood(), rel=1e-9)
    np.testing.assert_allclose(c.probability(NEW), peer.predict_proba(NEW)[:, 1], atol=5e-4)


def test_rows_without_curvature():
    """Huber's loss is straight beyond its corner: W is 0, and such rows pull with a bounded force."""
    y = np.sin(X[:, 0]) + 50.0 * (np.arange(N) == 4) - 1e4 * (np.arange(N) == 9)
    c = kx.condition(learners.LatentGP(state_space_kernel(THETA), learners.Huber(0.5)), kx.Data(X, y), kx.StateSpace())
    evidence, mean, variance, mode = oracle(matern, huber, THETA, X, y)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), evidence, rtol=1e-10)
    np.testing.assert_allclose(c.values, mode, atol=1e-9)
    np.testing.assert_allclose(c.coefficients[np.array([4, 9])], [0.5, -0.5], rtol=1e-12)
    np.testing.assert_allclose(c.latent(NEW).mean, mean, atol=1e-9)
    np.testing.assert_allclose(c.latent(NEW).variance, variance, atol=1e-9)


def test_curvatures_from_next_to_nothing_to_enormous():
    """Counts from 0 to a million: W spans eight orders of magnitude."""
    y = np.where(np.arange(N) % 3 == 0, 1e6, 0.0)
    theta = np.array([60.0, 0.3])
    c = kx.condition(learners.LatentGP(state_space_kernel(theta), learners.Poisson()), kx.Data(X, y), kx.StateSpace())
    evidence, _, _, mode = oracle(matern, poisson, theta, X, y, steps=300)
    np.testing.assert_allclose(c.values, mode, atol=1e-8)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), evidence, rtol=1e-9)


def test_a_series_of_counts_is_fitted():
    """2,000 counts: the answers are those of dense matrices. `fit` ends where the slope of their evidence is 0."""
    rng = np.random.default_rng(5)
    x = rng.uniform(0.0, 60.0, (2000, 1))
    y = rng.poisson(np.exp(1.0 + np.sin(x[:, 0]))).astype(float)
    model = learners.LatentGP(state_space_kernel(THETA), learners.Poisson())
    c = kx.condition(model, kx.Data(x, y), kx.StateSpace())
    evidence, mean, variance, mode = oracle(matern, poisson, THETA, x, y)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), evidence, rtol=1e-11)
    np.testing.assert_allclose(c.values, mode, atol=1e-9)
    np.testing.assert_allclose(c.latent(NEW).mean, mean, atol=1e-9)
    np.testing.assert_allclose(c.latent(NEW).variance, variance, atol=1e-9)

    few = slice(0, 60)
    fit = kx.fit(model, kx.Data(x[few], y[few]), solver=kx.StateSpace())
    assert fit.result == kx.Result.successful
    found = np.array([fit.model.kernel.variance, fit.model.kernel.kernel.lengthscale], float)
    here = slopes(lambda log: oracle(matern, poisson, np.exp(log), x[few], y[few])[0], np.log(found))
    np.testing.assert_allclose(here, 0.0, atol=1e-2)
    np.testing.assert_allclose(-fit.value, oracle(matern, poisson, found, x[few], y[few])[0], rtol=1e-9)


DATA = kx.Data(X, COUNTS)
GRID = kx.Grid((np.arange(3.0)[:, None], np.arange(2.0)[:, None]))
FIELD = kx.Select(kx.RBF(), axis=0) * kx.Select(kx.RBF(), axis=1)
REFUSED = {
    "one noise": (
        learners.LatentGP(FIELD, learners.Poisson()),
        kx.Data(GRID, np.ones(6)),
        kx.Kronecker(),
        "one noise for all",
    ),
    "no state space": (learners.LatentGP(kx.RBF(), learners.Poisson()), DATA, kx.StateSpace(), "with a state space"),
    "a part": (learners.LatentGP(kx.RBF(), learners.Poisson()), DATA, kx.Vecchia(part=3), "leave out part="),
    "a machine": (learners.KernelMachine(kx.Matern32(), learners.Poisson()), DATA, kx.StateSpace(), "Cholesky fact"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_remedy(name):
    model, data, solver, message = REFUSED[name]
    with pytest.raises(TypeError, match=message):
        kx.condition(model, data, solver)


@pytest.mark.parametrize("solver", [kx.StateSpace(), kx.Cholesky()])
def test_components_and_draws_of_counts(solver):
    """Those of the normal posterior around the mode, by NumPy."""
    rng = np.random.default_rng(8)
    t = np.sort(rng.uniform(0, 10, 30))
    data = kx.Data(t[:, None], rng.poisson(np.exp(0.5 + np.sin(t))).astype(float))
    new = np.array([-0.4, 2.0, 5.5, 11.0])
    c = kx.condition(learners.LatentGP(1.5 * kx.Matern32(3.0) + kx.Constant(0.7), learners.Poisson()), data, solver)

    def wave(a, b):
        r = np.sqrt(3.0) * np.abs(a[:, None] - b) / 3.0
        return 1.5 * (1.0 + r) * np.exp(-r)

    inverse = np.linalg.inv(wave(t, t) + 0.7 + np.diag(np.exp(-c.values)))
    alpha = inverse @ (c.values + np.exp(-c.values) * (data.y - np.exp(c.values)))
    parts = kx.components(c, new[:, None])
    for i, cross in enumerate((wave(new, t), np.full((4, 30), 0.7))):
        np.testing.assert_allclose(parts.mean[i], cross @ alpha, atol=1e-8)
        variance = (1.5, 0.7)[i] - np.sum(cross * (cross @ inverse), axis=1)
        np.testing.assert_allclose(parts.variance[i], variance, atol=1e-8)
    np.testing.assert_allclose(parts.rest, 0.0, atol=1e-10)

    draws = kx.sample(c, new[:, None], key=jax.random.key(0), num_samples=4000)
    cross = wave(new, t) + 0.7
    covariance = wave(new, new) + 0.7 - cross @ inverse @ cross.T
    np.testing.assert_allclose(np.mean(draws, axis=0), cross @ alpha, atol=5 * np.sqrt(np.diag(covariance).max() / 4000))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.15 * np.diag(covariance).max())
    with pytest.raises(ValueError, match="observations from the likelihood"):
        kx.sample(c, new[:, None], key=jax.random.key(0), noisy=True)
    empty = kx.condition(c.model, kx.Data(data.x, data.y, mask=np.zeros(30, bool)), solver, throw=False)
    assert np.all(np.isnan(kx.sample(empty, new[:, None], key=jax.random.key(0))))
    assert np.all(np.isnan(kx.components(empty, new[:, None]).mean))


NOT_AVAILABLE = {
    "extend": (lambda c: kx.extend(c, [[9.0]], [1.0]), "on all rows again"),
    "a stream": (kx.posterior.stream, "on all rows again"),
}


def test_what_is_not_available_is_named():
    c = kx.condition(learners.LatentGP(kx.Matern32(), learners.Poisson()), DATA, kx.StateSpace())
    for name, (asked, remedy) in NOT_AVAILABLE.items():
        with pytest.raises(TypeError, match=f"{name}.* is not available for a LaplaceGP.*{remedy}"):
            asked(c)
    with pytest.raises(TypeError, match=r"c\.latent\(x\) for the mean and variance of the function"):
        kx.predict(c, DATA.x)
