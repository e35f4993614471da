"""Choosing the ridge: folds, discrepancy, L-curve, and the whole path from one eigendecomposition (F27–F31)."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneOut, cross_val_score

import kernax as kx

from ._oracles import assert_close, finite_differences, refits_without_each

N = 12
_rng = np.random.default_rng(2)
X = np.sort(_rng.uniform(-2.0, 2.0, N))[:, None]
Y = np.sin(2.0 * X[:, 0]) + 0.35 * _rng.standard_normal(N)
TWO = np.stack([Y, np.cos(3.0 * X[:, 0]) + 0.2 * _rng.standard_normal(N)], axis=1)
SIGMA2 = 0.1
GRID = np.array([0.0, 0.001, 0.01, 0.1, 0.5, 1.0])  # document 001
LABELS = np.array([3, 0, 0, 7, 3, 3, 7, 0, 3, 3, 0, -1])  # folds of 5, 4, 2 and 1 rows
R = np.abs(X - X.T)

ROUGH, SMOOTH = kx.Matern12(0.8), 1.0 * kx.Matern52(1.0)
K_ROUGH = np.exp(-R / 0.8)  # definite without a ridge
K_SMOOTH = (1.0 + np.sqrt(5.0) * R + 5.0 * R**2 / 3.0) * np.exp(-np.sqrt(5.0) * R)
DATA = kx.Data(X, Y)
EIGH = kx.Eigh()


def refit(K, y, ridge):
    """Everything about kernel ridge regression with this ridge, the long way."""
    n, system = len(y), K + ridge * np.eye(len(y))
    hat = np.linalg.solve(system, K).T
    alpha = np.linalg.solve(system, y)
    residual = y - hat @ y
    left_out, _ = refits_without_each(K, y, ridge)
    columns = y.reshape(n, -1)
    # (y - Hy)/(n - tr H) keeps its digits at ridge 0, where both vanish, as alpha/tr(K̃⁻¹).
    quotient = np.sum(alpha**2) / columns.shape[1] / np.trace(np.linalg.inv(system)) ** 2
    return {
        "alpha": alpha,
        "fitted": K @ alpha,
        "residual_norm": np.linalg.norm(residual, axis=0),
        "rkhs_norm": np.sqrt(np.sum(alpha * (K @ alpha), axis=0)),
        "effective_degrees_of_freedom": np.trace(hat),
        "loo_residuals": left_out,
        "loo_mse": np.mean(left_out**2),
        "gcv": n * quotient,
        "log_marginal_likelihood": -0.5
        * (
            np.sum(columns * np.linalg.solve(system, columns))
            + columns.shape[1] * (np.linalg.slogdet(system)[1] + n * np.log(2 * np.pi))
        ),
    }


def fold_refits(K, y, ridge, labels):
    """The residual at every row of the fit to the rows with other labels: one refit a fold."""
    residuals = np.full(y.shape, np.nan)
    for label in np.unique(labels):
        out, rest = np.flatnonzero(labels == label), np.flatnonzero(labels != label)
        alpha = np.linalg.solve(K[np.ix_(rest, rest)] + ridge * np.eye(len(rest)), y[rest])
        residuals[out] = y[out] - K[np.ix_(out, rest)] @ alpha
    return residuals


def fold_scores(K, y, ridge, labels):
    squares = fold_refits(K, y, ridge, labels) ** 2
    return np.array([np.mean(squares[labels == label]) for label in np.unique(labels)])


def consecutive(number):
    """scikit-learn's folds as labels."""
    labels = np.empty(N, int)
    for label, (_, out) in enumerate(KFold(number).split(X)):
        labels[out] = label
    return labels


def lowest(function, low=1e-5, high=30.0):
    """The ridge at which a smooth criterion is lowest: the root of its slope on a logarithmic axis."""

    def slope(t, h=1e-3):
        near, far = (function(np.exp(t + s)) - function(np.exp(t - s)) for s in (h, 2 * h))
        return (8 * near - far) / (12 * h)

    places = np.linspace(np.log(low), np.log(high), 120)
    best = np.argmin([function(np.exp(t)) for t in places])
    return np.exp(scipy.optimize.brentq(slope, places[best - 1], places[best + 1], xtol=1e-13))


@pytest.fixture(scope="module")
def rough():
    return kx.condition(kx.Model(ROUGH, noise=0.2), DATA, EIGH)


@pytest.fixture(scope="module")
def smooth():
    return kx.condition(kx.Model(SMOOTH, noise=SIGMA2), DATA, EIGH)


# F31: the whole path


@pytest.mark.parametrize("case", ["one output", "two outputs around a mean", "masked"])
def test_f31_the_path_is_its_refits(case):
    """`α(λ) = V(Λ + λ)⁻¹Vᵀ(y - μ)` at every ridge, 0 among them, with all that follows from it."""
    y, level, rows = Y, np.zeros(N), np.arange(N)
    if case == "one output":
        c = kx.condition(kx.Model(ROUGH, noise=0.2), DATA, EIGH)
    elif case == "two outputs around a mean":
        y, level = TWO, (0.4 * X - 1.1)
        mean = kx.means.Linear(np.array([0.4]), -1.1)
        c = kx.condition(kx.Model(ROUGH, noise=0.2, mean=mean), kx.Data(X, TWO), EIGH)
    else:
        rows = np.array([1, 2, 4, 5, 6, 8, 9, 11])
        mask = np.isin(np.arange(N), rows)
        garbage = np.where(mask, Y, np.nan)
        c = kx.condition(kx.Model(ROUGH, noise=0.2), kx.Data(np.where(mask[:, None], X, 1e30), garbage, mask), EIGH)
    path = kx.ridge_path(c, GRID)
    K = K_ROUGH[np.ix_(rows, rows)]
    target = (y - level)[rows]
    assert np.all(path.result == kx.Result.successful)
    np.testing.assert_array_equal(path.jitter, 0.0)
    np.testing.assert_array_equal(path.ridges, GRID)
    for i, ridge in enumerate(GRID):
        want = refit(K, target, ridge)
        want["fitted"] = want["fitted"] + level[rows]
        for name, expected in want.items():
            got = np.asarray(getattr(path, name)[i])
            if name in ("alpha", "fitted", "loo_residuals"):
                others = np.delete(np.arange(N), rows)
                np.testing.assert_allclose(got[others], 0.0, atol=1e-14)
                got = got[rows]
            if name == "residual_norm" and ridge == 0:
                np.testing.assert_array_equal(got, 0.0)
            else:
                assert_close(got, expected, 1e-9)


def test_f31_the_path_takes_ridges_in_any_order(rough):
    order = np.array([3, 0, 5, 1, 4, 2])
    straight, mixed = kx.ridge_path(rough, GRID), kx.ridge_path(rough, GRID[order])
    np.testing.assert_allclose(mixed.alpha, np.asarray(straight.alpha)[order], rtol=1e-13)
    np.testing.assert_allclose(mixed.gcv, np.asarray(straight.gcv)[order], rtol=1e-13)


def test_f31_the_default_grid_spans_interpolation_to_the_constant(rough):
    ridges = np.asarray(kx.selection.default_ridges(rough, 6))
    top = np.linalg.eigvalsh(K_ROUGH)[-1]
    np.testing.assert_allclose(ridges, np.geomspace(1e-10 * top, 10 * top, 6), rtol=1e-12)


def test_f31_the_path_does_not_depend_on_the_noise_it_started_from(rough):
    other = kx.ridge_path(kx.condition(kx.Model(ROUGH, noise=7.0), DATA, EIGH), GRID)
    np.testing.assert_allclose(other.alpha, kx.ridge_path(rough, GRID).alpha, rtol=1e-12)


def test_f31_leave_one_out_of_the_path_is_that_of_scikit_learn(rough):
    path = kx.ridge_path(rough, GRID)
    for ridge, score in zip(GRID, path.loo_mse, strict=True):
        peer = KernelRidge(alpha=ridge, kernel="laplacian", gamma=1 / 0.8)
        want = -np.mean(cross_val_score(peer, X, Y, cv=LeaveOneOut(), scoring="neg_mean_squared_error"))
        assert score == pytest.approx(want, rel=1e-9)


# F27: folds


@pytest.mark.parametrize("solver", [kx.Cholesky(), EIGH], ids=repr)
@pytest.mark.parametrize("folds", [5, "labels"])
def test_f27_fold_residuals_are_those_of_refits(solver, folds):
    """`r_S = ([K̃⁻¹]_SS)⁻¹ α_S`, for folds of equal or unequal size."""
    labels = LABELS if folds == "labels" else consecutive(folds)
    asked = LABELS if folds == "labels" else folds
    c = kx.condition(kx.Model(ROUGH, noise=0.2), DATA, solver)
    assert_close(kx.kfold_residuals(c, asked), fold_refits(K_ROUGH, Y, 0.2, labels))
    scores = fold_scores(K_ROUGH, Y, 0.2, labels)
    assert_close(kx.selection.fold_mse(c, asked), scores)
    assert_close(kx.kfold_mse(c, asked), np.mean(scores))


def test_f27_n_folds_are_leave_one_out(rough):
    assert_close(kx.kfold_residuals(rough, N), kx.loo_residuals(rough), 1e-12)


@pytest.mark.parametrize("solver", [kx.Cholesky(), EIGH], ids=repr)
def test_f27_fold_residuals_of_several_outputs_without_ridge(solver):
    c = kx.condition(kx.Model(ROUGH, noise=0.0), kx.Data(X, TWO), solver)
    residuals, scores = eqx.filter_jit(lambda c: (kx.kfold_residuals(c, LABELS), kx.selection.fold_mse(c, LABELS)))(c)
    assert_close(residuals, fold_refits(K_ROUGH, TWO, 0.0, LABELS), 1e-9)
    assert_close(scores, fold_scores(K_ROUGH, TWO, 0.0, LABELS), 1e-9)


def test_f27_padding_moves_no_row_to_another_fold():
    """Folds are cut among the rows that count, wherever padding stands; a fold may lose all its rows."""
    rows = np.array([1, 2, 4, 5, 6, 8, 9])
    mask = np.isin(np.arange(N), rows)
    c = kx.condition(kx.Model(ROUGH, noise=0.2), kx.Data(X, np.where(mask, Y, np.inf), mask), EIGH)
    K, y = K_ROUGH[np.ix_(rows, rows)], Y[rows]
    labels = np.repeat([0, 1, 2], [3, 2, 2])
    residuals = np.asarray(kx.kfold_residuals(c, 3))
    assert_close(residuals[rows], fold_refits(K, y, 0.2, labels))
    np.testing.assert_array_equal(residuals[~mask], 0.0)
    assert_close(kx.selection.fold_mse(c, 3), fold_scores(K, y, 0.2, labels))
    # Label -1 belongs to the last row only, which is masked.
    assert_close(np.asarray(kx.kfold_residuals(c, LABELS))[rows], fold_refits(K, y, 0.2, LABELS[rows]))
    scores = np.asarray(kx.selection.fold_mse(c, LABELS))
    assert np.isnan(scores[0])
    assert_close(scores[1:], fold_scores(K, y, 0.2, LABELS[rows]))
    assert_close(kx.kfold_mse(c, LABELS), np.mean(scores[1:]))


def test_f27_a_key_shuffles_the_folds():
    """Six rows in three random pairs: the residuals are those of refits for exactly one of the 15 ways to pair them."""
    rows = np.array([0, 2, 3, 6, 9, 10])
    mask = np.isin(np.arange(N), rows)
    c = kx.condition(kx.Model(ROUGH, noise=0.2), kx.Data(X, Y, mask), EIGH)
    K, y = K_ROUGH[np.ix_(rows, rows)], Y[rows]
    pairings = {labels for labels in itertools.permutations([0, 0, 1, 1, 2, 2]) if list(dict.fromkeys(labels)) == [0, 1, 2]}
    assert len(pairings) == 15
    refits = {labels: fold_refits(K, y, 0.2, np.array(labels)) for labels in pairings}
    drawn = []
    for seed in range(6):
        residuals = np.asarray(kx.kfold_residuals(c, 3, key=jax.random.key(seed)))[rows]
        match = [labels for labels, want in refits.items() if np.allclose(residuals, want, rtol=1e-9)]
        assert len(match) == 1
        drawn += match
    assert len(set(drawn)) > 2
    again = np.asarray(kx.kfold_residuals(c, 3, key=jax.random.key(0)))[rows]
    assert_close(again, refits[drawn[0]])


def test_f27_a_key_draws_the_same_folds_whatever_the_padding():
    key, count = jax.random.key(1), 7
    answers = []
    for rows in (np.arange(count), np.array([0, 3, 5, 6, 8, 9, 11])):
        x, y, mask = np.full((N, 1), 55.0), np.full(N, 1e9), np.isin(np.arange(N), rows)
        x[rows], y[rows] = X[:count], Y[:count]
        c = kx.condition(kx.Model(ROUGH, noise=0.2), kx.Data(x, y, mask), EIGH)
        answers.append(np.asarray(kx.kfold_residuals(c, 3, key=key))[rows])
    assert_close(answers[0], answers[1], 1e-13)
    assert not np.allclose(answers[0], fold_refits(K_ROUGH[:count, :count], Y[:count], 0.2, np.repeat([0, 1, 2], [3, 2, 2])))


@pytest.mark.parametrize("solver", [kx.Cholesky(), EIGH], ids=repr)
def test_f27_gradient_of_the_score(solver):
    def score(theta):
        model = kx.Model(kx.Matern12(theta[0]), noise=theta[1])
        return kx.kfold_mse(kx.condition(model, DATA, solver), LABELS)

    def refits(theta):
        return np.mean(fold_scores(np.exp(-R / theta[0]), Y, theta[1], LABELS))

    value, slope = jax.jit(jax.value_and_grad(score))(jnp.array([0.8, 0.2]))
    assert_close(value, refits([0.8, 0.2]))
    assert_close(slope, finite_differences(refits, (0.8, 0.2)), 1e-8)


def test_f27_the_score_is_an_objective():
    model = kx.Model(1.0 * kx.Matern12(0.1), noise=3.0)
    fit = kx.fit(model, DATA, objective=functools.partial(kx.kfold_mse, folds=4), max_steps=30, throw=False)
    fitted = fit.model.kernel
    K = float(fitted.variance) * np.exp(-R / float(fitted.kernel.lengthscale))
    want = np.mean(fold_scores(K, Y, float(fit.model.noise), consecutive(4)))
    assert fit.value == pytest.approx(want, rel=1e-8)
    assert want < 0.6 * np.mean(fold_scores(np.exp(-R / 0.1), Y, 3.0, consecutive(4)))


@pytest.mark.parametrize("folds", [4, "labels"])
def test_f27_both_rules_on_the_grid(rough, folds):
    """The ridge with the best mean score, and the mean of each fold's best ridge; 0 is on the grid."""
    labels = LABELS if folds == "labels" else consecutive(folds)
    path = kx.ridge_path(rough, GRID, folds=LABELS if folds == "labels" else folds)
    scores = np.stack([fold_scores(K_ROUGH, Y, ridge, labels) for ridge in GRID])
    assert_close(path.fold_mse, scores, 1e-9)
    assert_close(path.kfold_mse, scores.mean(axis=1), 1e-9)
    assert path.best_mean_score() == GRID[np.argmin(scores.mean(axis=1))]
    assert path.mean_of_best() == pytest.approx(np.mean(GRID[np.argmin(scores, axis=0)]), rel=1e-14)
    assert path.best_mean_score() != path.mean_of_best()


def test_f27_the_best_mean_score_is_that_of_scikit_learn(rough):
    peer = GridSearchCV(
        KernelRidge(kernel="laplacian", gamma=1 / 0.8), {"alpha": GRID}, cv=KFold(4), scoring="neg_mean_squared_error"
    ).fit(X, Y)
    path = kx.ridge_path(rough, GRID, folds=4)
    assert path.best_mean_score() == peer.best_params_["alpha"]
    assert_close(path.kfold_mse, -peer.cv_results_["mean_test_score"], 1e-9)


def test_f27_a_path_without_folds_says_so(rough):
    with pytest.raises(ValueError, match=r"ridge_path\(c, ridges, folds=10\)"):
        kx.ridge_path(rough, GRID).best_mean_score()


@pytest.mark.parametrize("rule", ["best_mean_score", "mean_of_best"])
def test_f27_the_ridge_between_grid_points(rule):
    """Both rules again, with each minimum looked for on the whole axis."""
    labels = consecutive(3)
    choice = kx.select_ridge(kx.Model(SMOOTH, noise=1.0), DATA, "kfold", folds=3, rule=rule, throw=False)
    if rule == "best_mean_score":
        want = lowest(lambda ridge: np.mean(fold_scores(K_SMOOTH, Y, ridge, labels)))
        assert choice.result == kx.Result.successful
    else:
        top = np.linalg.eigvalsh(K_SMOOTH)[-1]
        ends = np.array([1e-10, 10.0]) * top
        best, inside = [], True
        for fold in range(3):
            here = lambda ridge, fold=fold: fold_scores(K_SMOOTH, Y, ridge, labels)[fold]  # noqa: E731
            grid = np.geomspace(*ends, 50)
            where = np.argmin([here(ridge) for ridge in grid])
            inside &= 0 < where < 49
            best.append(lowest(here, *ends) if 0 < where < 49 else grid[where])
        want = np.mean(best)
        assert (choice.result == kx.Result.successful) == inside
    assert choice.ridge == pytest.approx(want, rel=1e-6)
    assert choice.value == pytest.approx(np.mean(fold_scores(K_SMOOTH, Y, want, labels)), rel=1e-9)
    assert choice.model.noise == choice.ridge


# F28: the discrepancy principle


def mean_squared_residual(ridge, K=K_SMOOTH, y=Y):
    return np.mean((ridge * np.linalg.solve(K + ridge * np.eye(len(y)), y)) ** 2)


@pytest.mark.parametrize("variance", [1e-3, 0.1, 0.4])
def test_f28_the_residual_is_as_large_as_the_noise(smooth, variance):
    found = kx.discrepancy(smooth, variance)
    want = scipy.optimize.brentq(lambda t: np.log(mean_squared_residual(np.exp(t)) / variance), -20, 10, xtol=1e-14)
    assert found.result == kx.Result.successful
    assert found.ridge == pytest.approx(np.exp(want), rel=1e-9)


def test_f28_with_several_outputs_the_mean_is_over_them():
    c = kx.condition(kx.Model(SMOOTH, noise=SIGMA2), kx.Data(X, TWO), EIGH)
    want = scipy.optimize.brentq(lambda t: mean_squared_residual(np.exp(t), y=TWO) - SIGMA2, -20, 10, xtol=1e-14)
    assert kx.discrepancy(c, SIGMA2).ridge == pytest.approx(np.exp(want), rel=1e-9)


def test_f28_the_default_is_the_models_own_noise(smooth):
    choice = kx.select_ridge(kx.Model(SMOOTH, noise=SIGMA2), DATA, "discrepancy")
    assert choice.ridge == pytest.approx(float(kx.discrepancy(smooth, SIGMA2).ridge), rel=1e-12)
    assert choice.value == pytest.approx(SIGMA2, rel=1e-10)
    np.testing.assert_allclose(choice.values, [mean_squared_residual(ridge) for ridge in choice.ridges], rtol=1e-5)
    assert np.all(np.diff(choice.values) > 0)
    other = kx.select_ridge(kx.Model(SMOOTH, noise=3.0), DATA, "discrepancy", noise_variance=SIGMA2)
    assert other.ridge == pytest.approx(float(choice.ridge), rel=1e-12)


def test_f28_no_root_above_the_size_of_the_targets(smooth):
    """A root exists only if `nσ² < ‖y‖²`."""
    limit = np.mean(Y**2)
    assert kx.discrepancy(smooth, limit * (1 - 1e-6)).result == kx.Result.successful
    for variance in (limit * (1 + 1e-9), 2 * limit):
        with pytest.raises(kx.FailedError, match=r"^the discrepancy principle failed\. no_root: .*throw=False"):
            kx.discrepancy(smooth, variance)
        found = kx.discrepancy(smooth, variance, throw=False)
        assert found.result == kx.Result.no_root
        assert np.isnan(found.ridge)
    with pytest.raises(kx.FailedError, match="no_root"):
        kx.select_ridge(kx.Model(SMOOTH, noise=2 * limit), DATA, "discrepancy")


def test_f28_no_root_is_a_status_where_values_are_traced(smooth):
    variances = jnp.array([0.1, 0.4, 2.0])
    found = jax.jit(jax.vmap(lambda variance: kx.discrepancy(smooth, variance)))(variances)
    np.testing.assert_array_equal(found.result == kx.Result.no_root, [False, False, True])
    np.testing.assert_array_equal(np.isnan(found.ridge), [False, False, True])
    for i in range(2):
        assert found.ridge[i] == pytest.approx(float(kx.discrepancy(smooth, variances[i]).ridge), rel=1e-10)


def test_f28_no_root_below_what_the_kernel_can_reach():
    """A linear kernel leaves a residual even at ridge 0."""
    c = kx.condition(kx.Model(kx.Linear(), noise=0.1), DATA, EIGH)
    least = np.mean((Y - X[:, 0] * (X[:, 0] @ Y) / np.sum(X**2)) ** 2)
    assert kx.discrepancy(c, 1.01 * least).result == kx.Result.successful
    assert kx.discrepancy(c, 0.99 * least, throw=False).result == kx.Result.no_root


# F29: the L-curve


def l_curve_point(t, K=K_SMOOTH, y=Y):
    alpha = np.linalg.solve(K + np.exp(t) * np.eye(len(y)), y)
    return np.array([t + np.log(np.linalg.norm(alpha)), 0.5 * np.log(np.sum(alpha * (K @ alpha)))])


def l_curve_curvature(t, h=3e-3):
    """Of the curve in `t = log λ`, by five-point differences."""
    p = [l_curve_point(t + i * h) for i in (-2, -1, 0, 1, 2)]
    first = (8 * (p[3] - p[1]) - (p[4] - p[0])) / (12 * h)
    second = (16 * (p[3] + p[1]) - (p[4] + p[0]) - 30 * p[2]) / (12 * h**2)
    return (first[0] * second[1] - first[1] * second[0]) / np.hypot(*first) ** 3


class Given(kx.AbstractKernel):
    """A kernel known by its Gram matrix: the inputs are row numbers."""

    matrix: jax.Array = kx.parameters.real()

    def pair(self, a, b):
        return self.matrix[a[0].astype(int), b[0].astype(int)]


def given(matrix, y=Y):
    return kx.condition(kx.Model(Given(matrix), noise=0.1), kx.Data(np.arange(float(N))[:, None], y), EIGH)


RIDGES = np.geomspace(1e-4, 10.0, 40)


def test_f29_points_curvature_and_corner():
    """`‖y - f̂_X‖ = λ‖α‖`, both norms monotone; the corner is where a fine grid's curvature is largest."""
    curve = kx.l_curve(given(K_SMOOTH), RIDGES)
    want = np.stack([l_curve_point(np.log(ridge)) for ridge in RIDGES])
    assert_close(curve.log_residual_norm, want[:, 0], 1e-10)
    assert_close(curve.log_rkhs_norm, want[:, 1], 1e-10)
    assert np.all(np.diff(curve.log_residual_norm) > 0)
    assert np.all(np.diff(curve.log_rkhs_norm) < 0)
    assert_close(curve.curvature, [l_curve_curvature(np.log(ridge)) for ridge in RIDGES], 1e-6)
    fine = np.linspace(np.log(1e-4), np.log(10.0), 4001)
    heights = [l_curve_curvature(t) for t in fine]
    assert curve.result == kx.Result.successful
    assert np.log(curve.corner) == pytest.approx(fine[np.argmax(heights)], abs=2 * (fine[1] - fine[0]))
    assert curve.corner_curvature == pytest.approx(np.max(heights), rel=1e-6)
    assert curve.corner_curvature >= np.max(curve.curvature)
    assert_close(curve.corner_point, l_curve_point(np.log(curve.corner)), 1e-10)


def test_f29_the_corner_is_the_choice():
    choice = kx.select_ridge(kx.Model(SMOOTH, noise=0.5), DATA, "l_curve")
    curve = kx.l_curve(given(K_SMOOTH), RIDGES)
    assert choice.ridge == pytest.approx(float(curve.corner), rel=1e-7)
    assert choice.value == pytest.approx(float(curve.corner_curvature), rel=1e-9)


def test_f29_a_known_corner():
    """Signal a on the eigenvalue μ₁ and noise b on μ₂ with `b/a = (μ₂/μ₁)^¼`: `λ → μ₁μ₂/λ` then exchanges the two norms up
    to a factor, so the curve is its own mirror image, with its corner at `λ = √(μ₁μ₂)`."""
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((N, 2)))[0]
    big, small, signal = 4.0, 4e-4, 3.0
    noise = signal * (small / big) ** 0.25
    c = given(vectors * [big, small] @ vectors.T, vectors @ np.array([signal, noise]))
    curve = kx.l_curve(c, RIDGES)
    assert curve.corner == pytest.approx(np.sqrt(big * small), rel=1e-6)


@pytest.mark.parametrize("matrix", [np.eye(N), np.ones((N, N))], ids=["identity", "constant"])
def test_f29_no_corner(matrix):
    """For K = I the curve is `exp(x) + exp(y) = ‖y‖`, which bends away everywhere; a constant has nothing to trade."""
    c = given(matrix)
    with pytest.raises(kx.FailedError, match=r"corner failed\. no_corner: .*throw=False"):
        kx.l_curve(c, RIDGES)
    curve = kx.l_curve(c, RIDGES, throw=False)
    assert curve.result == kx.Result.no_corner
    assert np.isnan(curve.corner)
    assert np.isnan(curve.corner_point).all()


def test_f29_no_corner_is_a_status_where_values_are_traced():
    matrices = np.stack([K_SMOOTH, np.eye(N)])
    curve = jax.jit(jax.vmap(lambda matrix: kx.l_curve(given(matrix), RIDGES)))(matrices)
    np.testing.assert_array_equal(curve.result == kx.Result.no_corner, [False, True])
    np.testing.assert_array_equal(np.isnan(curve.corner), [False, True])


# F30: what cannot be told apart


def test_f30_only_the_ratio_of_ridge_and_variance_counts(smooth):
    """Twice the kernel with twice the ridge: the same function, the same leave-one-out and GCV; only the likelihood sees."""
    twice = kx.condition(kx.Model(2.0 * kx.Matern52(1.0), noise=2 * SIGMA2), DATA, EIGH)
    x_new = np.linspace(-3.0, 3.0, 7)[:, None]
    assert_close(kx.mean(twice, x_new), kx.mean(smooth, x_new), 1e-12)
    quantities = (kx.loo_residuals, kx.gcv, kx.selection.effective_degrees_of_freedom, kx.kfold_mse, kx.kfold_residuals)
    all_of_them = eqx.filter_jit(lambda c: [quantity(c) for quantity in quantities])
    for got, want in zip(all_of_them(twice), all_of_them(smooth), strict=True):
        assert_close(got, want, 1e-12)
    # Each of the n standard deviations is √2 times as large.
    want = 0.25 * Y @ np.linalg.solve(K_SMOOTH + SIGMA2 * np.eye(N), Y) - 0.5 * N * np.log(2.0)
    assert abs(want) > 0.1
    assert kx.log_marginal_likelihood(twice) - kx.log_marginal_likelihood(smooth) == pytest.approx(want, rel=1e-10)


@pytest.mark.parametrize("by", ["loo", "gcv", "kfold", "discrepancy", "l_curve", "likelihood"])
def test_f30_the_chosen_ridge_scales_with_the_variance(by):
    single, double = (
        kx.select_ridge(kx.Model(variance * kx.Matern52(1.0), noise=SIGMA2), DATA, by, folds=3, noise_variance=0.1)
        for variance in (1.0, 2.0)
    )
    if by == "likelihood":
        assert double.ridge != pytest.approx(2 * float(single.ridge), rel=1e-2)
    else:
        # The corner is a maximum of a quotient of third derivatives; the others are simpler.
        assert double.ridge == pytest.approx(2 * float(single.ridge), rel=1e-6 if by == "l_curve" else 1e-8)


# One call for all


@pytest.mark.parametrize("by", ["loo", "gcv", "likelihood"])
def test_f31_the_chosen_ridge_is_the_lowest_of_refits(by):
    name = {"loo": "loo_mse", "gcv": "gcv", "likelihood": "log_marginal_likelihood"}[by]
    sign = -1.0 if by == "likelihood" else 1.0

    def criterion(ridge):
        return sign * refit(K_SMOOTH, Y, ridge)[name]

    choice = kx.select_ridge(kx.Model(SMOOTH, noise=5.0), DATA, by)
    want = lowest(criterion)
    assert choice.result == kx.Result.successful
    assert choice.by == by
    assert choice.ridge == pytest.approx(want, rel=1e-6)
    assert choice.value == pytest.approx(criterion(want), rel=1e-10)
    assert choice.value <= np.min(choice.values)
    middle = [10, 30, 45]
    assert_close(choice.values[np.array(middle)], [criterion(float(choice.ridges[i])) for i in middle], 1e-6)
    assert_close(choice.conditioned.alpha, refit(K_SMOOTH, Y, want)["alpha"], 1e-6)
    assert choice.model.noise == choice.ridge


def test_f31_a_grid_that_is_too_narrow_is_said():
    """The end is returned as it is, with a status, not an exception."""
    model = kx.Model(SMOOTH, noise=5.0)
    best = float(kx.select_ridge(model, DATA, "gcv").ridge)
    for ridges, end in ((np.geomspace(3, 30, 5) * best, 3 * best), (np.geomspace(0.3, 0.003, 5) * best, 0.3 * best)):
        choice = kx.select_ridge(model, DATA, "gcv", ridges=ridges)
        assert choice.result == kx.Result.at_edge
        assert choice.ridge == pytest.approx(end, rel=1e-12)
        assert choice.value == pytest.approx(refit(K_SMOOTH, Y, end)["gcv"], rel=1e-9)


def test_f31_a_coarse_grid_with_ridge_0_finds_the_same_ridge():
    model = kx.Model(SMOOTH, noise=5.0)
    best = float(kx.select_ridge(model, DATA, "gcv").ridge)
    assert kx.select_ridge(model, DATA, "gcv", ridges=[30.0, 0.0, 0.1, 1.0, 0.01]).ridge == pytest.approx(best, rel=1e-8)


def test_f31_all_selectors_side_by_side(capsys):
    model = kx.Model(SMOOTH, noise=SIGMA2)
    table = kx.compare_selectors(model, DATA, folds=3)
    printed = capsys.readouterr().out
    names = ["loo", "gcv", "kfold", "likelihood", "l_curve", "discrepancy"]
    assert list(table) == [row["by"] for row in table.rows] == names
    assert len(table) == 6
    assert printed.strip() == str(table).strip()
    assert len(printed.strip().splitlines()) == 8
    assert f"mean residual² of {SIGMA2:.4g}, the model's noise" in printed
    for by, row, line in zip(names, table.rows, printed.strip().splitlines()[1:-1], strict=True):
        single = kx.select_ridge(model, DATA, by, folds=3)
        assert row["ridge"] == pytest.approx(float(single.ridge), rel=1e-10)
        assert table[by].value == pytest.approx(float(single.value), rel=1e-10)
        want = refit(K_SMOOTH, Y, row["ridge"])
        assert row["dof"] == pytest.approx(want["effective_degrees_of_freedom"], rel=1e-9)
        assert row["mean residual²"] == pytest.approx(want["residual_norm"] ** 2 / N, rel=1e-9)
        assert row["norm"] == pytest.approx(want["rkhs_norm"], rel=1e-9)
        assert row["loo"] == pytest.approx(want["loo_mse"], rel=1e-9)
        assert row["gcv"] == pytest.approx(want["gcv"], rel=1e-9)
        assert row["log likelihood"] == pytest.approx(want["log_marginal_likelihood"], rel=1e-9)
        assert row["status"] == "successful"
        assert line.split()[0] == by
        assert f"{row['ridge']:.4g}" in line.split()


def test_f31_the_table_is_silent_if_asked(capsys):
    table = kx.compare_selectors(kx.Model(SMOOTH, noise=2 * np.mean(Y**2)), DATA, folds=3, verbose=False)
    assert capsys.readouterr().out == ""
    assert table["discrepancy"].result == kx.Result.no_root
    assert "no_root" in str(table)
