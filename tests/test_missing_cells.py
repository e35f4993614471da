"""`kx.CG(kx.Kronecker())`: grids with missing cells, equal to dense NumPy over the cells that count."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from tests.tables import dense_oracle, pairs

RNG = np.random.default_rng(11)
SOLVER = kx.CG(kx.Kronecker(), num_probes=40)
"""With more probes than missing cells in the small grids: the log determinant is exact."""


class Tasks(kx.AbstractKernel):
    """A covariance of tasks, by their numbers: `w wᵀ + own·I`."""

    weights: jax.Array = kx.parameters.real()
    own: jax.Array = kx.positive()

    def pair(self, a, b):
        return self.weights[a] * self.weights[b] + jnp.where(a == b, self.own, 0.0)


def column(*values):
    return np.array(values)[:, None]


TWO = (
    1.3 * kx.Select(kx.RBF(0.8), axis=0) * kx.Select(kx.Matern32(1.1), axis=1),
    kx.Grid((np.linspace(0.0, 2.0, 6)[:, None], np.linspace(0.0, 1.5, 5)[:, None])),
    (column(0.3, 1.1, 2.4), column(0.2, 0.9, 0.2)),
)
THREE = (
    kx.Select(kx.Matern52(0.9), axis=0) * kx.Select(kx.RBF(1.2), axis=1) * kx.Select(Tasks([0.7, -0.4, 1.1], 0.3), axis=2),
    kx.Grid((np.linspace(0.0, 2.0, 4)[:, None], RNG.normal(size=(3, 2)), np.arange(3))),
    (column(0.3, 1.1), RNG.normal(size=(2, 2)), np.array([2, 0])),
)


def holes(shape, share, seed=0):
    return np.random.default_rng(seed).permutation(np.prod(shape)).reshape(shape) >= share * np.prod(shape)


def dataset(grid, share):
    mask = holes(grid.shape, share)
    y = np.random.default_rng(1).normal(size=grid.shape)
    return kx.Data(grid, np.where(mask, y, np.nan), mask), kx.rows.take(grid, np.flatnonzero(mask)), y[mask]


@eqx.filter_jit
def answers(c, new):
    return kx.log_marginal_likelihood(c), kx.predict(c, new), kx.covariance(c, new), kx.selection.likelihood_terms(c)


@pytest.mark.parametrize("noise", [0.05, 30.0])
@pytest.mark.parametrize("share", [0.1, 0.4])
@pytest.mark.parametrize("case", [TWO, THREE], ids=["two axes", "three axes"])
def test_answers_equal_dense_numpy_over_the_cells_that_count(case, share, noise):
    kernel, grid, new = case
    data, rows, y = dataset(grid, share)
    c = kx.condition(kx.Model(kernel, noise=noise), data, SOLVER)
    assert c.solution.residual < 1e-8
    oracle = dense_oracle(kernel, noise, rows, y, new)
    likelihood, prediction, covariance, terms = answers(c, new)
    assert terms.standard_error == 0
    assert prediction.result == kx.Result.successful
    np.testing.assert_allclose(likelihood, oracle.evidence, rtol=1e-9)
    np.testing.assert_allclose(prediction.mean, oracle.mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(prediction.variance, oracle.variance, rtol=1e-8)
    np.testing.assert_allclose(covariance, oracle.covariance, rtol=1e-7, atol=1e-8)
    assert not np.any(np.asarray(c.alpha)[~np.asarray(data.mask)])


def test_derivatives_are_those_of_the_dense_matrix_to_second_order():
    kernel, grid, new = TWO
    data, rows, y = dataset(grid, 0.3)
    vector, rebuild = kx.parameters.ravel(kx.Model(kernel, noise=0.3))
    solver = kx.CG(kx.Kronecker(), tolerance=1e-13, num_probes=12)

    def ours(v):
        c = kx.condition(rebuild(v), data, solver)
        return kx.log_marginal_likelihood(c) + jnp.sum(jnp.sin(kx.mean(c, new))) + jnp.sum(kx.variance(c, new))

    def dense(v):
        model = rebuild(v)
        inverse = jnp.linalg.inv(pairs(model.kernel, rows, rows) + model.noise * jnp.eye(len(y)))
        cross = pairs(model.kernel, rows, new)
        value = -0.5 * (y @ inverse @ y - jnp.linalg.slogdet(inverse)[1] + len(y) * jnp.log(2 * jnp.pi))
        variance = jax.vmap(model.kernel.pair)(new, new) - jnp.sum(cross * (inverse @ cross), axis=0)
        return value + jnp.sum(jnp.sin(cross.T @ inverse @ y)) + jnp.sum(variance)

    direction = jnp.cos(jnp.arange(vector.size))
    (slope, bent), (exact_slope, exact_bent) = (
        jax.jit(lambda v, f=f: jax.jvp(jax.grad(f), (v,), (direction,)))(vector) for f in (ours, dense)
    )
    np.testing.assert_allclose(slope, exact_slope, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(bent, exact_bent, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("share", "most_steps"), [(0.1, 20), (0.4, 40)])
def test_few_steps_and_a_likelihood_within_its_standard_error(share, most_steps):
    axes = (np.linspace(0.0, 1.0, 20)[:, None], np.linspace(0.0, 1.0, 20)[:, None])
    kernel = kx.Select(kx.RBF(0.3), axis=0) * kx.Select(kx.Matern32(0.2), axis=1)
    mask, y = holes((20, 20), share), np.sin(5 * axes[0]) * axes[1].T + 0.1 * RNG.normal(size=(20, 20))
    vector, rebuild = kx.parameters.ravel(kx.Model(1.2 * kernel, noise=0.02))

    @eqx.filter_jit
    def value(v, data, solver):
        def likelihood(v):
            c = kx.condition(rebuild(v), data, solver)
            return kx.log_marginal_likelihood(c), (kx.selection.likelihood_terms(c).standard_error, c.solution)

        return jax.value_and_grad(likelihood, has_aux=True)(v)

    data = kx.Data(kx.Grid(axes), y, mask)
    (estimate, (error, solution)), slope = value(vector, data, kx.CG(kx.Kronecker()))
    (exact, _), exact_slope = value(vector, data, kx.Cholesky())
    assert 5 < solution.steps <= most_steps
    assert solution.residual < 1e-8
    assert 0 < error < 0.01 * abs(exact) + 1
    assert 0 < abs(estimate - exact) < 4 * error
    np.testing.assert_allclose(slope, exact_slope, rtol=0.05)


def test_traced_masks_in_one_program_from_none_missing_to_all():
    kernel, grid, new = TWO
    y = RNG.normal(size=30)
    masks = np.stack([holes((30,), share) for share in (0.0, 0.2, 0.5, 1.0)])

    def value(noise, mask):
        c = kx.condition(kx.Model(kernel, noise), kx.Data(grid, y, mask), SOLVER, throw=False)
        return jnp.where(c.ok, kx.log_marginal_likelihood(c), 0.0), (c.result, kx.mean(c, new))

    program = jax.jit(jax.vmap(jax.value_and_grad(value, has_aux=True), in_axes=(None, 0)))
    (values, (results, means)), slopes = program(0.2, masks)
    assert np.array_equal(results == kx.Result.empty, [False, False, False, True])
    assert np.isnan(means[-1]).all()
    assert slopes[-1] == 0
    for mask, *ours in list(zip(masks, values, means, slopes, strict=True))[:-1]:
        rows = kx.rows.take(grid, np.flatnonzero(mask))
        at = [dense_oracle(kernel, noise, rows, y[mask], new) for noise in (0.2, 0.2 + 1e-6, 0.2 - 1e-6)]
        np.testing.assert_allclose(ours[0], at[0].evidence, rtol=1e-9)
        np.testing.assert_allclose(ours[1], at[0].mean, atol=1e-7)
        np.testing.assert_allclose(ours[2], (at[1].evidence - at[2].evidence) / 2e-6, rtol=1e-6)


def test_fitted_reconditioned_sampled_saved_and_with_a_trend(tmp_path):
    kernel, grid, new = TWO
    data, rows, y = dataset(grid, 0.3)
    model = kx.Model(kernel, noise=0.3)
    fit = kx.fit(model, data, solver=SOLVER, max_steps=60)
    found = dense_oracle(fit.model.kernel, float(fit.model.noise), rows, y, new).evidence
    np.testing.assert_allclose(-fit.value, found, rtol=1e-8)
    assert found > dense_oracle(kernel, 0.3, rows, y, new).evidence + 0.1
    c = kx.recondition(kx.condition(model, data, SOLVER), noise=0.1)
    oracle = dense_oracle(kernel, 0.1, rows, y, new)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), oracle.evidence, rtol=1e-9)
    drawn = kx.sample(c, new, key=jax.random.key(0), num_samples=20_000)
    np.testing.assert_allclose(np.mean(drawn, axis=0), oracle.mean, atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), oracle.covariance, atol=0.05)
    columns = np.asarray(c.system.draw(jax.random.key(1), 20_000))[np.asarray(data.mask)]
    np.testing.assert_allclose(np.cov(columns), np.asarray(kernel(rows)) + 0.1 * np.eye(len(y)), atol=0.1)
    kx.save(tmp_path / "c.kx", c)
    np.testing.assert_array_equal(kx.variance(kx.load(tmp_path / "c.kx"), new), kx.variance(c, new))

    def trend(point):
        return jnp.stack([jnp.ones(()), point[0][0]])

    free = kx.condition(kx.Model(kernel, noise=0.1, trend=trend), data, SOLVER)
    oracle = dense_oracle(kernel, 0.1, rows, y, new, trend)
    np.testing.assert_allclose(kx.log_marginal_likelihood(free), oracle.evidence, rtol=1e-8)
    np.testing.assert_allclose(kx.mean(free, new), oracle.mean, atol=1e-7)


def test_outputs_with_different_holes():
    kernel, grid, new = TWO
    y, mask = RNG.normal(size=(30, 2)), np.stack([holes((30,), 0.1), holes((30,), 0.4, 1)], axis=1)
    c = kx.condition(kx.Model(kernel, noise=0.1), kx.Data(grid, y, mask), SOLVER)
    oracles = [
        dense_oracle(kernel, 0.1, kx.rows.take(grid, np.flatnonzero(own)), y[own, i], new) for i, own in enumerate(mask.T)
    ]
    np.testing.assert_allclose(kx.mean(c, new), np.stack([o.mean for o in oracles], axis=1), atol=1e-7)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), sum(o.evidence for o in oracles), rtol=1e-9)


def test_float32():
    kernel, grid, new = TWO
    data, rows, y = dataset(grid, 0.3)
    single = kx.Data(jax.tree.map(lambda leaf: leaf.astype("float32"), grid), np.float32(data.y), data.mask)
    c = kx.condition(kx.Model(kernel, noise=0.1), single, SOLVER)
    prediction = kx.predict(c, jax.tree.map(np.float32, new))
    oracle = dense_oracle(kernel, 0.1, rows, y, new)
    assert prediction.mean.dtype == np.float32
    np.testing.assert_allclose(prediction.mean, oracle.mean, atol=2e-4)
    np.testing.assert_allclose(prediction.variance, oracle.variance, atol=2e-4)


def test_without_noise_a_smooth_kernel_gets_jitter_and_the_status_says_so():
    axes = (np.linspace(0.0, 1.0, 8)[:, None], np.linspace(0.0, 1.0, 7)[:, None])
    data = kx.Data(kx.Grid(axes), np.sin(axes[0] * 3 + axes[1].T), holes((8, 7), 0.2))
    model = kx.Model(kx.Select(kx.RBF(1.0), axis=0) * kx.Select(kx.RBF(1.0), axis=1), noise=0.0)
    c = kx.condition(model, data, SOLVER, throw=False)
    assert c.result == kx.Result.singular
    assert c.jitter > 0
    np.testing.assert_allclose(kx.mean(c, data.x), np.sin(axes[0] * 3 + axes[1].T).ravel(), atol=1e-4)


def test_what_does_not_converge_says_so_with_its_true_residual():
    kernel, grid, _ = TWO
    data, rows, y = dataset(grid, 0.4)
    model, solver = kx.Model(kernel, noise=1e-4), kx.CG(kx.Kronecker(), max_steps=3)
    with pytest.raises(kx.FailedError, match=r"3 steps, relative residual .*max_steps_reached"):
        kx.condition(model, data, solver)
    c = kx.condition(model, data, solver, throw=False)
    left = y - (np.asarray(kernel(rows)) + 1e-4 * np.eye(len(y))) @ np.asarray(c.alpha)[np.asarray(data.mask)]
    np.testing.assert_allclose(c.solution.residual, np.linalg.norm(left) / np.linalg.norm(y), rtol=1e-6)


def test_what_it_cannot_do_is_refused_with_a_remedy():
    kernel, grid, _ = TWO
    data = dataset(grid, 0.2)[0]
    with pytest.raises(ValueError, match=r"variance='pathwise'\) is not possible, .*: leave out variance="):
        kx.CG(kx.Kronecker(), variance="pathwise")
    with pytest.raises(TypeError, match=r"needs one noise for all rows, .*: use kx\.CG\(\)"):
        kx.condition(kx.Model(kernel, noise=np.full(30, 0.1)), data, SOLVER)
    with pytest.raises(TypeError, match=r"needs rows that are a kx\.Grid and a kernel that is a product"):
        kx.condition(kx.Model(kernel, noise=0.1), kx.Data(kx.rows.take(grid), np.ones(30)), SOLVER)
    with pytest.raises(
        TypeError,
        match=r"leave-one-out needs .* which CG does not offer here: condition with kx\.Cholesky.*Kronecker if every",
    ):
        kx.loo_residuals(kx.condition(kx.Model(kernel, noise=0.1), data, SOLVER))
