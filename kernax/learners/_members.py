"""Base class of weak learners for AdaBoost: functions with the values ±1, and the search for the best one."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from kernax.rows import Rows


class AbstractMembers(eqx.Module):
    """Base class of weak learners for AdaBoost: a set of functions `f(x) = ±1`.

    A class of your own defines three methods, which are all traced. A member is a pytree of arrays whose shapes do not
    depend on values, since the members of all rounds are stacked. Ties must be broken by a fixed rule, so that the same data
    give the same members.
    """

    @abc.abstractmethod
    def prepare(self, x: Rows) -> Any:
        """Compute what every round needs from the inputs, once before the first round.

        **Arguments:**

        - `x`: the rows.

        **Returns:**

        A pytree of arrays, which `best` receives.
        """

    @abc.abstractmethod
    def best(self, prepared: Any, y: Float[Array, " n"], weights: Float[Array, " n"]) -> Any:
        """The member with (nearly) the smallest weighted error, `Σ Dᵢ 1[f(xᵢ) ≠ yᵢ]`.

        **Arguments:**

        - `prepared`: the result of `prepare`.
        - `y`: labels, -1 or +1.
        - `weights`: D, which sum to 1. Rows with weight 0 must have no influence.

        **Returns:**

        The member, a pytree of arrays.
        """

    @abc.abstractmethod
    def values(self, member: Any, x: Rows) -> Float[Array, " m"]:
        """The values of a member.

        **Arguments:**

        - `member`: a result of `best`.
        - `x`: rows.

        **Returns:**

        -1 or +1 for every row.
        """


def as_columns(x: Any, caller: str) -> Float[Array, "n d"]:
    """x as one matrix, which members that look at single columns need."""
    if not eqx.is_array(x) or x.ndim != 2:
        raise ValueError(f"{caller} needs x of shape (n, d): for structured inputs use learners.Dictionary.")
    return x
