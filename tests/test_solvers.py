"""The laws of solvers: every answer equals that of dense NumPy, with its derivatives, at large noise too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.reports import condition_estimate
from tests.tables import KERNELS, SOLVERS, TOLERANCES, points, second_derivatives, targets

X = points(8)
Y = targets(X)
NOISES = {"small": 0.05, "large": 30.0, "per_row": np.linspace(0.1, 3.0, 8)}


def dense(kernel, x, noise):
    return np.asarray(kernel(x), np.float64) + np.diag(np.broadcast_to(np.asarray(noise, np.float64), len(x)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_answers_equal_the_dense_oracle(solver, noise, dtype):
    kernel, tolerance = KERNELS["sum"], TOLERANCES[dtype]
    c = kx.condition(kx.Model(kernel, noise=NOISES[noise]), kx.Data(X.astype(dtype), Y.astype(dtype)), SOLVERS[solver])
    matrix, b = dense(kernel, X, NOISES[noise]), np.random.default_rng(0).normal(size=(8, 3))
    inverse = np.linalg.inv(matrix)
    answers = {
        "solve": (c.system.solve(jnp.asarray(b, dtype)).value, inverse @ b),
        "alpha": (c.alpha, inverse @ Y),
        "logdet": (c.system.logdet(), np.linalg.slogdet(matrix)[1]),
        "inverse_diagonal": (c.system.inverse_diagonal(), np.diag(inverse)),
    }
    for name, (ours, theirs) in answers.items():
        assert ours.dtype == dtype, name
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale, err_msg=name)
    assert c.jitter == 0
    estimate = float(condition_estimate(c))
    assert 0.5 * np.linalg.cond(matrix) <= estimate <= 1.1 * np.linalg.cond(matrix)


def objectives(kernel, x, y, noise, solver):
    """The same three scalars from kernax and by plain autodiff through a dense inverse."""
    model = kx.Model(kernel, noise=noise)
    vector, rebuild = kx.parameters.ravel(model)
    data = kx.Data(x, y)

    def ours(vector):
        c = kx.condition(rebuild(vector), data, solver)
        return kx.log_marginal_likelihood(c) + kx.loo_mse(c) + jnp.sum(jnp.sin(c.alpha))

    def plain(vector):
        m = rebuild(vector)
        matrix = m.kernel(x) + jnp.diag(jnp.broadcast_to(m.noise, len(y)))
        inverse = jnp.linalg.inv(matrix)
        alpha = inverse @ y
        likelihood = -0.5 * y @ alpha - 0.5 * jnp.linalg.slogdet(matrix)[1] - 0.5 * len(y) * jnp.log(2 * jnp.pi)
        return likelihood + jnp.mean((alpha / jnp.diag(inverse)) ** 2) + jnp.sum(jnp.sin(alpha))

    return ours, plain, vector


@pytest.mark.parametrize("noise", ["small", "per_row"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_derivatives_are_right_to_second_order_forward_and_reverse(solver, noise):
    ours, plain, vector = objectives(1.3 * kx.Matern52(lengthscale=[0.9, 1.4]), X, Y, NOISES[noise], SOLVERS[solver])
    second_derivatives(ours, plain, vector, rtol=1e-9)


def test_large_matrices_take_the_direct_lapack_path_with_the_same_answers():
    """From 192 rows on CPU, LAPACK works on XLA's buffers: values, gradients and Hessians stay what they were."""
    x = points(200, seed=4)
    ours, plain, vector = objectives(1.3 * kx.RBF(lengthscale=0.7), x, targets(x), 0.3, kx.Cholesky())
    program = jax.jit(jax.value_and_grad(ours))
    assert "kernax_dpotrf_1" in program.lower(vector).as_text()
    second_derivatives(ours, plain, vector, rtol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS)
def test_padding_changes_no_value_and_no_gradient(solver):
    """Rows of garbage behind a mask, NaN among them, in the middle and at the end."""
    where = np.array([0, 1, 2, 4, 5, 7, 8, 9])
    x, y, mask = np.full((11, 2), np.nan), np.full(11, 1e30), np.zeros(11, bool)
    x[where], y[where], mask[where] = X, Y, True
    x[10] = -1e8
    model = kx.Model(1.4 * kx.Matern32() + kx.Linear(), noise=0.2, mean=kx.means.Constant(0.3))

    def quantities(model, data):
        c = kx.condition(model, data, SOLVERS[solver])
        scalars = jnp.stack(
            [kx.log_marginal_likelihood(c), kx.loo_mse(c), kx.loo_negative_log_density(c), kx.posterior.rkhs_norm(c)]
        )
        prediction = kx.predict(c, X[:3] + 0.1)
        values = jnp.concatenate([scalars, prediction.mean, prediction.variance])
        return jnp.sum(jnp.sin(1.0 + jnp.arange(10)) * values), values

    gradient = jax.jit(jax.grad(quantities, has_aux=True))
    plain, padded = (gradient(model, d) for d in (kx.Data(X, Y), kx.Data(x, y, mask)))
    np.testing.assert_allclose(padded[1], plain[1], rtol=1e-12)
    for ours, theirs in zip(jax.tree.leaves(padded[0]), jax.tree.leaves(plain[0]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def test_a_spectral_factor_moves_to_another_noise():
    """Shifted to another noise it is the factor made for that noise, with its derivatives, and nothing is refactorised."""
    data, kernel = kx.Data(X, Y), KERNELS["rbf_ard"]
    system = kx.condition(kx.Model(kernel, noise=0.1), data, kx.Eigh()).system
    moved = system.shifted(jnp.asarray(2.0))
    fresh = kx.condition(kx.Model(kernel, noise=2.0), data, kx.Cholesky()).system
    np.testing.assert_allclose(moved.solve(data.y).value, fresh.solve(data.y).value, rtol=1e-10)
    np.testing.assert_allclose(moved.logdet(), fresh.logdet(), rtol=1e-10)
    np.testing.assert_allclose(moved.inverse_diagonal(), fresh.inverse_diagonal(), rtol=1e-10)
    slope = jax.grad(lambda noise: system.shifted(noise).logdet())(jnp.asarray(2.0))
    np.testing.assert_allclose(slope, np.trace(np.linalg.inv(dense(kernel, X, 2.0))), rtol=1e-10)
    assert "eigh" not in str(jax.make_jaxpr(lambda noise: system.shifted(noise).solve(data.y).value)(jnp.asarray(2.0)))


@pytest.mark.parametrize("solver", SOLVERS)
def test_eager_jit_and_vmap_agree(solver):
    """The same numbers eagerly, inside jit, and for each of a batch inside vmap."""
    model = kx.Model(1.2 * kx.RBF(lengthscale=0.8), noise=0.2)
    ys = np.stack([Y, 2 * Y, Y[::-1]])

    def scalars(y):
        c = kx.condition(model, kx.Data(X, y), SOLVERS[solver], throw=False)
        return jnp.append(kx.mean(c, X), jnp.stack([kx.log_marginal_likelihood(c), kx.loo_mse(c)]))

    eager = np.stack([scalars(y) for y in ys])
    np.testing.assert_allclose(jax.jit(scalars)(ys[1]), eager[1], rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(scalars)(ys), eager, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.vmap(scalars)))(ys[None]), eager[None], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_very_noisy_row_leaves_the_others_alone(dtype):
    """Pivots are judged against their own row: a row that says nothing is no reason for jitter."""
    noise = np.append(np.full(7, 1e-3), 1e6)
    x = points(8)
    x[-1] += 0.5
    c = kx.condition(kx.Model(kx.RBF(), noise=noise), kx.Data(x.astype(dtype), Y.astype(dtype)))
    expected = np.asarray(kx.RBF()(x)) @ np.linalg.solve(dense(kx.RBF(), x, noise), Y)
    assert c.jitter == 0
    np.testing.assert_allclose(kx.mean(c, x), expected, rtol=100 * TOLERANCES[dtype], atol=10 * TOLERANCES[dtype])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 1e-3), (np.float64, 1e-9)])
def test_padding_changes_nothing_at_small_scales(solver, dtype, scale):
    model = kx.Model(scale**2 * kx.RBF(), noise=0.01 * scale**2)
    x, y = points(8).astype(dtype), (scale * Y).astype(dtype)
    padded = kx.Data(np.concatenate([x, x]), np.concatenate([y, y]), mask=np.arange(16) < 8)
    values = [kx.log_marginal_likelihood(kx.condition(model, d, SOLVERS[solver])) for d in (kx.Data(x, y), padded)]
    np.testing.assert_allclose(values[1], values[0], rtol=10 * TOLERANCES[dtype])
