"""Splines of one column as processes: noise that is integrated as often as the spline has an order.

A spline is known up to its polynomials, and a system with these left free (`solvers/_bordered.py`) does not depend on how
they are chosen. Here f is a random polynomial at the first row, and from there white noise integrated `order` times: once
is a Wiener process, twice the cubic spline. The state is f and its derivatives, in units of half the width of the rows, so
that all entries are of the same size.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import Coordinate, MarkovProcess, Part, product


class IntegratedWiener(AbstractKernel):
    """White noise integrated `order` times from an origin, forwards and backwards, and a random polynomial."""

    order: int = eqx.field(static=True)
    origin: Float[Array, ""]
    half: Float[Array, ""]
    """The unit of time."""
    level: Float[Array, ""]
    """The variance of each coefficient of the polynomial, in that unit."""

    def pair(self, a, b):
        return self.gram(a[None], b[None])[0, 0]

    def gram(self, x, z):
        s = (x[:, 0] - self.origin) / self.half
        t = s if z is None else (z[:, 0] - self.origin) / self.half
        apart = jnp.abs(s[:, None] - t)
        # On one side of the origin they have the noise in common that lies before both.
        common = jnp.where(s[:, None] * t > 0, jnp.minimum(jnp.abs(s)[:, None], jnp.abs(t)), 0.0)
        noise, polynomial = jnp.zeros_like(common), jnp.zeros_like(common)
        for k in range(self.order):
            ways = math.comb(self.order - 1, k) / (self.order + k) / math.factorial(self.order - 1) ** 2
            noise = noise + ways * apart ** (self.order - 1 - k) * common ** (self.order + k)
            polynomial = polynomial + (s[:, None] * t) ** k / math.factorial(k) ** 2
        return self._size * noise + self.level * polynomial

    def diag(self, x):
        return jax.vmap(self.pair)(x, x)

    def state_space(self):
        return integrated_wiener(self.order, self.half, self.level)

    def started_at(self, origin: Float[Array, ""]) -> "IntegratedWiener":
        """The same up to a polynomial, from another origin."""
        return eqx.tree_at(lambda k: k.origin, self, origin)

    @property
    def _size(self) -> Float[Array, ""]:
        """The variance of the noise, in the unit of time."""
        return self.half ** (2 * self.order - 1)


def integrated_wiener(order: int, half: Float[Array, ""], level: Float[Array, ""]) -> MarkovProcess:
    """The process of `IntegratedWiener`, with the origin at the first row."""
    powers, factors = _matrices(order)
    size = half ** (2 * order - 1)
    backwards = np.outer((-1.0) ** np.arange(order), (-1.0) ** np.arange(order))

    def move(x: Float[Array, "*n"]) -> Float[Array, "*n 1 j j"]:
        """Taylor's formula."""
        later = np.triu(np.ones((order, order)))
        exponents = np.arange(order)[None, :] - np.arange(order)[:, None]
        return _power(x, np.maximum(exponents, 0)) * (later / _factorials(np.maximum(exponents, 0)))

    def transition(steps: Array) -> tuple[Array, Array]:
        x = steps / half
        return move(x), size * _power(x, powers) * factors

    def earlier(steps: Array) -> tuple[Array, Array]:
        x = steps / half
        back = move(-x)
        own = level * product(back, jnp.swapaxes(back, -1, -2))
        return level * jnp.swapaxes(back, -1, -2), own + size * _power(x, powers) * (factors * backwards)

    def start() -> Array:
        return level * jnp.eye(order, dtype=level.dtype)[None]

    return MarkovProcess(Coordinate(), (Part(np.eye(order)[:1], start, transition, earlier),))


def _matrices(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Exponents and factors of the covariance of a shock: entry i, j is `factor · stepᵉˣᵖᵒⁿᵉⁿᵗ`."""
    left = order - 1 - np.arange(order)
    exponents = left[:, None] + left[None, :] + 1
    return exponents, 1.0 / (exponents * np.outer(_factorials(left), _factorials(left)))


def _power(x: Float[Array, "*n"], exponents: np.ndarray) -> Float[Array, "*n 1 j j"]:
    """Whole powers of every step, as a matrix."""
    entries = jnp.stack([x ** int(e) for e in exponents.ravel()], axis=-1)
    return entries.reshape(*x.shape, 1, *exponents.shape)


def _factorials(n: np.ndarray) -> np.ndarray:
    return np.vectorize(math.factorial, otypes=[float])(n)
