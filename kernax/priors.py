"""Priors: log-densities of a parameter's constrained value.

Used with `kx.with_prior(model, where, kx.priors.LogNormal(0.0, 1.0))`. Any function of the value that returns a log-density
can be used in place of these classes. A prior with a method `sample` is also used for random starting points.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

__all__ = ["Gamma", "HalfNormal", "LogNormal", "Normal", "Prior"]

Prior = Callable[[Float[Array, "..."]], Float[Array, "..."]]
"""A log-density of a parameter's value, elementwise."""


@dataclasses.dataclass(frozen=True)
class Normal:
    """The normal distribution `N(mean, sd²)`.

    **Arguments:**

    - `mean`, `sd`: mean and standard deviation.
    """

    mean: float = 0.0
    sd: float = 1.0

    def __post_init__(self):
        _check_positive(self, "sd")

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log-density, elementwise.

        **Arguments:**

        - `value`: values of the parameter.

        **Returns:**

        An array of the same shape.
        """
        return -0.5 * ((value - self.mean) / self.sd) ** 2 - math.log(self.sd) - 0.5 * math.log(2 * math.pi)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
        """Draw random values.

        **Arguments:**

        - `key`: a JAX random key.
        - `shape`: the shape of the array.
        - `dtype`: its floating type.

        **Returns:**

        An array.
        """
        return self.mean + self.sd * jax.random.normal(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """The log-normal distribution: the logarithm of the value is `N(mean, sd²)`, and the median is `exp(mean)`.

    **Arguments:**

    - `mean`, `sd`: mean and standard deviation of the logarithm.
    """

    mean: float = 0.0
    sd: float = 1.0

    def __post_init__(self):
        _check_positive(self, "sd")

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log-density, elementwise.

        **Arguments:**

        - `value`: values of the parameter.

        **Returns:**

        An array of the same shape.
        """
        log = jnp.log(value)
        return -0.5 * ((log - self.mean) / self.sd) ** 2 - log - math.log(self.sd) - 0.5 * math.log(2 * math.pi)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
        """Draw random values.

        **Arguments:**

        - `key`: a JAX random key.
        - `shape`: the shape of the array.
        - `dtype`: its floating type.

        **Returns:**

        An array.
        """
        return jnp.exp(self.mean + self.sd * jax.random.normal(key, shape, dtype))


@dataclasses.dataclass(frozen=True)
class HalfNormal:
    """The half-normal distribution: the absolute value of a number drawn from `N(0, scale²)`.

    **Arguments:**

    - `scale`: standard deviation of the normal distribution.
    """

    scale: float = 1.0

    def __post_init__(self):
        _check_positive(self, "scale")

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log-density, elementwise.

        **Arguments:**

        - `value`: values of the parameter.

        **Returns:**

        An array of the same shape.
        """
        return -0.5 * (value / self.scale) ** 2 - math.log(self.scale) + 0.5 * math.log(2 / math.pi)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
        """Draw random values.

        **Arguments:**

        - `key`: a JAX random key.
        - `shape`: the shape of the array.
        - `dtype`: its floating type.

        **Returns:**

        An array.
        """
        return self.scale * jnp.abs(jax.random.normal(key, shape, dtype))


@dataclasses.dataclass(frozen=True)
class Gamma:
    """The gamma distribution: density proportional to `v^(concentration-1) exp(-rate v)`, mean `concentration / rate`.

    **Arguments:**

    - `concentration`: the shape parameter.
    - `rate`: the inverse scale.
    """

    concentration: float
    rate: float = 1.0

    def __post_init__(self):
        _check_positive(self, "concentration")
        _check_positive(self, "rate")

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log-density, elementwise.

        **Arguments:**

        - `value`: values of the parameter.

        **Returns:**

        An array of the same shape.
        """
        a, b = self.concentration, self.rate
        return (a - 1) * jnp.log(value) - b * value + a * math.log(b) - math.lgamma(a)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
        """Draw random values.

        **Arguments:**

        - `key`: a JAX random key.
        - `shape`: the shape of the array.
        - `dtype`: its floating type.

        **Returns:**

        An array.
        """
        return jax.random.gamma(key, self.concentration, shape, dtype) / self.rate


def _check_positive(prior: object, name: str) -> None:
    value = getattr(prior, name)
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{type(prior).__name__}.{name} must be a positive number, got {value!r}.")
