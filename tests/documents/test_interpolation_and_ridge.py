"""Interpolation, ridge regression and the kernel's function space (F01, F03, F06–F10, F12, F13)."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import null_space

import kernax as kx
from kernax.reports import condition_estimate

from ._oracles import LENGTHSCALE, NOISE, VARIANCE, X, Y, Z, assert_close, monomials, rbf, squared_distances

QUADRATIC = kx.Polynomial(degree=2)  # its feature map is `monomials`, its functions have six coefficients
DATA = kx.Data(X, Y)


def squared_exponential(noise):
    return kx.Model(VARIANCE * kx.RBF(LENGTHSCALE), noise=noise)


@pytest.fixture(scope="module")
def ridge():
    """Kernel ridge regression on ten points."""
    return kx.condition(squared_exponential(NOISE), DATA)


@pytest.fixture(scope="module")
def few():
    """Four points for the six coefficients of a quadratic."""
    return kx.Data(X[:4], Y[:4])


def test_f01_interpolation_has_the_smallest_weights(few):
    """`c = Ψ(ΨᵀΨ)⁻¹f` is the pseudo-inverse's answer, and `f̂(z) = k_zX K⁻¹ f` are its values."""
    weights = np.linalg.pinv(monomials(X[:4])) @ Y[:4]
    c = kx.condition(kx.Model(QUADRATIC, noise=0.0), few)
    assert float(c.jitter) == 0.0
    assert_close(kx.mean(c, Z), monomials(Z) @ weights, 1e-10)
    assert_close(kx.mean(c, X[:4]), Y[:4], 1e-10)
    assert_close(kx.posterior.rkhs_norm(c), np.linalg.norm(weights), 1e-10)


def test_f01_interpolation_is_the_limit_of_ridge_regression(few):
    """As λ goes to 0, kernel ridge regression goes to the interpolant, at the rate of λ."""
    exact = monomials(Z) @ np.linalg.pinv(monomials(X[:4])) @ Y[:4]

    def error(ridge):
        return np.max(np.abs(np.asarray(kx.mean(kx.condition(kx.Model(QUADRATIC, noise=ridge), few), Z)) - exact))

    assert error(1e-10) < 1e-8
    assert error(1e-6) / error(1e-4) == pytest.approx(1e-2, rel=0.01)


def test_f01_with_no_more_features_than_points_the_limit_is_least_squares():
    """N ≤ m: no interpolant exists, and λ → 0 gives ordinary least squares, again at the rate of λ."""
    features = monomials(X)
    weights = np.linalg.lstsq(features, Y)[0]
    moments = features.T @ features
    slope = -monomials(Z) @ np.linalg.solve(moments, weights)  # d/dλ (ΦᵀΦ + λI)⁻¹Φᵀy at 0
    ridge = 1e-5
    predictions = kx.mean(kx.condition(kx.Model(QUADRATIC, noise=ridge), DATA), Z)
    assert_close(predictions, monomials(Z) @ weights, 1e-4)
    assert_close((np.asarray(predictions) - monomials(Z) @ weights) / ridge, slope, 1e-3)


def test_f03_kernel_ridge_regression(ridge):
    """`f̂(x) = k_xX (K + λI)⁻¹ y`."""
    alpha = np.linalg.solve(rbf(X, X) + NOISE * np.eye(len(X)), Y)
    assert_close(ridge.alpha, alpha)
    assert_close(kx.mean(ridge, Z), rbf(Z, X) @ alpha)


def test_f03_the_objective_is_stationary_at_the_answer(ridge):
    """`λ‖f‖² + ‖f_X - y‖²` has the gradient `2K(K̃α - y)`, which is 0 at alpha and only larger values around it."""
    K = rbf(X, X)

    def objective(alpha):
        return NOISE * alpha @ K @ alpha + jnp.sum((K @ alpha - Y) ** 2)

    slope = jax.grad(objective)
    elsewhere = np.cos(np.arange(len(X)))
    assert_close(slope(elsewhere), 2 * K @ (K @ elsewhere + NOISE * elsewhere - Y))
    assert np.max(np.abs(slope(ridge.alpha))) < 1e-11
    # The API's own numbers for both terms give the objective's value.
    residuals = Y - np.asarray(kx.mean(ridge, X))
    smallest = NOISE * float(kx.posterior.rkhs_norm(ridge)) ** 2 + residuals @ residuals
    assert smallest == pytest.approx(float(objective(ridge.alpha)), rel=1e-11)
    for direction in np.eye(len(X)):
        assert float(objective(ridge.alpha + 1e-3 * direction)) > smallest


def test_f03_the_function_is_unique_even_where_alpha_is_not():
    """Where K is singular, alpha plus a null vector of K is another minimiser, but the same function."""
    features = monomials(X)
    K = features @ features.T
    null = null_space(K)
    assert null.shape == (10, 4)
    c = kx.condition(kx.Model(QUADRATIC, noise=NOISE), DATA)
    other = np.asarray(c.alpha) + null @ np.array([1.0, -2.0, 0.5, 3.0])
    assert np.max(np.abs(other - np.asarray(c.alpha))) > 0.5
    slope = 2 * K @ (K @ other + NOISE * other - Y)
    assert np.max(np.abs(slope)) < 1e-9
    assert_close(kx.mean(c, Z), monomials(Z) @ features.T @ other, 1e-10)
    weights = np.linalg.solve(features.T @ features + NOISE * np.eye(6), features.T @ Y)
    assert_close(kx.mean(c, Z), monomials(Z) @ weights, 1e-10)


def test_f06_several_outputs_are_as_many_single_fits():
    """With several observables y, every column is the fit to that column alone."""
    outputs = np.stack([Y, np.cos(X[:, 1]), 3.0 - Y**2], axis=1)
    c = kx.condition(squared_exponential(NOISE), kx.Data(X, outputs))
    singles = [kx.condition(squared_exponential(NOISE), kx.Data(X, column)) for column in outputs.T]
    assert_close(c.alpha, np.linalg.solve(rbf(X, X) + NOISE * np.eye(10), outputs))
    assert_close(kx.mean(c, Z), rbf(Z, X) @ np.linalg.solve(rbf(X, X) + NOISE * np.eye(10), outputs))
    assert_close(kx.mean(c, Z), np.stack([kx.mean(s, Z) for s in singles], axis=1))
    assert_close(kx.loo_residuals(c), np.stack([kx.loo_residuals(s) for s in singles], axis=1))
    assert_close(kx.posterior.rkhs_norm(c), np.stack([kx.posterior.rkhs_norm(s) for s in singles]))
    assert_close(kx.variance(c, Z), kx.variance(singles[0], Z))
    assert_close(kx.log_marginal_likelihood(c), sum(float(kx.log_marginal_likelihood(s)) for s in singles))
    assert_close(kx.loo_mse(c), np.mean([kx.loo_mse(s) for s in singles]))


def test_f07_the_mean_loss_takes_n_times_the_ridge():
    """`(1/n)Σ(y - f)² + λ‖f‖²` is the sum form with nλ: against least squares on the stacked system."""
    ridge, n = 0.05, len(X)
    stacked = np.vstack([X / np.sqrt(n), np.sqrt(ridge) * np.eye(2)])
    weights = np.linalg.lstsq(stacked, np.concatenate([Y / np.sqrt(n), np.zeros(2)]))[0]
    assert_close(kx.mean(kx.condition(kx.Model(kx.Linear(), noise=n * ridge), DATA), Z), Z @ weights)


def test_f07_the_dual_of_ridge_regression():
    """`α = 2λ(K + λI)⁻¹y`, `ξ = α/2`, `w = Σαᵢxᵢ/2λ`; primal and dual have the same value, `λyᵀ(K + λI)⁻¹y`."""
    stacked = np.vstack([X, np.sqrt(NOISE) * np.eye(2)])
    weights = np.linalg.lstsq(stacked, np.concatenate([Y, np.zeros(2)]))[0]
    slack = Y - X @ weights
    primal = NOISE * weights @ weights + slack @ slack

    def dual(multipliers):
        return multipliers @ Y - multipliers @ multipliers / 4 - np.sum((X.T @ multipliers) ** 2) / (4 * NOISE)

    c = kx.condition(kx.Model(kx.Linear(), noise=NOISE), DATA)
    multipliers = 2 * NOISE * np.asarray(c.alpha)
    assert_close(multipliers / 2, slack)
    assert_close(X.T @ multipliers / (2 * NOISE), weights)
    assert_close(kx.posterior.rkhs_norm(c) ** 2, weights @ weights)
    assert_close(dual(multipliers), primal)
    assert_close(-2 * NOISE * kx.selection.likelihood_terms(c).fidelity, primal)
    for direction in np.eye(len(X)):
        assert dual(multipliers + 1e-2 * direction) < primal


def test_f08_inner_products_and_norms_of_functions(few):
    """`⟨Σcᵢk_xᵢ, Σdⱼk_xⱼ⟩ = cᵀKd`, `‖f̂‖² = αᵀKα`: those of the coefficients of explicit features."""
    model = kx.Model(QUADRATIC, noise=NOISE)
    f, g = kx.condition(model, DATA), kx.condition(model, few)
    f_weights = monomials(X).T @ np.asarray(f.alpha)
    g_weights = monomials(X[:4]).T @ np.asarray(g.alpha)
    assert_close(kx.posterior.rkhs_inner(f, g), f_weights @ g_weights)
    assert_close(kx.posterior.rkhs_inner(g, f), f_weights @ g_weights)
    assert_close(kx.posterior.rkhs_norm(f) ** 2, f_weights @ f_weights)
    assert_close(kx.posterior.rkhs_inner(f, f), f.alpha @ (X @ X.T + 1.0) ** 2 @ f.alpha)


def test_f08_the_kernel_reproduces(ridge):
    """`⟨f, k_x⟩ = f(x)`: `k_x` itself is the interpolant, from the one point x, of the value `k(x, x)`."""
    values = []
    for point in Z:
        section = kx.condition(squared_exponential(0.0), kx.Data(point[None], np.array([VARIANCE])))
        assert_close(section.alpha, np.ones(1))
        values.append(kx.posterior.rkhs_inner(ridge, section))
    assert_close(np.stack(values), rbf(Z, X) @ np.linalg.solve(rbf(X, X) + NOISE * np.eye(10), Y))


def test_f09_representer_theorem(ridge):
    """A component orthogonal to all `k(·, xᵢ)` leaves the loss as it is and can only raise the norm."""
    apart = Z[:1]
    everywhere = np.vstack([X, apart])
    # k_z less its interpolant on X vanishes on X, and so is orthogonal to every k(·, xᵢ).
    added = np.append(-np.linalg.solve(rbf(X, X), rbf(X, apart)[:, 0]), 1.0)
    assert np.max(np.abs(rbf(X, everywhere) @ added)) < 1e-10
    height = kx.power_function(kx.condition(squared_exponential(0.0), DATA), apart)[0]
    fitted = np.append(ridge.alpha, 0.0)
    for share in (-0.7, 0.4):
        coefficients = fitted + share * added
        assert_close(rbf(X, everywhere) @ coefficients, kx.mean(ridge, X), 1e-10)
        norm_squared = coefficients @ rbf(everywhere, everywhere) @ coefficients
        assert norm_squared > float(kx.posterior.rkhs_norm(ridge)) ** 2 + 1e-3
        assert_close(norm_squared, kx.posterior.rkhs_norm(ridge) ** 2 + share**2 * height**2, 1e-10)


KERNELS = {
    "RBF": kx.RBF(lengthscale=np.array([0.7, 1.3])),
    "Matern12": kx.Matern12(0.8),
    "Matern32": kx.Matern32(0.8),
    "Matern52": kx.Matern52(0.8),
    "RationalQuadratic": kx.RationalQuadratic(0.8, alpha=0.6),
    "Periodic": kx.Periodic(lengthscale=0.9, period=np.array([1.7, 2.3])),
    "Cosine": kx.Cosine(period=np.array([1.7, 2.3])),
    "Linear": kx.Linear(variance=np.array([0.4, 1.9])),
    "ArcCosine": kx.ArcCosine(order=0, weight_variance=np.array([0.4, 1.9]), bias_variance=0.3),
    "NNGP": kx.NNGP(depth=3, weight_variance=1.6),
    "RandomFeatures": kx.RandomFeatures(kx.Matern32(0.8), 16),
    "NTK": kx.NTK(depth=2, bias_variance=np.array([0.4, 0.2, 0.0])),
    "Polynomial": kx.Polynomial(degree=3, scale=0.5, offset=0.7),
    "Constant": kx.Constant(1.4),
    "Scale": 2.5 * kx.Matern32(1.1),
    "Sum": kx.RBF(0.6) + kx.Linear() + 0.3,
    "Product": kx.RBF(1.2) * kx.Linear() * kx.Cosine(3.0),
    "Power": (kx.Linear() + 0.5) ** 3,
    "Select": kx.Select(kx.Matern52(0.5), columns=1),
    "Warp": kx.Warp(kx.RBF(0.5), jnp.tanh),
    "FeatureMap": kx.FeatureMap(lambda a: jnp.stack([jnp.sin(a[0]), a[0] * a[1], jnp.exp(-a[1])])),
    "Matern": kx.Matern(0.8, nu=1.2),
    "White": kx.kernels.White(variance=0.7),
    "Wendland": kx.kernels.Wendland(lengthscale=np.array([1.4, 2.5]), smoothness=1, columns=2),
    "ChangePoint": kx.kernels.ChangePoint(kx.RBF(), 0.7 * kx.Matern52(), location=4.2, width=0.4, column=1),
    "Gibbs": kx.kernels.Gibbs(lambda a: jnp.sin(a[0])),
    "SpectralMixture": kx.kernels.SpectralMixture([0.7, 0.4], [[0.3, 0.1], [0.9, 0.5]], [[0.2, 0.1], [0.1, 0.3]]),
    "Additive": kx.kernels.Additive([kx.RBF(0.8), kx.Matern52()], 2, variance=[0.6, 0.9]),
    "OrthogonalAdditive": kx.kernels.OrthogonalAdditive(kx.RBF(0.8), 2, columns=2, inputs=kx.kernels.NormalInputs(4.0, 1.2)),
}
ONE_COLUMN = {
    "SHO": [kx.kernels.SHO(period=1.7, quality=quality) for quality in (0.2, 0.5, 3.0)],
    "ZeroMean": [kx.kernels.ZeroMean(kernel, kx.kernels.NormalInputs(4.0, 1.2)) for kernel in (kx.RBF(0.8), kx.Matern52())],
}
"""Kernels of one column only, each in a few of its forms."""
OF_OTHER_ROWS = ("Categorical", "Coregion", "Graph", "Hamming", "OfFunctionals", "Tanimoto")
"""Kernels of labels, of sets and of functionals, in `test_more_kernels.py`, `test_coregion.py` and `test_observe.py`."""
CONDITIONAL = {"CubicSpline": (kx.CubicSpline(), 1), "ThinPlate": (kx.ThinPlate(order=3), 2)}
"""Definite only up to polynomials of this degree."""
# With a point twice over, far points, and a large common offset.
PLACES = np.vstack([X, X[3], 1.5 * X[0]]) + 4.0


def assert_kernel_matrix(matrix):
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-14, atol=0)
    assert np.linalg.eigvalsh(matrix).min() > -1e-13 * np.trace(matrix)


@pytest.fixture(scope="module")
def grams():
    """Every kernel's matrices: on one set of points, between two sets either way, and the diagonal. Compiled together."""
    places = jnp.asarray(PLACES)
    matrices = jax.jit(
        lambda x: {name: (k(x), k(x[:5], x), k(x, x[:5]), k.diag(x)) for name, k in KERNELS.items()},
    )(places)
    return jax.tree.map(np.asarray, matrices)


NEIGHBOURS = list(zip(KERNELS, [*list(KERNELS)[1:], "RBF"], strict=True))


@pytest.fixture(scope="module")
def combined():
    """The matrices of sums and products of neighbours in the table."""

    def of_pair(first, second, x):
        return (KERNELS[first] + KERNELS[second])(x), (KERNELS[first] * KERNELS[second])(x)

    matrices = jax.jit(lambda x: {pair: of_pair(*pair, x) for pair in NEIGHBOURS})(jnp.asarray(PLACES))
    return jax.tree.map(np.asarray, matrices)


def test_f10_every_kernel_of_the_library_is_in_the_table():
    """A kernel that is added to the library must be shown to be one."""
    classes = {name: getattr(kx.kernels, name) for name in kx.kernels.__all__ if isinstance(getattr(kx.kernels, name), type)}
    library = {name for name, c in classes.items() if issubclass(c, kx.AbstractKernel) and not name.startswith("Abstract")}
    assert set(KERNELS) | set(ONE_COLUMN) | set(CONDITIONAL) | set(OF_OTHER_ROWS) == library
    assert all(type(kernel).__name__ == name for name, kernel in KERNELS.items())
    assert not any(kernel.trend() is not None for kernel in KERNELS.values())


@pytest.mark.parametrize("name", ONE_COLUMN)
def test_f10_a_kernel_of_one_column_is_symmetric_and_positive_semidefinite(name):
    for kernel in ONE_COLUMN[name]:
        assert type(kernel).__name__ == name
        assert_kernel_matrix(np.asarray(kernel(PLACES[:, :1])))


@pytest.mark.parametrize("name", CONDITIONAL)
def test_f10_a_spline_is_positive_semidefinite_only_beside_its_polynomials(name):
    """`vᵀKv ≥ 0` for every v that sums to 0 against the polynomials; without that, K is indefinite."""
    kernel, degree = CONDITIONAL[name]
    gram = np.asarray(kernel(PLACES))
    np.testing.assert_allclose(gram, gram.T, rtol=1e-14, atol=0)
    assert np.linalg.eigvalsh(gram).min() < -1e-2 * np.abs(gram).max()
    centred = PLACES - PLACES.mean(axis=0)
    powers = [(i, j) for i in range(degree + 1) for j in range(degree + 1 - i)]
    monomials = np.stack([centred[:, 0] ** i * centred[:, 1] ** j for i, j in powers], axis=1)
    contrasts = np.linalg.svd(monomials)[0][:, len(powers) :]
    assert np.linalg.eigvalsh(contrasts.T @ gram @ contrasts).min() > -1e-12 * np.abs(gram).max()


@pytest.mark.parametrize("name", KERNELS)
def test_f10_a_kernel_is_symmetric_and_positive_semidefinite(name, grams):
    """Also between two sets of points: `k(x, z) = k(z, x)ᵀ`, and the diagonal is the kernel of a point with itself."""
    matrix, rows, columns, diagonal = grams[name]
    assert np.trace(matrix) > 0.1
    assert_kernel_matrix(matrix)
    assert_close(rows, matrix[:5], 1e-12)
    assert_close(columns, matrix[:, :5], 1e-12)
    assert_close(diagonal, np.diagonal(matrix), 1e-14)


@pytest.mark.parametrize("pair", NEIGHBOURS, ids=" and ".join)
def test_f10_sums_and_products_of_kernels_are_kernels(pair, grams, combined):
    """Sum and entrywise product of the Gram matrices, both positive semi-definite."""
    (first, *_), (second, *_) = grams[pair[0]], grams[pair[1]]
    total, product = combined[pair]
    assert_close(total, first + second, 1e-14)
    assert_close(product, first * second, 1e-14)
    assert_kernel_matrix(total)
    assert_kernel_matrix(product)


def test_f10_a_ridge_makes_any_design_invertible():
    """The eigenvalues of `XᵀX + λI` are at least λ, so the ridge has an answer where least squares has none."""
    design = np.column_stack([X, X[:, 0] - 2 * X[:, 1]])  # rank 2 of 3
    moments = design.T @ design
    assert np.linalg.eigvalsh(moments)[0] < 1e-12
    shifted = np.linalg.eigvalsh(moments + NOISE * np.eye(3))
    assert shifted.min() > NOISE * (1 - 1e-12)
    # The Gram matrix XXᵀ + λI has the same eigenvalues, and λ for the rest.
    gram = np.linalg.eigvalsh(np.asarray(kx.Linear()(design)) + NOISE * np.eye(10))
    assert_close(gram, np.sort(np.append(shifted, np.full(7, NOISE))), 1e-13)
    c = kx.condition(kx.Model(kx.Linear(), noise=NOISE), kx.Data(design, Y))
    assert float(c.jitter) == 0.0
    assert_close(kx.mean(c, design), design @ np.linalg.solve(moments + NOISE * np.eye(3), design.T @ Y))


def test_f12_the_other_parametrisation_of_the_squared_exponential():
    """`s² exp(-‖x - y‖²/λ)` is the squared exponential kernel with `ℓ = √(λ/2)`."""
    s, width = 1.3, 0.8
    expected = s**2 * np.exp(-squared_distances(X, Z) / width)
    assert_close((s**2 * kx.RBF(np.sqrt(width / 2)))(X, Z), expected, 1e-14)


def line(n):
    """n points on a line of length 1, in as many rows and columns as `X` (so that nothing is compiled anew)."""
    x = np.zeros_like(X)
    x[:n, 0] = np.linspace(0.0, 1.0, n)
    return x, np.arange(len(X)) < n


def test_f13_conditioning_worsens_with_points_and_lengthscale():
    """The squared exponential's matrix is ill-conditioned, the worse the more points and the larger the lengthscale."""
    estimate_of = condition_estimate

    def estimate(n, lengthscale):
        x, counts = line(n)
        c = kx.condition(kx.Model(1.0 * kx.RBF(lengthscale), noise=1e-9), kx.Data(x, Y, counts))
        assert float(c.jitter) == 0.0
        return float(estimate_of(c))

    def exact(n, lengthscale):
        x = line(n)[0][:n]
        return np.linalg.cond(rbf(x, x, lengthscale, 1.0) + 1e-9 * np.eye(n))

    cases = [(4, 0.1), (4, 0.3), (6, 0.3), (8, 0.3), (8, 0.5)]
    estimates = [estimate(*case) for case in cases]
    assert all(later > 3 * earlier for earlier, later in itertools.pairwise(estimates))
    assert estimates[-1] > 1e8
    assert estimates == pytest.approx([exact(*case) for case in cases], rel=0.05)


def test_f13_what_float32_needs_is_reported():
    """The same matrix factorises in float64 as it is; in float32 only with jitter, which is said."""
    x = line(10)[0]
    rounded = kx.Data(x.astype(np.float32), Y.astype(np.float32))

    def needs_jitter(lengthscale):
        model = kx.Model(1.0 * kx.RBF(lengthscale), noise=0.0)
        double = kx.condition(model, kx.Data(x, Y))
        assert double.alpha.dtype == jnp.float64
        assert float(double.jitter) == 0.0
        return float(kx.condition(model, rounded, throw=False).jitter) > 0.0

    # Three eigenvalues or more are below float32's rounding: how it falls is the processor's affair, but not always well.
    lengthscale = next(filter(needs_jitter, (0.5, 0.54, 0.58, 0.62, 0.66)))
    model, K = kx.Model(1.0 * kx.RBF(lengthscale), noise=0.0), rbf(x, x, lengthscale, 1.0)
    with pytest.raises(kx.FailedError, match="singular"):
        kx.condition(model, rounded)
    single = kx.condition(model, rounded, throw=False)
    assert single.alpha.dtype == kx.mean(single, Z).dtype == jnp.float32
    assert bool(single.result == kx.Result.singular)
    # A few roundings of the diagonal, which is 1, and not the largest jitter allowed.
    assert np.finfo(np.float32).eps < float(single.jitter) < 1e-4
    report = str(kx.report(single))
    assert "float32" in report
    assert f"{float(single.jitter):.3g} (added to the diagonal beyond the noise)" in report

    # With a noise of its own the matrix needs no help.
    noisy = kx.condition(kx.Model(1.0 * kx.RBF(lengthscale), noise=NOISE), rounded)
    assert float(noisy.jitter) == 0.0
    assert_close(noisy.alpha, np.linalg.solve(K + NOISE * np.eye(10), Y), 1e-5)
