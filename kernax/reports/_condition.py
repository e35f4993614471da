"""How ill-conditioned a system is, to a digit or so."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._programs import compiled
from kernax.model import Conditioned
from kernax.solvers import power_iteration


@compiled
def condition_estimate(c: Conditioned) -> Float[Array, ""]:
    """The ratio of the largest to the smallest eigenvalue of `K + noise·I`, to a digit or so.

    Computed from a few dozen products and solves, whatever the solver: O(n²) with direct ones. With a trend, on the
    vectors that do not see it.

    **Arguments:**

    - `c`: a model conditioned on data.

    **Returns:**

    A scalar; NaN if conditioning failed.
    """
    system = jax.lax.stop_gradient(c.system)
    mask, dtype = system.gram.mask, c.data.dtype
    largest = power_iteration(system.operator.mv, mask, dtype)
    inverse = power_iteration(lambda v: system.solve(v).value, mask, dtype)
    return jnp.where(c.ok, largest * inverse, jnp.nan)
