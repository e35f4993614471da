"""Noise as a function of the row: per group, measured, smoothly varying, of one's own, and sums; wherever it is read."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx

rng = np.random.default_rng(2)
TIMES = rng.uniform(0, 6, size=(40, 1))
GROUPS = rng.integers(0, 2, size=40)
Y = np.sin(TIMES[:, 0]) + np.array([0.05, 0.6])[GROUPS] * rng.normal(size=40)
X = {"x": TIMES, "task": GROUPS}
NEW = {"x": np.array([[1.0], [2.5], [4.0]]), "task": np.array([0, 1, 1])}


def model(noise):
    return kx.Model(kx.Select(kx.RBF(), key="x"), noise=noise)


PER_GROUP = model(kx.noises.PerGroup("task", [0.1, 0.5]))


class Growing(eqx.Module):
    """Noise that grows with time; a module without declared parameters."""

    logs: jax.Array

    def __call__(self, row):
        return jnp.exp(self.logs[0] + self.logs[1] * row["x"][0])


def dense(noise, y=Y, times=TIMES, new=NEW["x"]):
    """Evidence, mean and variance by plain NumPy, for the noise of every row."""

    def gram(a, b):
        return np.exp(-0.5 * (a - b.T) ** 2)

    matrix = gram(times, times) + np.diag(noise)
    solved, cross = np.linalg.solve(matrix, y), gram(times, new)
    evidence = -0.5 * (y @ solved + np.linalg.slogdet(matrix)[1] + len(y) * np.log(2 * np.pi))
    return evidence, cross.T @ solved, 1 - np.sum(cross * np.linalg.solve(matrix, cross), axis=0)


@pytest.mark.parametrize("solver", [kx.Cholesky(), kx.Eigh()], ids=["cholesky", "eigh"])
def test_noise_per_group_against_dense_numpy(solver):
    c = kx.condition(PER_GROUP, kx.Data(X, Y), solver)
    noise = np.array([0.1, 0.5])
    evidence, mean, variance = dense(noise[GROUPS])
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), evidence, rtol=1e-10)
    np.testing.assert_allclose(kx.mean(c, NEW), mean, rtol=1e-9)
    np.testing.assert_allclose(kx.variance(c, NEW), variance, rtol=1e-8)
    np.testing.assert_allclose(kx.variance(c, NEW, noisy=True), variance + noise[NEW["task"]], rtol=1e-8)
    spread = kx.covariance(c, NEW, noisy=True)
    np.testing.assert_allclose(np.diag(spread), variance + noise[NEW["task"]], rtol=1e-8)
    # Two groups told apart by a boolean are groups as well.
    told = kx.Data({"x": TIMES, "task": GROUPS == 1}, Y)
    np.testing.assert_allclose(kx.log_marginal_likelihood(kx.condition(PER_GROUP, told, solver)), evidence, rtol=1e-10)


def test_fitted_frozen_raveled_and_given_a_prior():
    data = kx.Data(X, Y)
    fit = kx.fit(PER_GROUP, data)
    low, high = np.asarray(fit.model.noise.variances)
    assert 0.0005 < low < 0.02
    assert 0.15 < high < 0.8
    assert not np.any(fit.at_bound.noise.variances)
    held = kx.fit(PER_GROUP, data, trainable=kx.freeze(PER_GROUP, lambda m: m.noise))
    np.testing.assert_array_equal(held.model.noise.variances, PER_GROUP.noise.variances)
    assert held.value > fit.value
    vector, rebuild = kx.parameters.ravel(PER_GROUP)
    assert vector.shape == (3,)
    np.testing.assert_allclose(rebuild(vector).noise.variances, [0.1, 0.5])
    prior = kx.with_prior(PER_GROUP, lambda m: m.noise.variances, kx.priors.LogNormal(np.log(0.3), 0.01))
    pulled = kx.fit(prior, data).model.noise.variances
    np.testing.assert_allclose(pulled, [0.3, 0.3], rtol=0.1)
    bounded = kx.with_bijector(PER_GROUP, lambda m: m.noise.variances, kx.bijectors.Interval(0.05, 1.0))
    assert kx.fit(bounded, data).model.noise.variances[0] < 0.06
    started = kx.initialise(PER_GROUP, data)
    np.testing.assert_array_equal(started.noise.variances, PER_GROUP.noise.variances)
    text = str(kx.report(fit))
    assert "noise.variances[0]" in text
    assert "noise.variances[1]" in text
    assert "PerGroup" in repr(fit.model)


def test_a_module_of_ones_own_is_fitted_and_a_function_is_taken():
    data = kx.Data(X, Y)
    start = model(Growing(jnp.array([-2.0, 0.0])))
    fit = kx.fit(start, data)
    noise = np.exp(np.asarray(fit.model.noise.logs) @ np.stack([np.ones(40), TIMES[:, 0]]))
    lengthscale = float(fit.model.kernel.kernel.lengthscale)
    np.testing.assert_allclose(-fit.value, dense(noise, times=TIMES / lengthscale, new=NEW["x"])[0], rtol=1e-8)
    assert fit.value < -kx.log_marginal_likelihood(kx.condition(start, data)) - 1
    c = kx.condition(fit.model, data)
    expected = np.exp(np.asarray(fit.model.noise.logs) @ np.stack([np.ones(3), NEW["x"][:, 0]]))
    np.testing.assert_allclose(kx.variance(c, NEW, noisy=True) - kx.variance(c, NEW), expected, rtol=1e-8)
    assert "noise.logs" in str(kx.report(fit))
    plain = kx.condition(model(lambda row: 0.1 + 0.4 * row["task"]), data)
    np.testing.assert_allclose(kx.log_marginal_likelihood(plain), dense(0.1 + 0.4 * GROUPS)[0], rtol=1e-10)
    with pytest.raises(ValueError, match=r"must return one number for one row, got shape \(1,\)"):
        kx.condition(model(lambda row: row["x"] ** 2), data)


def test_noise_on_rows_that_are_one_array_and_on_grids():
    loud = kx.Model(kx.RBF(), noise=lambda row: 0.1 + row[0] ** 2)
    c = kx.condition(loud, kx.Data(TIMES, Y))
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), dense(0.1 + TIMES[:, 0] ** 2)[0], rtol=1e-10)
    grid = kx.Grid((TIMES[:3], np.arange(2)))
    c = kx.condition(kx.Model(kx.Select(kx.RBF(), axis=0), noise=lambda row: 0.1 + row[1]), kx.Data(grid, np.ones(6)))
    np.testing.assert_allclose(c.system.noise, [0.1, 1.1] * 3)


def test_h52_what_the_noise_does_not_know_is_refused_before_tracing():
    data = kx.Data(X, Y)
    c = kx.condition(PER_GROUP, data)
    wrong = {"x": TIMES, "task": np.where(np.arange(40) == 7, 2, GROUPS)}
    words = r"has 2 variances, but row 7 belongs to group 2: groups are numbered from 0 to 1"
    for ask in (kx.condition, kx.fit):
        with pytest.raises(ValueError, match=words):
            ask(PER_GROUP, kx.Data(wrong, Y))
    with pytest.raises(ValueError, match=words):
        kx.predict(c, wrong, noisy=True)
    with pytest.raises(ValueError, match=r"row 0 belongs to group -1"):
        kx.condition(PER_GROUP, kx.Data({"x": TIMES, "task": GROUPS - 1}, Y))
    # Without noise the group of a new row does not matter.
    assert kx.predict(c, wrong).mean.shape == (40,)
    for x, words in (
        (TIMES, "needs rows with a group: write kx.Data"),
        ({"x": TIMES, "group": GROUPS}, "needs rows with a group: write kx.Data"),
        ({"x": TIMES, "task": GROUPS.astype(float)}, "needs integers in 'task', got float64"),
        ({"x": TIMES, "task": GROUPS[:, None]}, r"needs one integer for each row, its group, got shape \(40, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            kx.condition(PER_GROUP, kx.Data(x, Y))
    with pytest.raises(ValueError, match="positive"):
        kx.noises.PerGroup("task", [0.1, -0.5])
    for make in (kx.noises.PerGroup, kx.means.PerGroup):
        with pytest.raises(ValueError, match=r"a vector with one \w+ for each group, got shape \(\)"):
            make("task", 0.1)


def test_noise_per_training_row_says_nothing_about_new_rows():
    noise = np.linspace(0.1, 0.5, 40)
    c = kx.condition(model(noise), kx.Data(X, Y))
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), dense(noise)[0], rtol=1e-10)
    np.testing.assert_allclose(kx.variance(c, NEW), dense(noise)[2], rtol=1e-8)
    for ask in (kx.predict, kx.variance, kx.covariance):
        with pytest.raises(ValueError, match="per training row, so that of new rows is unknown"):
            ask(c, NEW, noisy=True)
    with pytest.raises(ValueError, match="per training row, so that of new rows is unknown"):
        kx.sample(c, NEW, key=jax.random.key(0), noisy=True)
    with pytest.raises(ValueError, match=r"Model.noise has shape \(39,\), but the data has 40 rows"):
        kx.condition(model(noise[1:]), kx.Data(X, Y))


def test_what_wants_one_noise_says_so():
    data = kx.Data(X, Y)
    for ask, error, words in (
        (lambda: kx.select_ridge(PER_GROUP, data), ValueError, "chooses one noise for all rows"),
        (lambda: kx.compare_selectors(PER_GROUP, data), ValueError, "chooses one noise for all rows"),
        (lambda: kx.ridge_path(kx.condition(PER_GROUP, data, kx.Eigh())), ValueError, "one noise for all rows"),
        (lambda: kx.recondition(kx.condition(PER_GROUP, data, kx.Eigh()), noise=1.0), TypeError, "one noise for all rows"),
        (lambda: kx.learners.boosted(PER_GROUP, data), ValueError, "one noise for all rows"),
    ):
        with pytest.raises(error, match=words):
            ask()


def test_the_quantities_that_read_the_noise():
    """Leave-one-out by refits; degrees of freedom and GCV by the hat matrix; draws."""
    data = kx.Data(X, Y)
    c = kx.condition(PER_GROUP, data)
    noise = np.array([0.1, 0.5])[GROUPS]
    matrix = np.exp(-0.5 * (TIMES - TIMES.T) ** 2)
    hat = matrix @ np.linalg.inv(matrix + np.diag(noise))
    np.testing.assert_allclose(kx.selection.effective_degrees_of_freedom(c), np.trace(hat), rtol=1e-9)
    loo = []
    for i in range(3):
        rest = np.arange(40) != i
        loo.append(Y[i] - dense(noise[rest], Y[rest], TIMES[rest], TIMES[i : i + 1])[1][0])
    np.testing.assert_allclose(kx.loo_residuals(c)[:3], loo, rtol=1e-8)
    assert kx.sample(c, NEW, key=jax.random.key(0), noisy=True).shape == (1, 3)
    assert kx.sample(PER_GROUP, NEW, key=jax.random.key(0), noisy=True).shape == (1, 3)


def test_many_datasets_saved_models_and_masks(tmp_path):
    sets = [(X, Y), ({"x": TIMES[:20], "task": GROUPS[:20]}, Y[:20])]
    fits = kx.fit_many(PER_GROUP, sets)
    np.testing.assert_allclose(fits[1].value, kx.fit(PER_GROUP, kx.Data(*sets[1])).value, rtol=1e-5)
    assert fits.model.noise.variances.shape == (2, 2)
    predictions = kx.predict_many(fits, sets, [NEW, NEW], noisy=True)
    alone = kx.predict(kx.condition(fits[0].model, kx.Data(X, Y)), NEW, noisy=True)
    np.testing.assert_allclose(predictions[0].variance, alone.variance, rtol=1e-7)
    outside = {"x": TIMES, "task": GROUPS + 1}
    for ask in (
        lambda: kx.fit_many(PER_GROUP, [sets[0], (outside, Y)]),
        lambda: kx.fit_many(PER_GROUP, [sets[0], (outside, Y)], shared=True),
        lambda: kx.fitting.condition_many(PER_GROUP, [sets[0], (outside, Y)]),
    ):
        with pytest.raises(ValueError, match=r"dataset 1: noises.PerGroup\('task'\) has 2 variances"):
            ask()
    with pytest.raises(ValueError, match=r"x of dataset 1: noises.PerGroup"):
        kx.predict_many(fits, sets, [NEW, outside], noisy=True)
    kx.save(tmp_path / "m.kx", fits[0].model)
    np.testing.assert_array_equal(kx.load(tmp_path / "m.kx").noise.variances, fits[0].model.noise.variances)
    # A group that only a masked row has is none.
    mask = np.arange(40) != 3
    masked = kx.Data({"x": TIMES, "task": np.where(mask, GROUPS, 50)}, Y, mask)
    evidence = dense(np.array([0.1, 0.5])[GROUPS[mask]], Y[mask], TIMES[mask])[0]
    np.testing.assert_allclose(kx.log_marginal_likelihood(kx.condition(PER_GROUP, masked)), evidence, rtol=1e-10)


# Sums: measured variances and a common one

ERRORS = np.linspace(0.01, 0.3, 40)
MEASURED = {"x": TIMES, "variance": ERRORS}
AT_NEW = {"x": NEW["x"], "variance": np.array([0.0, 0.2, 0.5])}
SUM = kx.Model(kx.Select(kx.Matern32(), key="x"), noise=kx.noises.Known("variance") + 0.2)


def matern32(a, b):
    r = np.sqrt(3) * np.abs(a - b.T)
    return (1 + r) * np.exp(-r)


SOLVERS = {
    "cholesky": kx.Cholesky(),
    "eigh": kx.Eigh(),
    "state space": kx.StateSpace(),
    "low rank": kx.LowRank(inducing=MEASURED),
    "cg": kx.CG(tolerance=1e-10),
    "vecchia": kx.Vecchia(neighbours=40),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_known_variances_and_a_common_one_with_every_solver(name):
    data = kx.Data(MEASURED, Y)
    c = kx.condition(SUM, data, SOLVERS[name])
    matrix = matern32(TIMES, TIMES) + np.diag(ERRORS + 0.2)
    cross = matern32(TIMES, NEW["x"])
    prediction = kx.predict(c, AT_NEW, noisy=True)
    np.testing.assert_allclose(prediction.mean, cross.T @ np.linalg.solve(matrix, Y), rtol=1e-5)
    variance = 1 - np.sum(cross * np.linalg.solve(matrix, cross), axis=0) + AT_NEW["variance"] + 0.2
    np.testing.assert_allclose(prediction.variance, variance, rtol=1e-5)
    if name == "cg":  # its determinant is an estimate
        return

    def evidence(common):
        model = eqx.tree_at(lambda m: m.noise.parts[1].variance, SUM, common)
        return kx.log_marginal_likelihood(kx.condition(model, data, SOLVERS[name]))

    def by_hand(common):
        noisy = matern32(TIMES, TIMES) + np.diag(ERRORS + common)
        return -0.5 * (Y @ np.linalg.solve(noisy, Y) + np.linalg.slogdet(noisy)[1] + 40 * np.log(2 * np.pi))

    value, slope = jax.value_and_grad(evidence)(jnp.asarray(0.2))
    np.testing.assert_allclose(value, by_hand(0.2), rtol=1e-6)
    np.testing.assert_allclose(slope, (by_hand(0.2 + 1e-5) - by_hand(0.2 - 1e-5)) / 2e-5, rtol=1e-5)


def test_a_common_variance_is_found_beside_the_measured_ones():
    """Half of the noise is in the error bars, the other half is not."""
    draw = np.random.default_rng(5)
    x = draw.uniform(0, 6, size=(300, 1))
    known = draw.uniform(0.0, 0.2, size=300)
    y = np.sin(2 * x[:, 0]) + np.sqrt(known + 0.1) * draw.normal(size=300)
    table = np.column_stack([x, known])
    model = kx.Model(kx.Select(kx.RBF(), columns=0), noise=0.01 + kx.noises.Known(column=1))
    fit = kx.fit(model, kx.Data(table, y))
    np.testing.assert_allclose(fit.model.noise.parts[0].variance, 0.1, rtol=0.25)
    report = str(kx.report(fit))
    assert "noise.parts[0].variance" in report
    # Error bars that explain more than all leave nothing.
    none = eqx.tree_at(lambda m: m.noise.parts[0].variance, model, jnp.asarray(1e-15))
    assert "leave this one out" in str(kx.report(kx.fit(none, kx.Data(np.column_stack([x, 5 * known + 1]), y))))
    # It is the same as a matrix with the sum on its diagonal.
    noise = known + float(fit.model.noise.parts[0].variance)
    lengthscale = float(fit.model.kernel.kernel.lengthscale)
    np.testing.assert_allclose(-fit.value, dense(noise, y, x / lengthscale, NEW["x"])[0], rtol=1e-8)


def test_sums_of_any_noises_are_read_row_by_row():
    x = {"x": TIMES, "task": GROUPS, "variance": ERRORS}
    parts = kx.noises.Known("variance") + (lambda row: 0.01 * row["x"][0] ** 2) + kx.noises.PerGroup("task", [0.1, 0.5])
    assert len(parts.parts) == 3
    expected = ERRORS + 0.01 * TIMES[:, 0] ** 2 + np.array([0.1, 0.5])[GROUPS]
    np.testing.assert_allclose(kx.noises.noise_values(parts, jax.tree.map(jnp.asarray, x), float), expected, rtol=1e-12)
    started = kx.initialise(SUM, kx.Data(MEASURED, 10 * Y)).noise.parts[1].variance
    np.testing.assert_allclose(started, 10 * np.var(Y), rtol=1e-9)


def test_h20_known_variances_that_are_none_are_refused_before_tracing():
    known = kx.noises.Known("variance")
    wrong = {"x": TIMES, "variance": np.where(np.arange(40) == 7, -0.1, ERRORS)}
    words = r"noises.Known\('variance'\) needs variances of 0 or more, but row 7 has -0.1"
    for ask in (kx.condition, kx.fit, lambda m, d: kx.fit_many(m, [d])):
        with pytest.raises(ValueError, match=words):
            ask(SUM, kx.Data(wrong, Y))
    c = kx.condition(SUM, kx.Data(MEASURED, Y))
    with pytest.raises(ValueError, match=words):
        kx.predict(c, wrong, noisy=True)
    for x, words in (
        (TIMES, "needs the noise variance of each row, but the rows have no keys"),
        ({"x": TIMES, "error": ERRORS}, r"the rows have the keys \['error', 'x'\]"),
        ({"x": TIMES, "variance": ERRORS[:, None]}, r"one variance for each row, got shape \(40, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            kx.condition(SUM, kx.Data(x, Y))
    with pytest.raises(ValueError, match="uses column 1, but the rows have 1 columns"):
        kx.condition(kx.Model(kx.RBF(), noise=kx.noises.Known(column=1)), kx.Data(TIMES, Y))
    for make, error, words in (
        (lambda: kx.noises.Known(), ValueError, "either a key or a column"),
        (lambda: kx.noises.Known(column=-1), ValueError, "counted from 0"),
        (lambda: known + np.ones(40), TypeError, "write a variance for each row into the rows"),
        (lambda: np.ones(40) + known, TypeError, "write a variance for each row into the rows"),
        (lambda: known + (-0.1), ValueError, "Constant.variance must be finite and positive"),
    ):
        with pytest.raises(error, match=words):
            make()

    # What is traced cannot be refused: it has a status instead.
    def traced(variance):
        c = kx.condition(SUM, kx.Data({"x": TIMES, "variance": variance}, Y), throw=False)
        return c.result == kx.Result.nonfinite

    assert jax.jit(traced)(wrong["variance"])
    assert not jax.jit(traced)(ERRORS)


def test_known_variances_in_a_column_of_a_file(tmp_path):
    table = np.column_stack([TIMES, ERRORS])
    np.save(tmp_path / "x.npy", table)
    model = kx.Model(kx.Select(kx.Matern32(), columns=0), noise=kx.noises.Known(column=1) + 0.2)
    inside = kx.condition(model, kx.Data(np.load(tmp_path / "x.npy", mmap_mode="r"), Y), kx.Vecchia(neighbours=40))
    np.testing.assert_allclose(
        kx.log_marginal_likelihood(inside), kx.log_marginal_likelihood(kx.condition(model, kx.Data(table, Y)))
    )
    varying = kx.noises.Heteroscedastic(kx.noises.Interpolant(ANCHORS, columns=0))
    varying.check(kx.Data(np.load(tmp_path / "x.npy", mmap_mode="r"), Y).x)
    table[3, 1] = -1.0
    np.save(tmp_path / "bad.npy", table)
    with pytest.raises(ValueError, match="but row 3 has -1"):
        kx.condition(model, kx.Data(np.load(tmp_path / "bad.npy", mmap_mode="r"), Y), kx.Vecchia(neighbours=40))
    counts = np.arange(40) != 3
    masked = kx.Data(np.load(tmp_path / "bad.npy", mmap_mode="r"), Y, counts)
    assert kx.condition(model, masked, kx.Vecchia(neighbours=40)).ok


# Noise that varies with the inputs

ANCHORS = np.linspace(0, 6, 7)[:, None]


def spread(x):
    """The standard deviation of the noise: ten times as large in one place as in others."""
    return 0.05 + 0.5 * np.exp(-((x - 4) ** 2))


def many_rows(n, seed):
    draw = np.random.default_rng(seed)
    x = np.sort(draw.uniform(0, 6, size=n))[:, None]
    return x, np.sin(2 * x[:, 0]) + spread(x[:, 0]) * draw.normal(size=n)


def matern52(a, b, lengthscale):
    r = np.sqrt(5) * np.abs(a - b.T) / lengthscale
    return (1 + r + r**2 / 3) * np.exp(-r)


def noise_by_hand(x, weights, variance, floor):
    covariance = 2.0 * matern52(ANCHORS, ANCHORS, 1.3)
    root = np.linalg.cholesky(covariance + 1e-6 * np.mean(np.diag(covariance)) * np.eye(7))
    function = 2.0 * matern52(x, ANCHORS, 1.3) @ np.linalg.solve(root.T, weights)
    return variance * (floor + 1 / (floor + np.exp(-function)))


def test_the_fit_of_an_interpolant_is_the_mode_of_the_posterior():
    """The value is minus the evidence and the log density of the weights, and no parameter can make it smaller."""
    x, y = many_rows(60, 0)
    interpolant = kx.noises.Interpolant(ANCHORS, 2.0 * kx.Matern52(1.3))
    model = kx.Model(kx.RBF(), noise=kx.noises.Heteroscedastic(interpolant, floor=0.001))

    def by_hand(vector):
        lengthscale, variance, weights = np.exp(vector[0]), np.exp(vector[1]), vector[2:]
        evidence = dense(noise_by_hand(x, weights, variance, 0.001), y, x / lengthscale, NEW["x"])[0]
        return -evidence + 0.5 * np.sum(weights**2) + 0.5 * 7 * np.log(2 * np.pi)

    def slopes(vector):
        moves = 1e-5 * np.eye(len(vector))
        return np.array([(by_hand(vector + m) - by_hand(vector - m)) / 2e-5 for m in moves])

    def vector_of(model):
        noise = model.noise
        return np.concatenate([np.log([model.kernel.lengthscale, noise.variance]), noise.function.weights])

    data = kx.Data(x, y)
    start = eqx.tree_at(lambda m: m.noise.function.weights, model, jnp.linspace(-1, 2, 7))
    free, rebuild = kx.parameters.ravel(start)

    def objective(vector):
        proposed = rebuild(vector)
        return -kx.log_marginal_likelihood(kx.condition(proposed, data)) - kx.parameters.log_prior(proposed)

    value, gradient = jax.jit(jax.value_and_grad(objective))(free)
    ours = vector_of(start)
    np.testing.assert_allclose(value, by_hand(ours), rtol=1e-9)
    order = [0, *range(2, 9), 1]  # the weights come before the variance
    np.testing.assert_allclose(gradient, slopes(ours)[order], rtol=1e-5, atol=1e-6)
    fit = kx.fit(model, data)
    end = vector_of(fit.model)
    np.testing.assert_allclose(fit.value, by_hand(end), rtol=1e-8)
    assert np.abs(slopes(end)).max() < 5e-3
    held = kx.with_prior(model, lambda m: m.noise.function.weights, None)
    assert np.abs(kx.fit(held, data).model.noise.function.weights).max() > np.abs(end[2:]).max()


def test_a_known_spread_is_recovered():
    x, y = many_rows(200, 3)
    data = kx.Data(x, y)
    new = np.linspace(0.2, 5.8, 30)[:, None]
    network = eqx.nn.MLP(1, "scalar", 8, 1, jnp.tanh, key=jax.random.key(0))
    for function in (kx.noises.Interpolant(ANCHORS), network):
        start = kx.initialise(kx.Model(1.0 * kx.RBF(), noise=kx.noises.Heteroscedastic(function)), data)
        np.testing.assert_allclose(start.noise.variance, 0.1 * np.var(y), rtol=1e-9)
        c = kx.condition(kx.fit(start, data, max_steps=100).model, data)
        added = kx.variance(c, new, noisy=True) - kx.variance(c, new)
        errors = 0.5 * np.log(added) - np.log(spread(new[:, 0]))
        assert np.sqrt(np.mean(errors**2)) < 0.2
    assert "noise.function.layers[0].weight" in str(kx.report(c))


def test_an_interpolant_sees_a_part_of_the_rows_and_is_saved_and_fitted_many_times(tmp_path):
    x, y = many_rows(40, 1)
    whole = kx.noises.Interpolant(ANCHORS)
    weights = jnp.linspace(-1.0, 1.0, 7)
    whole = eqx.tree_at(lambda f: f.weights, whole, weights)
    expected = jax.vmap(whole)(x)
    by_key = eqx.tree_at(lambda f: f.weights, kx.noises.Interpolant(ANCHORS, key="x"), weights)
    np.testing.assert_allclose(jax.vmap(by_key)({"x": x, "other": x}), expected, rtol=1e-12)
    by_column = eqx.tree_at(lambda f: f.weights, kx.noises.Interpolant(ANCHORS, columns=1), weights)
    np.testing.assert_allclose(jax.vmap(by_column)(np.column_stack([y, x])), expected, rtol=1e-12)
    assert kx.noises.Interpolant(ANCHORS).anchors == whole.anchors
    assert kx.noises.Interpolant(ANCHORS + 1e-9).anchors != whole.anchors

    noise = kx.noises.Heteroscedastic(kx.noises.Interpolant(ANCHORS, key="x")) + kx.noises.Known("variance") + 1e-3
    model = kx.Model(kx.Select(kx.RBF(), key="x"), noise=noise)
    rows = {"x": x, "variance": 0.01 * x[:, 0]}
    sets = [(rows, y), (jax.tree.map(lambda leaf: leaf[:25], rows), y[:25])]
    fits = kx.fit_many(model, sets)
    alone = kx.fit(model, kx.Data(*sets[1]))
    np.testing.assert_allclose(fits[1].value, alone.value, rtol=1e-5)
    assert {"noise.parts[0].variance", "noise.parts[2].variance"} <= set(fits.table())
    kx.save(tmp_path / "m.kx", alone)
    loaded = kx.load(tmp_path / "m.kx").model
    assert jax.tree.structure(loaded) == jax.tree.structure(alone.model)
    np.testing.assert_array_equal(jax.vmap(loaded.noise)(rows), jax.vmap(alone.model.noise)(rows))
    assert kx.parameters.log_prior(loaded) == kx.parameters.log_prior(alone.model)


def test_h21_noise_does_not_collapse_where_targets_are_met():
    """The largest and the smallest logarithm of any size give noise within the bounds, with finite gradients."""
    for dtype in (np.float32, np.float64):
        for level in (-1e4, -100.0, 100.0, 1e4):
            noise = kx.noises.Heteroscedastic(lambda row, level=level: level * row[0], variance=dtype(0.5), floor=0.01)
            value, slope = jax.value_and_grad(noise)(jnp.ones(1, dtype))
            assert value.dtype == dtype
            np.testing.assert_allclose(value, 0.005 if level < 0 else 50.005, rtol=1e-3)
            assert np.isfinite(slope).all()


def test_bad_functions_and_anchors_are_refused_before_tracing():
    x, y = many_rows(20, 1)
    data = kx.Data(x, y)

    def with_noise(noise):
        return lambda: kx.condition(kx.Model(kx.RBF(), noise=noise), data)

    vector = kx.noises.Heteroscedastic(eqx.nn.MLP(1, 2, 4, 1, key=jax.random.key(0)))
    shape = r"must return one number for a row, got shape \(2,\): write out_size=\"scalar\""
    many = kx.Model(kx.RBF(), noise=vector + 0.1)
    for ask, error, words in (
        (with_noise(vector), ValueError, shape),
        (lambda: kx.fit_many(many, [(x, y)]), ValueError, "dataset 0: .*" + shape),
        (with_noise(kx.noises.Heteroscedastic(kx.noises.Interpolant(np.zeros((3, 2))))), ValueError, "2 columns"),
        (with_noise(kx.noises.Heteroscedastic(kx.noises.Interpolant(ANCHORS, key="x"))), ValueError, "the key 'x'"),
        (lambda: kx.noises.Heteroscedastic(0.1), TypeError, "a function of one point, or a callable Equinox module"),
        (lambda: kx.noises.Heteroscedastic(lambda row: row[0], floor=0.0), ValueError, "floor must be a number between"),
        (lambda: kx.noises.Heteroscedastic(lambda row: row[0], variance=-1.0), ValueError, "positive"),
        (lambda: kx.noises.Interpolant(ANCHORS[:, 0]), ValueError, r"kernax needs \(n, d\)"),
        (lambda: kx.noises.Interpolant(ANCHORS, kx.kernels.CubicSpline()), TypeError, "not a spline"),
        (lambda: kx.noises.Interpolant({"x": ANCHORS}), ValueError, "give kernel="),
        (lambda: jax.jit(lambda a: kx.noises.Interpolant(a).weights)(ANCHORS), TypeError, "outside of jit"),
    ):
        with pytest.raises(error, match=words):
            ask()
    seen = kx.observe.values(x, y)
    model = kx.Model(kx.RBF(), noise=kx.noises.Heteroscedastic(lambda row: row[0]))
    with pytest.raises(ValueError, match=r"write kx\.observe\.Noise"):
        kx.condition(model, seen)
