"""The exact search for a threshold: every column sorted once, running sums of the weights after that."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul

_BLOCK = 16


class Sorted(NamedTuple):
    """The columns of x and their order."""

    columns: Float[Array, "d n"]
    order: Int[Array, "d n"]
    values: Float[Array, "d n"]
    """The columns in ascending order."""
    is_new: Bool[Array, "d n"]
    """Where a value differs from the one before it: a threshold may stand there. False in the first place."""


class Split(NamedTuple):
    """`x[feature] ≥ threshold`, and the place of it in the sorted columns."""

    feature: Int[Array, ""]
    threshold: Float[Array, ""]
    place: Int[Array, ""]


def sort_columns(x: Float[Array, "n d"], resolution: Float[Array, ""] | float = 0.0) -> Sorted:
    """O(d n log n). Values that differ by at most `resolution` count as equal."""
    columns = x.T
    order = jnp.argsort(columns, axis=1).astype(np.int32)
    values = jnp.take_along_axis(columns, order, axis=1)
    steps = jnp.diff(values, axis=1) > resolution
    return Sorted(columns, order, values, jnp.pad(steps, ((0, 0), (1, 0))))


def sums_before(a: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """`Σ_{i<k} aᵢ` for every k, along the last axis.

    Blocks times a triangle of ones, and the same again for the sums of the blocks: on a CPU more than twice as fast as
    `jnp.cumsum`.
    """
    n = a.shape[-1]
    num_blocks = -(-n // _BLOCK)
    padding = [(0, 0)] * (a.ndim - 1) + [(0, num_blocks * _BLOCK - n)]
    blocks = jnp.pad(a, padding).reshape(*a.shape[:-1], num_blocks, _BLOCK)
    triangle = jnp.asarray(np.triu(np.ones((_BLOCK, _BLOCK)), 1), a.dtype)
    sums = matmul(blocks, triangle)
    if num_blocks > 1:
        sums = sums + sums_before(jnp.sum(blocks, axis=-1))[..., None]
    return sums.reshape(*a.shape[:-1], -1)[..., :n]


def rounding(a: Float[Array, "*b n"]) -> float:
    """What may come of rounding in sums of n numbers that sum to 1: two scores this close are a tie."""
    return 4.0 * float(jnp.finfo(a.dtype).eps) * np.sqrt(a.shape[-1])


def first_best(table: Sorted, scores: Float[Array, "d n"], weights: Float[Array, " n"], margin: Array) -> Split:
    """The largest score that is not −∞; of ties, to within the margin, the lowest feature and then the lowest threshold.

    A threshold is the midpoint between the values of two neighbours among the rows that have weight. Where there is none
    below, or no score at all, it is −∞: every x is above.
    """
    n = scores.shape[-1]
    top = jnp.max(scores)
    index = jnp.argmax((scores >= top - margin).reshape(-1)).astype(np.int32)
    feature, place = index // n, index % n
    column = table.columns[feature]
    is_below = column < table.values[feature, place]
    below = jnp.max(jnp.where(is_below & (weights > 0), column, -jnp.inf))
    above = jnp.min(jnp.where(~is_below & (weights > 0), column, jnp.inf))
    middle = 0.5 * below + 0.5 * above
    # Between neighbouring floating-point numbers the midpoint may round to the lower one, which belongs below.
    middle = jnp.where(middle > below, middle, above)
    threshold = jnp.where((top > -jnp.inf) & (below > -jnp.inf), middle, -jnp.inf)
    return Split(feature, threshold, place)


def least_error_split(table: Sorted, y: Float[Array, " n"], weights: Float[Array, " n"]) -> tuple[Split, Float[Array, ""]]:
    """The split, or none, with the least weighted error, and the sign (±1) above its threshold. O(nd).

    With `s = Σ_{below} Dᵢyᵢ` the stump that says +1 above has `1 - 2ε = ΣDᵢyᵢ - 2s`, and its negation the opposite.
    """
    pulls = weights * y
    edges = jnp.sum(pulls) - 2.0 * sums_before(pulls[table.order])
    allowed = table.is_new.at[:, 0].set(True)
    scores = jnp.where(allowed, jnp.abs(edges), -jnp.inf)
    split = first_best(table, scores, weights, jnp.asarray(rounding(pulls), pulls.dtype))
    return split, jnp.where(edges[split.feature, split.place] >= 0, 1.0, -1.0).astype(y.dtype)


def purest_split(table: Sorted, y: Float[Array, " n"], weights: Float[Array, " n"]) -> Split:
    """The split with the least weighted Gini impurity, O(nd); weight has to be on both sides of it.

    With weights W and `s = ΣDᵢyᵢ` on either side, the impurity is `½(W - s₋²/W₋ - s₊²/W₊)`.
    """
    both = jnp.stack([weights, weights * y])
    below = sums_before(both[:, table.order])
    totals = jnp.sum(both, axis=1)[:, None, None]
    above = totals - below
    margin = rounding(weights) * totals[0, 0, 0]
    heavy = (below[0] > margin) & (above[0] > margin)
    purity = below[1] ** 2 / jnp.where(heavy, below[0], 1.0) + above[1] ** 2 / jnp.where(heavy, above[0], 1.0)
    return first_best(table, jnp.where(heavy & table.is_new, purity, -jnp.inf), weights, margin)


def is_above(x: Float[Array, "m d"], feature: Int[Array, "*m"], threshold: Float[Array, "*m"]) -> Bool[Array, " m"]:
    """`x[feature] ≥ threshold` at every row, for one test or one a row."""
    if feature.ndim == 0:
        return jax.lax.dynamic_index_in_dim(x, feature, axis=1, keepdims=False) >= threshold
    return jnp.take_along_axis(x, feature[:, None], axis=1)[:, 0] >= threshold
