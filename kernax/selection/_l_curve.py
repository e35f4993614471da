"""The L-curve: the norm of the residual against the norm of the function, and its corner.

The curve is smooth in `t = log λ`, and its curvature comes from its exact derivatives, not from differences along a grid.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.model import Conditioned, recondition
from kernax.selection._ridge_path import as_ridges, check_one_noise, increasing_ridges
from kernax.selection._search import interior_minimum
from kernax.solvers import Result, is_usable, result_name, throw_unless

_LEAST_TURN = 0.3
"""Radians by which the curve must turn from below a corner to above it; a sharp L turns by nearly 1.6."""


class LCurve(eqx.Module):
    """The L-curve: points `(log ‖y - f̂_X‖, log ‖f̂‖)` along increasing ridges, and its corner."""

    ridges: Float[Array, " l"]
    """The ridges, in increasing order."""
    log_residual_norm: Float[Array, " l"]
    """`log ‖y - f̂_X‖` at each ridge."""
    log_rkhs_norm: Float[Array, " l"]
    """`log ‖f̂‖` at each ridge."""
    curvature: Float[Array, " l"]
    """Positive where the curve bends towards its corner."""
    corner: Float[Array, ""]
    """The ridge of largest curvature, between grid points; NaN if there is no corner."""
    corner_point: Float[Array, "2"]
    """`(log ‖y - f̂_X‖, log ‖f̂‖)` at the corner."""
    corner_curvature: Float[Array, ""]
    """The curvature at the corner."""
    result: Any
    """How the search for the corner ended."""

    def __repr__(self):
        if not is_concrete(self.corner) or self.corner.ndim:
            return f"LCurve({self.ridges.shape[-1]} ridges)"
        return f"LCurve({len(self.ridges)} ridges, corner={float(self.corner):.4g}, {result_name(self.result)})"


def l_curve(c: Conditioned, ridges: Any = None, *, throw: bool = True) -> LCurve:
    """The L-curve: the norm of the residual against the norm of the fit, for many ridges, with its corner.

    A corner is an inner maximum of positive curvature, where the curve is clearly flatter above than below (by 0.3
    radians). Norms are over all outputs. O(n²) a ridge with `Eigh`.

    **Arguments:**

    - `c`: a model conditioned with a solver that can move to another noise: `kx.condition(model, data, kx.Eigh())`.
    - `ridges`: the ridges to try; `default_ridges(c)` if not given.
    - `throw`: raise `FailedError` if there is no corner; with `False`, or traced, the status is `no_corner`.

    **Returns:**

    An `LCurve`.
    """
    check_one_noise(c)
    curve = _l_curve(c, None if ridges is None else as_ridges(ridges, c.data.dtype))
    if throw:
        throw_unless((), curve.result, "the search for the L-curve's corner")
    return curve


def _shape(at: Float[Array, ""], c: Conditioned) -> tuple[Float[Array, "2"], Float[Array, "2"], Float[Array, ""]]:
    """Point, velocity and curvature of the curve `x = log ‖y - f̂_X‖`, `y = log ‖f̂‖` at `t = log λ = at`.

    With `B = (K + λI)⁻¹`, `M_k = yᵀB^k y` and `N_k = yᵀK B^k y`: `‖y - f̂_X‖² = λ²M_2`, `‖f̂‖² = N_2`, and a derivative
    in λ raises k by 1 and multiplies by -k. So `x' = N_3/M_2`, `y' = -λN_3/N_2`: no difference of nearly equal numbers
    in either. Everything is in units of the ridge and of alpha's largest entry, so that no power over- or underflows.
    """
    here = recondition(c, noise=jnp.exp(at))
    system, ridge = here.system, here.system.noise + here.jitter
    alpha = here.alpha.reshape(here.data.n, -1)
    unit = jax.lax.stop_gradient(jnp.max(jnp.abs(alpha)))
    unit = jnp.where(unit > 0, unit, 1.0)
    first = alpha / unit
    second = ridge * system.solve(first).value
    of_first, of_second = system.gram.mv(first) / ridge, system.gram.mv(second) / ridge
    # M_2, λM_3; N_2/λ, N_3, λN_4
    m2, m3 = jnp.sum(first * first), jnp.sum(first * second)
    n2, n3, n4 = jnp.sum(first * of_first), jnp.sum(first * of_second), jnp.sum(second * of_second)
    exists = (m2 > 0) & (n2 > 0) & (n3 > 0)
    m2, n2 = jnp.where(exists, m2, 1.0), jnp.where(exists, n2, 1.0)
    x1, y1 = n3 / m2, -n3 / n2
    x2 = 2 * x1 * m3 / m2 - 3 * n4 / m2
    y2 = y1 - 2 * y1**2 + 3 * n4 / n2
    speed = jnp.where(exists, x1**2 + y1**2, 1.0)
    curvature = (x1 * y2 - x2 * y1) / speed**1.5
    point = jnp.log(unit) + jnp.stack([jnp.log(ridge) + 0.5 * jnp.log(m2), 0.5 * (jnp.log(ridge) + jnp.log(n2))])
    return jax.tree.map(lambda v: jnp.where(exists, v, jnp.nan), (point, jnp.stack([x1, y1]), curvature))


@compiled
def _l_curve(c: Conditioned, ridges: Float[Array, " l"] | None) -> LCurve:
    ridges = increasing_ridges(c, ridges)
    places = jnp.log(ridges)
    points, velocities, curvature = jax.lax.map(lambda t: _shape(t, c), places)
    bends = jnp.where(jnp.isfinite(places) & jnp.isfinite(curvature), curvature, -jnp.inf)
    # Only a peak is a corner: an end of the grid may stand on a slope. And only one where the curve turns: it must be
    # flatter somewhere above than somewhere below.
    padded = jnp.pad(bends, 1, constant_values=jnp.inf)
    peak = (bends >= padded[:-2]) & (bends >= padded[2:]) & (bends > 0)
    angles = jnp.arctan2(velocities[:, 1], velocities[:, 0])
    angles = jnp.where(jnp.isfinite(bends), angles, jnp.nan)
    steepest = jax.lax.cummin(jnp.where(jnp.isnan(angles), jnp.inf, angles))
    flattest = jax.lax.cummax(jnp.where(jnp.isnan(angles), -jnp.inf, angles), reverse=True)
    heights = jnp.where(peak & (flattest - steepest > _LEAST_TURN), -bends, jnp.inf)
    place, inside, _ = interior_minimum(lambda t: -_shape(t, c)[2], places, heights)
    found = inside & jnp.any(jnp.isfinite(heights))
    result = Result.where(is_usable(c.result), Result.where(found, Result.successful, Result.no_corner), c.result)
    point, _, height = _shape(jnp.where(found, place, 0.0), c)
    corner = jnp.where(found, jnp.exp(jnp.where(found, place, 0.0)), jnp.nan)
    return LCurve(
        ridges=ridges,
        log_residual_norm=points[:, 0],
        log_rkhs_norm=points[:, 1],
        curvature=curvature,
        corner=corner,
        corner_point=jnp.where(found, point, jnp.nan),
        corner_curvature=jnp.where(found, height, jnp.nan),
        result=result,
    )
