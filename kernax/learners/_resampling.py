"""Random draws of the rows of a dataset, as counts: how often each draw contains each row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.data import Data


def drawn_counts(data: Data, members: int, key: Any, fraction: float, replace: bool, weights: Any) -> Int[Array, "b n"]:
    """How often each member sees each row."""
    if key is None:
        raise ValueError("the rows of the members are drawn at random: give key=jax.random.key(0), or your own counts=.")
    if not jnp.issubdtype(getattr(key, "dtype", int), jax.dtypes.prng_key) or key.ndim:
        raise TypeError(f"key must be one of JAX's, such as jax.random.key(0), got {key!r}.")
    if not hasattr(members, "__index__") or isinstance(members, bool) or members < 1:
        raise ValueError(f"members must be a whole number of 1 or more, got {members!r}.")
    if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, got {fraction!r}: it is the share of rows to draw.")
    if weights is not None:
        weights = jnp.asarray(weights, jnp.result_type(float))
        if weights.shape != (data.n,):
            raise ValueError(f"weights must be {data.n} numbers, one per row, got shape {weights.shape}.")
        if is_concrete(weights) and not (np.isfinite(weights).all() and np.min(weights) >= 0 < np.max(weights)):
            raise ValueError("weights must be finite and 0 or more, and not all be 0.")
    # As arrays, so that other shares and chances do not compile again.
    weights = jnp.asarray(np.ones(data.n)) if weights is None else weights
    return _draw(data.mask, key, weights, jnp.asarray(float(fraction)), int(members), bool(replace))


@compiled
def _draw(
    mask: Bool[Array, " n"], key: Key[Array, ""], weights: Array, fraction: Array, members: int, replace: bool
) -> Int[Array, "b n"]:
    n = mask.shape[0]
    # Rows that count come first, and every place has a draw of its own: padding moves none.
    order, places = jnp.argsort(~mask, stable=True), jnp.arange(n)
    chances = jnp.where(mask, weights, 0.0)[order]
    size = jnp.maximum(1, jnp.round(fraction * jnp.sum(mask))).astype(int)
    until = jnp.cumsum(chances)

    def draw(number: Array) -> Int[Array, " n"]:
        own = jax.random.fold_in(key, number)
        uniform = jax.vmap(lambda place: jax.random.uniform(jax.random.fold_in(own, place)))(places)
        if replace:
            # Short of the total, which rounding could reach: the first row beyond has a chance above 0.
            level = jnp.minimum(uniform * until[-1], jnp.nextafter(until[-1], 0.0))
            drawn = jnp.searchsorted(until, level, side="right")
            return jnp.zeros(n, int).at[order[drawn]].add(places < size)
        # The first to ring of clocks with these rates are a sample without replacement (Efraimidis & Spirakis).
        rings = jnp.where(chances > 0, -jnp.log1p(-uniform) / jnp.where(chances > 0, chances, 1.0), jnp.inf)
        first = jnp.argsort(rings, stable=True)
        return jnp.zeros(n, int).at[order[first]].add((places < size) & (chances[first] > 0))

    return jnp.where(mask, jax.vmap(draw)(jnp.arange(members)), 0)


def as_counts(counts: Any, data: Data, key: Any) -> Int[Array, "b n"]:
    """Check the counts that a user gave."""
    if key is not None:
        raise ValueError(
            "counts= says which rows each member sees, so nothing is drawn at random: give either counts= or key=."
        )
    counts = counts if isinstance(counts, jax.Array) else np.asarray(counts)
    if counts.ndim != 2 or counts.shape[1] != data.n or not counts.shape[0] or not jnp.issubdtype(counts.dtype, jnp.integer):
        raise ValueError(
            f"counts must be whole numbers of shape (members, {data.n}), got {counts.dtype} of shape {counts.shape}."
        )
    if is_concrete(counts) and np.min(counts) < 0:
        raise ValueError("counts must be 0 or more: how often a member sees a row.")
    return jnp.asarray(counts)
