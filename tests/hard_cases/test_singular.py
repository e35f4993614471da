"""Matrices that are singular, nearly so, or not definite at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from tests.hard_cases import oracle

RNG = np.random.default_rng(1)
X, Y = RNG.uniform(-2.0, 2.0, size=(8, 2)), RNG.normal(size=8)
X_TWICE = np.vstack([X[:7], X[2]])
Y_CONFLICTING = np.append(Y[:7], Y[2] + 1.0)
X_NEW = RNG.uniform(-2.0, 2.0, size=(5, 2))
SOLVERS = [kx.Cholesky(), kx.Eigh()]


class Equicorrelated(kx.AbstractKernel):
    """1 for a point with itself, `level` for any two others: indefinite for a level above 1."""

    level: jax.Array = kx.parameters.real()

    def pair(self, a, b):
        return jnp.where(jnp.all(a == b), 1.0, self.level)


# H12, H13, H14: duplicates


@pytest.mark.parametrize("extra", [0.0, 1.0], ids=["equal", "conflicting"])
def test_h12_duplicate_rows_with_noise_work(extra):
    y = np.append(Y[:7], Y[2] + extra)
    c = kx.condition(kx.Model(kx.RBF(1.0), 0.1), kx.Data(X_TWICE, y))
    assert c.result == kx.Result.successful
    assert c.jitter == 0.0
    # Two observations of one point are one observation of their mean with half the noise.
    merged_y, merged_noise = Y[:7].copy(), np.full(7, 0.1)
    merged_y[2] += 0.5 * extra
    merged_noise[2] = 0.05
    system, cross = oracle.rbf(X[:7]) + np.diag(merged_noise), oracle.rbf(X_NEW, X[:7])
    want, variance = oracle.posterior(system, cross, np.ones(5), merged_y, 0.0)
    prediction = kx.predict(c, X_NEW)
    np.testing.assert_allclose(prediction.mean, want, rtol=1e-9)
    np.testing.assert_allclose(prediction.variance, variance, rtol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_h13_conflicting_duplicates_without_noise_are_flagged_singular(solver):
    model, data = kx.Model(kx.RBF(1.0), 0.0), kx.Data(X_TWICE, Y_CONFLICTING)
    with pytest.raises(kx.FailedError, match=r"conditioning failed\. singular: .*Give a positive noise.*throw=False"):
        kx.condition(model, data, solver)
    c = kx.condition(model, data, solver, throw=False)
    assert c.result == kx.Result.singular
    assert 0.0 < c.jitter < 1e-10
    assert np.isfinite(kx.mean(c, X_NEW)).all()


def test_h13_conflicting_duplicates_in_a_batch_leave_the_others():
    condition = jax.jit(jax.vmap(lambda x, y: kx.condition(kx.Model(kx.RBF(1.0), 0.0), kx.Data(x, y))))
    ys = np.stack([Y_CONFLICTING] * 3)
    healthy = condition(np.stack([X, X + 1.0, X]), ys)
    sick = condition(np.stack([X, X_TWICE, X]), ys)
    assert np.all(healthy.result == kx.Result.successful)
    np.testing.assert_array_equal(sick.result == kx.Result.singular, [False, True, False])
    np.testing.assert_array_equal(sick.result == kx.Result.successful, [True, False, True])
    np.testing.assert_array_equal(np.asarray(sick.alpha)[[0, 2]], np.asarray(healthy.alpha)[[0, 2]])


@pytest.mark.parametrize("kernel", [kx.RBF(), kx.Matern32()], ids=repr)
def test_h14_near_duplicates_are_duplicates(kernel):
    near = X_TWICE.copy()
    near[7] += 1e-15
    assert (near[7] != X[2]).all()
    for noise, result in ((0.1, kx.Result.successful), (0.0, kx.Result.singular)):
        model = kx.Model(kernel, noise)
        c = kx.condition(model, kx.Data(near, Y_CONFLICTING), throw=False)
        twin = kx.condition(model, kx.Data(X_TWICE, Y_CONFLICTING), throw=False)
        assert c.result == result
        assert twin.result == result
        np.testing.assert_allclose(c.jitter, twin.jitter, rtol=1e-12)
        if noise:
            np.testing.assert_allclose(kx.mean(c, X_NEW), kx.mean(twin, X_NEW), rtol=1e-11)


# H16: offsets


def offset_kernels():
    """Kernels of differences, each with its NumPy formula of all differences (n, m, d)."""

    def scaled(differences):
        return (differences**2).sum(-1) / 4.0

    return [
        (kx.RBF(2.0), lambda d: np.exp(-scaled(d) / 2)),
        (kx.Matern12(2.0), lambda d: np.exp(-np.sqrt(scaled(d)))),
        (kx.Matern32(2.0), lambda d: (1 + np.sqrt(3 * scaled(d))) * np.exp(-np.sqrt(3 * scaled(d)))),
        (kx.RationalQuadratic(2.0), lambda d: 1 / (1 + scaled(d) / 2)),
        (kx.Periodic(2.0, 3.0), lambda d: np.exp(-2 * (np.sin(np.pi * d / 3) ** 2).sum(-1) / 4.0)),
        (kx.Cosine(3.0), lambda d: np.cos(2 * np.pi * d.sum(-1) / 3)),
    ]


@pytest.mark.parametrize("width", [2, 20])
def test_h16_a_large_offset_costs_no_digits(width):
    """Twenty columns take a matrix product instead of differences."""
    # Multiples of 1/64 are exact in float32 near 1e4 as well, so both sets of inputs have the very same differences.
    x, z = (RNG.integers(-100, 100, size=(rows, width)) / 64.0 for rows in (7, 5))
    kernels, formulas = zip(*offset_kernels(), strict=True)

    @jax.jit
    def grams(x, z):
        singles = [jax.tree.map(lambda leaf: leaf.astype(jnp.float32), kernel) for kernel in kernels]
        return [(kernel(x), kernel(x, z)) for kernel in singles]

    def errors(offset):
        answers = grams((x + offset).astype("float32"), (z + offset).astype("float32"))
        for (gram, cross), formula in zip(answers, formulas, strict=True):
            assert gram.dtype == cross.dtype == jnp.float32
            yield max(np.abs(gram - formula(x[:, None] - x)).max(), np.abs(cross - formula(x[:, None] - z)).max())

    for kernel, centred, offset in zip(kernels, errors(0.0), errors(1e4), strict=True):
        assert offset <= 3 * centred + 4 * np.finfo("float32").eps, kernel


def test_h16_predictions_with_a_large_offset_are_as_good():
    x, x_new = (RNG.integers(-100, 100, size=(rows, 2)) / 64.0 for rows in (8, 5))
    y = np.sin(x[:, 0])
    data = kx.Data((x + 1e4).astype("float32"), y.astype("float32"))
    got = kx.predict(kx.condition(kx.Model(1.0 * kx.RBF(1.0), 0.01), data), (x_new + 1e4).astype("float32"))
    mean, variance = oracle.posterior(oracle.rbf(x), oracle.rbf(x_new, x), np.ones(5), y, 0.01)
    np.testing.assert_allclose(got.mean, mean, atol=1e-4)
    np.testing.assert_allclose(got.variance, variance, atol=1e-4)


# H19: no noise


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_h19_no_noise_interpolates_if_the_matrix_is_definite(solver):
    c = kx.condition(kx.Model(kx.RBF(0.5), 0.0), kx.Data(X, Y), solver)
    assert c.result == kx.Result.successful
    assert c.jitter == 0.0
    prediction = kx.predict(c, X)
    np.testing.assert_allclose(prediction.mean, Y, rtol=1e-9)
    np.testing.assert_allclose(prediction.variance, 0.0, atol=1e-12)


def test_h19_no_noise_is_flagged_if_the_matrix_is_not_definite():
    model, data = kx.Model(kx.RBF(500.0), 0.0), kx.Data(X, X[:, 0])
    with pytest.raises(kx.FailedError, match="singular: With noise 0"):
        kx.condition(model, data)
    c = kx.condition(model, data, throw=False)
    assert c.result == kx.Result.singular
    assert c.jitter > 0.0
    np.testing.assert_allclose(kx.mean(c, X_NEW), X_NEW[:, 0], atol=1e-3)


def test_h19_no_noise_on_some_rows_is_allowed():
    noise = np.array([0.0, 0.1, 0.0, 0.1, 0.1, 0.0, 0.1, 0.1])
    c = kx.condition(kx.Model(kx.RBF(1.0), noise), kx.Data(X, Y))
    assert c.result == kx.Result.successful
    np.testing.assert_allclose(c.alpha, np.linalg.solve(oracle.rbf(X) + np.diag(noise), Y), rtol=1e-9)


# H22, H23: scales and jitter in float32


def test_h22_jitter_follows_the_scale_of_the_kernel_in_float32():
    data = kx.Data(X_TWICE.astype("float32"), np.append(Y[:7], Y[2]).astype("float32"))
    answers = {}
    for variance in (1.0, 1e6, 1e-12):
        c = kx.condition(kx.Model(variance * kx.RBF(1.0), 0.0), data, throw=False)
        assert c.result == kx.Result.singular
        assert c.jitter > 0.0
        answers[variance] = [c.jitter / variance, *kx.mean(c, X_NEW.astype("float32"))]
    np.testing.assert_allclose(answers[1e6], answers[1.0], rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(answers[1e-12], answers[1.0], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("variance", [1e6, 1e-12])
def test_h22_definite_matrices_of_any_scale_need_no_jitter_in_float32(variance):
    data = kx.Data(X.astype("float32"), Y.astype("float32"))
    c = kx.condition(kx.Model(variance * kx.RBF(1.0), 0.1 * variance), data)
    assert c.result == kx.Result.successful
    assert c.jitter == 0.0
    want = np.linalg.solve(oracle.rbf(X) + 0.1 * np.eye(8), Y)
    np.testing.assert_allclose(variance * np.asarray(c.alpha, np.float64), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("noise", "result"), [(1e-9, kx.Result.successful), (0.0, kx.Result.singular)])
def test_h23_smooth_kernel_on_many_rows_in_float32_reports_its_jitter(noise, result):
    x = np.linspace(-3.0, 3.0, 500, dtype="float32")[:, None]
    y = np.sin(2.0 * x[:, 0])
    c = kx.condition(kx.Model(kx.RBF(1.0), noise), kx.Data(x, y), throw=False)
    assert c.result == result
    assert 0.0 < c.jitter <= 1e-2
    np.testing.assert_allclose(c.model.noise, noise, rtol=1e-6)
    np.testing.assert_allclose(kx.mean(c, x[::50]), y[::50], atol=1e-2)


# H24, H25: not definite at all


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_h24_indefinite_kernel_is_flagged_after_the_cap(solver):
    model, data = kx.Model(Equicorrelated(1.5), 0.1), kx.Data(X, Y)
    with pytest.raises(kx.FailedError, match=r"not_positive_definite: .*larger noise.*max_jitter.*throw=False"):
        kx.condition(model, data, solver)
    c = kx.condition(model, data, solver, throw=False)
    assert c.result == kx.Result.not_positive_definite
    assert np.isnan(c.alpha).all()
    assert np.isnan(kx.log_marginal_likelihood(c))


def test_h24_the_cap_can_be_raised():
    c = kx.condition(kx.Model(Equicorrelated(1.5), 0.1), kx.Data(X, Y), kx.Cholesky(max_jitter=10.0))
    assert c.result == kx.Result.successful
    # The least eigenvalue is 1 - 1.5 + 0.1; rungs are a factor of 10 apart.
    assert 0.4 < c.jitter <= 4.0
    system = np.full((8, 8), 1.5) + (1.1 - 1.5 + float(c.jitter)) * np.eye(8)
    np.testing.assert_allclose(c.alpha, np.linalg.solve(system, Y), rtol=1e-9)


def likelihood_of_level(level, lengthscale, x):
    c = kx.condition(kx.Model(Equicorrelated(level) * kx.RBF(lengthscale), 0.1), kx.Data(x, Y))
    return jnp.where(c.ok, kx.log_marginal_likelihood(c), 0.0), c.result


@pytest.fixture(scope="module")
def value_and_gradient_by_level():
    """Value, status and gradient of a batch of kernels, of which those with a large level are indefinite."""
    return jax.jit(jax.vmap(jax.value_and_grad(likelihood_of_level, argnums=(0, 1), has_aux=True)))


def test_h24_indefinite_lane_leaves_the_others(value_and_gradient_by_level):
    xs, lengthscales = np.stack([X] * 3), np.full(3, 5.0)
    (healthy, _), healthy_gradients = value_and_gradient_by_level(np.array([0.5, 0.6, 0.7]), lengthscales, xs)
    (value, result), gradients = value_and_gradient_by_level(np.array([0.5, 3.0, 0.7]), lengthscales, xs)
    np.testing.assert_array_equal(result == kx.Result.not_positive_definite, [False, True, False])
    np.testing.assert_array_equal(value[np.array([0, 2])], healthy[np.array([0, 2])])
    for got, want in zip(gradients, healthy_gradients, strict=True):
        np.testing.assert_array_equal(got[np.array([0, 2])], want[np.array([0, 2])])


def test_h25_failure_behind_where_has_gradient_zero(value_and_gradient_by_level):
    _, gradients = value_and_gradient_by_level(np.array([0.5, 3.0, 0.7]), np.full(3, 5.0), np.stack([X] * 3))
    for gradient in gradients:
        assert gradient[1] == 0.0
        assert np.isfinite(gradient).all()
        assert (gradient[np.array([0, 2])] != 0.0).all()
    step = 1e-5
    gram = oracle.rbf(X, lengthscale=5.0)
    off = 1.0 - np.eye(8)
    ends = [oracle.log_likelihood(gram * (np.eye(8) + level * off), Y, 0.1) for level in (0.5 + step, 0.5 - step)]
    np.testing.assert_allclose(gradients[0][0], (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@pytest.fixture(scope="module")
def shared_gradient():
    """The gradient, in the one lengthscale of all lanes, of the sum of their likelihoods."""

    @jax.jit
    def gradient(levels, xs):
        def total(lengthscale):
            return jnp.sum(jax.vmap(lambda level, x: likelihood_of_level(level, lengthscale, x)[0])(levels, xs))

        return jax.grad(total)(5.0)

    return gradient


def test_h25_gradient_of_shared_parameters_survives_an_indefinite_lane(shared_gradient):
    xs = np.stack([X, X])
    alone = shared_gradient(np.array([0.5, 0.5]), xs) / 2
    np.testing.assert_allclose(shared_gradient(np.array([0.5, 3.0]), xs), alone, rtol=1e-12)


def test_h25_gradient_of_shared_parameters_survives_a_lane_with_nan(shared_gradient):
    xs = np.stack([X, X])
    alone = shared_gradient(np.array([0.5, 0.5]), xs) / 2
    sick = xs.copy()  # JAX may still be reading the other one
    sick[1, 0, 0] = np.nan
    np.testing.assert_allclose(shared_gradient(np.array([0.5, 0.5]), sick), alone, rtol=1e-12)


def test_h25_predictions_of_a_failed_lane_have_gradient_zero_behind_where():
    def predicted(shift, x):
        c = kx.condition(kx.Model(kx.RBF(1.0 + shift), 0.1), kx.Data(x, Y))
        mu, variance = kx.predict(c, X[:3])[:2]
        machine = kx.condition(kx.learners.KernelMachine(kx.RBF(1.0 + shift), kx.learners.Squared()), kx.Data(x, Y))
        values = jnp.stack([mu, variance, machine(X[:3])])
        return jnp.sum(jnp.where(jnp.isfinite(values), values, 0.0)), values

    def total(shift, xs):
        sums, values = jax.vmap(lambda x: predicted(shift, x))(xs)
        return jnp.sum(sums), values

    gradient = jax.jit(jax.grad(total, has_aux=True))
    sick = np.stack([X, X])
    sick[1, 0, 0] = np.nan
    alone, _ = gradient(0.0, np.stack([X, X]))
    with_sick, values = gradient(0.0, sick)
    np.testing.assert_allclose(with_sick, alone / 2, rtol=1e-12)
    assert np.isnan(values[1]).all()


# H26: negative variances


def test_h26_negative_variances_are_clamped_and_counted():
    c = kx.condition(kx.Model(kx.RBF(0.5), 0.0), kx.Data(X, np.sin(X[:, 0])))
    prediction = kx.predict(c, X)
    # At its own data an interpolant has variance 0 but for rounding, which goes either way.
    raw = np.asarray(c.system.variance(jnp.asarray(X)).value)
    assert 0 < prediction.num_clamped < 8
    assert prediction.num_clamped == np.sum(raw < 0.0)
    assert np.sum(np.asarray(prediction.variance) == 0.0) >= prediction.num_clamped
    assert (prediction.variance >= 0.0).all()
    np.testing.assert_allclose(prediction.variance, 0.0, atol=1e-12)


def test_h26_gradient_of_a_clamped_variance_is_finite():
    def spread(lengthscale):
        c = kx.condition(kx.Model(kx.RBF(lengthscale), 0.0), kx.Data(X, Y))
        return jnp.sum(kx.power_function(c, X))

    value, slope = jax.jit(jax.value_and_grad(spread))(0.5)
    assert 0.0 <= value < 1e-5
    assert np.isfinite(slope)
