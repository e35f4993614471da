"""What a committee is made of: a class of functions to ±1, and how the best of them is found under weights."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from kernax.rows import Rows


class AbstractMembers(eqx.Module):
    """Base class of weak learners for AdaBoost: a set of functions `f(x) = ±1`.

    A class of your own defines these three methods, which are all traced. A member is a pytree of arrays whose shapes do not
    depend on values, since the members of all rounds are stacked. Ties must be broken by a fixed rule, so that the same data
    give the same members.
    """

    @abc.abstractmethod
    def prepare(self, x: Rows) -> Any:
        """What every round needs from the inputs, computed once before the first."""

    @abc.abstractmethod
    def best(self, prepared: Any, y: Float[Array, " n"], weights: Float[Array, " n"]) -> Any:
        """The member with (nearly) the least `Σ Dᵢ 1[f(xᵢ) ≠ yᵢ]`. Weights sum to 1; rows of weight 0 must not matter."""

    @abc.abstractmethod
    def values(self, member: Any, x: Rows) -> Float[Array, " m"]:
        """`f(x)`, −1 or +1, at every row."""


def as_columns(x: Any, caller: str) -> Float[Array, "n d"]:
    """x as one matrix, which members that look at single columns need."""
    if not eqx.is_array(x) or x.ndim != 2:
        raise ValueError(f"{caller} needs x of shape (n, d): for structured inputs use learners.Dictionary.")
    return x
