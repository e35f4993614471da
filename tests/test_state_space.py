"""`kx.StateSpace()`: the answers of a dense oracle, in O(n)."""

import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.special
import tinygp
from statsmodels.tsa.statespace.sarimax import SARIMAX

import kernax as kx
from kernax.kernels._markov import _gamma_tails

RNG = np.random.default_rng(0)
N = 9
T = RNG.uniform(0.0, 5.0, N)
T[4] = T[7]  # unsorted, and one time twice
X, Y = T[:, None], RNG.normal(size=N)
NEW = np.concatenate([[-3.0, -0.1], RNG.uniform(0.0, 5.0, 3), T[:2], T[4:5], [5.2, 11.0]])[:, None]


def matern(order, lengthscale, a, b, xp=np):
    """Matérn's formulas, as a function of two arrays of times."""
    r = xp.sqrt(2.0 * order + 1.0) * xp.abs(a[:, None] - b[None, :]) / lengthscale
    return (1.0, 1.0 + r, 1.0 + r + r**2 / 3.0)[order] * xp.exp(-r)


CASES = {
    "matern12": (kx.Matern12(0.7), lambda a, b: matern(0, 0.7, a, b)),
    "matern32": (1.3 * kx.Matern32(0.7), lambda a, b: 1.3 * matern(1, 0.7, a, b)),
    "matern52": (kx.Matern52([0.9]), lambda a, b: matern(2, 0.9, a, b)),
    "sum": (
        1.3 * kx.Matern32(0.7) + 0.4 * kx.Matern12(2.0) + 0.3,
        lambda a, b: 1.3 * matern(1, 0.7, a, b) + 0.4 * matern(0, 2.0, a, b) + 0.3,
    ),
    "product": (
        0.5 * (kx.Matern12(1.7) * kx.Matern32(2.0) * (kx.Matern12(3.0) + 1.5)),
        lambda a, b: 0.5 * matern(0, 1.7, a, b) * matern(1, 2.0, a, b) * (matern(0, 3.0, a, b) + 1.5),
    ),
}
NOISES = {"small": np.full(N, 0.01), "large": np.full(N, 20.0), "per_row": np.linspace(0.05, 2.0, N)}


def dense(function, noise, t=T, y=Y, new=NEW[:, 0]):
    """All answers by NumPy, of a matrix that is written out."""
    inverse = np.linalg.inv(function(t, t) + np.diag(np.broadcast_to(noise, t.shape)))
    cross, alpha = function(new, t), inverse @ y
    covariance = function(new, new) - cross @ inverse @ cross.T
    return {
        "likelihood": -0.5 * (y @ alpha - np.linalg.slogdet(inverse)[1] + len(t) * np.log(2 * np.pi)),
        "alpha": alpha,
        "mean": cross @ alpha,
        "variance": np.diag(covariance),
        "covariance": covariance,
        "loo": alpha / np.diag(inverse),
    }


@eqx.filter_jit
def answers(model, data, new, solver=kx.StateSpace()):  # noqa: B008
    c = kx.condition(model, data, solver)
    prediction = kx.predict(c, new)
    return {
        "likelihood": kx.log_marginal_likelihood(c),
        "alpha": c.alpha,
        "mean": prediction.mean,
        "variance": prediction.variance,
        "covariance": kx.covariance(c, new),
        "loo": kx.loo_residuals(c),
    }


def assert_same(ours, theirs, tolerance):
    for name, value in theirs.items():
        np.testing.assert_allclose(
            ours[name], value, rtol=tolerance, atol=tolerance * max(1.0, np.abs(value).max()), err_msg=name
        )


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_a_dense_oracle(case, noise):
    kernel, function = CASES[case]
    ours = answers(kx.Model(kernel, NOISES[noise]), kx.Data(X, Y), NEW)
    assert_same(ours, dense(function, NOISES[noise]), 1e-11)


def test_two_thousand_rows_with_the_gradient():
    """Value and gradient with respect to lengthscales and noise, of two columns of targets; predictions."""
    n = 2000
    t, y = RNG.uniform(0, 100, n), RNG.normal(size=(n, 2))
    data, point = kx.Data(t[:, None], y), np.array([0.7, 5.0, 0.1])

    def conditioned(p):
        return kx.condition(kx.Model(kx.Matern32(p[0]) + kx.Matern12(p[1]), p[2]), data, kx.StateSpace())

    ours = jax.jit(jax.value_and_grad(lambda p: kx.log_marginal_likelihood(conditioned(p))))(point)
    near, far = np.sqrt(3.0) * np.abs(t[:, None] - t) / 0.7, np.abs(t[:, None] - t) / 5.0
    matrix = (1.0 + near) * np.exp(-near) + np.exp(-far) + 0.1 * np.eye(n)
    inverse = np.linalg.inv(matrix)
    alpha = inverse @ y
    value = -0.5 * np.sum(y * alpha) - np.linalg.slogdet(matrix)[1] - n * np.log(2 * np.pi)
    np.testing.assert_allclose(ours[0], value, rtol=1e-12)
    for i, slope in enumerate((near**2 * np.exp(-near) / 0.7, far * np.exp(-far) / 5.0, np.eye(n))):
        of_quadratic, of_determinant = 0.5 * np.sum(alpha * (slope @ alpha)), np.sum(inverse * slope)
        np.testing.assert_allclose(ours[1][i], of_quadratic - of_determinant, atol=1e-12 * (of_quadratic + of_determinant))
    c = conditioned(point)
    np.testing.assert_allclose(c.alpha, alpha, atol=1e-12 * np.abs(alpha).max())
    new = NEW[:, 0]
    expected = (matern(1, 0.7, new, t) + matern(0, 5.0, new, t)) @ alpha
    np.testing.assert_allclose(kx.mean(c, NEW), expected, atol=1e-11)


@pytest.mark.parametrize("name", ["matern52", "a sum"])
def test_all_answers_at_two_thousand_rows(name):
    n, noise = 2000, 0.1
    t, y = RNG.uniform(0, 100, n), RNG.normal(size=n)
    new = np.concatenate([[-3.0, 0.1], RNG.uniform(0, 100, 5), t[:2], [104.0]])
    kernel, function = kx.Matern52(0.9), lambda a, b: matern(2, 0.9, a, b)
    if name == "a sum":
        kernel = kernel + 0.5 * kx.Matern32(8.0) + 0.3
        function = lambda a, b: matern(2, 0.9, a, b) + 0.5 * matern(1, 8.0, a, b) + 0.3  # noqa: E731
    c = kx.condition(kx.Model(kernel, noise), kx.Data(t[:, None], y), kx.StateSpace())
    root = scipy.linalg.cho_factor(function(t, t) + noise * np.eye(n), lower=True)
    inverse = scipy.linalg.cho_solve(root, np.eye(n))
    alpha, cross = scipy.linalg.cho_solve(root, y), function(new, t)
    value = -0.5 * y @ alpha - np.sum(np.log(np.diag(root[0]))) - 0.5 * n * np.log(2 * np.pi)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), value, rtol=1e-12)
    variance = np.diag(function(new, new)) - np.sum(cross * (cross @ inverse), axis=1)
    prediction = kx.predict(c, new[:, None])
    for ours, theirs in (
        (c.alpha, alpha),
        (prediction.mean, cross @ alpha),
        (prediction.variance, variance),
        (kx.loo_residuals(c), alpha / np.diag(inverse)),
        (kx.loo_variance(c, noisy=True), 1.0 / np.diag(inverse)),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10 * np.abs(theirs).max())


def test_restarts():
    """The best of several starts, each by O(n) passes, is the best of the same starts with dense matrices."""
    t = RNG.uniform(0, 20, 40)
    data = kx.Data(t[:, None], np.sin(t) + 0.3 * RNG.normal(size=40))
    model = kx.Model(1.0 * kx.Matern52(50.0), 1.0)
    fits = [
        kx.fit(model, data, solver=solver, restarts=2, key=jax.random.key(4)) for solver in (kx.StateSpace(), kx.Cholesky())
    ]
    assert fits[0].result == kx.Result.successful
    np.testing.assert_allclose(fits[0].value, fits[1].value, rtol=1e-8)
    np.testing.assert_allclose(fits[0].model.kernel.kernel.lengthscale, fits[1].model.kernel.kernel.lengthscale, rtol=1e-3)


PEERS = {
    "matern32": (1.3 * kx.Matern32(0.7), lambda q: q.Matern32(0.7, sigma=np.sqrt(1.3))),
    "matern52": (1.3 * kx.Matern52(0.7), lambda q: q.Matern52(0.7, sigma=np.sqrt(1.3))),
    "sho": (1.3 * kx.kernels.SHO(2.0, 1.7), lambda q: q.SHO(np.pi, 1.7, sigma=np.sqrt(1.3))),
}


@pytest.mark.parametrize("name", PEERS)
def test_likelihood_is_that_of_tinygp(name):
    kernel, theirs = PEERS[name]
    t, y = np.sort(RNG.uniform(0, 20, 50)), RNG.normal(size=50)
    c = kx.condition(kx.Model(kernel, 0.1), kx.Data(t[:, None], y), kx.StateSpace())
    peer = tinygp.GaussianProcess(theirs(tinygp.kernels.quasisep), jnp.asarray(t), diag=0.1)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), peer.log_probability(y), rtol=1e-10)


def test_likelihood_is_that_of_the_kalman_filter_of_statsmodels():
    """Exponential correlation at even steps is an autoregression of order 1."""
    step, lengthscale, variance, noise = 0.3, 1.7, 1.3, 0.2
    y, share = RNG.normal(size=50), np.exp(-step / lengthscale)
    peer = SARIMAX(y, order=(1, 0, 0), measurement_error=True)
    known = {"ar.L1": share, "var.measurement_error": noise, "sigma2": variance * (1 - share**2)}
    data = kx.Data((step * np.arange(50))[:, None], y)
    c = kx.condition(kx.Model(variance * kx.Matern12(lengthscale), noise), data, kx.StateSpace())
    theirs = peer.loglike([known[name] for name in peer.param_names])
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), theirs, rtol=1e-10)


def test_a_noise_for_each_group():
    group, noise = np.arange(N) % 2, np.array([0.1, 0.9])
    model = kx.Model(kx.Select(1.3 * kx.Matern32(0.7), key="t"), kx.noises.PerGroup("group", noise))
    c = kx.condition(model, kx.Data({"t": X, "group": group}, Y), kx.StateSpace())
    theirs = dense(CASES["matern32"][1], noise[group])
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), theirs["likelihood"], rtol=1e-11)
    mean = kx.mean(c, {"t": NEW, "group": np.zeros(len(NEW), int)})
    np.testing.assert_allclose(mean, theirs["mean"], atol=1e-11)


def test_times_that_are_nan_are_refused():
    x = np.where(np.arange(N)[:, None] == 3, np.nan, X)
    with pytest.raises(ValueError, match=r"x.*row.*3"):
        kx.condition(kx.Model(kx.Matern32(), 0.1), kx.Data(x, Y), kx.StateSpace())


def test_equal_times_without_noise_are_explained():
    data = kx.Data(np.append(np.full((N - 1, 1), 2.5), 3.0)[:, None], Y)
    with pytest.raises(kx.FailedError, match=r"not_positive_definite.*rows that are repeated.*StateSpace adds no jitter"):
        kx.condition(kx.Model(kx.Matern32(), 0.0), data, kx.StateSpace())


def test_data_of_one_time_are_refused_before_tracing():
    mask = np.arange(N) != 3
    for x in (np.full((N, 1), 2.5), np.where(mask, 2.5, 1.0)[:, None]):
        data, solver = kx.Data(x, Y, mask=mask), kx.StateSpace()
        frozen = kx.Model(kx.Matern32(), 0.0)
        with pytest.raises(ValueError, match=r"all 8 rows are equal, and the noise is 0.*give the model a noise"):
            kx.condition(frozen, data, solver)
        with pytest.raises(ValueError, match="all 8 rows are equal, and the noise is 0"):
            kx.fit(frozen, data, solver=solver, trainable=kx.freeze(frozen, where=lambda m: m.noise))
        for model in (kx.Model(kx.CubicSpline(), 0.1), kx.Model(kx.Matern32(), 0.1, trend=1)):
            with pytest.raises(ValueError, match=r"all 8 rows are equal.* leaves 2 functions free.*other times"):
                kx.condition(model, data, solver)
        # With a noise, and for a single row, there is an answer.
        assert kx.condition(kx.Model(kx.Matern32(), 0.1, trend=0), data, solver).ok
    assert kx.condition(frozen, kx.Data([[2.5]], [1.0]), solver).ok


@pytest.mark.parametrize("columns", [False, True])
def test_float32_is_kept_and_right(columns):
    y = np.stack([Y, 2 * Y], axis=1) if columns else Y
    data = kx.Data(X.astype(np.float32), y.astype(np.float32))
    c = kx.condition(kx.Model(CASES["sum"][0], 0.1), data, kx.StateSpace())
    theirs = dense(CASES["sum"][1], 0.1)
    mean, new = kx.mean(c, NEW.astype(np.float32)), theirs["mean"]
    assert mean.dtype == kx.log_marginal_likelihood(c).dtype == np.float32
    np.testing.assert_allclose(mean, np.stack([new, 2 * new], axis=1) if columns else new, atol=2e-4)
    np.testing.assert_allclose(kx.loo_variance(c, noisy=True)[0], theirs["loo"][0] / theirs["alpha"][0], rtol=2e-4)


def test_masked_rows_change_nothing():
    kernel, function = CASES["sum"]
    counts = np.arange(N) % 3 != 1
    data = kx.Data(X, Y, mask=counts)
    # What stands in masked rows is put there by hand: `Data` would take it out.
    garbage = eqx.tree_at(lambda d: (d.x, d.y), data, (jnp.where(counts[:, None], X, -1e3), jnp.where(counts, Y, 1e6)))
    noise = np.where(counts, NOISES["per_row"], 7e4)
    for given in (data, garbage):
        ours = answers(kx.Model(kernel, noise), given, NEW)
        assert not np.any([ours["alpha"][~counts], ours["loo"][~counts]])
        ours |= {name: ours[name][counts] for name in ("alpha", "loo")}
        assert_same(ours, dense(function, noise[counts], T[counts], Y[counts]), 1e-11)

    @eqx.filter_jit
    def slope(data):
        return jax.grad(lambda m: kx.log_marginal_likelihood(kx.condition(m, data, kx.StateSpace())))(kx.Model(kernel, 0.1))

    few, all_rows = slope(kx.Data(X[counts], Y[counts])), slope(garbage)
    for ours, theirs in zip(jax.tree.leaves(all_rows), jax.tree.leaves(few), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


def test_all_times_equal():
    t = np.full(N, 2.5)
    ours = answers(kx.Model(CASES["matern52"][0], 0.3), kx.Data(t[:, None], Y), NEW)
    assert_same(ours, dense(CASES["matern52"][1], 0.3, t), 1e-12)


def longdouble_likelihood(matrix, y):
    """Cholesky's algorithm in extended precision."""
    n, root, y = len(y), np.array(matrix, np.longdouble), np.array(y, np.longdouble)
    for j in range(n):
        root[j, j] = np.sqrt(root[j, j] - root[j, :j] @ root[j, :j])
        y[j] = (y[j] - root[j, :j] @ y[:j]) / root[j, j]
        root[j + 1 :, j] = (root[j + 1 :, j] - root[j + 1 :, :j] @ root[j, :j]) / root[j, j]
    return -0.5 * (y @ y) - np.sum(np.log(np.diag(root))) - 0.5 * n * np.log(2 * np.pi)


@pytest.mark.parametrize(("order", "step"), [(0, 1e-6), (1, 1e-3), (2, 2e-2)])
def test_no_noise_and_tiny_steps(order, step):
    t = step * np.arange(12.0)
    y = np.cumsum(np.sqrt(step) * RNG.normal(size=12)) if order == 0 else 1e-3 * np.sin(t)
    kernel = (kx.Matern12, kx.Matern32, kx.Matern52)[order](1.0)
    c = kx.condition(kx.Model(kernel, 0.0), kx.Data(t[:, None], y), kx.StateSpace())
    precise = matern(order, np.longdouble(1.0), t.astype(np.longdouble), t.astype(np.longdouble))
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), float(longdouble_likelihood(precise, y)), rtol=3e-9)
    np.testing.assert_allclose(kx.mean(c, t[:, None]), y, atol=1e-12)
    np.testing.assert_allclose(kx.variance(c, t[:, None]), 0.0, atol=1e-15)


PRECISE = {
    "matern12": (kx.Matern12(), lambda r: precise_matern(0, r)),
    "matern32": (kx.Matern32(), lambda r: precise_matern(1, r)),
    "matern52": (kx.Matern52(), lambda r: precise_matern(2, r)),
    "sho": (kx.kernels.SHO(1.0, 2.0), lambda r: precise_sho(r)),
    "sum": (kx.Matern52() + kx.Matern32(0.5) + 1.5, lambda r: precise_matern(2, r) + precise_matern(1, 2 * r) + 1.5),
    "sum of oscillations": (kx.Matern52() + kx.kernels.SHO(1.0, 2.0), lambda r: precise_matern(2, r) + precise_sho(r)),
    "product": (kx.Matern52() * kx.Matern32(0.5), lambda r: precise_matern(2, r) * precise_matern(1, 2 * r)),
    "wave": (kx.Cosine() * kx.Matern32(0.5), lambda r: mpmath.cos(2 * mpmath.pi * r) * precise_matern(1, 2 * r)),
}


def precise_matern(order, r):
    x = mpmath.sqrt(2 * order + 1) * r
    return (1, 1 + x, 1 + x + x * x / 3)[order] * mpmath.exp(-x)


def precise_sho(r):
    x, a = 2 * mpmath.pi * r, mpmath.mpf(1) / 4
    root = mpmath.sqrt(1 - a * a)
    return mpmath.exp(-a * x) * (mpmath.cos(root * x) + a * mpmath.sin(root * x) / root)


def precise_logdet(kernel, t, noise=0.0):
    """The log determinant by Cholesky's algorithm with 120 digits."""
    with mpmath.workdps(120):
        t = [mpmath.mpf(float(one)) for one in t]
        rows, total = [[kernel(abs(a - b)) + (noise if a == b else 0) for b in t] for a in t], mpmath.mpf(0)
        for j, pivot in enumerate(rows):
            total += mpmath.log(pivot[j])
            for row in rows[j + 1 :]:
                factor = row[j] / pivot[j]
                row[j:] = [a - factor * b for a, b in zip(row[j:], pivot[j:], strict=True)]
        return float(total)


@pytest.mark.parametrize("name", PRECISE)
def test_the_determinant_without_noise_has_twelve_digits(name):
    kernel, formula = PRECISE[name]
    for t in (1e-5 * np.arange(14), np.sort(RNG.uniform(0, 2e-4, 14))):
        c = kx.condition(kx.Model(kernel, 0.0), kx.Data(t[:, None], np.zeros(14)), kx.StateSpace())
        np.testing.assert_allclose(c.system.logdet(), precise_logdet(formula, t), rtol=1e-12)
        noisy = kx.recondition(c, noise=1e-9)
        np.testing.assert_allclose(noisy.system.logdet(), precise_logdet(formula, t, 1e-9), rtol=1e-8)


def test_the_determinant_of_sixty_rows_and_the_inverse_without_noise():
    t, kernel = 1e-5 * np.arange(60), PRECISE["matern52"][1]
    c = kx.condition(kx.Model(kx.Matern52(), 0.0), kx.Data(t[:, None], np.zeros(60)), kx.StateSpace())
    np.testing.assert_allclose(c.system.logdet(), precise_logdet(kernel, t), rtol=1e-12)
    # One over the variance of the last row, given the others, is the last entry of the inverse's diagonal.
    log_variance = precise_logdet(kernel, t) - precise_logdet(kernel, t[:-1])
    np.testing.assert_allclose(np.log(kx.loo_variance(c, noisy=True)[-1]), log_variance, rtol=1e-12)


SINGULAR = {
    "features": (kx.Polynomial(3), np.sort(RNG.uniform(0, 5, 8))),
    "a line": (kx.Linear() + kx.Constant(), np.arange(8.0)),
    "a line beside a series": (kx.Matern12() * kx.Polynomial(2), np.repeat(np.arange(4.0), 2)),
    "steps too small": (kx.Matern52(), 1e-12 * np.arange(8.0)),
    "a sum, steps too small": (kx.Matern52() + kx.Matern52(0.5), 1e-7 * np.arange(8.0)),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_matrices_that_are_singular_up_to_rounding_are_reported(name):
    kernel, t = SINGULAR[name]
    data = kx.Data(t[:, None], RNG.normal(size=8))
    c = kx.condition(kx.Model(kernel, 0.0), data, kx.StateSpace(), throw=False)
    assert kx.solvers.result_name(c.result) == "not_positive_definite"
    assert np.all(np.isnan(c.alpha))
    noises = jnp.array([0.0, 1e-3])
    result = jax.vmap(lambda noise: kx.condition(kx.Model(kernel, noise), data, kx.StateSpace()).result)(noises)
    np.testing.assert_array_equal(result == kx.Result.successful, [False, True])


def test_shocks_are_exact_for_all_steps():
    z = np.concatenate([[0.0], np.logspace(-12, 2.5, 60)])
    tails = jax.vmap(lambda value: jnp.stack(_gamma_tails(5, value)))(jnp.asarray(z))
    np.testing.assert_allclose(tails, scipy.special.gammainc(np.arange(1, 6), z[:, None]), rtol=2e-14)


N_SMALL, WEIGHTS = 5, RNG.normal(size=12)
POINT = np.concatenate([[1.3, 0.8, 0.2], RNG.uniform(0, 3, N_SMALL), RNG.normal(size=N_SMALL), [-0.5, 1.1, 3.5]])


def parts(p):
    """Variance, lengthscale and noise; times; targets; new times."""
    return p[:3], p[3 : 3 + N_SMALL], p[3 + N_SMALL : 3 + 2 * N_SMALL], p[3 + 2 * N_SMALL :]


def our_quantities(p):
    """A weighted sum of the likelihood, means, variances and leave-one-out residuals."""
    (v, lengthscale, noise), t, y, new = parts(p)
    c = kx.condition(kx.Model(v * kx.Matern32(lengthscale), noise), kx.Data(t[:, None], y), kx.StateSpace())
    prediction = kx.predict(c, new[:, None])
    likelihood = kx.log_marginal_likelihood(c)[None]
    return WEIGHTS @ jnp.concatenate([likelihood, prediction.mean, prediction.variance, kx.loo_residuals(c)])


def dense_quantities(p):
    """The same by plain autodiff through an inverse."""
    (v, lengthscale, noise), t, y, new = parts(p)

    def kernel(a, b):
        # Where two times are equal, autodiff sees a kink of |a - b|; the kernel is 1 - r²/2 there, to second order.
        apart = a[:, None] != b[None, :]
        r = jnp.sqrt(3.0) * jnp.where(apart, a[:, None] - b[None, :], 1.0) / lengthscale
        r = jnp.abs(r)
        near = 1.0 - 1.5 * ((a[:, None] - b[None, :]) / lengthscale) ** 2
        return v * jnp.where(apart, (1.0 + r) * jnp.exp(-r), near)

    inverse = jnp.linalg.inv(kernel(t, t) + noise * jnp.eye(len(t)))
    cross, alpha = kernel(new, t), inverse @ y
    likelihood = -0.5 * (y @ alpha - jnp.linalg.slogdet(inverse)[1] + len(t) * jnp.log(2 * jnp.pi))
    variance = v - jnp.sum(cross * (cross @ inverse), axis=1)
    return WEIGHTS @ jnp.concatenate([likelihood[None], cross @ alpha, variance, alpha / jnp.diag(inverse)])


def test_first_and_second_derivatives():
    """With respect to hyperparameters, noise, times, targets and new times. (Other nestings: `test_systems.py`.)"""

    def both(function):
        def twice(p):
            gradient = jax.grad(function)(p)
            return gradient, gradient

        return jax.jit(jax.jacfwd(twice, has_aux=True))(POINT)

    for order, theirs in zip(both(our_quantities), both(dense_quantities), strict=True):
        np.testing.assert_allclose(order, theirs, atol=1e-11 * np.abs(theirs).max())


def test_first_and_second_derivatives_of_a_large_state():
    """Fifteen numbers of state, one of which is observed with the time as its weight: the loops go row after row."""
    rng = np.random.default_rng(6)
    t, y = rng.uniform(0, 3, 6), rng.normal(size=6)
    scales, direction = np.geomspace(0.3, 4.0, 7), rng.normal(size=16)

    def ours(p):
        kernel = functools.reduce(operator.add, [p[i] * kx.Matern32(p[7 + i]) for i in range(7)]) + p[14] * kx.Linear()
        return kx.log_marginal_likelihood(kx.condition(kx.Model(kernel, p[15]), kx.Data(t[:, None], y), kx.StateSpace()))

    def dense(p):
        r = jnp.sqrt(3.0) * np.abs(t[:, None] - t) / p[7:14, None, None]
        matrix = jnp.tensordot(p[:7], (1.0 + r) * jnp.exp(-r), 1) + p[14] * t[:, None] * t + p[15] * jnp.eye(6)
        return -0.5 * (y @ jnp.linalg.solve(matrix, y) + jnp.linalg.slogdet(matrix)[1] + 6 * jnp.log(2 * jnp.pi))

    def derivatives(f):
        return jax.jit(lambda p: jax.tree.leaves(jax.jvp(jax.value_and_grad(f), (p,), (direction,))))

    at = np.concatenate([np.linspace(0.2, 1.0, 7), scales, [0.4, 0.3]])
    for found, expected in zip(derivatives(ours)(at), derivatives(dense)(at), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-11 * np.abs(expected).max())


def test_gradient_at_a_repeated_time():
    def value(t):
        c = kx.condition(kx.Model(kx.Matern32(0.7), 0.1), kx.Data(t[:, None], Y), kx.StateSpace())
        return kx.log_marginal_likelihood(c)

    slope = jax.grad(value)(jnp.asarray(T))
    for i in (4, 7):
        h = 1e-5 * np.eye(N)[i]
        ahead, behind = (dense(lambda a, b: matern(1, 0.7, a, b), 0.1, T + s * h)["likelihood"] for s in (1, -1))
        np.testing.assert_allclose(slope[i], (ahead - behind) / 2e-5, rtol=1e-6)


SELECTED = {
    "column": (np.stack([Y, T], axis=1), lambda k: kx.Select(k, columns=1)),
    "column of columns": (np.stack([Y, Y, T], axis=1), lambda k: kx.Select(kx.Select(k, columns=1), columns=(0, 2))),
    "key": ({"t": X, "group": np.arange(N)}, lambda k: kx.Select(k, key="t")),
    "axis": ((Y[:, None], X), lambda k: kx.Select(k, axis=1)),
    "grid": (kx.Grid((X,)), lambda k: kx.Select(k, axis=0)),
    "the only column": (X, lambda k: kx.Select(k, columns=0)),
}


@pytest.mark.parametrize("way", SELECTED)
def test_selected_column(way):
    x, select = SELECTED[way]
    kernel = select(kx.Matern32(0.7)) * select(0.3 * kx.Matern12(2.0))
    matrix = 0.3 * matern(1, 0.7, T, T) * matern(0, 2.0, T, T)
    if way == "the only column":
        kernel, matrix = kernel + kx.Matern12(5.0), matrix + matern(0, 5.0, T, T)
    c = kx.condition(kx.Model(kernel, 0.1), kx.Data(x, Y), kx.StateSpace())
    alpha = np.linalg.solve(matrix + 0.1 * np.eye(N), Y)
    np.testing.assert_allclose(c.alpha, alpha, rtol=1e-10)
    np.testing.assert_allclose(kx.mean(c, x), matrix @ alpha, rtol=1e-10)


REFUSED = {
    "no Markov process": (
        kx.Matern32() + 2.0 * kx.RBF(0.5),
        X,
        r"which RBF does not have.*Cholesky.*CG.*Coregion, ICM and LCM",
    ),
    "power": (kx.RBF() ** 2, X, r"which RBF does not have"),
    "change point": (kx.kernels.ChangePoint(kx.Matern32(), kx.RBF()), X, r"which RBF does not have"),
    "two lengthscales": (kx.Matern32([1.0, 2.0]), np.ones((N, 2)), r"which Matern32 does not have \(it has 2 numbers"),
    "white": (kx.Matern32() + kx.kernels.White(), X, r"White does not have \(instead of White, use the model's noise"),
    "a Matern of any order": (kx.kernels.Matern(nu=1.5), X, r"Matern does not have \(.*kx\.Matern32"),
    "two columns": (kx.Matern32(), np.ones((N, 2)), r"one column, but the rows have 2.*Select.*Cholesky"),
    "two selected columns": (kx.Select(kx.Matern32(), columns=(0, 1)), np.ones((N, 2)), r"Select\("),
    "different columns": (
        kx.Select(kx.Matern32(), columns=0) + kx.Select(kx.Matern32(), columns=1),
        np.ones((N, 2)),
        "same column",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_kernels_without_a_state_space_are_refused(name):
    kernel, x, message = REFUSED[name]
    with pytest.raises(TypeError, match=message):
        kx.condition(kx.Model(kernel, 0.1), kx.Data(x, Y), kx.StateSpace())


def test_a_selected_part_that_is_not_there_is_refused():
    for kernel, x in (
        (kx.Select(kx.Matern32(), columns=2), np.ones((N, 2))),
        (kx.Select(kx.Matern32(), key="t"), {"s": X}),
        (kx.Select(kx.Matern32(), axis=1), (X,)),
    ):
        with pytest.raises(ValueError, match="Select uses"):
            kx.condition(kx.Model(kernel, 0.1), kx.Data(x, Y), kx.StateSpace())


def test_a_trend_left_free():
    kernel, function = CASES["matern32"]
    c = kx.condition(kx.Model(kernel, 0.1, trend=1), kx.Data(X, Y), kx.StateSpace())
    free, inverse = np.stack([np.ones(N), T], axis=1), np.linalg.inv(function(T, T) + 0.1 * np.eye(N))
    moments = free.T @ inverse @ free
    beta = np.linalg.solve(moments, free.T @ inverse @ Y)
    cross, at = function(NEW[:, 0], T), np.stack([np.ones(len(NEW)), NEW[:, 0]], axis=1)
    np.testing.assert_allclose(kx.mean(c, NEW), at @ beta + cross @ inverse @ (Y - free @ beta), atol=1e-10)
    missed = at - cross @ inverse @ free
    variance = 1.3 - np.sum(cross * (cross @ inverse), axis=1) + np.sum(missed * (missed @ np.linalg.inv(moments)), axis=1)
    np.testing.assert_allclose(kx.variance(c, NEW), variance, atol=1e-10)


def test_another_noise():
    kernel, function = CASES["sum"]
    c = kx.condition(kx.Model(kernel, 0.1), kx.Data(X, Y), kx.StateSpace())
    again = kx.recondition(c, noise=0.7)
    np.testing.assert_allclose(again.alpha, dense(function, 0.7)["alpha"], rtol=1e-10)
    path = kx.ridge_path(c, [0.01, 0.7])
    for i, noise in enumerate([0.01, 0.7]):
        theirs = dense(function, noise)
        np.testing.assert_allclose(path.loo_residuals[i], theirs["loo"], rtol=1e-9)
        np.testing.assert_allclose(path.log_marginal_likelihood[i], theirs["likelihood"], rtol=1e-10)
        norm = np.sqrt(theirs["alpha"] @ function(T, T) @ theirs["alpha"])
        np.testing.assert_allclose(path.rkhs_norm[i], norm, rtol=1e-10)


def test_products_draws_and_sums_of_solutions():
    counts = np.arange(N) != 2
    kernel, function = CASES["product"]
    c = kx.condition(kx.Model(kernel, NOISES["per_row"]), kx.Data(X, Y, mask=counts), kx.StateSpace())
    k = np.where(counts[:, None] & counts, function(T, T), 0.0)
    v = RNG.normal(size=(N, 2))
    key, live = jax.random.key(0), np.ix_(counts, counts)

    @eqx.filter_jit
    def computed(system, v, new):
        # Predictions are linear in what is kept.
        one, two = (system.solve(column) for column in v.T)
        both = jax.tree.map(lambda a, b: a + 2.0 * b, (one.value, one.kept), (two.value, two.kept))
        together = system.solve(v @ jnp.array([1.0, 2.0]))
        means = [system.mean(new, solution) for solution in (one._replace(value=both[0], kept=both[1]), together)]
        return system.gram.mv(v), system.gram.dense(), jax.random.normal(key, (N, N)), system.draw(key, N), means

    product, matrix, normal, draws, means = jax.tree.map(np.asarray, computed(c.system, jnp.asarray(v), jnp.asarray(NEW)))
    np.testing.assert_allclose(product, k @ v, atol=1e-12)
    np.testing.assert_allclose(matrix, k, atol=1e-12)
    np.testing.assert_allclose(*means, atol=1e-11)
    # A draw is a matrix times normal numbers. As many draws as rows show that matrix.
    assert not np.any(draws[~counts])
    root = draws @ np.linalg.inv(normal)
    np.testing.assert_allclose((root @ root.T)[live], (k + np.diag(NOISES["per_row"]))[live], atol=1e-11)


def test_predictions_in_blocks(monkeypatch):
    c = kx.condition(kx.Model(CASES["sum"][0], 0.1), kx.Data(X, Y), kx.StateSpace())
    monkeypatch.setattr("kernax.rows._ENTRIES", 1000)
    theirs = dense(CASES["sum"][1], 0.1)
    np.testing.assert_allclose(c.system.mean(jnp.asarray(NEW), c.solution), theirs["mean"], atol=1e-11)
    np.testing.assert_allclose(c.system.variance(jnp.asarray(NEW)).value, theirs["variance"], atol=1e-11)


def test_batches_of_datasets():
    x, y = np.stack([X, X[::-1], 3.0 * X]), np.stack([Y, Y, -Y])
    kernel, function = CASES["sum"]
    found = jax.vmap(lambda x, y: answers(kx.Model(kernel, 0.1), kx.Data(x, y), jnp.asarray(NEW)))(x, y)
    for i in range(3):
        assert_same({name: value[i] for name, value in found.items()}, dense(function, 0.1, x[i, :, 0], y[i]), 1e-11)


FAILURES = {
    "not_positive_definite": (kx.Matern32(0.7), 0.0, None),  # one time is there twice
    "nonfinite": (eqx.tree_at(lambda k: k.variance, 2.0 * kx.Matern32(0.7), jnp.asarray(jnp.inf)), 0.1, None),
    "empty": (kx.Matern32(0.7), 0.1, np.zeros(N, bool)),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_have_a_status_and_finite_gradients(name):
    kernel, noise, mask = FAILURES[name]

    @eqx.filter_jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def guarded(noise, x):
        c = kx.condition(kx.Model(kernel, noise), kx.Data(x, Y, mask=mask), kx.StateSpace(), throw=False)
        answers = [c.alpha, kx.mean(c, NEW), kx.variance(c, NEW), kx.log_marginal_likelihood(c)[None], kx.loo_residuals(c)]
        again = c.system.shifted(jnp.asarray(0.5))
        assert again is not None
        return jnp.where(c.ok, sum(jnp.sum(answer) for answer in answers), 0.0), (c.result, again.result, answers)

    (value, (result, again, found)), slopes = guarded(noise, jnp.asarray(X))
    assert result == getattr(kx.Result, name)
    for answer in found if mask is None else found[1:4]:
        assert np.all(np.isnan(answer))
    assert (value, slopes[0]) == (0, 0)
    if name != "nonfinite":  # an infinite kernel has no derivative in x, with any solver
        assert np.all(slopes[1] == 0)
    # A larger noise helps only if the kernel is finite and there are rows.
    assert again == (kx.Result.successful if name == "not_positive_definite" else result)
    with pytest.raises(kx.FailedError, match=name):
        kx.condition(kx.Model(kernel, noise), kx.Data(X, Y, mask=mask), kx.StateSpace())


def test_fit():
    t = np.sort(RNG.uniform(0, 8, 40))
    data = kx.Data(t[:, None], np.sin(t) + 0.1 * RNG.normal(size=40))
    model = kx.Model(1.0 * kx.Matern52(), 0.1)
    fits = [kx.fit(model, data, solver=solver) for solver in (kx.StateSpace(), kx.Cholesky())]
    np.testing.assert_allclose(fits[0].value, fits[1].value, rtol=1e-6)
