"""RandomFeatures: the kernel in the mean, less error by orthogonality, exact answers with LowRank, gradients, files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.kernels import _random_features
from tests.tables import gradient_by_differences

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 3))
Y = np.sin(X[:, 0])
NEW = RNG.normal(size=(4, 3))
KERNELS = {
    "rbf": kx.RBF([0.8, 1.2, 2.0]),
    "matern12": kx.Matern12([0.8, 1.2, 2.0]),
    "matern32": kx.Matern32([0.8, 1.2, 2.0]),
    "matern52": kx.Matern52(1.1),
    "rational_quadratic": kx.RationalQuadratic(lengthscale=0.9, alpha=0.7),
    "sum": 1.5 * kx.RBF(0.9) + 0.4 * kx.Matern32(2.0),
    "product": 2.0 * kx.Select(kx.RBF(0.9), columns=0) * kx.Select(kx.Matern52([1.0, 0.7]), columns=(1, 2)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_mean_over_seeds_is_the_kernel_and_the_diagonal_is_exact(name):
    kernel, seeds, number = KERNELS[name], 20, 250
    exact = np.asarray(kernel(X))
    grams = np.stack([np.asarray(kx.RandomFeatures(kernel, number, seed=seed)(X)) for seed in range(seeds)])
    np.testing.assert_allclose(np.diagonal(grams, axis1=1, axis2=2), np.diag(exact)[None].repeat(seeds, 0), rtol=1e-13)
    # A wave's variance is at most that of the kernel, halved; orthogonality makes it less.
    error = exact[0, 0] * np.sqrt(0.5 / (seeds * number))
    assert np.max(np.abs(grams.mean(axis=0) - exact)) < 4.0 * error
    # One seed alone is close already, and another one differs.
    assert np.max(np.abs(grams[0] - exact)) < 6.0 * error * np.sqrt(seeds)
    assert np.max(np.abs(grams[0] - grams[1])) > 1e-3


def test_orthogonal_frequencies_err_less_than_independent_ones(monkeypatch):
    x = RNG.normal(size=(20, 6))
    exact = np.asarray(kx.RBF(2.0)(x))

    def error():
        grams = [np.asarray(kx.RandomFeatures(kx.RBF(2.0), 60, seed=seed)(x)) for seed in range(30)]
        return np.mean((np.stack(grams) - exact) ** 2)

    def independent(number, width, seed):
        return np.random.default_rng(seed).normal(size=(number, width))

    ours = error()
    monkeypatch.setattr(_random_features, "orthogonal_normal", independent)
    assert ours < 0.7 * error()


def test_each_vector_alone_is_standard_normal():
    drawn = np.concatenate([_random_features.orthogonal_normal(9, 4, (seed,)) for seed in range(800)])
    np.testing.assert_allclose(np.cov(drawn.T), np.eye(4), atol=0.08)
    np.testing.assert_allclose(np.mean(drawn**4, axis=0), 3.0, rtol=0.15)
    group = _random_features.orthogonal_normal(9, 4, (0,))[4:8]
    products = group @ group.T
    np.testing.assert_allclose(products - np.diag(np.diag(products)), 0.0, atol=1e-12)


def test_low_rank_is_exact_for_it_and_gradients_reach_the_inner_parameters():
    """Also α, on which the distribution of the frequencies depends; against central differences of a dense likelihood."""
    kernel = 1.3 * kx.RandomFeatures(kx.RationalQuadratic([0.8, 1.2, 2.0], alpha=0.6), 15)
    model = kx.Model(kernel, noise=0.3)
    vector, rebuild = kx.parameters.ravel(model)
    assert vector.size == 6
    data = kx.Data(X, Y)
    ours, exact = (kx.condition(model, data, solver) for solver in (kx.LowRank(), kx.Cholesky()))
    np.testing.assert_allclose(kx.log_marginal_likelihood(ours), kx.log_marginal_likelihood(exact), rtol=1e-10)
    np.testing.assert_allclose(kx.variance(ours, NEW), kx.variance(exact, NEW), rtol=1e-9)
    np.testing.assert_allclose(kx.loo_residuals(ours), kx.loo_residuals(exact), rtol=1e-9)
    assert kx.selection.likelihood_terms(ours).correction == 0

    def value(v, solver):
        return kx.log_marginal_likelihood(kx.condition(rebuild(v), data, solver))

    gradient = jax.jit(jax.grad(lambda v: value(v, kx.LowRank())))(vector)
    dense = jax.jit(lambda v: value(v, kx.Cholesky()))
    np.testing.assert_allclose(gradient, gradient_by_differences(dense, np.asarray(vector)), rtol=1e-5, atol=1e-6)


def test_sums_and_products_with_other_kernels_have_features():
    kernel = kx.RandomFeatures(kx.RBF(), 6) * kx.Linear() + 0.5 * kx.RandomFeatures(kx.Matern52(), 4) + kx.Constant()
    u = np.asarray(kernel.features(jnp.asarray(X)))
    assert u.shape == (7, 12 * 3 + 8 + 1)
    np.testing.assert_allclose(u @ u.T, kernel(X), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["matern12", "rational_quadratic"])
def test_float32(name):
    kernel = kx.RandomFeatures(KERNELS[name], 40)
    gram = kernel(X.astype("float32"))
    assert gram.dtype == np.float32
    np.testing.assert_allclose(gram, kernel(X), atol=2e-3)
    slope = jax.grad(lambda k: jnp.sum(k(X.astype("float32")) ** 2))(kernel)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


def test_saved_and_loaded(tmp_path):
    c = kx.condition(kx.Model(kx.RandomFeatures(KERNELS["sum"], 8, seed=3), noise=0.1), kx.Data(X, Y), kx.LowRank())
    kx.save(tmp_path / "c.kx", c)
    np.testing.assert_array_equal(kx.mean(kx.load(tmp_path / "c.kx"), NEW), kx.mean(c, NEW))


def test_fitted_it_comes_close_to_the_kernel_itself():
    x = np.random.default_rng(1).uniform(-3, 3, size=(80, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * np.random.default_rng(2).normal(size=80)
    data = kx.Data(x, y)
    exact = kx.fit(kx.Model(1.0 * kx.RBF(), noise=0.1), data)
    ours = kx.fit(kx.Model(kx.RandomFeatures(1.0 * kx.RBF(), 100), noise=0.1), data, solver=kx.LowRank())
    np.testing.assert_allclose(ours.model.kernel.kernel.kernel.lengthscale, exact.model.kernel.kernel.lengthscale, rtol=0.15)
    np.testing.assert_allclose(ours.model.noise, exact.model.noise, rtol=0.2)


def test_what_has_no_waves_is_refused_with_the_remedy():
    for kernel in (kx.Periodic(), kx.RBF() + kx.Linear(), (kx.RBF() + kx.RBF(2.0)) * kx.Matern32()):
        with pytest.raises(TypeError, match=r"mean of random waves .* use the kernel itself with kx\.LowRank\(\)"):
            kx.RandomFeatures(kernel, 10)(X)
    with pytest.raises(ValueError, match=r"RandomFeatures\.number must be a whole number"):
        kx.RandomFeatures(kx.RBF(), 0)
    with pytest.raises(ValueError, match=r"RandomFeatures\.seed must be a whole number, not negative"):
        kx.RandomFeatures(kx.RBF(), 10, seed=-1)
    with pytest.raises(ValueError, match="lengthscale has shape"):
        kx.RandomFeatures(kx.RBF([1.0, 2.0]), 10)(X)
