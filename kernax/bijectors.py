"""Bijectors: maps between unconstrained numbers, which optimisers work on, and the values that a parameter may take.

Used with `kx.with_bijector(model, where, kx.bijectors.Interval(0.1, 10.0))`. The fields `kx.positive()`,
`kx.parameters.real()` and `kx.parameters.interval()` have one each.
"""

import abc
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

__all__ = ["AbstractBijector", "Interval", "Positive", "Real", "Softplus"]


class AbstractBijector(abc.ABC):
    """A smooth, monotone, elementwise map from unconstrained numbers to the values that a parameter may take.

    A class of your own defines the four abstract methods. Instances must be hashable (a frozen dataclass is), because they
    are part of the structure of a model.
    """

    @abc.abstractmethod
    def forward(self, unconstrained: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Map unconstrained numbers to values of the parameter.

        **Arguments:**

        - `unconstrained`: an array.

        **Returns:**

        The values, in the same shape.
        """

    @abc.abstractmethod
    def inverse(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Map values of the parameter to unconstrained numbers.

        **Arguments:**

        - `value`: an array.

        **Returns:**

        The unconstrained numbers, in the same shape.
        """

    @abc.abstractmethod
    def fault(self, value: np.ndarray) -> str | None:
        """Check a value, for an error message.

        **Arguments:**

        - `value`: an array.

        **Returns:**

        What the value must be, for example `"finite and positive"`; `None` if it is valid.
        """

    @abc.abstractmethod
    def at_bound(self, value: Float[Array | np.ndarray, "*s"]) -> Bool[Array | np.ndarray, "*s"]:
        """Whether a value is at an end of its range.

        **Arguments:**

        - `value`: an array.

        **Returns:**

        Booleans, in the same shape.
        """

    @property
    def ends(self) -> tuple[float, float]:
        """The range of unconstrained numbers. Beyond it the value does not change any more, and `fit` does not leave it."""
        return -math.inf, math.inf

    def log_jacobian(self, unconstrained: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """`log |d value / d unconstrained|`, elementwise. A sampler adds it to the log-density of the value.

        **Arguments:**

        - `unconstrained`: an array.

        **Returns:**

        An array of the same shape.
        """
        _, slope = jax.jvp(self.forward, (unconstrained,), (jnp.ones_like(unconstrained),))
        return jnp.log(jnp.abs(slope))


@dataclasses.dataclass(frozen=True)
class Real(AbstractBijector):
    """Any real number. The map is the identity."""

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
    """A positive number, of which the logarithm is optimised: `exp(u)`, clipped to `floor` and `ceiling`.

    A step of the optimiser multiplies the value by a factor, which suits scales of unknown magnitude.

    **Arguments:**

    - `floor`, `ceiling`: the smallest and the largest value. The defaults keep squares and quotients of parameters finite
        in float32 too.
    - `zero_allowed`: allow the value 0 (noise-free data). A parameter that is 0 cannot be fitted.
    """

    floor: float = 1e-15
    ceiling: float = 1e15
    zero_allowed: bool = False

    def __post_init__(self):
        if not 0 < self.floor < self.ceiling < math.inf:
            raise ValueError(f"Positive needs 0 < floor < ceiling, got {self.floor} and {self.ceiling}.")

    @property
    def ends(self):
        return math.log(self.floor), math.log(self.ceiling)

    def forward(self, unconstrained):
        # Two selects instead of `clip`, whose derivative at ties takes longer to compile.
        low, high = self.ends
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
    """A positive number, `floor + log(1 + exp(u))`.

    Where the value is large, a step of the optimiser adds to it (`Positive` multiplies it by a factor).

    **Arguments:**

    - `floor`: the smallest value.
    """

    floor: float = 1e-15

    def forward(self, unconstrained):
        return self.floor + jax.nn.softplus(unconstrained)

    def inverse(self, value):
        excess = jnp.maximum(value - self.floor, self.floor)
        # This is log(exp(e) - 1), in a form that does not overflow for large e.
        return excess + jnp.log(-jnp.expm1(-excess))

    def fault(self, value):
        return None if (np.isfinite(value) & (value > 0)).all() else "finite and positive"

    def at_bound(self, value):
        return value <= 2.01 * self.floor


@dataclasses.dataclass(frozen=True)
class Interval(AbstractBijector):
    """A number between two bounds, `lower + (upper - lower) * sigmoid(u)`.

    **Arguments:**

    - `lower`, `upper`: the bounds, both finite.
    """

    lower: float
    upper: float

    def __post_init__(self):
        if not -math.inf < self.lower < self.upper < math.inf:
            raise ValueError(f"Interval needs lower < upper, both finite, got {self.lower} and {self.upper}.")

    def forward(self, unconstrained):
        return self.lower + (self.upper - self.lower) * jax.nn.sigmoid(unconstrained)

    def inverse(self, value):
        # Values at a bound are moved slightly inside, so that they map to a finite number.
        edge = 4 * jnp.finfo(value.dtype).eps
        share = jnp.clip((value - self.lower) / (self.upper - self.lower), edge, 1 - edge)
        return jnp.log(share) - jnp.log1p(-share)

    def fault(self, value):
        inside = (value >= self.lower) & (value <= self.upper)
        return None if inside.all() else f"between {self.lower:g} and {self.upper:g}"

    def at_bound(self, value):
        margin = 1e-3 * (self.upper - self.lower)
        return (value <= self.lower + margin) | (value >= self.upper - margin)
