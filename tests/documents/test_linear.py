"""Linear learners on explicit features: ridge, least squares, leverages, the lasso (F02, F04–F06, F21, F37)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso, LinearRegression, Ridge

import kernax as kx
from kernax import learners

from ._oracles import NOISE, X, Y, Z, assert_close, monomials

DATA = kx.Data(X, Y)
QUADRATIC = learners.PolynomialFeatures(degree=2)
OUTPUTS = np.stack([Y, np.cos(X[:, 1]), 3.0 - Y**2], axis=1)

_rng = np.random.default_rng(37)
WIDE = _rng.normal(size=(6, 9))  # more columns than rows
WIDE_Y = _rng.normal(size=6)
TALL = _rng.normal(size=(24, 7)) * np.linspace(0.5, 2.0, 7)
TALL_Y = TALL @ np.array([1.5, -2.0, 0.0, 0.7, 0.0, 0.0, -0.3]) + 0.5 * _rng.normal(size=24) + 4.0


def ridge_oracle(design, y, ridge):
    """Stacked least squares: neither the primal nor the dual form."""
    q = design.shape[1]
    zeros = np.zeros((q, *y.shape[1:]))
    return np.linalg.lstsq(np.vstack([design, np.sqrt(ridge) * np.eye(q)]), np.concatenate([y, zeros]))[0]


def explicit(x):
    """Φ of `QUADRATIC`, by hand."""
    a, b = x[:, 0], x[:, 1]
    return np.stack([a, b, a**2, a * b, b**2], axis=1)


# F05: features


def test_f05_features_are_the_monomials_of_the_kernel_trick():
    """`(a·b + 1)²` is the inner product of scaled monomials; the map itself has no constant unless it is asked for."""
    assert_close(jax.vmap(QUADRATIC)(X), explicit(X), 1e-15)
    powers = jax.vmap(learners.PolynomialFeatures(3, interactions=False))(X)
    assert_close(powers, np.concatenate([X, X**2, X**3], axis=1), 1e-14)
    kernel = kx.FeatureMap(learners.PolynomialFeatures(2, constant=True))
    scaled = monomials(X)[:, [0, 1, 2, 3, 5, 4]] / np.sqrt([1.0, 2.0, 2.0, 1.0, 2.0, 1.0])
    assert_close(kernel(X), scaled @ scaled.T, 1e-14)


def test_f05_moments_are_a_sum_over_points():
    """`ΦᵀΦ = Σ φ(xᵢ)φ(xᵢ)ᵀ`, so the ridge answer solves the summed equations."""
    moments = sum(np.outer(phi, phi) for phi in explicit(X))
    fit = learners.ridge(DATA, NOISE, features=QUADRATIC, intercept=False)
    assert_close((moments + NOISE * np.eye(5)) @ fit.coefficients, explicit(X).T @ Y, 1e-12)


def test_f05_fourier_features():
    """Cosines and sines of given frequencies; random ones approach the squared exponential kernel at the rate `1/√m`."""
    frequencies = np.array([[1.0, 0.5], [0.0, 2.0], [-1.5, 0.3]])
    phases = X @ frequencies.T
    features = learners.FourierFeatures(frequencies, scale=0.7)
    assert_close(jax.vmap(features)(X), 0.7 * np.concatenate([np.cos(phases), np.sin(phases)], axis=1), 1e-14)
    random = learners.random_fourier_features(jax.random.key(0), 20_000, np.array([0.9, 1.7]))
    exact = np.asarray(kx.RBF(np.array([0.9, 1.7]))(X))
    assert np.max(np.abs(np.asarray(kx.FeatureMap(random)(X)) - exact)) < 4 / np.sqrt(20_000)


# F02, F04, F06: ridge regression


@pytest.mark.parametrize("form", [None, "primal", "dual", "saddle_point"])
@pytest.mark.parametrize(("x", "y"), [(X, Y), (WIDE, WIDE_Y)], ids=["tall", "wide"])
def test_f04_every_form_of_ridge_regression_has_one_answer(x, y, form):
    """`(ΦᵀΦ + λI)⁻¹Φᵀy = Φᵀ(ΦΦᵀ + λI)⁻¹y`, also with an intercept that is not penalised."""
    fit = learners.ridge(kx.Data(x, y), NOISE, form=form, intercept=False)
    assert_close(fit.coefficients, ridge_oracle(x, y, NOISE), 1e-12)
    assert float(fit.intercept) == 0.0
    fit = learners.ridge(kx.Data(x, y), NOISE, form=form)
    peer = Ridge(alpha=NOISE).fit(x, y)
    assert_close(fit.coefficients, peer.coef_, 1e-11)
    assert float(fit.intercept) == pytest.approx(peer.intercept_, rel=1e-11)
    assert_close(fit(x), peer.predict(x), 1e-11)
    assert fit.result == kx.Result.successful


def test_f04_the_cheaper_form_is_chosen_by_shape():
    """O(q³) against O(n³): primal for at most as many features as rows, dual for more."""
    assert learners.ridge(DATA, NOISE).form == "primal"
    assert learners.ridge(kx.Data(WIDE, WIDE_Y), NOISE).form == "dual"
    assert learners.ridge(kx.Data(WIDE[:, :6], WIDE_Y), NOISE).form == "primal"
    quartic = learners.PolynomialFeatures(degree=4)  # 14 features of 10 rows

    def flops(form):
        compiled = jax.jit(lambda x: learners.ridge(kx.Data(x, Y), NOISE, features=quartic, form=form).coefficients)
        return compiled.lower(jnp.asarray(X)).compile().cost_analysis()["flops"]

    assert learners.ridge(DATA, NOISE, features=quartic).form == "dual"
    assert flops("dual") < flops("primal")


def test_f04_the_push_through_identity():
    """`(I + AB)⁻¹A = A(I + BA)⁻¹` with `A = Φᵀ/λ`, `B = Φ`: every target's column, through both forms."""
    everything = kx.Data(WIDE, np.eye(6))
    primal = learners.ridge(everything, NOISE, form="primal", intercept=False).coefficients
    dual = learners.ridge(everything, NOISE, form="dual", intercept=False).coefficients
    A, B = WIDE.T / NOISE, WIDE
    assert_close(primal, np.linalg.solve(np.eye(9) + A @ B, A), 1e-12)
    assert_close(dual, A @ np.linalg.inv(np.eye(6) + B @ A), 1e-12)


def test_f02_the_saddle_point_form_is_kernel_ridge_regression():
    """`[[λI, Ψ], [Ψᵀ, -I]] [c; r] = [0; f]`, and its values are those of the kernel `ψ(a)·ψ(b)`."""
    fit = learners.ridge(DATA, NOISE, features=QUADRATIC, form="saddle_point", intercept=False)
    psi = explicit(X).T
    system = np.block([[NOISE * np.eye(5), psi], [psi.T, -np.eye(10)]])
    assert_close(fit.coefficients, np.linalg.solve(system, np.append(np.zeros(5), Y))[:5], 1e-12)
    kernel = kx.condition(kx.Model(kx.FeatureMap(QUADRATIC), noise=NOISE), DATA)
    assert_close(fit(Z), kx.mean(kernel, Z), 1e-11)
    plain = learners.ridge(DATA, NOISE, form="saddle_point", intercept=False)
    assert_close(plain(Z), kx.mean(kx.condition(kx.Model(kx.Linear(), noise=NOISE), DATA), Z), 1e-11)


@pytest.mark.parametrize("form", ["primal", "dual", "saddle_point"])
def test_f04_derivatives_of_every_form(form):
    """By the penalty, the targets and the inputs, twice over, against differences of the oracle."""

    def score(ridge, x, y):
        return jnp.sum(learners.ridge(kx.Data(x, y), ridge, form=form, intercept=False).coefficients ** 3)

    def oracle(ridge, x, y):
        return np.sum(ridge_oracle(x, y, ridge) ** 3)

    slopes = jax.jit(jax.grad(score, argnums=(0, 1, 2)))(NOISE, X, Y)
    steps = [(1.0, 0.0 * X, 0.0 * Y), (0.0, np.cos(X), 0.0 * Y), (0.0, 0.0 * X, np.sin(Y))]
    for step, slope in zip(steps, slopes, strict=True):
        ends = [oracle(NOISE + h * step[0], X + h * step[1], Y + h * step[2]) for h in (1e-5, -1e-5)]
        want = (ends[0] - ends[1]) / 2e-5
        move = next(s for s in step if np.any(s))
        assert float(np.sum(slope * move)) == pytest.approx(want, rel=1e-6)
    second = jax.jit(jax.grad(jax.grad(score)))(NOISE, X, Y)
    ends = [oracle(NOISE + h, X, Y) for h in (1e-3, 0.0, -1e-3)]
    assert float(second) == pytest.approx((ends[0] - 2 * ends[1] + ends[2]) / 1e-6, rel=1e-4)


def test_f06_several_outputs_are_as_many_single_fits():
    for learner in (learners.least_squares, lambda data: learners.ridge(data, NOISE)):
        fit = learner(kx.Data(X, OUTPUTS))
        singles = [learner(kx.Data(X, column)) for column in OUTPUTS.T]
        assert_close(fit.coefficients, np.stack([s.coefficients for s in singles], axis=1), 1e-13)
        assert_close(fit.intercept, np.stack([s.intercept for s in singles]), 1e-13)
        assert_close(fit(Z), np.stack([s(Z) for s in singles], axis=1), 1e-13)
    together = learners.least_squares(kx.Data(X, OUTPUTS)).loo_residuals
    assert_close(together[:, 0], learners.least_squares(kx.Data(X, Y)).loo_residuals, 1e-12)


# F21: least squares


@pytest.mark.parametrize("intercept", [True, False])
def test_f21_least_squares(intercept):
    """Against NumPy and scikit-learn; the rank counts the intercept."""
    fit = learners.least_squares(DATA, features=QUADRATIC, intercept=intercept)
    peer = LinearRegression(fit_intercept=intercept).fit(explicit(X), Y)
    assert_close(fit.coefficients, peer.coef_, 1e-11)
    assert float(fit.intercept) == pytest.approx(peer.intercept_, rel=1e-11)
    assert_close(fit(Z), peer.predict(explicit(Z)), 1e-11)
    assert_close(fit.residuals, Y - peer.predict(explicit(X)), 1e-11)
    assert int(fit.rank) == 5 + intercept
    assert fit.result == kx.Result.successful


def test_f21_least_squares_has_the_accuracy_of_qr():
    """A design of condition 1e7: normal equations would leave two digits, QR leaves nine."""
    basis = np.linalg.qr(_rng.normal(size=(10, 3)))[0]
    design = basis @ np.array([[1.0, 1.0, 0.0], [0.0, 1e-7, 0.0], [0.0, 0.0, 1.0]])
    y = design @ np.array([1.0, -2.0, 0.5])
    fit = learners.least_squares(kx.Data(design, y), intercept=False)
    np.testing.assert_allclose(fit.coefficients, [1.0, -2.0, 0.5], rtol=1e-8)


@pytest.mark.parametrize("intercept", [True, False])
def test_f21_residuals_of_m_refits(intercept):
    """`r⁽⁻ⁱ⁾ = rᵢ/(1 - ℓᵢ²)` with the squared norms of the rows of Q, which sum to the rank."""
    fit = learners.least_squares(DATA, features=QUADRATIC, intercept=intercept)
    design = np.column_stack([explicit(X), np.ones(10)]) if intercept else explicit(X)
    assert_close(fit.leverage, np.sum(np.linalg.qr(design)[0] ** 2, axis=1), 1e-12)
    assert float(np.sum(fit.leverage)) == pytest.approx(int(fit.rank), rel=1e-13)
    refits = []
    for i in range(10):
        rest = np.delete(np.arange(10), i)
        refits.append(Y[i] - design[i] @ np.linalg.lstsq(design[rest], Y[rest])[0])
    assert_close(fit.loo_residuals, refits, 1e-10)
    assert not np.any(fit.interpolated)


def test_f21_bordered_system():
    """`[[I, Φ, eᵢ], [Φᵀ, 0, 0], [eᵢᵀ, 0, 0]]`: with an error of its own row i has no say, and that error is its residual."""
    design = explicit(X)
    loo = np.asarray(learners.least_squares(DATA, features=QUADRATIC, intercept=False).loo_residuals)
    for i in range(10):
        unit = np.eye(10)[:, [i]]
        border = np.hstack([design, unit])
        system = np.block([[np.eye(10), border], [border.T, np.zeros((6, 6))]])
        solution = np.linalg.solve(system, np.append(Y, np.zeros(6)))
        rest = np.delete(np.arange(10), i)
        assert_close(solution[10:15], np.linalg.lstsq(design[rest], Y[rest])[0], 1e-9)
        assert solution[15] == pytest.approx(loo[i], rel=1e-9)


def test_f21_derivatives_of_residuals_and_coefficients():
    """First order against differences of NumPy's answer, second order against differences of the first."""

    def scores(x, y):
        fit = learners.least_squares(kx.Data(x, y), features=QUADRATIC)
        return jnp.mean(fit.loo_residuals**2) + jnp.sum(jnp.sin(fit.coefficients)) + fit.intercept**2

    def oracle(x, y):
        design = np.column_stack([explicit(x), np.ones(10)])
        weights = np.linalg.lstsq(design, y)[0]
        loo = (y - design @ weights) / (1 - np.sum(np.linalg.qr(design)[0] ** 2, axis=1))
        return np.mean(loo**2) + np.sum(np.sin(weights[:5])) + weights[5] ** 2

    way, step = (np.cos(3 * X), np.sin(5 * Y)), 1e-5
    slope = jax.jit(jax.grad(scores, argnums=(0, 1)))

    def along(h):
        return sum(np.sum(np.asarray(g) * w) for g, w in zip(slope(X + h * way[0], Y + h * way[1]), way, strict=True))

    want = (oracle(X + step * way[0], Y + step * way[1]) - oracle(X - step * way[0], Y - step * way[1])) / (2 * step)
    assert along(0.0) == pytest.approx(want, rel=1e-6)

    def line(h):
        return scores(X + h * way[0], Y + h * way[1])

    assert float(jax.jit(jax.grad(line))(0.0)) == pytest.approx(along(0.0), rel=1e-10)
    curvatures = [jax.jit(outer(inner(line)))(0.0) for outer, inner in ((jax.jacfwd, jax.grad), (jax.grad, jax.jacfwd))]
    for curvature in curvatures:
        assert float(curvature) == pytest.approx((along(1e-5) - along(-1e-5)) / 2e-5, rel=1e-5)


# F37: the lasso


def sklearn_lasso(x, y, penalty, intercept=True):
    """The documents' λ is `2n` times scikit-learn's alpha."""
    return Lasso(alpha=penalty / (2 * len(y)), fit_intercept=intercept, tol=1e-14, max_iter=1_000_000).fit(x, y)


@pytest.fixture(scope="module")
def path():
    return learners.lasso_path(kx.Data(TALL, TALL_Y), num=12)


def test_f37_the_path_is_scikit_learns(path):
    """At every penalty of the default grid: coefficients, intercepts, and the same coefficients exactly 0."""
    centred = TALL - TALL.mean(axis=0)
    top = 2 * np.max(np.abs(centred.T @ (TALL_Y - TALL_Y.mean())))
    assert_close(path.penalties, top * np.geomspace(1.0, 1e-3, 12), 1e-13)
    for i in range(12):
        peer = sklearn_lasso(TALL, TALL_Y, float(path.penalties[i]))
        np.testing.assert_allclose(path.coefficients[i], peer.coef_, atol=1e-9)
        assert float(path.intercepts[i]) == pytest.approx(peer.intercept_, abs=1e-9)
        np.testing.assert_array_equal(path.coefficients[i] == 0.0, np.abs(peer.coef_) < 1e-9)
    assert int(path.num_nonzero[0]) == 0
    assert int(path.num_nonzero[-1]) == 7
    assert np.all(path.result == kx.Result.successful)
    fit = path[4]
    assert_close(fit(TALL), TALL @ np.asarray(path.coefficients[4]) + float(path.intercepts[4]), 1e-13)


def test_f37_the_optimality_conditions_hold(path):
    """`Φᵀ(y - Φw) = (λ/2) sign(w)` where w is not 0, and no larger than `λ/2` elsewhere; the residual reports it."""
    centred = TALL - TALL.mean(axis=0)
    for penalty, weights in zip(np.asarray(path.penalties), np.asarray(path.coefficients), strict=True):
        correlations = centred.T @ (TALL_Y - TALL_Y.mean() - centred @ weights)
        on = weights != 0
        np.testing.assert_allclose(correlations[on], penalty / 2 * np.sign(weights[on]), rtol=1e-10)
        assert np.all(np.abs(correlations[~on]) <= penalty / 2 * (1 + 1e-12))
    assert np.max(path.kkt_residual) < 1e-13


def test_f37_one_penalty_is_a_point_of_the_path(path):
    data = kx.Data(TALL, TALL_Y)
    one = learners.lasso(data, float(path.penalties[5]))
    np.testing.assert_allclose(one.coefficients, path.coefficients[5], atol=1e-13)
    ends = learners.lasso_path(data, np.array([4.0, 1.0, 0.0]), intercept=False)
    for i, penalty in enumerate((4.0, 1.0)):
        peer = sklearn_lasso(TALL, TALL_Y, penalty, intercept=False)
        np.testing.assert_allclose(ends.coefficients[i], peer.coef_, atol=1e-9)
    assert_close(ends.coefficients[2], np.linalg.lstsq(TALL, TALL_Y)[0], 1e-10)


def test_f37_an_orthonormal_design_is_a_soft_threshold():
    """`w = sign(c) max(|c| - λ/2, 0)` with `c = Φᵀy`, and the others exactly 0; equal correlations included."""
    basis = np.linalg.qr(_rng.normal(size=(12, 5)))[0]
    correlations = np.array([2.0, -1.0, 0.3, 1.0, -0.05])
    fit = learners.lasso(kx.Data(basis, basis @ correlations), 1.0, intercept=False)
    want = np.sign(correlations) * np.maximum(np.abs(correlations) - 0.5, 0.0)
    np.testing.assert_allclose(fit.coefficients, want, atol=1e-14)
    np.testing.assert_array_equal(np.asarray(fit.coefficients)[[2, 4]], 0.0)


def test_f37_more_columns_than_rows():
    """The solution is unique for a generic design, and has at most as many coefficients as the rows allow."""
    path = learners.lasso_path(kx.Data(WIDE, WIDE_Y), num=8)
    for i in range(8):
        peer = sklearn_lasso(WIDE, WIDE_Y, float(path.penalties[i]))
        np.testing.assert_allclose(path.coefficients[i], peer.coef_, atol=1e-8)
    assert np.max(path.num_nonzero) <= 5


def test_f37_derivatives_by_refits():
    """By the penalty, the targets and the design, against differences of scikit-learn's refits; and in second order."""
    step, penalty = 1e-5, 6.0
    way = (0.7, np.cos(7 * TALL), np.sin(9 * TALL_Y))

    def moved(h):
        return penalty + h * way[0], TALL + h * way[1], TALL_Y + h * way[2]

    def ours(h):
        level, x, y = moved(h)
        fit = learners.lasso(kx.Data(x, y), level)
        return jnp.append(fit.coefficients, fit.intercept)

    def oracle(h):
        level, x, y = moved(h)
        peer = sklearn_lasso(x, y, level)
        return np.append(peer.coef_, peer.intercept_)

    want = (oracle(step) - oracle(-step)) / (2 * step)
    assert 0 < np.sum(want == 0.0) < 5
    forward, reverse = jax.jit(lambda h: (jax.jacfwd(ours)(h), jax.jacrev(ours)(h)))(0.0)
    np.testing.assert_allclose(forward, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reverse, forward, atol=1e-12)
    slope = jax.jit(jax.jacfwd(ours))
    second = jax.jit(jax.jacfwd(jax.jacrev(ours)))(0.0)
    np.testing.assert_allclose(second, (slope(1e-4) - slope(-1e-4)) / 2e-4, rtol=1e-5, atol=1e-6)


def test_f37_derivatives_by_a_feature_maps_parameters():
    """Through the features: the frequencies of a Fourier map."""

    def score(frequencies):
        fit = learners.lasso(DATA, 0.2, features=learners.FourierFeatures(frequencies))
        return jnp.sum(fit.coefficients**2)

    frequencies = jnp.array([[1.0, 0.5], [0.3, -1.2]])
    slope = jax.jit(jax.grad(score))(frequencies)
    way, step = np.array([[0.2, -1.0], [0.6, 0.4]]), 1e-6
    want = (score(frequencies + step * way) - score(frequencies - step * way)) / (2 * step)
    assert float(np.sum(np.asarray(slope) * way)) == pytest.approx(float(want), rel=1e-6)


# Laws of all learners

LEARNERS = {
    "least_squares": learners.least_squares,
    "ridge": lambda data: learners.ridge(data, 0.7),
    "ridge_dual": lambda data: learners.ridge(data, 0.7, form="dual"),
    "ridge_saddle_point": lambda data: learners.ridge(data, 0.7, form="saddle_point"),
    "lasso": lambda data: learners.lasso(data, 3.0),
}


@functools.cache
def gradients(name):
    """A score of the fit, the fit itself, and the score's gradient by x and y; compiled once a shape."""

    def score(x, y, mask):
        fit = LEARNERS[name](kx.Data(x, y, mask))
        return jnp.sum(jnp.sin(fit.coefficients)) + fit.intercept, fit

    return jax.value_and_grad(score, argnums=(0, 1), has_aux=True)


@functools.cache
def plain(name):
    """All of it on the 24 rows that count."""
    return jax.jit(gradients(name))(TALL, TALL_Y, np.ones(24, bool))


@pytest.mark.parametrize("name", LEARNERS)
def test_rows_behind_a_mask_change_no_value_and_no_gradient(name):
    mask = np.ones(27, bool)
    mask[[0, 10, 26]] = False
    x, y = np.full((27, 7), 1e7), np.full(27, np.nan)
    x[mask], y[mask] = TALL, TALL_Y
    (_, padded), slopes = jax.jit(gradients(name))(x, y, mask)
    (_, fit), plain_slopes = plain(name)
    assert_close(padded.coefficients, fit.coefficients, 1e-12)
    assert_close(padded.intercept, fit.intercept, 1e-12)
    for with_padding, without in zip(slopes, plain_slopes, strict=True):
        np.testing.assert_array_equal(np.asarray(with_padding)[~mask], 0.0)
        assert_close(np.asarray(with_padding)[mask], without, 1e-10)
    if name == "least_squares":
        assert_close(np.asarray(padded.loo_residuals)[mask], fit.loo_residuals, 1e-10)
        np.testing.assert_array_equal(np.asarray(padded.leverage)[~mask], 0.0)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_batch_is_the_single_case_many_times(name):
    """Values, gradients, status and predictions under `vmap`."""
    xs, ys = np.stack([TALL, TALL[::-1] ** 2, np.cos(TALL)]), np.stack([TALL_Y, TALL_Y**2, TALL_Y + 1.0])
    masks = np.ones((3, 24), bool)
    (_, fits), slopes = jax.jit(jax.vmap(gradients(name)))(xs, ys, masks)
    (_, fit), plain_slopes = plain(name)
    np.testing.assert_allclose(fits.coefficients[0], fit.coefficients, rtol=1e-10, atol=1e-13)
    for together, alone in zip(slopes, plain_slopes, strict=True):
        assert_close(together[0], alone, 1e-10)
    assert np.all(fits.result == kx.Result.successful)
    values = jax.vmap(lambda fit, x: fit(x))(fits, xs)
    assert_close(values[1], xs[1] @ np.asarray(fits.coefficients[1]) + float(fits.intercept[1]), 1e-12)


@pytest.mark.parametrize("name", LEARNERS)
def test_float32_stays_float32(name):
    single = LEARNERS[name](kx.Data(TALL.astype(np.float32), TALL_Y.astype(np.float32)))
    double = plain(name)[0][1]
    assert single.coefficients.dtype == single.intercept.dtype == single(TALL).dtype == jnp.float32
    np.testing.assert_allclose(single.coefficients, double.coefficients, atol=1e-5)
    np.testing.assert_array_equal(single.coefficients == 0.0, double.coefficients == 0.0)
