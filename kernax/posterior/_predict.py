"""The posterior at new points: mean, variance, covariance, density."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernax._arrays import as_floats, check_finite, matmul
from kernax.kernels import Rows, free_functions
from kernax.means import mean_values
from kernax.model import Conditioned, Model, check_conditioned
from kernax.posterior._chunks import map_rows, new_rows


class Prediction(NamedTuple):
    """Mean and variance at each test row."""

    mean: Float[Array, "m *p"]
    variance: Float[Array, " m"]
    num_clamped: Int[Array, ""]
    """How many variances rounding had made negative; they are 0 here."""


def mean(c: Any, x: Any) -> Float[Array, "m *p"]:
    """`μ(x) + k_xX alpha`: the GP's posterior mean, which is the answer of kernel ridge regression. O(n) a row."""
    return _mean(c, new_rows(c, x))


def variance(c: Any, x: Any, *, noisy: bool = False) -> Float[Array, " m"]:
    """`k(x,x) - k_xX (K + noise·I)⁻¹ k_Xx`, O(n²) a row: of the function, or with `noisy=True` of a new observation.

    Rounding can make it negative where the data pin the function down; it is 0 there (`predict` counts them).
    """
    return predict(c, x, noisy=noisy).variance


def predict(c: Any, x: Any, *, noisy: bool = False) -> Prediction:
    """Mean and variance together, from one cross-Gram matrix."""
    check_conditioned(c)
    if noisy:
        check_common_noise(c.model)
    return _predict(c, new_rows(c, x), noisy)


def covariance(c: Any, x: Any, z: Any = None, *, noisy: bool = False) -> Float[Array, "m k"]:
    """`k(x,z) - k_xX (K + noise·I)⁻¹ k_Xz`; `z` defaults to `x`, and only then may `noisy` add the noise's diagonal."""
    if noisy and z is not None:
        raise ValueError("noisy=True needs z=None: noise belongs to observations, not to pairs of places.")
    check_conditioned(c)
    if noisy:
        check_common_noise(c.model)
    x = new_rows(c, x)
    matrix = _covariance(c, x, None if z is None else new_rows(c, z, "z"))
    return matrix + c.model.noise * jnp.eye(matrix.shape[0], dtype=matrix.dtype) if noisy else matrix


def negative_log_predictive_density(c: Conditioned, x: Any, y: Any) -> Float[Array, ""]:
    """The mean over test rows (and outputs) of `-log p(y | data)`, noise included: small is good."""
    y = as_floats(y, "y")
    check_finite(y, "y")
    mu, var, _ = predict(c, x, noisy=True)
    y = y.astype(mu.dtype)
    if y.shape != mu.shape:
        raise ValueError(f"y has shape {y.shape}, but the predictions have {mu.shape}.")
    return jnp.mean(normal_negative_log_density(y - mu, var[:, None] if mu.ndim == 2 else var))


def normal_negative_log_density(error: Array, variance: Array) -> Array:
    """`-log N(error; 0, variance)`; +∞, not NaN, where the variance is 0 and the error is not."""
    positive = variance > 0
    safe = jnp.where(positive, variance, 1.0)
    value = 0.5 * (error**2 / safe + jnp.log(2 * jnp.pi * safe))
    return jnp.where(positive, value, jnp.where(error == 0, -jnp.inf, jnp.inf))


def check_common_noise(model: Model) -> None:
    """Refuse noise given per training row where the noise of new rows is asked for."""
    if model.noise.ndim:
        raise ValueError(
            "the model's noise is given per training row and says nothing of new rows: add theirs to the answer."
        )


def cross_gram(c: Conditioned, x: Rows) -> Float[Array, "n m"]:
    """`k(X, x)` with zero rows where the data is masked; for splines, less what their polynomials explain of it."""
    cross = plain_cross_gram(c, x)
    return cross if c.free is None else cross - matmul(c.free.carried, free_values(c, x).T)


def plain_cross_gram(c: Conditioned, x: Rows) -> Float[Array, "n m"]:
    """`k(X, x)` with zero rows where the data is masked."""
    return c.data.zero_where_masked(c.model.kernel.gram(c.data.x, x))


def free_values(c: Conditioned, x: Rows) -> Float[Array, "m q"]:
    """A spline's free functions at x."""
    return free_functions(c.model.kernel, x, c.data.x, c.data.mask)


def _prior_variance(c: Conditioned, x: Rows, cross: Float[Array, "n m"]) -> Float[Array, " m"]:
    """`k(x,x)`; for splines the variance of `f(x) - w(x)ᵀy`, the error of the free functions alone, from `cross_gram`."""
    own = c.model.kernel.diag(x)
    if c.free is None:
        return own
    values = free_values(c, x)
    # k - 2wᵀk_X + wᵀK̃w = k - 2wᵀ(k_X - K̃w) - wᵀK̃w
    weighted = jnp.sum(matmul(c.free.weights, values.T) * cross, axis=0)
    return own - 2.0 * weighted - jnp.sum(values * matmul(values, matmul(c.free.weights.T, c.free.carried)), axis=1)


def _prior_covariance(
    c: Conditioned, x: Rows, z: Rows | None, cross_x: Float[Array, "n m"], cross_z: Float[Array, "n k"]
) -> Float[Array, "m k"]:
    """`k(x,z)`; for splines the covariance of the errors of the free functions alone."""
    own = c.model.kernel.gram(x, z)
    if c.free is None:
        return own
    left, right = free_values(c, x), free_values(c, x if z is None else z)
    mixed = matmul(matmul(left, c.free.weights.T), cross_z) + matmul(cross_x.T, matmul(c.free.weights, right.T))
    return own - mixed - matmul(left, matmul(matmul(c.free.weights.T, c.free.carried), right.T))


@eqx.filter_jit
def _mean(c: Conditioned, x: Rows) -> Float[Array, "m *p"]:
    def of_block(block: Rows) -> Array:
        return _mean_from(c, block, cross_gram(c, block))

    return map_rows(of_block, x, c.data.n)


@eqx.filter_jit
def _predict(c: Conditioned, x: Rows, noisy: bool) -> Prediction:
    def of_block(block: Rows) -> tuple[Array, Array]:
        cross = cross_gram(c, block)
        explained = jnp.sum(cross * _zero_if_failed(c, c.factor.solve(cross)), axis=0)
        return _mean_from(c, block, cross), _or_nan(c, _prior_variance(c, block, cross) - explained)

    # Four blocks of the cross-Gram's size live at once: it, two solves, and a product.
    mu, var = map_rows(of_block, x, 4 * c.data.n)
    num_clamped = jnp.sum(var < 0)
    var = jnp.where(var < 0, 0.0, var)
    return Prediction(mu, var + c.model.noise if noisy else var, num_clamped)


def _mean_from(c: Conditioned, block: Rows, cross: Float[Array, "n m"]) -> Array:
    values = matmul(cross.T, _zero_if_failed(c, c.alpha))
    if c.free is not None:
        values = values + matmul(free_values(c, block), c.free.coefficients)
    return _or_nan(c, values + mean_values(c.model.mean, block, values))


def _zero_if_failed(c: Conditioned, solved: Array) -> Array:
    """What a failed factorisation makes NaN, as 0: multiplied by NaN, a derivative behind a user's `where(ok, …)` is NaN."""
    return jnp.where(c.ok, solved, 0.0)


def _or_nan(c: Conditioned, answer: Array) -> Array:
    """The answer, NaN if conditioning failed: chosen last."""
    return jnp.where(c.ok, answer, jnp.nan)


@eqx.filter_jit
def _covariance(c: Conditioned, x: Rows, z: Rows | None) -> Float[Array, "m k"]:
    cross = cross_gram(c, x)
    if z is None:
        matrix = _prior_covariance(c, x, None, cross, cross) - matmul(cross.T, c.factor.solve(cross))
        return 0.5 * (matrix + matrix.T)

    def of_block(block: Rows) -> Array:
        other = cross_gram(c, block)
        return _prior_covariance(c, block, x, other, cross) - matmul(c.factor.solve(other).T, cross)

    return map_rows(of_block, z, 2 * c.data.n).T
