"""A kernel matrix of low rank, `U Uᵀ`, and the features that it is made of."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.grams._gram import AbstractGram
from kernax.rows import Rows, map_rows


class AbstractFeatures(eqx.Module):
    """Base class of features φ with `k(a, b) ≈ φ(a)·φ(b)`, and of the difference to the kernel.

    They are `φ(x) = L⁻¹ c(x)`: numbers `c(x)` that the kernel computes, and a triangular matrix L that does not depend on x.
    """

    @abc.abstractmethod
    def cross(self, x: Rows) -> Float[Array, "n r"]:
        """`c(x)` at every row."""

    @abc.abstractmethod
    def lower(self) -> Float[Array, "r r"] | None:
        """L, lower triangular; `None` if it is the identity."""

    @abc.abstractmethod
    def __call__(self, x: Rows) -> Float[Array, "n r"]:
        """`φ(x)` at every row."""

    @abc.abstractmethod
    def variances(self, x: Rows) -> Float[Array, " n"] | None:
        """`k(x_i, x_i)`; `None` if the features miss nothing of the kernel."""

    @abc.abstractmethod
    def missing(self, x: Rows, known: Float[Array, " n"], rank: int) -> Float[Array, " n"]:
        """`k(x_i, x_i) - φ(x_i)·φ(x_i)`, not negative, from `known = φ(x_i)·φ(x_i)` and the number of features."""

    @abc.abstractmethod
    def missing_between(
        self, x: Rows, z: Rows | None, left: Float[Array, "n r"], right: Float[Array, "m r"]
    ) -> Float[Array, "n m"]:
        """`k(x_i, z_j) - φ(x_i)·φ(z_j)`, from `left = φ(x)` and `right = φ(z)`."""


class OwnFeatures(AbstractFeatures):
    """The finitely many features of a kernel that has them. They are exact."""

    kernel: Any

    def cross(self, x):
        return self.kernel.features(x)

    def lower(self):
        return None

    def __call__(self, x):
        return self.kernel.features(x)

    def variances(self, x):
        del x

    def missing(self, x, known, rank):
        # Exactly 0, where a difference would leave rounding errors.
        del x, rank
        return jnp.zeros_like(known)

    def missing_between(self, x, z, left, right):
        del x, z
        return jnp.zeros((left.shape[0], right.shape[0]), left.dtype)


class LowRankGram(AbstractGram):
    """The low-rank matrix `K = U Uᵀ` for the features U of the rows.

    New rows are seen through the same features (`cross`), so that K with new rows added is still positive semi-definite. A
    variance computed from it is never negative.
    """

    kernel: Any
    x: Rows
    mask: Bool[Array, " n"]
    features: AbstractFeatures
    u: Float[Array, "n r"]
    """`φ(x)`, 0 in masked rows."""
    squares: Float[Array, " n"]
    """`φ(x_i)·φ(x_i)`, the diagonal of K."""

    @property
    def rank(self) -> int:
        """The number of features."""
        return self.u.shape[1]

    def mv(self, v):
        return matmul(self.u, self.transposed_mv(v))

    def transposed_mv(self, v: Float[Array, "n p"]) -> Float[Array, "r p"]:
        """`Uᵀ v` for every column of v."""
        # Written the other way round, XLA would first make a transposed copy of U.
        return matmul(v.T, self.u).T

    def dense(self):
        return matmul(self.u, self.u.T)

    def diagonal(self):
        return self.squares

    def rows(self, chosen):
        return matmul(self.u[chosen], self.u.T)

    def cross(self, x):
        return matmul(self.u, self.features(x).T)

    def cross_mv(self, x, v):
        weights = self.transposed_mv(v)
        return map_rows(lambda block: matmul(self.features(block), weights), x, 2 * self.rank)
