"""Linear threshold functions."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.learners._members import AbstractMembers, as_columns
from kernax.learners._splits import least_error_split, sort_columns
from kernax.rows import Rows
from kernax.solvers import factorise_matrix


class LinearThreshold(eqx.Module):
    """`sign` where `w·(x - center) ≥ threshold`, `-sign` elsewhere."""

    center: Float[Array, " d"]
    direction: Float[Array, " d"]
    threshold: Float[Array, ""]
    sign: Float[Array, ""]


class LinearThresholds(AbstractMembers):
    """Weak learners that are half-spaces, `±sign(w·x - θ)`. It finds a good one; finding the best one would be too slow.

    The direction is that of weighted ridge regression of y (Fisher's discriminant) on columns that are scaled to variance 1
    under the weights. Given the direction, the threshold is the best one. O(nd² + d³ + n log n) a round.

    **Arguments:**

    - `ridge`: the number that is added to the variances, positive.
    """

    ridge: float = eqx.field(static=True, default=1e-6)

    def __check_init__(self):
        if not self.ridge > 0:
            raise ValueError(f"LinearThresholds.ridge must be positive, got {self.ridge}: columns may depend on each other.")

    def prepare(self, x: Rows) -> Float[Array, "n d"]:
        return as_columns(x, "LinearThresholds")

    def best(self, prepared: Float[Array, "n d"], y: Float[Array, " n"], weights: Float[Array, " n"]) -> LinearThreshold:
        x, eps = prepared, float(jnp.finfo(prepared.dtype).eps)
        center = matmul(weights, x)
        center = center + matmul(weights, x - center)
        centred = x - center
        weighted = weights[:, None] * centred
        spread = jnp.sqrt(jnp.sum(weighted * centred, axis=0))
        # A column that is constant but for rounding has no say.
        varies = spread > 4 * eps * jnp.sqrt(matmul(weights, x**2))
        scale = jnp.where(varies, spread, 1.0)
        weighted, standard = (jnp.where(varies, part / scale, 0.0) for part in (weighted, centred))
        ridge = jnp.asarray(self.ridge, x.dtype)
        d = x.shape[1]
        system = factorise_matrix(matmul(weighted.T, standard), ridge, jnp.ones(d, bool))
        direction = system.solve(matmul(weighted.T, y)).value / scale
        heights = matmul(centred, direction)
        # Equal rows need not round to equal heights.
        resolution = 8 * eps * d * jnp.max(jnp.where(weights > 0, jnp.abs(heights), 0.0))
        split, sign = least_error_split(sort_columns(heights[:, None], resolution), y, weights)
        return LinearThreshold(center, direction, split.threshold, sign)

    def values(self, member: LinearThreshold, x: Rows) -> Float[Array, " m"]:
        heights = matmul(as_columns(x, "LinearThresholds") - member.center, member.direction)
        return jnp.where(heights >= member.threshold, member.sign, -member.sign)
