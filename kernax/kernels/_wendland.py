"""Piecewise polynomials of compact support."""

import functools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import whole_number
from kernax.kernels._stationary import AbstractStationary
from kernax.parameters import Parameter, positive

_SMOOTHEST = 3


class Wendland(AbstractStationary):
    """Wendland's piecewise polynomial, `(1 - r)₊^(j+q) p_q(r)` with `r = √Σ (a_k - b_k)²/ℓ_k²`: exactly 0 from r = 1 on.

    With `j = ⌊columns/2⌋ + q + 1`, the polynomials are `p_0 = 1`, `p_1 = 1 + (j+1)r`, `p_2 = 1 + (j+2)r + (j² + 4j + 3)r²/3`
    and `p_3 = 1 + (j+3)r + (6j² + 36j + 45)r²/15 + (j³ + 9j² + 23j + 15)r³/15`. Positive definite in up to `columns`
    columns. Rows with more columns raise an error. Paths can be differentiated `smoothness` times. Use it if distant rows
    must be exactly independent.

    **Arguments:**

    - `lengthscale`: ℓ, one number or one for each column. Rows at this distance or further apart are independent.
    - `smoothness`: q, from 0 to 3.
    - `columns`: the largest number of columns for which the kernel must be positive definite.
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")
    smoothness: int = eqx.field(static=True, default=1)
    columns: int = eqx.field(static=True, default=3)
    is_rough: ClassVar[bool] = True

    def __check_init__(self):
        whole_number(self.columns, "Wendland.columns")
        if isinstance(self.smoothness, bool) or self.smoothness not in range(_SMOOTHEST + 1):
            raise ValueError(f"Wendland.smoothness must be 0, 1, 2 or 3, got {self.smoothness!r}.")

    def of_squared_distance(self, s):
        return _polynomial(self.columns // 2 + self.smoothness + 1, self.smoothness, s)

    def pair(self, a, b):
        self._check(a.shape[-1])
        return super().pair(a, b)

    def gram(self, x, z):
        self._check(x.shape[1])
        return super().gram(x, z)

    def _check(self, width: int) -> None:
        if width > self.columns:
            raise ValueError(
                f"Wendland(columns={self.columns}) is positive definite in up to {self.columns} columns, but the inputs "
                f"have {width}: write Wendland(columns={width})."
            )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _polynomial(j: int, q: int, s: Float[Array, "..."]) -> Float[Array, "..."]:
    """The kernel as a function of `s = r²`."""
    apart = s > 0
    r = jnp.where(apart, jnp.sqrt(jnp.where(apart, s, 1.0)), 0.0)
    factors = {
        0: (1.0,),
        1: (1.0, j + 1.0),
        2: (1.0, j + 2.0, (j**2 + 4 * j + 3) / 3),
        3: (1.0, j + 3.0, (6 * j**2 + 36 * j + 45) / 15, (j**3 + 9 * j**2 + 23 * j + 15) / 15),
    }[q]
    return jnp.maximum(1.0 - r, 0.0) ** (j + q) * sum(factor * r**i for i, factor in enumerate(factors))


@_polynomial.defjvp
def _polynomial_jvp(j, q, primals, tangents):
    (s,), (ds,) = primals, tangents
    if q:
        # The slope is a multiple of the next rougher one, so it has no root to differentiate where two points coincide.
        slope = -0.5 * (j + 2 * q - 1) * (j + 2 * q) / (2 * q - 1) * _polynomial(j, q - 1, s)
    else:
        # A kink: 0 is the mean of the two sides in x.
        apart = s > 0
        r = jnp.sqrt(jnp.where(apart, s, 1.0))
        slope = jnp.where(apart, -0.5 * j * jnp.maximum(1.0 - r, 0.0) ** (j - 1) / r, 0.0)
    return _polynomial(j, q, s), slope * ds
