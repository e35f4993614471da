"""The marginal likelihood, its terms and their derivatives (F32–F35)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import kernax as kx
from kernax.solvers import _raw

from ._oracles import (
    LENGTHSCALE,
    NOISE,
    THETA,
    VARIANCE,
    X,
    Y,
    assert_close,
    finite_differences,
    system,
    system_slopes,
)

SLOPE, LEVEL = np.array([0.4, -1.1]), 0.7
PRIOR_MEAN = X @ SLOPE + LEVEL


def conditioned(theta, y=Y):
    lengthscale, variance, noise = theta
    model = kx.Model(variance * kx.RBF(lengthscale), noise=noise, mean=kx.means.Linear(SLOPE, LEVEL))
    return kx.condition(model, kx.Data(X, y))


def test_f32_log_density_of_the_data():
    """`log p(y)` is that of a normal with mean μ and covariance `K + σ²I`."""
    c = conditioned((LENGTHSCALE, VARIANCE, NOISE))
    expected = multivariate_normal(PRIOR_MEAN, system()).logpdf(Y)
    assert_close(kx.log_marginal_likelihood(c), expected, 1e-12)
    assert_close(kx.selection.negative_log_marginal_likelihood(c), -expected, 1e-12)


def test_f32_fidelity_complexity_and_constant():
    """The three terms apart; the fidelity is 0, its maximum, where y is what the mean expects."""
    terms = kx.selection.likelihood_terms(conditioned(THETA))
    deviation = Y - PRIOR_MEAN
    assert_close(terms.fidelity, -0.5 * deviation @ np.linalg.solve(system(), deviation), 1e-12)
    assert_close(terms.complexity, -0.5 * np.linalg.slogdet(system())[1], 1e-12)
    assert_close(terms.constant, -5.0 * np.log(2 * np.pi), 1e-15)
    as_expected = kx.selection.likelihood_terms(conditioned(THETA, PRIOR_MEAN))
    assert abs(float(as_expected.fidelity)) < 1e-25
    assert float(as_expected.complexity) == float(terms.complexity)


def test_f33_derivatives_of_the_terms():
    """`δ fidelity = ½cᵀδK c`, `δ complexity = -½ tr(K̃⁻¹δK)`: closed form = autodiff = finite differences."""
    theta = tuple(jnp.asarray(value) for value in THETA)
    automatic = jax.jit(jax.jacrev(lambda theta: kx.selection.likelihood_terms(conditioned(theta))))(theta)
    deviation = Y - PRIOR_MEAN
    inverse = np.linalg.inv(system())
    coefficients = inverse @ deviation
    fidelity = finite_differences(lambda theta: -0.5 * deviation @ np.linalg.solve(system(theta), deviation))
    complexity = finite_differences(lambda theta: -0.5 * np.linalg.slogdet(system(theta))[1])
    for j, slope in enumerate(np.moveaxis(system_slopes(), -1, 0)):
        assert_close(automatic.fidelity[j], 0.5 * coefficients @ slope @ coefficients, 1e-11)
        assert_close(automatic.fidelity[j], fidelity[j], 1e-9)
        assert_close(automatic.complexity[j], -0.5 * np.trace(inverse @ slope), 1e-11)
        assert_close(automatic.complexity[j], complexity[j], 1e-9)
        assert float(automatic.constant[j]) == 0.0


class Table(kx.AbstractKernel):
    """`aᵀ M b`: on the rows of the identity, the Gram matrix is M itself."""

    matrix: jax.Array = kx.parameters.real()

    def pair(self, a, b):
        return a @ self.matrix @ b


def determinants(matrix):
    """Log-determinant and determinant through the public API: the complexity is minus half of the former."""
    n = matrix.shape[0]
    c = kx.condition(kx.Model(Table(matrix), noise=0.0), kx.Data(jnp.eye(n), jnp.zeros(n)))
    logarithm = -2 * kx.selection.likelihood_terms(c).complexity
    return logarithm, jnp.exp(logarithm)


@jax.jit
def along(matrix, direction):
    """Both determinants, and their derivatives in a direction."""
    return jax.jvp(determinants, (matrix,), (direction,))


DIRECTION = np.cos(np.add.outer(np.arange(10.0), np.arange(10.0)) ** 2) / 3  # symmetric, of no special form


def test_f34_determinant_near_the_identity():
    """`det(I + tE) = 1 + t tr E + O(t²)`: what remains is `t²((tr E)² - tr E²)/2`, to the next order."""
    second = (np.trace(DIRECTION) ** 2 - np.trace(DIRECTION @ DIRECTION)) / 2
    for step in (1e-3, -1e-3):
        (_, determinant), _ = along(np.eye(10) + step * DIRECTION, DIRECTION)
        assert_close(determinant, np.linalg.det(np.eye(10) + step * DIRECTION), 1e-13)
        remainder = float(determinant) - 1 - step * np.trace(DIRECTION)
        assert remainder == pytest.approx(step**2 * second, rel=0.02)
    _, (_, slope) = along(np.eye(10), DIRECTION)
    assert_close(slope, np.trace(DIRECTION), 1e-13)


def test_f34_derivative_of_the_determinant():
    """`δ det K = det K tr(K⁻¹δK)` and `δ log det K = tr(K⁻¹δK)`: autodiff = closed form = finite differences."""
    K = system()
    trace = np.trace(np.linalg.solve(K, DIRECTION))
    (logarithm, determinant), (logarithm_slope, determinant_slope) = along(K, DIRECTION)
    assert_close(logarithm, np.linalg.slogdet(K)[1], 1e-12)
    assert_close(determinant, np.linalg.det(K), 1e-12)
    assert_close(logarithm_slope, trace, 1e-11)
    assert_close(determinant_slope, np.linalg.det(K) * trace, 1e-11)
    differences = finite_differences(lambda t: np.linalg.slogdet(K + t[0] * DIRECTION)[1], [0.0])
    assert_close(logarithm_slope, differences[0], 1e-8)
    differences = finite_differences(lambda t: np.linalg.det(K + t[0] * DIRECTION), [0.0])
    assert_close(determinant_slope, differences[0], 1e-8)


def test_f35_value_and_gradient_come_from_one_factorisation(monkeypatch):
    """Counted as they run: one Cholesky factorisation, and no other, for the value and ten derivatives."""
    counted = []
    factorise = _raw.cholesky

    def counting(matrix, added):
        jax.debug.callback(lambda: counted.append(matrix.shape[0]))
        return factorise(matrix, added)

    monkeypatch.setattr(_raw, "cholesky", counting)
    # Of a size and a kernel that no other test has compiled.
    x = np.random.default_rng(35).normal(size=(17, 8))
    model = kx.Model(1.1 * kx.Matern52(np.full(8, 1.5)), noise=0.2)
    data = kx.Data(x, np.sin(x[:, 0]))
    _, gradient = jax.value_and_grad(lambda model: kx.log_marginal_likelihood(kx.condition(model, data)))(model)
    jax.effects_barrier()
    assert sum(np.size(leaf) for leaf in jax.tree.leaves(gradient)) == 10
    assert counted == [17]


def of_seed(theta, seed, probes):
    lengthscale, variance, noise = theta
    model = kx.Model(variance * kx.RBF(lengthscale), noise=noise)
    solver = kx.CG(kx.LowRank(2), num_probes=probes, tolerance=1e-10, seed=seed)
    return -2 * kx.selection.likelihood_terms(kx.condition(model, kx.Data(X, Y), solver)).complexity


def test_f35_lanczos_against_the_exact_determinant():
    """The quadrature is exact once the run is as long as the matrix is large, so only the probes' spread is left."""
    lengthscale, variance, noise = THETA
    model = kx.Model(variance * kx.RBF(lengthscale), noise=noise)
    exact = np.linalg.slogdet(system())[1]
    for rank, probes in ((2, 1000), (10, 2)):
        c = kx.condition(model, kx.Data(X, Y), kx.CG(kx.LowRank(rank), num_probes=probes))
        terms = kx.selection.likelihood_terms(c)
        error = abs(-2 * float(terms.complexity) - exact)
        # With all rows as inducing rows, the preconditioner is the matrix itself, and nothing is left to estimate.
        assert error < (4 * 2 * float(terms.standard_error) if rank == 2 else 1e-9)
        assert (float(terms.standard_error) > 1e-3) == (rank == 2)


def test_f35_the_stochastic_trace_is_unbiased():
    """The gradient, averaged over many seeds of few probes, is `tr(K̃⁻¹ δK̃)` within its standard error."""
    theta = jnp.asarray(THETA)
    estimates = np.array([jax.jit(jax.grad(lambda t, s=seed: of_seed(t, s, 300)))(theta) for seed in range(6)])
    inverse = np.linalg.inv(system())
    exact = np.array([np.trace(inverse @ slope) for slope in np.moveaxis(system_slopes(), -1, 0)])
    error = np.std(estimates, axis=0, ddof=1) / np.sqrt(len(estimates))
    assert np.all(np.abs(np.mean(estimates, axis=0) - exact) < 5 * error)
    # The errors are small enough for a wrong trace to show.
    assert np.all(error < 0.05 * np.abs(exact))
