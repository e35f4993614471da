"""Several outputs: tasks against plain NumPy, gaps in any pattern, every solver, every way to be wrong."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.kernels import ICM, LCM, Coregion
from kernax.posterior import predict_tasks
from tests.tables import gradient_by_differences

rng = np.random.default_rng(17)
LOADINGS, OWN = rng.normal(size=(3, 2)), np.array([0.3, 0.8, 0.1])
TIMES = rng.uniform(0, 4, size=(6, 1))
TABLE = rng.normal(size=(6, 3))
GAPS = TABLE.copy()
GAPS[[0, 1, 1, 3, 4, 4, 4], [1, 0, 2, 2, 0, 1, 2]] = np.nan  # a row without a value, too
NEW = np.array([[0.5], [3.1], [6.0]])
NOISE, LEVELS = np.array([0.1, 0.4, 0.2]), np.array([1.0, -2.0, 0.5])


def coregion(**options):
    return Coregion(3, 2, loadings=LOADINGS, variances=OWN, **options)


def icm(kernel):
    return coregion() * kx.Select(kernel, key="x")


def matern32(a, b, lengthscale=1.3):
    r = np.sqrt(3) * np.abs(a - b.T) / lengthscale
    return (1 + r) * np.exp(-r)


def brute_force(gram=matern32, noise=NOISE, levels=LEVELS, y=GAPS):
    """Evidence, means (m, p) and variances (m, p): the whole Kronecker matrix, of which rows and columns are cut out."""
    matrix = LOADINGS @ LOADINGS.T + np.diag(OWN)
    at = np.flatnonzero(~np.isnan(y.ravel()))
    whole = np.kron(gram(TIMES, TIMES), matrix) + np.diag(np.tile(noise, len(TIMES)))
    cross, seen = np.kron(gram(TIMES, NEW), matrix)[at], (y - levels).ravel()[at]
    inverse = np.linalg.inv(whole[np.ix_(at, at)])
    evidence = -0.5 * (seen @ inverse @ seen - np.linalg.slogdet(inverse)[1] + len(at) * np.log(2 * np.pi))
    prior = np.kron(gram(NEW, NEW), matrix)
    mean = (cross.T @ inverse @ seen).reshape(3, 3) + levels
    return evidence, mean, np.diag(prior - cross.T @ inverse @ cross).reshape(3, 3)


def per_task(kernel):
    return kx.Model(kernel, noise=kx.noises.PerGroup("task", NOISE), mean=kx.means.PerGroup("task", LEVELS))


def test_the_matrix_of_the_tasks_is_that_of_numpy():
    tasks, others = np.array([2, 0, 1, 1, 2]), np.array([1, 0, 2])
    expected = (LOADINGS @ LOADINGS.T + np.diag(OWN))[np.ix_(tasks, others)]
    kernel = coregion()
    rows, columns = {"task": tasks}, {"task": others}
    np.testing.assert_allclose(kernel(rows, columns), expected, rtol=1e-14)
    np.testing.assert_allclose(coregion(key=None).gram(tasks, others), expected, rtol=1e-14)
    square = kernel(rows)
    np.testing.assert_array_equal(square, square.T)
    np.testing.assert_array_equal(jnp.diagonal(square), kernel.diag(rows))
    pairs = jax.vmap(lambda a: jax.vmap(lambda b: kernel.pair(a, b))(rows))(rows)
    np.testing.assert_allclose(pairs, square, rtol=1e-14)
    features = kernel.features(rows)
    np.testing.assert_allclose(features @ features.T, square, rtol=1e-13)
    correlation = kernel.correlation()
    matrix = LOADINGS @ LOADINGS.T + np.diag(OWN)
    np.testing.assert_allclose(correlation, matrix / np.sqrt(np.outer(np.diag(matrix), np.diag(matrix))), rtol=1e-13)
    # Two tasks told apart by a boolean are tasks as well.
    two = Coregion(2)
    np.testing.assert_array_equal(two({"task": tasks == 2}), two({"task": (tasks == 2).astype(int)}))


def test_where_a_fit_starts():
    for number, rank in itertools.product((1, 2, 5), (1, 2, 3, 6)):
        kernel = Coregion(number, rank)
        np.testing.assert_allclose(jnp.diagonal(kernel.matrix()), 1.0, rtol=1e-6)
        assert kernel.variances.min() > 0.4
        columns = np.asarray(kernel.loadings).T
        assert all(not np.allclose(a, b) for a, b in itertools.combinations(columns, 2))
    rows = {"x": jnp.asarray(TIMES), "task": jnp.arange(6) % 3}
    started = icm(kx.RBF()).initialised(rows, jnp.ones(6, bool), jnp.asarray(5.0))
    matrix = started.kernels[0].matrix()
    np.testing.assert_allclose(jnp.mean(jnp.diagonal(matrix)), 5.0, rtol=1e-12)
    np.testing.assert_allclose(started.kernels[0].correlation(), coregion().correlation(), rtol=1e-12)
    model = kx.initialise(per_task(icm(kx.RBF())), kx.data.long(TIMES, GAPS))
    np.testing.assert_allclose(model.mean.values, np.nanmean(GAPS, axis=0), rtol=1e-12)


def test_long_rows_hold_what_is_observed():
    data = kx.data.long(TIMES, GAPS)
    row, task = np.nonzero(~np.isnan(GAPS))
    np.testing.assert_array_equal(data.x["x"], TIMES[row])
    np.testing.assert_array_equal(data.x["task"], task)
    np.testing.assert_array_equal(data.y, GAPS[row, task])
    by_mask = kx.data.long(TIMES, np.where(np.isnan(GAPS), 7.0, GAPS), ~np.isnan(GAPS), key="output", inputs="t")
    np.testing.assert_array_equal(by_mask.x["output"], task)
    np.testing.assert_array_equal(by_mask.x["t"], TIMES[row])
    np.testing.assert_array_equal(by_mask.y, data.y)
    several = kx.data.long({"a": TIMES, "site": np.arange(6)}, GAPS)
    np.testing.assert_array_equal(several.x["x"]["site"], row)
    single = kx.data.long(TIMES.astype(np.float32), TABLE.astype(np.float32))
    assert single.dtype == np.float32
    # All of them are the rows of a grid with named axes, in the same order.
    grid = kx.Grid({"x": TIMES, "task": np.arange(3)})
    jax.tree.map(np.testing.assert_array_equal, grid.rows(), kx.data.long(TIMES, TABLE).x)


SOLVERS = {"cholesky": kx.Cholesky(), "state_space": kx.StateSpace(), "low_rank": kx.LowRank(20)}


@pytest.mark.parametrize("name", SOLVERS)
def test_gaps_against_brute_force(name):
    model, data = per_task(icm(kx.Matern32(1.3))), kx.data.long(TIMES, GAPS)
    c = kx.condition(model, data, SOLVERS[name])
    evidence, mean, variance = brute_force()
    tolerance = 1e-7 if name == "low_rank" else 1e-10
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), evidence, rtol=tolerance)
    prediction = predict_tasks(c, NEW)
    np.testing.assert_allclose(prediction.mean, mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(prediction.variance, variance, rtol=tolerance, atol=tolerance)
    noisy = predict_tasks(c, {"x": NEW}, noisy=True)
    np.testing.assert_allclose(noisy.variance, variance + NOISE, rtol=tolerance, atol=tolerance)


def test_a_series_with_ties_has_the_derivatives_of_the_dense_matrix():
    """With `StateSpace`; the order of tied rows does not matter."""
    data = kx.data.long(TIMES, GAPS[:, :2])
    noise, mean = kx.noises.PerGroup("task", NOISE[:2]), kx.means.PerGroup("task", LEVELS[:2])
    kernel = LCM([kx.Matern32(1.3), kx.Matern12(0.4)], 2)
    vector, rebuild = kx.parameters.ravel(kx.Model(kernel, noise, mean))

    @jax.jit
    def both(v):
        def value(solver):
            return jax.value_and_grad(lambda u: kx.log_marginal_likelihood(kx.condition(rebuild(u), data, solver)))(v)

        return value(kx.Cholesky()), value(kx.StateSpace())

    (dense, slope), (series, other) = both(vector)
    np.testing.assert_allclose(series, dense, rtol=1e-10)
    np.testing.assert_allclose(other, slope, rtol=1e-8, atol=1e-8)
    order = rng.permutation(data.n)
    mixed = kx.Data(jax.tree.map(lambda leaf: leaf[order], data.x), data.y[order])
    shuffled = kx.log_marginal_likelihood(kx.condition(rebuild(vector), mixed, kx.StateSpace()))
    np.testing.assert_allclose(shuffled, dense, rtol=1e-10)


def test_the_gradient_is_that_of_differences_also_behind_a_mask():
    data = kx.data.long(TIMES, GAPS)
    vector, rebuild = kx.parameters.ravel(per_task(icm(kx.RBF(0.9))))
    value = jax.jit(lambda v, d: kx.log_marginal_likelihood(kx.condition(rebuild(v), d)))
    slope = jax.jit(jax.grad(value))
    expected = gradient_by_differences(lambda v: value(v, data), np.asarray(vector))
    np.testing.assert_allclose(slope(vector, data), expected, rtol=1e-6, atol=1e-7)
    # All values, those that are missing behind the mask.
    row, task = (part.ravel() for part in np.indices(GAPS.shape))
    masked = kx.Data({"x": TIMES[row], "task": task}, GAPS.ravel(), ~np.isnan(GAPS.ravel()))
    np.testing.assert_allclose(value(vector, masked), value(vector, data), rtol=1e-12)
    np.testing.assert_allclose(slope(vector, masked), slope(vector, data), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", ["named", "numbered"])
def test_all_outputs_observed_make_a_kronecker_product(kernel):
    evidence, mean, variance = brute_force(noise=np.full(3, 0.2), levels=np.zeros(3), y=TABLE)
    if kernel == "named":
        grid, kernel = kx.Grid({"x": TIMES, "task": np.arange(3)}), icm(kx.Matern32(1.3))
        new = kx.Grid({"x": NEW, "task": np.arange(3)})
    else:
        grid, new = (kx.Grid((x, np.arange(3))) for x in (TIMES, NEW))
        kernel = kx.Select(kx.Matern32(1.3), axis=0) * kx.Select(coregion(key=None), axis=1)
    c = kx.condition(kx.Model(kernel, noise=0.2), kx.Data(grid, TABLE), kx.Kronecker())
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), evidence, rtol=1e-11)
    prediction = kx.predict(c, new)
    np.testing.assert_allclose(prediction.mean.reshape(3, 3), mean, rtol=1e-10)
    np.testing.assert_allclose(prediction.variance.reshape(3, 3), variance, rtol=1e-10)
    if grid.names:
        np.testing.assert_allclose(predict_tasks(c, NEW).mean, mean, rtol=1e-10)
        gaps = kx.Data(grid, GAPS, ~np.isnan(GAPS))
        c = kx.condition(kx.Model(kernel, noise=0.2), gaps, kx.CG(kx.Kronecker(), tolerance=1e-12))
        _, mean, _ = brute_force(noise=np.full(3, 0.2), levels=np.zeros(3))
        np.testing.assert_allclose(predict_tasks(c, NEW).mean, mean, rtol=1e-8)


def test_a_sum_of_models_against_brute_force():
    kernel = LCM([kx.RBF(0.5), kx.Matern32(1.3)], 3, 2)
    assert len(kernel.summands()) == 2
    rows = kx.data.long(TIMES, GAPS).x
    expected = 0.0
    for part, own in zip(
        kernel.kernels, (lambda r: np.exp(-2 * r**2), lambda r: matern32(r, np.zeros((1, 1)))), strict=True
    ):
        matrix = np.asarray(part.kernels[0].loadings) @ np.asarray(part.kernels[0].loadings).T
        matrix += np.diag(part.kernels[0].variances)
        apart = np.asarray(rows["x"] - rows["x"].T)
        expected = expected + matrix[np.ix_(rows["task"], rows["task"])] * own(apart.reshape(-1, 1)).reshape(apart.shape)
    np.testing.assert_allclose(kernel(rows), expected, rtol=1e-12)


def test_a_fit_finds_that_two_outputs_are_opposite(tmp_path):
    """Where one output has no value for long, the other one tells what it does; alone it would go back to its mean."""
    x = np.linspace(0, 6, 25)[:, None]
    y = np.stack([np.sin(2 * x[:, 0]), 3.0 - 2 * np.sin(2 * x[:, 0])], axis=1)
    y += 0.05 * np.random.default_rng(3).normal(size=y.shape)
    y[10:20, 1] = np.nan
    data = kx.data.long(x, y)
    start = kx.Model(ICM(kx.Matern52(), 2), kx.noises.PerGroup("task", [0.1, 0.1]), kx.means.PerGroup("task", [0.0, 0.0]))
    start = kx.initialise(start, data)
    assert start.kernel.kernels[0].correlation()[0, 1] > 0.4  # the other sign
    fit = kx.fit(start, data)
    assert fit.model.kernel.kernels[0].correlation()[0, 1] < -0.95
    c = kx.condition(fit.model, data)
    prediction = predict_tasks(c, x[10:20])
    np.testing.assert_allclose(prediction.mean[:, 1], 3.0 - 2 * np.sin(2 * x[10:20, 0]), atol=0.3)
    assert abs(fit.model.mean.values[1] - 3.0) < 1.0
    kx.save(tmp_path / "c.kx", c)
    np.testing.assert_array_equal(predict_tasks(kx.load(tmp_path / "c.kx"), x[:3]).mean, predict_tasks(c, x[:3]).mean)
    text = str(kx.report(fit))
    print(text)
    assert "loadings" in text
    assert "mean.values[1]" in text


def test_h52_labels_that_the_model_does_not_know_are_named_before_tracing():
    data = kx.data.long(TIMES, GAPS)
    model = kx.Model(icm(kx.RBF()), noise=0.1)
    c = kx.condition(model, data)
    outside = {"x": NEW, "task": np.array([0, 3, 1])}
    known = "Coregion(key='task') has 3 tasks, but row 1 belongs to task 3: tasks are numbered from 0 to 2."

    def refused(words, ask, *arguments, **options):
        with pytest.raises(ValueError) as error:
            ask(*arguments, **options)
        assert words in str(error.value)

    for ask in (kx.condition, kx.fit):
        refused(known, ask, model, kx.Data(outside, np.ones(3)))
        refused(
            "no row that counts belongs to task 2", ask, model, kx.Data({"x": NEW, "task": np.array([0, 1, 1])}, np.ones(3))
        )
    for ask in (kx.mean, kx.predict, kx.variance, kx.covariance):
        refused(known, ask, c, outside)
    refused(known, kx.covariance, c, data.x, outside)
    refused(known, kx.extend, c, outside, np.ones(3))
    refused(known, kx.sample, model, outside, key=jax.random.key(0))
    refused(known, model.kernel, outside)
    refused(known, model.kernel, data.x, outside)
    refused("row 0 belongs to task -1", kx.condition, model, kx.Data({"x": NEW, "task": np.arange(3) - 1}, np.ones(3)))
    refused(
        "dataset 1: Coregion", kx.fit_many, model, [({"x": NEW, "task": np.arange(3)}, np.ones(3)), (outside, np.ones(3))]
    )
    # A task that only masked rows have is without rows; labels of masked rows do not matter.
    masked = np.array([True, True, False, True])
    tasks = {"x": TIMES[:4], "task": np.array([0, 1, 2, 1])}
    refused("no row that counts belongs to task 2", kx.condition, model, kx.Data(tasks, np.ones(4), masked))
    tasks["task"] = np.array([0, 2, 50, 1])
    assert kx.condition(model, kx.Data(tasks, np.ones(4), masked)).ok
    # A grid of too many tasks, or of too few.
    for number, words in ((4, "belongs to task 3"), (2, "no row that counts belongs to task 2")):
        grid = kx.Grid({"x": TIMES, "task": np.arange(number)})
        refused(words, kx.condition, model, kx.Data(grid, np.ones(6 * number)), kx.Kronecker())
    mean = kx.Model(icm(kx.RBF()), noise=0.1, mean=kx.means.PerGroup("task", [0.0, 1.0]))
    refused("means.PerGroup('task') has 2 values, but row", kx.condition, mean, data)


def test_what_is_not_written_as_tasks_is_refused():
    model, y = kx.Model(icm(kx.RBF()), noise=0.1), np.ones(6)
    for x, words in (
        (TIMES, r"Coregion\(key='task'\) needs rows with a task: write kx.Data"),
        ({"x": TIMES, "output": np.arange(6) % 3}, "needs rows with a task"),
        ({"x": TIMES, "task": np.arange(6) % 3 + 0.0}, "needs integers in 'task', got float64"),
        ({"x": TIMES, "task": (np.arange(6) % 3)[:, None]}, r"one integer for each row, its task, got shape \(6, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            kx.condition(model, kx.Data(x, y))
    for make, words in (
        (lambda: Coregion(0), "Coregion.number must be a whole number of at least 1, got 0"),
        (lambda: Coregion(3, 1.5), "Coregion.rank must be a whole number"),
        (
            lambda: Coregion(3, loadings=np.ones(3)),
            r"loadings of shape \(3, 1\) and 3 variances, got shapes \(3,\) and \(3,\)",
        ),
        (lambda: Coregion(2, variances=[0.1, -1.0]), "Coregion.variances must be finite and positive"),
        (lambda: LCM(kx.RBF(), 2), "needs a list of kernels"),
        (lambda: LCM([], 2), "needs a list of kernels"),
        (lambda: kx.data.long(TIMES, TABLE[:, 0]), r"y has shape \(6,\); kx.data.long needs \(n, p\)"),
        (lambda: kx.data.long(TIMES[:5], TABLE), "x has 5 rows and y has 6"),
        (lambda: kx.data.long(TIMES, TABLE, np.ones(6, bool)), r"mask must be \(6, 3\) booleans"),
        (lambda: kx.data.long(TIMES, TABLE, key="x"), "key and inputs are both 'x'"),
        (lambda: kx.data.long(TIMES, np.where([True, True, False], TABLE, np.nan)), "output 2 has no observed value"),
        (lambda: kx.data.long(TIMES, GAPS, np.ones((6, 3), bool)), "NaN"),
        (lambda: kx.data.long(TIMES, np.where(TABLE > 1, np.inf, TABLE)), "y has"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    with pytest.raises(TypeError, match="call it outside jit"):
        jax.jit(lambda y: kx.data.long(TIMES, y).y)(TABLE)
    c = kx.condition(model, kx.data.long(TIMES, GAPS))
    with pytest.raises(ValueError, match=r"new inputs as a dict with the keys \['x'\]"):
        predict_tasks(c, {"t": NEW})
    with pytest.raises(ValueError, match=r"x\[None, :\]|shape"):
        predict_tasks(c, NEW[:, 0])
    plain = kx.condition(kx.Model(kx.RBF(), noise=0.1), kx.Data(TIMES, y))
    with pytest.raises(TypeError, match=r"need a kernel with a kx\.kernels\.Coregion"):
        predict_tasks(plain, NEW)


def test_the_estimator_learns_how_outputs_are_correlated():
    from sklearn.base import clone

    from kernax.sklearn import GaussianProcessRegressor

    random = np.random.default_rng(5)
    X = np.sort(random.uniform(0, 6, size=(14, 1)), axis=0)
    y = np.stack([np.sin(X[:, 0]), 4 - 2 * np.sin(X[:, 0])], axis=1) + 0.1 * random.normal(size=(14, 2))
    gp = clone(GaussianProcessRegressor(coregion=True, normalize_y=True)).fit(X, y)
    assert gp.kernel_.kernels[0].correlation()[0, 1] < -0.9
    mean, std = gp.predict(NEW, return_std=True)
    _, noisy = gp.predict(NEW, return_std=True, noisy=True)
    # Against dense NumPy, with the numbers that were fitted.
    tasks = np.asarray(gp.kernel_.kernels[0].matrix())
    lengthscale = float(gp.kernel_.kernels[1].kernel.lengthscale)

    def gram(a, b):
        return np.kron(np.exp(-0.5 * ((a - b.T) / lengthscale) ** 2), tasks)

    spread = y.std(axis=0)
    inverse = np.linalg.inv(gram(X, X) + gp.noise_ * np.eye(28))
    cross = gram(X, NEW)
    expected = (cross.T @ inverse @ ((y - y.mean(axis=0)) / spread).ravel()).reshape(3, 2) * spread + y.mean(axis=0)
    covariance = gram(NEW, NEW) - cross.T @ inverse @ cross
    variance = np.diag(covariance).reshape(3, 2)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_allclose(std, np.sqrt(variance) * spread, rtol=1e-5)
    np.testing.assert_allclose(noisy, np.sqrt(variance + gp.noise_) * spread, rtol=1e-5)
    np.testing.assert_array_equal(gp.predict(NEW), mean)
    _, own = gp.predict(NEW, return_cov=True)
    for j in range(2):
        np.testing.assert_allclose(own[:, :, j], covariance[j::2, j::2] * spread[j] ** 2, atol=1e-7)
    draws = gp.sample_y(NEW[:1], n_samples=2000)
    assert draws.shape == (1, 2, 2000)
    drawn, whole = np.cov(draws[0] / spread[:, None]), covariance[:2, :2]
    np.testing.assert_allclose(drawn, whole, atol=0.12 * np.max(whole))
    # A weight of 2 is the row twice, with the noise held.
    weights = np.where(np.arange(14) < 4, 2.0, 1.0)
    held = GaussianProcessRegressor(kx.RBF(), noise=0.3, optimise=False, coregion=2)
    twice = np.r_[np.arange(4), np.arange(14)]
    np.testing.assert_allclose(held.fit(X, y, weights).predict(NEW), held.fit(X[twice], y[twice]).predict(NEW), rtol=1e-9)
    assert held.fit(X, y).noise_ == 0.3
    assert GaussianProcessRegressor(kx.RBF(), noise=np.full(14, 0.3), coregion=True).fit(X, y).noise_.shape == (14,)
    # One output has nothing to be correlated with.
    for target in (y[:, 0], y[:, :1]):
        plain = GaussianProcessRegressor(kx.RBF(), optimise=False).fit(X, target).predict(NEW)
        single = GaussianProcessRegressor(kx.RBF(), optimise=False, coregion=True).fit(X, target).predict(NEW)
        np.testing.assert_array_equal(single, plain)
    for wrong in ("yes", 0, 1.5, None):
        with pytest.raises(ValueError, match="coregion must be True, False or a rank"):
            GaussianProcessRegressor(coregion=wrong).fit(X, y)


def test_the_estimator_solves_outputs_as_a_grid():
    """`Kronecker()` sees no padding and gives the answers of `Cholesky()`; weights are refused with the reason."""
    from kernax.sklearn import GaussianProcessRegressor

    x = np.linspace(0, 6, 9)[:, None]
    y = np.stack([np.sin(x[:, 0]), 0.3 * x[:, 0] - np.sin(x[:, 0])], axis=1) + 0.1 * np.cos(9 * x)
    answers = []
    for solver in (None, kx.Kronecker()):
        gp = GaussianProcessRegressor(coregion=True, solver=solver, normalize_y=True, optimise=False).fit(x, y)
        answers.append((gp.log_marginal_likelihood_value_, *gp.predict(x + 0.1, return_std=True)))
    for grid, rows in zip(*answers, strict=True):
        np.testing.assert_allclose(grid, rows, rtol=1e-9)
    with pytest.raises(ValueError, match="one noise for all rows and outputs: leave out sample_weight"):
        GaussianProcessRegressor(coregion=True, solver=kx.Kronecker()).fit(x, y, sample_weight=np.linspace(1, 2, 9))
