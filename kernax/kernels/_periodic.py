"""Kernels that repeat."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.kernels._distances import centred, squared_distances
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._stationary import check_width
from kernax.parameters import Parameter, positive


class Periodic(AbstractKernel):
    """`exp(-2 Σ_k sin²(π(a_k - b_k)/p_k) / ℓ_k²)`: functions that repeat exactly, in every column.

    With several columns it is the product over the columns, which is positive definite; a sine of the Euclidean distance
    would not be. The Gram matrix is that of an RBF on the circle: with `u = (cos, sin)(2πa/p)`,
    `4 sin²(π(a-b)/p) = ‖u(a) - u(b)‖²`.
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0)
    period: Float[Parameter, "*d"] = positive(default=1.0, unit="x")

    def pair(self, a, b):
        self._check(a.shape[-1])
        return jnp.exp(-2.0 * jnp.sum((jnp.sin(jnp.pi * (a - b) / self.period) / self.lengthscale) ** 2))

    def gram(self, x, z):
        self._check(x.shape[1])
        x, z = centred(x, z)
        # Cosine and sine have the same lengthscale.
        lengthscale = self.lengthscale if self.lengthscale.ndim == 0 else jnp.tile(self.lengthscale, 2)
        return jnp.exp(-0.5 * squared_distances(self._circle(x), None if z is None else self._circle(z), lengthscale))

    def diag(self, x):
        return jnp.ones(x.shape[0], x.dtype)

    def coordinates(self, x):
        width = jnp.broadcast_to(self.lengthscale, x.shape[1])
        return self._circle(x) / jnp.tile(width, 2)

    def _circle(self, x: Float[Array, "n d"]) -> Float[Array, "n 2*d"]:
        angle = 2.0 * jnp.pi * x / self.period
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1)

    def _check(self, width: int) -> None:
        check_width(self, "lengthscale", self.lengthscale, width)
        check_width(self, "period", self.period, width)


class Cosine(AbstractKernel):
    """`cos(2π Σ_k (a_k - b_k)/p_k)`: pure waves of one period."""

    period: Float[Parameter, "*d"] = positive(default=1.0, unit="x")

    def pair(self, a, b):
        check_width(self, "period", self.period, a.shape[-1])
        return jnp.cos(2.0 * jnp.pi * jnp.sum((a - b) / self.period))

    def gram(self, x, z):
        check_width(self, "period", self.period, x.shape[1])
        x, z = centred(x, z)
        u = self._wave(x)
        if z is None:
            return jnp.where(jnp.eye(x.shape[0], dtype=bool), 1.0, matmul(u, u.T))
        return matmul(u, self._wave(z).T)

    def diag(self, x):
        return jnp.ones(x.shape[0], x.dtype)

    def features(self, x):
        check_width(self, "period", self.period, x.shape[1])
        return self._wave(x)

    def _wave(self, x: Float[Array, "n d"]) -> Float[Array, "n 2"]:
        angle = 2.0 * jnp.pi * jnp.sum(x / self.period, axis=1)
        return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
