"""The Matérn kernel of any order, against arbitrary precision, SciPy, scikit-learn and closed forms."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import kernax as kx
from tests.tables import gradient_by_differences, points, targets

X, Z = points(8), points(5, seed=3)
DISTANCES = np.array([1e-6, 1e-3, 0.1, 0.7, 1.9, 5.0, 17.0])


def exact(order, r):
    """The kernel with 40 digits."""
    z = mpmath.sqrt(2 * order) * r
    return 2 ** (1 - order) / mpmath.gamma(order) * z**order * mpmath.besselk(order, z)


@jax.jit
def value_and_slopes(r, order):
    """The kernel at distances, its slopes in the distance and in the order, and the curvature in the order."""

    def kernel(r, order):
        return kx.Matern(nu=order).of_squared_distance(r**2)

    slopes = jax.vmap(jax.grad(kernel, (0, 1)), (0, None))(r, order)
    return kernel(r, order), *slopes, jax.vmap(jax.grad(jax.grad(kernel, 1), 1), (0, None))(r, order)


@pytest.mark.parametrize("order", [0.25, 0.5, 0.9, 1.02, 1.7, 2.03, 2.6, 4.3, 19.4, 99.3])
def test_values_and_derivatives_of_first_and_second_order(order):
    with mpmath.workdps(40):
        nu, at = mpmath.mpf(order), [mpmath.mpf(float(r)) for r in DISTANCES]
        expected = [
            [exact(nu, r) for r in at],
            [mpmath.diff(lambda t: exact(nu, t), r) for r in at],
            [mpmath.diff(lambda t, r=r: exact(t, r), nu) for r in at],
            [mpmath.diff(lambda t, r=r: exact(t, r), nu, 2) for r in at],
        ]
    for ours, theirs in zip(value_and_slopes(DISTANCES, jnp.asarray(order)), expected, strict=True):
        theirs = np.array([float(number) for number in theirs])
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("order", [0.4, 1.2, 3.3])
def test_parity_with_scikit_learn_and_scipy(order):
    ours, theirs = kx.Matern([0.8, 2.0], order), sk.Matern([0.8, 2.0], nu=order)
    np.testing.assert_allclose(ours(X, Z), theirs(X, Z), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-12, atol=1e-13)
    z = np.sqrt(2 * order) * DISTANCES
    bessel = 2 ** (1 - order) / scipy.special.gamma(order) * z**order * scipy.special.kv(order, z)
    np.testing.assert_allclose(
        kx.Matern(nu=order)(DISTANCES[:, None], np.zeros((1, 1)))[:, 0], bessel, rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize(("order", "known"), [(0.5, kx.Matern12), (1.5, kx.Matern32), (2.5, kx.Matern52)])
def test_half_orders_are_the_closed_forms(order, known):
    """Values, and derivatives in the rows where two of them coincide: of first order, and of second where there are some."""
    ours, theirs = kx.Matern(0.9, order), known(0.9)
    np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(ours(X.astype(np.float32)), theirs(X), rtol=1e-5, atol=1e-6)

    def derivatives(kernel):
        of_pair = jax.jit(lambda a, b: (jax.grad(kernel.pair)(a, b), jax.jacfwd(jax.grad(kernel.pair), 1)(a, b)))
        return [of_pair(jnp.asarray(X[0]), jnp.asarray(b)) for b in (X[0], X[1])]

    for (first, second), (known_first, known_second) in zip(derivatives(ours), derivatives(theirs), strict=True):
        np.testing.assert_allclose(first, known_first, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(second, known_second, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_half_of_a_symmetric_matrix_is_computed(number):
    """Rows with themselves agree with the same rows as other rows, and the diagonal is exactly 1."""
    kernel = kx.Matern(0.7, 1.3)
    gram = kernel(X[:number])
    np.testing.assert_allclose(gram, kernel(X[:number], X[:number]), rtol=1e-14)
    assert (np.diag(gram) == 1.0).all()


def test_likelihood_and_its_gradient():
    """The value is scikit-learn's, and the gradient in lengthscale, order and noise is that of central differences."""
    y = targets(X)
    data = kx.Data(X, y)

    @jax.jit
    def value_and_gradient(v):
        return jax.value_and_grad(
            lambda v: kx.log_marginal_likelihood(kx.condition(kx.Model(kx.Matern(v[0], v[1]), v[2]), data))
        )(v)

    def peer(v):
        kernel = sk.Matern(v[0], nu=v[1]) + sk.WhiteKernel(v[2])
        return GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, y).log_marginal_likelihood_value_

    start = np.array([0.8, 1.7, 0.2])
    value, gradient = value_and_gradient(start)
    np.testing.assert_allclose(value, peer(start), rtol=1e-11)
    np.testing.assert_allclose(gradient, gradient_by_differences(peer, start), rtol=1e-6, atol=1e-7)


def test_the_order_is_fitted():
    """Data from a rough process has a small order, and a fit finds a better one than it starts with."""
    x = np.linspace(0, 4, 40)[:, None]
    path = np.linalg.cholesky(sk.Matern(1.0, nu=0.6)(x)) @ np.random.default_rng(0).normal(size=40)
    data = kx.Data(x, path)
    model = kx.Model(kx.Matern(1.0, nu=2.2), noise=1e-6)
    held = kx.freeze(model, lambda m: (m.kernel.lengthscale, m.noise))
    fit = kx.fit(model, data, trainable=held, max_steps=15)
    assert 0.2 < float(fit.model.kernel.nu) < 1.2


def test_random_features_of_any_order():
    """Waves have the kernel as their mean, with a slope in the order."""
    x, y = jnp.asarray([[0.0], [0.4], [1.5]]), np.array([[0.0]])
    kernel = kx.RandomFeatures(kx.Matern(0.8, 1.7), 300)
    np.testing.assert_allclose(kernel(x, y), sk.Matern(0.8, nu=1.7)(x, y), atol=0.06)
    slope = jax.jacfwd(lambda nu: kx.RandomFeatures(kx.Matern(0.8, nu), 300)(x, y)[:, 0])(jnp.asarray(1.7))
    differences = (sk.Matern(0.8, nu=1.71)(x, y) - sk.Matern(0.8, nu=1.69)(x, y))[:, 0] / 0.02
    np.testing.assert_allclose(slope, differences, atol=0.05)


@pytest.mark.parametrize("order", [0.0, -1.0, np.nan, 1000.0, [1.0, 2.0]])
def test_bad_orders_are_refused(order):
    with pytest.raises(ValueError, match=r"Matern\.nu must be"):
        kx.Matern(nu=order)
