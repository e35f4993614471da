"""Noise as a function of the row: per group, by a module of one's own, per training row; in every place that reads it."""

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
    with pytest.raises(ValueError, match=r"is called with one row returns one number, got shape \(1,\)"):
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
    words = r"has 2 variances, but row 7 belongs to group 2: groups count from 0 to 1"
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


def test_noise_per_training_row_says_nothing_about_new_rows():
    noise = np.linspace(0.1, 0.5, 40)
    c = kx.condition(model(noise), kx.Data(X, Y))
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), dense(noise)[0], rtol=1e-10)
    np.testing.assert_allclose(kx.variance(c, NEW), dense(noise)[2], rtol=1e-8)
    for ask in (kx.predict, kx.variance, kx.covariance):
        with pytest.raises(ValueError, match="per training row and says nothing about new rows"):
            ask(c, NEW, noisy=True)
    with pytest.raises(ValueError, match="per training row and says nothing about new rows"):
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
