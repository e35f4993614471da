"""The laws that every System obeys, from one table: what a solver prepares equals dense NumPy, masks, failures and all."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from tests.tables import SYSTEMS, TOLERANCES, dense_oracle, garbage, second_derivatives

EXACT = [name for name, case in SYSTEMS.items() if case.is_exact]
ALL = list(SYSTEMS)
OPTIONAL = {name: case for name, case in SYSTEMS.items() if case.has_inverse}


def conditioned(name, vector=None, noise=None, trend=None, **data):
    """The case's model, with its parameters from a vector of the unconstrained space if one is given."""
    case = SYSTEMS[name]
    model = case.model(noise=noise, trend=trend)
    if vector is not None:
        model = kx.parameters.ravel(model)[1](vector)
    return kx.condition(model, case.data(**data), case.solver, throw=False)


@eqx.filter_jit
def answers(c, x):
    """Evidence, prediction, covariance and, if it is offered, leave-one-out, in one program."""
    loo = None if c.system.inverse_diagonal() is None else kx.loo_residuals(c)
    return kx.log_marginal_likelihood(c), kx.predict(c, x), kx.covariance(c, x), loo


def summary(c, x):
    """Everything that a System with all answers has, as one vector."""
    prediction = kx.predict(c, x)
    values = [kx.log_marginal_likelihood(c)[None], prediction.mean, prediction.variance]
    if c.system.inverse_diagonal() is not None:
        values += [kx.loo_mse(c)[None], kx.gcv(c)[None]]
    if c.system.inverse_blocks(jnp.zeros((1, 1), int)) is not None:
        values += [kx.kfold_mse(c, 3)[None]]
    return jnp.concatenate(values)


@functools.cache
def slope_program(name):
    """The gradient of a sum of all answers behind a `where`; the answers, the result and the weights of the rows."""
    case = SYSTEMS[name]
    vector, rebuild = kx.parameters.ravel(case.model(noise=0.2))

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def slope(v, x, y, mask):
        c = kx.condition(rebuild(v), kx.Data(x, y, mask), case.solver, throw=False)
        values = summary(c, case.new)
        total = jnp.sum(jnp.sin(1.0 + jnp.arange(values.size)) * values)
        return jnp.where(c.ok, total, 0.0), (values, c.result, c.alpha)

    return functools.partial(slope, vector)


@pytest.mark.parametrize("noise", [0.05, 30.0])
@pytest.mark.parametrize("name", ALL)
def test_answers_equal_the_dense_oracle(name, noise):
    case = SYSTEMS[name]
    c = conditioned(name, noise=noise)
    oracle = dense_oracle(case.kernel, noise, case.x, case.y, case.new)
    assert c.result == kx.Result.successful
    likelihood, prediction, covariance, loo = answers(c, case.new)
    assert prediction.mean.dtype == prediction.variance.dtype == np.float64
    np.testing.assert_allclose(likelihood, oracle.evidence, rtol=case.tolerance)
    np.testing.assert_allclose(prediction.mean, oracle.mean, rtol=case.tolerance, atol=case.tolerance)
    np.testing.assert_allclose(prediction.variance, oracle.variance, rtol=case.tolerance, atol=case.tolerance)
    np.testing.assert_allclose(covariance, oracle.covariance, rtol=case.tolerance, atol=case.tolerance)
    if case.has_inverse:
        np.testing.assert_allclose(loo, oracle.loo, rtol=case.tolerance, atol=case.tolerance)
    else:
        assert loo is None
        with pytest.raises(TypeError, match=r"leave-one-out needs the diagonal of the inverse, which CG does not offer"):
            kx.loo_residuals(c)


@pytest.mark.parametrize("name", ALL)
def test_derivatives_are_right_to_second_order(name):
    """Of evidence, mean, variance and leave-one-out, against plain autodiff of a dense inverse."""
    case = SYSTEMS[name]
    vector, rebuild = kx.parameters.ravel(case.model(noise=0.3))
    second_derivatives(
        lambda v: case.scalar(kx.condition(rebuild(v), case.data(), case.solver)),
        lambda v: case.dense_scalar(rebuild(v)),
        vector,
        first_only=not case.is_exact,
    )


@pytest.mark.parametrize("name", ALL)
def test_garbage_behind_a_mask_changes_no_value_and_no_gradient(name):
    case = SYSTEMS[name]
    if case.is_grid:
        pytest.skip("a grid with masked cells is no Kronecker product: CG multiplies it")
    padding = garbage(case.x, case.y)
    plain, (values, result, _) = slope_program(name)(case.x, case.y, np.ones(12, bool))
    padded, (same, _, alpha) = slope_program(name)(padding.x, padding.y, padding.mask)
    assert result == kx.Result.successful
    assert np.any(plain != 0)
    np.testing.assert_allclose(same, values, rtol=1e-9)
    np.testing.assert_allclose(padded, plain, rtol=1e-7, atol=1e-9)
    assert not np.any(alpha[~padding.mask])


@pytest.mark.parametrize("solver", [kx.Cholesky(), kx.Eigh()], ids=["cholesky", "eigh"])
def test_h46_padding_changes_nothing_when_jitter_is_needed(solver):
    """Rows twice, a huge variance, float32: without jitter on the rows that count alone, every quantity would move."""
    x = np.repeat(np.linspace(0.0, 3.0, 4), 2)[:, None].astype("float32")
    y = np.sin(x[:, 0]) + np.array([0.1, -0.1] * 4, "float32")
    model = kx.Model(1e6 * kx.RBF(), noise=1e-3)

    def value(model, data):
        c = kx.condition(model, data, solver, throw=False)
        values = summary(c, x[:3] + np.float32(0.1))
        return values[0], (values, c.jitter)

    padded = kx.Data(np.concatenate([x, x]), np.concatenate([y, y]), mask=np.arange(16) < 8)
    plain, longer = (jax.jit(jax.grad(value, has_aux=True))(model, data) for data in (kx.Data(x, y), padded))
    assert plain[1][1] > 0
    np.testing.assert_allclose(longer[1][1], plain[1][1], rtol=1e-5)
    np.testing.assert_allclose(longer[1][0], plain[1][0], rtol=2e-2, atol=1e-2)
    np.testing.assert_allclose(longer[1][0][0], plain[1][0][0], rtol=1e-3)
    np.testing.assert_allclose(*(jnp.stack(jax.tree.leaves(g[0])) for g in (longer, plain)), rtol=0.1)


@pytest.mark.parametrize("name", ALL)
def test_solve_is_linear_with_what_it_keeps(name):
    case = SYSTEMS[name]
    system = conditioned(name, noise=0.3).system
    n = case.y.shape[0]
    b = jnp.asarray(np.random.default_rng(3).normal(size=(n, 2)))
    new = kx.rows.take(kx.rows.as_rows(case.new, "x"))

    @eqx.filter_jit
    def solved(system):
        both, one, two = system.solve(b), system.solve(b[:, 0]), system.solve(b[:, 1])
        total = jax.tree.map(lambda a, b: a + 2.0 * b if eqx.is_inexact_array(a) else a, one, two)
        values = both.value, jnp.stack([one.value, two.value], axis=1)
        return values, [system.mean(new, solution) for solution in (both, one, two, total)]

    values, (both, one, two, total) = solved(system)
    np.testing.assert_allclose(*values, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(both[:, 1], two, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(total, one + 2.0 * two, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "trend"), [("state_space", None), ("state_space", 1), ("vecchia", None), ("cg", None)])
def test_folds_are_refits_without_them(name, trend):
    """Of the solvers that condition again without each fold, one column of targets and two."""
    case, labels = SYSTEMS[name], np.arange(12) * 5 % 3
    y = case.y if trend is None else np.stack([case.y, case.y**2], axis=1)
    residuals = kx.kfold_residuals(conditioned(name, noise=0.1, trend=trend, y=y), labels)
    for fold in range(3):
        out = labels == fold
        for ours, values in zip(residuals.T.reshape(-1, 12), y.T.reshape(-1, 12), strict=True):
            oracle = dense_oracle(case.kernel, 0.1, case.x[~out], values[~out], case.x[out], trend)
            np.testing.assert_allclose(ours[out], values[out] - oracle.mean, atol=10 * case.tolerance)


def test_the_ridge_by_folds_of_a_series():
    """And the slope of its score, against Eigh, which has the blocks of the inverse."""
    case, labels = SYSTEMS["state_space"], np.arange(12) % 4

    def score(noise, solver):
        return kx.kfold_mse(kx.condition(case.model(noise=noise), case.data(), solver), labels)

    choice = kx.select_ridge(case.model(), case.data(), "kfold", ridges=[0.05, 0.4], folds=labels, solver=case.solver)
    np.testing.assert_allclose(choice.values, [score(noise, kx.Eigh()) for noise in (0.05, 0.4)], rtol=1e-9)
    ahead, behind = (score(noise, kx.Eigh()) for noise in (0.05 + 1e-6, 0.05 - 1e-6))
    np.testing.assert_allclose(jax.grad(score)(0.05, case.solver), (ahead - behind) / 2e-6, rtol=1e-6)


def test_folds_of_a_grid_name_the_remedy():
    with pytest.raises(TypeError, match=r"leaves rows out.*every cell of the grid.*kx\.CG"):
        kx.kfold_mse(conditioned("kronecker"), 3)


@pytest.mark.parametrize("name", [name for name, case in SYSTEMS.items() if case.can_shift])
def test_another_noise_from_the_same_factorisation(name):
    case = SYSTEMS[name]
    moved, fresh = kx.recondition(conditioned(name, noise=0.1), noise=2.0), conditioned(name, noise=2.0)
    np.testing.assert_allclose(summary(moved, case.new), summary(fresh, case.new), rtol=1e-8)
    path = kx.ridge_path(conditioned(name, noise=1.0), [0.1, 2.0])
    np.testing.assert_allclose(path.log_marginal_likelihood[1], kx.log_marginal_likelihood(fresh), rtol=1e-8)
    choice = kx.select_ridge(case.model(noise=1.0), case.data(), by="likelihood", solver=case.solver)
    ridge = float(choice.ridge)
    others = [-float(kx.log_marginal_likelihood(conditioned(name, noise=ridge * f))) for f in (0.9, 1.1)]
    assert choice.value <= min(others) + 1e-6


@pytest.mark.parametrize("name", [name for name, case in SYSTEMS.items() if not case.can_shift])
def test_h47_a_question_that_a_system_cannot_answer_names_the_remedy(name):
    with pytest.raises(
        TypeError, match=r"another ridge needs another noise .* does not offer here: condition with kx\.Eigh"
    ):
        kx.recondition(conditioned(name), noise=2.0)


@pytest.mark.parametrize("name", ALL)
def test_a_trend_is_left_free(name):
    """Universal kriging with every System, against the bordered matrix itself."""
    case = SYSTEMS[name]
    c = conditioned(name, noise=0.3, trend=case.trend)
    oracle = dense_oracle(case.kernel, 0.3, case.x, case.y, case.new, case.trend)
    likelihood, prediction, _, loo = answers(c, case.new)
    np.testing.assert_allclose(likelihood, oracle.evidence, rtol=10 * case.tolerance)
    if case.has_inverse:
        np.testing.assert_allclose(loo, oracle.loo, rtol=10 * case.tolerance, atol=10 * case.tolerance)
    np.testing.assert_allclose(prediction.mean, oracle.mean, rtol=10 * case.tolerance, atol=10 * case.tolerance)
    np.testing.assert_allclose(prediction.variance, oracle.variance, rtol=10 * case.tolerance, atol=10 * case.tolerance)


@pytest.mark.parametrize("name", ALL)
def test_eager_jit_and_vmap_agree(name):
    case = SYSTEMS[name]
    ys = np.stack([case.y, 2 * case.y, case.y[::-1]])

    def values(y):
        return summary(kx.condition(case.model(noise=0.2), case.data(y=y), case.solver, throw=False), case.new)

    eager = np.stack([values(y) for y in ys])
    _, (alone, *_) = slope_program(name)(case.x, ys[1], np.ones(12, bool))  # the same summary of the same model
    together = jax.jit(jax.vmap(values))(ys)
    np.testing.assert_allclose(alone, eager[1], rtol=1e-9)
    np.testing.assert_allclose(together, eager, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_a_failure_has_a_result_nan_answers_and_finite_gradients_behind_where(name):
    """Targets with NaN that only tracing lets through; the gradient of what is selected stays finite."""
    case = SYSTEMS[name]
    y = np.where(np.arange(12) == 2, np.nan, case.y)
    gradient, (values, result, _) = slope_program(name)(case.x, y, np.ones(12, bool))
    assert result == kx.Result.nonfinite
    assert np.isnan(values).all()
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", ALL)
def test_fitted_saved_and_loaded(name, tmp_path):
    case = SYSTEMS[name]
    fit = kx.fit(case.model(noise=0.3), case.data(), solver=case.solver, max_steps=60)
    assert fit.value <= -kx.log_marginal_likelihood(conditioned(name, noise=0.3)) + 1e-6
    c = kx.condition(fit.model, case.data(), case.solver)
    kx.save(tmp_path / "c.kx", c)
    loaded = kx.load(tmp_path / "c.kx")
    np.testing.assert_array_equal(kx.mean(loaded, case.new), kx.mean(c, case.new))
    np.testing.assert_array_equal(kx.variance(loaded, case.new), kx.variance(c, case.new))


@pytest.mark.parametrize("name", [name for name, case in SYSTEMS.items() if not case.is_grid])
def test_many_datasets(name):
    """The shorter one alone has its missing rows behind a mask, so that it runs the program of the test before."""
    case = SYSTEMS[name]
    sets = [(case.x, case.y), (case.x[:9], case.y[:9])]
    fits = kx.fit_many(case.model(noise=0.3), sets, solver=case.solver, max_steps=60)
    short = kx.Data(case.x, case.y, np.arange(12) < 9)
    alone = kx.fit(case.model(noise=0.3), short, solver=case.solver, max_steps=60)
    np.testing.assert_allclose(fits[1].value, alone.value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_float32(name):
    case = SYSTEMS[name]
    c = kx.condition(case.model(noise=0.5), case.data(dtype=np.float32), case.solver)
    oracle = dense_oracle(case.kernel, 0.5, case.x, case.y, case.new)
    prediction = kx.predict(c, jax.tree.map(lambda leaf: jnp.asarray(leaf, np.float32), case.new))
    assert prediction.mean.dtype == prediction.variance.dtype == np.float32
    tolerance = max(50 * TOLERANCES[np.float32], case.tolerance)
    np.testing.assert_allclose(prediction.mean, oracle.mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(prediction.variance, oracle.variance, rtol=tolerance, atol=tolerance)


def test_the_log_determinant_of_an_explicit_matrix_moves_with_one_entry_alone():
    """The gradient of a matrix of the user's own is A⁻ᵀ, also for perturbations that are not symmetric."""
    matrix = np.cov(np.random.default_rng(0).normal(size=(4, 20)))

    def logdet(matrix):
        return kx.solvers.factorise_matrix(matrix, jnp.asarray(0.1), jnp.ones(4, bool)).logdet()

    inverse = np.linalg.inv(matrix + 0.1 * np.eye(4))
    np.testing.assert_allclose(jax.jit(jax.grad(logdet))(matrix), inverse, rtol=1e-10)
