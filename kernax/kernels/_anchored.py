"""Conditionally definite kernels made definite: their trend's interpolation at a few anchors is subtracted.

A spline `k` is definite only on vectors that do not see its trend (`Pᵀv = 0`). Let `ℓ(a)` be the values at a of the
functions of the trend that are 1 at one anchor and 0 at the others. Then

    k(a, b) - ℓ(a)·k(A, b) - k(a, A)·ℓ(b) + ℓ(a)·(k(A, A) + level·I) ℓ(b)

is an ordinary positive definite kernel, and it differs from k only by terms that contain `ℓ(a)` or `ℓ(b)`. A system with
the trend left free (`solvers/_bordered.py`) depends on the kernel only up to such terms, so every solver accepts splines.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._trends import PolynomialTrend, middle_and_half
from kernax.kernels._wiener import IntegratedWiener, integrated_wiener


class Anchored(AbstractKernel):
    """A spline less its trend's interpolation at anchors, on both sides: an ordinary, definite kernel."""

    kernel: AbstractKernel
    interpolation: PolynomialTrend
    anchors: Float[Array, "q d"]
    inverse: Float[Array, "q q"]
    """The inverse of the trend's values at the anchors: it makes `ℓ` of them."""
    level: Float[Array, ""]
    """The variance of the functions at the anchors: of the size of the kernel's own, so that nothing is ill-conditioned."""

    def pair(self, a, b):
        return self.gram(a[None], b[None])[0, 0]

    def gram(self, x, z):
        left, right = self._weights(x), None if z is None else self._weights(z)
        by_x = matmul(self.kernel.gram(x, self.anchors), (left if right is None else right).T)
        by_z = by_x.T if z is None else matmul(left, self.kernel.gram(self.anchors, z))
        own = matmul(left, matmul(self._between(), (left if right is None else right).T))
        return self.kernel.gram(x, z) - by_x - by_z + own

    def diag(self, x):
        left = self._weights(x)
        own = matmul(left, self._between()) - 2.0 * self.kernel.gram(x, self.anchors)
        return self.kernel.diag(x) + jnp.sum(left * own, axis=1)

    def coordinates(self, x):
        return x

    def state_space(self):
        if self.anchors.shape[1] != 1:
            return None
        return integrated_wiener(self.interpolation.degree + 1, self._half, self.level)

    def started_at(self, origin: Float[Array, ""]) -> IntegratedWiener:
        """The same up to a polynomial, as the process that starts there. For one column."""
        return IntegratedWiener(self.interpolation.degree + 1, origin, self._half, self.level)

    @property
    def _half(self) -> Float[Array, ""]:
        assert self.interpolation.half is not None
        return self.interpolation.half.reshape(())

    def _weights(self, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        return matmul(self.interpolation(x), self.inverse)

    def _between(self) -> Float[Array, "q q"]:
        number = self.anchors.shape[0]
        return self.kernel.gram(self.anchors, None) + self.level * jnp.eye(number, dtype=self.anchors.dtype)


def started_at(kernel: AbstractKernel, origin: Float[Array, ""]) -> AbstractKernel:
    """A kernel whose splines are the processes that start at this time: what their `state_space` describes."""

    def is_spline(part: Any) -> bool:
        return isinstance(part, Anchored | IntegratedWiener)

    return jax.tree.map(lambda part: part.started_at(origin) if is_spline(part) else part, kernel, is_leaf=is_spline)


def anchored(kernel: AbstractKernel, degree: int, x: Float[Array, "n d"], mask: Bool[Array, " n"]) -> Anchored:
    """A spline beside polynomials of this degree, made definite with anchors in the bounding box of the rows that count."""
    middle, half = middle_and_half(x, mask)
    unit = _corners(degree, x.shape[1])
    # In units of the box the anchors are fixed numbers, and so is the inverse.
    inverse = jnp.asarray(np.linalg.inv(_monomials(unit, degree)), x.dtype)
    anchors = middle + half * jnp.asarray(unit, x.dtype)
    trend = PolynomialTrend(degree, middle, half)
    draft = Anchored(kernel, trend, anchors, inverse, jnp.zeros((), x.dtype))
    sizes = jnp.where(mask, jax.lax.stop_gradient(draft.diag(x)), 0.0)
    level = jnp.sum(sizes) / jnp.maximum(jnp.sum(mask), 1)
    return Anchored(kernel, trend, anchors, inverse, jnp.where(level > 0, level, 1.0))


def _corners(degree: int, width: int) -> np.ndarray:
    """As many points of [-1, 1]^d as there are monomials, at which no polynomial of that degree vanishes everywhere."""
    steps = [c for c in itertools.product(range(degree + 1), repeat=width) if sum(c) <= degree]
    return 2.0 * np.array(steps, float).reshape(len(steps), width) / max(degree, 1) - 1.0


def _monomials(points: np.ndarray, degree: int) -> np.ndarray:
    """The functions of `PolynomialTrend` at a few points, in NumPy's float64 whatever JAX is set to."""
    columns = [np.ones(len(points))]
    for power in range(1, degree + 1):
        for chosen in itertools.combinations_with_replacement(range(points.shape[1]), power):
            columns.append(np.prod(points[:, list(chosen)], axis=1))
    return np.stack(columns, axis=1)
