"""Orthogonal additive kernels, Sobol indices, and the parts of a model in sentences."""

import itertools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from sklearn.gaussian_process import kernels as sk

import kernax as kx
from kernax import kernels
from kernax.reports import describe
from tests.tables import gradient_by_differences

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 3))
Y = np.sin(X[:, 0]) + 0.5 * X[:, 1] ** 2 + X[:, 0] * X[:, 2] + 0.1 * rng.normal(size=30)
NORMAL = kernels.NormalInputs(0.4, 1.3)
NODES = (np.array([-1.0, 0.2, 0.9, 1.4]), np.array([0.1, 0.4, 0.3, 0.2]))
POINTS = kernels.PointInputs(*NODES)


matrix = eqx.filter_jit(lambda kernel, x, z: kernel(x, z))


def constrained(kernel, x, z, nodes=NODES):
    """`k - m mᵀ / V` in plain NumPy, for a kernel of scikit-learn and weighted points."""
    points, weights = nodes[0][:, None], nodes[1]
    left, right = kernel(x, points) @ weights, kernel(z, points) @ weights
    return kernel(x, z) - np.outer(left, right) / (weights @ kernel(points) @ weights)


@pytest.mark.parametrize("lengthscale", [0.2, 1.1, 40.0])
def test_the_part_of_an_rbf_with_mean_0_is_its_integral(lengthscale):
    x, z = np.array([[-1.2], [0.4], [2.7]]), np.array([[0.4], [-3.0]])
    places = 0.4 + 1.3 * np.linspace(-9, 9, 6001)
    density = scipy.stats.norm.pdf(places, 0.4, 1.3)

    def k(a, b):
        return np.exp(-0.5 * (a - b) ** 2 / lengthscale**2)

    def mean(a):
        return scipy.integrate.trapezoid(k(a, places) * density, places)

    variance = scipy.integrate.trapezoid([mean(place) for place in places] * density, places)
    expected = [[k(a, b) - mean(a) * mean(b) / variance for b in z[:, 0]] for a in x[:, 0]]
    kernel = kernels.ZeroMean(kx.RBF(lengthscale), NORMAL)
    np.testing.assert_allclose(matrix(kernel, x, z), expected, rtol=1e-9, atol=1e-12)
    # In float32 no digit is lost, although k and m m/V agree in five digits for the longest lengthscale.
    short, wide = x.astype(np.float32), x.astype(np.float32).astype(float)
    np.testing.assert_allclose(matrix(kernel, short, None), matrix(kernel, wide, None), rtol=3e-5, atol=1e-9)


def test_the_part_with_mean_0_over_weighted_points():
    x, z = X[:6, :1], X[6:10, 1:2]
    kernel = kernels.ZeroMean(kx.Matern52(0.8), POINTS)
    np.testing.assert_allclose(matrix(kernel, x, z), constrained(sk.Matern(0.8, nu=2.5), x, z), rtol=1e-10, atol=1e-14)
    # Functions with mean 0 already stay as they are; a constant makes lines about the mean.
    even = kernels.PointInputs([-1.0, 0.0, 1.0])
    np.testing.assert_allclose(matrix(kernels.ZeroMean(kx.Linear(), even), x, z), x @ z.T, rtol=1e-12)
    line = matrix(kernels.ZeroMean(kx.Linear() + 2.0, POINTS), x, z)
    centre = NODES[0] @ NODES[1]
    np.testing.assert_allclose(line, 2.0 * (x - centre) @ (z - centre).T / (2.0 + centre**2), rtol=1e-9, atol=1e-12)


def test_orthogonal_additive_is_the_sum_over_subsets_of_columns():
    lengths, variance = [0.6, 0.9, 1.7], [0.7, 0.4, 0.2, 0.3]
    kernel = kernels.OrthogonalAdditive([kx.RBF(length) for length in lengths], 3, inputs=POINTS, variance=variance)
    x, z = X[:6], X[6:10]
    single = [constrained(sk.RBF(length), x[:, k : k + 1], z[:, k : k + 1]) for k, length in enumerate(lengths)]
    expected = {
        subset: variance[order] * np.prod([np.ones((6, 4)), *(single[k] for k in subset)], axis=0)
        for order in range(4)
        for subset in itertools.combinations(range(3), order)
    }
    np.testing.assert_allclose(matrix(kernel, x, z), sum(expected.values()), rtol=1e-10)
    assert kernel.subsets == tuple(expected)
    np.testing.assert_allclose(matrix(kernel.component(2, 0), x, z), expected[0, 2], rtol=1e-9, atol=1e-14)
    c = kx.condition(kx.Model(kernel, noise=0.1), kx.Data(X, Y))
    parts = kx.components(c, z)
    assert len(set(parts.names)) == len(expected)
    np.testing.assert_allclose(parts.mean.sum(axis=0), kx.mean(c, z), rtol=1e-9)
    effect = eqx.filter_jit(lambda rows: kernel.component(0, 2)(rows, X) @ c.alpha)
    np.testing.assert_allclose(parts.mean[kernel.subsets.index((0, 2))], effect(z), rtol=1e-9, atol=1e-12)
    # Along each of its columns, an effect has the mean 0.
    line = np.repeat(z[:1], 4, axis=0)
    line[:, 2] = NODES[0]
    np.testing.assert_allclose(NODES[1] @ effect(line), 0.0, atol=1e-11)
    started = eqx.filter_jit(lambda x: kernel.initialised(x, jnp.ones(30, bool), jnp.asarray(2.0)).diag(x))
    np.testing.assert_allclose(np.mean(started(jnp.asarray(X))), 4.0, rtol=1e-9)


def test_a_fit_is_saved_with_its_distributions(tmp_path):
    kernel = kernels.OrthogonalAdditive(kx.RBF(), 2, columns=3, inputs=[NORMAL, POINTS, NORMAL])
    c = kx.condition(kx.initialise(kx.Model(kernel, noise=0.1), kx.Data(X, Y)), kx.Data(X, Y))
    kx.save(tmp_path / "model.kx", c)
    loaded = kx.load(tmp_path / "model.kx")
    np.testing.assert_array_equal(kx.mean(loaded, X[:4]), kx.mean(c, X[:4]))
    assert loaded.model.kernel.kernels[1].kernel.inputs == POINTS


def test_evidence_and_its_gradient_with_repeated_rows():
    rows = np.concatenate([X[:8], X[:2]])

    def value(v, data):
        own = [kx.RBF(v[0]), kx.Matern52(v[1]), kx.RBF(30.0 * v[0])]
        kernel = kernels.OrthogonalAdditive(own, 2, inputs=[NORMAL, NORMAL, POINTS], variance=v[2:5])
        return kx.log_marginal_likelihood(kx.condition(kx.Model(kernel, noise=v[5]), data))

    vector, data = np.array([0.8, 1.2, 0.5, 0.7, 0.3, 0.2]), kx.Data(rows, Y[:10])
    program = jax.jit(jax.value_and_grad(lambda v: value(v, data)))
    gradient = program(vector)[1]
    np.testing.assert_allclose(gradient, gradient_by_differences(lambda v: program(v)[0], vector), rtol=1e-6, atol=1e-7)


def brute_force(function, inputs):
    """Variance, first-order and total indices by sums over all combinations of each column's points."""
    nodes = [part.nodes() for part in inputs]
    rows = np.array(list(itertools.product(*(points for points, _ in nodes))))
    values = np.asarray(function(rows)).reshape([len(points) for points, _ in nodes])
    weights = [weight for _, weight in nodes]

    def averaged(values, axes):
        for axis in sorted(axes, reverse=True):
            values = np.tensordot(values, weights[axis], axes=(axis, 0))
        return values

    def spread(known):
        other = [k for k in range(len(nodes)) if k not in known]
        inner = averaged(values, other)
        for k in reversed(range(len(known))):  # axes that are left, in order
            inner = np.tensordot((inner if k < len(known) - 1 else inner**2), weights[known[k]], axes=(k, 0))
        return inner - averaged(values, range(len(nodes))) ** 2

    every = list(range(len(nodes)))
    variance = spread(every)
    first = np.array([spread([k]) for k in every]) / variance
    return variance, first, 1 - np.array([spread([j for j in every if j != k]) for k in every]) / variance


GRID = [kernels.PointInputs(rng.normal(size=6), rng.uniform(0.2, 1.0, size=6)) for _ in range(3)]
MODELS = {
    "orthogonal": kx.Model(kernels.OrthogonalAdditive(kx.Matern52(1.2), 3, columns=3, inputs=GRID), noise=0.05),
    "rbf": kx.Model(2.0 * kx.RBF([0.9, 1.3, 2.0]), noise=0.05, mean=kx.means.Constant(3.0)),
    "products": kx.Model(
        1.0 * kx.RBF([0.9, 1.3, 2.0])
        + 0.7 * kx.Select(kx.Matern32(1.1), columns=1) * kx.Select(kx.Periodic(period=2.0), columns=2)
        + 0.5,
        noise=0.05,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_indices_in_closed_form_are_those_of_all_combinations(name):
    c = kx.condition(MODELS[name], kx.Data(X, Y, mask=np.arange(30) != 4))
    found = kx.sensitivity(c, None if name == "orthogonal" else GRID, num_samples=0)
    variance, first, total = brute_force(lambda rows: kx.mean(c, rows), GRID)
    assert found.method == "closed form"
    assert found.first_interval is None
    np.testing.assert_allclose(found.variance, variance, rtol=1e-8)
    np.testing.assert_allclose(found.first, first, atol=1e-8)
    np.testing.assert_allclose(found.total, total, atol=1e-8)


@pytest.mark.parametrize("lengthscales", [(0.15, 0.4), (1.6, 25.0)])
def test_indices_over_normal_inputs(lengthscales):
    """Short lengthscales have a closed form, and long ones are integrated by points."""
    x, inputs = X[:, :2], (kernels.NormalInputs(0.1, 1.0), kernels.NormalInputs(-0.3, 0.8))
    fine = [(part.mean + part.scale * np.linspace(-8, 8, 201)) for part in inputs]
    fine = [kernels.PointInputs(p, scipy.stats.norm.pdf(p, i.mean, i.scale)) for p, i in zip(fine, inputs, strict=True)]
    for kernel in (
        kx.RBF(lengthscales),
        kernels.OrthogonalAdditive([kx.RBF(length) for length in lengthscales], 2, inputs=inputs),
    ):
        c = kx.condition(kx.Model(kernel, noise=0.1), kx.Data(x, Y))
        found = kx.sensitivity(c, inputs, num_samples=0)
        variance, first, total = brute_force(lambda rows, c=c: kx.mean(c, rows), fine)
        assert found.method == "closed form"
        np.testing.assert_allclose(found.variance, variance, rtol=1e-7)
        np.testing.assert_allclose([found.first, found.total], [first, total], atol=1e-7)


def test_the_ishigami_function():
    """Its indices are known. 200 values of it are enough for two digits."""
    x = scipy.stats.qmc.scale(scipy.stats.qmc.Sobol(3, rng=1).random(256), -np.pi, np.pi)
    y = np.sin(x[:, 0]) + 7.0 * np.sin(x[:, 1]) ** 2 + 0.1 * x[:, 2] ** 4 * np.sin(x[:, 0])
    inputs = kernels.uniform_inputs(-np.pi, np.pi)
    kernel = kernels.OrthogonalAdditive(kx.RBF(1.5), 2, columns=3, inputs=inputs, variance=[20.0, 20.0, 20.0])
    found = kx.sensitivity(kx.condition(kx.Model(kernel, noise=1e-3), kx.Data(x, y)), columns=["a", "b", "c"])
    q = 0.1 * np.pi**4 / 5
    alone, both = [0.5 * (1 + q) ** 2, 49 / 8, 0.0], 0.01 * np.pi**8 * (1 / 18 - 1 / 50)
    whole = sum(alone) + both
    np.testing.assert_allclose(found.variance, whole, rtol=0.01)
    np.testing.assert_allclose(found.first, np.array(alone) / whole, atol=0.01)
    np.testing.assert_allclose(found.total, np.add(alone, [both, 0, both]) / whole, atol=0.01)
    assert found.total_interval is not None
    assert (found.total_interval.lower <= found.total).all()
    assert (found.total_interval.upper >= found.total).all()
    assert str(found).splitlines()[1].startswith("a")


def test_averages_and_intervals_are_near_those_of_all_combinations():
    """A kernel without a closed form. Functions drawn at all combinations of points have exact indices of their own."""
    c = kx.condition(kx.Model(1.0 * kx.Matern52([1.0, 1.5, 2.0]), noise=0.3), kx.Data(X, Y))
    found = kx.sensitivity(c, GRID)
    assert found.method == "quasi-Monte Carlo"
    variance, first, total = brute_force(lambda rows: kx.mean(c, rows), GRID)
    np.testing.assert_allclose(found.variance, variance, rtol=0.02)
    np.testing.assert_allclose([found.first, found.total], [first, total], atol=0.02)
    rows = np.array(list(itertools.product(*(part.nodes()[0] for part in GRID))))
    mean, covariance = np.asarray(kx.mean(c, rows)), np.asarray(kx.covariance(c, rows))
    draws = np.random.default_rng(1).multivariate_normal(mean, covariance, size=300, method="eigh")
    indices = np.array([brute_force(lambda rows, draw=draw: draw, GRID)[1:] for draw in draws])
    lower, upper = np.quantile(indices, [0.025, 0.975], axis=0)
    for ours, exact in ((found.first_interval, [lower[0], upper[0]]), (found.total_interval, [lower[1], upper[1]])):
        assert np.sqrt(np.mean((np.array(ours) - exact) ** 2)) < 0.04


def test_several_outputs_in_float32_and_a_function_that_does_not_vary():
    y = np.stack([Y, X[:, 1], np.zeros(30)], axis=1).astype(np.float32)
    c = kx.condition(kx.Model(1.0 * kx.RBF([1.0, 1.0, 1.5]), noise=0.3), kx.Data(X.astype(np.float32), y))
    found = kx.sensitivity(c, kernels.NormalInputs(), num_samples=0)
    wide = kx.condition(kx.Model(1.0 * kx.RBF([1.0, 1.0, 1.5]), noise=0.3), kx.Data(X, y.astype(float)))
    expected = kx.sensitivity(wide, kernels.NormalInputs(), num_samples=0)
    assert found.first.dtype == np.float32
    assert found.first.shape == (3, 3)
    np.testing.assert_allclose([found.first, found.total], [expected.first, expected.total], atol=2e-3)
    np.testing.assert_array_equal(found.first[:, 2], 0.0)
    assert "(output 2)" in str(found)

    # Without intervals it is part of a program, and differentiable.
    def index(v):
        model = kx.Model(1.0 * kx.RBF(v), noise=0.3)
        return kx.sensitivity(kx.condition(model, wide.data), NORMAL, num_samples=0).first[0, 0]

    program, start = jax.jit(jax.value_and_grad(index)), np.array([1.0, 1.2, 1.5])
    slope = gradient_by_differences(lambda v: program(v)[0], start)
    np.testing.assert_allclose(program(start)[1], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: kernels.NormalInputs(0.0, -1.0), "positive scale"),
        (lambda: kernels.PointInputs([1.0, np.nan]), "finite points"),
        (lambda: kernels.PointInputs([1.0, 2.0], [0.0, 0.0]), "one that is positive"),
        (lambda: kernels.uniform_inputs(1.0, 1.0), "the lower one first"),
        (lambda: kernels.ZeroMean(kx.RBF(), NORMAL)(X), "of one column"),
        (lambda: kernels.OrthogonalAdditive(kx.RBF(), 3, columns=2), "order of at most 2"),
        (lambda: kernels.OrthogonalAdditive(kx.RBF(), 1, columns=2, variance=[1.0]), "from 0 on"),
        (lambda: kernels.OrthogonalAdditive(kx.RBF(), 2, columns=2, inputs=[NORMAL] * 3), "give one for each"),
        (lambda: kernels.OrthogonalAdditive(kx.RBF(), 2, columns=2, inputs=X), "rows of 2 columns"),
        (lambda: kernels.OrthogonalAdditive(kx.RBF(), 2, columns=2)(X), "inputs have 3"),
        (lambda: kernels.OrthogonalAdditive(kx.RBF(), 2, columns=3).component(0, 0), "no effect"),
        (lambda: kx.sensitivity(CONDITIONED, level=1.5), "between 0 and 1"),
        (lambda: kx.sensitivity(CONDITIONED, num_points=1000), "power of two"),
        (lambda: kx.sensitivity(CONDITIONED, columns=["a"]), "a name to each"),
        (lambda: kx.sensitivity(CONDITIONED, X[:, :2]), "rows of 3 columns"),
    ],
)
def test_bad_input_is_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()


CONDITIONED = kx.condition(kx.Model(kx.RBF(), noise=0.1), kx.Data(X, Y))


def shares_in(sentences):
    return [int(found[1]) for found in (re.search(r"(-?\d+) %", sentence) for sentence in sentences) if found]


def test_sentences_divide_the_variance_as_dense_formulas_do():
    t = np.linspace(0, 24, 120)[:, None]
    y = 0.02 * (t[:, 0] - 12) ** 2 + 0.6 * np.sin(2 * np.pi * t[:, 0]) + 0.2 * np.random.default_rng(2).normal(size=120)
    model = kx.Model(4.0 * kx.RBF(12.0) + 1.0 * kx.Periodic(1.0, 1.0) * kx.RBF(50.0), noise=0.04)
    said = describe(kx.condition(model, kx.Data(t, y)), columns=["time (years)"], target="level")
    r = t - t.T
    trend, season = 4.0 * np.exp(-0.5 * (r / 12) ** 2), np.exp(-2 * np.sin(np.pi * r) ** 2 - 0.5 * (r / 50) ** 2)
    alpha = np.linalg.solve(trend + season + 0.04 * np.eye(120), y)
    shares = [np.cov(k @ alpha, y, ddof=0)[0, 1] / np.var(y) for k in (trend, season)]
    assert shares[0] > shares[1] > 0.1
    assert (
        said[0] == f"A smooth trend with a time scale of 12 years explains {100 * shares[0]:.0f} % of the variance of level."
    )
    repeats = "A pattern that repeats every 1 year and changes over a time scale of 50 years"
    assert said[1] == f"{repeats} explains {100 * shares[1]:.0f} % of the variance of level."
    assert said[2].startswith(f"{100 * (1 - sum(shares)):.0f} % is left")
    assert len(said) == 3
    # The known parts: their variances, and that of the noise.
    known = np.array([np.var(0.02 * (t - 12) ** 2), 0.18, 0.04])
    np.testing.assert_allclose(shares_in(said), 100 * known / known.sum(), atol=5)


def test_sentences_say_when_components_are_not_separate():
    """Two trends that are alike share the function evenly; in units from before the scaling."""
    model = kx.Model(1.0 * kx.Select(kx.RBF(1.5), columns=0) + kx.Select(kx.RBF(1.5), columns=0), noise=0.1)
    said = describe(kx.condition(model, kx.Data(X, Y)), columns=["a (m)", "b", "c"], scales=([2.0, 1.0, 1.0], 1.0))
    assert said[0].startswith("A smooth trend of a with a lengthscale of 3 m explains")
    assert shares_in(said)[0] == shares_in(said)[1]
    assert "rise and fall together" in said[-1]
    assert "50 %" in said[-1]


def test_sentences_of_many_kernels():
    kernel = (
        kernels.Additive([kx.RBF(), kx.RBF(), kx.Matern12()], 1)
        + kx.Select(kx.Linear(), columns=1)
        + kx.Select(kx.Cosine(2.0), columns=0) * kx.Select(kx.Linear(), columns=2)
        + kernels.OrthogonalAdditive(kx.RBF(), 2, columns=3).component(0, 2)
        + 0.5 * kx.Matern32([0.5, 1.0, 2.0])
        + kx.Select(kernels.Sphere(kx.RBF()), columns=(0, 1))
        + kx.Constant(1.0)
    )
    said = " ".join(describe(kx.condition(kx.Model(kernel, noise=0.1), kx.Data(X, Y)), columns="abc"))
    for words in (
        "A sum of effects of single columns explains",
        "A straight line along b explains",
        "A sine wave of a with a period of 2, whose size grows with c explains",
        "The interaction of a and c explains",
        "A slightly rough variation of a, b and c with lengthscales of 0.5 (a), 1 (b) and 2 (c) explains",
        "A variation over the sphere explains",
        "A constant level explains none of the variance of y.",
    ):
        assert words in said
