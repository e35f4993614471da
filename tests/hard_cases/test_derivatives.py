"""Derivatives where two points coincide."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from tests.hard_cases import oracle

LENGTHSCALE = 0.7
# k(r) = 1 - curvature · r²/2 + … near r = 0, for lengthscale 1.
SMOOTH = [(kx.RBF, 1.0), (kx.Matern32, 3.0), (kx.Matern52, 5.0 / 3.0)]
RNG = np.random.default_rng(2)


def name(value):
    return getattr(value, "__name__", "")


def matern(kind, x, lengthscale):
    """The Matérn Gram matrix in NumPy."""
    r = np.sqrt((((x[:, None] - x[None]) / lengthscale) ** 2).sum(-1))
    return np.exp(-r) if kind is kx.Matern12 else (1.0 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)


def derivatives_at_one_point(kernel, wide):
    """Gradient and Hessian of one kernel value whose two points coincide, by each way to get that value."""
    a = wide[1, :2]

    def in_cross_gram(z):
        return lambda point: kernel(point[None], z)[0, 1]

    def in_gram(points):
        return kernel(points)[0, 1]

    def both(function, at):
        def gradient_twice(at):
            gradient = jax.grad(function)(at)
            return gradient, gradient

        hessian, gradient = jax.jacfwd(gradient_twice, has_aux=True)(at)
        return gradient, hessian

    return {
        "pair": both(lambda points: kernel.pair(*points), jnp.stack([a, a])),
        "gram": both(in_gram, jnp.stack([a, a, a + 1.0])),
        "cross-Gram by differences": both(in_cross_gram(wide[:, :2]), a),
        "cross-Gram by a product": both(in_cross_gram(wide), wide[1]),
    }


@pytest.mark.parametrize(("kind", "curvature"), SMOOTH, ids=name)
def test_h15_first_and_second_derivative_at_one_point(kind, curvature):
    answers = jax.jit(derivatives_at_one_point)(kind(LENGTHSCALE), jnp.asarray(RNG.normal(size=(3, 20))))
    want = curvature / LENGTHSCALE**2
    for way, (gradient, hessian) in answers.items():
        # A product's rounding of 1e-15 in the squared distance is one of 3e-8 in the distance.
        tolerance = 1e-6 if way == "cross-Gram by a product" else 1e-12
        np.testing.assert_allclose(gradient, 0.0, atol=tolerance, err_msg=way)
        if way in ("pair", "gram"):
            np.testing.assert_allclose(hessian[0, :, 0], -want * np.eye(2), atol=tolerance, err_msg=way)
            np.testing.assert_allclose(hessian[0, :, 1], want * np.eye(2), atol=tolerance, err_msg=way)
        else:
            np.testing.assert_allclose(hessian, -want * np.eye(len(gradient)), atol=10 * tolerance, err_msg=way)


def test_h15_matern12_at_one_point_has_finite_derivatives():
    """Its kink has no derivative; 0 is the mean of both sides."""
    answers = jax.jit(derivatives_at_one_point)(kx.Matern12(LENGTHSCALE), jnp.asarray(RNG.normal(size=(3, 20))))
    for way, (gradient, hessian) in answers.items():
        np.testing.assert_allclose(gradient, 0.0, atol=1e-6, err_msg=way)
        assert np.isfinite(hessian).all(), way


@pytest.mark.parametrize("kind", [kx.Matern12, kx.Matern32], ids=name)
def test_h15_likelihood_with_duplicate_rows_has_the_right_derivatives(kind):
    """First and second derivative in the lengthscale, against differences of the NumPy formula."""
    x, y = RNG.normal(size=(6, 2)), RNG.normal(size=6)
    x[3] = x[0]
    model, data = kx.Model(kind(LENGTHSCALE), 0.3), kx.Data(x, y)

    def likelihood(lengthscale):
        return kx.log_marginal_likelihood(
            kx.condition(eqx.tree_at(lambda m: m.kernel.lengthscale, model, lengthscale), data)
        )

    @jax.jit
    def derivatives(lengthscale):
        return jax.jvp(jax.grad(likelihood), (lengthscale,), (jnp.ones_like(lengthscale),))

    step = 1e-3
    low, mid, high = (oracle.log_likelihood(matern(kind, x, LENGTHSCALE + shift), y, 0.3) for shift in (-step, 0.0, step))
    first, second = derivatives(jnp.asarray(LENGTHSCALE))
    np.testing.assert_allclose(first, (high - low) / (2 * step), rtol=1e-4)
    np.testing.assert_allclose(second, (high - 2 * mid + low) / step**2, rtol=1e-3)
