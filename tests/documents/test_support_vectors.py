"""Support vector machines: ε-insensitive regression (F38, F39) and hinge-loss classification (F40)."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.integrate
import scipy.optimize
import sklearn.svm
from sklearn.model_selection import KFold

import kernax as kx
from kernax import learners
from tests.tables import KERNELS

from ._oracles import LENGTHSCALE, VARIANCE, assert_close, rbf

_rng = np.random.default_rng(38)
N = 20
X = _rng.uniform(-2.0, 2.0, (N, 2))
Y = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * _rng.normal(size=N) + 1.0
LABELS = np.where(Y + 0.5 * _rng.normal(size=N) > 1.0, 1.0, -1.0)
Z = _rng.uniform(-2.0, 2.0, (N, 2))
Z_Y = np.sin(1.5 * Z[:, 0]) + 0.5 * Z[:, 1] + 1.0
ROWS = np.arange(N)
TAIL = ROWS >= 15

KERNEL = VARIANCE * kx.RBF([LENGTHSCALE] * 2)
K, K_Z = rbf(X, X), rbf(Z, X)
ADAM = optax.adam(0.3)
REGRESSION, CLASSES = kx.Data(X, Y), kx.Data(X, LABELS)
HELD_OUT = {"SVR": kx.Data(Z, Z_Y), "SVC": kx.Data(Z, np.where(Z_Y > 1.0, 1.0, -1.0))}


def peer(kind, K, y, C=1.0, *, epsilon=None, intercept=True, weights=None):
    """scikit-learn's α and b, to 1e-6 or so: it keeps K in single precision.

    Without an intercept: every row once more with features and target of the other sign, which makes b = 0 optimal, at half
    the C.
    """
    n = len(y)
    if not intercept:
        K, y, C = np.block([[K, -K], [-K, K]]), np.append(y, -y), C / 2
        weights = None if weights is None else np.append(weights, weights)
    options = {} if epsilon is None else {"epsilon": epsilon}
    machine = kind(kernel="precomputed", C=C, tol=1e-11, **options).fit(K, y, sample_weight=weights)
    alpha = np.zeros(len(y))
    alpha[machine.support_] = machine.dual_coef_.ravel()
    if intercept:
        return alpha, machine.intercept_[0]
    assert abs(machine.intercept_[0]) < 1e-5
    return alpha[:n] - alpha[n:], 0.0


svr_peer = functools.partial(peer, sklearn.svm.SVR)
svc_peer = functools.partial(peer, sklearn.svm.SVC)


def tube(y, values, epsilon):
    return np.maximum(np.abs(y - values) - epsilon, 0.0)


def hinge(y, values):
    return np.maximum(1.0 - y * values, 0.0)


def primal(alpha, b, C, loss, K=K):
    """`Σ C_i loss_i + ½‖f‖²`."""
    return np.sum(C * loss(K @ alpha + b)) + 0.5 * alpha @ K @ alpha


def violation(alpha, residuals, lower, upper, epsilon):
    """The largest violation of the conditions of optimality, by their definition."""
    conditions = [
        (alpha == 0) & (upper > 0) & (residuals > epsilon),
        (alpha == 0) & (lower < 0) & (residuals < -epsilon),
        (alpha > 0) & (alpha < upper),
        (alpha < 0) & (alpha > lower),
        (alpha > 0) & (alpha == upper) & (residuals < epsilon),
        (alpha < 0) & (alpha == lower) & (residuals > -epsilon),
    ]
    distances = [np.abs(residuals - epsilon), np.abs(residuals + epsilon)] * 3
    assert np.all((lower <= alpha) & (alpha <= upper))
    return np.max(np.select(conditions, distances, 0.0))


@functools.cache
def program(kind, intercept):
    """Loss on other rows (with a sum that sees all of α and b), the machine, and all slopes: one compilation for a file."""

    def score(theta, penalty, x, y, mask):
        kernel = theta[2] * kx.RBF(theta[:2])
        if kind == "SVR":
            model = learners.SVR(kernel, penalty=penalty, epsilon=theta[3], intercept=intercept)
        else:
            model = learners.SVC(kernel, penalty=penalty, intercept=intercept)
        c = kx.condition(model, kx.Data(x, y, mask))
        mix = jnp.sum(jnp.sin(c.coefficients * jnp.arange(1.0, N + 1.0))) + c.intercept**2 + c.objective
        return learners.holdout_loss(c, HELD_OUT[kind]) + 0.1 * mix, (c, c(Z))

    return score, jax.jit(jax.value_and_grad(score, argnums=(0, 1, 2, 3), has_aux=True))


def theta(epsilon=0.0):
    return np.array([LENGTHSCALE, LENGTHSCALE, VARIANCE, epsilon])


def solved(kind, C, *, epsilon=0.0, intercept=True, x=X, y=None, mask=None):
    """The machine and its values at `Z`; C is one number or one a row."""
    y = (Y if kind == "SVR" else LABELS) if y is None else y
    mask = np.ones(N, bool) if mask is None else mask
    c, values = program(kind, intercept)[1](theta(epsilon), np.full(N, 0.5 / C), x, y, mask)[0][1]
    return c, np.asarray(values)


# F38: regression


@pytest.mark.parametrize("intercept", [True, False])
def test_f38_regression_is_scikit_learns(intercept):
    """Coefficients, intercept, values at new points; the objective is no worse, and equals the dual's."""
    per_row = np.random.default_rng(2).uniform(0.2, 4.0, N)
    for C, epsilon in ((0.3, 0.3), (2.0, 0.05), (50.0, 0.2), (5.0, 0.0), (1e-3, 0.1), (per_row, 0.1)):
        c, values = solved("SVR", C, epsilon=epsilon, intercept=intercept)
        alpha, b = svr_peer(K, Y, epsilon=epsilon, intercept=intercept, weights=np.full(N, C))
        assert c.result == kx.Result.successful
        np.testing.assert_allclose(c.coefficients, alpha, atol=1e-5 * np.max(C))
        assert float(c.intercept) == pytest.approx(b, abs=1e-5)
        np.testing.assert_allclose(values, K_Z @ alpha + b, atol=1e-5)
        loss = functools.partial(tube, Y, epsilon=epsilon)
        own = primal(np.asarray(c.coefficients), float(c.intercept), C, loss)
        assert float(c.objective) == pytest.approx(own, rel=1e-12)
        assert own <= primal(alpha, b, C, loss) * (1 + 1e-12)
        assert abs(float(c.duality_gap)) <= 1e-12 * own


def test_f38_without_an_intercept_against_a_quadratic_program():
    """SciPy's SLSQP on the dual in `α = p - m`, a method of another family."""
    rows, C, epsilon = ROWS < 10, 1.5, 0.1
    gram, y = K[:10, :10], Y[:10]

    def dual(pm):
        alpha = pm[:10] - pm[10:]
        slope = gram @ alpha - y
        value = 0.5 * alpha @ gram @ alpha - y @ alpha + epsilon * np.sum(pm)
        return value, np.append(slope, -slope) + epsilon

    best = scipy.optimize.minimize(
        dual, np.zeros(20), jac=True, method="SLSQP", bounds=[(0, C)] * 20, options={"ftol": 1e-15, "maxiter": 1000}
    )
    c, _ = solved("SVR", C, epsilon=epsilon, intercept=False, mask=rows)
    np.testing.assert_allclose(c.coefficients[rows], best.x[:10] - best.x[10:], atol=1e-5)
    assert float(c.objective) == pytest.approx(-best.fun, rel=1e-9)


@pytest.mark.parametrize("intercept", [True, False])
def test_f38_where_the_coefficients_are(intercept):
    """0 strictly inside the tube, ±C strictly outside, to the bit; free ones on its edge to rounding."""
    C, epsilon = 2.0, 0.2
    c, _ = solved("SVR", C, epsilon=epsilon, intercept=intercept)
    alpha = np.asarray(c.coefficients)
    residuals = Y - K @ alpha - float(c.intercept)
    inside, outside = np.abs(residuals) < epsilon - 1e-9, np.abs(residuals) > epsilon + 1e-9
    assert inside.any()
    assert outside.any()
    np.testing.assert_array_equal(alpha[inside], 0.0)
    np.testing.assert_array_equal(alpha[outside], C * np.sign(residuals[outside]))
    np.testing.assert_array_equal(c.at_bound, outside)
    np.testing.assert_array_equal(c.support, ~inside)
    assert int(c.num_support) == np.sum(~inside)
    assert violation(alpha, residuals, -C, C, epsilon) < 1e-12
    assert float(c.kkt_residual) < 1e-12
    if intercept:
        assert abs(np.sum(alpha)) < 1e-13
    assert f"{np.sum(~inside)} of 20 rows, {np.sum(outside)} at their bound" in repr(c)


def test_f38_penalty_and_c_are_one_number():
    """`C = 1/(2λ)`, and the objective is C times that of the documents, `Σ L + λ αᵀKα`, which nothing near undercuts."""
    C, epsilon = 1.6, 0.15
    for kind in (learners.SVR, learners.SVC):
        assert float(kind(KERNEL, C=C).penalty) == pytest.approx(0.5 / C, rel=1e-15)
        assert float(kind(KERNEL, penalty=0.5 / C).C) == pytest.approx(C, rel=1e-15)
        assert float(kind(KERNEL).C) == 1.0
    c, _ = solved("SVR", C, epsilon=epsilon)
    alpha, b = np.asarray(c.coefficients), float(c.intercept)

    def of_the_documents(alpha, b):
        return np.sum(tube(Y, K @ alpha + b, epsilon)) + 0.5 / C * alpha @ K @ alpha

    best = of_the_documents(alpha, b)
    assert C * best == pytest.approx(float(c.objective), rel=1e-12)
    rng = np.random.default_rng(0)
    for size in (1e-4, 1e-2, 1.0):
        for _ in range(20):
            assert of_the_documents(alpha + size * rng.normal(size=N), b + size * rng.normal()) > best


def test_f38_wider_tubes_are_sparser():
    counts = [int(solved("SVR", 2.0, epsilon=epsilon)[0].num_support) for epsilon in (0.0, 0.1, 0.3, 0.8, 5.0)]
    assert counts[0] == N
    assert counts[-1] == 0
    assert all(a > b for a, b in itertools.pairwise(counts))


@pytest.mark.parametrize("intercept", [True, False])
def test_f38_outliers_pull_no_harder_the_further_they_are(intercept):
    """A row outside the tube may go as far as it likes: nothing else changes at all."""
    (one, near), (other, far) = (
        solved("SVR", 2.0, epsilon=0.2, intercept=intercept, y=Y + size * (ROWS == 4)) for size in (3.0, 3e4)
    )
    assert bool(one.at_bound[4])
    np.testing.assert_array_equal(other.at_bound, one.at_bound)
    np.testing.assert_array_equal(other.support, one.support)
    np.testing.assert_allclose(other.coefficients, one.coefficients, atol=1e-10)
    np.testing.assert_allclose(far, near, atol=1e-10)


# F39: the likelihood


def test_f39_the_likelihood_has_the_normaliser_of_the_documents():
    """`∫ exp(-L_ε(y - f)/(2λ)) dy = 2ε + 4λ`."""
    for epsilon, penalty, f in ((0.1, 0.5, 0.3), (1.5, 0.02, -2.0), (0.0, 2.0, 0.0)):
        model = learners.SVR(KERNEL, penalty=penalty, epsilon=epsilon)
        loss = jax.jit(lambda y, model=model, f=f: model.loss(y[None], jnp.full(1, f))[0])
        edges = (f - epsilon - 80 * penalty, f - epsilon, f + epsilon, f + epsilon + 80 * penalty)
        mass = sum(
            scipy.integrate.quad(lambda y, loss=loss, penalty=penalty: np.exp(-float(loss(y)) / (2 * penalty)), a, b)[0]
            for a, b in itertools.pairwise(edges)
        )
        assert mass == pytest.approx(2 * epsilon + 4 * penalty, rel=1e-8)


def test_f39_regression_is_the_posterior_mode():
    """`Σ log p(y | f) + log N(f; 0, K)` is concave: a maximum along every line through f is the maximum."""
    penalty, epsilon = 0.3, 0.15
    c, _ = solved("SVR", 0.5 / penalty, epsilon=epsilon, intercept=False)
    root = np.linalg.cholesky(K)

    def log_posterior(f):
        return -np.sum(tube(Y, f, epsilon)) / (2 * penalty) - 0.5 * np.sum(np.linalg.solve(root, f) ** 2)

    mode = K @ np.asarray(c.coefficients)
    rng = np.random.default_rng(1)
    for way in (*(root @ rng.normal(size=(N, 60))).T, *np.eye(N)):
        best = scipy.optimize.minimize_scalar(lambda t, way=way: -log_posterior(mode + t * way), tol=1e-10)
        assert abs(best.x) < 1e-6
        assert -best.fun <= log_posterior(mode) + 1e-11


def test_f39_there_is_no_marginal_likelihood():
    """The posterior is not Gaussian: the default objective is refused, with what to take instead."""
    with pytest.raises(TypeError, match="kfold_loss"):
        kx.fit(learners.SVR(KERNEL), REGRESSION)


# F40: classification


def test_f40_classification_is_scikit_learns():
    """Coefficients, intercept, decisions; α is 0 beyond the margin and `C y` within it, to the bit."""
    for C in (0.05, 1.0, 30.0, np.linspace(0.2, 5.0, N)):
        c, values_z = solved("SVC", C)
        alpha, b = svc_peer(K, LABELS, weights=np.full(N, C))
        np.testing.assert_allclose(c.coefficients, alpha, atol=1e-5 * np.max(C))
        assert float(c.intercept) == pytest.approx(b, abs=1e-5)
        np.testing.assert_allclose(values_z, K_Z @ alpha + b, atol=1e-5)
        own, bound = np.asarray(c.coefficients), C * LABELS
        loss, values = functools.partial(hinge, LABELS), K @ own + float(c.intercept)
        assert float(c.objective) == pytest.approx(primal(own, float(c.intercept), C, loss), rel=1e-12)
        assert float(c.objective) <= primal(alpha, b, C, loss) * (1 + 1e-12)
        assert abs(float(c.duality_gap)) <= 1e-11 * float(c.objective)
        margins = LABELS * values
        np.testing.assert_array_equal(own[margins > 1 + 1e-9], 0.0)
        np.testing.assert_allclose(own[margins < 1 - 1e-9], bound[margins < 1 - 1e-9], rtol=1e-15)
        np.testing.assert_allclose(margins[c.support & ~c.at_bound], 1.0, atol=1e-11)
        bound = np.where(c.at_bound, own, bound)
        assert violation(own, LABELS - values, np.minimum(bound, 0), np.maximum(bound, 0), 0.0) < 1e-11


def test_f40_weights():
    """Those of scikit-learn; a whole number is as many rows, and 0 is no row at all."""
    model = learners.SVC(KERNEL, C=1.3)
    weights = np.random.default_rng(3).uniform(0.1, 3.0, N)
    c = learners.support_vectors(model, CLASSES, weights=weights)
    alpha, b = svc_peer(K, LABELS, 1.3, weights=weights)
    np.testing.assert_allclose(c.coefficients, alpha, atol=1e-5)
    assert float(c.intercept) == pytest.approx(b, abs=1e-5)
    np.testing.assert_array_equal(c.classify(Z), np.where(K_Z @ alpha + b < 0, -1.0, 1.0))
    np.testing.assert_allclose(solved("SVC", 1.3 * weights)[0].coefficients, c.coefficients, atol=1e-12)

    twice = np.where(ROWS < 5, 2.0, np.where(TAIL, 0.0, 1.0))
    weighted = learners.support_vectors(model, CLASSES, weights=twice)
    again = np.where(TAIL, ROWS - 15, ROWS)
    repeated = learners.support_vectors(model, kx.Data(X[again], LABELS[again]), weights=np.ones(N))
    np.testing.assert_allclose(weighted(Z), repeated(Z), atol=1e-9)
    assert float(weighted.objective) == pytest.approx(float(repeated.objective), rel=1e-10)
    masked = learners.support_vectors(model, kx.Data(X, LABELS, ~TAIL), weights=np.where(TAIL, 9.0, twice))
    np.testing.assert_allclose(masked.coefficients, weighted.coefficients, atol=1e-13)
    np.testing.assert_array_equal(masked.coefficients[TAIL], 0.0)


def test_any_kernel():
    """Separate lengthscales, sums, products and a network: scikit-learn's answer for the Gram matrix, and slopes of all."""
    kernel = KERNELS["rbf_ard"] * KERNELS["warp"] + 0.1 * KERNELS["sum"] + KERNELS["product"]
    arrays, rest = eqx.partition(kernel, eqx.is_inexact_array)
    vector, rebuilt = jax.flatten_util.ravel_pytree(arrays)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def score(vector):
        c = kx.condition(learners.SVC(eqx.combine(rebuilt(vector), rest), C=2.0, intercept=False), CLASSES)
        return learners.holdout_loss(c, HELD_OUT["SVC"]), (c.coefficients, c.intercept)

    vector = np.asarray(vector)
    (_, (own, b)), slope = score(vector)
    gram, own = np.asarray(kernel(X)), np.asarray(own)
    alpha, _ = svc_peer(gram, LABELS, 2.0, intercept=False)
    np.testing.assert_allclose(gram @ own, gram @ alpha, atol=1e-5)
    assert violation(own, LABELS - gram @ own, np.minimum(2 * LABELS, 0), np.maximum(2 * LABELS, 0), 0.0) < 1e-9
    assert float(b) == 0.0
    for way in (np.cos(np.arange(len(vector)) + 0.3), np.sin(2.0 * np.arange(len(vector)))):
        ends = [score(vector + h * way)[0][0] for h in (1e-6, -1e-6)]
        assert float(np.sum(slope * way)) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-8)


# Derivatives


THETA = np.array([0.9, 1.2, 1.7, 0.15])
CASES = {
    "regression": ("SVR", True, THETA, 0.3),
    "regression without an intercept": ("SVR", False, THETA, 0.3),
    "classification": ("SVC", True, THETA, 0.3),
    "nothing is free": ("SVR", True, np.array([0.9, 1.2, 1.7, 0.01]), 500.0),
    "nothing pulls": ("SVR", True, np.array([0.9, 1.2, 1.7, 5.0]), 0.3),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name):
    """By every parameter, the penalties of all rows, x and y, against central differences. Where no coefficient is free,
    the intercept is the middle of the possible ones, which is scikit-learn's too."""
    kind, intercept, theta, penalty = CASES[name]
    ask, everything = program(kind, intercept)[1], np.ones(N, bool)
    here = (theta, np.full(N, penalty), X, Y if kind == "SVR" else LABELS)
    (_, (c, _)), slopes = ask(*here, everything)
    assert bool(np.any(c.support & ~c.at_bound)) != name.startswith("nothing")
    if name.startswith("nothing"):
        gram = np.asarray(c.model.kernel(X))
        assert float(c.intercept) == pytest.approx(svr_peer(gram, Y, 0.5 / penalty, epsilon=theta[3])[1], abs=1e-5)
    zeros, ways = [0.0 * part for part in here], []
    for place, way in [(0, unit) for unit in np.eye(4)] + [
        (1, np.ones(N)),
        (1, np.cos(7.0 * ROWS)),
        (2, np.cos(3 * X + 1)),
        (3, np.sin(5.0 * ROWS + 1)),
    ]:
        ways.append([way if i == place else zero for i, zero in enumerate(zeros)])
    if kind == "SVC":
        del ways[7]
    if name == "nothing is free":
        del ways[5]  # bounds that differ free a coefficient
    for way in ways:
        ends = [ask(*(p + h * w for p, w in zip(here, way, strict=True)), everything)[0][0] for h in (1e-6, -1e-6)]
        slope = sum(np.sum(np.asarray(g) * w) for g, w in zip(slopes, way, strict=True))
        assert slope == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-7)


def test_second_derivatives():
    """The Hessian times a direction of kernel and ε, against differences of the gradient."""
    score, both = program("SVR", True)
    rest, way = (np.full(N, 0.3), X, Y, np.ones(N, bool)), np.array([1.0, -0.5, 0.3, 0.2])
    slope = jax.grad(lambda theta: score(theta, *rest)[0])
    gradient, curvature = jax.jit(lambda theta: jax.jvp(slope, (theta,), (way,)))(THETA)
    assert_close(gradient, both(THETA, *rest)[1][0], 1e-11)
    ends = [np.asarray(both(THETA + h * way, *rest)[1][0]) for h in (1e-6, -1e-6)]
    assert_close(curvature, (ends[0] - ends[1]) / 2e-6, 1e-6)


@pytest.mark.parametrize("kind", ["SVR", "SVC"])
def test_masked_rows_count_for_nothing(kind):
    """Rows behind the mask may hold anything: values and slopes are those of the other rows alone."""
    y = Y if kind == "SVR" else LABELS
    alpha, b = svr_peer(K[:15, :15], y[:15], 2.0, epsilon=0.1) if kind == "SVR" else svc_peer(K[:15, :15], y[:15], 2.0)
    ask = functools.partial(program(kind, True)[1], theta(0.1), np.full(N, 0.25))
    (value, (c, _)), slopes = ask(X, y, ~TAIL)
    (same, (garbage, _)), others = ask(np.where(TAIL[:, None], np.nan, X), np.where(TAIL, np.inf, y), ~TAIL)
    np.testing.assert_allclose(c.coefficients, np.append(alpha, np.zeros(5)), atol=1e-5)
    assert float(c.intercept) == pytest.approx(b, abs=1e-5)
    assert float(same) == float(value)
    np.testing.assert_array_equal(garbage.coefficients, c.coefficients)
    for slope, other in zip(slopes, others, strict=True):
        assert np.all(np.isfinite(slope))
        np.testing.assert_allclose(other, slope, atol=1e-12)
    for slope in slopes[1:]:
        np.testing.assert_array_equal(slope[TAIL], 0.0)


# Selection by losses on rows left out


def test_fitting_by_rows_left_out():
    """`kfold_loss` is the squares of scikit-learn's refits, `holdout_loss` those of new rows, and `fit` lowers both."""
    others = HELD_OUT["SVR"]

    def objective(c):
        return functools.partial(learners.kfold_loss, folds=3)(c) + learners.holdout_loss(c, others)

    fit = kx.fit(learners.SVR(KERNEL, C=0.2, epsilon=0.4), REGRESSION, objective=objective, optimiser=ADAM, max_steps=12)
    _, values = solved("SVR", 0.2, epsilon=0.4)
    folds = []
    for train, test in KFold(3).split(X):
        alpha, b = svr_peer(K[np.ix_(train, train)], Y[train], 0.2, epsilon=0.4)
        folds.append(np.mean((Y[test] - K[np.ix_(test, train)] @ alpha - b) ** 2))
    assert float(fit.history[0]) == pytest.approx(np.mean(folds) + np.mean((Z_Y - values) ** 2), rel=1e-5)
    assert float(fit.value) < 0.8 * float(fit.history[0])


def test_losses_of_other_rows():
    """Regression counts squares, classification its hinges, or what is asked for; masked rows do not count."""
    c, values = solved("SVR", 1.0, epsilon=0.1)
    some = kx.Data(Z, Z_Y, ~TAIL)
    assert float(learners.holdout_loss(c, some)) == pytest.approx(np.mean((Z_Y - values)[~TAIL] ** 2), rel=1e-12)
    absolute = learners.holdout_loss(c, some, loss=lambda y, f: jnp.abs(y - f))
    assert float(absolute) == pytest.approx(np.mean(np.abs(Z_Y - values)[~TAIL]), rel=1e-12)
    c, values = solved("SVC", 1.0)
    others = HELD_OUT["SVC"]
    assert float(learners.holdout_loss(c, others)) == pytest.approx(np.mean(hinge(np.asarray(others.y), values)), rel=1e-12)
    for ask in (learners.holdout_loss, learners.kfold_loss):
        with pytest.raises(TypeError, match=r"kx\.condition"):
            ask(c.model, others)


# Transformations


def test_h41_one_compilation_for_all_numbers():
    """After every test above: whatever C, ε, mask and data, each machine was compiled once."""
    for kind, intercept in (("SVR", True), ("SVC", True)):
        solved(kind, 0.7)
        solved(kind, 70.0, mask=TAIL, x=X + 1.0)
        assert program(kind, intercept)[1]._cache_size() == 1


def test_many_machines_are_single_ones():
    many = kx.fitting.condition_many(learners.SVR(KERNEL, C=2.0, epsilon=0.1), [REGRESSION, kx.Data(X, Y**2)])
    for own, y in zip(many, (Y, Y**2), strict=True):
        single, _ = solved("SVR", 2.0, epsilon=0.1, y=y)
        np.testing.assert_allclose(own.coefficients, single.coefficients, rtol=0, atol=1e-12)
        np.testing.assert_allclose(own.intercept, single.intercept, rtol=0, atol=1e-12)
