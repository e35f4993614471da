"""The iteration of conjugate gradients, and the Gauss quadrature that comes with it.

A run that starts from a column z with the preconditioner P holds the Lanczos matrix T of `M = P^(-1/2) A P^(-1/2)` and
`w = P^(-1/2) z`, so that `wᵀ log(M) w ≈ ‖w‖² e₁ᵀ log(T) e₁`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._programs import compiled
from kernax.solvers import _raw

_QUADRATURE = 100
"""Steps of each column that enter the quadrature, the static size of its `eigh`. It converges before the solve does."""


class Run(NamedTuple):
    """How a run of conjugate gradients ended, and the numbers of which the Lanczos matrices are made."""

    steps: Array
    converged: Bool[Array, ""]
    definite: Bool[Array, ""]
    """Whether no direction was found in which A is negative."""
    residual: Float[Array, ""]
    """The largest `‖b - A x‖ / size` of any column."""
    lengths: Float[Array, "q p"]
    ratios: Float[Array, "q p"]


class _State(NamedTuple):
    x: Float[Array, "n p"]
    r: Float[Array, "n p"]
    """`b - A x`, as the iteration keeps it."""
    direction: Float[Array, "n p"]
    square: Float[Array, " p"]
    """`rᵀ P⁻¹ r`."""
    stuck: Bool[Array, " p"]
    """Whether a direction had no positive curvature, so that there is no next step."""
    definite: Bool[Array, ""]
    lengths: Float[Array, "q p"]
    ratios: Float[Array, "q p"]
    number: Array


@compiled
def conjugate_gradients(
    multiply: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    columns: Float[Array, "n p"],
    tolerance: float,
    max_steps: int,
    size: Float[Array, " p"] | None = None,
) -> tuple[Float[Array, "n p"], Run]:
    """`A⁻¹ b` for all columns at once, each with its own step lengths.

    **Arguments:**

    - `multiply`: multiplies columns by A.
    - `precondition`: multiplies columns by `P⁻¹`.
    - `columns`: the right-hand sides.
    - `tolerance`: the residual `‖b - A x‖ / size` at which a column is done.
    - `max_steps`: the most steps.
    - `size`: what residuals are relative to; `‖b‖` of every column if not given.

    **Returns:**

    The last iterate, which is the closest one to the solution in the norm of A, and how the run ended.
    """
    size = jnp.linalg.norm(columns, axis=0) if size is None else size
    size = jnp.maximum(size, jnp.finfo(columns.dtype).tiny)
    kept = min(max_steps, _QUADRATURE)
    rounding = 10 * float(jnp.finfo(columns.dtype).eps)

    def residual(r: Array) -> Array:
        return jnp.linalg.norm(r, axis=0) / size

    def goes_on(state: _State) -> Array:
        return (state.number < max_steps) & jnp.any((residual(state.r) > tolerance) & ~state.stuck)

    def step(state: _State) -> _State:
        x, r, direction, square, stuck, definite, lengths, ratios, number = state
        product = multiply(direction)
        curvature = jnp.sum(direction * product, axis=0)
        # A column that is done goes a little further while others need it, and then rests: its numbers would be rounding.
        unfinished = (residual(r) > 0.01 * tolerance) & ~stuck
        live = unfinished & (curvature > 0)
        negative = curvature < -rounding * jnp.linalg.norm(direction, axis=0) * jnp.linalg.norm(product, axis=0)
        definite = definite & ~jnp.any(unfinished & negative)
        length = jnp.where(live, square / jnp.where(live, curvature, 1.0), 0.0)
        x, r = x + length * direction, r - length * product
        seen = precondition(r)
        new_square = jnp.where(live, jnp.sum(r * seen, axis=0), square)
        ratio = jnp.where(live & (square > 0), new_square / jnp.where(square > 0, square, 1.0), 0.0)
        # Past the end of the arrays, nothing is written.
        lengths, ratios = lengths.at[number].set(length, mode="drop"), ratios.at[number].set(ratio, mode="drop")
        stuck = stuck | (unfinished & ~live)
        return _State(x, r, seen + ratio * direction, new_square, stuck, definite, lengths, ratios, number + 1)

    first, empty = precondition(columns), jnp.zeros((kept, columns.shape[1]), columns.dtype)
    square, nowhere = jnp.sum(columns * first, axis=0), jnp.zeros(columns.shape[1], bool)
    start = _State(jnp.zeros_like(columns), columns, first, square, nowhere, jnp.asarray(True), empty, empty, jnp.asarray(0))
    end = jax.lax.while_loop(goes_on, step, start)
    # The iteration's own residual forgets its rounding errors, so what is reported is computed again.
    left = jnp.max(residual(columns - multiply(end.x)), initial=0.0)
    converged = jnp.all(residual(end.r) <= tolerance)
    return end.x, Run(end.number, converged, end.definite, left, end.lengths, end.ratios)


def log_entries(lengths: Float[Array, "q p"], ratios: Float[Array, "q p"]) -> Float[Array, " p"]:
    """`e₁ᵀ log(T) e₁` for the Lanczos matrix T of each column of a run."""
    return jax.vmap(_log_entry, in_axes=1)(lengths, ratios)


def _log_entry(lengths: Float[Array, " q"], ratios: Float[Array, " q"]) -> Float[Array, ""]:
    on = lengths > 0
    safe = jnp.where(on, lengths, 1.0)
    places = jnp.arange(lengths.shape[0])
    before = jnp.where(places > 0, jnp.roll(jnp.where(on, ratios, 0.0) / safe, 1), 0.0)
    # Steps that were not made are cut off from the others, and have the logarithm 0.
    beside = jnp.where(jnp.roll(on, -1) & (places < lengths.shape[0] - 1), jnp.sqrt(jnp.maximum(ratios, 0.0)) / safe, 0.0)
    upper = jnp.where(places[:, None] + 1 == places[None, :], beside[:, None], 0.0)
    matrix = jnp.where(places[:, None] == places[None, :], jnp.where(on, 1.0 / safe + before, 1.0), upper + upper.T)
    vectors, values = _raw.eigh(matrix)
    return jnp.sum(vectors[0] ** 2 * jnp.log(jnp.maximum(values, jnp.finfo(values.dtype).tiny)))
