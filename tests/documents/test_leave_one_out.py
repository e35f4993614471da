"""Leave-one-out residuals from one factorisation, and their derivatives (F22–F26)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx

from ._oracles import (
    LENGTHSCALE,
    NOISE,
    THETA,
    VARIANCE,
    X,
    Y,
    assert_close,
    finite_differences,
    rbf,
    refits_without_each,
    system,
    system_slopes,
)

DATA = kx.Data(X, Y)
PARAMETERS = ("lengthscale", "variance", "noise")


def conditioned(theta):
    lengthscale, variance, noise = theta
    return kx.condition(kx.Model(variance * kx.RBF(lengthscale), noise=noise), DATA)


def quantities(theta):
    """What the documents differentiate, through the public API."""
    c = conditioned(theta)
    return {
        "inverse": c.system.solve(jnp.eye(len(X))).value,
        "alpha": c.alpha,
        "inverse diagonal": c.system.inverse_diagonal(),
        "residuals": kx.loo_residuals(c),
        "score": kx.loo_mse(c),
    }


@pytest.fixture(scope="module")
def c():
    return conditioned(THETA)


@pytest.fixture(scope="module", params=["forward", "reverse"])
def slopes(request):
    """Autodiff of all of `quantities`, the last axis being lengthscale, variance and noise."""
    differentiate = {"forward": jax.jacfwd, "reverse": jax.jacrev}[request.param]
    by_parameter = jax.jit(differentiate(quantities))(tuple(jnp.asarray(value) for value in THETA))
    return {name: np.stack(columns, axis=-1) for name, columns in by_parameter.items()}


def test_f22_residuals_of_n_refits(c):
    """`r⁽⁻ⁱ⁾ = cᵢ/[K̃⁻¹]ᵢᵢ` is what the fit without point i leaves at point i."""
    residuals, _ = refits_without_each(rbf(X, X), Y, NOISE)
    assert_close(kx.loo_residuals(c), residuals)
    assert_close(kx.loo_mean(c), Y - residuals)


def test_f22_residuals_around_a_mean():
    """With a mean function, which is not refitted, `y - μ_X` stands in for y."""
    level, slope = 0.7, np.array([0.4, -1.1])
    model = kx.Model(VARIANCE * kx.RBF(LENGTHSCALE), noise=NOISE, mean=kx.means.Linear(slope, level))
    residuals, _ = refits_without_each(rbf(X, X), Y - X @ slope - level, NOISE)
    assert_close(kx.loo_residuals(kx.condition(model, DATA)), residuals)


def test_f22_bordered_system(c):
    """`[[K̃, eᵢ], [eᵢᵀ, 0]] [c⁽⁻ⁱ⁾; r⁽⁻ⁱ⁾] = [y; 0]`: the coefficient of point i is held at 0, its residual is free."""
    residuals = np.asarray(kx.loo_residuals(c))
    for unit, residual in zip(np.eye(10), residuals, strict=True):
        bordered = np.block([[system(), unit[:, None]], [unit[None], np.zeros((1, 1))]])
        solution = np.linalg.solve(bordered, np.append(Y, 0.0))
        assert abs(unit @ solution[:10]) < 1e-12
        assert residual == pytest.approx(solution[10], rel=1e-10)


def test_f22_residuals_by_leverage(c):
    """The same as `(y - Hy)ᵢ/(1 - hᵢᵢ)` with the smoother `H = K K̃⁻¹`."""
    smoother = np.linalg.solve(system(), rbf(X, X)).T
    assert_close(kx.loo_residuals(c), (Y - smoother @ Y) / (1 - np.diagonal(smoother)))


def test_f23_the_inverse_diagonal_is_the_power_function_and_the_noise(c):
    """`1/[K̃⁻¹]ᵢᵢ = P²₋ᵢ(xᵢ) + σ²`: the variance of the observation, of which the function's is the part without σ²."""
    _, variances = refits_without_each(rbf(X, X), Y, NOISE)
    assert_close(1 / np.asarray(c.system.inverse_diagonal()), variances + NOISE)
    assert_close(kx.loo_variance(c, noisy=True), variances + NOISE)
    assert_close(kx.loo_variance(c), variances)


def test_f23_leave_one_out_density_of_n_refits(c):
    """Residual and variance together: `-Σ log p(yᵢ | the others)`."""
    residuals, variances = refits_without_each(rbf(X, X), Y, NOISE)
    observed = variances + NOISE
    assert_close(kx.loo_negative_log_density(c), 0.5 * np.sum(residuals**2 / observed + np.log(2 * np.pi * observed)))


def test_f24_derivatives_of_the_residuals(slopes):
    """`δr⁽⁻ⁱ⁾ = [δK̃ w]ᵀ(w cᵢ - c wᵢ)/wᵢ²`: closed form = autodiff = finite differences of n refits."""
    inverse = np.linalg.inv(system())
    coefficients = inverse @ Y
    closed = np.empty((10, 3))
    for i, w in enumerate(inverse):
        for j, slope in enumerate(np.moveaxis(system_slopes(), -1, 0)):
            closed[i, j] = (slope @ w) @ (w * coefficients[i] - coefficients * w[i]) / w[i] ** 2

    def residuals(theta):
        return refits_without_each(rbf(X, X, theta[0], theta[1]), Y, theta[2])[0]

    differences = finite_differences(residuals)
    for j in range(len(PARAMETERS)):
        assert_close(slopes["residuals"][:, j], closed[:, j], 1e-11)
        assert_close(slopes["residuals"][:, j], differences[:, j], 1e-9)


def test_f25_derivatives_of_the_inverse_and_of_the_coefficients(slopes):
    """`δ[K̃⁻¹] = -K̃⁻¹δK̃K̃⁻¹`, `δc = -K̃⁻¹δK̃c`, `δcᵢ = -wᵀδK̃c`, `δ[K̃⁻¹]ᵢᵢ = -wᵀδK̃w`: three ways each."""
    inverse = np.linalg.inv(system())
    coefficients = inverse @ Y
    differences = {
        "inverse": finite_differences(lambda theta: np.linalg.inv(system(theta))),
        "alpha": finite_differences(lambda theta: np.linalg.solve(system(theta), Y)),
        "inverse diagonal": finite_differences(lambda theta: np.diagonal(np.linalg.inv(system(theta)))),
    }
    for j, slope in enumerate(np.moveaxis(system_slopes(), -1, 0)):
        closed = {
            "inverse": -inverse @ slope @ inverse,
            "alpha": -inverse @ slope @ coefficients,
            "inverse diagonal": np.array([-w @ slope @ w for w in inverse]),
        }
        for name, expected in closed.items():
            assert_close(slopes[name][..., j], expected, 1e-11)
            assert_close(slopes[name][..., j], differences[name][..., j], 1e-9)
        assert_close([-w @ slope @ coefficients for w in inverse], slopes["alpha"][:, j], 1e-11)


def test_f26_the_score_of_n_refits(c, slopes):
    """`LOOCV = (1/n)Σ(r⁽⁻ⁱ⁾)²`, and its derivatives."""

    def score(theta):
        return np.mean(refits_without_each(rbf(X, X, theta[0], theta[1]), Y, theta[2])[0] ** 2)

    assert_close(kx.loo_mse(c), score(THETA))
    for automatic, difference in zip(slopes["score"], finite_differences(score), strict=True):
        assert automatic == pytest.approx(difference, rel=1e-8)


class OwnKernel(kx.AbstractKernel):
    """Known to this file alone: nothing compiled earlier can stand in for what is counted below."""

    lengthscale: jax.Array = kx.positive()

    def pair(self, a, b):
        return jnp.exp(-0.5 * jnp.sum(((a - b) / self.lengthscale) ** 2))


def test_f26_one_factorisation_instead_of_n(monkeypatch):
    """All n residuals cost one factorisation; n refits cost n."""
    runs = []
    factorise = jax.lax.linalg.cholesky

    def counted(*args, **kwargs):
        jax.debug.callback(lambda: runs.append(1))
        return factorise(*args, **kwargs)

    monkeypatch.setattr(jax.lax.linalg, "cholesky", counted)
    for name in ("eigh", "lu", "qr", "svd"):
        monkeypatch.setattr(jax.lax.linalg, name, lambda *args, name=name, **kwargs: pytest.fail(f"{name} was called"))

    model = kx.Model(OwnKernel(LENGTHSCALE), noise=NOISE)
    x, y = X[:7], Y[:7]

    def factorisations(work):
        runs.clear()
        value = jax.block_until_ready(work())
        jax.effects_barrier()
        return len(runs), np.asarray(value)

    def residual_without(i):
        refit = kx.condition(model, kx.Data(x, y, mask=np.arange(7) != i))
        return y[i] - kx.mean(refit, x[i : i + 1])[0]

    once, fast = factorisations(lambda: kx.loo_residuals(kx.condition(model, kx.Data(x, y))))
    n_times, slow = factorisations(lambda: jnp.stack([residual_without(i) for i in range(7)]))
    assert (once, n_times) == (1, 7)
    assert_close(fast, slow)

    def score(lengthscale):
        return kx.loo_mse(kx.condition(kx.Model(OwnKernel(lengthscale), noise=NOISE), kx.Data(x, y)))

    with_slope, slope = factorisations(lambda: jax.jit(jax.value_and_grad(score))(LENGTHSCALE)[1])
    assert with_slope == 1
    assert abs(slope) > 1e-3
