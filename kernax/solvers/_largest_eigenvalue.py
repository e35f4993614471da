"""The largest eigenvalue of a matrix of which only products are known, by the power iteration."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax.solvers._system import AbstractSystem


def largest_eigenvalue(system: AbstractSystem) -> Float[Array, ""]:
    """The largest eigenvalue of K over the rows that count. It has no derivative.

    **Arguments:**

    - `system`: a prepared System. Its own eigenvalues are used if it has them; otherwise the power iteration estimates the
      largest one to about one digit.

    **Returns:**

    One number; 1 if K is 0.
    """
    known = system.eigenvalues()
    if known is None:
        top = power_iteration(system.gram.mv, system.gram.mask, system.noise.dtype)
    else:
        top = jnp.max(jnp.where(jnp.isnan(known), 0.0, known))
    top = jax.lax.stop_gradient(top)
    return jnp.where(top > 0, top, 1.0)


def power_iteration(
    apply: Callable[[Array], Array], mask: Bool[Array, " n"], dtype: Any, steps: int = 30
) -> Float[Array, ""]:
    """The largest eigenvalue of a symmetric matrix, to about one digit.

    **Arguments:**

    - `apply`: a function that multiplies the matrix by an `(n, 1)` array.
    - `mask`: which rows count; the others start at 0.
    - `dtype`: the floating type of the columns.
    - `steps`: the number of iterations.

    **Returns:**

    One number.
    """
    # A fixed start that favours no structure; masked rows stay 0 and so out of the estimate.
    start = jnp.where(mask, jnp.sin(1.0 + jnp.arange(mask.shape[0]) ** 2 % 997), 0.0).astype(dtype)

    def step(_: Any, v: Array) -> Array:
        w = apply(v)
        return w / jnp.maximum(jnp.linalg.norm(w), jnp.finfo(w.dtype).tiny)

    return jnp.linalg.norm(apply(jax.lax.fori_loop(0, steps, step, start[:, None])))
