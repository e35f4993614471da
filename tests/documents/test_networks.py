"""Kernels as inner products of features (F05), and those of infinitely wide networks (F19)."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import dblquad
from scipy.special import erf

import kernax as kx

from ._oracles import X, Y, Z, assert_close, finite_differences

# --- F05 ---------------------------------------------------------------------------------------------------------------


def test_f05_polynomial_kernel_is_an_inner_product_of_monomials():
    """`(s a·b + c)^p = Σ_α p!/(α! (p - |α|)!) s^|α| c^(p - |α|) a^α b^α` over all exponents of at most p in sum."""
    degree, scale, offset = 4, 0.6, 0.7
    rows = np.random.default_rng(0).normal(size=(5, 3))
    columns = []
    for exponents in itertools.product(range(degree + 1), repeat=3):
        rest = degree - sum(exponents)
        if rest >= 0:
            ways = math.factorial(degree) / math.prod(math.factorial(e) for e in (*exponents, rest))
            columns.append(math.sqrt(ways * scale ** sum(exponents) * offset**rest) * np.prod(rows**exponents, axis=1))
    features = np.stack(columns, axis=1)
    assert features.shape[1] == math.comb(degree + 3, 3)
    assert_close(kx.Polynomial(degree, scale, offset)(rows), features @ features.T, 1e-13)


def test_f05_squared_exponential_kernel_is_an_inner_product_of_infinitely_many_features():
    """`φ_j(x) = σ exp(-x²/2ℓ²) x^j/(ℓ^j √j!)`: the partial sums reach `σ² exp(-(x - z)²/2ℓ²)`, and few terms do not."""
    lengthscale, variance, rows = 0.8, 1.7, X[:, :1]

    def kernel(terms):
        powers = np.arange(terms)
        roots = np.sqrt([float(math.factorial(j)) for j in powers])
        return kx.FeatureMap(
            lambda a: jnp.sqrt(variance) * jnp.exp(-0.5 * (a[0] / lengthscale) ** 2) * (a[0] / lengthscale) ** powers / roots
        )

    expected = np.asarray(variance * kx.RBF(lengthscale)(rows))
    assert np.max(np.abs(kernel(5)(rows) - expected)) > 0.1
    assert_close(kernel(45)(rows), expected, 1e-13)


def test_f05_sum_of_outer_products():
    """`ΦᵀΦ = Σ φ(xᵢ)φ(xᵢ)ᵀ` has the eigenvalues of `K = ΦΦᵀ`, and its ridge regression is that of the kernel."""

    def features(a):
        return jnp.stack([jnp.ones(()), a[0], a[1], a[0] * a[1]])

    kernel, noise = kx.FeatureMap(features), 0.3
    phi = np.stack([np.ones(len(X)), X[:, 0], X[:, 1], X[:, 0] * X[:, 1]], axis=1)
    total = sum(np.outer(row, row) for row in phi)
    assert_close(np.linalg.eigvalsh(np.asarray(kernel(X)))[-4:], np.linalg.eigvalsh(total), 1e-13)
    weights = np.linalg.solve(total + noise * np.eye(4), phi.T @ Y)
    at = np.stack([np.ones(len(Z)), Z[:, 0], Z[:, 1], Z[:, 0] * Z[:, 1]], axis=1)
    assert_close(kx.mean(kx.condition(kx.Model(kernel, noise=noise), kx.Data(X, Y)), Z), at @ weights, 1e-11)


# --- F19: one layer ----------------------------------------------------------------------------------------------------

WEIGHTS, BIAS = np.array([0.6, 1.7]), 0.4


def augmented(x):
    return np.concatenate([np.full((len(x), 1), np.sqrt(BIAS)), np.sqrt(WEIGHTS) * x], axis=1)


def test_f19_arc_cosine_kernels_by_their_formulas():
    """`J_0 = π - θ`, `J_1 = sin θ + (π - θ)cos θ`, `J_2 = 3 sin θ cos θ + (π - θ)(1 + 2cos²θ)`, with ARD and bias."""
    u, v = augmented(X), augmented(Z)
    norms = np.linalg.norm(u, axis=1)[:, None] * np.linalg.norm(v, axis=1)[None, :]
    cosine = u @ v.T / norms
    angle = np.arccos(cosine)
    shapes = (
        np.pi - angle,
        np.sin(angle) + (np.pi - angle) * cosine,
        3 * np.sin(angle) * cosine + (np.pi - angle) * (1 + 2 * cosine**2),
    )
    for order, shape in enumerate(shapes):
        expected = norms**order * shape / np.pi
        assert_close(kx.ArcCosine(order, WEIGHTS, BIAS)(X, Z), expected, 1e-13)
        assert_close(kx.ArcCosine(order, bias_variance=0.0)(u, v), expected, 1e-13)


def test_f19_arc_cosine_kernels_by_random_layers():
    """`2 E[Θ(w·a)Θ(w·b)(w·a)ⁿ(w·b)ⁿ]` by drawing weights; neither another order nor another bias would pass."""
    draws = np.random.default_rng(1).normal(size=(400_000, 3))
    u, v = np.maximum(draws @ augmented(X[:1]).T, 0), np.maximum(draws @ augmented(Z[1:2]).T, 0)
    on = (u > 0) & (v > 0)

    def kernel(order, bias=BIAS):
        return float(kx.ArcCosine(order, WEIGHTS, bias)(X[:1], Z[1:2])[0, 0])

    for order in (0, 1, 2):
        sample = 2.0 * on * (u * v) ** order
        error = sample.std() / np.sqrt(len(sample))
        assert abs(sample.mean() - kernel(order)) < 4 * error
        for wrong in (kernel((order + 1) % 3), kernel((order + 2) % 3), kernel(order, 2 * BIAS)):
            assert abs(sample.mean() - wrong) > 8 * error


def expectation(f, variances, covariance, lower=None):
    """`E[f(u)f(v)]` by quadrature over ten standard deviations, or over what lies above `lower`."""
    (q_a, q_b), determinant = variances, variances[0] * variances[1] - covariance**2

    def integrand(v, u):
        exponent = (q_b * u * u - 2 * covariance * u * v + q_a * v * v) / (2 * determinant)
        return f(u) * f(v) * math.exp(-exponent) / (2 * math.pi * math.sqrt(determinant))

    a, b = 9 * math.sqrt(q_a), 9 * math.sqrt(q_b)
    low = (-a, -b) if lower is None else (lower, lower)
    return dblquad(integrand, low[0], a, low[1], b, epsabs=1e-11, epsrel=1e-10)[0]


class Sine(kx.kernels.AbstractActivation):
    """An activation of a user's own: `φ(u) = sin(u)`."""

    def moment(self, pair):
        return jnp.exp(-0.5 * (pair.variance_a + pair.variance_b)) * jnp.sinh(pair.covariance)

    def slope_moment(self, pair):
        return jnp.exp(-0.5 * (pair.variance_a + pair.variance_b)) * jnp.cosh(pair.covariance)


ACTIVATIONS = {
    "relu": (kx.kernels.ReLU(), lambda u: u, lambda u: 1.0, 0.0),
    "erf": (kx.kernels.Erf(), erf, lambda u: 2 / math.sqrt(math.pi) * math.exp(-u * u), None),
    "own": (Sine(), math.sin, math.cos, None),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_f19_two_hidden_layers_by_quadrature(name):
    """Moments, and with them both kernels of a deep network, by numerical integration layer by layer."""
    activation, value, slope, lower = ACTIVATIONS[name]
    a, b = np.array([0.7, -0.4, 1.1]), np.array([0.2, 0.9, 0.5])
    weights, biases = np.array([1.2, 0.9, 1.4]), np.array([0.3, 0.2, 0.1])
    q_a, q_b, q_ab = (biases[0] + weights[0] * np.dot(u, v) / 3 for u, v in ((a, a), (b, b), (a, b)))
    tangent = q_ab
    for weight, bias in zip(weights[1:], biases[1:], strict=True):
        moment, slopes = (expectation(f, (q_a, q_b), q_ab, lower) for f in (value, slope))
        cosine = q_ab / math.sqrt(q_a * q_b)
        pair = kx.kernels.GaussianPair(*(jnp.asarray(t) for t in (q_a, q_b, q_ab, 1 - cosine, 1 + cosine)))
        assert_close(activation.moment(pair), moment, 1e-9)
        assert_close(activation.slope_moment(pair), slopes, 1e-9)
        q_a, q_b, q_ab = (bias + weight * t for t in (square(value, q_a, lower), square(value, q_b, lower), moment))
        tangent = q_ab + weight * tangent * slopes
    for kernel, expected in ((kx.NNGP, q_ab), (kx.NTK, tangent)):
        made = kernel(2, activation, weights, biases)
        assert_close(made.pair(jnp.asarray(a), jnp.asarray(b)), expected, 1e-9)
        assert_close(made(a[None], b[None])[0, 0], expected, 1e-9)


def square(f, variance, lower):
    """`E[f(u)²]` by Gauss–Hermite quadrature, which is exact for the square of a ReLU by symmetry."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    values = np.array([f(u) ** 2 for u in math.sqrt(variance) * nodes])
    return (0.5 if lower == 0.0 else 1.0) * float(weights @ values) / math.sqrt(2 * math.pi)


def test_f19_erf_layer_is_the_arcsine_kernel():
    """Williams' `2/π arcsin(2ãᵀΣb̃/√((1 + 2ãᵀΣã)(1 + 2b̃ᵀΣb̃)))` with a bias of the output."""
    first, weight, bias = 1.7, 0.9, 0.2
    inner = [BIAS + first * u @ v.T / 2 for u, v in ((X, Z), (X, X), (Z, Z))]
    norms = np.sqrt(np.outer(1 + 2 * np.diag(inner[1]), 1 + 2 * np.diag(inner[2])))
    expected = bias + weight * 2 / np.pi * np.arcsin(2 * inner[0] / norms)
    assert_close(kx.NNGP(1, kx.kernels.Erf(), [first, weight], [BIAS, bias])(X, Z), expected, 1e-13)


# --- F19: whole networks ------------------------------------------------------------------------------------------------

WEIGHT_VARIANCES, BIAS_VARIANCES = np.array([1.1, 1.9, 0.8]), np.array([0.5, 0.7, 0.2])


def random_network(rng, x, f, slope, width):
    """Covariance of the output given the last hidden layer, and `∇f·∇f`, of one network with two hidden layers (NumPy)."""
    w, b, d = WEIGHT_VARIANCES, BIAS_VARIANCES, x.shape[1]
    z_1 = np.sqrt(w[0] / d) * x @ rng.normal(size=(d, width)) + np.sqrt(b[0]) * rng.normal(size=width)
    inner = rng.normal(size=(width, width))
    z_2 = np.sqrt(w[1] / width) * f(z_1) @ inner + np.sqrt(b[1]) * rng.normal(size=width)
    outer = rng.normal(size=width)
    backward_2 = np.sqrt(w[2] / width) * outer * slope(z_2)
    backward_1 = np.sqrt(w[1] / width) * (backward_2 @ inner.T) * slope(z_1)
    covariance = b[2] + w[2] / width * f(z_2) @ f(z_2).T
    tangent = covariance + (b[1] + w[1] / width * f(z_1) @ f(z_1).T) * (backward_2 @ backward_2.T)
    tangent = tangent + (b[0] + w[0] / d * x @ x.T) * (backward_1 @ backward_1.T)
    return covariance, tangent


@pytest.mark.parametrize(
    ("activation", "f", "slope"),
    [
        (kx.kernels.ReLU(), lambda u: np.maximum(u, 0), lambda u: 1.0 * (u > 0)),
        (kx.kernels.Erf(), erf, lambda u: 2 / np.sqrt(np.pi) * np.exp(-u * u)),
    ],
    ids=["relu", "erf"],
)
def test_f19_wide_random_networks(activation, f, slope):
    """The mean over random networks with two hidden layers of 600 units, within four standard errors and the bias of order
    1/width; other variances, another order of the layers or another depth would not pass."""
    rng, x, width = np.random.default_rng(2), X[:3], 600
    samples = np.array([random_network(rng, x, f, slope, width) for _ in range(60)])
    means, errors = samples.mean(axis=0), samples.std(axis=0) / np.sqrt(len(samples))
    for kernel, mean, error in zip((kx.NNGP, kx.NTK), means, errors, strict=True):
        allowed = 4 * error + 3 / width * np.abs(mean)

        def away(depth, weights, biases, kernel=kernel, mean=mean, allowed=allowed):
            return np.max(np.abs(kernel(depth, activation, weights, biases)(x) - mean) / allowed)

        assert away(2, WEIGHT_VARIANCES, BIAS_VARIANCES) < 1
        assert away(2, WEIGHT_VARIANCES, [0.5, 0.0, 0.2]) > 2
        assert away(2, WEIGHT_VARIANCES[::-1], BIAS_VARIANCES) > 2
        assert away(1, WEIGHT_VARIANCES[[0, 2]], BIAS_VARIANCES[[0, 2]]) > 2
    assert np.min(np.abs(means[1] - means[0]) / errors[1]) > 10


def test_f19_a_network_without_hidden_layers_is_linear():
    for kernel in (kx.NNGP, kx.NTK):
        assert_close(kernel(0, kx.kernels.Erf(), 1.7, 0.4)(X, Z), 0.4 + 1.7 * X @ Z.T / 2, 1e-14)


# --- F19: derivatives and hard points -----------------------------------------------------------------------------------

PLACES = np.vstack([X[:3], X[0], np.zeros(2)])  # a point twice, and the origin
EQUAL = (PLACES[:, None] == PLACES[None]).all(axis=-1)


def relu_kernels(theta):
    """NNGP and NTK of two hidden layers in NumPy; equal points have the angle 0 by decree."""
    weights, biases = theta[:3], theta[3:]
    K = biases[0] + weights[0] * PLACES @ PLACES.T / 2
    tangent = K
    for weight, bias in zip(weights[1:], biases[1:], strict=True):
        norms = np.sqrt(np.outer(np.diag(K), np.diag(K)))
        angle = np.where(EQUAL, 0.0, np.arccos(np.clip(K / norms, -1, 1)))
        K = bias + weight * norms * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
        tangent = K + weight * tangent * (np.pi - angle) / (2 * np.pi)
    return np.stack([K, tangent])


def test_f19_derivatives_in_the_variances():
    """Of every entry of both Gram matrices, the diagonal and repeated points included, by finite differences."""
    theta = np.concatenate([WEIGHT_VARIANCES, BIAS_VARIANCES])

    def matrices(theta):
        return jnp.stack([kernel(2, kx.kernels.ReLU(), theta[:3], theta[3:])(PLACES) for kernel in (kx.NNGP, kx.NTK)])

    values, slopes = jax.jit(lambda theta: (matrices(theta), jax.jacfwd(matrices)(theta)))(jnp.asarray(theta))
    assert_close(values, relu_kernels(theta), 1e-13)
    assert_close(slopes, finite_differences(relu_kernels, theta), 1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_f19_derivatives_where_two_points_meet(dtype):
    """`∂k/∂a = 2E[φ'(w·a)φ(w·b)w]` and so on are known for b = a and b = 3a, vanish for b = -a; at a = 0 their mean is."""
    a = jnp.asarray([0.6, -1.1, 0.4], dtype)
    eye, square, outer = np.eye(3), float(a @ a), np.outer(a, a)
    close = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=100 * np.finfo(dtype).eps)  # noqa: E731

    def derivatives(order):
        kernel = kx.ArcCosine(order, np.ones((), dtype), np.zeros((), dtype))
        return jax.jit(lambda a, b: (jax.grad(kernel.pair)(a, b), jax.hessian(kernel.pair, argnums=(0, 1))(a, b)))

    first, second, rough = derivatives(1), derivatives(2), derivatives(0)
    for factor in (1, 3):
        slope, ((own, mixed), _) = first(a, factor * a)
        for ours, theirs in ((slope, factor * a), (own, 0 * eye), (mixed, eye)):
            close(ours, theirs)
    slope, ((own, mixed), _) = second(a, a)
    for ours, theirs in (
        (slope, 6 * square * a),
        (own, 2 * square * eye + 4 * outer),
        (mixed, 4 * square * eye + 8 * outer),
    ):
        close(ours, theirs)
    for opposite in (-a, -3 * a):
        for ours in jax.tree.leaves((first(a, opposite), second(a, opposite))):
            close(ours, 0 * ours)
    close(first(0 * a, a)[0], 0.5 * a)  # the mean of both sides
    close(rough(a, a)[0], 0 * a)  # the kink
    for b in (a, 3 * a, -a, -3 * a, 0 * a):
        for function in (first, second, rough):
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((function(a, b), function(0 * a, b))))


def test_f19_deep_kernels_have_finite_derivatives_everywhere():
    """At equal, parallel, opposite and zero vectors, in inputs and variances, first and second; float32."""
    a = np.array([0.6, -1.1], np.float32)
    pairs = [(a, a), (a, 3 * a), (a, -a), (a, -2.3 * a), (0 * a, a), (0 * a, 0 * a), (a, a * np.float32(1 + 2e-7))]
    left, right = (jnp.stack(side) for side in zip(*pairs, strict=True))

    def value(kernel, a, b):
        return kernel.pair(a, b)

    @jax.jit
    def derivatives(kernel):
        def of_pair(a, b):
            return jax.grad(value, argnums=(0, 1, 2))(kernel, a, b), jax.hessian(value, argnums=(0, 1, 2))(kernel, a, b)

        return jax.vmap(of_pair)(left, right)

    for bias in (0.0, 0.3):
        gradients, hessians = derivatives(kx.NTK(2, kx.kernels.ReLU(), np.float32(1.3), np.float32(bias)))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((gradients, hessians)))
        assert all(np.abs(leaf).max() < 100 for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_f19_small_angles_keep_their_digits(dtype):
    """Directions an angle h apart, or h short of opposite: `1 - h/π` and `h/π` to rounding, where arccos would lose half of
    the digits; whatever the lengths."""
    angles = np.array([0.0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 1.0])
    kernel = kx.ArcCosine(0, np.ones((), dtype), np.zeros((), dtype))
    start = np.array([[1.0, 0.0]], dtype)
    for length, expected in ((1.0, 1 - angles / np.pi), (3.0, 1 - angles / np.pi), (-0.7, angles / np.pi)):
        turned = (length * np.stack([np.cos(angles), np.sin(angles)], axis=1)).astype(dtype)
        np.testing.assert_allclose(kernel(start, turned)[0], expected, rtol=0, atol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("columns", [3, 20, 800])
def test_f19_repeated_rows_repeat_the_gram_matrix(columns):
    """Exactly for the angle, by differences and by matrix product; to rounding for the whole kernel. So it stays
    positive semi-definite, though the kink would show the root of a rounding error."""
    x = np.random.default_rng(3).normal(size=(12, columns)) + 2.0
    x[6:] = x[:6]
    for kernel in (kx.ArcCosine(0), kx.ArcCosine(0, bias_variance=0.0), kx.NTK(3), kx.NTK(2, bias_variance=0.0)):
        gram = np.asarray(jax.jit(lambda k, x: k(x))(kernel, x))
        for block in (gram[6:, :6], gram[:6, 6:], gram[6:, 6:]):
            np.testing.assert_allclose(block, gram[:6, :6], rtol=1e-14)
        assert np.linalg.eigvalsh(gram).min() > -1e-14 * np.trace(gram)


def test_f19_networks_are_fitted():
    """Start and optimum: the start has the targets' variance, and at the end the likelihood is better and stationary."""
    data = kx.Data(X, Y)
    for kernel in (kx.NNGP(depth=2), kx.NTK(1, kx.kernels.Erf()), kx.ArcCosine(1, np.ones(2))):
        start = kx.initialise(kx.Model(kernel, noise=0.1), data)
        assert_close(jnp.mean(start.kernel.diag(jnp.asarray(X))), np.var(Y), 1e-5)
    model = kx.Model(kx.NNGP(depth=2), noise=0.1)
    fit = kx.fit(model, data)
    assert fit.result == kx.Result.successful
    before, after = (kx.log_marginal_likelihood(kx.condition(m, data)) for m in (model, fit.model))
    assert float(after) > float(before) + 0.1


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: kx.ArcCosine(3), ValueError, "order must be 0, 1 or 2"),
        (lambda: kx.ArcCosine(1.5), ValueError, "order must be 0, 1 or 2"),
        (lambda: kx.ArcCosine(weight_variance=np.ones(3))(X), ValueError, "inputs have 2 columns"),
        (lambda: kx.NNGP(-1), ValueError, "whole number of at least 0"),
        (lambda: kx.NTK(1.0), ValueError, "whole number of at least 0"),
        (lambda: kx.NNGP(2, weight_variance=np.ones(2)), ValueError, "3 layers of weights"),
        (lambda: kx.NTK(1, bias_variance=np.ones((2, 1))), ValueError, "2 layers of weights"),
        (lambda: kx.NNGP(1, bias_variance=-0.1), ValueError, "bias_variance must be"),
        (lambda: kx.NNGP(1, kx.kernels.ReLU), TypeError, "instance"),
    ],
)
def test_f19_bad_networks_are_refused(build, error, words):
    with pytest.raises(error, match=words):
        build()
