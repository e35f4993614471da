"""Paths of a Markov process, drawn at any times in O(n): what exact samples of a series are made of.

The state is drawn from `P∞` at the first time, and moves on by `A(δ) state + shock` in the order of time. A time that is
there twice is a step of 0, whose shock is 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax.kernels import MarkovProcess
from kernax.kernels._markov import product

_ROUNDINGS = 16
"""A pivot of no more than so many roundings of its diagonal entry is 0."""


def path_draws(process: MarkovProcess, times: Float[Array, " n"], key: Key[Array, ""], number: int) -> Float[Array, "n s"]:
    """Functions drawn from a Markov process, at times in any order.

    **Arguments:**

    - `process`: the process.
    - `times`: where the functions are evaluated; times may repeat.
    - `key`: a random key.
    - `number`: how many functions.

    **Returns:**

    An array of shape `(n, number)`.
    """
    order = jnp.argsort(jax.lax.stop_gradient(times))
    ordered = times[order]
    move, shock = process.transition(jnp.diff(ordered, prepend=ordered[:1]))
    # The first step has length 0 and a state before it that is 0: all of the state is new.
    root = semidefinite_root(shock.at[0].set(process.stationary))
    normal = jax.random.normal(key, (*root.shape[:2], number), root.dtype)
    observation = jnp.asarray(process.observation, root.dtype)

    def step(state: Float[Array, "j s"], row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        move, root, normal = row
        state = product(move, state) + product(root, normal)
        return state, jnp.sum(observation[:, None] * state, axis=0)

    drawn = jax.lax.scan(step, jnp.zeros_like(normal[0]), (move, root, normal))[1]
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
