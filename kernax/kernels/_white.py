"""White noise as a kernel."""

import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from kernax.kernels._kernel import AbstractKernel
from kernax.parameters import Parameter, positive
from kernax.rows import num_rows


class White(AbstractKernel):
    """White noise: `variance` if two rows are equal in every number and label, else 0.

    Each distinct row has an independent value. A kernel cannot distinguish two observations at the same inputs, so these
    share one value. For noise that differs between such observations, use `kx.Model(kernel, noise=…)`. The kernel is
    positive definite for any rows, and its derivatives in the rows are 0.

    **Arguments:**

    - `variance`: the variance of the values, one positive number.
    """

    variance: Float[Parameter, ""] = positive(default=1.0, scalar=True, unit="y²")

    def pair(self, a, b):
        same = [jnp.all(u == v) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
        return jnp.where(functools.reduce(operator.and_, same), self.variance, 0.0)

    def diag(self, x):
        return jnp.broadcast_to(self.variance, (num_rows(x),))

    def initialised(self, x, mask, variance):
        return eqx.tree_at(lambda k: k.variance, self, variance)
