"""Kernels of compact support, with change points, spectral mixtures, of categories, graphs, spheres and interactions."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import scipy.linalg
from sklearn.gaussian_process import kernels as sk

import kernax as kx
from kernax import kernels
from tests.tables import gradient_by_differences, points, targets

X, Z = points(7), points(5, seed=3)
CODES = np.array([0, 2, 1, 1, 0, 2, 2])
PATH = np.diag([1.0, 2, 2, 2, 1]) - np.diag(np.ones(4), 1) - np.diag(np.ones(4), -1)


def test_white_is_its_variance_where_rows_are_equal():
    gram = np.where((X[:, None] == X[None]).all(-1), 0.7, 0.0)
    assert gram[0, -1] == 0.7
    np.testing.assert_array_equal(kernels.White(0.7)(X), gram)
    rows = {"x": X[:3], "group": np.array([0, 0, 1])}
    np.testing.assert_array_equal(kernels.White()(rows, {"x": X[:3], "group": np.array([0, 1, 1])}), np.diag([1.0, 0, 1]))


@pytest.mark.parametrize(("smoothness", "columns"), [*itertools.product(range(4), (2, 5))])
def test_wendland_is_its_integral(smoothness, columns):
    """Wendland's construction: `(1 - r)^j`, `smoothness` times mapped to `∫_r^1 t f(t) dt`, and 1 at r = 0."""
    x, z = np.random.default_rng(0).normal(size=(2, 6, columns))
    lengthscale = np.linspace(1.5, 3.0, columns)
    ours = kernels.Wendland(lengthscale, smoothness, columns)(x, z)
    polynomial = np.polynomial.Polynomial([1.0, -1.0]) ** (columns // 2 + smoothness + 1)
    for _ in range(smoothness):
        integral = (polynomial * np.polynomial.Polynomial([0.0, 1.0])).integ()
        polynomial = integral(1.0) - integral
    r = np.sqrt((((x[:, None] - z[None]) / lengthscale) ** 2).sum(-1))
    expected = np.where(r < 1, polynomial(np.minimum(r, 1.0)) / polynomial(0.0), 0.0)
    assert (expected == 0).any()
    # Near r = 1 the expanded polynomial, not the kernel, loses digits.
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("smoothness", [1, 2, 3])
def test_wendland_has_the_curvature_of_its_formula_where_points_coincide(smoothness):
    """Against second differences of the polynomial in one column."""
    kernel, zero = kernels.Wendland(2.0, smoothness, 1), jnp.zeros(1)
    curvature = jax.hessian(lambda a: kernel.pair(a, zero))(zero)[0, 0]
    step = 1e-3
    near = kernel(np.array([[step]]), np.zeros((1, 1)))[0, 0]
    np.testing.assert_allclose(curvature, 2.0 * (near - 1.0) / step**2, rtol=5e-3)
    assert float(jax.grad(lambda a: kernel.pair(a, zero))(zero)[0]) == 0.0


def test_change_point_is_two_kernels_with_a_switch():
    before, after = sk.RBF(0.7), sk.Matern(1.3, nu=1.5)
    kernel = kernels.ChangePoint(kx.RBF(0.7), kx.Matern32(1.3), location=0.3, width=0.2, column=1)
    on, on_z = (1 / (1 + np.exp(-(rows[:, 1] - 0.3) / 0.2)) for rows in (X, Z))
    expected = np.outer(1 - on, 1 - on_z) * before(X, Z) + np.outer(on, on_z) * after(X, Z)
    np.testing.assert_allclose(kernel(X, Z), expected, rtol=1e-12, atol=1e-14)
    far = np.array([[0.0, -1e6], [0.0, 1e6]])
    np.testing.assert_array_equal(kernel(far), np.eye(2))
    gradient = jax.grad(lambda k: jnp.sum(k.gram(jnp.asarray(far), None)))(kernel)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_gibbs_follows_its_formula():
    def log_lengthscale(row):
        return 0.3 * row

    lengths, lengths_z = np.exp(0.3 * X)[:, None], np.exp(0.3 * Z)[None]
    squares = lengths**2 + lengths_z**2
    expected = (np.sqrt(2 * lengths * lengths_z / squares) * np.exp(-((X[:, None] - Z[None]) ** 2) / squares)).prod(-1)
    np.testing.assert_allclose(kernels.Gibbs(log_lengthscale)(X, Z), expected, rtol=1e-12)
    constant = kernels.Gibbs(lambda _: jnp.log(0.8))
    np.testing.assert_allclose(constant(X), kx.RBF(0.8)(X), rtol=1e-12)
    curvature = jax.hessian(lambda a: constant.pair(a, jnp.asarray(X[0])))(jnp.asarray(X[0]))
    np.testing.assert_allclose(curvature, -np.eye(2) / 0.64, rtol=1e-12, atol=1e-14)


def test_spectral_mixture_follows_its_formula():
    x, z = X[:, :1], Z[:, :1]
    weight, frequency, bandwidth = np.array([0.6, 1.1]), np.array([0.4, 1.3]), np.array([0.2, 0.1])
    d = (x - z.T)[..., None]
    waves = weight * np.cos(2 * np.pi * frequency * d) * np.exp(-2 * (np.pi * bandwidth * d) ** 2)
    np.testing.assert_allclose(
        kernels.SpectralMixture(weight, frequency, bandwidth)(x, z), waves.sum(-1), rtol=1e-12, atol=1e-14
    )


def test_spectral_mixture_starts_at_the_peaks_of_the_periodogram():
    """Two waves at uneven times are found, and the likelihood is higher there than at shifted frequencies."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(0, 20, size=120))[:, None]
    y = np.sin(2 * np.pi * 0.31 * x[:, 0]) + 0.5 * np.cos(2 * np.pi * 1.4 * x[:, 0]) + 0.05 * rng.normal(size=120)
    kernel = kernels.SpectralMixture.of_periodogram(x, y, 2)
    np.testing.assert_allclose(kernel.frequency[:, 0], [0.31, 1.4], atol=0.02)
    np.testing.assert_allclose(jnp.sum(kernel.weight), np.var(y), rtol=1e-6)
    shifted = eqx.tree_at(lambda k: k.frequency, kernel, kernel.frequency + 0.4)
    data = kx.Data(x, y)
    found, missed = (kx.log_marginal_likelihood(kx.condition(kx.Model(k, noise=0.01), data)) for k in (kernel, shifted))
    assert found > missed + 50
    started = kernel.initialised(jnp.asarray(x), jnp.ones(120, bool), jnp.asarray(3.0))
    np.testing.assert_allclose(jnp.sum(started.weight), 3.0)


@pytest.mark.parametrize("rank", [None, 2])
def test_categories_times_numbers(rank):
    """The posterior of a mixed product is that of its matrix, and its evidence has the slope of central differences."""
    kernel = kernels.Categorical("city", ("Bern", "Lima", "Oslo"), rank=rank) * kx.Select(kx.RBF(0.9), key="x")
    rows, y = {"x": X, "city": CODES}, targets(X)
    matrix = np.asarray(kernel.kernels[0].matrix())
    if rank is None:
        np.testing.assert_array_equal(matrix, 0.5 + 0.5 * np.eye(3))
    gram = matrix[CODES[:, None], CODES] * sk.RBF(0.9)(X)
    np.testing.assert_allclose(kernel(rows), gram, rtol=1e-12)
    c = kx.condition(kx.Model(kernel, noise=0.2), kx.Data(rows, y))
    np.testing.assert_allclose(kx.mean(c, rows), gram @ np.linalg.solve(gram + 0.2 * np.eye(7), y), rtol=1e-9)
    vector, rebuild = kx.parameters.ravel(kernel)
    value = jax.jit(lambda v: kx.log_marginal_likelihood(kx.condition(kx.Model(rebuild(v), noise=0.2), kx.Data(rows, y))))
    np.testing.assert_allclose(
        jax.grad(value)(vector), gradient_by_differences(value, np.array(vector)), rtol=1e-5, atol=1e-7
    )
    start = kx.initialise(kx.Model(kernel, noise=0.1), kx.Data(rows, y))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(eqx.filter(start, eqx.is_inexact_array)))


def test_h52_an_unseen_category_is_named_with_the_remedy():
    kernel = kernels.Categorical("city", ["Bern", "Lima", "Oslo"])
    np.testing.assert_array_equal(kernel.codes(np.array(["Oslo", "Bern"])), [2, 0])
    with pytest.raises(ValueError, match=r"does not know the category 'Rome' of row 1.*'Bern', 'Lima', 'Oslo'.*Leave out"):
        kernel.codes(["Oslo", "Rome"])
    with pytest.raises(ValueError, match=r"3 levels.*row 1 has the category 5.*Leave out"):
        kernel.check({"city": np.array([0, 5])})
    # Nothing is known of it under tracing: its kernel is NaN, and gradients of the others are not.
    rows = {"city": jnp.asarray([0, 5, 2])}
    gram = kernel.gram(rows, None)
    np.testing.assert_array_equal(np.isnan(gram), [[False, True, False], [True, True, True], [False, True, False]])
    slope = jax.grad(lambda k: jnp.nansum(k.gram(rows, None)))(kernel)
    np.testing.assert_allclose(slope.correlation, 2.0)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: kernels.Categorical("city", 0), "at least 1"),
        (lambda: kernels.Categorical("city", ["a", "a"]), "different levels"),
        (lambda: kernels.Categorical("city", 2)({"city": np.array([0.0, 1.0])}), "integers in 'city'"),
        (lambda: kernels.Categorical("city", 2)(X), "needs rows with a category"),
        (lambda: kernels.Categorical("city", 2, correlation=1.5), "between 0 and 1"),
        (lambda: kernels.Categorical("city", 2, correlation=[0.1, 0.2]), "correlation must be one number"),
        (lambda: kernels.Categorical("city", 2)({"city": np.array([[0], [1]])}), r"its category, got shape \(2, 1\)"),
        (lambda: kx.Select(kernels.Graph(PATH), key="v")({"v": np.array([[0], [1]])}), r"its node, got shape \(2, 1\)"),
        (lambda: kernels.Sphere(kx.RBF(), radius=np.inf), "radius of a sphere must be finite and positive"),
        (lambda: kernels.Sphere(kx.RBF(), radius=np.ones(2)), "radius of a sphere must be one number"),
        (lambda: kernels.SpectralMixture.of_periodogram(X[:0], X[:0, 0], 1), r"got shapes \(0, 2\) and \(0,\)"),
        (lambda: kernels.ChangePoint(kernels.Tanimoto(), kx.RBF())(-abs(X)), "without negative numbers"),
        (lambda: kx.RandomFeatures(kernels.Sphere(kx.RBF()), 4)(100.0 + abs(X)), "row 0 has the latitude"),
        (lambda: kernels.Wendland(columns=1)(X), r"up to 1 columns.*Wendland\(columns=2\)"),
        (lambda: kernels.Wendland(smoothness=4), "0, 1, 2 or 3"),
        (lambda: kernels.ChangePoint(kx.CubicSpline(), kx.RBF()), "conditionally definite"),
        (lambda: kernels.ChangePoint(kx.RBF(), kx.RBF(), column=2)(X), "inputs have 2 columns"),
        (lambda: kernels.SpectralMixture([1.0], [[0.1]], [[0.1]])(X), "inputs have 2"),
        (lambda: kernels.SpectralMixture([1.0], [0.1, 0.2], [0.1, 0.2]), "a weight for each component"),
        (lambda: kernels.Hamming([1.0, 2.0, 3.0])(X), "inputs have 2 columns"),
        (lambda: kernels.Graph(np.triu(PATH)), r"symmetric Laplacian, but entries.*w = \(w \+ w.T\)/2"),
        (lambda: kernels.Graph(-PATH), "no negative eigenvalue"),
        (lambda: kernels.Graph(PATH[:3]), "square"),
        (lambda: kernels.Graph(PATH)(X), r"nodes as integers: write Select\(Graph"),
        (lambda: kernels.Graph(PATH).check(np.array([1, 7])), "row 1 is node 7.*Leave out"),
        (lambda: kernels.Sphere(kx.RBF())(points(4, d=3)), "latitude and longitude"),
        (lambda: kernels.Additive(kx.RBF(), 3, columns=2), "order of at most 2"),
        (lambda: kernels.Additive(kx.RBF(), 2), "the number of columns"),
        (lambda: kernels.Additive(kx.RBF(), 2, columns=3)(X), "inputs have 2"),
    ],
)
def test_bad_input_is_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_a_class_in_the_place_of_a_kernel_is_refused(monkeypatch):
    # As users have it: without the type checks of the tests, which would be first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    normal = kernels.NormalInputs()
    for make in (
        lambda kernel: kx.Select(kernel, columns=0),
        lambda kernel: kx.Warp(kernel, jnp.sin),
        lambda kernel: kernels.Scale(kernel, 2.0),
        lambda kernel: kernels.Sum((kx.RBF(), kernel)),
        lambda kernel: kernels.Power(kernel, 2),
        lambda kernel: kernels.ChangePoint(kx.RBF(), kernel),
        lambda kernel: kernels.Additive([kernel, kx.RBF()], 1),
        lambda kernel: kernels.OrthogonalAdditive([kernel], 1),
        lambda kernel: kernels.ZeroMean(kernel, normal),
        lambda kernel: kernels.ICM(kernel, 2),
        lambda kernel: kernels.Sphere(kernel),
        lambda kernel: kernels.OfFunctionals(kernel),
        lambda kernel: kx.RandomFeatures(kernel, 4),
    ):
        with pytest.raises(TypeError, match=r"must be a kernax kernel, got <class.*RBF'> \(write it with parentheses"):
            make(kx.RBF)
        with pytest.raises(TypeError, match="must be a kernax kernel, got 'rbf'"):
            make("rbf")


def test_rows_of_several_parts_need_kernels_that_choose_one():
    """Before anything is traced, and wherever rows come in."""
    data = kx.Data({"x": X, "task": CODES}, np.ones(7))
    for kernel in (kx.RBF(), kernels.Coregion(3) * kx.Matern32(), kernels.Gibbs(lambda row: 0.0), kx.Linear() + 1.0):
        model = kx.Model(kernel, noise=0.1)
        for ask in (
            lambda model: kx.condition(model, data),
            lambda model: kx.fit(model, data),
            lambda model: kx.initialise(model, data),
            lambda model: kx.sample(model, data.x, key=jax.random.key(0)),
            lambda model: model.kernel(data.x),
        ):
            with pytest.raises(ValueError, match=r"dict with the keys \['task', 'x'\](.|\n)*kx\.Select\(kernel, key='x'\)"):
                ask(model)
    with pytest.raises(ValueError, match=r"tuple of 2 parts.*axis=0"):
        kx.condition(kx.Model(kx.RBF(), noise=0.1), kx.Data(kx.Grid((X[:3], X[:2])), np.ones(6)))


def test_slopes_where_points_coincide():
    """The covariance of the gradient with itself at one point, by hand; both sides of a matrix meet there."""
    place = np.array([0.4, -1.3])
    frequency, bandwidth = np.array([[0.3, 0.1], [0.7, 0.5]]), np.array([[0.1, 0.2], [0.3, 0.1]])
    weight, on = np.array([0.6, 1.1]), 1 / (1 + np.exp(-(0.4 - 0.2) / 0.5))
    steep = 2 * (on * (1 - on) / 0.5) ** 2 * np.diag([1.0, 0.0])
    mixture = sum(w * (np.diag(b**2) + np.outer(f, f)) for w, f, b in zip(weight, frequency, bandwidth, strict=True))
    rad = np.pi / 180
    cases = {
        "spectral mixture": (kernels.SpectralMixture(weight, frequency, bandwidth), 4 * np.pi**2 * mixture),
        "change point": (
            kernels.ChangePoint(kx.RBF(0.7), kx.Matern32(1.3), location=0.2, width=0.5),
            np.eye(2) * ((1 - on) ** 2 / 0.7**2 + 3 * on**2 / 1.3**2) + steep,
        ),
        # A column is in one product of one column and in one of two, whose other factor is 1.
        "additive": (
            kernels.Additive([kx.RBF(0.8), kx.Matern52(1.5)], 2, variance=[0.7, 0.4]),
            1.1 * np.diag([1 / 0.8**2, 5 / 3 / 1.5**2]),
        ),
        "sphere": (kernels.Sphere(kx.RBF(0.3)), (rad / 0.3) ** 2 * np.diag([1.0, np.cos(0.4 * rad) ** 2])),
        "tanimoto": (kernels.Tanimoto(), 2 * np.eye(2) / (place @ place)),
    }
    rows = kx.observe.gradients(place[None])
    observed = [kernels.OfFunctionals(kernel) for kernel, _ in cases.values()]
    ours = eqx.filter_jit(lambda observed: [k(rows, rows) for k in observed])
    for (name, (_, expected)), found in zip(cases.items(), ours(observed), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12, err_msg=name)


def test_hamming_and_tanimoto():
    rows = np.random.default_rng(0).integers(0, 3, size=(6, 4))
    lengths = np.array([0.5, 1.0, 2.0, 4.0])
    expected = np.exp(-((rows[:, None] != rows[None]) / lengths).sum(-1))
    ours = kx.Select(kernels.Hamming(lengths), key="codes")
    np.testing.assert_allclose(ours({"codes": rows}), expected, rtol=1e-12)
    bits = np.concatenate([np.random.default_rng(1).integers(0, 2, size=(5, 8)), np.zeros((2, 8), int)])
    both = (bits[:, None] & bits[None]).sum(-1) / np.maximum((bits[:, None] | bits[None]).sum(-1), 1)
    both[5:, 5:] = 1.0
    np.testing.assert_allclose(kx.Select(kernels.Tanimoto(), key="bits")({"bits": bits}), both, rtol=1e-12)
    np.testing.assert_allclose(kernels.Tanimoto()(bits.astype(float)), both, rtol=1e-12)
    slopes = jax.grad(lambda x: jnp.sum(kernels.Tanimoto().gram(x, None)))(jnp.asarray(bits, float))
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize("nu", [None, 1.5])
def test_graph_is_a_function_of_the_laplacian(nu):
    if nu is None:
        expected = scipy.linalg.expm(-0.5 * 1.7**2 * PATH)
    else:
        expected = scipy.linalg.fractional_matrix_power(np.eye(5) + 1.7**2 * PATH / (2 * nu), -nu)
    expected = expected / np.mean(np.diag(expected))
    nodes = np.array([0, 3, 3, 1, 4])
    kernel = kx.Select(kernels.Graph(PATH, 1.7, nu), key="node")
    np.testing.assert_allclose(kernel({"node": nodes}), expected[nodes[:, None], nodes], rtol=1e-12)
    features = kernel.features({"node": jnp.asarray(nodes)})
    np.testing.assert_allclose(features @ features.T, expected[nodes[:, None], nodes], rtol=1e-12)


def test_a_graph_is_fitted_and_saved(tmp_path):
    """The Laplacian is no parameter: fits move the lengthscale and order only, and files keep it."""
    rows = {"node": np.array([0, 1, 2, 3, 4, 2])}
    model = kx.Model(1.0 * kx.Select(kernels.Graph(PATH, nu=2.0), key="node"), noise=0.1)
    names = [kx.parameters.parameter_name(path) for path, _ in kx.parameters.parameters(model)]
    assert len(names) == 4
    fit = kx.fit(model, kx.Data(rows, [0.0, 0.4, 1.0, 1.3, 2.0, 1.1]), max_steps=5)
    c = kx.condition(fit.model, kx.Data(rows, np.arange(6.0)))
    kx.save(tmp_path / "graph.kx", c)
    np.testing.assert_array_equal(kx.mean(kx.load(tmp_path / "graph.kx"), rows), kx.mean(c, rows))


def test_sphere_is_a_kernel_of_the_chord():
    places = np.array([[47.0, 8.5], [-33.9, 151.2], [90.0, 0.0], [90.0, 120.0], [0.0, 180.0], [0.0, -180.0]])
    latitude, longitude = np.deg2rad(places).T
    # The haversine formula, which keeps its digits for places that are close.
    across = np.outer(np.cos(latitude), np.cos(latitude)) * np.sin((longitude[:, None] - longitude) / 2) ** 2
    chord = 2 * 6371.0 * np.sqrt(np.sin((latitude[:, None] - latitude) / 2) ** 2 + across)
    gram = kernels.Sphere(kx.Matern32(5000.0), radius=6371.0)(places)
    r = np.sqrt(3) * chord / 5000.0
    np.testing.assert_allclose(gram, (1 + r) * np.exp(-r), rtol=1e-12)
    np.testing.assert_allclose(gram[2, 3], 1.0, rtol=1e-12)
    np.testing.assert_allclose(gram[4, 5], 1.0, rtol=1e-12)


def test_additive_is_the_sum_over_subsets_of_columns():
    x, z = np.random.default_rng(0).normal(size=(2, 5, 4))
    lengths, variance = [0.6, 0.9, 1.3, 2.0], [0.7, 0.4, 0.2]
    single = [sk.RBF(length)(x[:, k : k + 1], z[:, k : k + 1]) for k, length in enumerate(lengths)]
    expected = [sum(np.prod(part, axis=0) for part in itertools.combinations(single, order)) for order in (1, 2, 3)]
    kernel = kernels.Additive([kx.RBF(length) for length in lengths], 3, variance=variance)
    np.testing.assert_allclose(kernel(x, z), sum(v * e for v, e in zip(variance, expected, strict=True)), rtol=1e-12)
    for part, v, e in zip(kernel.summands(), variance, expected, strict=True):
        np.testing.assert_allclose(part(x, z), v * e, rtol=1e-12)
    started = kernel.initialised(jnp.asarray(x), jnp.ones(5, bool), jnp.asarray(2.0))
    np.testing.assert_allclose(started.diag(jnp.asarray(x)), 2.0, rtol=1e-12)
    data = kx.Data(x, np.sin(x[:, 0]) + x[:, 1] * x[:, 2])
    c = kx.condition(kx.Model(kernel, noise=0.01), data)
    parts = kx.components(c, z)
    assert len(parts.names) == len(set(parts.names)) == 3
    np.testing.assert_allclose(parts.mean.sum(axis=0) + parts.rest, kx.mean(c, z), rtol=1e-10)


def test_additive_loses_no_digits_in_float32():
    """Twenty columns, up to order ten: elementary symmetric polynomials by their generating polynomial, in float64."""
    x = np.random.default_rng(0).normal(size=(4, 20)).astype(np.float32)
    kernel = kernels.Additive(kx.RBF(1.5), 10, columns=20, variance=np.eye(10)[9] + 1e-12)
    values = np.exp(-((x[:, None].astype(float) - x[None]) ** 2) / (2 * 1.5**2))
    expected = [[np.poly(-values[i, j])[10] for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(kernel(x), expected, rtol=1e-5)


def test_traced_labels_out_of_range_are_nan_everywhere():
    """Nobody can refuse what is traced; another label's number would be a wrong answer."""
    rows = {"x": X[:4], "task": np.array([0, 1, 2, -1]), "g": np.array([0, 1, 2, -1])}
    bad = np.array([False, False, True, True])
    for kernel in (kernels.Coregion(2), kernels.Categorical("g", 2), kernels.Categorical("g", 2, rank=1)):

        @jax.jit
        def of(rows, kernel=kernel):
            pairs = jax.vmap(lambda a: jax.vmap(lambda b: kernel.pair(a, b))(rows))(rows)
            return kernel.gram(rows, None), kernel.gram(rows, rows), pairs, kernel.diag(rows), kernel.features(rows)

        *grams, diag, features = of(rows)
        for gram in grams:
            np.testing.assert_array_equal(np.isnan(gram), bad[:, None] | bad)
        np.testing.assert_array_equal(np.isnan(diag), bad)
        np.testing.assert_array_equal(np.isnan(features).all(axis=1), bad)
        features = np.asarray(features)[:2]
        np.testing.assert_allclose(features @ features.T, grams[0][:2, :2], rtol=1e-12)
    for of_row in (kx.noises.PerGroup("g", [0.1, 0.2]), kx.means.PerGroup("g", [0.1, 0.2])):
        np.testing.assert_array_equal(jax.jit(jax.vmap(of_row))(rows), [0.1, 0.2, np.nan, np.nan])


def test_numbers_that_a_kernel_does_not_take_are_refused():
    sphere = 2.0 * kx.Select(kernels.Sphere(kx.RBF()), columns=(0, 1))
    with pytest.raises(ValueError, match="row 1 has the latitude 95"):
        kx.condition(kx.Model(sphere, noise=0.1), kx.Data(np.array([[0.0, 370], [95, 0]]) * [1, 0.5], np.zeros(2)))
    c = kx.condition(kx.Model(kernels.Sphere(kx.RBF()), noise=0.1), kx.Data(np.array([[90.0, -360.0]]), [1.0]))
    with pytest.raises(ValueError, match="longitude 400"):
        kx.mean(c, np.array([[0.0, 400.0]]))
    with pytest.raises(ValueError, match="row 1 has one: for such rows it is not positive definite"):
        kernels.Tanimoto()(np.array([[0.0, 1.0], [1.0, -1.0]]))
    with pytest.raises(ValueError, match=r"one for each of its 2 columns, got shape \(3,\)"):
        kernels.Gibbs(lambda row: jnp.zeros(3))(X[:, :2])
    with pytest.raises(ValueError, match="finite x and y"):
        kernels.SpectralMixture.of_periodogram(X[:, :1], np.full(7, np.nan), 2)
    with pytest.raises(TypeError, match=r"is text.*write kernel\.codes\(names\)"):
        kx.Data({"city": np.array(["a", "b"])}, np.zeros(2))
    with pytest.raises(TypeError, match=r"noises\.Interpolant\(anchors, RBF"):
        kx.noises.Heteroscedastic(kx.RBF())


def test_a_category_is_an_axis_of_a_grid():
    for rank in (None, 1):
        kernel = kernels.Categorical("city", 3, rank=rank) * kx.Select(kx.RBF(0.5), key="x")
        data = kx.Data(kx.Grid({"x": X[:4, :1], "city": np.arange(3)}), np.arange(12.0).reshape(4, 3))
        answers = [
            (kx.log_marginal_likelihood(c), kx.mean(c, kx.Grid({"x": Z[:2, :1], "city": np.array([2, 0])})))
            for c in (kx.condition(kx.Model(kernel, noise=0.1), data, s) for s in (kx.Kronecker(), kx.Cholesky()))
        ]
        for own, dense in zip(*answers, strict=True):
            np.testing.assert_allclose(own, dense, rtol=1e-9)
