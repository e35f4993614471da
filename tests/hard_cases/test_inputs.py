"""What users hand over: wrong values, shapes and types, and sizes at the edge."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import kernax as kx
from tests.hard_cases import oracle

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(8, 2)), RNG.normal(size=8)
X_NEW = RNG.normal(size=(5, 2))
MODEL = kx.Model(kx.RBF(1.5), noise=0.1)


def with_entry(array, index, value):
    changed = array.copy()
    changed[index] = value
    return changed


@pytest.fixture(scope="module")
def conditioned():
    return kx.condition(MODEL, kx.Data(X, Y))


@pytest.fixture(scope="module")
def condition_many():
    """`condition` of a batch: values are traced in it."""
    return jax.jit(jax.vmap(lambda x, y: kx.condition(MODEL, kx.Data(x, y))))


# H01, H02: values that are not finite


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_h01_not_finite_at_fit_is_refused_with_array_and_rows(bad):
    with pytest.raises(ValueError, match=r"^x has NaN or infinite values in 1 of 8 rows \(first rows: 3\): drop them"):
        kx.Data(with_entry(X, (3, 1), bad), Y)
    with pytest.raises(ValueError, match=r"^y has NaN or infinite values in 2 of 8 rows \(first rows: 0, 7\): drop them"):
        kx.Data(X, with_entry(Y, [0, 7], bad))


@pytest.mark.parametrize("quantity", [kx.mean, kx.variance, kx.predict, kx.covariance, kx.power_function])
def test_h01_not_finite_at_prediction_is_refused(conditioned, quantity):
    with pytest.raises(ValueError, match=r"^x has NaN or infinite values in 1 of 5 rows \(first rows: 4\)"):
        quantity(conditioned, with_entry(X_NEW, (4, 0), np.nan))


def test_h01_not_finite_second_rows_are_named_by_their_own_name(conditioned):
    with pytest.raises(ValueError, match=r"^z has NaN or infinite values in 1 of 5 rows"):
        kx.covariance(conditioned, X_NEW, with_entry(X_NEW, (4, 0), np.nan))


def test_h01_not_finite_samples_and_densities_are_refused(conditioned):
    with pytest.raises(ValueError, match=r"^x has NaN"):
        kx.sample(MODEL, with_entry(X_NEW, (0, 0), np.inf), key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"^y has NaN"):
        kx.posterior.negative_log_predictive_density(conditioned, X_NEW, np.full(5, np.nan))


def test_h01_not_finite_rows_behind_a_mask_are_no_fault():
    data = kx.Data(np.vstack([X[:7], [[np.nan, np.inf]]]), np.append(Y[:7], np.nan), mask=np.arange(8) < 7)
    gram, cross = oracle.rbf(X[:7], lengthscale=1.5), oracle.rbf(X_NEW, X[:7], lengthscale=1.5)
    want, _ = oracle.posterior(gram, cross, np.ones(5), Y[:7], 0.1)
    np.testing.assert_allclose(kx.mean(kx.condition(MODEL, data), X_NEW), want, rtol=1e-10)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["x", "y"])
def test_h01_not_finite_lane_is_flagged_and_leaves_the_others(condition_many, where, bad):
    xs, ys = np.stack([X, X + 1.0, X - 1.0]), np.stack([Y, 2 * Y, 3 * Y])
    healthy = condition_many(xs, ys)
    assert np.all(healthy.result == kx.Result.successful)
    if where == "x":
        sick = condition_many(with_entry(xs, (1, 3, 0), bad), ys)
    else:
        sick = condition_many(xs, with_entry(ys, (1, 3), bad))
    np.testing.assert_array_equal(sick.result == kx.Result.nonfinite, [False, True, False])
    np.testing.assert_array_equal(sick.ok, [True, False, True])
    np.testing.assert_array_equal(np.asarray(sick.alpha)[[0, 2]], np.asarray(healthy.alpha)[[0, 2]])
    assert np.isnan(sick.alpha[1]).all()


def test_h02_traced_values_are_flagged_and_never_raise():
    @jax.jit
    def traced(x, y, x_new, noise):
        c = kx.condition(kx.Model(kx.RBF(1.5), noise), kx.Data(x, y))
        return c, kx.mean(c, x_new)

    c, mu = traced(X, Y, X_NEW, 0.1)
    assert c.result == kx.Result.successful
    assert np.isfinite(mu).all()
    c, mu = traced(with_entry(X, (0, 0), np.nan), Y, X_NEW, 0.1)
    assert c.result == kx.Result.nonfinite
    assert np.isnan(mu).all()
    c, mu = traced(X, Y, X_NEW, np.nan)
    assert c.result == kx.Result.nonfinite
    c, mu = traced(X, Y, with_entry(X_NEW, (2, 0), np.nan), 0.1)
    assert c.result == kx.Result.successful
    np.testing.assert_array_equal(np.isnan(mu), [False, False, True, False, False])


def test_h02_traced_fit_flags_and_never_raises():
    fit = jax.jit(lambda x, y: kx.fit(MODEL, kx.Data(x, y), max_steps=20))
    good, bad_x, bad_y = fit(X, Y), fit(with_entry(X, (0, 0), np.nan), Y), fit(X, with_entry(Y, 0, np.nan))
    assert good.result != kx.Result.nonfinite
    assert np.isfinite(good.value)
    for bad in (bad_x, bad_y):
        assert bad.result == kx.Result.nonfinite
        assert np.isnan(bad.value)
        np.testing.assert_allclose(bad.model.noise, MODEL.noise, rtol=1e-12)


# H03, H04: no rows, no columns, one row


def test_h03_no_rows_or_columns_are_refused():
    with pytest.raises(ValueError, match=r"^x has no rows: kernax needs at least one"):
        kx.Data(np.zeros((0, 2)), np.zeros(0))
    with pytest.raises(ValueError, match=r"^x has no columns: kernax needs at least one"):
        kx.Data(np.zeros((3, 0)), np.zeros(3))
    with pytest.raises(ValueError, match=r"^y has shape \(3, 0\): kernax needs at least one output"):
        kx.Data(np.zeros((3, 1)), np.zeros((3, 0)))


@pytest.mark.parametrize("quantity", [kx.mean, kx.variance])
def test_h03_no_rows_at_prediction_answer_nothing(conditioned, quantity):
    """The answer for an empty selection is empty, as everywhere in NumPy."""
    assert quantity(conditioned, np.zeros((0, 2))).shape == (0,)


def test_h04_one_row_works():
    model = kx.Model(2.0 * kx.RBF(1.5), noise=0.5, mean=0.25)
    c = kx.condition(model, kx.Data([[1.0]], [3.0]))
    np.testing.assert_allclose(kx.loo_residuals(c), [3.0 - 0.25], rtol=1e-14)
    np.testing.assert_allclose(kx.loo_mean(c), [0.25], rtol=1e-14)
    np.testing.assert_allclose(kx.loo_variance(c, noisy=True), [2.5], rtol=1e-14)
    np.testing.assert_allclose(kx.mean(c, [[1.0]]), [0.25 + 2.75 * 2.0 / 2.5], rtol=1e-14)
    np.testing.assert_allclose(kx.variance(c, [[1.0]]), [2.0 - 4.0 / 2.5], rtol=1e-14)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), -0.5 * (2.75**2 / 2.5 + np.log(2 * np.pi * 2.5)), rtol=1e-14)


def test_h04_one_row_gives_finite_starting_values():
    start = kx.initialise(kx.Model(1.0 * kx.RBF(), noise=0.1, mean=0.0), kx.Data([[1.0]], [3.0]))
    assert start.mean.value == 3.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(start))


# H05, H06, H07: shapes


def test_h05_one_dimensional_x_is_refused_with_the_reshape(conditioned):
    with pytest.raises(ValueError, match=r"^x has shape \(8,\); kernax needs \(n, d\): write x\[:, None\]\.$"):
        kx.Data(X[:, 0], Y)
    with pytest.raises(ValueError, match=r"^x has shape \(5,\).*write x\[:, None\]"):
        kx.mean(conditioned, X_NEW[:, 0])
    with pytest.raises(ValueError, match=r"^z has shape \(5,\).*write z\[:, None\]"):
        kx.RBF()(X, X_NEW[:, 0])
    with pytest.raises(ValueError, match=r"^x has shape \(\).*write x\.reshape\(1, 1\)"):
        kx.RBF()(1.0)


def test_h06_outputs_keep_the_shape_of_y(conditioned):
    column = kx.condition(MODEL, kx.Data(X, Y[:, None]))
    for quantity in (kx.loo_residuals, kx.loo_mean):
        assert quantity(column).shape == (8, 1)
        np.testing.assert_allclose(quantity(column)[:, 0], quantity(conditioned), rtol=1e-12)
    assert kx.mean(column, X_NEW).shape == (5, 1)
    np.testing.assert_allclose(kx.mean(column, X_NEW)[:, 0], kx.mean(conditioned, X_NEW), rtol=1e-12)
    assert kx.variance(column, X_NEW).shape == (5,)
    for objective in (kx.log_marginal_likelihood, kx.loo_mse):
        np.testing.assert_allclose(objective(column), objective(conditioned), rtol=1e-12)


def test_h06_targets_of_another_shape_than_the_predictions_are_refused(conditioned):
    with pytest.raises(ValueError, match=r"^y has shape \(5, 1\), but the predictions have \(5,\)"):
        kx.posterior.negative_log_predictive_density(conditioned, X_NEW, np.zeros((5, 1)))


def test_h07_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"^x has 8 rows and y has 7: they must be the same"):
        kx.Data(X, Y[:-1])
    with pytest.raises(
        ValueError, match=r"^Model\.noise has shape \(7,\), but the data has 8 rows: give one number or one per row"
    ):
        kx.condition(kx.Model(kx.RBF(), noise=np.ones(7)), kx.Data(X, Y))
    with pytest.raises(ValueError, match=r"^mask must be 8 booleans"):
        kx.Data(X, Y, mask=np.ones(7, bool))


@pytest.mark.parametrize("quantity", [kx.mean, kx.variance, kx.covariance, kx.power_function])
@pytest.mark.parametrize("width", [1, 3])
def test_h07_another_width_at_prediction_is_refused(conditioned, quantity, width):
    with pytest.raises(ValueError, match=rf"^x has {width} columns, but .* conditioned on has 2 columns"):
        quantity(conditioned, np.zeros((5, width)))


@pytest.mark.parametrize("kernel", [kx.RBF(), kx.Periodic(), kx.Linear()], ids=repr)
def test_h07_two_widths_in_a_cross_gram_matrix_are_refused(kernel):
    """One column against two would broadcast to numbers that mean nothing."""
    with pytest.raises(ValueError, match="column"):
        kernel(X, X_NEW[:, :1])


def test_h07_a_lengthscale_of_another_width_is_refused():
    with pytest.raises(
        ValueError, match=r"^RBF\.lengthscale has shape \(3,\), but the inputs have 2 columns: give one number"
    ):
        kx.condition(kx.Model(kx.RBF(np.ones(3)), 0.1), kx.Data(X, Y))


# H08, H09, H10, H11: types (H11 is in test_processes.py)


@pytest.mark.parametrize("library", [np, jnp])
def test_h08_integer_inputs_become_floats_first(library):
    x, x_new, y = (np.random.default_rng(3).integers(0, 256, size=size) for size in ((8, 2), (5, 2), 8))
    model = kx.Model(kx.RBF(80.0), noise=0.1)
    c = kx.condition(model, kx.Data(library.asarray(x, dtype="uint8"), library.asarray(y, dtype="int32")))
    assert c.data.dtype == jnp.float64
    want_mean, want_variance = oracle.posterior(
        oracle.rbf(x, lengthscale=80.0), oracle.rbf(x_new, x, lengthscale=80.0), np.ones(5), y, 0.1
    )
    got = kx.predict(c, library.asarray(x_new, dtype="uint8"))
    np.testing.assert_allclose(got.mean, want_mean, rtol=1e-10)
    np.testing.assert_allclose(got.variance, want_variance, rtol=1e-10)


def test_h08_integer_hyperparameters_become_floats():
    model = kx.Model(3 * kx.RBF(np.array([2, 1])) + 1, noise=1, mean=2)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(model))
    floats = kx.Model(3.0 * kx.RBF([2.0, 1.0]) + 1.0, noise=1.0, mean=2.0)
    assert eqx.tree_equal(model, floats)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (X + 1j, "complex"),
        (jnp.asarray(X + 1j), "complex"),
        (X.astype(object), "object"),
        (X.astype(str), "<U"),
        (scipy.sparse.csr_matrix(X), "sparse"),
    ],
    ids=["complex", "complex-jax", "object", "string", "sparse"],
)
def test_h09_what_is_no_real_number_is_refused(conditioned, bad, says):
    with pytest.raises(TypeError, match=rf"^x .*{says}.*: (convert|split|write) ?x?"):
        kx.Data(bad, Y)
    with pytest.raises(TypeError, match=rf"^x .*{says}"):
        kx.mean(conditioned, bad)


def test_h09_targets_that_are_no_real_numbers_are_refused():
    with pytest.raises(TypeError, match=r"^y has dtype complex128.*convert y"):
        kx.Data(X, Y + 1j)
    with pytest.raises(TypeError, match=r"^y has dtype <U.*convert y"):
        kx.Data(X, ["a"] * 8)
    with pytest.raises(TypeError, match=r"^y is sparse.*write y\.toarray"):
        kx.Data(X, scipy.sparse.csr_matrix(Y[:, None]))


@pytest.mark.parametrize("bad", [1j, "0.1", None])
def test_h09_hyperparameters_that_are_no_real_numbers_are_named(bad):
    with pytest.raises(TypeError, match="noise"):
        kx.Model(kx.RBF(), noise=bad)
    with pytest.raises(TypeError, match="lengthscale"):
        kx.RBF(lengthscale=bad)


@pytest.mark.parametrize(("x_type", "y_type"), [("float32", "float32"), ("float32", "float64"), ("float64", "float32")])
def test_h10_the_wider_type_of_the_data_wins_everywhere(x_type, y_type):
    want = np.result_type(x_type, y_type)
    data = kx.Data(X.astype(x_type), Y.astype(y_type))
    assert data.x.dtype == data.y.dtype == data.dtype == want
    c = kx.condition(MODEL, data)
    outputs = [c.alpha, c.jitter, kx.log_marginal_likelihood(c), kx.loo_residuals(c), *jax.tree.leaves(c.model)]
    for x_new in (X_NEW.astype("float32"), X_NEW.astype("float64")):
        outputs += kx.predict(c, x_new)[:2]
    assert {output.dtype.name for output in outputs} == {want.name}


# H17, H18, H20: data without variety, many columns, hyperparameters out of range

POOR = {
    "constant feature": (np.column_stack([X[:, 0], np.full(8, 3.0)]), Y),
    "constant target": (X, np.full(8, 3.0)),
    "zero target": (X, np.zeros(8)),
    "zero features": (np.zeros((8, 2)), Y),
    "collinear features": (np.column_stack([X[:, 0], 2.0 * X[:, 0]]), Y),
}


@pytest.mark.parametrize("case", POOR)
def test_h17_data_without_variety_give_no_nan(case):
    data = kx.Data(*POOR[case])
    model = kx.Model(kx.RBF(np.ones(2)) + kx.Linear(), 0.1)
    start = kx.initialise(model, data)
    fit = kx.fit(start, data, max_steps=200)
    finite = [*jax.tree.leaves(start), *jax.tree.leaves(fit.model), fit.value, fit.gradient_norm]
    for hyperparameters in (start, fit.model):
        c = kx.condition(hyperparameters, data)
        prediction = kx.predict(c, X_NEW)
        finite += [c.alpha, prediction.mean, prediction.variance, kx.log_marginal_likelihood(c), kx.loo_residuals(c)]
    assert all(np.isfinite(leaf).all() for leaf in finite)
    np.testing.assert_array_less(fit.value, kx.selection.negative_log_marginal_likelihood(kx.condition(start, data)) + 1e-9)


def test_h18_many_more_columns_than_rows_take_the_dual_path():
    x, x_new = RNG.normal(size=(6, 100_000)), RNG.normal(size=(3, 100_000))
    # A matrix of columns by columns would take 80 GB.
    c = kx.condition(kx.Model(kx.Linear(), noise=2.0), kx.Data(x, Y[:6]))
    want = x_new @ (x.T @ np.linalg.solve(x @ x.T + 2.0 * np.eye(6), Y[:6]))
    np.testing.assert_allclose(kx.mean(c, x_new), want, rtol=1e-9)


def test_h18_dual_path_equals_primal_ridge_regression():
    x, x_new = RNG.normal(size=(6, 50)), RNG.normal(size=(3, 50))
    c = kx.condition(kx.Model(kx.Linear(), noise=2.0), kx.Data(x, Y[:6]))
    weights = np.linalg.solve(x.T @ x + 2.0 * np.eye(50), x.T @ Y[:6])
    np.testing.assert_allclose(kx.mean(c, x_new), x_new @ weights, rtol=1e-10)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, -np.inf])
def test_h20_hyperparameters_out_of_range_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=r"^Model\.noise must be finite and not negative, got"):
        kx.Model(kx.RBF(), noise=bad)
    with pytest.raises(ValueError, match=r"^Model\.noise must be finite and not negative, got"):
        kx.Model(kx.RBF(), noise=[0.1, bad])
    with pytest.raises(ValueError, match=r"^RBF\.lengthscale must be finite and positive, got"):
        kx.RBF(lengthscale=bad)
    with pytest.raises(ValueError, match=r"^Matern32\.lengthscale must be finite and positive, got"):
        kx.Matern32(lengthscale=[1.0, bad])
    with pytest.raises(ValueError, match=r"^Scale\.variance must be finite and positive, got"):
        bad * kx.RBF()
    with pytest.raises(ValueError, match=r"^Linear\.variance must be finite and positive, got"):
        kx.Linear(variance=bad)


def test_h20_zero_is_refused_where_it_means_nothing():
    with pytest.raises(ValueError, match=r"^RBF\.lengthscale must be finite and positive, got 0"):
        kx.RBF(lengthscale=0)
    with pytest.raises(ValueError, match=r"^Scale\.variance must be finite and positive, got 0"):
        0 * kx.RBF()
    assert kx.Model(kx.RBF(), noise=0).noise == 0.0


def test_h20_hyperparameters_out_of_range_are_flagged_in_a_batch():
    def condition(noise, variance, lengthscale):
        return kx.condition(kx.Model(variance * kx.RBF(lengthscale), noise), kx.Data(X, Y))

    c = jax.vmap(condition)(
        jnp.array([0.1, -3.0, np.nan, 0.1, 0.1, 0.1]),
        jnp.array([1.0, 1.0, 1.0, -1.0, np.nan, 1.0]),
        jnp.array([1.5, 1.5, 1.5, 1.5, 1.5, np.nan]),
    )
    np.testing.assert_array_equal(c.result == kx.Result.successful, [True] + 5 * [False])
    np.testing.assert_array_equal(c.result == kx.Result.nonfinite, [False, False, True, False, True, True])
    np.testing.assert_array_equal(c.result == kx.Result.not_positive_definite, [False, True, False, True, False, False])
    want = np.linalg.solve(oracle.rbf(X, lengthscale=1.5) + 0.1 * np.eye(8), Y)
    np.testing.assert_allclose(c.alpha[0], want, rtol=1e-10)
