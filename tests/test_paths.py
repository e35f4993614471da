"""Functions drawn from a posterior, against its mean and covariance."""

import equinox as eqx
import jax
import numpy as np
import pytest

import kernax as kx
from kernax.solvers import _pathwise
from tests.tables import AXES, CELLS, TIMES, VALUES

KEY = jax.random.key(0)
NEW = np.array([[-0.5], [1.1], [2.5], [6.0]])
MATERN = 1.3 * kx.Matern32(lengthscale=0.8)
CASES = {
    "cholesky": (0.7 * kx.RBF(lengthscale=0.9) + kx.Linear(0.2), kx.Cholesky(), TIMES, NEW),
    "state_space": (MATERN, kx.StateSpace(), TIMES, NEW),
    "spline": (2.0 * kx.CubicSpline() + 0.3 * kx.Matern12(), kx.StateSpace(), TIMES, NEW),
    "quasi_periodic": (
        kx.Matern32(lengthscale=3.0) * kx.Periodic(period=2.0, lengthscale=2.0, harmonics=3)
        + 0.4 * kx.kernels.SHO(1.7, 3.0),
        kx.StateSpace(),
        TIMES,
        NEW,
    ),
    "any_matern": (kx.kernels.Matern(lengthscale=0.9, nu=1.2), kx.Cholesky(), TIMES, NEW),
    "spectral_mixture": (
        kx.kernels.SpectralMixture(weight=[0.7, 0.5], frequency=[0.1, 0.6], bandwidth=[0.2, 0.05]),
        kx.Cholesky(),
        TIMES,
        NEW,
    ),
    "additive": (
        kx.kernels.Additive([kx.RBF(0.9), kx.Matern32(1.2), kx.RBF(2.0)], 2),
        kx.Cholesky(),
        np.stack([TIMES[:, 0], np.cos(3 * TIMES[:, 0]), np.sin(5 * TIMES[:, 0])], axis=1),
        np.linspace(-1.0, 2.0, 12).reshape(4, 3),
    ),
    "categories": (
        kx.kernels.Categorical("site", 12, correlation=0.4) * kx.Select(kx.RBF(lengthscale=0.9), key="x"),
        kx.Cholesky(),
        {"x": TIMES, "site": np.arange(12)},
        {"x": NEW, "site": np.array([0, 3, 3, 11])},
    ),
    "loadings": (
        kx.kernels.Categorical("site", 3, rank=1) * kx.Select(kx.Matern32(lengthscale=0.9), key="x"),
        kx.Cholesky(),
        {"x": TIMES, "site": np.arange(12) % 3},
        {"x": NEW, "site": np.array([0, 1, 1, 2])},
    ),
    "features": (kx.RandomFeatures(kx.RBF(), 6), kx.LowRank(), TIMES, NEW),
    "kronecker": (
        kx.Select(kx.RBF(lengthscale=0.8), axis=0) * kx.Select(kx.Matern52(lengthscale=1.1), axis=1),
        kx.Kronecker(),
        kx.Grid(AXES),
        (np.array([[0.1], [1.2], [3.0]]), np.array([[0.3], [1.0], [0.2]])),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_the_posterior(name, monkeypatch):
    monkeypatch.setattr(_pathwise, "_WAVES", 64)  # for speed: covariances are right for any number of them
    kernel, solver, x, new = CASES[name]
    model = kx.Model(kernel, noise=0.2, mean=2.0 if name == "cholesky" else 0.0)
    number = 2000

    @eqx.filter_jit
    def answers(model, data):
        c = kx.condition(model, data, solver)
        return kx.sample_paths(c, KEY, number)(new), kx.mean(c, new), kx.covariance(c, new)

    values, exact, covariance = map(np.asarray, answers(model, kx.Data(x, CELLS if name == "kronecker" else VALUES)))
    assert values.shape == (len(exact), number)
    deviation = np.sqrt(np.diag(covariance))
    assert np.abs(values.mean(axis=1) - exact).max() < (4.5 * deviation / np.sqrt(number)).max()
    # The standard error of a product of two of them is at most √2 of the variances.
    error = np.abs(np.cov(values) - covariance) / np.outer(deviation, deviation)
    assert error.max() < 4.5 * np.sqrt(2 / number)


def test_a_path_is_one_function():
    c = kx.condition(kx.Model(MATERN, noise=0.2), kx.Data(TIMES, VALUES))
    paths = kx.sample_paths(c, KEY, 3)
    values = paths(NEW)
    np.testing.assert_allclose(paths(NEW[2:3])[0], values[2], rtol=1e-10)
    np.testing.assert_allclose(jax.jit(lambda p, x: p(x))(paths, NEW), values, rtol=1e-10)
    assert np.abs(kx.sample_paths(c, jax.random.key(1), 3)(NEW) - values).min() > 1e-6
    # Differentiable in x.
    slope = jax.jacfwd(lambda t: paths(t[None, None])[0])(1.1)
    back = jax.grad(lambda t: paths(t[None, None])[0, 1])(1.1)
    h = 1e-6
    expected = (paths(np.array([[1.1 + h]])) - paths(np.array([[1.1 - h]])))[0] / (2 * h)
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(back, expected[1], rtol=1e-5, atol=1e-6)


def test_without_noise_a_path_goes_through_the_data():
    x, y = np.array([[0.0], [0.9], [2.0]]), np.array([[1.0, -1.0], [0.5, 3.0], [-2.0, 0.0]])
    mask = np.array([True, True, False])
    c = kx.condition(kx.Model(kx.Matern52(), noise=0.0, mean=0.3), kx.Data(x, y, mask=mask))
    values = kx.sample_paths(c, KEY, 4)(x)
    assert values.shape == (3, 4, 2)
    np.testing.assert_allclose(values[:2], np.broadcast_to(y[:2, None], (2, 4, 2)), atol=1e-9)
    assert np.ptp(values[2], axis=0).min() > 1e-3


def test_paths_have_slopes():
    """A slope of a path, observed as a row, is its derivative."""
    c = kx.condition(kx.Model(kx.kernels.OfFunctionals(kx.RBF()), noise=0.1), kx.observe.values(TIMES, VALUES))
    paths = kx.sample_paths(c, KEY, 2)
    slope = jax.jacfwd(lambda t: paths(t[None, None])[0])(1.1)
    np.testing.assert_allclose(paths(kx.observe.gradients([[1.1]]))[0], slope, rtol=1e-9)


def test_a_path_of_a_state_space_is_one_function_and_exact():
    """Values anywhere, in any order and any call; slopes; close by, the increments of the prior."""
    kernel = 1.3 * kx.Matern32(lengthscale=0.8)
    c = kx.condition(kx.Model(kernel, noise=0.2, mean=1.0), kx.Data(TIMES, VALUES), kx.StateSpace())
    paths = kx.sample_paths(c, KEY, 500)
    near = np.array([[0.5], [0.50001], [2.5], [-3.0], [90.0], [0.3]])
    values = np.asarray(paths(near))
    others = [4, 3, 2, 5, 5, 2]  # as many, so that it is the same program
    np.testing.assert_allclose(paths(near[others]), values[others], rtol=1e-12)
    # Far from the data a path is one of the prior.
    assert np.abs(values[4].std() / np.sqrt(1.3) - 1) < 4 / np.sqrt(1000)
    # An increment over a short time is a slope, whose variance is 3 · 1.3 / ℓ² a priori, and less near data.
    slope = jax.vmap(jax.jacfwd(lambda t: paths(t[None, None])[0]))(np.array([90.0, 0.5]))
    assert np.abs(slope[0].std() / np.sqrt(3 * 1.3 / 0.8**2) - 1) < 4 / np.sqrt(1000)
    np.testing.assert_allclose((values[1] - values[0]) / 1e-5, slope[1], atol=0.05)
    # Beyond a million times the range of the data nothing is drawn, and rough functions have no slope.
    assert np.isnan(paths(np.array([[1e9]]))).all()
    rough = kx.condition(kx.Model(kx.Matern12() + kx.Matern52(), noise=0.2), kx.Data(TIMES, VALUES), kx.StateSpace())
    assert np.isnan(jax.grad(lambda t: kx.sample_paths(rough, KEY)(t[None, None])[0, 0])(1.0))


def test_a_path_of_a_state_space_in_float32():
    x, y = TIMES.astype(np.float32), VALUES.astype(np.float32)
    c = kx.condition(kx.Model(1.3 * kx.Matern52(0.8) + kx.Linear(0.2), noise=0.0), kx.Data(x, y), kx.StateSpace())
    paths = kx.sample_paths(c, KEY, 3)
    values = paths(x)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, np.broadcast_to(y[:, None], (12, 3)), atol=2e-3)


def test_what_has_no_paths_is_refused():
    data = kx.Data(TIMES, VALUES)
    for kernel in (kx.Periodic(), kx.CubicSpline()):
        with pytest.raises(TypeError, match=r"made of RBF.*use kx\.sample\(c, x\), or condition with kx\.StateSpace"):
            kx.sample_paths(kx.condition(kx.Model(kernel, noise=0.1), data), KEY)
    for solver in (kx.LowRank(4), kx.Vecchia(5)):
        with pytest.raises(TypeError, match="is an approximation here: condition with"):
            kx.sample_paths(kx.condition(kx.Model(kx.RBF(), noise=0.1), data, solver), KEY)
    c = kx.condition(kx.Model(kx.RBF(), noise=0.1), data)
    with pytest.raises(ValueError, match="number"):
        kx.sample_paths(c, KEY, 0)
    with pytest.raises(TypeError, match="condition first"):
        kx.sample_paths(c.model, KEY)
    gaps = kx.Data(TIMES, np.stack([VALUES, VALUES], axis=1), mask=np.arange(24).reshape(12, 2) != 3)
    with pytest.raises(TypeError, match="same rows"):
        kx.sample_paths(kx.condition(kx.Model(kx.RBF(), noise=0.1), gaps), KEY)
