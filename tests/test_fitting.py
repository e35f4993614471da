"""Fitting: the optimum that others find, whatever the optimiser, the layout and the objective."""

import functools
import re
import warnings

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize, rosen, rosen_der
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import kernax as kx
from kernax._bars import progress_bar
from kernax.fitting import _lanes, _rounds
from kernax.learners import _pivoting
from kernax.solvers import _suggest
from tests.tables import points, targets

X = points(40, seed=2)
Y = targets(X)
DATA = kx.Data(X, Y)
MODEL = kx.Model(1.0 * kx.RBF(lengthscale=[1.0, 1.0]), noise=1.0)


@pytest.fixture(scope="module")
def fitted():
    return kx.fit(MODEL, DATA)


@pytest.fixture(scope="module")
def best_known():
    """scikit-learn's optimum of the log marginal likelihood."""
    kernel = sk.ConstantKernel(1.0) * sk.RBF([1.0, 1.0]) + sk.WhiteKernel(1.0)
    return GaussianProcessRegressor(kernel).fit(X, Y).log_marginal_likelihood_value_


def test_reaches_the_optimum_of_scikit_learn(fitted, best_known):
    assert fitted.result == kx.Result.successful
    assert -float(fitted.value) > best_known - 1e-3
    assert fitted.history.shape == (int(fitted.num_steps),)
    np.testing.assert_allclose(fitted.value, np.nanmin(fitted.history))
    c = kx.condition(fitted.model, DATA)
    np.testing.assert_allclose(kx.selection.negative_log_marginal_likelihood(c), fitted.value, rtol=1e-9)
    assert "successful" in repr(fitted)
    assert "evaluations" in str(kx.report(fitted))


@pytest.mark.parametrize(
    ("optimiser", "max_steps"),
    [(optax.adam(0.1), 400), (optax.lbfgs(), 60), (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.02)), 1500)],
    ids=["adam", "optax_lbfgs", "chain"],
)
def test_any_optax_optimiser(optimiser, max_steps, best_known):
    answer = kx.fit(MODEL, DATA, optimiser=optimiser, max_steps=max_steps)
    assert -float(answer.value) > best_known - 0.05


def test_lbfgs_alone_minimises_rosenbrocks_function_as_fast_as_scipy():
    optimiser = kx.fitting.lbfgs()
    value_and_grad = jax.jit(jax.value_and_grad(lambda v: jnp.sum(100 * (v[1:] - v[:-1] ** 2) ** 2 + (1 - v[:-1]) ** 2)))
    update = jax.jit(lambda g, s, v, f: optimiser.update(g, s, v, value=f))
    v = jnp.asarray([-1.2, 1.0, -0.5, 2.0])
    state, evaluations = optimiser.init(v), 0
    while evaluations < 300:
        value, gradient = value_and_grad(v)
        evaluations += 1
        if jnp.max(jnp.abs(gradient)) < 1e-6:
            break
        step, state = update(gradient, state, v, value)
        v = optax.apply_updates(v, step)
    np.testing.assert_allclose(v, 1.0, rtol=1e-6)
    theirs = minimize(rosen, [-1.2, 1.0, -0.5, 2.0], jac=rosen_der, method="L-BFGS-B", options={"gtol": 1e-6})
    assert evaluations <= 1.5 * theirs.nfev


def test_lbfgs_steps_back_from_points_without_a_value():
    """log(v) + 1/v has no value for v ≤ 0: the search comes back from there."""
    optimiser = kx.fitting.lbfgs()

    def objective(v):
        return jnp.sum(jnp.where(v > 0, jnp.log(jnp.abs(v)) + 1 / v, jnp.nan))

    v = jnp.asarray([0.05, 3.0])
    state = optimiser.init(v)
    update = jax.jit(lambda s, v: optimiser.update(jax.grad(objective)(v), s, v, value=objective(v)))
    for _ in range(60):
        step, state = update(state, v)
        v = v + step
    np.testing.assert_allclose(v, 1.0, rtol=1e-5)


@pytest.mark.parametrize("objective", [kx.loo_mse, kx.loo_negative_log_density])
def test_other_objectives_end_where_their_gradient_vanishes(objective):
    answer = kx.fit(MODEL, DATA, objective=objective)
    vector, rebuild = kx.parameters.ravel(answer.model)

    def value(v):
        return objective(kx.condition(rebuild(jnp.asarray(v)), DATA))

    theirs = minimize(jax.jit(jax.value_and_grad(value)), vector, jac=True, method="BFGS")
    assert float(answer.value) <= theirs.fun + 1e-4 * abs(theirs.fun)


def test_an_objective_of_ones_own():
    """Any scalar of a `Conditioned`: here a ridge on the coefficients beside the leave-one-out error."""
    answer = kx.fit(MODEL, DATA, objective=lambda c: kx.loo_mse(c) + 1e-3 * jnp.sum(c.alpha**2))
    assert answer.result == kx.Result.successful


def test_restarts_keep_the_best_and_both_layouts_agree(monkeypatch):
    """Lanes in threads and lanes under vmap arrive at the same values; the best of them is what is returned."""
    rough = kx.Model(1.0 * kx.RBF(lengthscale=[30.0, 30.0]), noise=5.0)
    answer = kx.fit(rough, DATA, restarts=3, key=jax.random.key(3))
    assert answer.start_values.shape == (4,)
    assert float(answer.value) == float(answer.start_values.min())
    again = kx.fit(rough, DATA, restarts=3, key=jax.random.key(3))
    chex.assert_trees_all_equal(answer.start_values, again.start_values)
    monkeypatch.setattr(_rounds, "run_lanes", functools.partial(_lanes.run_lanes, together=True))
    together = kx.fit(rough, DATA, restarts=3, key=jax.random.key(3))
    np.testing.assert_allclose(together.start_values, answer.start_values, rtol=1e-6)


def test_summands_of_one_kind_start_in_the_ratios_that_were_given():
    model = kx.Model(1.0 * kx.RBF(8.0) + 1.0 * kx.RBF(2.0) + 1.0 * kx.Matern32(5.0), noise=1.0)
    first, second, other = (k.kernel.lengthscale for k in kx.initialise(model, DATA).kernel.kernels)
    np.testing.assert_allclose([first / second, first * second], [4.0, other**2], rtol=1e-9)


def test_random_starts_are_drawn_from_the_priors():
    model = kx.with_prior(kx.Model(kx.RBF(), noise=0.1), lambda m: m.kernel.lengthscale, kx.priors.LogNormal(5.0, 0.01))
    answer = kx.fit(model, DATA, restarts=1, max_steps=1, key=jax.random.key(0))
    np.testing.assert_allclose(answer.model.kernel.lengthscale, np.exp(5.0), rtol=0.05)


def test_initial_values_suit_the_data():
    model = kx.Model(1.0 * kx.RBF(lengthscale=[1.0, 1.0]) + 1.0 * kx.Matern32(), noise=1.0, mean=kx.means.Constant(0.0))
    x, y = X * [100.0, 0.01], 50.0 + 10.0 * Y
    start = kx.initialise(model, kx.Data(x, y))
    pairs = np.abs(x[:, None] - x[None])[~np.eye(40, dtype=bool)]
    np.testing.assert_allclose(
        start.kernel.kernels[0].kernel.lengthscale, 0.5 * np.sqrt(2) * np.median(pairs, axis=0), rtol=1e-9
    )
    whole = np.median(np.linalg.norm(x[:, None] - x[None], axis=-1)[~np.eye(40, dtype=bool)])
    np.testing.assert_allclose(start.kernel.kernels[1].kernel.lengthscale, 0.5 * whole, rtol=1e-9)
    np.testing.assert_allclose(start.kernel.kernels[0].variance, y.var() / 2, rtol=1e-9)
    np.testing.assert_allclose(start.noise, 0.1 * y.var(), rtol=1e-9)
    np.testing.assert_allclose(start.mean.value, y.mean(), rtol=1e-9)
    garbage = np.concatenate([x, 1e9 * np.ones((5, 2))]), np.append(y, np.full(5, np.nan))
    masked = kx.initialise(model, kx.Data(*garbage, mask=np.arange(45) < 40))
    chex.assert_trees_all_close(masked, start, rtol=1e-9)


def test_a_deep_kernel_is_trained_jointly():
    network = eqx.nn.MLP(2, 1, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
    model = kx.Model(1.0 * kx.Warp(kx.RBF(), network), noise=1.0)
    answer = kx.fit(model, DATA, max_steps=30)
    before, after = model.kernel.kernel.transform.layers[0].weight, answer.model.kernel.kernel.transform.layers[0].weight
    assert float(answer.value) < float(answer.history[0])
    assert np.abs(np.asarray(before - after)).max() > 1e-3


def test_fits_under_jit_equal_eager_fits(fitted):
    inside = eqx.filter_jit(lambda y: kx.fit(MODEL, kx.Data(X, y)))(jnp.asarray(Y))
    np.testing.assert_allclose(inside.value, fitted.value, rtol=1e-9)
    assert int(inside.num_steps) == int(fitted.num_steps)
    assert np.isnan(np.asarray(inside.history)[int(inside.num_steps) :]).all()


def test_the_progress_bar_shows_evaluations_their_time_and_the_best_value(capsys, monkeypatch):
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    fitted = kx.fit(MODEL, DATA, progress=True)
    shown = capsys.readouterr().err
    assert "compiling" in shown
    assert re.search(r"fit: \d+ evaluations in \d\d:\d\d, [\d.e-]+ s each, at most \d\d:\d\d left, value=", shown)
    assert f"{int(fitted.num_steps)} evaluations" in shown
    assert "/500" not in shown, "a share of max_steps would look like the progress of the fit"


def test_the_time_of_an_evaluation_leaves_out_compilation_and_earlier_runs(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with progress_bar(True, 500) as show:
        show(100, 9.0, earlier=True)
        now[0] = 20.0
        show(1, 8.0)  # compiles for 20 seconds
        now[0] = 30.0
        show(10, 8.5)
    shown = capsys.readouterr().err
    assert "101 evaluations in 00:20, value=8" in shown
    assert "111 evaluations in 00:30, 1 s each, at most 06:29 left, value=8" in shown


@pytest.fixture
def few_rows_are_many(monkeypatch):
    monkeypatch.setattr(_suggest, "_SLOW_ROWS", 5)


def test_a_dense_solver_with_many_rows_warns_once(few_rows_are_many, monkeypatch):
    with pytest.warns(kx.solvers.SlowSolverWarning) as caught:
        kx.fit(MODEL, DATA, max_steps=2, restarts=1)
    (warning,) = [one for one in caught if one.category is kx.solvers.SlowSolverWarning]
    assert warning.filename == __file__
    said = f"kx.Cholesky() with {DATA.n} rows takes O(n³) per evaluation. progress=True shows progress."
    assert str(warning.message) == said
    monkeypatch.setattr(_suggest, "_FEW", 1)
    monkeypatch.setattr(_suggest, "_FEW_OF_SERIES", 1)
    monkeypatch.setattr(_suggest, "_MANY", 6)
    with pytest.warns(kx.solvers.SlowSolverWarning, match=r"kx\.suggest_solver\(model, data\) suggests kx\.\w+\(\)\.$"):
        kx.fit(MODEL, DATA, max_steps=2, progress=True)


def test_no_warning_where_a_fit_is_fast_or_traced_or_shown(few_rows_are_many):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kx.fit(MODEL, DATA, max_steps=2, progress=True)
        kx.fit(MODEL, DATA, max_steps=2, solver=kx.Vecchia(3))
        jax.jit(lambda noise: kx.fit(kx.Model(MODEL.kernel, noise), DATA, max_steps=2).value)(0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"restarts": -1}, "restarts"), ({"max_steps": 0}, "max_steps"), ({"patience": 0}, "patience")],
)
def test_bad_settings_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        kx.fit(MODEL, DATA, **change)


def test_a_parameter_that_is_zero_cannot_be_fitted():
    with pytest.raises(ValueError, match="noise is 0"):
        kx.fit(kx.Model(kx.RBF(), noise=0.0), DATA)


def test_initial_values_look_at_rows_that_count_and_at_bounds():
    x = np.zeros((1200, 1))
    x[1::2, 0] = np.random.default_rng(0).normal(size=600) * 50
    mask = np.arange(1200) % 2 == 1
    model = kx.Model(kx.RBF(), noise=0.1, mean=kx.means.Constant(0.0))
    start = kx.initialise(model, kx.Data(x, x[:, 0], mask))
    np.testing.assert_allclose(start.kernel.lengthscale, np.median(np.abs(x[1::2] - x[1::2].T)) / 3, rtol=0.1)
    bounded = kx.with_bijector(model, lambda m: m.noise, kx.bijectors.Interval(0.05, 0.2))
    assert 0.05 <= float(kx.initialise(bounded, kx.Data(x, x[:, 0], mask)).noise) <= 0.2
    nothing = kx.initialise(model, kx.Data(x, x[:, 0], np.zeros(1200, bool)))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(nothing))


def test_fits_inside_traces_that_touch_neither_model_nor_data(fitted):
    """Model and data are constants of the traced function; what is traced is a test input or a key."""
    means = jax.jit(lambda x: kx.mean(kx.condition(kx.fit(MODEL, DATA).model, DATA), x))(jnp.asarray(X[:3]))
    np.testing.assert_allclose(means, kx.mean(kx.condition(fitted.model, DATA), X[:3]), rtol=1e-6)
    values = jax.vmap(lambda key: kx.fit(MODEL, DATA, restarts=1, key=key).value)(jax.random.split(jax.random.key(0), 2))
    assert (np.asarray(values) <= float(fitted.value) + 1e-3).all()


def test_a_fit_has_no_derivative_and_says_so():
    with pytest.raises(TypeError, match="no derivative"):
        jax.grad(lambda y: kx.fit(MODEL, kx.Data(X, y)).value)(jnp.asarray(Y))


@pytest.mark.parametrize(
    "call",
    [
        lambda: kx.fit(MODEL, (X, Y)),
        lambda: kx.fit(kx.RBF(), DATA),
        lambda: kx.fit(MODEL, DATA, optimiser="adam"),
        lambda: kx.fit(MODEL, DATA, objective="loo"),
        lambda: kx.mean(MODEL, X),
        lambda: kx.condition(MODEL, DATA, "eigh"),
        lambda: kx.with_prior(MODEL, lambda m: m.noise, 3.0),
        lambda: kx.with_bijector(MODEL, lambda m: m.noise, kx.bijectors.Positive),
    ],
)
def test_what_is_no_model_data_or_strategy_is_refused(call):
    with pytest.raises(TypeError):
        call()


def test_bad_trees_and_bounds_are_refused():
    with pytest.raises(ValueError, match="make it with kx"):
        kx.fit(MODEL, DATA, trainable=kx.parameters.trainable(kx.Model(kx.RBF(), noise=0.1)))
    with pytest.raises(ValueError, match="between 2 and 3"):
        kx.with_bijector(MODEL, lambda m: m.noise, kx.bijectors.Interval(2.0, 3.0))


def test_a_fit_goes_on_where_it_ended(fitted):
    adam = optax.adam(optax.exponential_decay(0.05, 10, 0.9))
    whole = kx.fit(MODEL, DATA, optimiser=adam, max_steps=25)
    first = kx.fit(MODEL, DATA, optimiser=adam, max_steps=10)
    second = kx.fit(first, DATA, optimiser=adam, max_steps=15)
    np.testing.assert_array_equal(np.concatenate([first.history, second.history]), whole.history)
    assert second.value == whole.value
    # L-BFGS knows that there is nothing left to gain.
    again = kx.fit(fitted, DATA)
    assert again.num_steps == 1
    assert again.value == fitted.value
    # Another optimiser, other free parameters, and a fit from a file start afresh at the same point.
    other = kx.fit(fitted, DATA, optimiser=adam, max_steps=1)
    np.testing.assert_allclose(other.value, fitted.value, rtol=1e-12)
    part = kx.fit(fitted, DATA, trainable=kx.freeze(MODEL, lambda m: m.noise), max_steps=1)
    np.testing.assert_allclose(part.value, fitted.value, rtol=1e-12)


def test_a_continued_fit_resumes_from_its_checkpoint_and_no_other(fitted, tmp_path):
    adam = optax.adam(0.05)
    first = kx.fit(MODEL, DATA, optimiser=adam, max_steps=3)
    second = kx.fit(first, DATA, optimiser=adam, max_steps=3, checkpoint=tmp_path)
    assert kx.fit(first, DATA, optimiser=adam, max_steps=3, checkpoint=tmp_path).value == second.value
    with pytest.raises(ValueError, match="another"):
        kx.fit(first.model, DATA, optimiser=adam, max_steps=3, checkpoint=tmp_path)


@pytest.mark.parametrize("keep", ["average", "last", "best"])
def test_random_batches_of_rows_lead_near_the_optimum(keep, fitted):
    objective = kx.fitting.Stochastic(kx.selection.negative_log_marginal_likelihood, rows=20, keep=keep, over=30)
    found = kx.fit(MODEL, DATA, objective=objective, max_steps=150)
    assert found.result == kx.Result.successful
    assert found.num_steps == len(found.history) == 150
    assert len(set(np.asarray(found.history))) == 150
    reached = float(kx.log_marginal_likelihood(kx.condition(found.model, DATA)))
    begun = float(kx.log_marginal_likelihood(kx.condition(MODEL, DATA)))
    assert reached > -float(fitted.value) - 0.2 * (-float(fitted.value) - begun)
    if keep == "best":
        assert found.value == found.history.min()
    if keep == "last":
        np.testing.assert_allclose(found.value, found.history[-1], rtol=1e-12)


def test_an_average_of_the_last_points_is_that_of_their_unconstrained_numbers():
    objective = kx.fitting.Stochastic(functools.partial(kx.selection.kfold_mse, folds=4), keep="average", over=3)
    sgd, start = optax.sgd(0.1), MODEL
    points_seen, values = [], []
    for steps in range(1, 5):  # the last points of shorter fits are the points of the longer one
        last = kx.fitting.Stochastic(objective.objective, keep="last")
        found = kx.fit(start, DATA, objective=last, optimiser=sgd, max_steps=steps)
        points_seen.append(np.log(found.model.kernel.kernel.lengthscale))
        values.append(float(found.value))
    average = kx.fit(start, DATA, objective=objective, optimiser=sgd, max_steps=4)
    expected, value = points_seen[0], values[0]
    for number, (point, new) in enumerate(zip(points_seen[1:], values[1:], strict=True), start=2):
        share = 1 / min(number, 3)
        expected, value = expected + share * (point - expected), value + share * (new - value)
    np.testing.assert_allclose(np.log(average.model.kernel.kernel.lengthscale), expected, rtol=1e-10)
    np.testing.assert_allclose(average.value, value, rtol=1e-12)


def test_many_random_fits_are_those_of_fit():
    objective = kx.fitting.Stochastic(kx.selection.negative_log_marginal_likelihood, rows=8)
    fits = kx.fit_many(MODEL, [(X[:15], Y[:15]), (X[20:], Y[20:])], objective=objective, max_steps=5, key=jax.random.key(3))
    one = kx.fit(MODEL, kx.Data(X[20:], Y[20:]), objective=objective, max_steps=5, key=jax.random.key(3))
    assert list(fits.result_names) == ["successful"] * 2
    np.testing.assert_allclose(fits.value[1], one.value, rtol=1e-10)
    np.testing.assert_allclose(fits.model.noise[1], one.model.noise, rtol=1e-10)


def test_random_objectives_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match="nothing random"):
        kx.fitting.Stochastic(kx.loo_mse)
    with pytest.raises(ValueError, match="one of average, last, best"):
        kx.fitting.Stochastic(kx.loo_mse, rows=8, keep="first")
    with pytest.raises(ValueError, match="1 or more"):
        kx.fitting.Stochastic(kx.loo_mse, rows=0)
    objective = kx.fitting.Stochastic(kx.loo_mse, rows=8)
    with pytest.raises(TypeError, match="chooses among all rows"):
        kx.fit(MODEL, DATA, objective=objective, solver=kx.Vecchia())
    with pytest.raises(ValueError, match="per row"):
        kx.fit(kx.Model(kx.RBF(), noise=np.ones(40)), DATA, objective=objective)
    with pytest.raises(TypeError, match="must not be random"):
        kx.fit_many(MODEL, [(X, Y)], objective=objective, shared=True)


# A fit as a start


def test_a_fit_starts_whatever_takes_a_model(fitted):
    for function in (kx.initialise, kx.select_ridge, functools.partial(kx.compare_selectors, verbose=False)):
        assert repr(function(fitted, DATA)) == repr(function(fitted.model, DATA))
    held = kx.freeze(MODEL, where=lambda m: m.kernel)
    with pytest.warns(UserWarning, match="noise has no prior"):
        density, start, _ = kx.fitting.log_posterior(fitted, DATA, trainable=held)
    assert start == pytest.approx(np.log(float(fitted.model.noise)))
    assert np.isfinite(density(start))
    with pytest.raises(TypeError, match=r"choose one of them, fits\[0\]\.model"):
        kx.select_ridge(kx.fit_many(MODEL, [(X, Y)], max_steps=1), DATA)


@pytest.mark.parametrize("name", ["SVR", "SVC"])
def test_folds_start_from_the_answer_for_all_rows(name, monkeypatch):
    """Pair steps, with which a cold start begins, are counted."""
    steps, original = [], _pivoting._pair_step

    def counted(*arguments):
        jax.debug.callback(lambda: steps.append(1))
        return original(*arguments)

    monkeypatch.setattr(_pivoting, "_pair_step", counted)
    _pivoting._solver.cache_clear()
    try:
        machine = getattr(kx.learners, name)(kx.RBF([1.0, 1.0]), C=1.0)
        y = Y if name == "SVR" else np.where(Y > 0.0, 1.0, -1.0)
        fold = np.arange(len(y)) % 10
        c = jax.block_until_ready(kx.condition(machine, kx.Data(X, y)))
        steps.clear()
        for number in range(10):
            kx.condition(machine, kx.Data(X, y, fold != number))
        jax.effects_barrier()
        cold = len(steps)
        kx.learners.kfold_loss(c, jnp.asarray(fold)).block_until_ready()
        jax.effects_barrier()
        assert 0 < len(steps) - cold < 0.8 * cold  # measured: 0.5 (SVR), 0.6 (SVC); 1 if every fold started from nothing
    finally:
        _pivoting._solver.cache_clear()
        jax.clear_caches()
