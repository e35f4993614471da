"""`kx.Kronecker()`: a full grid and a product kernel, equal to dense NumPy, derivatives and refusals included."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from tests.tables import AXES, CELLS, SystemCase, dense_oracle

rng = np.random.default_rng(3)


class Tasks(kx.AbstractKernel):
    """A covariance of tasks, by their numbers: `w wᵀ + diag(own)`."""

    weights: jax.Array = kx.parameters.real()
    own: jax.Array = kx.positive()

    def pair(self, a, b):
        return self.weights[a] * self.weights[b] + jnp.where(a == b, self.own[a], 0.0)


def on(*kernels):
    """The product of kernels, one for each axis."""
    first, *others = (kx.Select(kernel, axis=i) for i, kernel in enumerate(kernels))
    return math.prod(others, start=first)


def case(kernel, axes, new, **options):
    n = math.prod(len(axis) for axis in axes)
    trend = lambda point: jnp.stack([jnp.ones(()), point[0][0]])  # noqa: E731
    y = np.random.default_rng(n).normal(size=n)
    return SystemCase(kx.Kronecker(), kernel, kx.Grid(axes), y, new, trend, **options)


TWO = case(
    1.3 * on(kx.RBF(lengthscale=0.8), kx.Matern32(lengthscale=1.1)),
    AXES,
    (np.array([[0.1], [1.2], [3.0]]), np.array([[0.3], [1.0], [0.2]])),
)
_FLAT = np.array([[0.0], [1.0], [1.5], [2.0]])
_FOLDED = kx.Warp(kx.Matern32(), lambda row: jnp.where(row == 1.5, 1.0, row))
CASES = {
    "two": TWO,
    "three": case(
        on(kx.RBF(), kx.Matern52(lengthscale=[0.7, 1.3]), kx.RBF(lengthscale=2.0)) * 0.7,
        (np.array([[0.0], [0.4], [1.1]]), rng.normal(size=(3, 2)), np.array([[0.0], [2.0]])),
        (np.array([[0.2], [0.9]]), rng.normal(size=(2, 2)), np.array([[0.5], [1.5]])),
    ),
    # Two values that the kernel does not tell apart give an eigenvalue 0, and equal axes equal ones; a circulant axis has
    # pairs of them.
    "equal_eigenvalues": case(
        on(_FOLDED, _FOLDED, kx.Periodic(period=4.0)),
        (_FLAT, _FLAT, np.arange(4.0)[:, None]),
        (np.array([[0.5], [1.0]]), np.array([[0.5], [2.5]]), np.array([[0.5], [1.0]])),
    ),
    "one": case(on(kx.RBF()), (AXES[0],), (np.array([[0.3], [1.0]]),)),
    "tasks": case(
        on(kx.Matern32(lengthscale=1.3), Tasks([0.7, -0.4, 1.1], [0.3, 0.5, 0.2])),
        (AXES[0], np.arange(3)),
        (np.array([[0.3], [1.0], [0.3]]), np.array([0, 2, 1])),
    ),
    # A structure of arrays as an axis, and two kernels of one axis.
    "parts": case(
        on(kx.RBF() * kx.Matern12(), kx.Select(kx.RBF(), key="a") * kx.Select(kx.Matern32(), key="b")),
        (AXES[0], {"a": np.array([[0.0], [1.0]]), "b": np.array([[0.3], [0.2]])}),
        (np.array([[0.3], [1.0]]), {"a": np.array([[0.5], [1.0]]), "b": np.array([[0.1], [0.2]])}),
    ),
}
CASES["parts"] = dataclasses.replace(CASES["parts"], y=np.random.default_rng(8).normal(size=8))


@eqx.filter_jit
def answers(c, new):
    """Evidence, prediction, covariance and leave-one-out, in one program."""
    return kx.log_marginal_likelihood(c), kx.predict(c, new), kx.covariance(c, new), kx.loo_residuals(c)


@pytest.mark.parametrize("noise", [0.05, 30.0])
@pytest.mark.parametrize("name", CASES)
def test_answers_equal_dense_numpy(name, noise):
    case = CASES[name]
    c = kx.condition(case.model(noise=noise), case.data(), kx.Kronecker())
    assert c.result == kx.Result.successful
    oracle = dense_oracle(case.kernel, noise, case.x, case.y, case.new)
    likelihood, prediction, covariance, loo = answers(c, case.new)
    np.testing.assert_allclose(likelihood, oracle.evidence, rtol=1e-11)
    np.testing.assert_allclose(prediction.mean, oracle.mean, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(prediction.variance, oracle.variance, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(covariance, oracle.covariance, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(loo, oracle.loo, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("name", "order"), [("equal_eigenvalues", 3), ("tasks", 2)])
def test_the_likelihood_has_derivatives_of_second_and_third_order(name, order):
    """Against plain autodiff of a dense matrix. (Other quantities and nestings: `test_systems.py`.)"""
    case = CASES[name]
    vector, rebuild = kx.parameters.ravel(case.model(noise=0.3))
    direction = jnp.sin(1.0 + jnp.arange(vector.size))

    def along(function):
        return lambda v: jax.jvp(function, (v,), (direction,))[1]

    def derivatives(function):
        last = along(along(along(function))) if order == 3 else along(along(function))
        return jax.jit(lambda v: (jax.grad(along(function))(v), last(v)))(vector)

    ours, plain = (
        derivatives(lambda v, s=solver: kx.log_marginal_likelihood(kx.condition(rebuild(v), case.data(), s)))
        for solver in (kx.Kronecker(), kx.Cholesky())
    )
    for mine, theirs in zip(ours, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def test_the_grid_may_be_written_in_its_own_shape():
    shape = (4, 3)
    y = CELLS.reshape(shape)
    c, flat = (kx.condition(TWO.model(), kx.Data(TWO.x, targets), kx.Kronecker()) for targets in (y, CELLS))
    np.testing.assert_array_equal(c.alpha, flat.alpha)
    everywhere = kx.Grid((np.array([[0.1], [3.0]]), np.array([[0.3], [1.0]])))
    rows = (np.array([[0.1], [0.1], [3.0], [3.0]]), np.array([[0.3], [1.0], [0.3], [1.0]]))
    np.testing.assert_array_equal(kx.mean(c, everywhere), kx.mean(c, rows))
    np.testing.assert_array_equal(kx.predict(c, everywhere).variance, kx.variance(c, rows))
    two = kx.condition(TWO.model(), kx.Data(TWO.x, np.stack([CELLS, 2 * CELLS], axis=1)), kx.Kronecker())
    np.testing.assert_allclose(kx.mean(two, rows)[:, 1], 2 * kx.mean(c, rows), rtol=1e-12)
    mask = np.ones(shape, bool)
    mask[1, 2] = False
    masked = kx.Data(TWO.x, np.where(mask, y, np.nan), mask)
    np.testing.assert_array_equal(masked.mask, mask.ravel())
    np.testing.assert_array_equal(kx.Data(TWO.x, CELLS, mask).mask, mask.ravel())


def test_what_one_factorisation_answers():
    """Another ridge, eigenvalues, draws, degrees of freedom."""
    c = kx.condition(TWO.model(noise=1.0), TWO.data(), kx.Kronecker())
    path = kx.ridge_path(c, [0.02, 3.0])
    for ridge, evidence, loo, freedom in zip(
        path.ridges, path.log_marginal_likelihood, path.loo_residuals, path.effective_degrees_of_freedom, strict=True
    ):
        oracle = dense_oracle(TWO.kernel, float(ridge), TWO.x, TWO.y, TWO.new)
        np.testing.assert_allclose(evidence, oracle.evidence, rtol=1e-10)
        np.testing.assert_allclose(loo, oracle.loo, rtol=1e-10)
        matrix = np.asarray(kx.kernels.AbstractKernel.gram(TWO.kernel, kx.rows.take(TWO.x), None))
        np.testing.assert_allclose(freedom, np.trace(np.linalg.solve(matrix + ridge * np.eye(12), matrix)), rtol=1e-10)
        np.testing.assert_allclose(kx.mean(kx.recondition(c, noise=ridge), TWO.new), oracle.mean, rtol=1e-10)
    np.testing.assert_allclose(np.sort(c.system.eigenvalues()), np.linalg.eigvalsh(matrix), rtol=1e-9, atol=1e-13)
    drawn = np.asarray(c.system.draw(jax.random.key(0), 100_000))
    np.testing.assert_allclose(np.cov(drawn), matrix + np.eye(12), atol=0.05)
    by_grid, dense = (
        kx.select_ridge(TWO.model(), TWO.data(), by="likelihood", solver=s) for s in (kx.Kronecker(), kx.Eigh())
    )
    np.testing.assert_allclose(by_grid.ridge, dense.ridge, rtol=1e-5)
    with pytest.raises(TypeError, match=r"k-fold cross-validation leaves rows out\. .* use kx\.CG\(kx\.Kronecker\(\)\)"):
        kx.kfold_mse(c, 3)


def test_fitted_and_batched():
    fits = [kx.fit(TWO.model(noise=0.3), TWO.data(), solver=s, max_steps=60) for s in (kx.Kronecker(), kx.Cholesky())]
    np.testing.assert_allclose(fits[0].value, fits[1].value, rtol=1e-6)

    def evidence(y, noise):
        return kx.log_marginal_likelihood(kx.condition(TWO.model(noise=noise), TWO.data(y=y), kx.Kronecker()))

    ys, noises = np.stack([CELLS, CELLS[::-1]]), jnp.array([0.1, 2.0])
    both = jax.jit(jax.vmap(evidence))(ys, noises)
    alone = [dense_oracle(TWO.kernel, float(s), TWO.x, y, TWO.new).evidence for y, s in zip(ys, noises, strict=True)]
    np.testing.assert_allclose(both, alone, rtol=1e-10)


def test_float32():
    c = kx.condition(TWO.model(noise=0.5), TWO.data(dtype=np.float32), kx.Kronecker())
    new = jax.tree.map(np.float32, TWO.new)
    oracle = dense_oracle(TWO.kernel, 0.5, TWO.x, TWO.y, TWO.new)
    likelihood, prediction, _, loo = answers(c, new)
    assert {answer.dtype.name for answer in (loo, prediction.mean, prediction.variance, likelihood)} == {"float32"}
    np.testing.assert_allclose(loo, oracle.loo, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(prediction.mean, oracle.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(prediction.variance, oracle.variance, rtol=1e-4, atol=1e-5)


def test_jitter_as_with_one_eigendecomposition():
    """Smooth kernels and values that lie close: eigenvalues that are 0, or negative by rounding, of an axis and of the
    product."""
    axes = ((np.repeat(np.linspace(0, 1, 6), 2) + 1e-12 * np.arange(12))[:, None], np.linspace(0, 1, 9)[:, None])
    y = np.sin(axes[0] * 5 + axes[1].T).ravel()
    data = kx.Data(kx.Grid(axes), y)

    def at(noise, solver):
        return kx.condition(kx.Model(on(kx.RBF(), kx.RBF()), noise=noise), data, solver, throw=False)

    ours, dense = at(0.0, kx.Kronecker()), at(0.0, kx.Eigh())
    assert ours.result == dense.result == kx.Result.singular
    assert 0 < ours.jitter <= 100 * dense.jitter
    np.testing.assert_allclose(kx.mean(ours, data.x), y, atol=1e-4)
    assert np.isfinite(kx.log_marginal_likelihood(ours))
    ours, dense = at(1e-6, kx.Kronecker()), at(1e-6, kx.Cholesky())
    assert ours.result == kx.Result.successful
    assert ours.jitter == 0
    np.testing.assert_allclose(kx.log_marginal_likelihood(ours), kx.log_marginal_likelihood(dense), rtol=1e-6)
    assert at(1e-30, kx.Kronecker()).jitter > 0
    assert at(0.0, kx.Kronecker(max_jitter=0.0)).result == (kx.Result.not_positive_definite)


class Indefinite(kx.AbstractKernel):
    scale: jax.Array = kx.positive(default=1.0)

    def pair(self, a, b):
        return jnp.where(jnp.all(a == b), 0.0, self.scale)


def test_failures_have_a_result_nan_answers_and_finite_gradients_behind_where():
    mask = np.ones(12, bool)
    mask[5] = False

    def value(scale, mask, y):
        model = kx.Model(on(kx.RBF(), Indefinite(scale)), noise=0.1)
        c = kx.condition(model, kx.Data(TWO.x, y, mask), kx.Kronecker(), throw=False)
        answers = jnp.stack([kx.log_marginal_likelihood(c), *kx.mean(c, TWO.new), *kx.variance(c, TWO.new), kx.loo_mse(c)])
        return jnp.where(c.ok, answers.sum(), 0.0), (c.result, answers)

    program = jax.jit(jax.grad(value, has_aux=True))
    for given, y, expected in (
        (np.ones(12, bool), CELLS, kx.Result.not_positive_definite),
        (np.ones(12, bool), CELLS * np.nan, kx.Result.nonfinite),
        (mask, CELLS, kx.Result.too_few_rows),
        (np.zeros(12, bool), CELLS, kx.Result.empty),
    ):
        gradient, (result, answers) = program(1.0, given, y)
        assert result == expected
        assert np.isnan(answers).all()
        assert np.isfinite(gradient)


def test_what_is_no_kronecker_product_is_refused_with_a_remedy():
    x, kernel, solver = TWO.x, TWO.kernel, kx.Kronecker()
    mask = np.arange(12) != 4
    for run in (kx.condition, lambda model, data, solver: kx.fit(model, data, solver=solver)):
        with pytest.raises(
            ValueError, match=r"every cell .*, but the mask leaves out 1 of 12: use kx\.CG\(kx\.Kronecker\(\)\)"
        ):
            run(TWO.model(), kx.Data(x, CELLS, mask), solver)
        for model, data in (
            (kx.Model(kx.RBF(), noise=0.1), kx.Data(rng.normal(size=(5, 2)), np.ones(5))),
            (TWO.model(), kx.Data(kx.rows.take(x), CELLS)),
            (kx.Model(kernel + 1.0, noise=0.1), TWO.data()),
            (kx.Model(kx.Select(kx.RBF(), axis=0), noise=0.1), TWO.data()),
        ):
            with pytest.raises(TypeError, match=r"needs rows that are a kx\.Grid and a kernel that is a product over all"):
                run(model, data, solver)
        with pytest.raises(TypeError, match=r"needs one noise for all rows, .*: use kx\.CG\(\)"):
            run(kx.Model(kernel, noise=np.full(12, 0.1)), TWO.data(), solver)
        for axes, words in (
            ((AXES[0], np.array([[0.2], [0.9], [0.2]])), r"axis 1 of the grid repeats the value 0\.2 \(rows 0 and 2\)"),
            ((AXES[0], {"a": np.ones((3, 2)), "b": np.array([4, 5, 5])}), r"axis 1 .* value 1\.0, 1\.0, 5\.0 \(rows 1"),
            (
                (np.array([0, 1, 1, 3]), AXES[1]),
                r"axis 0 of the grid repeats the value 1 \(rows 1 and 2\).*once",
            ),
        ):
            first = kx.RBF() if axes[0].ndim == 2 else kx.FeatureMap(lambda label: jax.nn.one_hot(label, 4))
            second = kx.Matern32() if isinstance(axes[1], np.ndarray) else kx.Select(kx.Matern32(), key="a")
            model = kx.Model(kx.Select(first, axis=0) * kx.Select(second, axis=1), noise=0.1)
            for each in (solver, kx.CG(solver)):
                with pytest.raises(ValueError, match=words):
                    run(model, kx.Data(kx.Grid(axes), CELLS), each)
    # With other solvers a grid may have gaps, and noise of its own in each row.
    c = kx.condition(kx.Model(kernel, noise=np.full(12, 0.1)), kx.Data(x, CELLS, mask), kx.Cholesky())
    rows = kx.rows.take(x, np.flatnonzero(mask))
    alone = kx.condition(kx.Model(kernel, noise=0.1), kx.Data(rows, CELLS[mask]))
    np.testing.assert_allclose(kx.mean(c, TWO.new), kx.mean(alone, TWO.new), rtol=1e-10)


def test_large_grids_never_form_the_whole_matrix():
    axes, n = (np.linspace(0, 1, 60)[:, None], np.linspace(0, 1, 50)[:, None]), 3000
    new = (rng.uniform(size=(40, 1)), rng.uniform(size=(40, 1)))
    data = kx.Data(kx.Grid(axes), np.sin(axes[0] * 7 + axes[1].T))

    def value(model):
        c = kx.condition(model, data, kx.Kronecker())
        return kx.log_marginal_likelihood(c) + kx.loo_mse(c) + jnp.sum(kx.variance(c, new)) + jnp.sum(kx.mean(c, new))

    compiled = jax.jit(jax.grad(value)).lower(TWO.model()).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < n * n * 8 / 3
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(eqx.filter(compiled(TWO.model()), eqx.is_array)))


def test_samples_on_another_grid():
    """Against the dense posterior, by moments; cells that both grids have are the same cells."""
    rng = np.random.default_rng(3)
    grid = kx.Grid((np.linspace(0.0, 2.0, 4)[:, None], np.array([0, 1, 2])))
    new = kx.Grid((np.array([[0.3], [2.0], [2.5]]), np.array([0, 2])))
    kernel = kx.Select(1.3 * kx.Matern52(), axis=0) * kx.Select(kx.FeatureMap(lambda t: jnp.eye(3)[t] + 0.4), axis=1)
    data, model = kx.Data(grid, rng.normal(size=12)), kx.Model(kernel, noise=0.2)
    dense = kx.condition(model, kx.Data(kx.rows.take(grid), data.y))
    mean, covariance = kx.mean(dense, kx.rows.take(new)), kx.covariance(dense, kx.rows.take(new))
    holes = kx.Data(grid, data.y, np.arange(12) != 5)
    dense_holes = kx.condition(model, kx.Data(kx.rows.take(grid), data.y, holes.mask))
    for c, exact in (
        (kx.condition(model, data, kx.Kronecker()), (mean, covariance)),
        (
            kx.condition(model, holes, kx.CG(kx.Kronecker())),
            (kx.mean(dense_holes, kx.rows.take(new)), kx.covariance(dense_holes, kx.rows.take(new))),
        ),
    ):
        draws = np.asarray(kx.sample(c, new, key=jax.random.key(1), num_samples=20_000))
        np.testing.assert_allclose(draws.mean(axis=0), exact[0], atol=0.03)
        np.testing.assert_allclose(np.cov(draws.T), exact[1], atol=0.04)
    prior = np.asarray(kx.sample(model, new, key=jax.random.key(2), num_samples=20_000, solver=kx.Kronecker()))
    np.testing.assert_allclose(np.cov(prior.T), kernel(kx.rows.take(new)), atol=0.06)
    # A grid whose covariance matrix would take 14 TB.
    large = kx.Grid((np.linspace(0.0, 9.0, 1000)[:, None], np.linspace(0.0, 9.0, 1000)[:, None]))
    flat = kx.Model(kx.Select(kx.Matern32(), axis=0) * kx.Select(kx.Matern32(), axis=1), noise=0.1)
    assert kx.sample(flat, large, key=jax.random.key(0), solver=kx.Kronecker()).shape == (1, 1_000_000)


def test_a_noise_that_differs_along_one_axis():
    """The noise of each task: all answers, and derivatives of first and second order, are those of dense rows."""
    rng = np.random.default_rng(3)
    x, y = np.linspace(0.0, 3.0, 5)[:, None], rng.normal(size=(5, 3))
    data = {"grid": kx.Data(kx.Grid({"x": x, "task": np.arange(3)}), y), "rows": kx.data.long(x, y)}
    solvers = {"grid": kx.Kronecker(), "rows": kx.Cholesky()}
    new = kx.Grid({"x": x[:2] + 0.1, "task": np.array([2, 0])})
    v = jnp.array([0.8, 0.1, 0.02, 2.0, 0.05])

    def conditioned(v, kind):
        noise = kx.noises.PerGroup("task", v[1:4]) + v[4]
        model = kx.Model(kx.kernels.ICM(kx.RBF(v[0]), 3), noise=noise, mean=0.3)
        return kx.condition(model, data[kind], solvers[kind])

    def answers(v, kind):
        c = conditioned(v, kind)
        prediction = kx.predict(c, new, noisy=True)
        return (
            kx.log_marginal_likelihood(c),
            prediction.mean,
            prediction.variance,
            kx.covariance(c, new),
            kx.loo_residuals(c),
        )

    for grid, rows in zip(answers(v, "grid"), answers(v, "rows"), strict=True):
        np.testing.assert_allclose(grid, rows, rtol=1e-9, atol=1e-12)

    def summed(v, kind):
        return sum(jnp.sum(jnp.sin(answer)) for answer in answers(v, kind))

    gradients = [jax.jit(jax.grad(summed), static_argnums=1)(v, kind) for kind in data]
    np.testing.assert_allclose(*gradients, rtol=1e-8, atol=1e-10)
    hessians = [
        jax.jit(jax.hessian(lambda v, kind=kind: kx.log_marginal_likelihood(conditioned(v, kind))))(v) for kind in data
    ]
    np.testing.assert_allclose(*hessians, rtol=1e-8, atol=1e-8)
    c = conditioned(v, "grid")
    drawn = np.asarray(kx.sample(c, new, key=jax.random.key(0), num_samples=3000))
    deviation = np.sqrt(np.diag(kx.covariance(c, new)))
    error = np.abs(np.cov(drawn.T) - kx.covariance(c, new)) / np.outer(deviation, deviation)
    assert error.max() < 4.5 * np.sqrt(2 / 3000)
    # No task may be without noise.
    silent = kx.Model(kx.kernels.ICM(kx.RBF(), 3), noise=lambda row: jnp.where(row["task"] == 1, 0.0, 0.1))
    assert not bool(kx.condition(silent, data["grid"], kx.Kronecker(), throw=False).ok)


@pytest.mark.parametrize("solver", [kx.Kronecker(), kx.CG(kx.Kronecker())])
def test_many_grids_at_once_are_refused_with_a_remedy(solver):
    grid = kx.Grid((np.linspace(0, 1, 4)[:, None], np.linspace(0, 2, 3)[:, None]))
    model = kx.Model(kx.Select(kx.Matern32(), axis=0) * kx.Select(kx.Matern52(), axis=1), 0.1)
    datasets = [kx.Data(grid, np.sin(np.arange(12.0)))]
    message = r"Kronecker.*needs a kx.Grid, and functions of many datasets turn grids into rows.*for each grid"
    with pytest.raises(TypeError, match=message):
        kx.fit_many(model, datasets, solver=solver)
    with pytest.raises(TypeError, match=message):
        kx.fitting.condition_many(model, datasets, solver)
    with pytest.raises(TypeError, match=message):
        kx.predict_many(model, datasets, [grid], solver=solver)
    with pytest.raises(TypeError, match=message):
        kx.fitting.score_many(model, datasets, kx.loo_mse, solver=solver)
