"""Vecchia's approximation: equal to the product of its conditionals, neighbours as by brute force, and honest in trouble."""

import json
import os
import subprocess
import sys
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import kernax as kx
from kernax.fitting import _rounds
from kernax.model import settled
from kernax.solvers import _conditionals, _neighbours

RNG = np.random.default_rng(0)
N = 40
X = RNG.normal(size=(N, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.2 * RNG.normal(size=N)
NEW = RNG.normal(size=(5, 2))
KERNEL = 1.3 * kx.Matern32(lengthscale=[0.7, 1.1])
MASK = np.arange(N) % 7 != 3
PER_ROW = np.linspace(0.05, 2.0, N)


def dense(plan, kernel, noise, x):
    """The covariance matrix of the product of conditionals, by regression of each block on its neighbours, in NumPy.

    With `y_J = W y_N + e_J`, the precision is the sum of `(I, -W)ᵀ S⁻¹ (I, -W)` over the blocks.
    """
    n = len(x)
    matrix = np.asarray(kernel(x)) + np.diag(np.broadcast_to(noise, n))
    precision, logdet = np.zeros((n, n)), 0.0
    for rows, neighbours in zip(np.asarray(plan.rows), np.asarray(plan.neighbours), strict=True):
        j, near = rows[rows >= 0], neighbours[neighbours >= 0]
        weights = np.linalg.solve(matrix[np.ix_(near, near)], matrix[np.ix_(near, j)]).T
        spread = matrix[np.ix_(j, j)] - weights @ matrix[np.ix_(near, j)]
        error = np.zeros((len(j), n))
        error[np.arange(len(j)), j] = 1.0
        error[:, near] -= weights
        precision += error.T @ np.linalg.solve(spread, error)
        logdet += np.linalg.slogdet(spread)[1]
    live = np.flatnonzero(np.diag(precision))
    return np.linalg.inv(precision[np.ix_(live, live)]), logdet, live


@eqx.filter_jit
def answers(model, data, solver, new):
    """Likelihood, prediction and covariance, in one program."""
    c = kx.condition(model, data, solver)
    return kx.log_marginal_likelihood(c), kx.predict(c, new), kx.covariance(c, new)


@pytest.mark.parametrize("noise", [0.1, PER_ROW], ids=["one", "per_row"])
@pytest.mark.parametrize(
    "solver",
    [kx.Vecchia(5), kx.Vecchia(6, block=3), kx.Vecchia(6, block=3, ordering="maxmin")],
    ids=["rows", "blocks", "maxmin"],
)
def test_answers_are_those_of_the_product_of_conditionals(solver, noise):
    data = kx.Data(np.where(MASK[:, None], X, np.nan), Y, MASK)
    c = kx.condition(kx.Model(KERNEL, noise=noise), data, solver)
    covariance, logdet, live = dense(c.system.plan, KERNEL, noise, X)
    assert c.result == kx.Result.successful
    np.testing.assert_array_equal(live, np.flatnonzero(MASK))
    found, likelihood, loo = eqx.filter_jit(
        lambda c: (c.system.logdet(), kx.log_marginal_likelihood(c), kx.loo_residuals(c))
    )(c)
    np.testing.assert_allclose(found, logdet, rtol=1e-10)
    np.testing.assert_allclose(np.linalg.slogdet(covariance)[1], logdet, rtol=1e-10)
    log_density = multivariate_normal(np.zeros(len(live)), covariance).logpdf(Y[live])
    np.testing.assert_allclose(likelihood, log_density, rtol=1e-10)
    inverse = np.linalg.inv(covariance)
    np.testing.assert_allclose(c.alpha[live], inverse @ Y[live], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(loo[live], inverse @ Y[live] / np.diag(inverse), rtol=1e-8, atol=1e-10)
    assert not np.any(np.asarray(c.alpha)[~MASK])


def test_each_block_is_conditioned_on_the_nearest_earlier_rows():
    model = kx.Model(KERNEL, noise=0.1)
    plan = settled(kx.Vecchia(5), model, kx.Data(X, Y)).plan
    order, scaled = np.asarray(plan.rows)[:, 0], X / np.array([0.7, 1.1])
    np.testing.assert_array_equal(np.sort(order), np.arange(N))
    for i, row in enumerate(order):
        earlier = order[:i]
        far = np.sum((scaled[earlier] - scaled[row]) ** 2, axis=1)
        expected = earlier[np.argsort(far)[:5]]
        np.testing.assert_array_equal(np.asarray(plan.neighbours)[i][: len(expected)], expected)


@pytest.mark.parametrize("way", ["tree", "distances", "tiles"])
def test_nearest_rows_equal_brute_force(way, monkeypatch):
    rng = np.random.default_rng(1)
    points, live = 1e4 + rng.normal(size=(300, 3)), rng.uniform(size=300) > 0.2
    queries, before = 1e4 + rng.normal(size=(50, 3)), rng.integers(0, 301, size=50)
    before[:2] = 0, 3
    monkeypatch.setattr(_neighbours, "_TREE_FROM", {"tree": 20, "distances": 10**9, "tiles": 20}[way])
    if way == "tiles":
        monkeypatch.setattr(_neighbours._ffi, "version", lambda: None)
    found = np.asarray(jax.jit(lambda *given: _neighbours.nearest(*given, 7))(points, live, queries, before))
    for query, limit, answer in zip(queries, before, found, strict=True):
        allowed = np.flatnonzero(live & (np.arange(300) < limit))
        expected = allowed[np.argsort(np.sum((points[allowed] - query) ** 2, axis=1))[:7]]
        np.testing.assert_array_equal(answer, np.pad(expected, (0, 7 - len(expected)), constant_values=-1))


def test_chunks_change_no_value_and_no_gradient_and_have_no_second_derivative(monkeypatch):
    vector, rebuild = kx.parameters.ravel(kx.Model(KERNEL, noise=PER_ROW, mean=kx.means.Constant(0.3)))
    solver = settled(kx.Vecchia(4, block=2), rebuild(vector), kx.Data(X, Y))

    def value(v, x=X):
        c = kx.condition(rebuild(v), kx.Data(x, Y), solver)
        return kx.log_marginal_likelihood(c) + kx.loo_mse(c)

    whole = jax.jit(jax.value_and_grad(value, (0, 1)))(vector, X)
    monkeypatch.setattr(_conditionals, "_ONE_CHUNK", 1)
    monkeypatch.setattr(_conditionals, "_CHUNK", 3 * 36)
    jax.clear_caches()
    chunks = jax.jit(jax.value_and_grad(value, (0, 1)))(vector, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10), chunks, whole)
    with pytest.raises(TypeError, match="first derivatives only"):
        jax.hessian(value)(vector)
    monkeypatch.undo()
    jax.clear_caches()


def test_parts_of_the_conditionals_are_likelihoods_of_the_whole_in_the_mean():
    """Four parts that make up the whole: the mean of their estimates is exact, value and gradient."""
    model, data = kx.Model(KERNEL, noise=0.1), kx.Data(X, Y)
    vector, rebuild = kx.parameters.ravel(model)
    whole, part = (settled(kx.Vecchia(5), model, data, number) for number in (None, 10))
    assert part.plan.rows.shape == (10, 1)
    assert part.plan.weight == 4

    @eqx.filter_jit
    def of(solver):
        return jax.value_and_grad(lambda v: kx.log_marginal_likelihood(kx.condition(rebuild(v), data, solver)))(vector)

    plans = [jax.tree.map(lambda leaf, i=i: leaf[i::4] if leaf.ndim else leaf, whole.plan) for i in range(4)]
    estimates = [
        of(eqx.tree_at(lambda s: s.plan, part, eqx.tree_at(lambda p: p.weight, plan, part.plan.weight))) for plan in plans
    ]
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *estimates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), mean, of(whole))
    assert abs(estimates[0][0] - estimates[1][0]) > 1e-3


def test_a_fit_chooses_neighbours_anew_and_says_so(monkeypatch):
    monkeypatch.setattr(_rounds, "_PART", 15)
    model, data = kx.Model(KERNEL, noise=0.1), kx.Data(X, Y)
    fit = kx.fit(model, data, solver=kx.Vecchia(N), restarts=1)
    exact = kx.fit(model, data)
    assert fit.num_refreshes == 2
    assert isinstance(fit.solver, kx.Vecchia)
    assert exact.num_refreshes == 0
    assert len(fit.history) == fit.num_steps
    assert fit.start_values.shape == (2,)
    # With as many neighbours as rows, the last round is exact.
    np.testing.assert_allclose(fit.value, exact.value, atol=2e-3)
    np.testing.assert_allclose(kx.log_marginal_likelihood(kx.condition(fit.model, data)), -fit.value, rtol=1e-8)


@pytest.mark.parametrize("case", ["no_coordinates", "dict", "given", "deep", "sum"])
def test_any_kernel_and_any_rows(case):
    """With as many neighbours as rows, equal to Cholesky, whatever decides which rows are close."""
    deep = eqx.nn.MLP(2, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(1))
    rows = {"place": X, "kind": np.arange(N) % 3}
    new = {"place": NEW, "kind": np.arange(5) % 3}
    kernel, x, z, solver = {
        "no_coordinates": (kx.NNGP(depth=1), X, NEW, kx.Vecchia(N)),
        "dict": (kx.Select(kx.Matern52(), key="place"), rows, new, kx.Vecchia(N)),
        "given": (kx.NNGP(depth=1), X, NEW, kx.Vecchia(N, block=4, coordinates=_first_column)),
        "deep": (kx.Warp(kx.RBF(), deep), X, NEW, kx.Vecchia(N)),
        "sum": (kx.RBF() + kx.Periodic() * kx.Linear(), X, NEW, kx.Vecchia(N, block=4)),
    }[case]
    model, data = kx.Model(kernel, noise=0.3), kx.Data(x, Y)
    ours, exact = (answers(model, data, solver, z) for solver in (solver, kx.Cholesky()))
    np.testing.assert_allclose(ours[0], exact[0], rtol=1e-9)
    np.testing.assert_allclose(ours[1].mean, exact[1].mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(ours[2], exact[2], rtol=1e-7, atol=1e-9)


def _first_column(x):
    return x[:, :1]


def test_few_neighbours_predict_nearly_as_well():
    rng = np.random.default_rng(3)
    x = rng.uniform(-3.0, 3.0, size=(400, 2))
    y = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=400)
    model, data, new = kx.Model(kx.Matern32(), noise=0.09), kx.Data(x, y), rng.uniform(-3.0, 3.0, size=(50, 2))
    solvers = kx.Cholesky(), kx.Vecchia(20, prediction_neighbours=60)
    exact, local = (answers(model, data, solver, new) for solver in solvers)
    assert abs(local[0] - exact[0]) < 0.02 * 400
    np.testing.assert_allclose(local[1].mean, exact[1].mean, atol=0.05)
    ratio = local[1].variance / exact[1].variance
    assert np.all((ratio > 0.999) & (ratio < 1.2))


def test_draws_have_the_covariance_of_the_approximation():
    c = kx.condition(kx.Model(KERNEL, noise=0.1), kx.Data(X[:8], Y[:8]), kx.Vecchia(2, block=2))
    covariance, _, _ = dense(c.system.plan, KERNEL, 0.1, X[:8])
    drawn = np.asarray(c.system.draw(jax.random.key(0), 40_000))
    np.testing.assert_allclose(drawn @ drawn.T / 40_000, covariance, atol=0.05)


def test_second_opinion_on_gradients_by_differences_in_every_kind_of_parameter():
    model = kx.Model(KERNEL, noise=0.1, mean=kx.means.Constant(0.3))
    solver = settled(kx.Vecchia(5, block=2), model, kx.Data(X, Y))
    vector, rebuild = kx.parameters.ravel(model)

    @jax.jit
    @jax.value_and_grad
    def value_and_slopes(v):
        return kx.log_marginal_likelihood(kx.condition(rebuild(v), kx.Data(X, Y), solver))

    slopes = value_and_slopes(vector)[1]
    for i, step in enumerate(1e-6 * np.eye(len(vector))):
        difference = value_and_slopes(vector + step)[0] - value_and_slopes(vector - step)[0]
        np.testing.assert_allclose(slopes[i], difference / 2e-6, rtol=1e-6, atol=1e-7)


# Trouble


def test_duplicates_by_the_thousand(monkeypatch):
    """Three of four rows have a twin, and one row is there a thousand times: the tree is built, and neighbours are found."""
    rng = np.random.default_rng(4)
    x = np.concatenate([np.repeat(rng.normal(size=(700, 2)), 2, axis=0), np.zeros((1000, 2))])
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=len(x))
    model, data = kx.Model(kx.Matern32(), noise=0.01), kx.Data(x, y)
    c = kx.condition(model, data, kx.Vecchia(10, prediction_neighbours=20))
    assert c.result == kx.Result.successful
    assert c.jitter == 0
    likelihood = jax.value_and_grad(lambda m: kx.log_marginal_likelihood(kx.condition(m, data, kx.Vecchia(10))))
    value, slope = jax.jit(likelihood)(model)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


@pytest.mark.parametrize("x", [np.zeros((30, 2)), np.ones((1, 2)), np.arange(2.0)[:, None] * np.ones(2)])
def test_constant_columns_and_few_rows(x):
    y = np.arange(len(x)) / 10
    model, data = kx.Model(kx.Matern32(lengthscale=[1.0, 2.0]), noise=0.1), kx.Data(x, y)
    ours, exact = (answers(model, data, solver, NEW) for solver in (kx.Vecchia(50, block=1), kx.Cholesky()))
    np.testing.assert_allclose(ours[0], exact[0], rtol=1e-9)
    np.testing.assert_allclose(ours[1].mean, exact[1].mean, rtol=1e-9)


def test_noise_0_with_twins_is_singular_and_has_a_jitter():
    x = np.repeat(X[:10], 2, axis=0)
    model, data = kx.Model(kx.RBF(), noise=0.0), kx.Data(x, np.sin(x[:, 0]))
    c = kx.condition(model, data, kx.Vecchia(6), throw=False)
    assert c.result == kx.Result.singular
    assert 0 < c.jitter < 1e-5
    with pytest.raises(kx.FailedError, match="noise 0"):
        kx.condition(model, data, kx.Vecchia(6))


class Sick(kx.AbstractKernel):
    """A kernel that is NaN, or not definite, on rows with a large first column."""

    value: jax.Array = kx.positive(default=1.0)
    wrong: float = eqx.field(static=True, default=np.nan)

    def pair(self, a, b):
        usual = self.value * jnp.exp(-0.5 * jnp.sum((a - b) ** 2))
        return jnp.where((a[0] > 1e3) & (b[0] > 1e3), self.wrong, usual)


@pytest.mark.parametrize("wrong", [np.nan, -3.0])
def test_one_sick_block_is_reported_and_spoils_no_gradient(wrong):
    x = X.copy()
    x[7, 0] = 1e4
    data, solver = kx.Data(x, Y), kx.Vecchia(5, coordinates=_first_column)

    def value(model):
        c = kx.condition(model, data, solver, throw=False)
        value = kx.log_marginal_likelihood(c)
        return jnp.where(jnp.isfinite(value), value, 0.0), c.result

    (number, result), slope = jax.jit(jax.value_and_grad(value, has_aux=True))(kx.Model(Sick(1.0, wrong), noise=0.1))
    assert number == 0
    assert result == kx.Result.not_positive_definite
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    with pytest.raises(kx.FailedError):
        kx.fit(kx.Model(Sick(1.0, wrong), noise=0.1), data, solver=solver)


def test_options_and_misuse_name_the_remedy():
    data, model = kx.Data(X, Y), kx.Model(KERNEL, noise=0.1)
    with pytest.raises(ValueError, match='ordering must be "random" or "maxmin"'):
        kx.Vecchia(ordering="sorted")
    with pytest.raises(ValueError, match=r"Vecchia\.neighbours must be a whole number"):
        kx.Vecchia(0)
    with pytest.raises(ValueError, match="were chosen for 40 rows, and the data has 10"):
        kx.condition(model, kx.Data(X[:10], Y[:10]), settled(kx.Vecchia(), model, data))
    with pytest.raises(TypeError, match=r"needs coordinates of the rows, which NNGP does not have: give coordinates="):
        kx.condition(kx.Model(kx.NNGP(), noise=0.1), data, kx.Vecchia(block=4))
    with pytest.raises(TypeError, match="another ridge needs"):
        kx.recondition(kx.condition(model, data, kx.Vecchia()), 0.3)


def test_blocks_are_spread_over_devices_and_processes():
    """Eight virtual devices, and a number of blocks that they do not divide: the same numbers as on one."""
    code = """
        import json, jax, numpy as np, kernax as kx
        from jax.sharding import Mesh
        from kernax.solvers import _conditionals

        _conditionals._ONE_CHUNK, _conditionals._CHUNK = 1, 2 * 36
        rng = np.random.default_rng(0)
        x = rng.normal(size=(101, 2))
        data = kx.Data(x, np.sin(x[:, 0]))

        def both(mesh):
            vector, rebuild = kx.parameters.ravel(kx.Model(kx.Matern32([1.0, 2.0]), noise=0.1))
            solver = kx.Vecchia(5, mesh=mesh)
            return jax.jit(jax.value_and_grad(
                lambda v: kx.log_marginal_likelihood(kx.condition(rebuild(v), data, solver))))(vector)

        assert len(jax.devices()) == 8
        ours, alone = both(Mesh(np.array(jax.devices()), "rows")), both(None)
        print(json.dumps([np.append(a, b).tolist() for a, b in (ours, alone)]))
    """
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    settings = os.environ | {"JAX_ENABLE_X64": "1", "XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours, alone = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(ours, alone, rtol=1e-10)
