"""Smooth losses for kernel machines. A loss is also a likelihood if the integral of `e^-loss` over y is constant."""

import abc
import functools
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import betaln, erf, gammaincc, gammaln
from jaxtyping import Array, Bool, Float

from kernax.parameters import Parameter, Parametrised, as_function, positive

Scalar = Float[Array, ""]

_LARGE = 16.0
"""From where on Stirling's series is right to rounding."""


@jax.custom_jvp
def softplus(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`log(1 + e^x)`. Its derivative is the sigmoid; that of `jax.nn.softplus` computes the logarithm again, and takes XLA
    and LLVM several times as long to compile, in every place where Newton's method asks for it."""
    return jax.nn.softplus(x)


@softplus.defjvp
def _softplus_jvp(primals, tangents):
    return softplus(*primals), tangents[0] * jax.nn.sigmoid(primals[0])


class AbstractLoss(Parametrised):
    """Base class of losses: functions of an observation y and a value f, convex in f and continuously differentiable.

    A loss of your own needs to define `value` only; derivatives come from automatic differentiation. The other methods are
    for losses that give probabilities, or that are also likelihoods: `p(y | f) = e^-loss / Z`, where Z does not depend on f.
    """

    labels: ClassVar[bool] = False
    """Whether y must be -1 or +1."""
    whole: ClassVar[bool] = False
    """Whether y is a whole number."""

    @property
    def surrogate(self) -> "AbstractLoss | None":
        """A convex loss, whose minimum is used as a second start if this loss is not convex.

        **Returns:**

        A loss; `None` if this loss is convex.
        """
        return None

    @property
    def num_classes(self) -> int | None:
        """The number of classes, if y is a class 0, 1, …; else `None`."""
        return None

    @property
    def num_functions(self) -> int:
        """The number of latent functions of a row. If there are several, `value` is called with that many numbers in f."""
        return 1

    @abc.abstractmethod
    def value(self, y: Scalar, f: Scalar) -> Scalar:
        """The loss of one row.

        **Arguments:**

        - `y`: the observation, one number.
        - `f`: the value of the function, one number; one for each latent function if there are several.

        **Returns:**

        One number.
        """

    def held_out(self, y: Scalar, f: Scalar) -> Scalar:
        """The score of a held-out row. It must not decrease merely because parameters of the loss change.

        **Arguments:**

        - `y`, `f`: as in `value`.

        **Returns:**

        One number; by default the loss.
        """
        return self.value(y, f)

    def log_normaliser(self) -> Scalar:
        """`log Z` with `Z = ∫ e^-loss(y, f) dy` (a sum for labels and counts).

        **Returns:**

        One number. Raises `TypeError` if the loss is not a likelihood.
        """
        raise TypeError(
            f"{self!r} is not a negative log-likelihood: the integral of e^-loss over y depends on f, or is not known. "
            "Give `fit` another objective, such as kx.learners.kfold_loss, or use a loss that is a likelihood, such as "
            "learners.Logistic()."
        )

    def log_density(self, y: Scalar, f: Scalar) -> Scalar:
        """The log density of one row, `log p(y | f) = -loss - log Z`.

        **Arguments:**

        - `y`, `f`: as in `value`.

        **Returns:**

        One number.
        """
        return -self.value(y, f) - self.log_normaliser()

    def probability(self, f: Float[Array, "..."]) -> Float[Array, "..."]:
        """The probability `P(y = +1 | f)`, elementwise.

        **Arguments:**

        - `f`: values of the function, any shape.

        **Returns:**

        An array in the shape of `f`; for several grades the probabilities of all, on a last axis.
        """
        raise TypeError(f"{self!r} gives no probabilities: use learners.Logistic(), or a loss that defines `probability`.")

    def mean(self, f: Float[Array, "..."]) -> Float[Array, "..."]:
        """The mean `E(y | f)`, elementwise.

        **Arguments:**

        - `f`: values of the function, any shape.

        **Returns:**

        An array in the shape of `f`.
        """
        raise TypeError(f"{self!r} has no mean of y given f: use learners.Poisson(), or a loss that defines `mean`.")

    def cumulative(self, y: Float[Array, "..."], f: Float[Array, "..."]) -> Float[Array, "..."]:
        """The distribution function `P(Y ≤ y | f)`, elementwise.

        **Arguments:**

        - `y`: numbers, not necessarily whole. For counts, the answer is exact at whole numbers and increases between them.
        - `f`: values of the function.

        **Returns:**

        An array of probabilities.
        """
        raise TypeError(
            f"{self!r} has no distribution function: use learners.Poisson(), or a loss that defines `cumulative`."
        )

    def allows(self, y: Scalar) -> Bool[Array, ""]:
        """Whether y is a possible observation.

        **Arguments:**

        - `y`: an observation.

        **Returns:**

        A boolean.
        """
        return jnp.abs(y) == 1 if self.labels else jnp.asarray(True)

    def has_minimum(self, y: Float[Array, " n"], counts: Bool[Array, " n"]) -> Bool[Array, ""]:
        """Whether the total loss of a constant has a minimum. If not, an intercept would grow without bound.

        **Arguments:**

        - `y`: observations, `(n,)`.
        - `counts`: which of them count.

        **Returns:**

        A boolean.
        """
        if not self.labels:
            return jnp.asarray(True)
        return jnp.any(counts & (y > 0)) & jnp.any(counts & (y < 0))

    def spread(self, y: Float[Array, " n"], counts: Bool[Array, " n"]) -> Scalar:
        """A starting value for the variance of f.

        **Arguments:**

        - `y`: observations, `(n,)`.
        - `counts`: which of them count.

        **Returns:**

        The variance of the observations, or 1 if f does not estimate y.
        """
        return jnp.ones((), y.dtype) if self.labels else jnp.var(y, where=counts)


class Logistic(AbstractLoss):
    """Logistic loss, `log(1 + e^{-yf})` for labels ±1: the negative log-likelihood of `P(y = 1) = 1/(1 + e^{-f})`."""

    labels: ClassVar[bool] = True

    def value(self, y, f):
        return softplus(-y * f)

    def log_normaliser(self):
        return jnp.zeros(())

    def probability(self, f):
        return jax.nn.sigmoid(f)


class SquaredHinge(AbstractLoss):
    """Squared hinge loss, `max(0, 1 - yf)²` for labels ±1. It is 0 beyond the margin, and is not a likelihood."""

    labels: ClassVar[bool] = True

    def value(self, y, f):
        return jnp.maximum(1.0 - y * f, 0.0) ** 2

    def has_minimum(self, y, counts):
        # One class alone costs nothing beyond its margin.
        return jnp.asarray(True)


class Squared(AbstractLoss):
    """Squared loss, `(y - f)²`, of kernel ridge regression. As a likelihood it is normal with variance ½."""

    def value(self, y, f):
        return (y - f) ** 2

    def log_normaliser(self):
        return jnp.asarray(0.5 * math.log(math.pi))


class Huber(AbstractLoss):
    """Huber's loss: `½r²` for residuals `r = y - f` up to `delta`, and `delta(|r| - ½delta)` beyond.

    The influence of outliers is bounded.

    **Arguments:**

    - `delta`: the size of residual from which the loss is linear, in the unit of y; one positive number.
    """

    delta: Float[Parameter, ""] = positive(default=1.0, scalar=True, unit="y")

    def value(self, y, f):
        size = jnp.abs(y - f)
        near = jnp.minimum(size, self.delta)
        return near * (size - 0.5 * near)

    def held_out(self, y, f):
        return (y - f) ** 2

    def log_normaliser(self):
        inside = math.sqrt(2 * math.pi) * erf(self.delta / math.sqrt(2))
        return jnp.log(inside + 2.0 * jnp.exp(-0.5 * self.delta**2) / self.delta)


class SmoothQuantile(AbstractLoss):
    """Smooth quantile loss, `level·r + width·log(1 + e^{-r/width})` with `r = y - f`.

    This is the pinball loss, whose minimum is a quantile of y, with its corner rounded.

    **Arguments:**

    - `level`: the quantile, between 0 and 1: 0.5 for the median. It is not fitted.
    - `width`: how far the corner is rounded, in the unit of y; one positive number.
    """

    level: float = eqx.field(static=True, default=0.5)
    width: Float[Parameter, ""] = positive(default=0.1, scalar=True, unit="y")

    def __check_init__(self):
        if not 0 < self.level < 1:
            raise ValueError(f"SmoothQuantile.level must be between 0 and 1, got {self.level}.")

    def value(self, y, f):
        return self.level * (y - f) + self.width * softplus((f - y) / self.width)

    def held_out(self, y, f):
        return jnp.maximum(self.level * (y - f), (self.level - 1.0) * (y - f))

    def log_normaliser(self):
        return jnp.log(self.width) + betaln(self.level * self.width, (1.0 - self.level) * self.width)


class Poisson(AbstractLoss):
    """Poisson loss, `e^f - yf + log y!`, for counts y with mean `e^f`."""

    whole: ClassVar[bool] = True

    def value(self, y, f):
        # Relative to the best f, log y: the terms are as large as y log y, and their sum is small.
        best = jnp.log(jnp.maximum(y, 1.0))
        off = f - best
        loss = jnp.where(y > 0, y * (jnp.expm1(off) - off), jnp.exp(f))
        return loss + log_factorial_beyond(y, best)

    def log_normaliser(self):
        return jnp.zeros(())

    def mean(self, f):
        return jnp.exp(f)

    def cumulative(self, y, f):
        return jnp.where(y < 0, 0.0, gammaincc(jnp.maximum(y, 0.0) + 1.0, jnp.exp(f)))

    def allows(self, y):
        return is_count(y)

    def has_minimum(self, y, counts):
        return jnp.any(counts & (y > 0))

    def spread(self, y, counts):
        return jnp.ones((), y.dtype)


def is_count(y: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Whether y is 0, 1, 2, …"""
    return (y >= 0) & (y == jnp.floor(y))


class FunctionLoss(AbstractLoss):
    """A user's loss `loss(y, f)` of one row: a function, or a callable Equinox module, whose arrays are parameters."""

    function: Any = eqx.field(converter=as_function)

    def __check_init__(self):
        number = jax.ShapeDtypeStruct((), jnp.result_type(float))
        out = eqx.filter_eval_shape(lambda y, f: jnp.asarray(self.function(y, f)), number, number)
        if out.shape != ():
            raise ValueError(
                f"a loss must return one number for one row, got shape {out.shape} from {self.function!r}(y, f)."
            )

    def value(self, y, f):
        return self.function(y, f)


def as_loss(loss: Any) -> AbstractLoss:
    """A loss as it is, a plain function of `(y, f)` wrapped."""
    if isinstance(loss, type) and issubclass(loss, AbstractLoss):
        raise TypeError(f"a loss must be an instance, got the class {loss.__name__}: write {loss.__name__}().")
    if isinstance(loss, AbstractLoss):
        return loss
    if not callable(loss):
        raise TypeError(
            f"a loss must be an instance such as learners.Logistic(), or a function loss(y, f) of one row, got {loss!r}."
        )
    return FunctionLoss(loss)


_traced_once: Any = functools.partial(eqx.filter_jit, inline=True)  # pyright: ignore[reportCallIssue]
"""Newton's method asks for losses and slopes in a dozen places, and tracing their derivatives takes longer than the rest."""


@_traced_once
def row_losses(loss: AbstractLoss, y: Float[Array, " n"], f: Float[Array, " n"]) -> Float[Array, " n"]:
    """`loss(y_i, f_i)`."""
    return jax.vmap(_of_one(loss))(y, f)


@_traced_once
def row_slopes(loss: AbstractLoss, y: Float[Array, " n"], f: Float[Array, " n"]) -> Float[Array, " n"]:
    """`∂loss/∂f` of every row."""
    return jax.vmap(jax.grad(_of_one(loss), argnums=1))(y, f)


@_traced_once
def row_curvatures(loss: AbstractLoss, y: Float[Array, " n"], f: Float[Array, " n"]) -> Float[Array, " n"]:
    """`∂²loss/∂f²` of every row."""
    return jax.vmap(jax.grad(jax.grad(_of_one(loss), argnums=1), argnums=1))(y, f)


def _of_one(loss: AbstractLoss) -> Any:
    return lambda y, f: jnp.asarray(loss.value(y, f)).astype(f.dtype)


def log_rising(r: Float[Array, ""], y: Float[Array, ""]) -> Float[Array, ""]:
    """`log Γ(r + y) - log Γ(r)` for r > 0 and y ≥ 0, with all digits for large r, too: there by Stirling's series."""
    large = r > _LARGE
    z = jnp.where(large, r, 2.0 * _LARGE)
    rest = _stirling(z + y) - _stirling(z)
    by_series = (z + y - 0.5) * jnp.log1p(y / z) + y * jnp.log(z) - y + rest
    few = jnp.where(large, 1.0, r)
    return jnp.where(large, by_series, gammaln(few + y) - gammaln(few))


def log_factorial_beyond(y: Float[Array, ""], log_y: Float[Array, ""]) -> Float[Array, ""]:
    """`log y! - (y log y - y)` for y = 0, 1, …, with all digits for large y, too."""
    large = y > _LARGE
    z = jnp.where(large, y, 2.0 * _LARGE)
    few = jnp.where(large, 1.0, y)
    by_series = 0.5 * jnp.log(2.0 * math.pi * z) + _stirling(z)
    return jnp.where(large, by_series, gammaln(few + 1.0) - few * log_y + few)


def _stirling(z: Float[Array, ""]) -> Float[Array, ""]:
    """`log Γ(z) - (z - ½) log z + z - ½ log 2π`, to 1e-15 from 16 on."""
    inverse = 1.0 / z
    square = inverse**2
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))))
