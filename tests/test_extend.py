"""Rows added to a factorisation, against conditioning on all rows anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from tests.tables import points, targets

X = points(14)
Y = targets(X)
NEW = points(3, seed=4)


def model(v):
    return kx.Model(v[0] * kx.RBF(lengthscale=v[1]), noise=v[2], mean=0.3)


def extended(v):
    """Conditioned on eleven rows in one go; then two more, and one more."""
    c = kx.condition(model(v), kx.Data(X[:11], Y[:11]))
    return kx.extend(kx.extend(c, X[11:13], Y[11:13]), X[13:], Y[13:])


def anew(v):
    return kx.condition(model(v), kx.Data(X, Y))


def numbers(c):
    return (
        kx.log_marginal_likelihood(c),
        kx.mean(c, NEW),
        kx.variance(c, NEW),
        kx.loo_residuals(c),
        kx.covariance(c, NEW),
        c.system.gram.mv(jnp.eye(14)),
        c.system.gram.diagonal(),
        c.system.gram.rows(jnp.array([0, 12])),
        kx.kfold_residuals(c, 4),
    )


def test_answers_and_gradients_are_those_of_conditioning_anew(tmp_path):
    v = jnp.array([1.3, 0.9, 0.2])
    ours, theirs = extended(v), anew(v)
    for found, expected in zip(numbers(ours), numbers(theirs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(np.triu(ours.system.raw.upper), np.triu(theirs.system.raw.upper), atol=1e-12)
    np.testing.assert_allclose(ours.system.draw(jax.random.key(0), 2), theirs.system.draw(jax.random.key(0), 2), rtol=1e-10)

    def scalar(conditioned):
        return lambda v: kx.log_marginal_likelihood(c := conditioned(v)) + jnp.sum(kx.variance(c, NEW)) + kx.loo_mse(c)

    np.testing.assert_allclose(jax.grad(scalar(extended))(v), jax.grad(scalar(anew))(v), rtol=1e-9)
    kx.save(tmp_path / "c.kx", ours)
    np.testing.assert_array_equal(kx.mean(kx.load(tmp_path / "c.kx"), NEW), kx.mean(ours, NEW))


def test_second_derivatives_of_the_coefficients():
    """The coefficients follow from those of the old rows, whose derivatives are not followed."""
    v, direction = jnp.array([1.3, 0.9, 0.2]), jnp.array([0.4, -1.0, 0.7])

    def both(more):
        def scalar(v):
            c = kx.condition(model(v), kx.Data(X[:11], Y[:11]) if more else kx.Data(X, Y))
            return jnp.sum((kx.extend(c, X[11:], Y[11:]) if more else c).alpha ** 3)

        slope = jax.grad(scalar)
        return jax.jit(lambda v: (slope(v), jax.grad(lambda v: direction @ slope(v))(v)))(v)

    for found, expected in zip(both(True), both(False), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_many_rows_one_after_another():
    c = kx.condition(model(jnp.array([1.3, 0.9, 0.2])), kx.Data(X[:4], Y[:4]))
    first = c.system.gram.matrix
    for i in range(4, 7):
        c = kx.extend(c, X[i : i + 1], Y[i : i + 1])
        if i == 4:
            assert c.system.gram.first.matrix is first, "what was there is not copied"
    expected = kx.mean(kx.condition(c.model, kx.Data(X[:7], Y[:7])), NEW)
    np.testing.assert_allclose(kx.mean(c, NEW), expected, rtol=1e-10)


@pytest.mark.parametrize("twice", [False, True])
def test_rows_that_cannot_be_added_are_reported(twice):
    """A row that is there already, without noise."""
    c = kx.condition(kx.Model(kx.RBF(), noise=0.0), kx.Data(X[:4], Y[:4]))
    c = kx.extend(c, X[5:6], Y[5:6]) if twice else c
    again = kx.extend(c, X[:1], Y[:1])
    assert again.result == kx.Result.not_positive_definite
    assert np.isnan(kx.mean(again, NEW)).all()
