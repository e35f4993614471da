"""The search that all selectors use: a root inside a bracket, differentiable by the implicit function theorem."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Scalar = Float[Array, ""]


def bracketed_root(
    function: Callable[[Scalar], Scalar], low: Scalar, high: Scalar, first: Scalar, max_steps: int = 80
) -> Scalar:
    """Where `function` rises through 0 between `low` and `high`, looked for at `first` to begin with.

    Chandrupatla's method: inverse quadratic steps, bisection where they cannot be trusted. The ends are never evaluated:
    they are taken to lie below and above 0, and one that does not is simply never bracketed again. Differentiable in
    whatever `function` closes over, by `-∂f/∂θ / ∂f/∂t`; a forward pass does not pay for that.
    """

    # `custom_root` asks for the function, its search and its slope: with `jit` they share one trace.
    function = jax.jit(function)

    def search(function: Callable[[Scalar], Scalar], first: Scalar) -> Scalar:
        tolerance = 4 * jnp.finfo(first.dtype).eps * jnp.maximum(1.0, jnp.abs(first))

        def unfinished(state: tuple[Array, ...]) -> Bool[Array, ""]:
            x1, x2, f1, step = state[0], state[1], state[3], state[-1]
            return (step < max_steps) & (jnp.abs(x2 - x1) > 2 * tolerance) & (f1 != 0)

        def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
            x1, x2, _, f1, f2, _, share, step = state
            x = x1 + share * (x2 - x1)
            f = function(x)
            same = jnp.sign(f) == jnp.sign(f1)
            x2, f2, x3, f3 = jax.tree.map(lambda a, b: jnp.where(same, a, b), (x2, f2, x1, f1), (x1, f1, x2, f2))
            x1, f1 = x, f
            # Inverse quadratic interpolation only where the three points lie on a curve that it can follow.
            xi, phi = _ratio(x1 - x2, x3 - x2), _ratio(f1 - f2, f3 - f2)
            trusted = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            curved = _ratio(f1, f2 - f1) * _ratio(f3, f2 - f3)
            curved += _ratio(x3 - x1, x2 - x1) * _ratio(f1, f3 - f1) * _ratio(f2, f3 - f2)
            least = _ratio(tolerance, jnp.abs(x2 - x1))
            share = jnp.clip(jnp.where(trusted, curved, 0.5), least, 1 - least)
            return x1, x2, x3, f1, f2, f3, share, step + 1

        above, below = jnp.ones_like(first), -jnp.ones_like(first)
        share = jnp.clip(_ratio(first - high, low - high), 0.01, 0.99)
        state = (high, low, low, above, below, below, share, jnp.zeros((), int))
        x1, x2, _, f1, f2, *_ = jax.lax.while_loop(unfinished, advance, state)
        return jnp.where(jnp.abs(f1) <= jnp.abs(f2), x1, x2)

    def tangent_solve(slope: Callable[[Scalar], Scalar], target: Scalar) -> Scalar:
        return _ratio(target, slope(jnp.ones_like(target)))

    return jax.lax.custom_root(function, jax.lax.stop_gradient(first), search, tangent_solve)


def interior_minimum(
    curve: Callable[[Scalar], Scalar], places: Float[Array, " l"], values: Float[Array, " l"]
) -> tuple[Scalar, Bool[Array, ""], Int[Array, ""]]:
    """The lowest point of `curve` around the lowest of its `values` at increasing `places`; differentiable.

    Returns the place, whether it lies inside the places (if not, it is the lowest end), and the index of the lowest value.
    """
    places, values = jax.lax.stop_gradient((places, values))
    lowest = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
    # The neighbours are the nearest places that differ: a grid may hold a place twice.
    below = jnp.max(jnp.where(places < places[lowest], places, -jnp.inf))
    above = jnp.min(jnp.where(places > places[lowest], places, jnp.inf))
    inside = jnp.any(places < places[lowest]) & jnp.isfinite(above)

    def slope(at: Scalar) -> Scalar:
        return jax.jvp(curve, (at,), (jnp.ones_like(at),))[1]

    # Ridge 0 stands at -∞ on the logarithmic axis; a millionth of its neighbour is as good.
    middle = jnp.where(inside, places[lowest], 0.0)
    # At an end there is nothing to look for: a bracket of no width.
    low, high = jnp.where(inside, jnp.maximum(below, middle - 14.0), middle), jnp.where(inside, above, middle)
    place = bracketed_root(slope, low, high, middle)
    return jnp.where(inside, place, places[lowest]), inside, lowest


def _ratio(above: Scalar, below: Scalar) -> Scalar:
    """The quotient, 0 instead of NaN or ∞ where there is none."""
    return jnp.where(below == 0, 0.0, above / jnp.where(below == 0, 1.0, below))
