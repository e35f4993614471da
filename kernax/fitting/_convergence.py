"""When a fit has arrived: not by how flat the objective looks, but by what another step could still gain.

Near an optimum the objective is `½ gᵀHg` above it, with the gradient g and the inverse Hessian H. The gradient alone says
little: 1e-3 is nothing where the objective bends sharply and a long way to go where it is nearly flat. So the loop keeps an
approximate H of its own, whatever the optimiser, learned from the steps between the best points.

Three things make the estimate independent of the units of the data:

- Parameters are measured in units of their own (`sizes`): a factor of e for positive ones; the size of the targets for a
    mean. A constant mean that is wrong by 1e6 has a tiny gradient per unit of y, and there is much to gain.
- Directions that were never tried count as nearly flat (`_UNTRIED`), so that a small gradient there still counts.
- A likelihood is judged in nats. Other objectives are judged relative to their best value.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.data import Data
from kernax.fitting._curvature import Curvature, no_curvature
from kernax.parameters import parameters, setting, unit
from kernax.rows import some_rows, take

_UNTRIED = 10.0
"""The inverse Hessian in directions that no step has tried, in the parameters' own units."""
_MEMORY_SIZE = 10
_LOOK = 2**16
"""Rows in a file that are looked at for the size of the inputs."""


def ravel(free: Any) -> Float[Array, " k"]:
    """All free parameters as one vector."""
    return jax.flatten_util.ravel_pytree(free)[0]


def sizes(free: Any, data: Data) -> Float[Array, " k"]:
    """What counts as a step of ordinary length, for every free parameter.

    **Arguments:**

    - `free`: the unconstrained parameters.
    - `data`: what they are fitted to.

    **Returns:**

    1 for most: their unconstrained numbers are logarithms, or pure numbers. The largest target for a parameter in the unit
    of the targets, and divided by the largest input for one in "y/x".
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
