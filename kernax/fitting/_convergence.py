"""The rules of a fit, its best point so far, and when it has arrived: not by how flat the objective looks, but by what
another step could still gain.

Near an optimum the objective is `½ gᵀHg` above it, with the gradient g and the inverse Hessian H. The gradient alone says
little: 1e-3 is nothing where the objective bends sharply and a long way to go where it is nearly flat. So the loop keeps an
approximate H of its own, whatever the optimiser, learned from the steps between the best points.

Three things make the estimate independent of the units of the data:

- Parameters are measured in units of their own (`sizes`): a factor of e for positive ones; the size of the targets for a
    mean. A constant mean that is wrong by 1e6 has a tiny gradient per unit of y, and there is much to gain.
- Directions that were never tried count as nearly flat (`_UNTRIED`), so that a small gradient there still counts.
- A likelihood is judged in nats. Other objectives are judged relative to their best value.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from kernax.data import Data
from kernax.fitting._curvature import Curvature, inverse_hessian_times, no_curvature, pair_between, with_pair
from kernax.fitting._stochastic import Kept
from kernax.model import AbstractModel
from kernax.parameters import parameters, setting, unit
from kernax.rows import some_rows, take

_UNTRIED = 10.0
"""The inverse Hessian in directions that no step has tried, in the parameters' own units."""
_MEMORY_SIZE = 10
_LOOK = 2**16
"""Rows in a file that are looked at for the size of the inputs."""


class Rules(eqx.Module):
    """How to walk, and when to stop."""

    optimiser: optax.GradientTransformation = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    gradient_tolerance: float = eqx.field(static=True)
    """Converged only if no component of the gradient exceeds this, in nats or relative to the best value."""
    value_tolerance: float = eqx.field(static=True)
    """Converged only if another step could gain no more than this, and a step that gained less made no progress."""
    patience: int = eqx.field(static=True)
    """How many steps without progress end the fit."""
    in_nats: bool = eqx.field(static=True)
    """Whether the objective is a negative log-likelihood. Its tolerances are absolute."""
    keep_history: bool = eqx.field(static=True, default=True)
    """Whether the value of every step is kept: of thousands of fits it would fill the memory."""
    keep: Kept = eqx.field(static=True, default="best")
    """Which point is the answer; see `Stochastic`."""
    over: int = eqx.field(static=True, default=1)
    """Of how many points it is the average."""
    is_stochastic: bool = eqx.field(static=True, default=False)
    """Whether the objective is random: then only the number of steps ends the fit."""
    content: str = eqx.field(static=True, default="")
    """With a checkpoint, a digest of the objective, optimiser, solver and model: JAX finds compiled programs by the identity
    of functions, and a program that was compiled before a closed-over list changed must not be used for the new list."""


class Best(eqx.Module):
    """The best finite point so far. Among values that differ by rounding only, the one with the smaller gradient.

    Of a random objective it may be the last point, or the average of the last ones.
    """

    free: AbstractModel
    value: Float[Array, ""]
    gradient: Float[Array, " k"]
    """In the parameters' own units, without what would push a parameter out of its range."""
    gain: Float[Array, ""]
    """What another step could gain, as far as is known."""
    jitter: Float[Array, ""]

    @property
    def gradient_norm(self) -> Float[Array, ""]:
        """The largest component."""
        return jnp.max(jnp.abs(self.gradient), initial=0.0)


def ravel(free: Any) -> Float[Array, " k"]:
    """All free parameters as one vector."""
    return jax.flatten_util.ravel_pytree(free)[0]


def sizes(free: Any, data: Data) -> Float[Array, " k"]:
    """What counts as a step of ordinary length, for every free parameter.

    It is 1 for most: their unconstrained numbers are logarithms, or pure numbers. It is the largest target for a parameter
    in the unit of the targets, and divided by the largest input for one in "y/x".
    """
    y, look = _largest(data.y), some_rows(data.x, _LOOK)
    x = data.x if look is None else take(data.x, look)

    def size(path: Any, leaf: Float[Array, "..."]) -> Float[Array, " k"]:
        of = {"y": y, "y/x": y / _largest(x)}.get(unit(free, path), jnp.ones_like(y))
        return jnp.full(leaf.size, of.astype(leaf.dtype))

    return jnp.concatenate([size(path, leaf) for path, leaf in parameters(free)])


def _largest(tree: Any) -> Float[Array, ""]:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves])) if leaves else jnp.ones(())
    return jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)


class Ends(NamedTuple):
    """The ends of every free parameter's range, in unconstrained numbers."""

    low: Float[Array, " k"]
    high: Float[Array, " k"]

    @classmethod
    def of(cls, free: Any) -> "Ends":
        """Those of the parameters' bijectors."""
        sides = ([], [])
        for path, leaf in parameters(free):
            bijector = setting(free, path).bijector
            for side, end in zip(sides, (-math.inf, math.inf) if bijector is None else bijector.ends, strict=True):
                side.append(jnp.full(leaf.size, end, leaf.dtype))
        return cls(*(jnp.concatenate(side) for side in sides))

    def inside(self, x: Float[Array, " k"]) -> Float[Array, " k"]:
        """The parameters, moved to the ends of their ranges if they are outside.

        Outside, a parameter has no influence, and its gradient is 0: it would never come back.
        """
        return jnp.where(x < self.low, self.low, jnp.where(x > self.high, self.high, x))

    def inward(self, gradient: Float[Array, " k"], x: Float[Array, " k"]) -> Float[Array, " k"]:
        """The gradient without what would only push a parameter out of its range."""
        outward = ((x <= self.low) & (gradient > 0)) | ((x >= self.high) & (gradient < 0))
        return jnp.where(outward, 0.0, gradient)


def nothing_tried(x: Float[Array, " k"]) -> Curvature:
    """The curvature before the first step."""
    curvature = no_curvature(x, _MEMORY_SIZE)
    if curvature.memory.ndim == 3:
        return curvature
    # As if one pair had been seen: BFGS sets the scale of the whole matrix by its first pair, tried or not.
    return Curvature(_UNTRIED * jnp.eye(x.size, dtype=x.dtype), curvature.num_pairs + 1)


def averaged(old: Best, new: Best, step: Int[Array, ""], over: int) -> Best:
    """The mean of about the last `over` points, with their values and slopes: of 1, the last. One without a value is left
    out."""
    finite = jnp.isfinite(new.value) & jnp.all(jnp.isfinite(new.gradient))
    share = 1.0 / jnp.minimum(step + 1, over).astype(new.value.dtype)
    share = jnp.where(jnp.isfinite(old.value), share, 1.0)

    def moved(old: Array, new: Array) -> Array:
        # With a share of 1 the old is not looked at: it may be infinite.
        mixed = jnp.where(share == 1.0, new, old + share.astype(old.dtype) * (new - old))
        return jnp.where(finite, mixed, old)

    return jax.tree.map(moved, old, new)


def compared(
    old: Best, new: Best, curvature: Curvature, own_units: Float[Array, " k"]
) -> tuple[Best, Curvature, Bool[Array, ""]]:
    """The better of two points, the curvature with the step between them, and whether the new one is better.

    What could be gained at the new one is computed here.
    """
    value, slopes, norm = new.value, new.gradient, new.gradient_norm
    rounding = 10 * jnp.finfo(value.dtype).eps * jnp.abs(old.value)
    better = (value < old.value - rounding) | ((value <= old.value + rounding) & (norm < old.gradient_norm))
    better = better & jnp.isfinite(value) & jnp.isfinite(norm)
    pair = pair_between(ravel(new.free) / own_units, slopes, ravel(old.free) / own_units, old.gradient)
    curvature = with_pair(curvature, pair, better & jnp.isfinite(old.value))
    gain = 0.5 * jnp.vdot(slopes, inverse_hessian_times(slopes, curvature)).astype(value.dtype)
    new = dataclasses.replace(new, gain=jnp.where(gain >= 0, gain, jnp.inf))  # else rounding has spoilt the curvature
    # As vectors: XLA would compile a choice for each array.
    chosen, unravel = jnp.where(better, ravel(new), ravel(old)), jax.flatten_util.ravel_pytree(new)[1]
    return unravel(chosen), curvature, better


def scale_of(best: Best, first_value: Float[Array, ""], rules: Rules) -> Float[Array, ""]:
    """What the tolerances are relative to: one nat, or the best value; at the least the rounding of the first one."""
    if rules.in_nats:
        return jnp.ones_like(best.value)
    return jnp.abs(best.value) + jnp.finfo(best.value.dtype).eps * jnp.abs(first_value)


def converged(best: Best, first_value: Float[Array, ""], rules: Rules, slack: float = 1.0) -> Bool[Array, ""]:
    """Whether nothing is left to gain at the best point, up to a factor `slack`."""
    limit = slack * scale_of(best, first_value, rules)
    flat = best.gradient_norm <= rules.gradient_tolerance * limit
    return jnp.isfinite(best.value) & flat & (best.gain <= rules.value_tolerance * limit)
