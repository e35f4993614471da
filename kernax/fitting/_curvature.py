"""What the steps of a fit have shown of the curvature: an approximate inverse Hessian, by the formula of BFGS."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Curvature(NamedTuple):
    """An approximate inverse Hessian.

    With few parameters it is the matrix itself. With more, it is what the last steps and the changes of the gradient along
    them imply (limited memory).
    """

    memory: Float[Array, "..."]
    """`(k, k)`: the matrix; or `(2, m, k)`: the last m steps and the changes of the gradient."""
    num_pairs: Int[Array, ""]
    """How many pairs of a step and a change it has seen, of those kept."""


def no_curvature(x: Float[Array, " k"], memory_size: int) -> Curvature:
    """Before the first step. `memory_size` steps are kept; with at most twice as many parameters the matrix is, which is no
    larger and forgets none.
    """
    shape = (x.size, x.size) if x.size <= 2 * memory_size else (2, memory_size, x.size)
    return Curvature(jnp.zeros(shape, x.dtype), jnp.zeros((), jnp.int32))


def pair_between(
    x: Float[Array, " k"], gradient: Float[Array, " k"], before: Float[Array, " k"], gradient_before: Float[Array, " k"]
) -> Float[Array, "2 k"]:
    """The step from `before` to `x`, and below it the change of the gradient.

    Parameters whose slope is exactly 0 at either end are left out: they are at an end of their range, where the slope
    jumps, and a jump says nothing about curvature.
    """
    counts = (gradient != 0) & (gradient_before != 0)
    return jnp.where(counts, jnp.stack([x - before, gradient - gradient_before]), 0.0)


def with_pair(curvature: Curvature, pair: Float[Array, "2 k"], moved: Bool[Array, ""], *, growth: float = 1.0) -> Curvature:
    """The curvature with one more step, if there was one (`moved`) and it keeps the inverse Hessian positive.

    The whole inverse Hessian may grow by a factor of up to `growth` if the step shows that it was too small.
    """
    memory, num_pairs = curvature
    products = pair @ pair.T
    bend, squares = products[0, 1], products[0, 0] * products[1, 1]
    keep = moved & (bend > 0) & (bend**2 > jnp.finfo(pair.dtype).eps ** 2 * squares)
    if memory.ndim == 2:
        added, most = _updated(memory, pair, products, num_pairs, growth), jnp.iinfo(jnp.int32).max
    else:
        added, most = jnp.concatenate([memory[:, 1:], pair[:, None]], axis=1), memory.shape[1]
    return Curvature(jnp.where(keep, added, memory), jnp.minimum(num_pairs + keep, most))


def _updated(
    inverse: Float[Array, "k k"],
    pair: Float[Array, "2 k"],
    products: Float[Array, "2 2"],
    num_pairs: Int[Array, ""],
    growth: float,
) -> Float[Array, "k k"]:
    """BFGS: `(I - sdᵀ/c) H (I - dsᵀ/c) + ssᵀ/c` for the step s, the change d and `c = sᵀd`; at first H is `c/dᵀd · I`."""
    step, change = pair
    curvature = jnp.where(products[0, 1] == 0, 1.0, products[0, 1])
    square = jnp.where(products[1, 1] == 0, 1.0, products[1, 1])
    inverse = jnp.where(num_pairs == 0, curvature / square * jnp.eye(step.size, dtype=step.dtype), inverse)
    image = inverse @ change
    if growth > 1:
        expected = jnp.vdot(change, image)
        factor = jnp.clip(curvature / jnp.where(expected > 0, expected, curvature), 1.0, growth)
        inverse, image = factor * inverse, factor * image
    mixed = step[:, None] * image[None, :]
    weight = (1.0 + jnp.vdot(change, image) / curvature) / curvature
    return inverse - (mixed + mixed.T) / curvature + weight * step[:, None] * step[None, :]


def inverse_hessian_times(gradient: Float[Array, " k"], curvature: Curvature) -> Float[Array, " k"]:
    """`H gradient` for the inverse Hessian H: the step, but for its sign, to where the gradient would vanish."""
    memory, num_pairs = curvature
    if memory.ndim == 2:
        return memory @ gradient
    steps, changes = memory
    m = steps.shape[0]
    kept = jnp.arange(m) >= m - num_pairs
    curvatures = jnp.sum(steps * changes, axis=1)
    weights = jnp.where(kept, 1.0 / jnp.where(kept, curvatures, 1.0), 0.0)

    def backwards(direction, pair):
        step, change, weight = pair
        share = weight * jnp.vdot(step, direction)
        return direction - share * change, share

    def forwards(direction, pair):
        step, change, weight, share = pair
        return direction + (share - weight * jnp.vdot(change, direction)) * step, None

    direction, shares = jax.lax.scan(backwards, gradient, (steps, changes, weights), reverse=True)
    square = jnp.sum(changes[-1] ** 2)
    direction = direction * jnp.where(num_pairs > 0, curvatures[-1] / jnp.where(num_pairs > 0, square, 1.0), 1.0)
    direction, _ = jax.lax.scan(forwards, direction, (steps, changes, weights, shares))
    return direction
