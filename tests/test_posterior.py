"""Predictions, samples and parity with scikit-learn."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.kernel_ridge import KernelRidge

import kernax as kx
from kernax import rows
from tests.tables import points, targets

X, NEW = points(9), points(5, seed=7)
Y = targets(X)
MODEL = kx.Model(1.7 * kx.Matern52(lengthscale=[0.8, 1.5]), noise=0.3)
C = kx.condition(MODEL, kx.Data(X, Y))


def scikit_learn():
    kernel = 1.7 * sk.Matern([0.8, 1.5], nu=2.5) + sk.WhiteKernel(0.3)
    return GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0).fit(X, Y)


def test_parity_with_scikit_learns_gaussian_process():
    theirs = scikit_learn()
    mean, covariance = theirs.predict(NEW, return_cov=True)  # of observations
    np.testing.assert_allclose(kx.mean(C, NEW), mean, rtol=1e-10)
    np.testing.assert_allclose(kx.covariance(C, NEW, noisy=True), covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(kx.variance(C, NEW, noisy=True), np.diag(covariance), rtol=1e-9)
    np.testing.assert_allclose(kx.variance(C, NEW), np.diag(covariance) - 0.3, rtol=1e-9)
    value, gradient = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    vector, rebuild = kx.parameters.ravel(MODEL)  # lengthscales, variance, noise
    ours = jax.jit(jax.value_and_grad(lambda v: kx.log_marginal_likelihood(kx.condition(rebuild(v), C.data))))(vector)
    np.testing.assert_allclose(ours[0], value, rtol=1e-10)
    np.testing.assert_allclose(ours[1], gradient[[1, 2, 0, 3]], rtol=1e-8)


def test_parity_with_scikit_learns_kernel_ridge():
    y = np.stack([Y, Y**2], axis=1)
    c = kx.condition(kx.Model(kx.RBF(lengthscale=0.7), noise=0.8), kx.Data(X, y))
    theirs = KernelRidge(alpha=0.8, kernel="rbf", gamma=0.5 / 0.7**2).fit(X, y)
    np.testing.assert_allclose(c.alpha, theirs.dual_coef_, rtol=1e-10)
    np.testing.assert_allclose(kx.mean(c, NEW), theirs.predict(NEW), rtol=1e-10)


def test_intervals_are_quantiles_of_the_normal_distribution():
    c = kx.condition(kx.Model(1.0 * kx.RBF(), noise=0.1), kx.Data(X, np.stack([Y, 2 * Y], axis=1)))
    found = kx.predict(c, NEW, noisy=True)
    sd = np.sqrt(found.variance)[:, None]
    for level in (0.5, 0.95):
        ends = stats.norm.interval(level, loc=found.mean, scale=sd)
        np.testing.assert_allclose(found.interval(level), ends, rtol=1e-12, atol=1e-12)
    exact = kx.predict(kx.condition(kx.Model(kx.RBF(), noise=0.0), kx.Data(X[:1], Y[:1])), X[:1])
    assert float(exact.sd[0]) == 0.0
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        found.interval(95)


def test_cross_covariance_is_a_block_of_the_covariance():
    both = np.concatenate([NEW, NEW + 0.5])
    whole = kx.covariance(C, both)
    np.testing.assert_allclose(kx.covariance(C, NEW, NEW + 0.5), whole[:5, 5:], rtol=1e-9, atol=1e-12)


def test_chunks_change_nothing(monkeypatch):
    """Blocks of test rows, the last one padded, give what one block gives."""
    x = points(23, seed=11)
    # One row more: programs are found again by shape, and these are to be made anew.
    longer = np.concatenate([x, x[:1]])
    whole = kx.predict(C, longer), kx.mean(C, longer), kx.covariance(C, NEW, longer)
    monkeypatch.setattr(rows, "_ENTRIES", 4 * 9 * 5)
    for function in (lambda x: kx.predict(C, x), lambda x: kx.mean(C, x), lambda x: kx.covariance(C, NEW, x)):
        assert "scan[" in str(jax.make_jaxpr(function)(x))
    pieces = kx.predict(C, x), kx.mean(C, x), kx.covariance(C, NEW, x)
    for ours, theirs in zip(jax.tree.leaves(pieces), jax.tree.leaves(whole), strict=True):
        theirs = np.asarray(theirs)[..., :23] if theirs.ndim else theirs
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_negative_log_predictive_density():
    truth = targets(NEW)
    mean, variance = kx.mean(C, NEW), kx.variance(C, NEW, noisy=True)
    expected = -stats.norm(mean, np.sqrt(variance)).logpdf(truth).mean()
    np.testing.assert_allclose(kx.posterior.negative_log_predictive_density(C, NEW, truth), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="predictions have"):
        kx.posterior.negative_log_predictive_density(C, NEW, truth[:, None])


@pytest.mark.parametrize("noisy", [False, True])
def test_samples_have_the_mean_and_covariance_they_should(noisy):
    """Prior and posterior draws, whitened with NumPy's own factor of the right covariance, are standard normal."""
    x = NEW.copy()
    x[-1] += 0.3  # the table's last row repeats the first: a singular prior has no whitener
    cases = {
        "prior": (MODEL, np.zeros(5), np.asarray(MODEL.kernel(x)) + 0.3 * noisy * np.eye(5)),
        "posterior": (C, np.asarray(kx.mean(C, x)), np.asarray(kx.covariance(C, x, noisy=noisy))),
    }
    for name, (source, mean, covariance) in cases.items():
        draws = kx.sample(source, x, key=jax.random.key(2), num_samples=2000, noisy=noisy)
        white = np.linalg.solve(np.linalg.cholesky(covariance), (np.asarray(draws) - mean).T)
        assert stats.kstest(white.ravel(), "norm").pvalue > 1e-3, name
        np.testing.assert_allclose(white @ white.T / 2000, np.eye(5), atol=0.12, err_msg=name)


def test_samples_are_differentiable_to_second_order():
    x, key = NEW[:3], jax.random.key(0)

    def ours(length):
        return jnp.sum(jnp.sin(kx.sample(kx.Model(kx.Matern32(lengthscale=length), noise=0.1), x, key=key)))

    def plain(length):
        root = jnp.linalg.cholesky(kx.Matern32(lengthscale=length)(x))
        return jnp.sum(jnp.sin(root @ jax.random.normal(key, (1, 3))[0]))

    for derivative in (lambda f: f, jax.grad, lambda f: jax.grad(jax.grad(f))):
        np.testing.assert_allclose(jax.jit(derivative(ours))(0.9), jax.jit(derivative(plain))(0.9), rtol=1e-7)


def test_several_outputs_and_means():
    """A mean function is subtracted before and added after, for each output its own."""
    y = np.stack([Y, 3.0 - Y], axis=1)
    slope = np.array([[0.5, -1.0], [0.2, 0.0]])
    mean = kx.means.Linear(slope=slope, intercept=[1.0, 2.0])
    c = kx.condition(kx.Model(MODEL.kernel, noise=0.3, mean=mean), kx.Data(X, y))
    plain = kx.condition(MODEL, kx.Data(X, y - X @ slope - [1.0, 2.0]))
    np.testing.assert_allclose(kx.mean(c, NEW), np.asarray(kx.mean(plain, NEW)) + NEW @ slope + [1.0, 2.0], rtol=1e-10)
    one = kx.condition(kx.Model(MODEL.kernel, noise=0.3, mean=lambda a: jnp.sin(a[0])), kx.Data(X, Y))
    expected = kx.mean(kx.condition(MODEL, kx.Data(X, Y - np.sin(X[:, 0]))), NEW) + np.sin(NEW[:, 0])
    np.testing.assert_allclose(kx.mean(one, NEW), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="mean function gives shape"):
        kx.condition(kx.Model(MODEL.kernel, noise=0.3, mean=kx.means.Constant([1.0, 2.0])), kx.Data(X, Y))


def test_inner_products_need_one_space():
    other = kx.condition(kx.Model(1.8 * kx.Matern52(lengthscale=[0.8, 1.5]), noise=0.3), kx.Data(X, Y))
    with pytest.raises(ValueError, match="same kernel"):
        kx.posterior.rkhs_inner(C, other)
    with pytest.raises(ValueError, match="no function of norm"):
        kx.posterior.error_bound(C, NEW, 0.1)


def test_noise_per_row_says_nothing_of_new_rows():
    c = kx.condition(kx.Model(kx.RBF(), noise=np.linspace(0.1, 0.9, 9)), kx.Data(X, Y))
    for call in (kx.predict, kx.covariance):
        with pytest.raises(ValueError, match="per training row"):
            call(c, NEW, noisy=True)
    assert kx.variance(c, NEW).shape == (5,)


def test_reports_are_readable():
    text = str(kx.report(C))
    for words in ("rows", "9 of 9, float64", "Cholesky()", "successful", "condition number", "leave-one-out RMSE", "noise"):
        assert words in text
    assert "successful" in repr(C)
    with pytest.raises(TypeError, match="a Conditioned, a machine, a Fit or Fits"):
        kx.report(MODEL)


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kx.predict(kx.condition(MODEL, kx.Data(X, Y)), NEW)


def test_prior_samples_have_the_outputs_of_the_mean():
    model = kx.Model(kx.RBF(), noise=0.1, mean=kx.means.Constant([0.0, 100.0]))
    draws = kx.sample(model, NEW, key=jax.random.key(0), num_samples=3)
    assert draws.shape == (3, 5, 2)
    assert (np.abs(np.asarray(draws)[..., 1] - 100) < 10).all()


def test_single_precision_stays_single():
    """With float64 switched on, float32 inputs still give float32 answers; numbers without a precision follow."""
    x, y = X.astype(np.float32), Y.astype(np.float32)
    assert (2.0 * kx.RBF())(x).dtype == np.float32
    c = kx.condition(MODEL, kx.Data(x, y))
    assert kx.posterior.negative_log_predictive_density(c, NEW, targets(NEW)).dtype == np.float32
    assert kx.Data(np.arange(9)[:, None], y).dtype == np.float32
    assert kx.Data(x, Y.tolist()).dtype == np.float32
    with pytest.raises(TypeError, match="float16"):
        kx.Data(x.astype(np.float16), y)


@pytest.mark.parametrize("n", [40, 48, 56])
def test_the_compiler_multiplies_constants_rightly(n):
    """At some of its levels of optimisation XLA computes the product of a broadcast number and a vector wrongly."""
    y = np.random.default_rng(0).normal(size=n)
    c = kx.condition(kx.Model(kx.Constant(1.5), noise=0.1), kx.Data(np.linspace(0.0, 1.0, n)[:, None], y))
    expected = 1.5 * y.sum() / (0.1 + 1.5 * n)
    np.testing.assert_allclose(kx.mean(c, np.linspace(0.0, 1.0, 9)[:, None]), np.full(9, expected), rtol=1e-9)
