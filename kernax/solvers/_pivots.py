"""Which rows represent all others: randomly pivoted Cholesky.

Each next row is drawn with a probability in proportion to the variance that the rows chosen so far leave of it. That is
nearly as good as the best approximation of the same rank, and unlike the greedy choice (the row of largest variance) it
does not run after outliers (Chen, Epperly, Tropp and Webber, 2025).

One row at a time would be slow. Here several rows are proposed at once with the current probabilities, and gone through in
turn: each is accepted with the probability `variance left now / variance left when proposed`, which makes the accepted rows
exactly those of the slow algorithm (Epperly, Tropp and Webber, 2024). The large products are then made once for all of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from kernax._arrays import matmul
from kernax.grams import AbstractGram, masked
from kernax.rows import take
from kernax.solvers import _raw
from kernax.solvers._jitter import rounding_share

_ACCEPTED = 64
"""The most rows that a round accepts. More make fewer, larger products, of which more are in vain when few are accepted."""
_PROPOSED = 4
"""Proposals for each row that a round may accept: smooth kernels accept few."""


class _State(NamedTuple):
    """What is known after some rounds."""

    left: Float[Array, " n"]
    """The variance of each row that the chosen rows do not explain; 0 in rows that are chosen or do not count."""
    factor: Float[Array, "k n"]
    """`F` with `K ≈ Fᵀ F`; rows from `number` on are 0 or about to be overwritten."""
    chosen: Int[Array, " k"]
    number: Int[Array, ""]
    key: Key[Array, ""]


def pivots(
    gram: AbstractGram, rank: int, tolerance: float, key: Key[Array, ""]
) -> tuple[Int[Array, " r"], Bool[Array, " r"]]:
    """Rows that represent all others, drawn at random. O(n rank²) time and O(n rank) memory.

    **Arguments:**

    - `gram`: K over rows. It is not differentiated.
    - `rank`: the most rows to choose.
    - `tolerance`: no more rows are chosen when those chosen leave less than this share of the trace of K.
    - `key`: the key of the draws.

    **Returns:**

    `rank` row numbers, and which of them are in use. Only rows that count are chosen, each once, and of equal rows one.
    """
    accepted = max(1, min(_ACCEPTED, rank // 4))
    variances = jnp.maximum(gram.diagonal(), 0.0)
    whole = jnp.sum(variances)
    rounding = rounding_share(jnp.asarray(rank, variances.dtype)) * variances

    def goes_on(state: _State) -> Array:
        return (state.number < rank) & (jnp.sum(state.left) > tolerance * whole)

    def round_of(state: _State) -> _State:
        key, first, second = jax.random.split(state.key, 3)
        proposed = _draws(first, state.left, _PROPOSED * accepted)
        known = state.factor[:, proposed]
        matrix = masked(gram.kernel.gram(take(gram.x, proposed), None), gram.mask[proposed]) - matmul(known.T, known)
        most = jnp.minimum(accepted, rank - state.number)
        places, count = _accepted(matrix, rounding[proposed], jax.random.uniform(second, proposed.shape), most, accepted)
        rows, used = proposed[places], jnp.arange(accepted) < count
        # What the accepted rows add to the factor: their part of K less what is known of it, made independent.
        corner = jnp.where(used[:, None] & used, matrix[jnp.ix_(places, places)], jnp.eye(accepted, dtype=matrix.dtype))
        upper = _raw.cholesky(corner, jnp.zeros_like(corner[0]))
        added = gram.rows(rows) - matmul(state.factor[:, rows].T, state.factor)
        added = _raw.solve_upper_transposed(upper, added)
        # As many of them as are needed: what remains of the trace before each one is above the tolerance.
        explained = jnp.sum(jnp.where(used[:, None], added**2, 0.0), axis=1)
        needed = jnp.sum(state.left) - (jnp.cumsum(explained) - explained) > tolerance * whole
        used = used & needed
        count, added = jnp.sum(used, dtype=count.dtype), jnp.where(used[:, None], added, 0.0)
        left = state.left - jnp.sum(added**2, axis=0)
        # What is left of a row by rounding alone is nothing, or its twins would be drawn again and again.
        left = jnp.where(left > rounding, left, 0.0)
        # The first proposal is accepted unless rounding is all that is left of it: every round ends with one row fewer.
        left = left.at[rows].set(jnp.where(used, 0.0, left[rows])).at[proposed[0]].set(0.0)
        begin = state.number
        factor = jax.lax.dynamic_update_slice_in_dim(state.factor, added, begin, 0)
        chosen = jax.lax.dynamic_update_slice_in_dim(state.chosen, rows, begin, 0)
        return _State(left, factor, chosen, begin + count, key)

    start = _State(
        left=jnp.where(jnp.isfinite(variances), variances, 0.0),
        factor=jnp.zeros((rank + accepted, gram.n), variances.dtype),
        chosen=jnp.zeros(rank + accepted, jnp.int32),
        number=jnp.asarray(0, jnp.int32),
        key=key,
    )
    end = jax.lax.while_loop(goes_on, round_of, start)
    # Of a matrix without a diagonal the first row: whether there is a kernel behind it is not decided here.
    chosen = jnp.where(end.number == 0, jnp.argmax(gram.mask), end.chosen[:rank])
    return chosen, jnp.arange(rank) < jnp.maximum(end.number, jnp.any(gram.mask))


def _draws(key: Key[Array, ""], weights: Float[Array, " n"], number: int) -> Int[Array, " b"]:
    """Row numbers, each with a probability in proportion to its weight, independently."""
    sums = jnp.cumsum(weights)
    at = jax.random.uniform(key, (number,), weights.dtype) * sums[-1]
    # The first place whose sum exceeds the number that was drawn: a row of weight 0 is never it.
    return jnp.minimum(jnp.searchsorted(sums, at, side="right"), weights.shape[0] - 1).astype(jnp.int32)


def _accepted(
    matrix: Float[Array, "b b"], floor: Float[Array, " b"], luck: Float[Array, " b"], most: Int[Array, ""], size: int
) -> tuple[Int[Array, " a"], Int[Array, ""]]:
    """Which proposals are accepted: their places, the first `count` of which are in use, and `count`.

    **Arguments:**

    - `matrix`: K of the proposed rows, less what the rows chosen before explain.
    - `floor`: what rounding alone may leave of their variances.
    - `luck`: numbers between 0 and 1, one for each.
    - `most`, `size`: the most that may be accepted, and the length of the answer.
    """
    before, numbers = jnp.diagonal(matrix), jnp.arange(matrix.shape[0])

    def step(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rest, places, count = state
        variance = rest[i, i]
        good = (luck[i] * before[i] < variance) & (variance > floor[i]) & (count < most)
        column = jnp.where(good, rest[i] / jnp.sqrt(jnp.where(good, variance, 1.0)), 0.0)
        places = places.at[jnp.where(good, count, size)].set(numbers[i].astype(places.dtype), mode="drop")
        return rest - column[:, None] * column, places, count + good

    start = (matrix, jnp.zeros(size, jnp.int32), jnp.zeros_like(most))
    _, places, count = jax.lax.fori_loop(0, matrix.shape[0], step, start)
    return places, count
