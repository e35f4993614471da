"""Small decision trees."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernax._arrays import whole_number
from kernax.learners._members import AbstractMembers, as_columns
from kernax.learners._splits import Sorted, is_above, purest_split, rounding, sort_columns
from kernax.rows import Rows


class Tree(eqx.Module):
    """A full binary tree.

    The children of node k are `2k + 1` (below its threshold) and `2k + 2`. Leaves are numbered from the left.
    """

    features: Int[Array, " nodes"]
    """The column that each node tests."""
    thresholds: Float[Array, " nodes"]
    """The threshold of each node."""
    leaves: Float[Array, " leaves"]
    """The value of each leaf, −1 or +1."""


_DEEPEST = 10


class Trees(AbstractMembers):
    """Decision trees of a fixed depth, grown from the root. Every node takes the split with the least weighted impurity.

    The impurity is Gini's, as in CART, and not the error, because a split that a deeper tree needs often does not reduce the
    error by itself. So `Trees(1)` are the stumps of CART, whose error may be slightly larger than that of `Stumps()`. Every
    leaf has the label with the larger weight, +1 if both are equal. Ties are broken as in `Stumps`. A node that cannot be
    split has the threshold −∞. O(2^depth · nd) a round.

    **Arguments:**

    - `depth`: the depth of the trees, a whole number of at least 1.
    """

    depth: int = eqx.field(static=True, default=2, converter=lambda value: whole_number(value, "Trees.depth"))

    def __check_init__(self):
        if self.depth > _DEEPEST:
            raise ValueError(f"Trees.depth must be {_DEEPEST} at most, since all 2^depth nodes are grown, got {self.depth}.")

    def prepare(self, x: Rows) -> Sorted:
        return sort_columns(as_columns(x, "Trees"))

    def best(self, prepared: Sorted, y: Float[Array, " n"], weights: Float[Array, " n"]) -> Tree:
        x, places = prepared.columns.T, jnp.zeros(y.shape, jnp.int32)
        features, thresholds = [], []
        for level in range(self.depth):
            shares = _shares(places, 2**level, weights)
            splits = jax.vmap(lambda share: purest_split(prepared, y, share))(shares)
            places = 2 * places + is_above(x, splits.feature[places], splits.threshold[places])
            features.append(splits.feature)
            thresholds.append(splits.threshold)
        shares = _shares(places, 2**self.depth, weights)
        heavier = jnp.sum(shares * y, axis=1) >= -rounding(weights) * jnp.sum(shares, axis=1)
        leaves = jnp.where(heavier, 1.0, -1.0).astype(y.dtype)
        return Tree(jnp.concatenate(features), jnp.concatenate(thresholds), leaves)

    def values(self, member: Tree, x: Rows) -> Float[Array, " m"]:
        x = as_columns(x, "Trees")
        node = jnp.zeros(x.shape[0], jnp.int32)
        for _ in range(self.depth):
            node = 2 * node + 1 + is_above(x, member.features[node], member.thresholds[node])
        return member.leaves[node - (2**self.depth - 1)]


def _shares(places: Int[Array, " n"], num: int, weights: Float[Array, " n"]) -> Float[Array, "num n"]:
    """The weights of the rows in each of `num` nodes, 0 elsewhere."""
    return jnp.where(places == jnp.arange(num)[:, None], weights, 0.0)
