"""Log-densities of a parameter's constrained value. Any function of the value may stand in for one of these."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

Prior = Callable[[Float[Array, "..."]], Float[Array, "..."]]


@dataclasses.dataclass(frozen=True)
class Normal:
    """`N(mean, sd²)`."""

    mean: float = 0.0
    sd: float = 1.0

    def __post_init__(self):
        _check_positive(self, "sd")

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return -0.5 * ((value - self.mean) / self.sd) ** 2 - math.log(self.sd) - 0.5 * math.log(2 * math.pi)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
        return self.mean + self.sd * jax.random.normal(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """The value's logarithm is `N(mean, sd²)`; `exp(mean)` is its median."""

    mean: float = 0.0
    sd: float = 1.0

    def __post_init__(self):
        _check_positive(self, "sd")

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        log = jnp.log(value)
        return -0.5 * ((log - self.mean) / self.sd) ** 2 - log - math.log(self.sd) - 0.5 * math.log(2 * math.pi)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
        return jnp.exp(self.mean + self.sd * jax.random.normal(key, shape, dtype))


@dataclasses.dataclass(frozen=True)
class HalfNormal:
    """The absolute value of `N(0, scale²)`: favours small values without forbidding large ones."""

    scale: float = 1.0

    def __post_init__(self):
        _check_positive(self, "scale")

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return -0.5 * (value / self.scale) ** 2 - math.log(self.scale) + 0.5 * math.log(2 / math.pi)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
        return self.scale * jnp.abs(jax.random.normal(key, shape, dtype))


@dataclasses.dataclass(frozen=True)
class Gamma:
    """Density `∝ v^(concentration-1) exp(-rate v)`; mean `concentration / rate`."""

    concentration: float
    rate: float = 1.0

    def __post_init__(self):
        _check_positive(self, "concentration")
        _check_positive(self, "rate")

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        a, b = self.concentration, self.rate
        return (a - 1) * jnp.log(value) - b * value + a * math.log(b) - math.lgamma(a)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
        return jax.random.gamma(key, self.concentration, shape, dtype) / self.rate


def _check_positive(prior: object, name: str) -> None:
    value = getattr(prior, name)
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{type(prior).__name__}.{name} must be a positive number, got {value!r}.")
