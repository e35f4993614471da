"""The preconditioner of conjugate gradients: a System of another solver, or the diagonal if that failed."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from kernax.solvers import _derivatives as derivatives
from kernax.solvers._system import AbstractSystem


class Preconditioner(eqx.Module):
    """P, close to A and easy to solve with. It multiplies by `P⁻¹`, draws from `N(0, P)`, and knows its determinant.

    If its System could not be prepared (`works` is false), P is the diagonal of A: the answers stay right, and take longer.
    """

    system: AbstractSystem
    works: Bool[Array, ""]
    diagonal: Float[Array, " n"]

    def solve(self, columns: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """`P⁻¹ b` for every column."""
        return jnp.where(self.works, self.system._solve(columns).value, columns / self.diagonal[:, None])

    def draw(self, key: Key[Array, ""], number: int) -> Float[Array, "n s"]:
        """Columns drawn from `N(0, P)`."""
        drawn = self.system.draw(key, number)
        if drawn is None:
            raise TypeError(
                f"the likelihood by CG needs a preconditioner that draws from N(0, P), and a "
                f"{type(self.system).__name__} does not: use kx.CG(preconditioner=kx.LowRank())."
            )
        plain = jax.random.normal(key, drawn.shape, drawn.dtype)
        return jnp.where(self.works, drawn, jnp.sqrt(self.diagonal)[:, None] * plain)

    def logdet_beside(self, left: Float[Array, "n s"], right: Float[Array, "n s"]) -> Float[Array, ""]:
        """`log det P`. Its derivative is the exact one less the estimate of it by `left = P⁻¹z` and `right`.

        This is the control variate of an estimate for A by the same probes: the closer P is to A, the less is left to it.
        For the diagonal there is none, and the derivative is 0.
        """
        exact = self.system._logdet()
        estimate = derivatives.probed_logdet(self.system.operator, jnp.zeros_like(exact), left, right)
        plain = jax.lax.stop_gradient(jnp.sum(jnp.log(self.diagonal)))
        return jnp.where(self.works, exact - estimate, plain)
