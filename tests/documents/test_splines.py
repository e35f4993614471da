"""Splines: kernels that are definite only beside polynomials, and the bordered system that brings those along (F11)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate
import scipy.optimize
import scipy.stats

import kernax as kx

from ._oracles import assert_close, finite_differences

N = 12
_rng = np.random.default_rng(20)
X = (np.linspace(0.1, 3.9, N) + _rng.uniform(-0.12, 0.12, N))[:, None]
Y = np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 0] + 0.2 * _rng.standard_normal(N)
X2 = _rng.uniform(-1.0, 1.0, (N, 2))
Y2 = np.sin(2.0 * X2[:, 0]) + X2[:, 1] ** 2 + 0.1 * _rng.standard_normal(N)
Z = np.array([[0.7], [1.9], [3.1], [5.5], [-1.0]])  # three inside the data, two outside
Z2 = _rng.uniform(-1.5, 1.5, (5, 2))
INSIDE = np.linspace(X[0, 0], X[-1, 0], 15)
NOISE, UNEVEN = 0.15, np.linspace(0.05, 0.6, N)
SOLVERS = [kx.Cholesky(), kx.Eigh()]
DATA = kx.Data(X, Y)


def distances(a, b):
    return np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1))


def cubic(a, b):
    return distances(a, b) ** 3 / 12


def plate(a, b):
    r = distances(a, b)
    return r**2 * np.log(np.where(r > 0, r, 1.0)) / (8 * np.pi)


def linear_terms(x):
    return np.column_stack([np.ones(len(x)), x])


def quadratic_terms(x):
    d = x.shape[1]
    return np.column_stack([linear_terms(x)] + [x[:, i] * x[:, j] for i in range(d) for j in range(i, d)])


class Bordered:
    """`[[K + noise, P], [Pᵀ, 0]]`, written out and inverted."""

    def __init__(self, x, y, noise, kernel=cubic, terms=linear_terms):
        self.x, self.y, self.kernel, self.terms = x, y, kernel, terms
        self.noise = np.broadcast_to(noise, len(x))
        self.gram, self.basis = kernel(x, x), terms(x)
        n, q = self.basis.shape
        self.matrix = np.block([[self.gram + np.diag(self.noise), self.basis], [self.basis.T, np.zeros((q, q))]])
        solution = np.linalg.solve(self.matrix, np.concatenate([y, np.zeros((q, *y.shape[1:]))]))
        self.alpha, self.beta = solution[:n], solution[n:]
        self.inverse = np.linalg.inv(self.matrix)[:n, :n]

    def mean(self, z):
        return self.kernel(z, self.x) @ self.alpha + self.terms(z) @ self.beta

    def covariance(self, z, w):
        """Universal kriging."""
        left, right = (np.concatenate([self.kernel(self.x, v), self.terms(v).T]) for v in (z, w))
        return self.kernel(z, w) - left.T @ np.linalg.solve(self.matrix, right)

    def contrasts(self):
        """An orthonormal basis of the vectors that no polynomial sees."""
        return np.linalg.qr(self.basis, mode="complete")[0][:, self.basis.shape[1] :]

    def restricted_likelihood(self):
        q = self.contrasts()
        covariance = q.T @ (self.gram + np.diag(self.noise)) @ q
        return scipy.stats.multivariate_normal(np.zeros(len(covariance)), covariance).logpdf(q.T @ self.y)

    def hat(self):
        return np.eye(len(self.x)) - self.noise[:, None] * self.inverse

    def gcv(self):
        hat, n = self.hat(), len(self.x)
        return np.mean((self.y - hat @ self.y) ** 2) / (1 - np.trace(hat) / n) ** 2

    def without(self, rows):
        rest = np.delete(np.arange(len(self.x)), rows)
        return Bordered(self.x[rest], self.y[rest], self.noise[rest], self.kernel, self.terms)


@pytest.fixture(scope="module", params=SOLVERS, ids=repr)
def c(request):
    return kx.condition(kx.Model(kx.CubicSpline(), noise=NOISE), DATA, request.param)


@pytest.fixture(scope="module")
def border():
    return Bordered(X, Y, NOISE)


# The answer


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_f11_without_noise_it_is_the_natural_cubic_spline(solver):
    c = kx.condition(kx.Model(kx.CubicSpline(), noise=0.0), DATA, solver)
    natural = scipy.interpolate.CubicSpline(X[:, 0], Y, bc_type="natural")
    assert c.result == kx.Result.successful
    assert c.jitter == 0.0
    np.testing.assert_allclose(kx.mean(c, INSIDE[:, None]), natural(INSIDE), rtol=0, atol=1e-10)
    # Beyond the data a natural spline goes on straight.
    end, slope = X[-1, 0], natural(X[-1, 0], 1)
    np.testing.assert_allclose(kx.mean(c, [[end + 1.0], [end + 3.0]]), Y[-1] + slope * np.array([1.0, 3.0]), atol=1e-9)
    # ∫ f''² of a function with straight pieces for f''.
    left, right = natural(X[:-1, 0], 2), natural(X[1:, 0], 2)
    energy = np.sum(np.diff(X[:, 0]) * (left**2 + left * right + right**2) / 3)
    assert kx.posterior.rkhs_norm(c) ** 2 == pytest.approx(energy, rel=1e-9)


CASES = {
    "cubic, two outputs": (kx.CubicSpline(), X, np.stack([Y, Y**2], axis=1), NOISE, cubic, linear_terms, Z),
    "plate, noise per row": (kx.ThinPlate(), X2, Y2, UNEVEN, plate, linear_terms, Z2),
    "order 3, one column": (
        kx.ThinPlate(order=3),
        X,
        Y,
        NOISE,
        lambda a, b: -(distances(a, b) ** 5) / 240,
        quadratic_terms,
        Z,
    ),
    "order 3, three columns": (
        kx.ThinPlate(order=3),
        np.column_stack([X2, X]),
        Y2,
        NOISE,
        lambda a, b: distances(a, b) ** 3 / (96 * np.pi),
        quadratic_terms,
        np.column_stack([Z2, Z]),
    ),
    "plus rbf": (
        2.0 * kx.CubicSpline() + kx.RBF(0.7),
        X,
        Y,
        NOISE,
        lambda a, b: 2.0 * cubic(a, b) + np.exp(-(distances(a, b) ** 2) / 0.98),
        linear_terms,
        Z,
    ),
    "one per column": (
        kx.Select(kx.CubicSpline(), 0) + kx.Select(0.5 * kx.CubicSpline(), 1),
        X2,
        Y2,
        NOISE,
        lambda a, b: cubic(a[:, :1], b[:, :1]) + 0.5 * cubic(a[:, 1:], b[:, 1:]),
        linear_terms,
        Z2,
    ),
    "warped": (
        kx.Warp(kx.CubicSpline(), lambda a: jnp.exp(0.3 * a)),
        X,
        Y,
        NOISE,
        lambda a, b: cubic(np.exp(0.3 * a), np.exp(0.3 * b)),
        lambda x: linear_terms(np.exp(0.3 * x)),
        Z,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_f11_the_bordered_system(case):
    """alpha, the polynomial beside it and the variance are those of the system written out; `Pᵀ alpha = 0`."""
    kernel, x, y, noise, oracle, terms, z = CASES[case]
    border = Bordered(x, y, noise, oracle, terms)
    c = kx.condition(kx.Model(kernel, noise=noise), kx.Data(x, y))
    assert c.result == kx.Result.successful
    assert_close(c.alpha, border.alpha, 1e-8)
    assert np.max(np.abs(border.basis.T @ np.asarray(c.alpha))) < 1e-9 * np.max(np.abs(border.alpha))
    prediction = kx.predict(c, z)
    assert_close(prediction.mean, border.mean(z), 1e-9)
    assert_close(prediction.variance, np.diagonal(border.covariance(z, z)), 1e-8)


@pytest.mark.parametrize("noise", [0.0, NOISE])
def test_f11_peers_in_the_plane_and_in_space(noise):
    """SciPy's kernel lacks our constants: its smoothing is `8π` (`12` for the cubic) times our noise."""
    z3, x3 = np.column_stack([Z2, Z]), np.column_stack([X2, X])
    for kernel, x, z, name, factor in (
        (kx.ThinPlate(), X2, Z2, "thin_plate_spline", 8 * np.pi),
        (kx.CubicSpline(), x3, z3, "cubic", 12.0),
    ):
        peer = scipy.interpolate.RBFInterpolator(x, Y2, kernel=name, smoothing=factor * noise, degree=1)
        c = kx.condition(kx.Model(kernel, noise=noise), kx.Data(x, Y2))
        assert_close(kx.mean(c, z), peer(z), 1e-8)


def test_f11_order_1_joins_the_points_by_straight_lines():
    """`-r/2` beside constants: the norm is `∫ f'²`, and beyond the data the function stays where it is."""
    c = kx.condition(kx.Model(kx.ThinPlate(order=1), noise=0.0), DATA)
    places = np.concatenate([INSIDE, [-2.0, 9.0]])
    assert_close(kx.mean(c, places[:, None]), np.interp(places, X[:, 0], Y), 1e-10)
    assert kx.posterior.rkhs_norm(c) ** 2 == pytest.approx(np.sum(np.diff(Y) ** 2 / np.diff(X[:, 0])), rel=1e-9)


def test_f11_constants_of_the_kernels():
    """`|a - b|³/12` is the thin plate of order 2 in one dimension; `r² log r/8π` is it in two."""
    assert_close(kx.ThinPlate()(X, Z), kx.CubicSpline()(X, Z), 1e-13)
    assert_close(kx.CubicSpline()(X, Z), cubic(X, Z), 1e-13)
    assert_close(kx.ThinPlate()(X2, Z2), plate(X2, Z2), 1e-13)
    np.testing.assert_array_equal(np.diagonal(kx.ThinPlate()(X2)), 0.0)


def test_f11_the_norm_of_order_3_is_the_integral_of_the_third_derivative():
    c = kx.condition(kx.Model(kx.ThinPlate(order=3), noise=NOISE), DATA)
    alpha = np.asarray(c.alpha)

    def third(x):
        gap = x[:, None] - X[:, 0]
        return -(60 * gap**2 * np.sign(gap)) @ alpha / 240

    # f''' is a parabola between two points, so its square is integrated exactly by three nodes a piece.
    nodes, weights = np.polynomial.legendre.leggauss(3)
    middle, half = (X[1:, 0] + X[:-1, 0]) / 2, np.diff(X[:, 0]) / 2
    places = middle[:, None] + half[:, None] * nodes
    energy = np.sum(half[:, None] * weights * third(places.reshape(-1)).reshape(places.shape) ** 2)
    assert kx.posterior.rkhs_norm(c) ** 2 == pytest.approx(energy, rel=1e-8)


def test_f11_the_norm_of_the_plate_is_its_bending_energy():
    """`∫∫ f_xx² + 2f_xy² + f_yy²` over the plane, by brute force in polar coordinates."""
    c = kx.condition(kx.Model(kx.ThinPlate(), noise=0.0), kx.Data(X2, Y2))
    alpha, energy = np.asarray(c.alpha), 0.0
    angles = np.linspace(0.0, 2 * np.pi, 720, endpoint=False)
    for radius, step in zip(*_log_radii(1e-3, 300.0, 1500), strict=True):
        gap = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None, :] - X2
        square = (gap**2).sum(axis=-1)
        xx, yy = ((np.log(square) + 1 + 2 * gap[..., i] ** 2 / square) @ alpha / (8 * np.pi) for i in (0, 1))
        xy = (2 * gap[..., 0] * gap[..., 1] / square) @ alpha / (8 * np.pi)
        energy += np.mean(xx**2 + 2 * xy**2 + yy**2) * 2 * np.pi * radius * step
    assert kx.posterior.rkhs_norm(c) ** 2 == pytest.approx(energy, rel=1e-2)


def _log_radii(low, high, number):
    edges = np.geomspace(low, high, number + 1)
    return np.sqrt(edges[1:] * edges[:-1]), np.diff(edges)


# The smoothing spline


@pytest.mark.parametrize("ridge", [1e-4, 0.05, 3.0])
def test_f11_the_noise_is_the_lambda_of_the_smoothing_spline(ridge):
    peer = scipy.interpolate.make_smoothing_spline(X[:, 0], Y, lam=ridge)
    c = kx.condition(kx.Model(kx.CubicSpline(), noise=ridge), DATA)
    assert_close(kx.mean(c, INSIDE[:, None]), peer(INSIDE), 1e-7)


def test_f11_the_lambda_of_least_gcv():
    """SciPy's own search stops early, so the curves are compared, and our GCV must be no worse."""
    peer = scipy.interpolate.make_smoothing_spline(X[:, 0], Y)
    choice = kx.select_ridge(kx.Model(kx.CubicSpline(), noise=1.0), DATA, "gcv")
    assert choice.result == kx.Result.successful
    assert_close(kx.mean(choice.conditioned, INSIDE[:, None]), peer(INSIDE), 1e-3)

    def distance(t):
        return np.sum((Bordered(X, Y, np.exp(t)).mean(X) - peer(X[:, 0])) ** 2)

    middle = np.log(float(choice.ridge))
    theirs = scipy.optimize.minimize_scalar(distance, bounds=(middle - 2, middle + 2), method="bounded")
    ours = Bordered(X, Y, float(choice.ridge)).gcv()
    assert choice.value == pytest.approx(ours, rel=1e-9)
    assert ours <= Bordered(X, Y, np.exp(theirs.x)).gcv() * (1 + 1e-12)
    for factor in (0.99, 1.01):
        assert ours < Bordered(X, Y, factor * float(choice.ridge)).gcv()


@pytest.mark.parametrize("by", ["likelihood", "discrepancy"])
def test_f11_the_lambda_of_other_criteria(by):
    def score(t):
        border = Bordered(X, Y, np.exp(t))
        if by == "likelihood":
            return -border.restricted_likelihood()
        return abs(np.log(np.mean((Y - border.mean(X)) ** 2) / 0.04))

    choice = kx.select_ridge(kx.Model(kx.CubicSpline(), noise=1.0), DATA, by, noise_variance=0.04)
    middle = np.log(float(choice.ridge))
    want = scipy.optimize.minimize_scalar(score, bounds=(middle - 3, middle + 3), method="bounded", options={"xatol": 1e-9})
    assert choice.ridge == pytest.approx(np.exp(want.x), rel=1e-5)


def test_f11_the_ridge_path(border):
    c = kx.condition(kx.Model(kx.CubicSpline(), noise=7.0), DATA, kx.Eigh())
    path = kx.ridge_path(c, [0.01, NOISE, 4.0], folds=3)
    for i, ridge in enumerate([0.01, NOISE, 4.0]):
        want = Bordered(X, Y, ridge)
        assert_close(path.alpha[i], want.alpha, 1e-9)
        assert_close(path.fitted[i], want.mean(X), 1e-10)
        assert path.residual_norm[i] == pytest.approx(np.linalg.norm(Y - want.mean(X)), rel=1e-9)
        assert path.rkhs_norm[i] == pytest.approx(np.sqrt(want.alpha @ want.gram @ want.alpha), rel=1e-9)
        assert path.effective_degrees_of_freedom[i] == pytest.approx(np.trace(want.hat()), rel=1e-9)
        assert path.gcv[i] == pytest.approx(want.gcv(), rel=1e-9)
        assert path.log_marginal_likelihood[i] == pytest.approx(want.restricted_likelihood(), rel=1e-9)


def test_f11_a_huge_ridge_leaves_the_straight_line():
    c = kx.condition(kx.Model(kx.CubicSpline(), noise=1e8), DATA)
    assert_close(kx.mean(c, Z), np.polyval(np.polyfit(X[:, 0], Y, 1), Z[:, 0]), 1e-6)
    assert kx.selection.effective_degrees_of_freedom(c) == pytest.approx(2.0, abs=1e-5)


# Cross-validation, variance, likelihood


def test_f11_leave_one_out_and_folds_are_those_of_refits(c, border):
    """The polynomials are refitted, too."""
    residuals, variances = np.empty(N), np.empty(N)
    for i in range(N):
        rest, here = border.without([i]), X[i : i + 1]
        residuals[i] = Y[i] - rest.mean(here)[0]
        variances[i] = rest.covariance(here, here)[0, 0]
    assert_close(kx.loo_residuals(c), residuals, 1e-9)
    assert_close(kx.loo_variance(c), variances, 1e-9)
    assert_close(kx.loo_variance(c, noisy=True), variances + NOISE, 1e-9)
    labels = np.array([0, 1, 2, 2, 0, 0, 1, 0, 1, 2, 0, 0])
    for label in range(3):
        out = np.flatnonzero(labels == label)
        residuals[out] = Y[out] - border.without(out).mean(X[out])
    assert_close(kx.kfold_residuals(c, labels), residuals, 1e-9)


def test_f11_covariance_is_that_of_universal_kriging(c, border):
    assert_close(kx.covariance(c, Z), border.covariance(Z, Z), 1e-9)
    assert_close(kx.covariance(c, Z, X[:3]), border.covariance(Z, X[:3]), 1e-9)
    assert_close(kx.variance(c, Z), np.diagonal(border.covariance(Z, Z)), 1e-9)
    assert_close(kx.variance(c, Z, noisy=True), np.diagonal(border.covariance(Z, Z)) + NOISE, 1e-9)


def test_f11_draws_from_the_posterior(border):
    c = kx.condition(kx.Model(kx.CubicSpline(), noise=NOISE), DATA)
    draws = kx.sample(c, Z, key=jax.random.key(0), num_samples=4000)
    spread = np.sqrt(np.diagonal(border.covariance(Z, Z)))
    assert np.all(np.abs(draws.mean(axis=0) - border.mean(Z)) < 5 * spread / np.sqrt(4000))
    np.testing.assert_allclose(draws.std(axis=0), spread, rtol=0.06)


def test_f11_the_restricted_likelihood_is_that_of_orthonormal_contrasts(c, border):
    assert kx.log_marginal_likelihood(c) == pytest.approx(border.restricted_likelihood(), rel=1e-10)
    assert kx.gcv(c) == pytest.approx(border.gcv(), rel=1e-9)
    assert kx.selection.effective_degrees_of_freedom(c) == pytest.approx(np.trace(border.hat()), rel=1e-9)


def test_f11_polynomials_in_the_targets_cost_nothing(c):
    """Adding a straight line to y adds it to the mean and changes nothing else."""
    moved = kx.condition(c.model, kx.Data(X, Y + 5.0 - 3.0 * X[:, 0]), c.solver)
    assert_close(moved.alpha, c.alpha, 1e-9)
    assert_close(kx.mean(moved, Z), kx.mean(c, Z) + 5.0 - 3.0 * Z[:, 0], 1e-10)
    assert kx.log_marginal_likelihood(moved) == pytest.approx(float(kx.log_marginal_likelihood(c)), rel=1e-9)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_f11_quantities_with_noise_per_row(solver):
    border = Bordered(X, Y, UNEVEN)
    c = kx.condition(kx.Model(kx.CubicSpline(), noise=UNEVEN), DATA, solver)
    assert kx.log_marginal_likelihood(c) == pytest.approx(border.restricted_likelihood(), rel=1e-9)
    assert_close(kx.loo_residuals(c), [Y[i] - border.without([i]).mean(X[i : i + 1])[0] for i in range(N)], 1e-9)
    assert kx.gcv(c) == pytest.approx(border.gcv(), rel=1e-9)
    assert_close(kx.covariance(c, Z), border.covariance(Z, Z), 1e-9)


# Derivatives


def _answers(c, z):
    return jnp.concatenate(
        [
            jnp.stack([kx.log_marginal_likelihood(c), kx.gcv(c), kx.loo_mse(c), kx.posterior.rkhs_norm(c)]),
            kx.mean(c, z),
            kx.variance(c, z),
        ]
    )


def _oracle_answers(border, z):
    left_out = border.alpha / np.diagonal(border.inverse)
    norm = np.sqrt(border.alpha @ border.gram @ border.alpha)
    scalars = [border.restricted_likelihood(), border.gcv(), np.mean(left_out**2), norm]
    return np.concatenate([scalars, border.mean(z), np.diagonal(border.covariance(z, z))])


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_f11_derivatives_in_the_hyperparameters_and_in_the_inputs(solver):
    z = Z[:2]

    def answers(theta, x):
        model = kx.Model(theta[0] * kx.CubicSpline(), noise=theta[1])
        return _answers(kx.condition(model, kx.Data(x, Y), solver), z)

    def oracle(theta):
        return _oracle_answers(Bordered(X, Y, theta[1], lambda a, b: theta[0] * cubic(a, b)), z)

    def oracle_of_inputs(x):
        return _oracle_answers(Bordered(x[:, None], Y, 0.15, lambda a, b: 1.3 * cubic(a, b)), z)

    theta = np.array([1.3, 0.15])
    by_theta, by_x = jax.jit(jax.jacrev(answers, argnums=(0, 1)))(theta, X)
    for got, want in (
        (by_theta, finite_differences(oracle, theta)),
        (by_x[..., 0], finite_differences(oracle_of_inputs, X[:, 0])),
    ):
        for mine, theirs in zip(got, want, strict=True):
            assert_close(mine, theirs, 1e-6)


@pytest.mark.parametrize("kernel", [kx.ThinPlate(), kx.ThinPlate(order=3)], ids=repr)
def test_f11_derivatives_of_the_plate_in_its_inputs(kernel):
    order = kernel.order
    oracle = plate if order == 2 else lambda a, b: -(distances(a, b) ** 2) * plate(a, b) * 8 / 128
    terms = linear_terms if order == 2 else quadratic_terms

    def value(x):
        c = kx.condition(kx.Model(kernel, noise=NOISE), kx.Data(x, Y2))
        return kx.log_marginal_likelihood(c) + kx.mean(c, Z2)[0]

    def brute(flat):
        border = Bordered(flat.reshape(N, 2), Y2, NOISE, oracle, terms)
        return border.restricted_likelihood() + border.mean(Z2)[0]

    got, slope = jax.jit(jax.value_and_grad(value))(X2)
    assert got == pytest.approx(brute(X2.reshape(-1)), rel=1e-8)
    assert_close(np.asarray(slope).reshape(-1), finite_differences(brute, X2.reshape(-1)), 1e-6)


# Masks, transformations, precision


@pytest.mark.parametrize(
    ("solver", "noise"), [(kx.Eigh(), "common"), (kx.Eigh(), "per row"), (kx.Cholesky(), "per row")], ids=str
)
def test_f11_rows_behind_a_mask_change_nothing(solver, noise):
    """Neither values nor slopes, whatever stands in those rows, a noise smaller than all others included."""
    places = np.array([0, 1, 2, 4, 5, 6, 7, 8, 10, 11, 12, 13])
    mask = np.isin(np.arange(14), places)
    x, y, garbage = np.full((14, 1), 1e6), np.full(14, np.nan), np.full(14, 1e-3)
    x[places], y[places], garbage[places] = X, Y, UNEVEN
    data = kx.Data(x, y, mask)

    def answers(scale):
        model = kx.Model(1.3 * kx.CubicSpline(), noise=scale * (NOISE if noise == "common" else garbage))
        return _answers(kx.condition(model, data, solver), Z)

    def oracle(scale):
        level = NOISE if noise == "common" else UNEVEN
        return _oracle_answers(Bordered(X, Y, scale[0] * level, lambda a, b: 1.3 * cubic(a, b)), Z)

    values, slopes = jax.jit(lambda scale: jax.jvp(answers, (scale,), (1.0,)))(1.0)
    for got, want in ((values, oracle([1.0])), (slopes, finite_differences(oracle, (1.0,))[:, 0])):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def test_f11_under_jit_and_vmap():
    def mean_at(y, noise):
        return kx.mean(kx.condition(kx.Model(kx.CubicSpline(), noise=noise), kx.Data(X, y)), Z)

    ys, noises = np.stack([Y, Y**2, np.cos(Y)]), np.array([0.1, 0.5, 2.0])
    batch = jax.jit(jax.vmap(mean_at))(ys, noises)
    for got, y, noise in zip(batch, ys, noises, strict=True):
        assert_close(got, Bordered(X, y, noise).mean(Z), 1e-9)


def test_f11_in_single_precision(border):
    solver = kx.Eigh()
    c = kx.condition(kx.Model(kx.CubicSpline(), noise=NOISE), kx.Data(X.astype("float32"), Y.astype("float32")), solver)
    answers = [kx.mean(c, Z.astype("float32")), kx.variance(c, Z.astype("float32")), kx.loo_residuals(c)]
    assert all(answer.dtype == jnp.float32 for answer in answers)
    wants = [border.mean(Z), np.diagonal(border.covariance(Z, Z)), border.alpha / np.diagonal(border.inverse)]
    for answer, want in zip(answers, wants, strict=True):
        assert_close(answer, want, 2e-4)
    assert kx.log_marginal_likelihood(c) == pytest.approx(border.restricted_likelihood(), rel=2e-4)


def test_f11_far_from_the_origin_and_in_other_units(border):
    """The polynomials are the same for every origin and unit, so nothing is lost there."""
    far, small = 1e5 + X, 1e-3 * X
    assert_close(kx.mean(kx.condition(kx.Model(kx.CubicSpline(), NOISE), kx.Data(far, Y)), 1e5 + Z), border.mean(Z), 1e-7)
    shrunk = kx.condition(kx.Model(kx.CubicSpline(), NOISE * 1e-9), kx.Data(small, Y))
    assert_close(kx.mean(shrunk, 1e-3 * Z), border.mean(Z), 1e-7)


def test_f11_fitted_by_restricted_likelihood():
    fit = kx.fit(kx.Model(1.0 * kx.CubicSpline(), noise=1.0), DATA, max_steps=100)

    def loss(t):
        return -Bordered(X, Y, np.exp(t[1]), lambda a, b: np.exp(t[0]) * cubic(a, b)).restricted_likelihood()

    best = scipy.optimize.minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-10})
    assert fit.value == pytest.approx(best.fun, abs=1e-6)
    np.testing.assert_allclose(np.log([fit.model.kernel.variance, fit.model.noise]), best.x, atol=1e-2)


# What is refused


def test_f11_without_polynomials_the_matrix_is_indefinite():
    """The reason for all of this: on its own, `|a - b|³` is no kernel; between contrasts, it is."""
    for kernel, x in ((kx.CubicSpline(), X), (kx.ThinPlate(), X2)):
        gram = np.asarray(kernel(x))
        values = np.linalg.eigvalsh(gram)
        assert values[0] < -1e-3
        assert values[-1] > 1e-3
        contrasts = np.linalg.qr(linear_terms(x), mode="complete")[0][:, x.shape[1] + 1 :]
        assert np.linalg.eigvalsh(contrasts.T @ gram @ contrasts)[0] > 0
        assert kernel.trend() is not None
    assert kx.RBF().trend() is None


class Plain(kx.solvers.AbstractSolver):
    """A solver of a user's own that has never heard of polynomials."""

    def prepare(self, gram, noise):
        return kx.Cholesky().prepare(gram, noise)


def test_f11_a_solver_that_knows_no_polynomials_serves_as_well():
    ours = kx.condition(kx.Model(kx.CubicSpline(), noise=NOISE), DATA, Plain())
    assert_close(kx.mean(ours, Z), Bordered(X, Y, NOISE).mean(Z), 1e-9)


@pytest.mark.parametrize(
    "spline", [kx.CubicSpline(), 2.0 * kx.ThinPlate(), kx.Select(kx.CubicSpline(), 0) + kx.RBF()], ids=repr
)
def test_f11_products_and_powers_are_refused(spline):
    for make in (lambda: spline * kx.RBF(), lambda: kx.RBF() * spline, lambda: spline**2):
        with pytest.raises(ValueError, match=r"only conditionally definite, so a (product|power) of it is not a kernel"):
            make()


def test_f11_fewer_rows_than_polynomials_are_refused():
    with pytest.raises(ValueError, match=r"leaves 2 functions free .* 1 rows cannot determine: give at least 2 rows"):
        kx.condition(kx.Model(kx.CubicSpline(), noise=NOISE), kx.Data(X[:1], Y[:1]))
    with pytest.raises(ValueError, match=r"leaves 6 functions free .* give at least 6 rows"):
        kx.condition(kx.Model(kx.ThinPlate(order=3), noise=NOISE), kx.Data(X2[:5], Y2[:5]))


def test_f11_as_many_rows_as_polynomials_give_the_polynomial():
    c = kx.condition(kx.Model(kx.CubicSpline(), noise=NOISE), kx.Data(X[:2], Y[:2]))
    assert_close(kx.mean(c, Z), np.polyval(np.polyfit(X[:2, 0], Y[:2], 1), Z[:, 0]), 1e-10)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_f11_rows_that_cannot_tell_the_polynomials_apart_are_flagged(solver):
    model, data = kx.Model(kx.CubicSpline(), noise=NOISE), kx.Data(np.full((N, 1), 2.5), Y)
    with pytest.raises(kx.FailedError, match=r"conditioning failed\. rank_deficient: .*polynomial tail"):
        kx.condition(model, data, solver)
    c = kx.condition(model, data, solver, throw=False)
    assert c.result == kx.Result.rank_deficient
    assert np.isnan(kx.mean(c, Z)).all()
    line = kx.Data(np.column_stack([X, 2 * X - 1]), Y)
    assert kx.condition(kx.Model(kx.ThinPlate(), noise=NOISE), line, solver, throw=False).result == kx.Result.rank_deficient
    # One row that counts, behind a mask: the number of rows does not show it.
    alone = kx.Data(X, Y, np.arange(N) == 3)
    assert kx.condition(model, alone, solver, throw=False).result == kx.Result.rank_deficient


def test_f11_too_many_columns_for_the_order_are_refused():
    with pytest.raises(ValueError, match=r"ThinPlate\(order=1\) needs fewer than 2 columns, got 2: take order=2 or more"):
        kx.condition(kx.Model(kx.ThinPlate(order=1), noise=NOISE), kx.Data(X2, Y2))
    for order in (0, -1, True):
        with pytest.raises(ValueError, match=r"ThinPlate\.order must be a whole number of at least 1"):
            kx.ThinPlate(order=order)


def test_f11_there_is_no_prior_to_draw_from():
    with pytest.raises(ValueError, match="leaves polynomials free, so it has no prior to draw from"):
        kx.sample(kx.Model(1.0 * kx.CubicSpline(), noise=NOISE), X, key=jax.random.key(0))


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_f11_a_fold_that_leaves_fewer_rows_than_polynomials_has_no_answer(solver):
    """One row is left to fit a straight line to: nothing follows from it, and no number may pretend so."""
    labels = np.where(np.arange(N) == 5, 1, 0)
    c = kx.condition(kx.Model(kx.CubicSpline(), noise=NOISE), DATA, solver)
    residuals = np.asarray(kx.kfold_residuals(c, labels))
    assert residuals[5] == pytest.approx(Y[5] - Bordered(X, Y, NOISE).without([5]).mean(X[5:6])[0], rel=1e-9)
    assert np.isnan(np.delete(residuals, 5)).all()
