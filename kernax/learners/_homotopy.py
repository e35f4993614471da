"""The lasso's whole path, exactly: from knot to knot, with a tableau that one rank-1 update a knot keeps current.

With `μ = λ/2`, `G = ΦᵀΦ` and `c = Φᵀy`, the columns A that are on and their signs s determine the solution,
`w_A = G_AA⁻¹(c_A - μ s_A)`, until a coefficient reaches 0 or the correlation of another column reaches ±μ. Going down from
the μ at which all coefficients are 0, such a knot turns one column on or off. Everything needed stands in the *swept* G:

    T_AA = -G_AA⁻¹,   T_AB = G_AA⁻¹ G_AB,   T_BB = G_BB - G_BA G_AA⁻¹ G_AB.

A column whose pivot `T_jj` is 0 to rounding depends on those that are on. It stays off, and its correlation then keeps its
ratio to μ, so that the solution stays one of many.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul
from kernax.solvers import factorise_matrix


class _Walk(NamedTuple):
    tableau: Float[Array, "q q"]
    swept: Float[Array, " q"]
    """c, swept like a column of G: `G_AA⁻¹c_A` for the columns that are on, `c_B - G_BA G_AA⁻¹c_A` for the others."""
    signs: Float[Array, " q"]
    """0 for a column that is off."""
    level: Float[Array, ""]
    weights: Float[Array, "l q"]
    recorded: Int[Array, ""]
    num_steps: Int[Array, ""]
    ended: Bool[Array, ""]


class _Knot(NamedTuple):
    level: Float[Array, ""]
    column: Int[Array, ""]
    sign: Float[Array, ""]
    """The column's sign beyond the knot; 0 if it goes off."""
    slope: Float[Array, " q"]
    """`G_AA⁻¹s_A` for the columns that are on, `G_BA G_AA⁻¹s_A` for the others: what falls with μ."""
    exists: Bool[Array, ""]


class Path(NamedTuple):
    """Coefficients at every level, how many levels were reached, and over how many knots."""

    weights: Float[Array, "l q"]
    recorded: Int[Array, ""]
    num_steps: Int[Array, ""]


def lasso_weights(
    design: Float[Array, "n q"], targets: Float[Array, " n"], levels: Float[Array, " l"], max_steps: Int[Array, ""]
) -> Path:
    """The minimiser of `½‖y - Φw‖² + μ‖w‖₁` for every μ of `levels`, which descend. O(nq²), then O(q²) a knot or level.

    Differentiable of any order with respect to all three arrays, by implicit differentiation on the columns that are on.
    """
    path = _walk(*jax.lax.stop_gradient((design, targets, levels)), max_steps)
    return path._replace(weights=_attached(design, targets, levels, path.weights))


def _walk(
    design: Float[Array, "n q"], targets: Float[Array, " n"], levels: Float[Array, " l"], max_steps: Int[Array, ""]
) -> Path:
    gram, correlation = matmul(design.T, design), matmul(design.T, targets)
    num = levels.shape[0]

    def go_on(walk: _Walk) -> Bool[Array, ""]:
        return ~walk.ended & (walk.num_steps < max_steps)

    def step(walk: _Walk) -> _Walk:
        knot = _next_knot(walk, gram)

        def before_knot(state: tuple[Array, Array]) -> Bool[Array, ""]:
            return (state[0] < num) & (levels[jnp.minimum(state[0], num - 1)] >= knot.level)

        def record(state: tuple[Array, Array]) -> tuple[Array, Array]:
            at, weights = state
            return at + 1, weights.at[at].set(_solution(walk, knot.slope, levels[at], gram, correlation))

        recorded, weights = jax.lax.while_loop(before_knot, record, (walk.recorded, walk.weights))
        swept = _crossed(walk, knot)
        # Without another knot the pivot may be anything; what it made of the tableau is not read again.
        ended = ~knot.exists | (recorded >= num)
        return swept._replace(recorded=recorded, weights=weights, num_steps=walk.num_steps + knot.exists, ended=ended)

    zeros = jnp.zeros_like(correlation)
    start = _Walk(
        tableau=gram,
        swept=correlation,
        signs=zeros,
        level=jnp.maximum(jnp.max(jnp.abs(correlation)), levels[0]),
        weights=jnp.zeros((num, *zeros.shape), zeros.dtype),
        recorded=jnp.asarray(0),
        num_steps=jnp.asarray(0),
        ended=jnp.asarray(False),
    )
    walk = jax.lax.while_loop(go_on, step, start)
    # Levels that were not reached get the solution at the last one that was.
    last = _solution(walk, _next_knot(walk, gram).slope, walk.level, gram, correlation)
    reached = jnp.arange(num)[:, None] < walk.recorded
    return Path(jnp.where(reached, walk.weights, last), walk.recorded, walk.num_steps)


def _next_knot(walk: _Walk, gram: Float[Array, "q q"]) -> _Knot:
    """The largest μ, not above the present one, at which a column goes on or off."""
    on = walk.signs != 0
    slope = matmul(walk.tableau, walk.signs) * jnp.where(on, -1.0, 1.0)
    # Going off: only while moving towards 0, which a column that has just come on does not.
    falling = on & (walk.signs * slope < 0)
    off_at = jnp.where(falling, walk.swept / jnp.where(falling, slope, 1.0), -jnp.inf)
    # Coming on, where |correlation| = |swept + μ slope| meets μ: only while μ falls faster.
    # What elimination leaves of a dependent column by rounding, found by trial on duplicates and small whole numbers.
    left_by_rounding = 8 * jnp.finfo(slope.dtype).eps ** 0.85 * jnp.diagonal(gram)
    independent = jnp.diagonal(walk.tableau) > left_by_rounding

    def on_at(sign: float) -> Float[Array, " q"]:
        closing = 1.0 - sign * slope
        meets = ~on & independent & (closing > 0)
        return jnp.where(meets, sign * walk.swept / jnp.where(meets, closing, 1.0), -jnp.inf)

    up, down = on_at(1.0), on_at(-1.0)
    levels = jnp.maximum(off_at, jnp.maximum(up, down))
    column = jnp.argmax(levels)
    exists = levels[column] > 0
    # Rounding may put a knot a little above where the walk stands.
    level = jnp.where(exists, jnp.minimum(levels[column], walk.level), 0.0)
    sign = jnp.where(on[column], 0.0, jnp.where(up[column] >= down[column], 1.0, -1.0))
    return _Knot(level, column, sign.astype(slope.dtype), slope, exists)


def _solution(
    walk: _Walk,
    slope: Float[Array, " q"],
    level: Float[Array, ""],
    gram: Float[Array, "q q"],
    correlation: Float[Array, " q"],
) -> Float[Array, " q"]:
    """`G_AA⁻¹(c_A - μ s_A)`, refined once with G itself against the rounding that the tableau has gathered."""
    on = walk.signs != 0
    rough = jnp.where(on, walk.swept - level * slope, 0.0)
    left = jnp.where(on, correlation - level * walk.signs - matmul(gram, rough), 0.0)
    fine = rough - jnp.where(on, matmul(walk.tableau, left), 0.0)
    # The most that a coefficient moves any correlation. At a knot, or where columns tie, rounding leaves a coefficient a
    # hair away from 0, maybe on the wrong side: there 0 is closer to the optimality conditions.
    diagonal = jnp.diagonal(gram)
    effect = jnp.abs(fine) * jnp.sqrt(diagonal * jnp.max(diagonal))
    rounding = 8 * jnp.finfo(fine.dtype).eps * jnp.max(jnp.abs(correlation))
    return jnp.where((effect <= rounding) | ((walk.signs * fine < 0) & (effect <= level)), 0.0, fine)


def _crossed(walk: _Walk, knot: _Knot) -> _Walk:
    """The walk beyond a knot: the tableau swept on one column."""
    at = jnp.arange(walk.signs.shape[0]) == knot.column
    row = walk.tableau[knot.column]
    pivot = jnp.where(knot.exists, row[knot.column], 1.0)
    direction = jnp.where(knot.sign == 0, -1.0, 1.0).astype(row.dtype)
    new_row = jnp.where(at, -1.0 / pivot, direction * row / pivot)
    rest = walk.tableau - row[:, None] * (row / pivot)[None, :]
    tableau = jnp.where(at[:, None], new_row[None, :], jnp.where(at[None, :], new_row[:, None], rest))
    share = walk.swept[knot.column] / pivot
    swept = jnp.where(at, direction * share, walk.swept - row * share)
    return walk._replace(tableau=tableau, swept=swept, signs=jnp.where(at, knot.sign, walk.signs), level=knot.level)


@jax.custom_jvp
def _attached(
    design: Float[Array, "n q"], targets: Float[Array, " n"], levels: Float[Array, " l"], weights: Float[Array, "l q"]
) -> Float[Array, "l q"]:
    """The weights, with the derivatives that they have as functions of the rest. A path that is not differentiated pays
    nothing; one that is pays a factorisation a level."""
    return weights


@_attached.defjvp
def _attached_jvp(primals, tangents):
    """On the columns that are on, with their signs: `Φ_AᵀΦ_A δw_A = δ(Φ_Aᵀ)r + Φ_Aᵀ(δy - δΦ w) - δμ s_A`."""
    (design, targets, levels, weights), (d_design, d_targets, d_levels, _) = primals, tangents
    value = _attached(design, targets, levels, weights)
    signs = jnp.sign(jax.lax.stop_gradient(weights))
    gram = matmul(design.T, design)
    residuals = targets - matmul(value, design.T)
    change = matmul(residuals, d_design) + matmul(d_targets - matmul(value, d_design.T), design) - d_levels[:, None] * signs

    def at_level(of_level: tuple[Array, Array]) -> Array:
        on, change = of_level[0] != 0, of_level[1]
        return factorise_matrix(gram, jnp.zeros((), gram.dtype), on).solve(change).value

    return value, jax.lax.map(at_level, (signs, change))
