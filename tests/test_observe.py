"""Rows that observe values, slopes and averages, against finite differences and quadrature."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from tests.tables import gradient_by_differences

RNG = np.random.default_rng(3)
X = RNG.normal(size=(5, 2))
X[-1] = X[0]
ALONG = RNG.normal(size=(5, 2))
CLOUDS = RNG.normal(size=(3, 4, 2))
OF = kx.kernels.OfFunctionals

SMOOTH = {
    "rbf": 1.3 * kx.RBF(lengthscale=[0.7, 1.9]),
    "matern32": kx.Matern32(lengthscale=1.1),
    "matern52": kx.Matern52(lengthscale=[0.9, 1.4]),
    "composite": 0.5 * kx.Linear() * kx.Select(kx.RationalQuadratic(alpha=0.6), columns=1) + kx.Periodic(period=3.0),
    "warp": kx.Warp(kx.RBF(), eqx.nn.MLP(2, 2, 3, 1, activation=jnp.tanh, key=jax.random.key(1))),
    "own": kx.FeatureMap(lambda a: jnp.stack([a[0] * a[1], jnp.sin(a[0])])),
}


def mixed_rows():
    """Values, slopes and averages, some at the same points."""
    return kx.observe.together(
        kx.observe.values(X), kx.observe.slopes(X, ALONG), kx.observe.gradients(X[:2]), kx.observe.averages(CLOUDS)
    )


def by_differences(function, rows, step=1e-4):
    """What rows observe of a NumPy function of many points, by central differences; the rows' axis comes first."""
    x, weight, slope = (np.asarray(leaf) for leaf in (rows.x, rows.weight, rows.slope))
    answer = 0.0
    for q in range(x.shape[1]):
        each = function(x[:, q])
        ends = function(x[:, q] + step * slope[:, q]) - function(x[:, q] - step * slope[:, q])
        answer = answer + weight[:, q].reshape(-1, *[1] * (each.ndim - 1)) * each + ends / (2 * step)
    return answer


@pytest.mark.parametrize("name", SMOOTH)
def test_matrices_are_differences_of_those_of_the_kernel(name):
    kernel, rows = SMOOTH[name], mixed_rows()
    plain = jax.jit(lambda x, z: jax.vmap(lambda a: jax.vmap(lambda b: kernel.pair(a, b))(z))(x))

    def numpy_gram(x, z):
        return np.asarray(plain(jnp.asarray(x), jnp.asarray(z)))

    expected = by_differences(lambda x: by_differences(lambda z: numpy_gram(x, z).T, rows).T, rows)
    own, cross, diag, pair = eqx.filter_jit(
        lambda k, r: (k.gram(r, None), k.gram(r, r), k.diag(r), jax.vmap(lambda a: k.pair(a, a))(r))
    )(OF(kernel), rows)
    # Where two slopes meet at one point, a difference quotient of Matern32 is off in proportion to its step.
    np.testing.assert_allclose(own, expected, atol=5e-3 if name == "matern32" else 2e-6)
    np.testing.assert_allclose(cross, own, atol=1e-12)
    np.testing.assert_allclose(np.diag(own), diag, atol=1e-12)
    np.testing.assert_allclose(pair, diag, atol=1e-12)
    np.testing.assert_allclose(own, own.T, atol=1e-12)
    assert np.linalg.eigvalsh(own).min() > -1e-10


def test_closed_form_is_that_of_all_pairs():
    """Values and slopes of stationary kernels, in one formula; the pairs by autodiff of the kernel at two points."""
    kernel = 1.3 * kx.RBF([0.7, 1.9]) + kx.Matern32(1.1) + 0.5 * kx.Matern52([0.9, 1.4]) + kx.kernels.RationalQuadratic(1.2)
    rows = kx.observe.together(kx.observe.values(X), kx.observe.slopes(X, ALONG), kx.observe.gradients(X[:2]))
    weights = np.random.default_rng(4).normal(size=(14, 14))

    def pairs(k, x, z):
        return jax.vmap(lambda a: jax.vmap(lambda b: OF(k).pair(a, b))(z))(x)

    @eqx.filter_jit
    def both(k):
        ways = (lambda k: OF(k).gram(rows, rows), lambda k: OF(k).gram(rows, None), lambda k: pairs(k, rows, rows))
        slopes = [eqx.filter_grad(lambda k, way=way: jnp.vdot(weights, way(k)))(k) for way in ways]
        return [way(k) for way in ways], slopes, OF(k).gram(jnp.asarray(X), rows)

    grams, slopes, plain = both(kernel)
    for gram, slope in zip(grams[:2], slopes[:2], strict=True):
        np.testing.assert_allclose(gram, grams[2], rtol=0, atol=1e-12)
        for found, expected in zip(jax.tree.leaves(slope), jax.tree.leaves(slopes[2]), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(plain, grams[2][:5], rtol=0, atol=1e-12)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (kernel, rows))
    np.testing.assert_allclose(OF(single[0]).gram(single[1], None), grams[2], atol=2e-5)


def test_matern32_where_points_coincide():
    """`k = 1 - 3r²/2ℓ² + …`, so the slope has the variance 3/ℓ², whatever its direction; its derivative in ℓ is -6/ℓ³."""
    rows = kx.observe.slopes(np.zeros((1, 2)), np.array([0.6, 0.8]))
    for way in (lambda k: k.gram(rows, None)[0, 0], lambda k: k.gram(rows, rows)[0, 0]):
        value, slope = jax.value_and_grad(lambda ell, way=way: way(OF(kx.Matern32(ell))))(1.7)
        np.testing.assert_allclose(value, 3 / 1.7**2, rtol=1e-12)
        np.testing.assert_allclose(slope, -6 / 1.7**3, rtol=1e-12)


def test_slopes_and_averages_of_a_plain_posterior():
    """Slopes are differences, and averages integrals, of the posterior of the same values as plain rows; so is the mean."""
    x, y = np.linspace(-2, 2, 6)[:, None], np.sin(np.linspace(-2, 2, 6)) + 3.0
    inner = 0.8 * kx.Matern52(lengthscale=1.3)
    mean = kx.means.Linear(slope=jnp.array([0.4]), intercept=2.0)
    plain = kx.condition(kx.Model(inner, noise=0.05, mean=mean), kx.Data(x, y))
    c = kx.condition(kx.Model(OF(inner), noise=0.05, mean=mean), kx.observe.values(x, y))
    new = np.array([[-2.4], [0.3], [1.9]])
    np.testing.assert_allclose(kx.mean(c, new), kx.mean(plain, new), rtol=1e-12)

    h = 1e-4
    ends = np.concatenate([new - h, new + h])
    values, covariance = kx.mean(plain, ends), kx.covariance(plain, ends)
    predicted = kx.predict(c, kx.observe.slopes(new, [1.0]))
    np.testing.assert_allclose(predicted.mean, (values[3:] - values[:3]) / (2 * h), atol=1e-7)
    expected = (covariance[3:, 3:] + covariance[:3, :3] - covariance[3:, :3] - covariance[:3, 3:]) / (4 * h**2)
    np.testing.assert_allclose(predicted.variance, np.diag(expected), atol=5e-4)

    low, high = np.array([[-3.0], [0.2]]), np.array([[-1.0], [0.9]])
    predicted = kx.predict(c, kx.observe.averages_between(low, high, nodes=12))
    for i in range(2):
        grid = np.linspace(low[i], high[i], 401)
        shares = np.full(401, 2.0)  # Simpson's rule
        shares[1::2], shares[[0, -1]] = 4.0, 1.0
        shares /= shares.sum()
        np.testing.assert_allclose(predicted.mean[i], shares @ kx.mean(plain, grid), atol=2e-6)
        np.testing.assert_allclose(predicted.variance[i], shares @ kx.covariance(plain, grid) @ shares, atol=2e-6)


def test_means_and_trends_go_through_the_functional():
    rows = mixed_rows()
    level = kx.means.mean_values(kx.means.as_mean(2.0), rows, jnp.zeros(17))
    np.testing.assert_allclose(level, np.r_[np.full(5, 2.0), np.zeros(9), np.full(3, 2.0)], rtol=1e-12)

    def wave(a):
        return jnp.sin(a[0]) * a[1]

    expected = by_differences(lambda x: np.sin(x[:, 0]) * x[:, 1], rows)
    np.testing.assert_allclose(kx.means.mean_values(wave, rows, jnp.zeros(17)), expected, atol=1e-7)
    # A plane left free is found exactly from two values and a gradient.
    plane = kx.observe.together(
        kx.observe.values(X[:2], 1.0 + X[:2] @ [2.0, -3.0]), kx.observe.gradients(X[2:3], dy=np.array([[2.0, -3.0]]))
    )
    c = kx.condition(kx.Model(OF(kx.RBF()), noise=1e-3, trend=1), plane)
    np.testing.assert_allclose(kx.mean(c, X), 1.0 + X @ [2.0, -3.0], rtol=1e-9)
    np.testing.assert_allclose(kx.mean(c, kx.observe.gradients(X[:1])), [2.0, -3.0], rtol=1e-9)
    assert kx.sample(kx.Model(OF(kx.RBF()), noise=0.1, mean=2.0), rows, key=jax.random.key(0)).shape == (1, 17)


def data_of_all_kinds(dtype=np.float64):
    def f(x):
        return np.sin(x[:, 0]) + 0.5 * x[:, 0] * x[:, 1]

    slopes = by_differences(f, kx.observe.slopes(X[:4], ALONG[:4]))
    parts = (
        kx.observe.gradients(X[:3], f(X[:3]), np.stack([np.cos(X[:3, 0]) + 0.5 * X[:3, 1], 0.5 * X[:3, 0]], axis=1)),
        kx.observe.slopes(X[:4], ALONG[:4], slopes),
        kx.observe.averages(CLOUDS, f(CLOUDS.reshape(-1, 2)).reshape(3, 4).mean(axis=1)),
    )
    data = kx.observe.together(*parts)
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.dtype != bool else leaf, data)


def test_evidence_and_its_gradient():
    data = data_of_all_kinds()
    noise = np.where(np.asarray(data.x.is_value), 0.02, 0.3)

    def model(v):
        return kx.Model(OF(v[0] * kx.RBF(lengthscale=v[1:3])), noise=kx.observe.Noise(v[3], v[4]))

    def evidence(v):
        return kx.log_marginal_likelihood(kx.condition(model(v), data))

    start = jnp.array([1.4, 0.9, 1.6, 0.02, 0.3])
    value, gradient = jax.jit(jax.value_and_grad(evidence))(start)
    matrix = np.asarray(model(start).kernel(data.x)) + np.diag(noise)
    y = np.asarray(data.y)
    expected = -0.5 * (y @ np.linalg.solve(matrix, y) + np.linalg.slogdet(matrix)[1] + len(y) * np.log(2 * np.pi))
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    jitted = jax.jit(evidence)
    np.testing.assert_allclose(gradient, gradient_by_differences(jitted, np.asarray(start), 1e-5), rtol=1e-5, atol=1e-5)
    single = data_of_all_kinds(np.float32)
    c = kx.condition(model(start), single)
    assert c.alpha.dtype == jnp.float32
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), value, rtol=2e-4)


def test_more_rows_files_masks_and_features(tmp_path):
    data = data_of_all_kinds()
    model = kx.Model(OF(kx.RBF(lengthscale=1.2)), noise=kx.observe.Noise(0.02, 0.3))
    c = kx.condition(model, data)
    new = kx.observe.together(kx.observe.values(X), kx.observe.gradients(X[1:2]))
    expected = kx.mean(c, new)
    # Rows may come later, plain ones as values.
    first = jax.tree.map(lambda leaf: leaf[:13], data)
    rest = jax.tree.map(lambda leaf: leaf[13:], data)
    longer = kx.extend(kx.extend(kx.condition(model, first), rest.x, rest.y), X, X[:, 0])
    anew = kx.condition(model, kx.observe.together(data, kx.observe.values(X, X[:, 0])))
    np.testing.assert_allclose(kx.mean(longer, new), kx.mean(anew, new), rtol=1e-9)
    with pytest.raises(ValueError, match="condition again"):
        kx.extend(c, kx.observe.averages(np.zeros((1, 9, 2))), [0.0])
    # Rows that do not count.
    y = np.append(np.asarray(data.y), np.nan)
    rows = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.full_like(leaf[:1], jnp.nan)]), data.x)
    masked = kx.condition(model, kx.Data(rows, y, mask=np.arange(len(y)) < data.n))
    np.testing.assert_allclose(kx.mean(masked, new), expected, rtol=1e-9)
    kx.save(tmp_path / "c.kx", c)
    np.testing.assert_array_equal(kx.mean(kx.load(tmp_path / "c.kx"), new), expected)
    # Kernels with features keep them.
    waves = kx.Model(OF(kx.RandomFeatures(kx.RBF(lengthscale=1.2), 6)), noise=0.1)
    dense, low = (kx.condition(waves, data, solver) for solver in (kx.Cholesky(), kx.LowRank()))
    np.testing.assert_allclose(kx.variance(low, new), kx.variance(dense, new), rtol=1e-7)


def test_a_fit_learns_from_slopes():
    x = np.linspace(0, 6, 5)[:, None]
    data = kx.observe.gradients(x, np.sin(x[:, 0]), np.cos(x))
    fit = kx.fit(kx.Model(OF(1.0 * kx.RBF()), noise=kx.observe.Noise(1e-4, 1e-4)), data)
    new = np.linspace(0.3, 5.7, 7)[:, None]
    c = kx.condition(fit.model, data)
    assert np.abs(kx.mean(c, new) - np.sin(new[:, 0])).max() < 0.05
    assert np.abs(kx.mean(c, kx.observe.gradients(new)) - np.cos(new[:, 0])).max() < 0.1


@pytest.mark.parametrize(
    "kernel", [kx.Matern12(), kx.RBF() + 0.5 * kx.Matern12(), kx.ArcCosine(order=0), kx.NTK(depth=1)], ids=repr
)
def test_rough_kernels_have_no_slopes(kernel):
    rows = kx.observe.slopes(X, [1.0, 0.0])
    with pytest.raises(ValueError, match=r"no slope: use a smoother kernel, such as kx\.Matern32"):
        kx.condition(kx.Model(OF(kernel), noise=0.1), kx.Data(rows, np.zeros(5)))
    with pytest.raises(ValueError, match="no slope"):
        jax.jit(lambda k: OF(k).gram(rows, None))(kernel)
    # Values and averages need no slope.
    c = kx.condition(kx.Model(OF(kernel), noise=0.1), kx.observe.averages(CLOUDS, np.zeros(3)))
    assert bool(c.ok)


def test_wrong_input_is_named():
    o = kx.observe
    with pytest.raises(ValueError, match=r"directions has shape \(3,\).*one vector of 2 numbers"):
        o.slopes(X, np.ones(3))
    with pytest.raises(ValueError, match=r"directions has shape \(5, 1\)"):
        o.slopes(X, np.ones((5, 1)))
    with pytest.raises(ValueError, match=r"dy has shape \(5,\).*one gradient for each point"):
        o.gradients(X, np.zeros(5), np.zeros(5))
    with pytest.raises(ValueError, match="no dy"):
        o.gradients(X, np.zeros(5))
    with pytest.raises(ValueError, match=r"y has shape \(4,\)"):
        o.gradients(X, np.zeros(4), np.zeros((5, 2)))
    with pytest.raises(ValueError, match=r"y has shape \(4,\), but there are 5 rows"):
        o.values(X, np.zeros(4))
    with pytest.raises(ValueError, match=r"one \(n, d\) array"):
        o.values({"x": X}, np.zeros(5))
    with pytest.raises(ValueError, match=r"\(n, q, d\)"):
        o.averages(X, np.zeros(5))
    with pytest.raises(ValueError, match=r"weights has shape \(3,\)"):
        o.averages(CLOUDS, np.zeros(3), weights=np.ones(3))
    with pytest.raises(ValueError, match="high is less than low in row 1"):
        o.averages_between([[0.0], [1.0]], [[1.0], [0.0]])
    with pytest.raises(ValueError, match="are 65536 points"):
        o.averages_between(np.zeros((1, 4)), np.ones((1, 4)), nodes=16)
    with pytest.raises(TypeError, match="together needs"):
        o.together(o.values(X), o.values(X, np.zeros(5)))
    with pytest.raises(ValueError, match="columns"):
        o.together(o.values(X), o.values(X[:, :1]))
    with pytest.raises(TypeError, match=r"write kx\.kernels\.OfFunctionals\(RBF"):
        kx.condition(kx.Model(kx.RBF(), noise=0.1), o.values(X, np.zeros(5)))
    with pytest.raises(ValueError, match=r"observe\.Noise needs rows of kx\.observe"):
        kx.condition(kx.Model(kx.RBF(), noise=o.Noise(0.1, 0.1)), kx.Data(X, np.zeros(5)))
    with pytest.raises(ValueError, match="conditionally definite"):
        OF(kx.CubicSpline())
    c = kx.condition(kx.Model(OF(kx.RBF()), noise=0.1), o.values(X, np.zeros(5)))
    with pytest.raises(ValueError, match="columns"):
        kx.mean(c, o.values(X[:, :1]))


def rows_with_tasks():
    """Values and slopes of sin(x) + 3 in rows that also have a task."""
    x = np.linspace(0, 1, 3)[:, None]
    data = kx.observe.gradients(x, 3 + np.sin(x[:, 0]), np.cos(x))
    return x, kx.Data({"x": data.x, "task": np.tile([0, 0, 1, 1], 2)[:6]}, data.y)


def test_rows_inside_a_structure():
    """Means, trends and noise of rows `{"x": functionals, "task": tasks}` see the functional, too."""
    x, data = rows_with_tasks()
    kernel = kx.kernels.Coregion(2) * kx.Select(OF(kx.RBF()), key="x")
    slopes = np.arange(6) % 2 == 1
    y = np.asarray(data.y)
    cases = {
        "constant": (3.0, np.where(slopes, 0.0, 3.0)),
        "function": (lambda row: row["x"][0] ** 2, np.where(slopes, 2 * np.repeat(x, 2), np.repeat(x, 2) ** 2)),
        "per_group": (kx.means.PerGroup("task", [1.0, 2.0]), np.where(slopes, 0.0, [1, 1, 2, 2, 1, 1])),
    }
    for mean, level in cases.values():
        c = kx.condition(kx.Model(kernel, noise=kx.observe.Noise(1e-3, 0.2), mean=mean), data)
        np.testing.assert_allclose(c.residual, y - level, atol=1e-12)
        np.testing.assert_allclose(c.system.noise, np.where(slopes, 0.2, 1e-3))
    # A straight line left free is found exactly, and plain points observe values.
    line = kx.Data(data.x, jnp.asarray(np.where(slopes, 2.0, 1.0 + 2.0 * np.repeat(x, 2))))
    trend = kx.Model(kernel, noise=1e-3, trend=lambda row: jnp.stack([jnp.ones(()), row["x"][0]]))
    new = {"x": np.array([[0.3], [2.0]]), "task": np.array([0, 1])}
    np.testing.assert_allclose(kx.mean(kx.condition(trend, line), new), [1.6, 5.0], rtol=1e-9)
    # Starting values come from values, not from slopes.
    started = kx.initialise(kx.Model(kernel, noise=0.1, mean=kx.means.PerGroup("task", [0.0, 0.0])), data)
    np.testing.assert_allclose(started.mean.values, [np.mean(y[[0, 4]]), y[2]])
    # Rows may come later.
    c = kx.condition(kx.Model(kernel, noise=0.1, mean=3.0), data)
    anew = kx.Data(kx.rows.take(data.x, np.r_[:6, 0]), jnp.append(data.y, 1.0))
    longer = kx.extend(c, {"x": x[:1], "task": np.array([0])}, [1.0])
    np.testing.assert_allclose(kx.mean(longer, new), kx.mean(kx.condition(c.model, anew), new), rtol=1e-9)


def test_other_rows_than_those_learned_from_are_named():
    x, data = rows_with_tasks()
    with pytest.raises(ValueError, match=r"write kx\.kernels\.Coregion\(2\) \* kx\.Select\(kx\.kernels\.OfFunctionals"):
        OF(kx.kernels.ICM(kx.RBF(), 2))
    with pytest.raises(TypeError, match=r"for the part that holds them kx\.Select"):
        kx.condition(kx.Model(kx.kernels.ICM(kx.RBF(), 2), noise=0.1), data)
    c = kx.condition(kx.Model(kx.kernels.Coregion(2) * kx.Select(OF(kx.RBF()), key="x"), noise=0.1), data)
    with pytest.raises(ValueError, match=r"an array of shape \(3, 1\) instead of a dict with the keys \['task', 'x'\]"):
        kx.mean(c, x)
    plain = kx.condition(kx.Model(kx.RBF(), noise=0.1), kx.Data(x, x[:, 0]))
    with pytest.raises(ValueError, match=r"rows of kx\.observe where .* has plain points: condition on kx\.observe\.values"):
        kx.mean(plain, kx.observe.values(x))


def test_slopes_of_matern_of_any_order():
    """Equal to the kernels of order 3/2 and 5/2; an order without slopes is refused, and one that a fit tries is NaN."""
    rows = mixed_rows()
    for nu, known in ((1.5, kx.Matern32(1.2)), (2.5, kx.Matern52(1.2))):
        matrix = OF(kx.kernels.Matern(1.2, nu)).gram(rows, None)
        np.testing.assert_allclose(matrix, OF(known).gram(rows, None), atol=1e-11)
    data = data_of_all_kinds()

    def evidence(nu):
        model = kx.Model(OF(kx.kernels.Matern(1.2, nu)), noise=kx.observe.Noise(0.02, 0.3))
        return kx.log_marginal_likelihood(kx.condition(model, data, throw=False))

    expected = (evidence(1.8 + 1e-5) - evidence(1.8 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(evidence)(1.8), expected, rtol=1e-5)
    assert np.isnan(jax.jit(evidence)(0.9))
    with pytest.raises(ValueError, match="only for nu above 1: start with a larger"):
        evidence(0.9)


def test_the_error_of_an_average_is_estimated():
    """Nodes that are further apart than the lengthscale miss what is between them."""
    low, high = np.array([[0.0], [0.0]]), np.array([[1.0], [0.1]])
    assert kx.observe.average_error(kx.RBF(0.5), low, high).max() < 1e-10
    error = kx.observe.average_error(kx.RBF(0.02), low, high)
    assert error[0] > 0.5
    assert error[1] < 1e-2
    assert kx.observe.average_error(kx.RBF(0.02), low, high, nodes=100).max() < 1e-10
    rows = kx.observe.averages_between(low[:1], high[:1], nodes=100)
    # ∫∫ exp(-(s - t)²/2ℓ²) over the unit square.
    exact = np.sqrt(2 * np.pi) * 0.02 - 2 * 0.02**2
    np.testing.assert_allclose(OF(kx.RBF(0.02)).diag(rows), [exact], rtol=1e-10)
