"""Likelihoods of latent processes: against SciPy's distributions, dense Newton steps in NumPy, and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import kernax as kx
from kernax import learners

RNG = np.random.default_rng(11)
N, K = 8, 3
X = RNG.uniform(-2.0, 2.0, (N, 2))
NEW = RNG.uniform(-2.0, 2.0, (4, 2))
CLASSES = np.array([0, 1, 2, 0, 1, 2, 1, 1.0])
THETA = np.array([2.0, 0.8])
F = RNG.normal(size=6)
COUNTS = np.array([0, 1, 2, 5, 12, 40.0])


def rbf(x, z, theta):
    return theta[0] * np.exp(-0.5 * ((x[:, None] - z[None]) ** 2).sum(-1) / theta[1] ** 2)


def slopes(function, theta, step=1e-3):
    moves = step * np.eye(len(theta))
    near = [function(theta + m) - function(theta - m) for m in moves]
    far = [function(theta + 2 * m) - function(theta - 2 * m) for m in moves]
    return (8 * np.array(near) - np.array(far)) / (12 * step)


# Densities


def nbinom(dispersion):
    return stats.nbinom(1 / dispersion, 1 / (1 + dispersion * np.exp(F)))


CASES = {
    "Poisson": (learners.Poisson(), stats.poisson(np.exp(F)), COUNTS),
    "binomial": (learners.NegativeBinomial(0.3), nbinom(0.3), COUNTS),
    "binomial, small": (learners.NegativeBinomial(0.01), nbinom(0.01), COUNTS),
    "Student": (learners.StudentT(0.7, 3.0), stats.t(3.0, F, 0.7), RNG.normal(size=6) * 5),
    "Student, many": (learners.StudentT(0.7, 300.0), stats.t(300.0, F, 0.7), RNG.normal(size=6)),
    "Bernoulli": (learners.Bernoulli(), stats.bernoulli(1 / (1 + np.exp(-F))), np.array([0, 1, 0, 1, 1, 0.0])),
}


@pytest.mark.parametrize("name", CASES)
def test_densities_are_those_of_scipy(name):
    loss, theirs, y = CASES[name]
    log_density = theirs.logpdf if name.startswith("Student") else theirs.logpmf
    np.testing.assert_allclose(jax.vmap(loss.log_density)(y, F), log_density(y), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(loss.cumulative(y, F), theirs.cdf(y), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(loss.mean(F), theirs.mean(), rtol=1e-12)


def test_no_dispersion_is_poisson():
    """SciPy has few digits there. The slope in the dispersion is `½((y - μ)² - y)` at 0."""
    limit = learners.NegativeBinomial(1e-10)
    np.testing.assert_allclose(jax.vmap(limit.log_density)(COUNTS, F), stats.poisson.logpmf(COUNTS, np.exp(F)), atol=2e-7)
    np.testing.assert_allclose(limit.cumulative(COUNTS, F), stats.poisson.cdf(COUNTS, np.exp(F)), atol=1e-6)
    slope = jax.vmap(lambda y, f: jax.grad(lambda a: learners.NegativeBinomial(a).log_density(y, f))(1e-8))(COUNTS, F)
    np.testing.assert_allclose(slope, 0.5 * ((COUNTS - np.exp(F)) ** 2 - COUNTS), rtol=1e-3)
    single = jax.vmap(learners.NegativeBinomial(np.float32(1e-10)).value)(COUNTS.astype(np.float32), F.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, -stats.poisson.logpmf(COUNTS, np.exp(F)), rtol=1e-4, atol=1e-4)


def test_grades_are_differences_of_logistic_functions():
    loss = learners.Ordinal([-1.0, 0.5, 2.0])
    ends = 1 / (1 + np.exp(F[:, None] - np.array([-np.inf, -1.0, 0.5, 2.0, np.inf])))
    ends[:, 0], ends[:, -1] = 0.0, 1.0
    np.testing.assert_allclose(loss.probability(F), np.diff(ends), rtol=1e-12)
    np.testing.assert_allclose(loss.mean(F), np.diff(ends) @ np.arange(4.0), rtol=1e-12)
    np.testing.assert_allclose(loss.cumulative(np.full(6, 1.0), F), ends[:, 2], rtol=1e-12)
    far = [learners.Ordinal(4).log_density(jnp.asarray(g), jnp.asarray(f)) for g, f in ((1.0, 800.0), (2.0, -800.0))]
    assert np.isfinite(far).all()


# Softmax


def softmax_oracle(theta, x=X, y=CLASSES, new=NEW):
    """Newton's method with the whole kn × kn matrix; evidence, mode, and the latent moments at new rows."""
    n = len(x)
    gram, targets, f = np.kron(np.eye(K), rbf(x, x, theta)), np.eye(K)[y.astype(int)].T.ravel(), np.zeros(K * n)
    for _ in range(100):
        p = np.exp(f.reshape(K, n))
        p = p / p.sum(axis=0)
        stacked = np.vstack([np.diag(row) for row in p])
        w = np.diag(p.ravel()) - stacked @ stacked.T
        f, before = gram @ np.linalg.solve(np.eye(K * n) + w @ gram, w @ f + targets - p.ravel()), f
        if np.abs(f - before).max() < 1e-14:
            break
    alpha = targets - p.ravel()
    volume = np.linalg.slogdet(np.eye(K * n) + w @ gram)[1]
    evidence = targets @ f - np.log(np.exp(f.reshape(K, n)).sum(axis=0)).sum() - 0.5 * alpha @ f - 0.5 * volume
    cross = np.kron(np.eye(K), rbf(x, new, theta))
    spread = np.kron(np.eye(K), rbf(new, new, theta)) - cross.T @ np.linalg.solve(np.eye(K * n) + w @ gram, w @ cross)
    blocks = spread.reshape(K, len(new), K, len(new))
    return evidence, f.reshape(K, n).T, (cross.T @ alpha).reshape(K, -1).T, np.einsum("amcm->mac", blocks)


def softmax_of(theta):
    return learners.LatentGP(theta[0] * kx.RBF(theta[1]), learners.Softmax(K))


def test_softmax_is_dense_newton_in_numpy():
    """Evidence, its gradient and second derivatives, mode and latent moments; garbage behind the mask changes nothing."""
    x, y = np.concatenate([X, [[0.1, 0.2], [1e3, 0.0]]]), np.append(CLASSES, [7.5, -1.0])
    data = kx.Data(x, y, np.arange(N + 2) < N)

    def ask(theta):
        c = kx.condition(softmax_of(theta), data)
        return kx.log_marginal_likelihood(c), (c.values, c.latent(NEW), c.probability(NEW), c.coefficients)

    (value, (values, latent, probability, alpha)), slope = jax.jit(jax.value_and_grad(ask, has_aux=True))(THETA)
    evidence, mode, mean, covariance = softmax_oracle(THETA)
    np.testing.assert_allclose(value, evidence, rtol=1e-12)
    np.testing.assert_allclose(values[:N], mode, atol=1e-11)
    np.testing.assert_array_equal([values[N:], alpha[N:]], 0.0)
    np.testing.assert_allclose(latent.mean, mean, atol=1e-11)
    np.testing.assert_allclose(latent.covariance, covariance, atol=1e-11)
    np.testing.assert_allclose(slope, slopes(lambda theta: softmax_oracle(theta)[0], THETA), rtol=1e-8)
    draws = np.stack([RNG.multivariate_normal(m, c, 200_000) for m, c in zip(mean, covariance, strict=True)])
    sampled = np.exp(draws) / np.exp(draws).sum(axis=2, keepdims=True)
    np.testing.assert_allclose(probability, sampled.mean(axis=1), atol=4e-3)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-12)

    hessian = jax.jit(jax.jacrev(jax.grad(lambda theta: ask(theta)[0])))(THETA)
    expected = slopes(lambda theta: slopes(lambda at: softmax_oracle(at)[0], theta), THETA, 1e-2)
    np.testing.assert_allclose(hessian, expected, rtol=1e-5, atol=1e-6)


def test_softmax_of_two_classes_is_logistic():
    """`f_1 - f_0` has the kernel 2K."""
    y = (CLASSES > 0).astype(float)
    two = kx.condition(learners.LatentGP(2.0 * kx.RBF(0.8), learners.Softmax(2)), kx.Data(X, y))
    one = kx.condition(learners.LatentGP(4.0 * kx.RBF(0.8), learners.Bernoulli()), kx.Data(X, y))
    np.testing.assert_allclose(kx.log_marginal_likelihood(two), kx.log_marginal_likelihood(one), rtol=1e-12)
    np.testing.assert_allclose(two.probability(NEW)[:, 1], one.probability(NEW), atol=2e-3)
    np.testing.assert_array_equal(two.classify(NEW), one.probability(NEW) > 0.5)


def test_softmax_is_fitted_alone_and_with_others():
    """The slope of the dense evidence is 0 where the fit ends; many datasets end where single ones do."""
    sets = [kx.Data(X, CLASSES), kx.Data(X[::-1] * 0.9, CLASSES)]
    start = learners.LatentGP(1.0 * kx.RBF(1.0), learners.Softmax(K))
    with_priors = kx.with_prior(start, lambda m: m.kernel.kernel.lengthscale, kx.priors.LogNormal(0.0, 0.5))
    with_priors = kx.with_prior(with_priors, lambda m: m.kernel.variance, kx.priors.LogNormal(0.0, 0.5))
    many = kx.fit_many(with_priors, sets)
    assert list(many.result_names) == ["successful"] * 2
    found = kx.fit(with_priors, sets[0])
    kernel = found.model.kernel
    theta = np.array([kernel.variance, kernel.kernel.lengthscale], float)

    def posterior(log):
        return softmax_oracle(np.exp(log))[0] - np.sum((log / 0.5) ** 2) / 2 - np.sum(log)

    np.testing.assert_allclose(slopes(posterior, np.log(theta)), 0.0, atol=2e-3)
    np.testing.assert_allclose(many.model.kernel.variance[0], theta[0], rtol=1e-3)


# Student's t


def student(y, f, theta):
    r2 = (y - f) ** 2
    width = 4.0 * theta[2] ** 2
    density = stats.t.logpdf(y, 4.0, f, theta[2])
    return density, 5.0 * (y - f) / (width + r2), np.maximum(5.0 * (width - r2) / (width + r2) ** 2, 0.0)


def student_oracle(theta, x, y, gram):
    """Descent by damped steps with the curvature of a normal bound, `5/(width + r²)`, which never overshoots."""
    k, f = gram(x, theta), np.zeros(len(y))
    for _ in range(3000):
        weights = 5.0 / (4.0 * theta[2] ** 2 + (y - f) ** 2)
        f, before = k @ np.linalg.solve(k + np.diag(1 / weights), y), f
        if np.abs(f - before).max() < 1e-14:
            break
    density, alpha, w = student(y, f, theta)
    return np.sum(density) - 0.5 * alpha @ f - 0.5 * np.linalg.slogdet(np.eye(len(y)) + w[:, None] * k)[1], f


def matern(x, theta):
    r = np.sqrt(3) * np.abs(x[:, 0][:, None] - x[:, 0][None]) / theta[1]
    return theta[0] * (1 + r) * np.exp(-r)


@pytest.mark.parametrize("solver", [kx.Cholesky(), kx.StateSpace()], ids=["dense", "state space"])
def test_student_hardly_sees_outliers(solver):
    """The loss bends down at two rows. Evidence, mode, and derivatives of both, by finite differences."""
    x = np.linspace(0.0, 4.0, 9)[:, None]
    y = np.sin(2 * x[:, 0]) + 4.0 * (np.arange(9) == 3) + 0.9 * (np.arange(9) == 6)
    theta = np.array([1.0, 0.8, 0.2])

    def ask(theta):
        model = learners.LatentGP(theta[0] * kx.Matern32(theta[1]), learners.StudentT(theta[2], 4.0))
        c = kx.condition(model, kx.Data(x, y), solver, throw=False)
        return jnp.append(c.values, kx.log_marginal_likelihood(c))

    def expected(theta):
        evidence, mode = student_oracle(theta, x, y, matern)
        return np.append(mode, evidence)

    np.testing.assert_allclose(jax.jit(ask)(theta), expected(theta), atol=1e-8)
    np.testing.assert_allclose(jax.jit(jax.jacrev(ask))(theta), slopes(expected, theta).T, atol=2e-6)


def test_several_modes_have_a_status():
    """`2(12 - f)/(s² + (12 - f)²) = f/9` has two solutions: one between prior and target, and one at the target."""
    gp = learners.LatentGP(kx.Constant(9.0), learners.StudentT(0.05, 1.0))
    c = kx.condition(gp, kx.Data(np.zeros((1, 1)), np.array([12.0])))
    assert c.result == kx.Result.several_modes
    losses = [np.log1p((12.0 - f) ** 2 / 0.05**2) + f**2 / 18 for f in (6 - 18**0.5, 12.0)]
    assert abs(float(c.values[0]) - (6 - 18**0.5 if losses[0] < losses[1] else 12.0)) < 0.01
    near = kx.condition(learners.LatentGP(kx.RBF(), learners.StudentT(1.0, 30.0)), kx.Data(X, X[:, 0]))
    assert near.result == kx.Result.successful


# Predictions


def test_predictions_are_averages_over_the_latent_function():
    """Against SciPy's adaptive quadrature."""
    y = np.array([0, 3, 1, 7, 2, 2, 0, 4.0])
    c = kx.condition(learners.LatentGP(kx.RBF(), learners.NegativeBinomial(0.4)), kx.Data(X, y))
    mean, variance = (float(part[0]) for part in c.latent(NEW[:1]))

    def average(function):
        return integrate.quad(lambda f: function(f) * stats.norm.pdf(f, mean, variance**0.5), -12, 12, points=[mean])[0]

    def distribution(y):
        return average(lambda f: stats.nbinom.cdf(y, 2.5, 1 / (1 + 0.4 * np.exp(f))))

    np.testing.assert_allclose(c.mean(NEW[:1])[0], average(np.exp), rtol=1e-8)
    expected = np.log(average(lambda f: stats.nbinom.pmf(3, 2.5, 1 / (1 + 0.4 * np.exp(f)))))
    np.testing.assert_allclose(c.log_density(NEW[:1], np.array([3.0]))[0], expected, rtol=1e-8)
    lower, upper = (float(end[0]) for end in c.interval(NEW[:1], 0.9))
    assert distribution(lower) >= 0.05 > distribution(lower - 1)
    assert distribution(upper) >= 0.95 > distribution(upper - 1)
    grades = kx.condition(learners.LatentGP(kx.RBF(), learners.Ordinal(3)), kx.Data(X, CLASSES))
    np.testing.assert_allclose(grades.probability(NEW).sum(axis=1), 1.0, rtol=1e-12)
    robust = kx.condition(learners.LatentGP(kx.RBF(), learners.StudentT(0.5, 4.0)), kx.Data(X, X[:, 0]))
    middle, spread = (float(part[0]) for part in robust.latent(NEW[:1]))
    end = float(robust.interval(NEW[:1], 0.8).upper[0])
    share = integrate.quad(lambda f: stats.t.cdf(end, 4, f, 0.5) * stats.norm.pdf(f, middle, spread**0.5), -9, 9)[0]
    assert share == pytest.approx(0.9, abs=1e-7)


ROWS = np.linspace(0.0, 6.0, 24)[:, None]
WAVE = 1.5 * np.sin(ROWS[:, 0])
FITTED = {
    "Bernoulli": (learners.Bernoulli(), (RNG.logistic(size=24) < WAVE).astype(float), lambda _: 1.0, (1.0, 1.0)),
    "Poisson": (learners.Poisson(), RNG.poisson(np.exp(1 + WAVE)).astype(float), lambda _: 1.0, (1.0, 1.0)),
    "binomial": (
        learners.NegativeBinomial(5.0),
        RNG.negative_binomial(2.0, 2.0 / (2.0 + np.exp(1.5 + WAVE))).astype(float),
        lambda loss: loss.dispersion,
        (0.05, 2.5),
    ),
    "grades": (
        learners.Ordinal(3),
        np.digitize(WAVE + 0.5 * RNG.logistic(size=24), [-0.6, 0.6]).astype(float),
        lambda loss: loss.thresholds[1] - loss.thresholds[0],
        (0.1, 20.0),
    ),
    "Student": (
        learners.StudentT(1.0, 4.0),
        WAVE + 0.1 * RNG.normal(size=24) + 5.0 * (np.arange(24) == 9),
        lambda loss: loss.scale,
        (0.03, 0.3),
    ),
}


@pytest.mark.parametrize("name", FITTED)
def test_likelihoods_are_fitted_alone_and_with_others(name):
    """One of two datasets fitted together ends where it does alone, at a maximum, and its parameter is near the true one."""
    likelihood, y, parameter, (low, high) = FITTED[name]
    model = learners.LatentGP(1.0 * kx.RBF(), likelihood)
    model = kx.with_prior(model, lambda m: m.kernel.kernel.lengthscale, kx.priors.LogNormal(0.5, 0.5))
    model = kx.with_prior(model, lambda m: m.kernel.variance, kx.priors.LogNormal(0.5, 0.5))
    if name == "Student":
        model = kx.with_prior(model, lambda m: m.likelihood.freedom, kx.priors.LogNormal(1.4, 0.1))
    data = kx.Data(ROWS, y)
    found, many = kx.fit(model, data), kx.fit_many(model, [data, kx.Data(ROWS[2:], y[2:])])
    assert found.result == kx.Result.successful
    assert list(many.result_names) == ["successful"] * 2
    assert low <= float(parameter(found.model.likelihood)) <= high
    np.testing.assert_allclose(many[0].value, found.value, rtol=1e-6)
    np.testing.assert_allclose(parameter(many[0].model.likelihood), parameter(found.model.likelihood), rtol=1e-2)


def test_counts_of_millions():
    """A Newton step in NumPy moves the mode no more, and it was found in few steps."""
    y = np.round(1e6 * np.exp(WAVE))
    gram = 200.0 * np.exp(-0.5 * (ROWS - ROWS.T) ** 2)
    for likelihood, dispersion, theirs in (
        (learners.Poisson(), 0.0, lambda f: stats.poisson.logpmf(y, np.exp(f))),
        (learners.NegativeBinomial(0.5), 0.5, lambda f: stats.nbinom.logpmf(y, 2.0, 2.0 / (2.0 + np.exp(f)))),
    ):
        c = kx.condition(learners.LatentGP(200.0 * kx.RBF(), likelihood), kx.Data(ROWS, y))
        assert c.result == kx.Result.successful
        assert int(c.num_steps) <= 30
        f = np.asarray(c.values)
        mean, spread = np.exp(f), 1.0 + dispersion * np.exp(f)
        curvature = mean * (1.0 + dispersion * y) / spread**2
        step = np.linalg.solve(np.eye(24) + gram * curvature, gram @ ((y - mean) / spread) - f)
        np.testing.assert_allclose(step, 0.0, atol=1e-6)
        np.testing.assert_allclose(jax.vmap(likelihood.log_density)(y, f), theirs(f), atol=2e-8, rtol=1e-8)


# What is refused

GP = kx.RBF()
REFUSED = {
    "fractional": (
        learners.LatentGP(GP, learners.Poisson()),
        CLASSES + 0.5,
        ValueError,
        "y = 0.5 .row 0., only the whole",
    ),
    "negative": (learners.LatentGP(GP, learners.NegativeBinomial()), CLASSES - 1, ValueError, "y = -1"),
    "not whole": (
        learners.LatentGP(GP, learners.Softmax(3)),
        CLASSES + 0.5,
        ValueError,
        "from 0 to 2.*np.unique",
    ),
    "too large": (
        learners.LatentGP(GP, learners.Ordinal(3)),
        CLASSES + 1,
        ValueError,
        "y = 3.*of 3 classes",
    ),
    "one class": (learners.LatentGP(GP, learners.Softmax(3)), np.ones(N), ValueError, "one class only"),
    "neither": (learners.LatentGP(GP, learners.Bernoulli()), CLASSES, ValueError, "y = 2"),
    "one class of two": (learners.LatentGP(GP, learners.Bernoulli()), np.zeros(N), ValueError, "one class only"),
    "one label": (learners.GPClassifier(GP), np.ones(N), ValueError, "one class only"),
    "one grade": (learners.LatentGP(GP, learners.Ordinal(3)), np.ones(N), ValueError, "one class only"),
    "a machine": (learners.KernelMachine(GP, learners.Softmax(3)), CLASSES, TypeError, "use learners.LatentGP"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name):
    model, y, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        kx.condition(model, kx.Data(X, y))
    with pytest.raises(error, match=message):
        kx.fit(model, kx.Data(X, y))


@pytest.mark.parametrize("likelihood", [learners.Poisson(), learners.StudentT(), learners.Softmax(3)], ids=repr)
def test_targets_that_are_no_numbers_are_refused(likelihood):
    with pytest.raises(ValueError, match=r"y has NaN.*drop them, or mark them with mask=False"):
        kx.fit(learners.LatentGP(GP, likelihood), kx.Data(X, np.where(CLASSES == 1, np.nan, CLASSES)))


def test_likelihoods_that_cannot_be():
    with pytest.raises(ValueError, match="2 or more"):
        learners.Softmax(1)
    with pytest.raises(ValueError, match="increasing thresholds"):
        learners.Ordinal([1.0, 0.0])
    with pytest.raises(TypeError, match="Cholesky"):
        kx.condition(softmax_of(THETA), kx.Data(X, CLASSES), kx.Eigh())


def test_traced_labels_have_a_status():
    def result(y):
        return kx.condition(softmax_of(THETA), kx.Data(X, y)).result

    assert jax.jit(result)(CLASSES + 0.5) == kx.Result.unknown_labels
    counts = kx.fit_many(learners.LatentGP(GP, learners.Poisson()), [kx.Data(X, CLASSES), kx.Data(X, CLASSES - 1)])
    assert list(counts.result_names) == ["successful", "unknown_labels"]


def test_one_class_or_a_task_without_rows_has_a_status_in_many_fits():
    """`fit` refuses such data; of many datasets, those have a status, and the others are fitted."""
    classes = [(X, CLASSES % 2), (X, np.zeros(N))]
    fits = kx.fit_many(learners.LatentGP(kx.RBF(), learners.Bernoulli()), classes, max_steps=30)
    assert list(fits.result_names) == ["successful", "unknown_labels"]
    tasks = [({"x": X, "task": np.arange(N) % 2}, CLASSES), ({"x": X, "task": np.zeros(N, int)}, CLASSES)]
    model = kx.Model(kx.kernels.ICM(kx.RBF(), 2), noise=0.1)
    fits = kx.fit_many(model, tasks, max_steps=30)
    names = list(fits.result_names)
    assert "unknown_labels" not in names[:1]
    assert names[1] == "unknown_labels"
    with pytest.raises(ValueError, match="no row that counts belongs to task 1"):
        kx.fit(model, kx.Data(*tasks[1]))


def test_classes_and_densities_of_every_likelihood_of_classes():
    bernoulli = kx.condition(learners.LatentGP(9.0 * kx.RBF(), learners.Bernoulli()), kx.Data(X, CLASSES % 2))
    np.testing.assert_array_equal(bernoulli.classify(NEW), np.asarray(bernoulli.probability(NEW)) > 0.5)
    for likelihood in (learners.Ordinal(np.int64(3)), learners.Softmax(CLASSES.astype(int).max() + 1)):
        c = kx.condition(learners.LatentGP(9.0 * kx.RBF(), likelihood), kx.Data(X, CLASSES))
        probability = np.asarray(c.probability(NEW))
        np.testing.assert_array_equal(c.classify(NEW), probability.argmax(axis=1))
        expected = np.log(probability[np.arange(4), [0, 1, 2, 0]])
        np.testing.assert_allclose(c.log_density(NEW, [0, 1, 2, 0]), expected, rtol=1e-9)
        np.testing.assert_array_equal(c.log_density(NEW, [0.5, -1, 3, 1.5]), -np.inf)
    counts = kx.condition(learners.LatentGP(kx.RBF(), learners.Poisson()), kx.Data(X, CLASSES))
    assert np.isfinite(counts.log_density(NEW, [0, 1, 2, 3])).all()
    np.testing.assert_array_equal(counts.log_density(NEW, [1.5, -1, 0.1, 2.5]), -np.inf)
    with pytest.raises(TypeError, match=r"c\.mean\(x\) for the mean of a new observation, c\.interval\(x\)"):
        kx.mean(counts, NEW)
    for wrong in (2.0, True, 1):
        with pytest.raises(ValueError, match="2 or more"):
            learners.Softmax(wrong)


def test_probabilities_of_grades_are_those_of_quadrature():
    """P(y = j) = ∫ (σ(t_j - f) - σ(t_(j-1) - f)) N(f; m, v) df, by SciPy."""
    likelihood = learners.Ordinal([-1.0, 0.2, 1.5])
    c = kx.condition(learners.LatentGP(2.0 * kx.RBF(), likelihood), kx.Data(X, np.minimum(CLASSES + X[:, 0] // 1 % 2, 3)))
    latent, probability = c.latent(NEW), c.probability(NEW)
    ends = np.r_[-np.inf, np.asarray(likelihood.thresholds), np.inf]
    for i, (mean, variance) in enumerate(zip(*map(np.asarray, latent), strict=True)):
        density = stats.norm(mean, np.sqrt(variance)).pdf
        for j in range(4):

            def share(f, j=j, density=density):
                return (stats.logistic.cdf(ends[j + 1] - f) - stats.logistic.cdf(ends[j] - f)) * density(f)

            expected = integrate.quad(share, mean - 12, mean + 12, epsabs=1e-13, limit=200)[0]
            np.testing.assert_allclose(probability[i, j], expected, rtol=1e-9)
