"""Kernels with a state space, against dense NumPy formulas, quadrature and SciPy's smoothing spline."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate
import scipy.linalg
import scipy.special

import kernax as kx
from kernax.kernels import SHO, ChangePoint
from kernax.kernels._oscillator import _transition
from tests.tables import gradient_by_differences

RNG = np.random.default_rng(3)
N = 10
T = RNG.uniform(0.0, 5.0, N)
T[4] = T[7]  # unsorted, and one time twice
Y = RNG.normal(size=N)
NEW = np.concatenate([[-3.0, -0.1], RNG.uniform(0.0, 5.0, 3), T[:2], [5.2, 11.0]])
TASK, NEW_TASK = np.arange(N) % 3, np.arange(len(NEW)) % 3
LOADINGS = RNG.normal(size=(3, 2))


def gaps(a, b):
    return np.abs(a[:, None] - b[None, :])


def sho(period, quality, r):
    """The formula as it is written in books."""
    x, a = 2 * np.pi * r / period, 0.5 / quality
    root = np.sqrt(complex(1 - a * a))
    return (np.exp(-a * x) * (np.cos(root * x) + a * np.sin(root * x) / root)).real


def matern32(lengthscale, r):
    return (1 + np.sqrt(3) * r / lengthscale) * np.exp(-np.sqrt(3) * r / lengthscale)


def features_by_numpy(p, a, b):
    own = np.stack([np.cos(a), a**2], 1) @ np.stack([np.cos(b), b**2], 1).T
    return p[0] * np.outer(a, b) + (p[1] * np.outer(a, b) + 0.7) ** 2 + np.cos(2 * np.pi * (a[:, None] - b) / p[2]) + own


def change_by_numpy(p, a, b):
    on, on_b = (1 / (1 + np.exp(-(t - p[3]) / p[4])) for t in (a, b))
    before = p[0] * sho(p[1], p[2], gaps(a, b)) * np.exp(-gaps(a, b) / 2)
    after = 0.4 * np.outer(a, b) + matern32(0.7, gaps(a, b))
    return np.outer(1 - on, 1 - on_b) * before + np.outer(on, on_b) * after


CASES = {
    "oscillators and a power": (
        lambda p: p[0] * SHO(p[1], 3.0) + SHO(2.5, p[2]) ** 2,
        lambda p, a, b: p[0] * sho(p[1], 3.0, gaps(a, b)) + sho(2.5, p[2], gaps(a, b)) ** 2,
        [1.3, 1.7, 0.3],
    ),
    "change from a product to a sum": (
        lambda p: ChangePoint(
            p[0] * SHO(p[1], p[2]) * kx.Matern12(2.0), kx.Linear(0.4) + kx.Matern32(0.7), location=p[3], width=p[4]
        ),
        change_by_numpy,
        [0.8, 1.2, 4.0, 2.2, 0.6],
    ),
    "features": (
        lambda p: (
            kx.Linear(p[0])
            + kx.Polynomial(2, scale=p[1], offset=0.7)
            + kx.Cosine(p[2])
            + kx.FeatureMap(lambda row: jnp.stack([jnp.cos(row[0]), row[0] ** 2]))
        ),
        features_by_numpy,
        [0.6, 0.3, 1.9],
    ),
    "quasi-periodic": (
        lambda p: p[0] * kx.Periodic(p[1], p[2], harmonics=9) * kx.Matern32(3.0),
        lambda p, a, b: p[0] * np.exp(-2 * (np.sin(np.pi * gaps(a, b) / p[2]) / p[1]) ** 2) * matern32(3.0, gaps(a, b)),
        [1.1, 1.2, 1.6],
    ),
}
NOISE = 0.2


def dense(function, t, y, new, noise=NOISE):
    """All answers by NumPy, of a matrix that is written out."""
    inverse = np.linalg.inv(function(t, t) + noise * np.eye(len(t)))
    cross, alpha = function(new, t), inverse @ y
    return {
        "likelihood": -0.5 * (y @ alpha - np.linalg.slogdet(inverse)[1] + len(t) * np.log(2 * np.pi)),
        "mean": cross @ alpha,
        "variance": np.diag(function(new, new) - cross @ inverse @ cross.T),
        "loo": alpha / np.diag(inverse),
    }


def answers(model, data, new):
    c = kx.condition(model, data, kx.StateSpace())
    prediction = kx.predict(c, new)
    return {
        "likelihood": kx.log_marginal_likelihood(c),
        "mean": prediction.mean,
        "variance": prediction.variance,
        "loo": kx.loo_residuals(c),
    }


def assert_same(ours, theirs, tolerance):
    for name, value in theirs.items():
        scale = max(1.0, np.abs(value).max())
        np.testing.assert_allclose(ours[name], value, rtol=tolerance, atol=tolerance * scale, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_answers_and_gradient_are_those_of_a_dense_oracle(case):
    make, function, point = CASES[case]

    @jax.jit
    def ours(p):
        data = kx.Data(T[:, None], Y)
        slope = jax.grad(lambda p: answers(kx.Model(make(p), NOISE), data, NEW[:, None])["likelihood"])(p)
        return answers(kx.Model(make(p), NOISE), data, NEW[:, None]), slope

    found, slope = ours(jnp.asarray(point))
    assert_same(found, dense(lambda a, b: function(point, a, b), T, Y, NEW), 1e-10)
    differences = gradient_by_differences(
        lambda p: dense(lambda a, b: function(p, a, b), T, Y, NEW)["likelihood"], np.array(point)
    )
    np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-7)


LAPLACIAN = np.array([[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]])
DIFFUSED = scipy.linalg.expm(-0.5 * 1.3**2 * LAPLACIAN)
LABELS = {
    "loadings": (kx.Select(kx.FeatureMap(lambda task: jnp.asarray(LOADINGS)[task]), key="task"), LOADINGS @ LOADINGS.T),
    "categories and a graph": (
        kx.kernels.Categorical("task", 3, correlation=0.4) + kx.Select(kx.kernels.Graph(LAPLACIAN, 1.3), key="task"),
        0.4 + 0.6 * np.eye(3) + DIFFUSED / np.mean(np.diag(DIFFUSED)),
    ),
}


@pytest.mark.parametrize("case", LABELS)
def test_outputs_that_share_series(case):
    """Rows are a time and a task: each task has loadings on two series, or a covariance with the others."""
    labels, between = LABELS[case]
    kernel = labels * kx.Select(SHO(2.0, 1.5), key="t")

    def function(a, b):
        return between[np.ix_(a[1].astype(int), b[1].astype(int))] * sho(2.0, 1.5, gaps(a[0], b[0]))

    found = answers(
        kx.Model(kernel, NOISE), kx.Data({"t": T[:, None], "task": TASK}, Y), {"t": NEW[:, None], "task": NEW_TASK}
    )
    matrix = function((T, TASK), (T, TASK)) + NOISE * np.eye(N)
    cross, inverse = function((NEW, NEW_TASK), (T, TASK)), np.linalg.inv(matrix)
    prior = np.diag(function((NEW, NEW_TASK), (NEW, NEW_TASK)))
    np.testing.assert_allclose(found["mean"], cross @ inverse @ Y, atol=1e-11)
    np.testing.assert_allclose(found["variance"], prior - np.sum(cross * (cross @ inverse), axis=1), atol=1e-11)
    np.testing.assert_allclose(found["loo"], inverse @ Y / np.diag(inverse), atol=1e-11)


# The damped oscillator


@pytest.mark.parametrize("quality", [0.1, 0.49, 0.5 - 1e-7, 0.5 + 1e-7, 0.51, 2.0, 300.0])
def test_sho_is_its_formula(quality):
    x, z = T[:, None], NEW[:, None]
    kernel = SHO(1.7, quality)
    # Near critical damping the formula itself divides two small numbers.
    np.testing.assert_allclose(kernel(x, z), sho(1.7, quality, gaps(T, NEW)), atol=2e-12)
    np.testing.assert_allclose(kernel(x), sho(1.7, quality, gaps(T, T)), atol=2e-12)
    assert np.all(kernel.diag(x) == 1.0)


def test_sho_at_critical_damping_is_a_matern_kernel():
    x, z = T[:, None], NEW[:, None]
    same = kx.Matern32(np.sqrt(3) * 1.7 / (2 * np.pi))
    np.testing.assert_allclose(SHO(1.7, 0.5)(x, z), same(x, z), atol=1e-15)


def test_sho_has_derivatives_where_points_coincide_and_where_damping_is_critical():
    def value(p):
        return SHO(p[0], p[1]).pair(p[2:3], jnp.zeros(1))

    derivatives = jax.jit(lambda p: (jax.grad(value)(p), jax.hessian(value)(p)))
    first, second = derivatives(jnp.array([1.7, 0.8, 0.0]))
    assert not np.any(first)
    np.testing.assert_allclose(second, np.diag([0.0, 0.0, -((2 * np.pi / 1.7) ** 2)]), atol=1e-12)
    for quality in (0.5, 0.21, 0.7):
        point = np.array([1.7, quality, 0.6])
        first, second = derivatives(jnp.asarray(point))
        # Steps that straddle critical damping and do not touch it, where the formula of books is 0/0.
        np.testing.assert_allclose(
            first, gradient_by_differences(lambda p: sho(p[0], p[1], p[2]), point + 1e-9, 1e-5), rtol=1e-6
        )
        rows = [gradient_by_differences(lambda p, i=i: derivatives(jnp.asarray(p))[0][i], point, 1e-5) for i in range(3)]
        np.testing.assert_allclose(second, rows, rtol=1e-6, atol=1e-7)


def test_shocks_of_the_oscillator_are_exact_for_all_steps():
    """`Q = 4a ∫₀ˣ g gᵀ` by quadrature of its positive integrands."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    x = np.logspace(-8, 1, 28)
    u = 0.5 * x[:, None] * (nodes + 1)
    for a in (5e-4, 0.3, 0.999, 1.001, 1.6, 5.0):
        root = np.sqrt(complex(1 - a * a))
        s, c = (np.sin(root * u) / root).real, np.cos(root * u).real
        level, slope = np.exp(-a * u) * s, np.exp(-a * u) * (c - a * s)
        shocks = np.asarray(_transition(jnp.asarray(x), jnp.full(x.shape, a))[1])[:, 0]
        variances, both = (2 * a * x * (f @ weights) for f in (np.stack([level, slope]) ** 2, level * slope))
        np.testing.assert_allclose(np.stack([shocks[:, 0, 0], shocks[:, 1, 1]]), variances, rtol=1e-12)
        np.testing.assert_allclose(
            shocks[:, 0, 1] / np.sqrt(variances[0] * variances[1]), both / np.sqrt(variances[0] * variances[1]), atol=1e-12
        )


def test_harmonics_that_are_left_out():
    """The bound that `Periodic` states: SciPy's Bessel functions, and the largest error of a value."""
    kernel = kx.Periodic(0.5, 1.7, harmonics=4)
    left_out = 2 * np.sum(scipy.special.ive(np.arange(5, 60), 4.0))
    np.testing.assert_allclose(kernel.omitted_variance(), left_out, rtol=1e-10)
    c = kx.condition(kx.Model(kernel, NOISE), kx.Data(T[:, None], Y), kx.StateSpace(), throw=False)
    error = np.abs(c.system.gram.mv(jnp.eye(N)) - kernel(T[:, None]))
    assert 0.5 * left_out < error.max() <= left_out * (1 + 1e-9)


@pytest.mark.parametrize("lengthscale", [0.02, 0.0499, 0.0501, 0.3])
def test_the_omitted_variance_is_true_for_short_lengthscales(lengthscale):
    def left_out(lengthscale):
        return kx.Periodic(lengthscale).omitted_variance()

    def theirs(lengthscale):
        return 1 - 2 * np.sum(scipy.special.ive(np.arange(1, 16), lengthscale**-2)) - scipy.special.ive(0, lengthscale**-2)

    value, slope = jax.value_and_grad(left_out)(lengthscale)
    np.testing.assert_allclose(value, theirs(lengthscale), rtol=1e-10)
    step = 1e-5 * lengthscale
    difference = (theirs(lengthscale + step) - theirs(lengthscale - step)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-6)


def test_too_few_harmonics_are_reported_and_enough_are_right():
    t = np.sort(RNG.uniform(0, 10, 60))
    data = kx.Data(t[:, None], np.sign(np.sin(2 * np.pi * t)))

    def model(lengthscale, harmonics=15):
        return kx.Model(kx.CubicSpline() + 2.0 * kx.Periodic(lengthscale, 1.0, harmonics=harmonics), 0.01)

    @eqx.filter_jit
    def likelihood(model, solver):
        c = kx.condition(model, data, solver, throw=False)
        return c.result, kx.log_marginal_likelihood(c)

    for given, name in ((model(0.3), "too_few_harmonics"), (model(0.5), "successful"), (model(0.3, 25), "successful")):
        result, value = likelihood(given, kx.StateSpace())
        assert kx.solvers.result_name(result) == name
        if name == "successful":
            np.testing.assert_allclose(value, likelihood(given, kx.Cholesky())[1], rtol=1e-5)
        else:
            assert np.isnan(value)
    with pytest.raises(kx.FailedError, match=r"too_few_harmonics.*Raise Periodic's harmonics"):
        kx.condition(model(0.3), data, kx.StateSpace())
    assert (
        "exact but for the harmonics"
        in kx.suggest_solver(model(0.3), kx.Data(np.arange(2000.0)[:, None], np.ones(2000))).reason
    )


def test_a_fit_that_ends_where_harmonics_are_too_few_says_so():
    t = np.sort(RNG.uniform(0, 10, 60))
    data = kx.Data(t[:, None], np.sign(np.sin(2 * np.pi * t)))
    model = kx.Model(1.0 * kx.Periodic(1.0, 1.0, harmonics=8), 0.05)
    fit = kx.fit(model, data, solver=kx.StateSpace())
    assert kx.solvers.result_name(fit.result) == "too_few_harmonics"
    np.testing.assert_allclose(-fit.value, kx.log_marginal_likelihood(kx.condition(fit.model, data)), atol=0.1)
    with pytest.raises(kx.FailedError, match="too_few_harmonics"):
        kx.fit(kx.Model(kx.Periodic(0.1, 1.0), 0.05), data, solver=kx.StateSpace())


# Splines


def bordered(function, t, y, new, noise):
    """The answers beside a straight line that is left free, of a matrix that is written out."""
    line, at = (np.stack([np.ones(len(u)), u], axis=1) for u in (t, new))
    whole = np.block([[function(t, t) + noise * np.eye(len(t)), line], [line.T, np.zeros((2, 2))]])
    inverse, cross = np.linalg.inv(whole), np.concatenate([function(new, t), at], axis=1)
    solved = inverse[:, : len(t)] @ y
    contrasts = np.linalg.qr(line, mode="complete")[0][:, 2:]
    projected, seen = contrasts.T @ whole[: len(t), : len(t)] @ contrasts, contrasts.T @ y
    quadratic = seen @ np.linalg.solve(projected, seen)
    return {
        "likelihood": -0.5 * (quadratic + np.linalg.slogdet(projected)[1] + len(seen) * np.log(2 * np.pi)),
        "mean": cross @ solved,
        "variance": np.diag(function(new, new) - cross @ inverse @ cross.T),
        "loo": solved[: len(t)] / np.diag(inverse)[: len(t)],
        "covariance": function(new, new) - cross @ inverse @ cross.T,
    }


SPLINES = {
    "cubic": (kx.CubicSpline(), lambda a, b: gaps(a, b) ** 3 / 12),
    "sum": (
        0.7 * kx.CubicSpline() + 0.3 * kx.Matern32(0.5),
        lambda a, b: 0.7 * gaps(a, b) ** 3 / 12 + 0.3 * matern32(0.5, gaps(a, b)),
    ),
    "selected": (kx.Select(kx.ThinPlate(2), columns=1), lambda a, b: gaps(a, b) ** 3 / 12),
}


@pytest.mark.parametrize("case", SPLINES)
def test_splines_are_those_of_the_bordered_matrix(case):
    kernel, function = SPLINES[case]
    x, new = (np.stack([np.sin(u), u], axis=1) if case == "selected" else u[:, None] for u in (T, NEW))
    mask = np.arange(N) != np.argmin(T)  # the first time of all rows does not count
    data = kx.Data(x, Y, mask=mask)
    found = eqx.filter_jit(answers)(kx.Model(kernel, NOISE), data, new)
    found["loo"] = found["loo"][mask]
    found["covariance"] = kx.covariance(kx.condition(kx.Model(kernel, NOISE), data, kx.StateSpace()), new)
    assert_same(found, bordered(function, T[mask], Y[mask], NEW, NOISE), 1e-9)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (100.0, 1000.0)])
def test_it_is_the_smoothing_spline_of_scipy(scale, offset):
    t = np.sort(RNG.uniform(0, 1, 80))
    y, inside = np.sin(6 * t) + 0.1 * RNG.normal(size=80), np.linspace(t[0], t[-1], 30)
    for noise in (1e-2, 1e-5, 1e-8):
        lam = noise * scale**3
        peer = scipy.interpolate.make_smoothing_spline(offset + scale * t, y, lam=lam)
        c = kx.condition(kx.Model(kx.CubicSpline(), lam), kx.Data((offset + scale * t)[:, None], y), kx.StateSpace())
        at = offset + scale * inside
        np.testing.assert_allclose(kx.mean(c, at[:, None]), peer(at), atol=1e-7)


def test_other_noises_of_a_spline():
    function, data = SPLINES["cubic"][1], kx.Data(T[:, None], Y)
    c = kx.condition(kx.Model(kx.CubicSpline(), 1.0), data, kx.StateSpace())
    path = kx.ridge_path(c, [0.01, 3.0])
    for i, noise in enumerate([0.01, 3.0]):
        theirs = bordered(function, T, Y, NEW, noise)
        np.testing.assert_allclose(path.loo_residuals[i], theirs["loo"], rtol=1e-8)
        np.testing.assert_allclose(path.log_marginal_likelihood[i], theirs["likelihood"], rtol=1e-9)
    line = np.stack([np.ones(N), T], axis=1)
    whole = np.block([[function(T, T) + np.eye(N), line], [line.T, np.zeros((2, 2))]])
    hat = np.eye(N) - np.linalg.inv(whole)[:N, :N]
    gcv = np.mean((Y - hat @ Y) ** 2) / (1 - np.trace(hat) / N) ** 2
    np.testing.assert_allclose(kx.gcv(c), gcv, rtol=1e-10)


def test_a_spline_is_fitted():
    """Inside the loop of a fit the passes are differentiated by JAX. The answer is that of a dense solver."""
    model, data = kx.Model(1.0 * kx.CubicSpline(), 0.1), kx.Data(T[:, None], np.sin(T) + 0.1 * Y)
    fits = [kx.fit(model, data, solver=solver, max_steps=8) for solver in (kx.StateSpace(), kx.Cholesky())]
    np.testing.assert_allclose(fits[0].value, fits[1].value, rtol=1e-6)


# What is refused


TWO = np.ones((N, 2))
REFUSED = {
    "a lengthscale for each column": (kx.Matern32([1.0, 2.0]), TWO, TypeError, "2 numbers for its lengthscale: give one"),
    "a period for each column": (kx.Periodic(1.0, [1.0, 2.0]), TWO, TypeError, "2 numbers for its period: give one"),
    "spline of two columns": (
        kx.CubicSpline() + kx.Matern12(),
        TWO,
        TypeError,
        r"CubicSpline\(\) does not have.*one column",
    ),
    "warped spline": (kx.Warp(kx.CubicSpline(), jnp.exp), T[:, None], TypeError, r"Warp\("),
    "oscillator of two columns": (SHO(), TWO, ValueError, r"one column, got 2.*kx\.Select"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_name_the_part_and_the_remedy(name):
    kernel, x, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        kx.condition(kx.Model(kernel, NOISE), kx.Data(x, Y), kx.StateSpace())


@pytest.mark.parametrize("make", [SHO, kx.Cosine, lambda period: kx.Periodic(1.0, period)])
def test_a_period_must_be_positive(make):
    for period in (0.0, -1.0):
        with pytest.raises(ValueError, match="period must be finite and positive"):
            kx.condition(kx.Model(make(period), NOISE), kx.Data(T[:, None], Y), kx.StateSpace())
