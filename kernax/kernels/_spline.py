"""Splines: kernels that are definite only beside the polynomials that they leave free.

A conditioned spline is `f = Σ alpha_i k(·, x_i) + polynomial` with `Pᵀ alpha = 0` (the bordered system of
`solvers/_bordered.py`). The constants make `alphaᵀ K alpha` the bending energy of f, so that the model's noise is the λ of
the classical smoothing spline, `min Σ(y_i - f(x_i))² + λ ∫ f''²`.
"""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import whole_number
from kernax.kernels._anchored import anchored
from kernax.kernels._distances import squared_distances
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._trends import PolynomialTrend


class CubicSpline(AbstractKernel):
    """Cubic spline kernel, `|a - b|³ / 12`. Linear functions are left free: they have no prior.

    Use it to smooth or interpolate one column without choosing a lengthscale: the fit is the natural cubic smoothing spline,
    whose norm is `∫ f''²`, and the noise is its smoothing parameter. It has no parameters. The kernel is only conditionally
    definite, so it cannot be a factor of a product.
    """

    def pair(self, a, b):
        return _of_distance(jnp.sum((a - b) ** 2), 3, 1 / 12)

    def gram(self, x, z):
        return _of_distance(squared_distances(x, z), 3, 1 / 12)

    def diag(self, x):
        return jnp.zeros(x.shape[0], x.dtype)

    def trend(self):
        return PolynomialTrend(1)

    def definite(self, x, mask):
        return anchored(self, 1, x, mask)


class ThinPlate(AbstractKernel):
    """Thin-plate spline kernel, `∝ r^(2·order - d)`, times `log r` for even d, with `r = |a - b|`.

    Use it to smooth or interpolate in one, two or three columns without choosing a lengthscale. Polynomials of degree below
    `order` are left free: they have no prior. The norm is the integral of all squared derivatives of that order, so order 2
    in two columns gives the surface with the least bending (`r² log r / 8π`). In one column it is the natural spline of
    degree `2·order - 1`.

    **Arguments:**

    - `order`: the order of the derivatives, a whole number. It must be more than half the number of columns, d.
    """

    order: int = eqx.field(static=True, default=2)

    def __check_init__(self):
        whole_number(self.order, "ThinPlate.order")

    def pair(self, a, b):
        exponent, factor = self._shape(a.shape[-1])
        return _of_distance(jnp.sum((a - b) ** 2), exponent, factor)

    def gram(self, x, z):
        exponent, factor = self._shape(x.shape[1])
        return _of_distance(squared_distances(x, z, rough=exponent == 1), exponent, factor)

    def diag(self, x):
        return jnp.zeros(x.shape[0], x.dtype)

    def trend(self):
        return PolynomialTrend(self.order - 1)

    def definite(self, x, mask):
        return anchored(self, self.order - 1, x, mask)

    def _shape(self, d: int) -> tuple[int, float]:
        """The exponent of r and the factor that makes the kernel the Green's function of the bending energy."""
        order, exponent = self.order, 2 * self.order - d
        if exponent <= 0:
            raise ValueError(
                f"ThinPlate(order={order}) needs fewer than {2 * order} columns, got {d}: take order={d // 2 + 1} or more."
            )
        below = math.pi ** (d / 2) * math.factorial(order - 1)
        if d % 2:
            return exponent, math.gamma(d / 2 - order) / (2 ** (2 * order) * below)
        sign = (-1) ** (d // 2 + 1 + order)
        return exponent, sign / (2 ** (2 * order - 1) * below * math.factorial(order - d // 2))


def _of_distance(s: Float[Array, "..."], exponent: int, factor: float) -> Float[Array, "..."]:
    """`factor · r^exponent` (times `log r` if even) of `s = r²`.

    0 where the points coincide, with derivatives 0: those of |r|³ are, and those of `r² log r` up to the first.
    """
    apart = s > 0
    safe = jnp.where(apart, s, 1.0)
    value = factor * safe ** (exponent / 2) if exponent % 2 else 0.5 * factor * safe ** (exponent // 2) * jnp.log(safe)
    return jnp.where(apart, value, 0.0)
