"""Decision stumps."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernax.learners._members import AbstractMembers, as_columns
from kernax.learners._splits import Sorted, is_above, least_error_split, sort_columns
from kernax.rows import Rows


class Stump(eqx.Module):
    """One stump: `sign` where `x[feature] ≥ threshold`, `-sign` elsewhere; a constant if the threshold is −∞."""

    feature: Int[Array, ""]
    """The column that is tested."""
    threshold: Float[Array, ""]
    """The threshold."""
    sign: Float[Array, ""]
    """The value above the threshold, −1 or +1."""


class Stumps(AbstractMembers):
    """Decision stumps, `±(2·1[x_j ≥ θ] - 1)`, and the two constants. The one with the least weighted error is chosen.

    All thresholds of all columns are tried. O(nd log n) before the first round and O(nd) a round. A threshold is the
    midpoint between two distinct values. Among equally good ones the constant is preferred, then the lowest column, then the
    lowest threshold.
    """

    def prepare(self, x: Rows) -> Sorted:
        return sort_columns(as_columns(x, "Stumps"))

    def best(self, prepared: Sorted, y: Float[Array, " n"], weights: Float[Array, " n"]) -> Stump:
        split, sign = least_error_split(prepared, y, weights)
        return Stump(split.feature, split.threshold, sign)

    def values(self, member: Stump, x: Rows) -> Float[Array, " m"]:
        return jnp.where(is_above(as_columns(x, "Stumps"), member.feature, member.threshold), member.sign, -member.sign)
