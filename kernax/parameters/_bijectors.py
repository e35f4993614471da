"""Maps between the space the optimiser walks in and the values a parameter may take."""

import abc
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


class AbstractBijector(abc.ABC):
    """A smooth, monotone, elementwise map. Instances are hashable: they are part of a model's structure."""

    @abc.abstractmethod
    def forward(self, unconstrained: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The parameter's value."""

    @abc.abstractmethod
    def inverse(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The unconstrained number behind a value."""

    @abc.abstractmethod
    def fault(self, value: np.ndarray) -> str | None:
        """What is wrong with `value`, in words that follow "must be"; None if nothing is."""

    @abc.abstractmethod
    def at_bound(self, value: Float[Array, "*s"]) -> Bool[Array, "*s"]:
        """Whether the value sits at an end of its range."""

    def log_jacobian(self, unconstrained: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """`log |d value / d unconstrained|`, elementwise: what a sampler adds to a density of the value."""
        _, slope = jax.jvp(self.forward, (unconstrained,), (jnp.ones_like(unconstrained),))
        return jnp.log(jnp.abs(slope))


@dataclasses.dataclass(frozen=True)
class Real(AbstractBijector):
    """Any real number: the identity."""

    def forward(self, unconstrained):
        return unconstrained

    def inverse(self, value):
        return value

    def fault(self, value):
        return None if np.isfinite(value).all() else "finite"

    def at_bound(self, value):
        return jnp.zeros(value.shape, bool)


@dataclasses.dataclass(frozen=True)
class Positive(AbstractBijector):
    """A positive number, walked in its logarithm: `exp(u)`, held between `floor` and `ceiling`.

    The logarithm makes a step a *factor*, which suits scales of unknown magnitude. The range keeps every square and
    quotient of parameters finite in float32 as well. `zero_allowed` admits the value 0 itself (noise-free data),
    which no optimiser can start from.
    """

    floor: float = 1e-15
    ceiling: float = 1e15
    zero_allowed: bool = False

    def __post_init__(self):
        if not 0 < self.floor < self.ceiling < math.inf:
            raise ValueError(f"Positive wants 0 < floor < ceiling, got {self.floor} and {self.ceiling}.")

    def forward(self, unconstrained):
        # Two plain selects: the derivative of `clip` shares it out between ties, at some cost in compilation.
        low, high = math.log(self.floor), math.log(self.ceiling)
        return jnp.exp(jnp.where(unconstrained < low, low, jnp.where(unconstrained > high, high, unconstrained)))

    def inverse(self, value):
        return jnp.log(jnp.clip(value, self.floor, self.ceiling))

    def fault(self, value):
        if self.zero_allowed:
            return None if (np.isfinite(value) & (value >= 0)).all() else "finite and not negative"
        return None if (np.isfinite(value) & (value > 0)).all() else "finite and positive"

    def at_bound(self, value):
        return (value <= 1.01 * self.floor) | (value >= 0.99 * self.ceiling)


@dataclasses.dataclass(frozen=True)
class Softplus(AbstractBijector):
    """A positive number as `floor + log(1 + exp(u))`: steps are differences where the value is large."""

    floor: float = 1e-15

    def forward(self, unconstrained):
        return self.floor + jax.nn.softplus(unconstrained)

    def inverse(self, value):
        excess = jnp.maximum(value - self.floor, self.floor)
        # log(exp(e) - 1), written so that a large e does not overflow.
        return excess + jnp.log(-jnp.expm1(-excess))

    def fault(self, value):
        return None if (np.isfinite(value) & (value > 0)).all() else "finite and positive"

    def at_bound(self, value):
        return value <= 2.01 * self.floor


@dataclasses.dataclass(frozen=True)
class Interval(AbstractBijector):
    """A number strictly between `lower` and `upper`: `lower + (upper - lower) * sigmoid(u)`."""

    lower: float
    upper: float

    def __post_init__(self):
        if not -math.inf < self.lower < self.upper < math.inf:
            raise ValueError(f"Interval wants lower < upper, both finite, got {self.lower} and {self.upper}.")

    def forward(self, unconstrained):
        return self.lower + (self.upper - self.lower) * jax.nn.sigmoid(unconstrained)

    def inverse(self, value):
        # Kept a hair inside, so that a value at an end maps to a finite number.
        edge = 4 * jnp.finfo(value.dtype).eps
        share = jnp.clip((value - self.lower) / (self.upper - self.lower), edge, 1 - edge)
        return jnp.log(share) - jnp.log1p(-share)

    def fault(self, value):
        inside = (value >= self.lower) & (value <= self.upper)
        return None if inside.all() else f"between {self.lower:g} and {self.upper:g}"

    def at_bound(self, value):
        margin = 1e-3 * (self.upper - self.lower)
        return (value <= self.lower + margin) | (value >= self.upper - margin)
