"""Choosing the ridge when something is wrong: with the grid, the folds, the noise or the data."""

import functools
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx

SELECTORS = ("loo", "gcv", "kfold", "likelihood", "l_curve", "discrepancy")
N = 12
RNG = np.random.default_rng(2)
X = np.sort(RNG.uniform(-2.0, 2.0, N))[:, None]
Y = np.sin(2.0 * X[:, 0]) + 0.35 * RNG.standard_normal(N)
MODEL, DATA = kx.Model(kx.Matern52(1.0), noise=0.1), kx.Data(X, Y)
GRID = np.array([0.01, 0.1, 1.0])


@pytest.fixture(scope="module")
def c():
    return kx.condition(MODEL, DATA, kx.Eigh())


def as_users_meet_it(function):
    """Without the tests' own checking of types, which would refuse a wrong argument first, in other words."""
    return inspect.unwrap(function)


class Equicorrelated(kx.AbstractKernel):
    """1 for a point with itself, `level` for any two others: indefinite for a level above 1."""

    level: jax.Array = kx.parameters.real()

    def pair(self, a, b):
        return jnp.where(jnp.all(a == b), 1.0, self.level)


# Arguments


@pytest.mark.parametrize(
    ("ridges", "says"),
    [
        ([0.1, -1.0], "not negative, got -1.0"),
        ([0.1, np.nan], "not negative, got nan"),
        ([np.inf], "finite and not negative, got inf"),
        ([], r"at least one number, got shape \(0,\)"),
        (0.1, r"at least one number, got shape \(\)"),
        ([[0.1]], r"at least one number, got shape \(1, 1\)"),
    ],
    ids=["negative", "nan", "infinite", "empty", "number", "matrix"],
)
def test_bad_ridges_are_refused(c, ridges, says):
    for call in (
        lambda: kx.ridge_path(c, ridges),
        lambda: kx.l_curve(c, ridges),
        lambda: kx.select_ridge(MODEL, DATA, ridges=ridges),
        lambda: kx.compare_selectors(MODEL, DATA, ridges=ridges, folds=3),
    ):
        with pytest.raises(ValueError, match=rf"^ridges must be .*{says}"):
            call()


@pytest.mark.parametrize(
    ("folds", "says"),
    [
        (0, "at least 2 folds, got 0"),
        (1, "at least 2 folds, got 1"),
        (-3, "at least 2 folds, got -3"),
        (N + 1, "13 folds need at least 13 rows, got 12"),
        (3.0, r"whole number or 12 integer labels.* got float64 of shape \(\)"),
        (True, r"whole number or 12 integer labels.* got bool of shape \(\)"),
        (np.zeros(N - 1, int), r"whole number or 12 integer labels.* got int64 of shape \(11,\)"),
        (np.zeros(N), r"whole number or 12 integer labels.* got float64 of shape \(12,\)"),
        (np.full(N, 4), "one fold contains all rows"),
        ("five", "whole number or 12 integer labels"),
        (None, "whole number or 12 integer labels"),
    ],
    ids=["0", "1", "-3", "13", "float", "bool", "short labels", "float labels", "one label", "text", "none"],
)
def test_bad_folds_are_refused(c, folds, says):
    calls = [
        lambda: kx.kfold_residuals(c, folds),
        lambda: kx.selection.fold_mse(c, folds),
        lambda: kx.kfold_mse(c, folds),
        lambda: kx.select_ridge(MODEL, DATA, "kfold", folds=folds),
    ]
    if folds is not None:
        calls.append(lambda: kx.ridge_path(c, GRID, folds=folds))
    for call in calls:
        with pytest.raises(ValueError, match=says):
            call()


def test_fewer_rows_that_count_than_folds_are_refused():
    masked = kx.condition(MODEL, kx.Data(X, Y, np.arange(N) < 4), kx.Eigh())
    with pytest.raises(ValueError, match="5 folds need at least 5 rows that count, got 4"):
        kx.kfold_mse(masked, 5)
    with pytest.raises(ValueError, match="one fold contains all rows that count"):
        kx.kfold_mse(masked, np.where(np.arange(N) < 4, 0, 1))


def test_fewer_rows_that_count_than_folds_where_the_mask_is_traced():
    """The rows that count decide then what the folds hold: those without a row are left out of the mean."""

    def score(mask, lengthscale):
        model = kx.Model(kx.Matern52(lengthscale), noise=0.1)
        return kx.kfold_mse(kx.condition(model, kx.Data(X, Y, mask), kx.Eigh()), 5)

    value, slope = jax.jit(jax.value_and_grad(score, argnums=1))(np.arange(N) < 4, 1.0)
    left_out = kx.condition(MODEL, kx.Data(X, Y, np.arange(N) < 4), kx.Eigh())
    assert value == pytest.approx(float(kx.loo_mse(left_out)), rel=1e-10)
    assert np.isfinite(slope)


def test_a_key_has_nothing_to_draw_for_labels(c):
    with pytest.raises(ValueError, match="give either labels or key"):
        kx.kfold_residuals(c, np.arange(N) % 3, key=jax.random.key(0))


def test_traced_labels_are_refused(c):
    with pytest.raises(TypeError, match="fold labels determine shapes, so they must be known before tracing"):
        jax.jit(lambda labels: kx.kfold_mse(c, labels))(np.arange(N) % 3)


def test_an_unknown_selector_or_rule_is_refused():
    with pytest.raises(
        ValueError,
        match=r"^by must be one of loo, gcv, .*, or a function of a Conditioned, got 'aic'",
    ):
        as_users_meet_it(kx.select_ridge)(MODEL, DATA, "aic")
    with pytest.raises(ValueError, match=r"^rule must be one of best_mean_score, mean_of_best, got 'median'"):
        as_users_meet_it(kx.select_ridge)(MODEL, DATA, "kfold", rule="median")


def test_noise_per_row_is_refused():
    model = kx.Model(kx.Matern52(1.0), noise=np.full(N, 0.1))
    with pytest.raises(ValueError, match="select_ridge chooses one noise for all rows; this model has one per row"):
        kx.select_ridge(model, DATA)
    for call in (kx.ridge_path, kx.l_curve, lambda c: kx.discrepancy(c, 0.1), kx.selection.default_ridges):
        with pytest.raises(ValueError, match="needs one noise for all rows; this model has one per row"):
            call(kx.condition(model, DATA, kx.Eigh()))
    with pytest.raises((TypeError, ValueError), match="one noise for all rows"):
        kx.recondition(kx.condition(model, DATA, kx.Eigh()), noise=0.2)
    with pytest.raises((TypeError, ValueError)):
        kx.recondition(kx.condition(MODEL, DATA, kx.Eigh()), noise=np.full(N, 0.1))


def test_noise_per_row_is_refused_by_the_table():
    with pytest.raises(ValueError, match="one per row"):
        kx.compare_selectors(kx.Model(kx.Matern52(1.0), noise=np.full(N, 0.1)), DATA, folds=3)


def test_another_solver_than_the_spectral_one_is_refused():
    c = kx.condition(MODEL, DATA)
    for call in (
        kx.ridge_path,
        kx.l_curve,
        lambda c: kx.discrepancy(c, 0.1),
        lambda c: kx.recondition(c, noise=0.1),
    ):
        with pytest.raises(TypeError, match=r"which Cholesky does not offer here: condition with kx\.Eigh\(\)"):
            call(c)


def test_what_has_not_seen_data_is_refused():
    for function in (
        kx.ridge_path,
        kx.l_curve,
        kx.selection.default_ridges,
        kx.kfold_mse,
        kx.kfold_residuals,
        kx.selection.fold_mse,
    ):
        with pytest.raises(TypeError, match=r"^expected a Conditioned, got Model: condition first"):
            as_users_meet_it(function)(MODEL)
    for function in (kx.discrepancy, lambda c, noise: kx.recondition(c, noise=noise)):
        with pytest.raises(TypeError, match=r"^expected a Conditioned, got Model: condition first"):
            as_users_meet_it(function)(MODEL, 0.1)
    for function in (kx.gcv, kx.selection.effective_degrees_of_freedom):
        with pytest.raises(TypeError):
            function(MODEL)
    for function in (kx.select_ridge, kx.compare_selectors):
        with pytest.raises(TypeError, match=r"must be a kx\.Data, got ndarray"):
            as_users_meet_it(function)(MODEL, X)
        with pytest.raises(TypeError, match=r"must be a kx\.Model, got Matern52"):
            as_users_meet_it(function)(kx.Matern52(), DATA)


@pytest.mark.parametrize("bad", [0.0, -0.1, np.nan, np.inf, np.array([0.1, 0.2])], ids=str)
def test_a_bad_noise_variance_is_refused(c, bad):
    for call in (
        lambda: kx.discrepancy(c, bad),
        lambda: kx.select_ridge(MODEL, DATA, "discrepancy", noise_variance=bad),
    ):
        with pytest.raises(ValueError, match="needs the variance of the noise, one positive number, got"):
            call()


def test_the_discrepancy_principle_without_any_noise_is_refused():
    model = kx.Model(kx.Matern52(1.0), noise=0.0)
    with pytest.raises(ValueError, match="needs the variance of the noise, one positive number, got 0"):
        kx.select_ridge(model, DATA, "discrepancy")
    # The table leaves that row out, and keeps the others.
    assert list(kx.compare_selectors(model, DATA, folds=3, verbose=False)) == list(SELECTORS[:-1])


def test_a_traced_noise_variance_that_is_none_has_no_root(c):
    found = jax.jit(jax.vmap(lambda variance: kx.discrepancy(c, variance)))(jnp.array([0.1, 0.0, -1.0, np.nan]))
    np.testing.assert_array_equal(found.result == kx.Result.successful, [True, False, False, False])
    np.testing.assert_array_equal(np.isnan(found.ridge), [False, True, True, True])


@pytest.mark.parametrize("bad", [-0.1, np.nan])
def test_a_bad_noise_to_move_to_is_refused(c, bad):
    with pytest.raises(ValueError, match=r"^noise must not be negative, got"):
        kx.recondition(c, noise=bad)
    traced = jax.jit(lambda noise: kx.recondition(c, noise=noise))(bad)
    assert traced.result != kx.Result.successful
    assert np.isnan(traced.alpha).all()


def test_the_table_cannot_be_traced():
    with pytest.raises(TypeError, match="use select_ridge inside jit"):
        jax.jit(lambda y: kx.compare_selectors(MODEL, kx.Data(X, y)).rows[0]["ridge"])(Y)


# Data


def choose(by, y, **options):
    return kx.select_ridge(MODEL, kx.Data(X, y), by, folds=3, throw=False, **options)


@functools.cache
def compiled(by):
    def one(y, mask):
        choice = kx.select_ridge(MODEL, kx.Data(X, y, mask), by, folds=3)
        return choice.ridge, choice.value, choice.values, choice.conditioned.alpha, choice.result

    return jax.jit(jax.vmap(one))


@pytest.mark.parametrize("by", SELECTORS)
def test_a_sick_dataset_leaves_the_others_of_its_batch(by):
    """NaN among the targets, or no row that counts: flagged in its own lane, bitwise nothing in the others."""
    ys, masks = np.stack([Y, 2 * Y, Y[::-1], Y**3, Y]), np.ones((5, N), bool)
    *healthy, _ = compiled(by)(ys, masks)
    sick_ys, sick_masks = ys.copy(), masks.copy()
    sick_ys[1, 4], sick_masks[3] = np.nan, False
    *sick, result = compiled(by)(sick_ys, sick_masks)
    for mine, theirs in zip(sick, healthy, strict=True):
        np.testing.assert_array_equal(np.asarray(mine)[[0, 2, 4]], np.asarray(theirs)[[0, 2, 4]])
    np.testing.assert_array_equal((result == kx.Result.successful)[jnp.array([0, 1, 3, 4])], [True, False, False, True])
    np.testing.assert_array_equal(result == kx.Result.nonfinite, np.arange(5) == 1)
    np.testing.assert_array_equal(result == kx.Result.empty, np.arange(5) == 3)
    assert np.isnan(sick[3][1]).all()


@pytest.mark.parametrize("by", SELECTORS)
def test_targets_without_variety(by):
    """Nothing to learn, or a constant only: a ridge with finite numbers, or a status, never an unexplained NaN."""
    for y in (np.zeros(N), np.full(N, 3.0)):
        choice = choose(by, y)
        if choice.result in (kx.Result.no_corner, kx.Result.no_root, kx.Result.flat):
            assert np.isnan(choice.ridge)
        else:
            assert choice.result in (kx.Result.successful, kx.Result.at_edge)
            assert np.isfinite([choice.ridge, choice.value]).all()
            assert np.isfinite(choice.values).all()
            assert np.isfinite(choice.conditioned.alpha).all()
    assert choose("l_curve", np.zeros(N)).result == kx.Result.no_corner
    assert choose("discrepancy", np.zeros(N)).result == kx.Result.no_root


@pytest.mark.parametrize("by", ["loo", "gcv", "kfold", "l_curve"])
def test_the_units_of_the_targets_do_not_matter(by):
    want = choose(by, Y)
    assert want.result == kx.Result.successful
    for unit in (1e8, 1e-8, 1e60, 1e-60, 1e140, 1e-140):
        choice = choose(by, unit * Y)
        if by == "l_curve" and abs(np.log10(unit)) > 10 and choice.result == kx.Result.no_corner:
            continue  # fourth powers of such targets are beyond float64
        assert choice.result == kx.Result.successful, unit
        assert choice.ridge == pytest.approx(float(want.ridge), rel=1e-6), unit


def test_the_units_of_the_targets_do_not_matter_in_single_precision():
    for by in ("gcv", "l_curve"):
        one, many = (
            kx.select_ridge(MODEL, kx.Data(X.astype("float32"), (unit * Y).astype("float32")), by, throw=False)
            for unit in (1.0, 1e6)
        )
        assert one.result == kx.Result.successful
        if many.result == kx.Result.successful:
            assert many.ridge == pytest.approx(float(one.ridge), rel=1e-2), by
        else:
            assert by == "l_curve"


def test_the_units_of_the_targets_and_of_the_kernel_go_together():
    """For the likelihood and the discrepancy principle the kernel's variance has the unit of y²."""
    for by in ("likelihood", "discrepancy"):
        want = kx.select_ridge(kx.Model(1.0 * kx.Matern52(), noise=0.1), DATA, by)
        for unit in (1e8, 1e-8):
            model = kx.Model(unit**2 * kx.Matern52(), noise=0.1 * unit**2)
            choice = kx.select_ridge(model, kx.Data(X, unit * Y), by)
            assert choice.ridge == pytest.approx(unit**2 * float(want.ridge), rel=1e-6)


def test_targets_that_overflow_are_flagged():
    choice = choose("gcv", 1e200 * Y)
    assert choice.result == kx.Result.nonfinite


def test_duplicate_rows_without_a_ridge_are_flagged():
    twice = kx.Data(np.vstack([X[:-1], X[3]]), Y)
    path = kx.ridge_path(kx.condition(MODEL, twice, kx.Eigh()), [0.0, 0.1, 1.0])
    np.testing.assert_array_equal(path.result == kx.Result.singular, [True, False, False])
    np.testing.assert_array_equal(path.result == kx.Result.successful, [False, True, True])
    assert path.jitter[0] > 0
    assert np.isfinite(path.gcv).all()
    assert np.isfinite(path.alpha).all()


@pytest.mark.parametrize("by", ["loo", "gcv"])
def test_the_noise_to_be_replaced_may_be_zero(by):
    """The model's own noise is what is chosen anew: that K alone is singular is no reason to refuse."""
    twice = kx.Data(np.vstack([X[:-1], X[3]]), Y)
    want = kx.select_ridge(MODEL, twice, by)
    choice = kx.select_ridge(kx.Model(kx.Matern52(1.0), noise=0.0), twice, by)
    assert choice.ridge == pytest.approx(float(want.ridge), rel=1e-6)
    assert choice.result == want.result


def test_duplicate_ridges_hide_no_minimum():
    want = kx.select_ridge(MODEL, DATA, "gcv")
    below, above = 0.5 * float(want.ridge), 1.3 * float(want.ridge)
    for ridges in ([1e-3, below, below, 5.0], [1e-3, above, above, 5.0], [1e-3, above, above, above, 5.0]):
        choice = kx.select_ridge(MODEL, DATA, "gcv", ridges=ridges)
        assert choice.ridge == pytest.approx(float(want.ridge), rel=1e-6)


@pytest.mark.parametrize("ridges", [[0.3], [0.3, 0.3, 0.3]], ids=["one", "one thrice"])
def test_a_grid_of_one_ridge_takes_it(ridges):
    for by in ("loo", "likelihood"):
        choice = kx.select_ridge(MODEL, DATA, by, ridges=ridges)
        assert choice.result == kx.Result.at_edge
        assert choice.ridge == pytest.approx(0.3, rel=1e-14)


# What failed stays failed, or is done again, but is never another matrix


def test_an_indefinite_matrix_moved_to_a_larger_noise():
    """Definite there: the answer is that of the matrix, or is flagged."""
    K = np.where(np.eye(N) == 1, 1.0, 2.0)
    start = kx.condition(kx.Model(Equicorrelated(2.0), noise=0.0), DATA, kx.Eigh(), throw=False)
    assert start.result == kx.Result.not_positive_definite
    for noise in (1.5, 20.0):
        c = kx.recondition(start, noise=noise)
        if c.result == kx.Result.successful:
            np.testing.assert_allclose(c.alpha, np.linalg.solve(K + noise * np.eye(N), Y), rtol=1e-9)
        else:
            assert np.isnan(c.alpha).all()


@pytest.mark.parametrize("column", ["x", "y"])
def test_data_with_nan_are_flagged_at_every_noise(column):
    """Traced data cannot be refused; their status must survive the move to another noise."""

    @eqx.filter_jit
    def path(x, y):
        c = kx.condition(MODEL, kx.Data(x, y), kx.Eigh())
        return kx.recondition(c, noise=0.2), kx.ridge_path(c, GRID)

    x, y = X.copy(), Y.copy()
    {"x": x, "y": y}[column][3] = np.nan
    moved, grid = path(x, y)
    assert moved.result == kx.Result.nonfinite
    assert np.isnan(moved.alpha).all()
    assert np.all(grid.result == kx.Result.nonfinite)
    assert np.isnan(grid.gcv).all()


def test_an_empty_mask_is_flagged():
    data = kx.Data(X, Y, np.zeros(N, bool))
    for by in ("gcv", "l_curve", "discrepancy"):
        with pytest.raises(kx.FailedError, match="empty: The dataset has no observations"):
            kx.select_ridge(MODEL, data, by)
        choice = kx.select_ridge(MODEL, data, by, throw=False)
        assert choice.result == kx.Result.empty


def test_rank_deficient_splines_stay_flagged_at_every_noise():
    data = kx.Data(np.full((N, 1), 2.5), Y)
    start = kx.condition(kx.Model(kx.CubicSpline(), noise=0.1), data, kx.Eigh(), throw=False)
    moved = kx.recondition(start, noise=1.0)
    assert moved.result == kx.Result.rank_deficient
    assert np.isnan(moved.alpha).all()
    choice = kx.select_ridge(start.model, data, "gcv", throw=False)
    assert choice.result == kx.Result.rank_deficient


# Criteria that choose nothing


@pytest.mark.parametrize("by", ["loo", "gcv", "kfold"])
def test_a_criterion_that_is_rounding_everywhere_chooses_none(by):
    """A straight line is the spline's own polynomial: every ridge leaves it as it is."""
    spline, line = kx.Model(kx.CubicSpline(), noise=1.0), kx.Data(X, 2.0 * X[:, 0] + 1.0)
    choice = kx.select_ridge(spline, line, by, folds=3, throw=False)
    assert choice.result == kx.Result.flat
    assert np.isnan(float(choice.ridge))
    with pytest.raises(kx.FailedError, match="flat"):
        kx.select_ridge(spline, line, by, folds=3)


def test_one_row_chooses_no_ridge():
    """Left out, the row is predicted by the mean function, whatever the ridge."""
    choice = kx.select_ridge(MODEL, kx.Data(X[:1], Y[:1]), "loo", throw=False)
    assert choice.result == kx.Result.flat


def test_what_jitter_makes_is_no_minimum():
    """The smaller ridges need jitter, and their likelihood is that of the jitter: the last ridge is the best of its own."""
    twice = kx.Data(np.concatenate([X, X]), np.concatenate([Y, Y + 0.1]))
    choice = kx.select_ridge(kx.Model(kx.RBF(1.0), noise=0.1), twice, "likelihood", ridges=[0.0, 1e-18, 1e-16, 1e-13])
    assert choice.result == kx.Result.at_edge
    assert float(choice.ridge) == 1e-13


def test_a_ridge_that_failed_is_not_the_best(c):
    """A negative ridge cannot be refused while it is traced: its scores are NaN, and never the lowest."""

    def both_rules(ridges):
        path = kx.ridge_path(c, ridges, folds=3)
        return path.best_mean_score(), path.mean_of_best()

    best, mean = jax.jit(both_rules)(jnp.array([-2.0, 0.1, 1.0]))
    assert float(best) in (0.1, 1.0)
    assert 0.1 <= float(mean) <= 1.0


def test_a_fold_that_leaves_too_little_spoils_no_other():
    """Four rows at one place determine no line, so the other fold has no residuals; their own have."""
    x, y = np.array([0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0])[:, None], np.array([0.0, 0.1, -0.1, 0.05, 1.0, 0.0, 2.0])
    for solver in (kx.Cholesky(), kx.Eigh()):
        model = kx.Model(kx.CubicSpline(), noise=1.0)
        residuals = np.asarray(kx.kfold_residuals(kx.condition(model, kx.Data(x, y), solver), [0, 0, 0, 0, 1, 1, 1]))
        others = kx.condition(model, kx.Data(x[4:], y[4:]), solver)
        np.testing.assert_allclose(residuals[:4], y[:4] - np.asarray(kx.mean(others, x[:4])), rtol=1e-9)
        assert np.isnan(residuals[4:]).all()
    choice = kx.select_ridge(model, kx.Data(x, y), "kfold", folds=[0, 0, 0, 0, 1, 1, 1], throw=False)
    assert choice.result == kx.Result.too_few_rows


def test_labels_may_be_anything_that_numpy_reads(c):
    class Column:
        def __array__(self, dtype=None, copy=None):
            return np.arange(N) // 4

    padded = kx.condition(MODEL, kx.Data(X, Y, mask=np.arange(N) >= 4), kx.Eigh())
    np.testing.assert_array_equal(
        as_users_meet_it(kx.selection.fold_mse)(padded, Column()), kx.selection.fold_mse(padded, np.arange(N) // 4)
    )


def test_a_key_of_another_kind_is_refused(c):
    with pytest.raises(TypeError, match=r"jax\.random\.key"):
        as_users_meet_it(kx.kfold_mse)(c, 3, key=0)


def test_few_rows_get_their_table(capsys):
    """Fewer rows than ten folds: as many folds as rows. Without noise the discrepancy principle is left out, in words."""
    table = kx.compare_selectors(kx.Model(kx.Matern52(1.0), noise=0.0), kx.Data(X[:5], Y[:5]))
    assert "kfold" in table
    assert "discrepancy is left out" in capsys.readouterr().out


@pytest.mark.parametrize("scale", [1e-10, 1e15])
def test_the_units_of_the_kernel_do_not_matter_in_single_precision(scale):
    x, y = X.astype(np.float32), Y.astype(np.float32)
    for by in ("gcv", "l_curve"):
        of_one = kx.select_ridge(kx.Model(1.0 * kx.RBF(1.0), noise=0.1), kx.Data(x, y), by)
        scaled = kx.select_ridge(kx.Model(np.float32(scale) * kx.RBF(1.0), noise=0.1), kx.Data(x, y), by)
        np.testing.assert_allclose(scaled.ridge / np.float32(scale), of_one.ridge, rtol=0.02)
