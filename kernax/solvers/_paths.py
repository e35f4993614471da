"""Paths of a Markov process, drawn at any times in O(n): what exact samples of a series are made of.

The state is drawn from P at the first time, and moves on by `A(δ) state + shock` in the order of time. A time that is
there twice is a step of 0, whose shock is 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax.kernels._markov import product
from kernax.rows import Rows
from kernax.solvers._steps import Arranged, Steps, by_block

_ROUNDINGS = 16
"""A pivot of no more than so many roundings of its diagonal entry is 0."""


def path_draws(process: Arranged, x: Rows, dtype: Any, key: Key[Array, ""], number: int) -> Float[Array, "n s"]:
    """Functions drawn from a Markov process, at rows in any order.

    **Arguments:**

    - `process`: the process. One that is not stationary, a spline, starts at the first of these rows. So its draws have the
      covariance of the spline up to polynomials only, which a system that leaves them free does not see.
    - `x`: where the functions are evaluated; times may repeat.
    - `dtype`: of the answer.
    - `key`: a random key.
    - `number`: how many functions.

    **Returns:**

    An array of shape `(n, number)`.
    """
    times, observation = process.times(x, dtype), process.observation(x)
    order = jnp.argsort(jax.lax.stop_gradient(times))
    ordered = times[order]
    steps = process.steps(
        jnp.diff(ordered, prepend=ordered[:1]), observation if isinstance(observation, tuple) else observation[order]
    )
    # The first step has length 0 and a state before it that is 0: all of the state is new.
    new = [shock.at[0].set(start) for shock, start in zip(steps.shocks, process.start(dtype), strict=True)]
    normal = jax.random.normal(key, (times.shape[0], len(process.places), number), dtype)
    draws = [product(semidefinite_root(own), part) for own, part in zip(new, by_block(normal, tuple(new)), strict=True)]
    shocks = jnp.concatenate([part.reshape(times.shape[0], -1, number) for part in draws], axis=1)

    def step(state: Float[Array, "j s"], row: tuple[Steps, Array]) -> tuple[Array, Array]:
        step, shock = row
        state = step.forth(state) + shock
        return state, step.seen(state)

    drawn = jax.lax.scan(step, jnp.zeros_like(shocks[0]), (steps, shocks))[1]
    return jnp.zeros_like(drawn).at[order].set(drawn, unique_indices=True)


def semidefinite_root(matrices: Float[Array, "... j j"]) -> Float[Array, "... j j"]:
    """Lower triangular L with `L Lᵀ` the given small matrices, which may be singular.

    A direction without variance has a column of zeros, and so has its derivative.
    """
    size, tiny = matrices.shape[-1], _ROUNDINGS * jnp.finfo(matrices.dtype).eps
    columns: list[Any] = []
    left = matrices
    for k in range(size):
        pivot = left[..., k, k]
        is_new = pivot > tiny * matrices[..., k, k]
        root = jnp.sqrt(jnp.where(is_new, pivot, 1.0))
        below = jnp.where(jnp.arange(size) >= k, left[..., :, k] / root[..., None], 0.0)
        columns.append(jnp.where(is_new[..., None], below, 0.0))
        left = left - columns[-1][..., :, None] * columns[-1][..., None, :]
    return jnp.stack(columns, axis=-1)
