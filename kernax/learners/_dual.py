"""The dual of support vector machines, its optimality, and the derivatives of its solution.

`min ½αᵀKα - yᵀα + ε‖α‖₁` over `lower ≤ α ≤ upper`, with `Σα = 0` if there is an intercept b, its multiplier. Regression has
the bounds ±C. Classification has ε = 0 and α_i between 0 and C y_i. With the residuals `r = y - Kα - b`, α is optimal where

    r_i = ε sign(α_i)   for α_i inside its bounds and not 0,        |r_i| ≤ ε   for α_i = 0,
    r_i ≥ ε             for α_i = upper > 0,                       r_i ≤ -ε   for α_i = lower < 0

(at 0, a side that the bounds close asks for nothing).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul
from kernax.solvers import factorise_matrix, one_at_a_time_on_cpu

_SMALL, _MEDIUM = 128, 512
"""Rows up to which there is one size of systems, the whole one, and up to which there are two."""

AT_LOWER, FREE_BELOW, AT_ZERO, FREE_ABOVE, AT_UPPER = -2, -1, 0, 1, 2
"""Where a coefficient is: its `place`, whose sign is the coefficient's."""


class Dual(NamedTuple):
    """The numbers of the problem. Rows that do not count have bounds of 0."""

    gram: Float[Array, "n n"]
    targets: Float[Array, " n"]
    epsilon: Float[Array, ""]
    lower: Float[Array, " n"]
    upper: Float[Array, " n"]


class Slopes(NamedTuple):
    """The dual's one-sided derivatives: what a coefficient going up costs, and what one going down gains.

    ∞ and -∞ where a bound forbids it. α is optimal if `up ≥ 0 ≥ down`, or with an intercept if `min up ≥ max down`.
    """

    up: Float[Array, " n"]
    down: Float[Array, " n"]


def slopes(dual: Dual, alpha: Float[Array, " n"], gradient: Float[Array, " n"]) -> Slopes:
    """Those at α, from `gradient = Kα - y`."""
    up = gradient + jnp.where(alpha >= 0, dual.epsilon, -dual.epsilon)
    down = gradient + jnp.where(alpha > 0, dual.epsilon, -dual.epsilon)
    return Slopes(jnp.where(alpha < dual.upper, up, jnp.inf), jnp.where(alpha > dual.lower, down, -jnp.inf))


def middle(of: Slopes) -> Float[Array, ""]:
    """The intercept that suits α best: the middle of the optimal ones, or the nearest of them if one end is open."""
    low, high = -jnp.min(of.up), -jnp.max(of.down)
    centre = jnp.where(jnp.isinf(high), low, jnp.where(jnp.isinf(low), high, 0.5 * (low + high)))
    return jnp.where(jnp.isinf(centre), 0.0, centre)


def kkt_residual(of: Slopes, b: Float[Array, ""]) -> Float[Array, ""]:
    """The largest violation of the conditions above, in the targets' unit."""
    return jnp.maximum(jnp.maximum(jnp.max(-of.up - b), jnp.max(of.down + b)), 0.0)


def places(dual: Dual, alpha: Float[Array, " n"]) -> Int[Array, " n"]:
    """Where each coefficient is."""
    inside = jnp.sign(alpha).astype(jnp.int32)
    return inside * jnp.where((alpha != 0) & ((alpha >= dual.upper) | (alpha <= dual.lower)), 2, 1)


def held_at(dual: Dual, place: Int[Array, " n"]) -> Float[Array, " n"]:
    """The coefficients that are at a bound, 0 elsewhere."""
    return jnp.where(place == AT_UPPER, dual.upper, jnp.where(place == AT_LOWER, dual.lower, 0.0))


def constant_level(gram: Float[Array, "n n"]) -> Float[Array, ""]:
    """A constant that may be added to K where `Σα` is known. The solution does not change, and a matrix that is singular
    only because it has no intercept (a linear kernel on as many free rows as columns) becomes regular."""
    return jnp.mean(jnp.diagonal(gram))


class Face(NamedTuple):
    """The solution of the linear system of the free coefficients."""

    alpha: Float[Array, " n"]
    intercept: Float[Array, ""]
    jitter: Float[Array, ""]


def solve_face(
    gram: Float[Array, "n n"], free: Bool[Array, " n"], values: Float[Array, " n"], total: Float[Array, ""], intercept: bool
) -> Face:
    """`K_FF α_F + b = values_F` with `Σα_F = total` (or b = 0), and α = 0 elsewhere; b = 0 if nothing is free.

    Only the free rows are factorised, in the smallest of a few sizes that holds them: O(|F|³).
    """
    return Face(*(_face_with_intercept if intercept else _face_without)(gram, free, values, total))


def _face(
    gram: Float[Array, "n n"], free: Bool[Array, " n"], values: Float[Array, " n"], total: Float[Array, ""], intercept: bool
) -> tuple[Float[Array, " n"], Float[Array, ""], Float[Array, ""]]:
    n, count = gram.shape[0], jnp.sum(free)
    level = constant_level(gram)
    # Each is compiled by itself, and gathering costs more than it saves for few rows.
    sizes = [n] if n <= _SMALL else [n // 3, n] if n <= _MEDIUM else [n // 3, 2 * n // 3, n]

    def of_size(size: int) -> tuple[Float[Array, " n"], Float[Array, ""], Float[Array, ""]]:
        if size == n:
            rows, used, matrix, right = None, free, gram, values
        else:
            rows = jnp.nonzero(free, size=size, fill_value=0)[0]
            used, right = jnp.arange(size) < count, values[rows]
            matrix = gram[rows][:, rows]
        if intercept:
            matrix, right = matrix + level, right + level * total
        system = factorise_matrix(matrix, jnp.zeros((), gram.dtype), used)
        columns = jnp.where(used[:, None], jnp.stack([right, jnp.ones_like(right)], axis=1), 0.0)

        # Twice, the second time for what the first has missed: undoes most of what jitter has changed, where the system has
        # a solution at all. (A loop, since a solve takes long to compile.)
        def refined(_: Any, z: Array) -> Array:
            return z + system.solve(columns - system.gram.mv(z)).value

        solved = jax.lax.fori_loop(0, 2, refined, jnp.zeros_like(columns))
        sums = jnp.sum(solved, axis=0)
        b = (sums[0] - total) / jnp.where(sums[1] == 0, 1.0, sums[1]) if intercept else jnp.zeros_like(total)
        alpha = jnp.where(used, solved[:, 0] - b * solved[:, 1], 0.0)
        if rows is not None:
            alpha = jnp.zeros_like(values).at[rows].add(alpha)
        return alpha, jnp.where(count > 0, b, 0.0), system.jitter

    fitting = sum((count > size).astype(jnp.int32) for size in sizes[:-1])
    return jax.lax.switch(fitting, [partial(of_size, size) for size in sizes])


_face_with_intercept = one_at_a_time_on_cpu(partial(_face, intercept=True))
_face_without = one_at_a_time_on_cpu(partial(_face, intercept=False))


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def attached(
    dual: Dual, alpha: Float[Array, " n"], b: Float[Array, ""], intercept: bool
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """An optimal α and b, with the derivatives that they have as functions of the problem, of any order.

    The places of all coefficients are locally constant, so the conditions of the free ones and `Σα = 0` are linear equations
    in them. A gradient costs one factorisation of `K_FF`.
    """
    return alpha, b


@attached.defjvp
def _attached_jvp(intercept, primals, tangents):
    """`K_FF δα_F + δb = δy_F - δε sign(α_F) - (δK α + K δα_held)_F`, `Σδα = 0`, and δα_held = δbound."""
    (dual, alpha, b), (d_dual, _, _) = primals, tangents
    value = attached(dual, alpha, b, intercept)
    place = jax.lax.stop_gradient(places(dual, alpha))
    free, signs = jnp.abs(place) == 1, jnp.sign(place).astype(alpha.dtype)
    d_held = held_at(d_dual, place)
    moved = d_dual.targets - matmul(d_dual.gram, value[0]) - matmul(dual.gram, d_held)
    bordered = jnp.any(free) & intercept

    # One vector, not a pair: its transpose needs all operands to depend on the tangents, and δΣα does only where C moves.
    def apply(of: Float[Array, " m"]) -> Float[Array, " m"]:
        inside = jnp.where(free, of[:-1], 0.0)
        left = jnp.where(free, matmul(dual.gram, inside) + jnp.where(bordered, of[-1], 0.0), of[:-1])
        return jnp.append(left, jnp.where(bordered, jnp.sum(inside), of[-1]))

    def solve(_, right: Float[Array, " m"]) -> Float[Array, " m"]:
        face = solve_face(jax.lax.stop_gradient(dual.gram), free, right[:-1], right[-1], intercept)
        return jnp.append(jnp.where(free, face.alpha, right[:-1]), jnp.where(bordered, face.intercept, right[-1]))

    right = jnp.where(free, moved - d_dual.epsilon * signs, 0.0)
    total = jnp.where(bordered, -jnp.sum(d_held), 0.0)
    solved = jax.lax.custom_linear_solve(apply, jnp.append(right, total), solve=solve, symmetric=True)
    d_alpha, d_b = solved[:-1], solved[-1]
    if intercept:
        d_b = d_b + jnp.where(jnp.any(free), 0.0, _middle_slope(dual, d_dual, alpha, moved))
    return value, (d_alpha + d_held, d_b)


def _middle_slope(dual: Dual, d_dual: Dual, alpha: Float[Array, " n"], moved: Float[Array, " n"]) -> Float[Array, ""]:
    """The derivative of `middle`, which moves with the two rows that bound it."""
    own = slopes(*jax.lax.stop_gradient((dual, alpha, matmul(dual.gram, alpha) - dual.targets)))
    upper, lower = jnp.argmin(own.up), jnp.argmax(own.down)
    d_low = moved[upper] - jnp.where(alpha[upper] >= 0, d_dual.epsilon, -d_dual.epsilon)
    d_high = moved[lower] - jnp.where(alpha[lower] > 0, d_dual.epsilon, -d_dual.epsilon)
    open_low, open_high = jnp.isinf(own.up[upper]), jnp.isinf(own.down[lower])
    return jnp.where(open_high, jnp.where(open_low, 0.0, d_low), jnp.where(open_low, d_high, 0.5 * (d_low + d_high)))
