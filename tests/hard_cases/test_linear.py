"""Linear learners on designs that are degenerate, and on what users should not hand over (H17, H33, and their kin)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso

import kernax as kx
from kernax import learners

RNG = np.random.default_rng(33)
X, Y = RNG.normal(size=(14, 4)), RNG.normal(size=14)
DATA = kx.Data(X, Y)


@pytest.fixture(scope="module")
def paths():
    """`lasso_path` of a batch of datasets of one shape, compiled once."""
    return jax.jit(jax.vmap(lambda x, y: learners.lasso_path(kx.Data(x, y), num=6, smallest=1e-2)))


# H33: leverage 1


@pytest.mark.parametrize("intercept", [True, False])
def test_h33_a_row_with_leverage_one_has_no_residual_without_it(intercept):
    """One row alone decides its own column: without it there is no fit, and no number is made up for it."""
    x = X.copy()
    x[:, 3] = 0.0
    x[5, 3] = 2.5
    fit = learners.least_squares(kx.Data(x, Y), intercept=intercept)
    assert fit.result == kx.Result.successful
    np.testing.assert_array_equal(fit.interpolated, np.arange(14) == 5)
    np.testing.assert_array_equal(np.isnan(fit.loo_residuals), np.arange(14) == 5)
    assert float(fit.leverage[5]) == pytest.approx(1.0, abs=1e-13)
    design = np.column_stack([x, np.ones(14)]) if intercept else x
    rest = np.delete(np.arange(14), 2)
    refit = Y[2] - design[2] @ np.linalg.lstsq(design[rest], Y[rest])[0]
    assert float(fit.loo_residuals[2]) == pytest.approx(refit, rel=1e-10)


def test_h33_as_many_coefficients_as_rows():
    """Every row is interpolated, every leave-one-out residual is undefined."""
    fit = learners.least_squares(kx.Data(X[:5], Y[:5]))
    assert np.all(fit.interpolated)
    assert np.all(np.isnan(fit.loo_residuals))
    np.testing.assert_allclose(fit(X[:5]), Y[:5], rtol=1e-10)


def test_h33_leaves_the_gradient_of_the_other_rows():
    x = X.copy()
    x[:, 3] = np.arange(14) == 5

    def score(y):
        fit = learners.least_squares(kx.Data(x, y))
        return jnp.sum(jnp.where(fit.interpolated, 0.0, fit.loo_residuals) ** 2)

    slope = jax.jit(jax.grad(score))(Y)
    assert np.all(np.isfinite(slope))
    ends = [float(score(Y + h * np.cos(np.arange(14)))) for h in (1e-6, -1e-6)]
    assert float(np.sum(np.asarray(slope) * np.cos(np.arange(14)))) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


# Rank


DEPENDENT = {
    "duplicate": np.column_stack([X[:, :3], X[:, 0]]),
    "collinear": np.column_stack([X[:, :3], X[:, 0] - 2 * X[:, 1]]),
    "zero": np.column_stack([X[:, :3], np.zeros(14)]),
    "constant": np.column_stack([X[:, :3], np.full(14, 0.1)]),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_columns_are_told(name):
    """Least squares has no unique coefficients there; a ridge has, and the lasso has a solution with exact zeros."""
    data = kx.Data(DEPENDENT[name], Y)
    with pytest.raises(kx.FailedError, match=r"least squares failed\. rank_deficient: .*use a ridge"):
        learners.least_squares(data)
    fit = learners.least_squares(data, throw=False)
    assert fit.result == kx.Result.rank_deficient
    assert int(fit.rank) == 4
    assert np.all(np.isnan(fit.coefficients))
    with pytest.raises(kx.FailedError, match=r"ridge regression failed\. rank_deficient"):
        learners.ridge(data, 0.0)
    assert learners.ridge(data, 0.0, form="saddle_point", throw=False).result == kx.Result.rank_deficient
    ridge = learners.ridge(data, 0.1)
    assert ridge.result == kx.Result.successful
    stacked = np.vstack([data.x - np.mean(data.x, axis=0), np.sqrt(0.1) * np.eye(4)])
    want = np.linalg.lstsq(stacked, np.append(Y - Y.mean(), np.zeros(4)))[0]
    np.testing.assert_allclose(ridge.coefficients, want, atol=1e-12)


def test_units_decide_no_rank():
    """Columns of very different size are as independent as before."""
    units = np.array([1e-9, 1.0, 1e6, 1e9])
    fit = learners.least_squares(kx.Data(X * units, Y))
    np.testing.assert_allclose(fit.coefficients * units, learners.least_squares(DATA).coefficients, rtol=1e-9)
    saddle = learners.ridge(kx.Data(X * units, Y), 0.0, form="saddle_point")
    np.testing.assert_allclose(saddle.coefficients, fit.coefficients, rtol=1e-9)


def test_a_deficient_dataset_leaves_the_others_of_its_batch():
    fits = jax.jit(jax.vmap(lambda x, y: learners.least_squares(kx.Data(x, y))))
    ys = np.stack([Y, Y + 1.0, Y**2])
    healthy = fits(np.stack([X, X + 1.0, X]), ys)
    sick = fits(np.stack([X, DEPENDENT["duplicate"], X]), ys)
    np.testing.assert_array_equal(sick.result == kx.Result.rank_deficient, [False, True, False])
    np.testing.assert_array_equal(np.asarray(sick.coefficients)[[0, 2]], np.asarray(healthy.coefficients)[[0, 2]])


def test_too_few_rows_that_count():
    """Behind a mask the rows cannot be counted beforehand: the status tells, as it does for none at all."""
    mask = np.arange(14) < 3
    assert learners.least_squares(kx.Data(X, Y, mask), throw=False).result == kx.Result.rank_deficient
    none = kx.Data(X, Y, np.zeros(14, bool))
    for fit in (
        learners.least_squares(none, throw=False),
        learners.ridge(none, 1.0, throw=False),
        learners.lasso(none, 1.0, throw=False),
    ):
        assert fit.result == kx.Result.empty
        assert np.all(np.isnan(fit.coefficients))


# The lasso on degenerate designs


def lasso_batches():
    """Designs on which the path meets ties, zero pivots, and columns that leave again."""
    normal = RNG.normal(size=(40, 14, 8))
    targets = RNG.normal(size=(40, 14))
    twice = normal.copy()
    twice[:, :, 4:] = twice[:, :, :4]
    mirrored = normal.copy()
    mirrored[:, :, 4:] = -mirrored[:, :, :4]
    still = normal.copy()
    still[:, :, 0], still[:, :, 1] = 0.1, 0.0
    return {
        "generic": (normal, targets),
        "duplicates": (twice, targets),
        "mirrored": (mirrored, targets),
        "low rank": (normal[:, :, :2] @ RNG.normal(size=(40, 2, 8)), targets),
        "small whole numbers": (RNG.integers(-1, 2, (40, 14, 8)), RNG.integers(-2, 3, (40, 14))),
        "zeros and ones": (RNG.integers(0, 2, (40, 14, 8)), RNG.integers(0, 2, (40, 14))),
        "constant and zero columns": (still, targets),
        "units": (normal * 10.0 ** RNG.integers(-5, 6, (40, 1, 8)), targets),
        "far from 0": (normal + 1e6, targets - 1e7),
        "constant targets": (normal, np.full((40, 14), 0.3)),
    }


BATCHES = lasso_batches()


@pytest.mark.parametrize("name", BATCHES)
def test_h17_the_lasso_is_optimal_on_degenerate_designs(name, paths):
    """The optimality conditions in NumPy, relative to the largest correlation, at every penalty of forty datasets."""
    xs, ys = (np.asarray(part, float) for part in BATCHES[name])
    answers = paths(xs, ys)
    assert np.all(answers.result == kx.Result.successful)
    for x, y, penalties, weights in zip(
        xs, ys, np.asarray(answers.penalties), np.asarray(answers.coefficients), strict=True
    ):
        centred, targets = x - x.mean(axis=0), y - y.mean()
        correlations = (targets - weights @ centred.T) @ centred
        levels = penalties[:, None] / 2
        violations = np.where(
            weights != 0, np.abs(correlations - levels * np.sign(weights)), np.maximum(np.abs(correlations) - levels, 0)
        )
        scale = np.max(np.linalg.norm(centred, axis=0)) * np.linalg.norm(targets)
        assert np.max(violations) <= 1e-10 * scale + 1e-14
    if name == "duplicates":
        assert np.all(np.asarray(answers.coefficients)[:, :, :4] * np.asarray(answers.coefficients)[:, :, 4:] == 0.0)
    if name == "constant targets":
        np.testing.assert_array_equal(answers.coefficients, 0.0)


def test_lasso_coefficients_leave_the_path_again():
    """A path on which a coefficient comes on and goes off again, checked against scikit-learn on both sides."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        x, y = rng.normal(size=(14, 8)) @ rng.normal(size=(8, 8)), rng.normal(size=14)
        path = learners.lasso_path(kx.Data(x, y), num=40)
        on = np.asarray(path.coefficients) != 0
        gone = np.flatnonzero(np.any(on[:-1] & ~on[1:], axis=1))
        if len(gone):
            break
    assert len(gone)
    for i in (gone[0], gone[0] + 1):
        alpha = float(path.penalties[i]) / 28
        peer = Lasso(alpha=alpha, tol=1e-14, max_iter=1_000_000).fit(x, y)
        np.testing.assert_allclose(path.coefficients[i], peer.coef_, atol=1e-7)


def test_lasso_at_and_above_the_largest_penalty_is_all_zeros():
    centred = X - X.mean(axis=0)
    top = 2 * np.max(np.abs(centred.T @ (Y - Y.mean())))
    for penalty in (top * (1 + 1e-12), 100 * top):
        fit = learners.lasso(DATA, penalty)
        np.testing.assert_array_equal(fit.coefficients, 0.0)
        assert float(fit.intercept) == pytest.approx(Y.mean(), rel=1e-13)
    slope = jax.jit(jax.grad(lambda y: learners.lasso(kx.Data(X, y), 100 * top).intercept))(Y)
    np.testing.assert_allclose(slope, 1 / 14, rtol=1e-12)


def test_lasso_at_penalty_zero_is_least_squares():
    np.testing.assert_allclose(learners.lasso(DATA, 0.0).coefficients, learners.least_squares(DATA).coefficients, rtol=1e-10)


def test_lasso_out_of_steps_says_so():
    """What was reached is right, the rest is the last solution and flagged; an eager call raises."""
    with pytest.raises(kx.FailedError, match=r"the lasso failed\. max_steps_reached: .*Raise max_steps"):
        learners.lasso(DATA, 0.01, max_steps=2)
    with pytest.raises(kx.FailedError, match=r"the lasso at penalty .* failed\. max_steps_reached"):
        learners.lasso_path(DATA, num=10, max_steps=2)
    path = learners.lasso_path(DATA, num=10, max_steps=2, throw=False)
    whole = learners.lasso_path(DATA, num=10)
    good = np.asarray(path.result == kx.Result.successful)
    assert good[0]
    assert not good[-1]
    np.testing.assert_allclose(np.asarray(path.coefficients)[good], np.asarray(whole.coefficients)[good], atol=1e-13)
    assert np.all(np.asarray(path.kkt_residual)[~good] > 1e-3)
    assert path[-1].result == kx.Result.max_steps_reached


def test_traced_values_that_could_not_be_refused_are_flagged():
    fits = jax.jit(jax.vmap(lambda y, penalty: learners.lasso(kx.Data(X, y), penalty)))
    ys = np.stack([Y, np.where(np.arange(14) == 3, np.nan, Y), Y, Y])
    answers = fits(ys, np.array([1.0, 1.0, -1.0, np.nan]))
    np.testing.assert_array_equal(answers.result == kx.Result.successful, [True, False, False, False])
    np.testing.assert_array_equal(answers.result == kx.Result.nonfinite, [False, True, True, True])
    np.testing.assert_allclose(answers.coefficients[0], learners.lasso(DATA, 1.0).coefficients, atol=1e-13)


def test_features_that_are_not_finite_are_flagged():
    def root(a):
        return jnp.sqrt(a)

    for learner in (
        learners.least_squares,
        lambda d, **k: learners.ridge(d, 1.0, **k),
        lambda d, **k: learners.lasso(d, 1.0, **k),
    ):
        with pytest.raises(kx.FailedError, match="nonfinite"):
            learner(DATA, features=root)


# What is refused


REFUSED = {
    "negative ridge": (lambda: learners.ridge(DATA, -1.0), ValueError, "penalty must be finite and 0 or more"),
    "negative penalty": (lambda: learners.lasso(DATA, -1.0), ValueError, "penalty must be finite and 0 or more"),
    "NaN penalty": (lambda: learners.lasso(DATA, np.nan), ValueError, "penalty must be finite"),
    "several penalties": (lambda: learners.lasso(DATA, [1.0, 0.1]), ValueError, "penalty must be one number"),
    "ascending grid": (lambda: learners.lasso_path(DATA, [0.1, 1.0]), ValueError, r"np\.sort\(penalties\)"),
    "NaN in a grid": (lambda: learners.lasso_path(DATA, [1.0, np.nan]), ValueError, "penalties must be finite"),
    "empty grid": (lambda: learners.lasso_path(DATA, []), ValueError, "penalties must be a vector of one number or more"),
    "no grid": (lambda: learners.lasso_path(DATA, num=0), ValueError, "num must be at least 1"),
    "unknown form": (lambda: learners.ridge(DATA, 1.0, form="both"), ValueError, "primal, dual, saddle_point"),
    "few rows": (lambda: learners.least_squares(kx.Data(X[:4], Y[:4])), ValueError, r"learners\.ridge"),
    "scalar features": (lambda: learners.ridge(DATA, 1.0, features=jnp.sum), ValueError, "linear learners need a vector"),
    "several outputs": (lambda: learners.lasso(kx.Data(X, X[:, :2]), 1.0), ValueError, r"jax\.vmap"),
    "no data": (lambda: learners.ridge(X, Y), TypeError, r"kx\.Data\(x, y\)"),
    "other columns": (lambda: learners.ridge(DATA, 1.0)(X[:, :3]), ValueError, "4 coefficients"),
    "one point": (lambda: learners.ridge(DATA, 1.0)(X[0]), ValueError, r"x\[None, :\]"),
    "NaN in new rows": (lambda: learners.ridge(DATA, 1.0)(X * np.nan), ValueError, "NaN"),
    "degree": (lambda: learners.PolynomialFeatures(0), ValueError, "degree must be a whole number"),
    "frequencies": (lambda: learners.FourierFeatures(np.arange(3.0)), ValueError, r"frequencies\[:, None\]"),
    "no function": (lambda: learners.ridge(DATA, 1.0, features=3), TypeError, "function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_remedy(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def test_a_path_is_a_sequence_that_ends():
    """Negative places count from the end, places out of range raise, and so a loop over the path ends."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(12, 3))
    path = kx.learners.lasso_path(kx.Data(x, x[:, 0] - x[:, 2]), num=4)
    assert [float(fit.penalty) for fit in path] == [float(p) for p in path.penalties]
    assert float(path[-1].penalty) == float(path.penalties[-1])
    with pytest.raises(IndexError):
        path[4]


def test_where_jitter_decides_beside_the_penalty_the_answer_is_flagged():
    """Two equal columns and a penalty far below rounding: no form may call its answer the ridge's."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(15, 3))
    data = kx.Data(np.column_stack([x, x[:, 0]]), x @ [1.0, 0.0, -2.0])
    for form in ("primal", "dual", "saddle_point"):
        assert learners.ridge(data, 1e-18, form=form, throw=False).result != kx.Result.successful
        assert learners.ridge(data, 1e-3, form=form).result == kx.Result.successful
    assert learners.ridge(kx.Data(x, x[:, 0]), 0.0, form="dual", throw=False).result == kx.Result.singular


def test_numbers_of_features_are_whole():
    assert learners.PolynomialFeatures(np.int64(3)).degree == 3
    for bad in (True, 0, 1.5):
        with pytest.raises(ValueError, match="whole number"):
            learners.PolynomialFeatures(bad)
    with pytest.raises(ValueError, match="whole number"):
        learners.random_fourier_features(jax.random.key(0), 0, jnp.ones(2))
    with pytest.raises(ValueError, match="positive"):
        learners.random_fourier_features(jax.random.key(0), 5, -jnp.ones(2))
