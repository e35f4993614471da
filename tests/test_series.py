"""What is asked of a long series, with `kx.StateSpace()`: samples, streams, components, trends, many series."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.grams import AbstractGram
from kernax.solvers._paths import path_draws, semidefinite_root
from kernax.solvers._state_space import arranged

RNG = np.random.default_rng(0)
N = 9
T = RNG.uniform(0.0, 5.0, N)
T[4] = T[7]  # unsorted, and one time twice
X, Y = T[:, None], RNG.normal(size=N)
NEW = np.array([-1.0, 0.3, 0.3, T[2], 2.4, 7.0])[:, None]


def matern(order, lengthscale, a, b):
    """Matérn's formulas, as a function of two arrays of times."""
    r = np.sqrt(2.0 * order + 1.0) * np.abs(a[:, None] - b[None, :]) / lengthscale
    return (1.0, 1.0 + r, 1.0 + r + r**2 / 3.0)[order] * np.exp(-r)


def summed(a, b):
    return 1.3 * matern(1, 0.7, a, b) + 0.4 * matern(2, 2.0, a, b) + 0.3


SUM = 1.3 * kx.Matern32(0.7) + 0.4 * kx.Matern52(2.0) + 0.3


def posterior(noise, x, y, new, trend=False):
    """Mean and covariance of the function at new times, by NumPy; with a straight line left free if `trend`."""
    cross, matrix = summed(x, new), summed(x, x) + np.diag(np.broadcast_to(noise, x.shape))
    right = y
    if trend:
        line, at = (np.stack([np.ones(len(t)), t], axis=1) for t in (x, new))
        matrix = np.block([[matrix, line], [line.T, np.zeros((2, 2))]])
        cross, right = np.concatenate([cross, at.T]), np.append(y, np.zeros(2))
    return cross.T @ np.linalg.solve(matrix, right), summed(new, new) - cross.T @ np.linalg.solve(matrix, cross)


def assert_moments(draws, mean, covariance):
    """That the first two moments of rows of draws are these, up to five standard errors."""
    centred = draws - mean
    products = centred[:, :, None] * centred[:, None, :]
    for values, expected in ((centred, 0.0), (products, covariance)):
        error = np.std(values, axis=0) / np.sqrt(len(draws))
        assert np.all(np.abs(np.mean(values, axis=0) - expected) < 5 * error + 1e-9)


def test_roots_of_shocks_are_exact_for_all_steps():
    (part, *_) = SUM.state_space().parts
    _, shocks = part.transition(jnp.asarray([0.0, 1e-9, 1e-3, 0.5, 1e4]))
    shocks = shocks[:, 0]
    roots = jax.jit(semidefinite_root)(shocks)
    sizes = np.sqrt(np.diagonal(shocks, axis1=1, axis2=2))
    scale = np.where(sizes > 0, sizes, 1.0)
    difference = (roots @ jnp.swapaxes(roots, 1, 2) - shocks) / scale[:, :, None] / scale[:, None, :]
    np.testing.assert_allclose(difference, 0.0, atol=1e-13)
    assert not np.any(roots[0])
    slope = jax.jit(jax.jacfwd(lambda step: semidefinite_root(part.transition(step)[1])))(jnp.asarray(0.0))
    assert np.all(np.isfinite(slope))


def test_draws_of_the_prior_of_a_series():
    draws = np.asarray(path_draws(arranged(SUM, jnp.asarray(X)), jnp.asarray(X), jnp.float64, jax.random.key(0), 40_000)).T
    np.testing.assert_array_equal(draws[:, 4], draws[:, 7])
    assert_moments(draws, np.zeros(N), summed(T, T))


@pytest.mark.parametrize("trend", [None, 1])
def test_draws_of_the_posterior_of_a_series(trend):
    """Joint over all rows, in which two are equal, and one is a training row; with masked rows and two outputs."""
    counts, noise = np.arange(N) != 2, np.linspace(0.05, 0.5, N)
    targets = np.stack([Y, 2.0 - Y], axis=1)
    c = kx.condition(kx.Model(SUM, noise, trend=trend), kx.Data(X, targets, mask=counts), kx.StateSpace())
    draws = np.asarray(kx.sample(c, NEW, key=jax.random.key(1), num_samples=20_000))
    assert draws.shape == (20_000, len(NEW), 2)
    for output in range(2):
        mean, covariance = posterior(noise[counts], T[counts], targets[counts, output], NEW[:, 0], trend is not None)
        assert_moments(draws[:, :, output], mean, covariance)
    assert np.abs(np.mean((draws - draws.mean(0)).prod(axis=2))) < 0.02  # outputs are drawn independently
    np.testing.assert_allclose(draws[:, 1], draws[:, 2], atol=1e-9)


def test_many_new_times_need_no_matrix():
    n = 20_000
    t = np.linspace(0.0, 100.0, n)
    c = kx.condition(kx.Model(1.0 * kx.Matern32(2.0), 0.01), kx.Data(t[:, None], np.sin(t)), kx.StateSpace())
    new = np.linspace(-1.0, 101.0, n + 1)[:, None]  # as a matrix, 3.2 GB
    drawn = kx.sample(c, new, key=jax.random.key(0), noisy=True)
    assert drawn.shape == (1, n + 1)
    scores = (drawn[0] - kx.mean(c, new)) / jnp.sqrt(kx.variance(c, new, noisy=True))
    assert abs(float(jnp.mean(scores**2)) - 1.0) < 0.05


def test_draws_of_a_model_by_its_state_space():
    model = kx.Model(SUM, 0.2, mean=lambda point: 3.0 * point[0])
    draws = np.asarray(kx.sample(model, X, key=jax.random.key(2), num_samples=20_000, noisy=True, solver=kx.StateSpace()))
    assert_moments(draws, 3.0 * T, summed(T, T) + 0.2 * np.eye(N))


def test_a_solver_that_does_not_draw_is_refused():
    with pytest.raises(TypeError, match=r"Cholesky\(.*does not draw from a model.*StateSpace"):
        kx.sample(kx.Model(SUM, 0.1), X, key=jax.random.key(0), solver=kx.Cholesky())
    c = kx.condition(kx.Model(SUM, 0.1), kx.Data(X, Y), kx.StateSpace())
    with pytest.raises(ValueError, match="draws with its own solver"):
        kx.sample(c, X, key=jax.random.key(0), solver=kx.StateSpace())


@pytest.mark.parametrize("trend", [None, 1])
def test_rows_that_are_added_anywhere(trend):
    c = kx.condition(kx.Model(SUM, 0.2, trend=trend), kx.Data(X[:6], Y[:6]), kx.StateSpace())
    mean, covariance = posterior(0.2, T, Y, NEW[:, 0], trend is not None)
    found = kx.predict(kx.extend(c, X[6:], Y[6:]), NEW)
    np.testing.assert_allclose(found.mean, mean, atol=1e-9)
    np.testing.assert_allclose(found.variance, np.diag(covariance), atol=1e-9)


@pytest.mark.parametrize("trend", [False, True])
def test_components_of_a_series(trend):
    """Mean and variance of each summand, with a masked row, two outputs and noise per row, against NumPy."""
    counts, noise = np.arange(N) != 2, np.linspace(0.05, 0.5, N)
    targets = np.stack([Y, 2.0 - Y], axis=1)
    model = kx.Model(SUM, noise, trend=1 if trend else None, mean=kx.means.Constant(0.5))
    found = kx.components(kx.condition(model, kx.Data(X, targets, mask=counts), kx.StateSpace()), NEW)
    t, new = T[counts], NEW[:, 0]
    matrix, values = summed(t, t) + np.diag(noise[counts]), targets[counts] - 0.5
    if trend:
        line = np.stack([np.ones(len(t)), t], axis=1)
        matrix, values = np.block([[matrix, line], [line.T, np.zeros((2, 2))]]), np.concatenate([values, np.zeros((2, 2))])
    inverse = np.linalg.inv(matrix)[:, : len(t)][: len(t)]
    summands = (
        lambda a, b: 1.3 * matern(1, 0.7, a, b),
        lambda a, b: 0.4 * matern(2, 2.0, a, b),
        lambda a, b: np.full((len(a), len(b)), 0.3),
    )
    for i, part in enumerate(summands):
        cross = part(new, t)
        np.testing.assert_allclose(found.mean[i], cross @ inverse @ values[: len(t)], atol=1e-9)
        variance = np.diag(part(new, new) - cross @ inverse @ cross.T)
        np.testing.assert_allclose(found.variance[i], variance, atol=1e-9)
    whole = [posterior(noise[counts], t, targets[counts, j] - 0.5, new, trend)[0] + 0.5 for j in range(2)]
    np.testing.assert_allclose(np.sum(found.mean, axis=0) + found.rest, np.stack(whole, axis=1), atol=1e-9)


def test_components_of_a_series_need_no_cross_matrices(monkeypatch):
    def refused(*_):
        raise AssertionError("a cross matrix was made")

    monkeypatch.setattr(AbstractGram, "cross", refused)
    c = kx.condition(kx.Model(SUM, 0.1), kx.Data(X, Y), kx.StateSpace())
    assert kx.components(c, NEW[:2]).mean.shape == (3, 2)


@pytest.mark.parametrize("solver", [kx.StateSpace(), kx.Cholesky(), kx.Eigh()], ids=repr)
def test_the_polynomials_of_a_spline_are_part_of_its_component(solver):
    """By NumPy: the bordered matrix, with the polynomials beside the spline's own column."""
    model = kx.Model(0.3 * kx.Matern32(1.0) + 0.5 * kx.CubicSpline(), 0.1, mean=kx.means.Constant(0.5))
    found = kx.components(kx.condition(model, kx.Data(X, Y), solver), NEW)
    t, new = T, NEW[:, 0]
    parts = (
        lambda a, b: 0.3 * matern(1, 1.0, a, b),
        lambda a, b: 0.5 * np.abs(a[:, None] - b[None, :]) ** 3 / 12,
    )
    line, at = (np.stack([np.ones(len(u)), u], axis=1) for u in (t, new))
    matrix = sum(part(t, t) for part in parts) + 0.1 * np.eye(N)
    inverse = np.linalg.inv(np.block([[matrix, line], [line.T, np.zeros((2, 2))]]))
    for i, (part, beside) in enumerate(zip(parts, (np.zeros_like(at), at), strict=True)):
        seen = np.concatenate([part(new, t), beside], axis=1)
        np.testing.assert_allclose(found.mean[i], seen @ inverse[:, :N] @ (Y - 0.5), atol=1e-9)
        variance = np.diag(part(new, new) - seen @ inverse @ seen.T)
        np.testing.assert_allclose(found.variance[i], variance, atol=1e-9)
    np.testing.assert_allclose(found.rest, 0.5, atol=1e-9)


def test_draws_of_a_spline_need_no_matrix():
    """The moments of draws by NumPy, before the first row, too; and more new times than a matrix could have."""
    c = kx.condition(kx.Model(0.5 * kx.CubicSpline() + 0.3 * kx.Matern32(1.0), 0.1), kx.Data(X, Y), kx.StateSpace())
    draws = np.asarray(kx.sample(c, NEW, key=jax.random.key(4), num_samples=20_000))
    dense = kx.condition(c.model, c.data, kx.Cholesky())
    assert_moments(draws, np.asarray(kx.mean(dense, NEW)), np.asarray(kx.covariance(dense, NEW)))
    np.testing.assert_allclose(draws[:, 1], draws[:, 2], atol=1e-9)
    many = kx.sample(c, np.linspace(-1.0, 6.0, 100_000)[:, None], key=jax.random.key(5))  # as a matrix, 80 GB
    assert many.shape == (1, 100_000)
    assert np.all(np.isfinite(many))


def test_a_long_series_starts_with_the_lengthscale_of_the_largest_likelihood():
    """One of three, by NumPy. From the longest one, the fit of these 60 cycles would take all for noise."""
    rng = np.random.default_rng(2)
    t = rng.uniform(0.0, 400.0, 400)
    y = np.sin(t) + 0.3 * rng.normal(size=400)
    data, model = kx.Data(t[:, None], y), kx.Model(1.0 * kx.Matern52(), 0.1)
    plain, found = kx.initialise(model, data), kx.initialise(model, data, solver=kx.StateSpace())
    longest, variance, noise = (float(v) for v in (plain.kernel.kernel.lengthscale, plain.kernel.variance, plain.noise))

    def likelihood(lengthscale):
        matrix = variance * matern(2, lengthscale, t, t) + noise * np.eye(400)
        return -0.5 * (y @ np.linalg.solve(matrix, y) + np.linalg.slogdet(matrix)[1])

    best = max((longest / 4**k for k in range(3)), key=likelihood)
    assert best < longest
    np.testing.assert_allclose(found.kernel.kernel.lengthscale, best, rtol=1e-12)
    np.testing.assert_allclose((found.kernel.variance, found.noise), (variance, noise), rtol=1e-12)


# Streams.

LATER = np.array([5.0, 5.0, 5.7, 6.1, 9.0])
AHEAD = np.array([9.0, 9.4, 30.0, 9.1])[:, None]


def test_a_stream_predicts_like_conditioning_on_all_rows():
    """Rows one by one in a compiled loop, with masked rows, two outputs and a free line, against NumPy."""
    counts, targets = np.arange(N) != 2, np.stack([Y, 2.0 - Y], axis=1)
    model = kx.Model(SUM, 0.2, trend=1)
    start = kx.posterior.stream(kx.condition(model, kx.Data(X, targets, mask=counts), kx.StateSpace()))
    new = np.stack([np.sin(LATER), LATER], axis=1)

    @jax.jit
    def followed(start):
        def step(s, row):
            t, y = row
            before = s.predict(t[None, None], noisy=True)
            return s.update(t[None, None], y[None]), before

        s, (means, variances, *_) = jax.lax.scan(step, start, (LATER, new))
        return s, means[:, 0], variances[:, 0], s.predict(AHEAD)

    s, means, variances, ahead = followed(start)
    for output in range(2):
        for i in range(len(LATER) + 1):
            t = np.append(T[counts], LATER[:i])
            y = np.append(targets[counts, output], new[:i, output])
            places = LATER[i : i + 1] if i < len(LATER) else AHEAD[:, 0]
            mean, covariance = posterior(0.2, t, y, places, trend=True)
            ours = (means[i, output], variances[i] - 0.2) if i < len(LATER) else (ahead.mean[:, output], ahead.variance)
            np.testing.assert_allclose(ours[0], mean.squeeze(), atol=1e-9)
            np.testing.assert_allclose(ours[1], np.diag(covariance).squeeze(), atol=1e-9)
    assert s.time == 9.0
    assert "at time 9" in repr(s)


def test_a_stream_with_noise_per_row_and_a_mean_is_saved_and_loaded(tmp_path):
    noise, later = np.linspace(0.05, 0.5, N), np.linspace(0.3, 0.4, 5)
    model = kx.Model(SUM, noise, mean=kx.means.Linear(jnp.ones(1)))
    s = kx.posterior.stream(kx.condition(model, kx.Data(X, Y)))  # by Cholesky
    kx.save(tmp_path / "s.kx", s)
    s = kx.load(tmp_path / "s.kx").update(LATER[:, None], np.cos(LATER), noise=later)
    t, y = np.append(T, LATER), np.append(Y, np.cos(LATER))
    mean, covariance = posterior(np.append(noise, later), t, y - t, AHEAD[:, 0])
    found = s.predict(AHEAD)
    np.testing.assert_allclose(found.mean, AHEAD[:, 0] + mean, atol=1e-9)
    np.testing.assert_allclose(found.variance, np.diag(covariance), atol=1e-9)
    assert found.result == kx.Result.successful


def test_what_a_stream_refuses():
    s = kx.posterior.stream(kx.condition(kx.Model(SUM, 0.1), kx.Data(X, Y)))
    early, mixed = np.array([[1.0]]), np.array([[8.0], [7.0]])
    with pytest.raises(ValueError, match=r"continues after its last time, .* has the time 1: condition with kx\.StateSpace"):
        s.predict(early)
    with pytest.raises(ValueError, match="in the order of time: sort them"):
        s.update(mixed, np.zeros(2))
    with pytest.raises(ValueError, match="noise="):
        s.update(mixed[:1], np.zeros(1), noise=0.1)
    with pytest.raises(ValueError, match="targets of shape"):
        s.update(mixed[:1], np.zeros((1, 2)))
    with pytest.raises(TypeError, match="which RBF does not have"):
        kx.posterior.stream(kx.condition(kx.Model(kx.RBF(), 0.1), kx.Data(X, Y)))
    # Under tracing nothing raises: what goes back in time is NaN, and so is what follows.
    after = jax.jit(lambda s, x: s.update(x, jnp.zeros(1)).predict(jnp.array([[9.0]])))(s, early)
    assert np.isnan(after.mean[0])
    assert after.result == kx.Result.nonfinite


def test_a_stream_without_noise_needs_a_new_time_for_every_row():
    t, kernel = np.arange(6.0), kx.Matern32(2.0)
    c = kx.condition(kx.Model(kernel, 0.0), kx.Data(t[:, None], np.sin(t)), kx.StateSpace())
    s = kx.posterior.stream(c)
    for known, last in ((s, 5.0), (s.update([[5.3], [6.1]], [0.2, 0.1]), 6.1)):
        for other in (0.0, 1.0):
            again = known.update([[last]], [other])
            assert kx.solvers.result_name(again.result) == "not_positive_definite"
            after = again.update([[9.0]], [0.0]).predict([[10.0]])
            assert kx.solvers.result_name(after.result) == "not_positive_definite"
            assert np.isnan(after.mean[0])
    # Steps may be tiny: what is new is then small, too.
    tiny = s.update(5.0 + 1e-5 * np.arange(1.0, 6.0)[:, None], np.sin(5.0 + 1e-5 * np.arange(1.0, 6.0)))
    assert tiny.result == kx.Result.successful
    # With noise a time may be repeated.
    noisy = kx.posterior.stream(kx.recondition(c, noise=0.1)).update([[5.0]], [1.0])
    rows = kx.Data(np.append(t, 5.0)[:, None], np.append(np.sin(t), 1.0))
    mean = kx.mean(kx.condition(kx.Model(kernel, 0.1), rows), [[7.0]])
    np.testing.assert_allclose(noisy.predict([[7.0]]).mean, mean, atol=1e-10)


def test_a_stream_starts_from_the_state_that_is_known(monkeypatch):
    """The steps of all rows are those of the System: none are written out as matrices of the whole state."""
    c = kx.condition(kx.Model(SUM, 0.2, trend=1), kx.Data(X, Y), kx.StateSpace())
    expected = kx.predict(c, AHEAD)
    monkeypatch.setattr("kernax.posterior._stream._steps", None)
    s = kx.posterior.stream(c)
    monkeypatch.undo()
    np.testing.assert_allclose(s.predict(AHEAD).mean, expected.mean, atol=1e-10)
    np.testing.assert_allclose(s.predict(AHEAD).variance, expected.variance, atol=1e-10)
