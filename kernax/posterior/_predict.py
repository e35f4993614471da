"""The posterior at new points: mean, variance, covariance, density."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int

from kernax._arrays import as_floats, check_finite
from kernax._programs import compiled
from kernax._threads import with_threads_for
from kernax.means import mean_values
from kernax.model import Conditioned
from kernax.model._checks import check_conditioned
from kernax.noises import check_noise, is_per_row, noise_at
from kernax.posterior._new_rows import in_pieces, new_rows, unread_rows
from kernax.rows import Rows, num_rows, take
from kernax.solvers import worse, worst


class Prediction(NamedTuple):
    """Mean and variance at new inputs, and how their computation ended."""

    mean: Float[Array, "m *p"]
    """One value for each row; `(m, p)` for p outputs."""
    variance: Float[Array, "m ..."]
    """One for each row; one for each row and output if the outputs are not observed in the same rows."""
    num_clamped: Int[Array, ""]
    """How many variances were negative because of rounding errors. They are set to 0."""
    result: Any
    """How the computation ended. An iterative solver may fail in a prediction, too."""

    @property
    def sd(self) -> Float[Array, "m ..."]:
        """Standard deviation: the square root of `variance`."""
        return safe_sqrt(jnp.asarray(self.variance))

    def interval(self, level: float = 0.95) -> tuple[Float[Array, "m *p"], Float[Array, "m *p"]]:
        """Central interval that contains the value with a given probability.

        It is for the function, or for new observations if the prediction was made with `noisy=True`.

        **Arguments:**

        - `level`: the probability, between 0 and 1.

        **Returns:**

        The lower and the upper end, each of the shape of `mean`.
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1, such as 0.95 for 95 %, got {level!r}.")
        mean = jnp.asarray(self.mean)
        half = ndtri(0.5 + 0.5 * level) * self.sd
        half = half[:, None] if half.ndim < mean.ndim else half
        return mean - half, mean + half


def safe_sqrt(value: Array) -> Array:
    """The square root, with derivative 0 instead of ∞ at 0.

    **Arguments:**

    - `value`: an array of any shape.

    **Returns:**

    An array of the same shape: 0 for negative entries, NaN for NaN.
    """
    positive = value > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, value, 1.0)), jnp.where(jnp.isnan(value), jnp.nan, 0.0))


def mean(c: Any, x: Any) -> Float[Array, "m *p"]:
    """Posterior mean at new inputs, which is also the answer of kernel ridge regression.

    Computes `μ(x) + k(x, X) alpha` in blocks, so that memory stays bounded. O(n) a row with direct solvers.

    **Arguments:**

    - `c`: a model conditioned on data, from [`kernax.condition`][].
    - `x`: new inputs, `(m, d)`. A memory-mapped array is read in pieces.

    **Returns:**

    An array of shape `(m,)`, or `(m, p)` for p outputs.
    """
    check_conditioned(c)

    def answer(rows: Rows) -> Array:
        return with_threads_for(_largest_matrix(c, rows), _mean, c, rows)

    return jnp.concatenate(in_pieces(answer, unread_rows(c.model, c.data, x)))


def variance(c: Any, x: Any, *, noisy: bool = False) -> Float[Array, "m *p"]:
    """Posterior variance at new inputs.

    Computes `k(x, x) - k(x, X) (K + noise·I)⁻¹ k(X, x)` row by row, in blocks, so that memory stays bounded. O(n²) a row
    with direct solvers.

    **Arguments:**

    - `c`: a model conditioned on data, from [`kernax.condition`][].
    - `x`: new inputs, `(m, d)`.
    - `noisy`: add the noise variance, for the spread of a new observation instead of the function.

    **Returns:**

    An array of shape `(m,)`, or `(m, p)` if the outputs are not observed in the same rows. Rounding errors that would make
    an entry negative are clamped at 0.
    """
    return predict(c, x, noisy=noisy).variance


def predict(c: Any, x: Any, *, noisy: bool = False) -> Prediction:
    """Posterior mean and variance at new inputs.

    **Arguments:**

    - `c`: a model conditioned on data, from [`kernax.condition`][].
    - `x`: new inputs, `(m, d)`. A memory-mapped array is read in pieces.
    - `noisy`: add the noise variance, for the spread of a new observation instead of the function.

    **Returns:**

    A `Prediction` with `mean`, `variance`, `result`, and `num_clamped`, the number of variances that rounding errors made
    negative and that were set to 0.
    """
    check_conditioned(c)

    def answer(rows: Rows) -> Prediction:
        return with_threads_for(_largest_matrix(c, rows), _predict, c, rows, noisy)

    parts = in_pieces(answer, _observed_rows(c, x, noisy))
    if len(parts) == 1:
        return parts[0]
    means, variances, clamped, results = zip(*parts, strict=True)
    result = worst(jax.tree.map(lambda *leaves: jnp.stack(leaves), *results))
    return Prediction(jnp.concatenate(means), jnp.concatenate(variances), jnp.sum(jnp.stack(clamped)), result)


def covariance(c: Any, x: Any, z: Any = None, *, noisy: bool = False) -> Float[Array, "m k"]:
    """Posterior covariance between new inputs.

    **Arguments:**

    - `c`: a model conditioned on data, from [`kernax.condition`][].
    - `x`: new inputs, `(m, d)`.
    - `z`: other new inputs, `(k, d)`; x itself if not given.
    - `noisy`: add the noise variance to the diagonal; only without `z`.

    **Returns:**

    A matrix of shape `(m, k)`, symmetric if `z` is not given.
    """
    if noisy and z is not None:
        raise ValueError("noisy=True needs z=None: noise is added to the covariance of x with itself only.")
    check_conditioned(c)
    return _covariance(c, take(_observed_rows(c, x, noisy)), None if z is None else new_rows(c, z, "z"), noisy)


def negative_log_predictive_density(c: Conditioned, x: Any, y: Any) -> Float[Array, ""]:
    """Mean negative log density of new observations, noise included. Smaller is better.

    **Arguments:**

    - `c`: a model conditioned on data.
    - `x`: new inputs, `(m, d)`.
    - `y`: new targets, in the shape of the predictions.

    **Returns:**

    The mean of `-log p(y | data)` over rows and outputs.
    """
    y = as_floats(y, "y")
    check_finite(y, "y")
    prediction = predict(c, x, noisy=True)
    mu, var = prediction.mean, prediction.variance
    y = y.astype(mu.dtype)
    if y.shape != mu.shape:
        raise ValueError(f"y has shape {y.shape}, but the predictions have {mu.shape}.")
    return jnp.mean(normal_negative_log_density(y - mu, var[:, None] if mu.ndim > var.ndim else var))


def normal_negative_log_density(error: Array, variance: Array) -> Array:
    """The negative log-density of a normal distribution, `-log N(error; 0, variance)`.

    **Arguments:**

    - `error`: an array.
    - `variance`: an array that broadcasts with `error`, 0 or more.

    **Returns:**

    An array. Where the variance is 0 it is +∞, or −∞ if the error is 0 too.
    """
    positive = variance > 0
    safe = jnp.where(positive, variance, 1.0)
    value = 0.5 * (error**2 / safe + jnp.log(2 * jnp.pi * safe))
    return jnp.where(positive, value, jnp.where(error == 0, -jnp.inf, jnp.inf))


def _largest_matrix(c: Conditioned, x: Rows) -> int:
    """Rows or columns, whichever are more: a solve for many new rows is large, too."""
    return c.solver.largest_matrix(max(c.data.n, num_rows(x)))


def _observed_rows(c: Conditioned, x: Any, noisy: bool) -> Rows:
    """New rows, checked; with `noisy`, the model must know their noise."""
    x = unread_rows(c.model, c.data, x)
    if noisy:
        if not is_per_row(c.model.noise):
            check_noise(c.model.noise, x)
        jax.eval_shape(lambda: noise_at(c.model.noise, x, c.data.dtype))
    return x


@compiled
def _mean(c: Conditioned, x: Rows) -> Float[Array, "m *p"]:
    values = c.system.mean(x, c.solution)
    return values + mean_values(c.model.mean, x, values)


@compiled
def _predict(c: Conditioned, x: Rows, noisy: bool) -> Prediction:
    mu, spread = c.system.mean_and_variance(x, c.solution)
    value, num_clamped = spread.value, jnp.sum(spread.value < 0)
    value = jnp.where(value < 0, 0.0, value)
    if noisy:
        noise = noise_at(c.model.noise, x, c.data.dtype)
        value = value + (noise[:, None] if 0 < noise.ndim < value.ndim else noise)
    return Prediction(mu + mean_values(c.model.mean, x, mu), value, num_clamped, worse(c.result, spread.result))


@compiled
def _covariance(c: Conditioned, x: Rows, z: Rows | None, noisy: bool) -> Float[Array, "m k"]:
    matrix = c.system.covariance(x, z).value
    if noisy:
        noise = noise_at(c.model.noise, x, c.data.dtype)
        matrix = matrix + jnp.diag(jnp.broadcast_to(noise, matrix.shape[:1]))
    return matrix
