"""Kernels of the inner product: linear and polynomial functions."""

import itertools
import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from kernax._arrays import matmul, whole_number
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import of_features
from kernax.kernels._stationary import check_width
from kernax.parameters import Parameter, non_negative, positive


class Linear(AbstractKernel):
    """Linear kernel, `Σ_k v_k a_k b_k`: linear functions through the origin. Add a number for an unknown level.

    Use it for linear regression, or as a part of a sum, for a linear trend.

    **Arguments:**

    - `variance`: v, one number or one for each column: the prior variance of the slopes.
    """

    variance: Float[Parameter, "*d"] = positive(default=1.0, unit="y²/x²")

    def pair(self, a, b):
        check_width(self, "variance", self.variance, a.shape[-1])
        return jnp.sum(self.variance * a * b)

    def gram(self, x, z):
        check_width(self, "variance", self.variance, x.shape[1])
        return matmul(self.variance * x, (x if z is None else z).T)

    def diag(self, x):
        return jnp.sum(self.variance * x * x, axis=1)

    def features(self, x):
        return jnp.sqrt(self.variance) * x

    def state_space(self):
        return of_features(self.features)

    def initialised(self, x, mask, variance):
        square = jnp.mean(jnp.sum(x * x, axis=1), where=mask)
        start = jnp.where(square > 0, variance / jnp.where(square > 0, square, 1.0), variance)
        return eqx.tree_at(lambda k: k.variance, self, jnp.broadcast_to(start, self.variance.shape))


class Polynomial(AbstractKernel):
    """Polynomial kernel, `(scale · a·b + offset)^degree`: polynomials up to that degree.

    Use it for polynomial regression. Outside of the data the functions grow fast.

    **Arguments:**

    - `degree`: the degree, a whole number of at least 1. It is not fitted.
    - `scale`: the factor of `a·b`.
    - `offset`: the constant that is added. With 0, the functions contain monomials of exactly that degree only.
    """

    degree: int = eqx.field(static=True, default=2)
    scale: Float[Parameter, ""] = positive(default=1.0, scalar=True)
    offset: Float[Parameter, ""] = non_negative(default=1.0, scalar=True)

    def __check_init__(self):
        whole_number(self.degree, "Polynomial.degree")

    def pair(self, a, b):
        return (self.scale * jnp.sum(a * b) + self.offset) ** self.degree

    def gram(self, x, z):
        return (self.scale * matmul(x, (x if z is None else z).T) + self.offset) ** self.degree

    def diag(self, x):
        return (self.scale * jnp.sum(x * x, axis=1) + self.offset) ** self.degree

    def state_space(self):
        return of_features(self.features)

    def features(self, x):
        # `(u·v)^degree` with `u = (√offset, √scale·a)`: one feature for each way to choose `degree` parts of u, with the
        # root of how often that choice occurs in the expansion.
        root = jnp.sqrt(jnp.where(self.offset > 0, self.offset, 1.0))
        level = jnp.where(self.offset > 0, root, 0.0) * jnp.ones((x.shape[0], 1), x.dtype)
        parts = jnp.concatenate([level, jnp.sqrt(self.scale) * x], axis=1).T
        chosen = itertools.combinations_with_replacement(range(parts.shape[0]), self.degree)
        terms = [math.sqrt(_occurrences(c)) * math.prod(parts[i] for i in c) for c in chosen]
        return jnp.stack(terms, axis=1)


def _occurrences(chosen: tuple[int, ...]) -> int:
    """In how many orders the same parts can be multiplied."""
    repeats = math.prod(math.factorial(chosen.count(i)) for i in set(chosen))
    return math.factorial(len(chosen)) // repeats
