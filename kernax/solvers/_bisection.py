"""Functions drawn from a Markov process that can be called at any times: the same functions at every call, exactly drawn.

A drawn function has a value at every time, and only the times that somebody asks for are computed. Around the data lie a few
fixed times. The states at these are drawn once, from left to right. Between two of them the state at the middle is drawn
given both ends, then the state at the middle of the half that contains the time, and so on, until floating-point numbers
allow no middle (Lévy's construction of Brownian motion). The random numbers of a middle depend on the key and on the middle
alone, so calls agree with each other, in any order of the times.

An interval of length δ carries the state s at its left end and the shock e, so that the state at the right end is
`A(δ) s + e`. With a half step (A, Q), the shock `e₁` of the left half is drawn given `e = A e₁ + e₂`:

    e₁ = Q Aᵀ (A Q Aᵀ + Q)⁻¹ e + a normal vector of the covariance that is left,   e₂ = e - A e₁.

A shock is small for a short interval, and keeps all its digits. The difference of the states at both ends would lose them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from kernax.kernels._markov import product
from kernax.rows import Rows, map_rows
from kernax.solvers._paths import semidefinite_root
from kernax.solvers._steps import Arranged, by_block

_DOUBLINGS = 20
"""On each side of the data, intervals of 1, 1, 2, 4, … times its range: a million times the range."""
_DOUBLINGS_OF_SPLINES = 4
"""A spline starts at the first time, and grows without bound: 15 times the range."""
_ROUGH = 1e-6
"""A function has no slope if its variance over a short step δ exceeds this share of its variance, times δ/range."""

Blocks = list[Float[Array, "..."]]
"""States, shocks or matrices: one array for the processes of each size, with axes for the process and its numbers last."""


class _Tables(NamedTuple):
    """For each interval between fixed times, and each halving of it: a half step, and how a shock is divided."""

    moves: Blocks
    gains: Blocks
    roots: Blocks


def path_functions(
    process: Arranged, known: Rows, mask: Bool[Array, " n"], dtype: Any, key: Key[Array, ""], number: int
) -> Callable[[Rows], Float[Array, "m s"]]:
    """Functions drawn from a Markov process.

    **Arguments:**

    - `process`: the process. One that is not stationary, a spline, starts 15 times the range of the data before it. So its
      draws have the covariance of the spline up to polynomials only, which a system that leaves them free does not see.
    - `known`: rows, around which the functions are defined.
    - `mask`: which of these count.
    - `dtype`: of the answer.
    - `key`: a random key.
    - `number`: how many functions.

    **Returns:**

    A function of rows. It is NaN a million times the range of the known rows away from them (15 times for a spline). Its
    derivative in time is the slope of the drawn function, and NaN where that has none, as with `Matern12`.
    """
    for_start, for_shocks, for_middles = jax.random.split(key, 3)
    ends = _fixed_times(process, known, mask, dtype)
    lengths = jnp.diff(ends)
    halvings = int(-np.log2(jnp.finfo(dtype).eps))
    halves = lengths[:, None] * jnp.asarray(0.5 ** np.arange(1, halvings + 1), dtype)
    tables = _tables(process, halves)

    between, size = process.steps(lengths, ()), len(process.places)
    start = tuple(block[None] for block in process.start(dtype))
    states = _drawn(start, jax.random.normal(for_start, (1, size, number), dtype))
    shocks = _drawn(between.shocks, jax.random.normal(for_shocks, (len(lengths), size, number), dtype))

    def onward(state: Blocks, step: tuple[Any, Blocks]) -> tuple[Blocks, Blocks]:
        moves, shocks = step
        return [product(m, s) + e for m, s, e in zip(moves, state, shocks, strict=True)], state

    _, states = jax.lax.scan(onward, [block[0] for block in states], (between.moves, shocks))
    keys = jax.random.split(for_middles, len(lengths))

    def at(x: Rows) -> Float[Array, "m s"]:
        times, observation = process.times(x, dtype), process.observation(x)
        fixed = jax.lax.stop_gradient(times)
        inside = (fixed >= ends[0]) & (fixed <= ends[-1])
        place = jnp.clip(jnp.searchsorted(ends, fixed, side="right") - 1, 0, len(lengths) - 1)

        def halve(carry: Any, level: Array) -> tuple[Any, None]:
            left, state, shock, keys = carry
            moves, gains, roots = jax.tree.map(lambda leaf: leaf[place, level], tables)
            middle = left + halves[place, level]
            draw = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, 0), (size, number), dtype))
            normal = by_block(draw(keys), tuple(moves))
            first = [product(k, e) + product(r, z) for k, e, r, z in zip(gains, shock, roots, normal, strict=True)]
            second = [e - product(m, own) for e, m, own in zip(shock, moves, first, strict=True)]
            beyond = [product(m, s) + own for m, s, own in zip(moves, state, first, strict=True)]
            is_right = fixed >= middle

            def chosen(right: Array, left: Array) -> Array:
                return jnp.where(is_right.reshape(-1, *[1] * (right.ndim - 1)), right, left)

            keys = jax.vmap(jax.random.fold_in)(keys, 1 + is_right.astype(jnp.uint32))
            return (
                chosen(middle, left),
                jax.tree.map(chosen, beyond, state),
                jax.tree.map(chosen, second, first),
                keys,
            ), None

        own = [[block[place] for block in blocks] for blocks in (states, shocks)]
        (left, state, *_), _ = jax.lax.scan(halve, (ends[place], *own, keys[place]), jnp.arange(halvings))
        step = process.steps(jnp.where(inside, times - left, 0.0), observation)
        state = [product(m, s) for m, s in zip(step.moves, state, strict=True)]
        weights = jnp.broadcast_to(jnp.asarray(observation, dtype), (times.shape[0], size))
        values = [jnp.sum(h[..., None] * s, axis=(1, 2)) for h, s in zip(by_block(weights, step.moves), state, strict=True)]
        rough = _is_rough(process, weights, ends[-1] - ends[0], dtype)
        return jnp.where(inside[:, None], sum(values) + _zero(times, rough)[:, None], jnp.nan)

    return lambda x: map_rows(at, x, 8 * size * max(number, size))


def _fixed_times(process: Arranged, known: Rows, mask: Bool[Array, " n"], dtype: Any) -> Float[Array, " e"]:
    times = jax.lax.stop_gradient(process.times(known, dtype))
    low, high = jnp.min(jnp.where(mask, times, jnp.inf)), jnp.max(jnp.where(mask, times, -jnp.inf))
    sound = jnp.isfinite(high - low) & (high > low)
    low = jnp.where(jnp.isfinite(low), low, 0.0)
    width = jnp.where(sound, high - low, 1.0)
    reach = width * (2.0 ** np.arange(1, 1 + (_DOUBLINGS if process.is_stationary else _DOUBLINGS_OF_SPLINES)) - 1.0)
    return jnp.concatenate([low - reach[::-1], low[None], low[None] + width, low + width + reach]).astype(dtype)


def _tables(process: Arranged, halves: Float[Array, "e h"]) -> _Tables:
    steps = process.steps(halves.reshape(-1), ())
    gains, roots = [], []
    for move, shock in zip(steps.moves, steps.shocks, strict=True):
        back = jnp.swapaxes(move, -1, -2)
        whole = semidefinite_root(product(product(move, shock), back) + shock)
        gain = jnp.swapaxes(_solved(whole, product(move, shock)), -1, -2)
        rest = jnp.eye(move.shape[-1], dtype=move.dtype) - product(gain, move)
        # As a sum of two definite matrices, in which nothing cancels.
        left = product(product(rest, shock), jnp.swapaxes(rest, -1, -2))
        left = left + product(product(gain, shock), jnp.swapaxes(gain, -1, -2))
        gains.append(gain)
        roots.append(semidefinite_root(left))
    return _Tables(
        *([leaf.reshape(*halves.shape, *leaf.shape[1:]) for leaf in part] for part in (steps.moves, gains, roots))
    )


def _solved(root: Float[Array, "... g g"], b: Float[Array, "... g k"]) -> Float[Array, "... g k"]:
    """`(L Lᵀ)⁻¹ b` for lower triangular L. Where a column of L is 0, so is the answer."""
    size = root.shape[-1]
    pivots = [root[..., k, k, None] for k in range(size)]
    inverse = [jnp.where(p > 0, 1.0 / jnp.where(p > 0, p, 1.0), 0.0) for p in pivots]
    forward: list[Array] = []
    for k in range(size):
        known = sum((root[..., k, j, None] * forward[j] for j in range(k)), start=jnp.zeros_like(b[..., k, :]))
        forward.append((b[..., k, :] - known) * inverse[k])
    backward: list[Array] = []
    for k in reversed(range(size)):
        later = zip(range(size - 1, k, -1), backward, strict=True)
        known = sum((root[..., j, k, None] * own for j, own in later), start=jnp.zeros_like(b[..., k, :]))
        backward.append((forward[k] - known) * inverse[k])
    return jnp.stack(backward[::-1], axis=-2)


def _drawn(covariances: Any, normal: Float[Array, "n j s"]) -> Blocks:
    parts = by_block(normal, tuple(covariances))
    return [product(semidefinite_root(own), part) for own, part in zip(covariances, parts, strict=True)]


def _is_rough(process: Arranged, weights: Float[Array, "m j"], width: Float[Array, ""], dtype: Any) -> Bool[Array, " m"]:
    """Whether the variance of f over a short step is in proportion to the step, so that f has no slope."""
    zero = jnp.zeros(1, dtype)
    gained = jax.jvp(lambda step: process.steps(step, ()).shocks, (zero,), (jnp.ones(1, dtype),))[1]

    def variance(covariances: Any) -> Float[Array, " m"]:
        parts = zip(by_block(weights, covariances), covariances, strict=True)
        return sum((jnp.sum(h[..., None] * own * h[..., None, :], axis=(1, 2, 3)) for h, own in parts), jnp.zeros(()))

    whole = variance(tuple(block[None] for block in process.start(dtype)))
    return jax.lax.stop_gradient(variance(gained) * width > _ROUGH * whole)


@jax.custom_jvp
def _zero(times: Float[Array, " m"], rough: Bool[Array, " m"]) -> Float[Array, " m"]:
    """0. The slope in time is NaN where a function is rough."""
    del rough
    return jnp.zeros_like(times)


@_zero.defjvp
def _zero_jvp(primals, tangents):
    times, rough = primals
    return jnp.zeros_like(times), jnp.where(rough, jnp.nan, 0.0) * tangents[0]
