"""CG: solves equal the dense ones to its tolerance, the log determinant is estimated, and what does not converge says so."""

import inspect
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

import kernax as kx
from kernax.grams import Gram, gram_of
from kernax.solvers import _pathwise

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.2 * RNG.normal(size=24)
NEW = RNG.normal(size=(5, 2))
KERNEL = 1.3 * kx.Matern32(lengthscale=[0.7, 1.1])
MASK = np.arange(24) % 7 != 3
PER_ROW = np.linspace(0.05, 2.0, 24)
WEAK = kx.CG(kx.LowRank(inducing=X[:3]), tolerance=1e-12)
"""With a preconditioner that leaves most of the work to the iteration."""


@jax.jit
def matrices(kernel, x, new):
    """The kernel's matrices of rows, of rows with new ones, and of new ones."""
    return kernel(x), kernel(x, new), kernel(new)


def dense(kernel, noise, x, y, new):
    """Mean, variance and `yᵀA⁻¹y` in NumPy."""
    k, cross, prior = map(np.asarray, matrices(kernel, x, new))
    inverse = np.linalg.inv(k + np.diag(np.broadcast_to(noise, len(y))))
    variance = np.diag(prior) - np.sum(cross * (inverse @ cross), axis=0)
    return cross.T @ inverse @ y, variance, y @ inverse @ y


evidence = eqx.filter_jit(lambda c: c.system.evidence(c.residual))


@pytest.mark.parametrize("noise", [0.05, 30.0, "per_row"])
def test_mean_and_variance_equal_dense_with_masks_and_noise_per_row(noise):
    noise = PER_ROW if noise == "per_row" else noise
    data = kx.Data(np.where(MASK[:, None], X, np.nan), Y, MASK)
    c = kx.condition(kx.Model(KERNEL, noise=noise), data, WEAK)
    mean, variance, quadratic = dense(KERNEL, np.broadcast_to(noise, 24)[MASK], X[MASK], Y[MASK], NEW)
    prediction = kx.predict(c, NEW)
    assert c.result == prediction.result == kx.Result.successful
    assert 1 < c.solution.steps <= 24
    assert c.solution.residual < 1e-10
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(prediction.variance, variance, rtol=1e-9)
    np.testing.assert_allclose(evidence(c).quadratic[0], quadratic, rtol=1e-10)
    assert not np.any(np.asarray(c.alpha)[~MASK])


def test_derivatives_of_all_but_the_determinant_to_second_order_with_a_weak_preconditioner():
    vector, rebuild = kx.parameters.ravel(kx.Model(KERNEL, noise=0.3))

    def ours(v):
        c = kx.condition(rebuild(v), kx.Data(X, Y), WEAK)
        value = jnp.sum(jnp.sin(kx.mean(c, NEW))) + jnp.sum(kx.variance(c, NEW) ** 2)
        return value + c.system.evidence(c.residual).quadratic[0]

    def plain(v):
        m = rebuild(v)
        inverse, cross = jnp.linalg.inv(m.kernel(X) + m.noise * jnp.eye(24)), m.kernel(X, NEW)
        variance = jnp.diagonal(m.kernel(NEW)) - jnp.sum(cross * (inverse @ cross), axis=0)
        return jnp.sum(jnp.sin(cross.T @ inverse @ Y)) + jnp.sum(variance**2) + Y @ inverse @ Y

    mine, theirs = (jax.jit(jax.jacfwd(jax.grad(function)))(vector) for function in (ours, plain))
    np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-8 * np.abs(theirs).max())


def test_the_log_determinant_and_its_derivatives_are_unbiased():
    """With many probes, value and slope come near the dense ones."""
    vector, rebuild = kx.parameters.ravel(kx.Model(KERNEL, noise=0.3))
    data = kx.Data(X, Y, MASK)

    def value(v, solver):
        return kx.condition(rebuild(v), data, solver).system.logdet()

    exact, many = (
        jax.jit(jax.value_and_grad(lambda v, s=solver: value(v, s)))(vector)
        for solver in (kx.Cholesky(), kx.CG(WEAK.preconditioner, num_probes=4000))
    )
    for ours, theirs in zip(many, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.05, atol=0.3)


def test_mean_equals_dense_at_2000_rows_with_the_default_tolerance():
    rng = np.random.default_rng(1)
    x, new = rng.normal(size=(2000, 4)), rng.normal(size=(50, 4))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=2000)
    model = kx.Model(1.2 * kx.RBF(np.full(4, 1.5)), noise=0.09)
    means = [kx.mean(kx.condition(model, kx.Data(x, y), solver), new) for solver in (kx.CG(), kx.Cholesky())]
    np.testing.assert_allclose(*means, atol=1e-6)


def test_tiles_give_the_same_numbers_as_a_stored_matrix_and_no_large_matrix_is_planned():
    model = kx.Model(KERNEL, noise=0.2)

    def value(model, data, tile):
        solver = kx.CG(kx.LowRank(inducing=X[:5]), stored=tile is None, tile=tile)
        return kx.log_marginal_likelihood(kx.condition(model, data, solver))

    stored, tiles = (
        jax.jit(jax.value_and_grad(lambda m, d, t=tile: value(m, d, t)))(model, kx.Data(X, Y)) for tile in (None, 5)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), tiles, stored)
    # Compiled, not run: value and gradient at a size where K would take 800 MB.
    rows = jax.eval_shape(lambda: kx.Data(jnp.zeros((10000, 2)), jnp.zeros(10000)))
    program = jax.jit(jax.value_and_grad(lambda m, d: value(m, d, 512)))
    plan = program.lower(model, rows).compile().memory_analysis()
    assert plan.temp_size_in_bytes < 250e6


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_products_use_each_pair_of_tiles_once_and_equal_the_whole_matrix(dtype):
    """Values and derivatives in hyperparameters, rows and columns; 24 rows in tiles of 5, some masked, structured rows."""
    rows = {"a": jnp.asarray(X, dtype), "b": jnp.asarray(X[:, :1] ** 2, dtype)}
    kernel = kx.Select(kx.Matern32(jnp.array([0.7, 1.1], dtype)), key="a") + kx.Select(kx.RBF(dtype(0.8)), key="b")
    v, left = jnp.asarray(RNG.normal(size=(2, 24, 3)), dtype)
    mask = jnp.asarray(MASK)

    def tiles(kernel, rows, v):
        return jnp.sum(left * Gram(kernel, rows, mask, 5).mv(v))

    def whole(kernel, rows, v):
        matrix = jnp.where(mask[:, None] & mask, kernel.gram(rows, None), 0.0)
        return jnp.sum(left * (matrix @ v))

    ours, theirs = (jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2)))(kernel, rows, v) for f in (tiles, whole))
    tolerance = 1e-12 if dtype is np.float64 else 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, theirs)


HARD = kx.Model(kx.RBF(lengthscale=0.8), noise=1e-6)


def test_h48_a_solve_that_does_not_converge_says_so_and_keeps_its_last_iterate():
    x = np.linspace(0.0, 5.0, 40)[:, None]
    y = np.sin(3.0 * x[:, 0]) + np.random.default_rng(0).normal(size=40)
    data, solver = kx.Data(x, y), kx.CG(kx.LowRank(inducing=x[[9, 29]]), max_steps=4)
    named = r"conditioning \(4 steps, relative residual \d\.\de[-+]\d+; a preconditioner .*\) failed\. max_steps_reached"
    with pytest.raises(kx.FailedError, match=named):
        kx.condition(HARD, data, solver)
    c = kx.condition(HARD, data, solver, throw=False)
    assert c.result == kx.Result.max_steps_reached
    assert c.solution.steps == 4
    assert c.solution.residual > 1e-3
    # The residual that is reported is that of the iterate which is kept.
    left = y - np.asarray(c.system.operator.mv(c.alpha[:, None]))[:, 0]
    np.testing.assert_allclose(c.solution.residual, np.linalg.norm(left) / np.linalg.norm(y), rtol=1e-10)
    assert np.isfinite(kx.mean(c, x)).all()
    assert evidence(c).result == kx.Result.max_steps_reached
    # A gradient through it is finite, too.
    gradient = jax.jit(jax.grad(lambda m: kx.log_marginal_likelihood(kx.condition(m, data, solver, throw=False))))(HARD)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_h48_at_prediction_alone():
    """The targets are an eigenvector of A, so that conditioning takes one step; the variances take more."""
    x = np.linspace(0.0, 5.0, 30)[:, None]
    matrix = np.asarray(kx.Matern12(0.5)(x)) + 1e-3 * np.eye(30)
    features = kx.LowRank(inducing=np.array([[100.0]]))  # far away: it knows nothing, so P is the noise alone
    y = np.linalg.eigh(matrix)[1][:, -1]
    c = kx.condition(kx.Model(kx.Matern12(0.5), noise=1e-3), kx.Data(x, y), kx.CG(features, max_steps=5))
    assert c.result == kx.Result.successful
    prediction = kx.predict(c, x[:3] + 0.01)
    assert prediction.result == kx.Result.max_steps_reached
    assert np.isfinite(prediction.variance).all()
    assert c.system.covariance(jnp.asarray(x[:3])).result == kx.Result.max_steps_reached


class Indefinite(kx.AbstractKernel):
    """`tanh(a·b - 1)`: symmetric, not positive semi-definite."""

    def pair(self, a, b):
        return jnp.tanh(jnp.sum(a * b) - 1.0)


def test_a_preconditioner_that_fails_gives_way_to_the_diagonal():
    """Its inducing rows have no Cholesky factor. Whether the whole matrix is definite is up to the noise."""
    data = kx.Data(X, Y)
    # Rows of negative variance.
    solver = kx.CG(kx.LowRank(inducing=X[np.argsort(np.sum(X**2, axis=1))[:10]]), num_probes=500)

    @jax.jit
    @jax.value_and_grad
    def logdet(noise):
        c = kx.condition(kx.Model(Indefinite(), noise=noise), data, solver, throw=False)
        return -2.0 * kx.selection.likelihood_terms(c).complexity

    for noise, status in ((30.0, "preconditioner_failed"), (1.0, "not_positive_definite")):
        model = kx.Model(Indefinite(), noise=noise)
        matrix = np.asarray(Indefinite()(X)) + noise * np.eye(24)
        assert (np.linalg.eigvalsh(matrix)[0] > 0) == (status == "preconditioner_failed")
        with pytest.raises(kx.FailedError, match=status):
            kx.condition(model, data, solver)
        c = kx.condition(model, data, solver, throw=False)
        assert kx.solvers.result_name(c.result) == status
        assert np.isfinite(c.alpha).all()
        value, slope = logdet(noise)
        if status == "not_positive_definite":
            assert np.isnan(value)
        else:
            np.testing.assert_allclose(c.alpha, np.linalg.solve(matrix, Y), rtol=1e-7)
            np.testing.assert_allclose(value, np.linalg.slogdet(matrix)[1], rtol=1e-3)
            np.testing.assert_allclose(slope, np.trace(np.linalg.inv(matrix)), rtol=1e-2)


@pytest.mark.parametrize(
    "kernel",
    [
        1.3 * kx.Matern32([0.7, 1.1]) + 0.5 * kx.Linear(),
        kx.Select(kx.Matern12(0.9), [0]) + 0.4 * kx.RationalQuadratic(0.8, alpha=1.5) + kx.Matern52(1.4),
    ],
    ids=["matern and linear", "sum"],
)
def test_pathwise_variances_and_draws_agree_with_dense_within_monte_carlo_error(kernel, monkeypatch):
    monkeypatch.setattr(_pathwise, "_WAVES", 64)  # for speed: covariances are right for any number of them
    model, data = kx.Model(kernel, noise=0.3), kx.Data(X, Y, MASK)
    number = 500
    c = kx.condition(model, data, kx.CG(kx.LowRank(inducing=X[:8]), variance="pathwise", num_samples=number))
    mean, variance, _ = dense(kernel, 0.3, X[MASK], Y[MASK], NEW)
    # The relative standard error is √(2 / number), a little more by the finite number of waves.
    prediction = kx.predict(c, NEW)
    np.testing.assert_allclose(prediction.variance, variance, rtol=5 * np.sqrt(2.5 / number))
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-5)
    drawn = np.asarray(kx.sample(c, NEW, key=jax.random.key(3), num_samples=number))
    k, cross, prior = map(np.asarray, matrices(kernel, X[MASK], NEW))
    exact = prior - cross.T @ np.linalg.solve(k + 0.3 * np.eye(len(k)), cross)
    scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    assert np.max(np.abs(drawn.mean(0) - mean) / np.sqrt(variance)) < 5 / np.sqrt(number)
    assert np.max(np.abs(np.cov(drawn.T) - exact) / scale) < 5 * np.sqrt(2.5 / number)
    noisy = kx.sample(c, NEW, key=jax.random.key(3), num_samples=number, noisy=True)
    np.testing.assert_allclose(np.var(noisy, axis=0), variance + 0.3, rtol=5 * np.sqrt(2.5 / number))


def test_pathwise_draws_refuse_kernels_without_waves():
    for kernel in (Indefinite(), kx.RBF(1.0) * kx.Matern32(1.0) + kx.Linear()):
        with pytest.raises(TypeError, match=r"pathwise draws need .* use kx\.CG\(variance=\"exact\"\)"):
            kx.condition(kx.Model(kernel, noise=30.0), kx.Data(X, Y), kx.CG(kx.LowRank(4), variance="pathwise"))


def test_the_standard_error_of_a_likelihood_is_the_spread_over_seeds_and_0_if_it_is_exact():
    """Every seed has a program of its own: 2 of them, with the rows in 8 orders, whose probes differ as well."""
    model = kx.Model(KERNEL, noise=0.3)
    orders = np.stack([np.random.default_rng(seed).permutation(24) for seed in range(8)])

    @eqx.filter_jit
    def terms(solver, orders):
        def one(order):
            data = kx.Data(jnp.asarray(X)[order], jnp.asarray(Y)[order], jnp.asarray(MASK)[order])
            return kx.selection.likelihood_terms(kx.condition(model, data, solver))

        return jax.vmap(one)(orders)

    exact = terms(kx.Cholesky(), orders[:1])
    found = [terms(kx.CG(WEAK.preconditioner, num_probes=8, seed=seed), orders) for seed in range(2)]
    complexities = np.array([t.complexity for t in found])
    spread = np.std(complexities, ddof=1)
    named = np.sqrt(np.mean([t.standard_error**2 for t in found]))
    assert exact.standard_error == 0.0
    assert 1 / 3 < named / spread < 3
    assert abs(np.mean(complexities) - float(exact.complexity[0])) < 4 * named / np.sqrt(8)
    assert np.isinf(terms(kx.CG(WEAK.preconditioner, num_probes=1), orders[:1]).standard_error)
    # The same seed gives the same number, and another one another.
    again = terms(kx.CG(WEAK.preconditioner, num_probes=8, seed=0), orders)
    np.testing.assert_array_equal(again.complexity, complexities[0])
    assert len(np.unique(complexities)) == complexities.size


def test_h47_what_cg_cannot_answer_names_the_remedy():
    c = kx.condition(kx.Model(KERNEL, noise=0.2), kx.Data(X, Y), WEAK)
    with pytest.raises(TypeError, match=r"leave-one-out needs .* which CG does not offer here: condition with kx\.Cholesky"):
        kx.loo_residuals(c)
    with pytest.raises(TypeError, match=r"which CG does not offer here: condition with kx\.Eigh"):
        kx.recondition(c, noise=1.0)


def test_a_grid_with_missing_cells():
    axes = (np.linspace(0.0, 2.0, 5)[:, None], np.linspace(0.0, 1.0, 4)[:, None])
    kernel = kx.Select(kx.RBF(0.8), axis=0) * kx.Select(kx.Matern32(0.5), axis=1)
    y, mask = RNG.normal(size=(5, 4)), np.ones((5, 4), bool)
    mask[1, 2] = mask[4, 0] = False
    grid = kx.Grid(axes)
    assert type(gram_of(kernel, kx.Data(grid, y, mask).x, jnp.asarray(mask.reshape(-1)))).__name__ == "KroneckerGram"
    new = (np.array([[0.3], [1.1]]), np.array([[0.2], [0.9]]))
    ours, exact = (
        kx.predict(kx.condition(kx.Model(kernel, noise=0.1), kx.Data(grid, y, mask), solver), new)
        for solver in (kx.CG(kx.LowRank(6)), kx.Cholesky())
    )
    np.testing.assert_allclose(ours.mean, exact.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(ours.variance, exact.variance, rtol=1e-7)


@pytest.mark.parametrize("kernel", [kx.ThinPlate(), KERNEL], ids=["spline", "trend"])
def test_splines_and_trends_equal_the_dense_answer(kernel):
    model = kx.Model(kernel, noise=0.1, trend=None if kernel.trend() is not None else 1)

    @jax.jit
    def answers():
        exact, ours, full = (
            kx.condition(model, kx.Data(X, Y), solver) for solver in (kx.Cholesky(), WEAK, kx.CG(kx.LowRank(inducing=X)))
        )
        means, variances = zip(*(kx.predict(c, NEW)[:2] for c in (ours, exact)), strict=True)
        return means, variances, (kx.log_marginal_likelihood(full), kx.log_marginal_likelihood(exact))

    means, variances, likelihoods = answers()
    np.testing.assert_allclose(*means, rtol=1e-7)
    np.testing.assert_allclose(*variances, rtol=1e-6)
    np.testing.assert_allclose(*likelihoods, rtol=1e-7)


def test_float32():
    c = kx.condition(kx.Model(KERNEL, noise=0.05), kx.Data(X.astype("float32"), Y.astype("float32")), kx.CG(kx.LowRank(3)))
    mean, variance, _ = dense(KERNEL, 0.05, X, Y, NEW)
    prediction = kx.predict(c, NEW.astype("float32"))
    assert prediction.mean.dtype == np.float32
    np.testing.assert_allclose(prediction.mean, mean, atol=1e-4)
    np.testing.assert_allclose(prediction.variance, variance, atol=1e-4)


def test_vmap_over_datasets_of_which_one_does_not_converge():
    """It is flagged alone, and leaves the others as they were."""
    solver = kx.CG(kx.LowRank(inducing=X[:2]), max_steps=18)
    noises = jnp.array([2.0, 1e-6, 3.0])

    def value(noise):
        c = kx.condition(kx.Model(kx.RBF(0.8), noise=noise), kx.Data(X, Y), solver, throw=False)
        return c.result, kx.mean(c, NEW), kx.log_marginal_likelihood(c)

    results, means, values = jax.jit(jax.vmap(value))(noises)
    np.testing.assert_array_equal(results == kx.Result.max_steps_reached, [False, True, False])
    alone = jax.jit(value)(noises[2])
    np.testing.assert_allclose(means[2], alone[1], rtol=1e-9)
    np.testing.assert_allclose(values[2], alone[2], rtol=1e-9)


def test_any_solver_that_draws_can_precondition_and_settling_goes_inside():
    data, model = kx.Data(X, Y), kx.Model(KERNEL, noise=0.2)

    @jax.jit
    def steps_and_likelihoods():
        c = kx.condition(model, data, kx.CG(kx.Cholesky()))
        return c.solution.steps, (kx.log_marginal_likelihood(c), kx.log_marginal_likelihood(kx.condition(model, data)))

    steps, likelihoods = steps_and_likelihoods()
    assert steps == 1
    np.testing.assert_allclose(*likelihoods, rtol=1e-10)
    settled = kx.CG(kx.LowRank(4), max_steps=7).settled(gram_of(KERNEL, data.x, data.mask))
    assert settled.preconditioner.inducing.shape == (4, 2)
    assert settled.max_steps == 7


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match=r"CG\.max_steps must be a whole number"):
        kx.CG(max_steps=0)
    with pytest.raises(ValueError, match=r"CG\.tolerance must lie between 0 and 1"):
        kx.CG(tolerance=0.0)
    with pytest.raises(TypeError, match="preconditioner"):
        kx.CG(500)
    with pytest.raises(ValueError, match=r"CG\.tile must be a whole number"):
        kx.CG(tile=0)
    with pytest.raises(ValueError, match=r"CG\.variance must be one of 'exact', 'pathwise'"):
        kx.CG(variance="rough")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))
    with pytest.raises(ValueError, match=r"CG\(stored=True\) keeps K on one device"):
        kx.CG(stored=True, mesh=mesh)


def numbers(mesh):
    """What is compared between one device and eight: a product, a likelihood with its gradient, predictions."""
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(42, 2)), rng.normal(size=(3, 2))
    network = eqx.nn.MLP(2, 2, 3, 1, activation=jnp.tanh, key=jax.random.key(0))
    model = kx.Model(kx.RBF(0.9) + 0.5 * kx.Warp(kx.Matern52(1.0), network), noise=0.1)
    data = kx.Data(x, np.sin(x[:, 0]), np.arange(42) % 5 != 2)
    solver = kx.CG(kx.LowRank(6), tolerance=1e-10, tile=4, mesh=mesh)

    def value(model, data):
        c = kx.condition(model, data, solver)
        product = Gram(model.kernel, data.x, data.mask, 4, mesh).mv(jnp.asarray(x))
        return kx.log_marginal_likelihood(c), (kx.predict(c, new), product)

    program = eqx.filter_jit(eqx.filter_value_and_grad(value, has_aux=True))
    (likelihood, (prediction, product)), gradient = program(model, data)
    slopes = [leaf for leaf in jax.tree.leaves(gradient) if eqx.is_array(leaf)]
    return [np.asarray(a).tolist() for a in (likelihood, *slopes, prediction.mean, prediction.variance, product)]


def test_rows_spread_over_eight_devices_give_the_same_numbers():
    """42 rows do not divide by 8. In a process of its own, which has eight (virtual) devices."""
    imports = (
        "import json, jax, numpy as np, equinox as eqx, jax.numpy as jnp, kernax as kx\nfrom kernax.grams import Gram\n"
    )
    code = (
        imports
        + inspect.getsource(numbers)
        + textwrap.dedent("""
        assert len(jax.devices()) == 8
        print(json.dumps(numbers(jax.sharding.Mesh(np.array(jax.devices()), ("rows",)))))
    """)
    )
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "JAX_ENABLE_X64": "1", "XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for theirs, ours in zip(json.loads(done.stdout.splitlines()[-1]), numbers(None), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-7, atol=1e-9)


def test_local_variances_are_those_of_the_nearest_rows():
    """With all rows as neighbours they are exact, and with few they are larger; the mean does not change."""
    model, data = kx.Model(KERNEL, noise=0.1), kx.Data(X, Y)
    mean, exact, _ = dense(KERNEL, 0.1, X, Y, NEW)
    k, cross, prior = map(np.asarray, matrices(KERNEL, X, NEW))
    scaled = (X[None] - NEW[:, None]) / np.array([0.7, 1.1])
    for number in (24, 6):
        solver = kx.CG(WEAK.preconditioner, variance="local", neighbours=number)
        prediction = kx.predict(kx.condition(model, data, solver), NEW)
        near = np.argsort(np.sum(scaled**2, axis=2), axis=1)[:, :number]
        local = [
            prior[i, i] - cross[rows, i] @ np.linalg.solve(k[np.ix_(rows, rows)] + 0.1 * np.eye(number), cross[rows, i])
            for i, rows in enumerate(near)
        ]
        np.testing.assert_allclose(prediction.variance, local, rtol=1e-9)
        np.testing.assert_allclose(prediction.mean, mean, rtol=1e-6, atol=1e-8)
    assert np.all(prediction.variance > exact - 1e-12)
