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

    They are `φ(x) = L⁻¹ c(x)`, with numbers `c(x)` that the kernel computes, and a triangular matrix L that does not depend
    on x.
    """

    @abc.abstractmethod
    def cross(self, x: Rows) -> Float[Array, "n r"]:
        """The numbers `c(x)`.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        An array of shape `(n, r)`.
        """

    @abc.abstractmethod
    def lower(self) -> Float[Array, "r r"] | None:
        """The matrix L.

        **Returns:**

        A lower triangular matrix; `None` if it is the identity.
        """

    @abc.abstractmethod
    def __call__(self, x: Rows) -> Float[Array, "n r"]:
        """The features `φ(x)`.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        An array of shape `(n, r)`.
        """

    @abc.abstractmethod
    def variances(self, x: Rows) -> Float[Array, " n"] | None:
        """The variances `k(x_i, x_i)`.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        An array of shape `(n,)`; `None` if the features are exact.
        """

    @abc.abstractmethod
    def missing(self, x: Rows, known: Float[Array, " n"], rank: int) -> Float[Array, " n"]:
        """The part of the variance that the features do not explain, `k(x_i, x_i) - φ(x_i)·φ(x_i)`.

        **Arguments:**

        - `x`: rows.
        - `known`: `φ(x_i)·φ(x_i)`.
        - `rank`: the number of features.

        **Returns:**

        An array of shape `(n,)` without negative entries.
        """

    @abc.abstractmethod
    def missing_between(
        self, x: Rows, z: Rows | None, left: Float[Array, "n r"], right: Float[Array, "m r"]
    ) -> Float[Array, "n m"]:
        """The part of the covariance that the features do not explain, `k(x_i, z_j) - φ(x_i)·φ(z_j)`.

        **Arguments:**

        - `x`, `z`: rows; `None` for z means `x` itself.
        - `left`, `right`: `φ(x)` and `φ(z)`.

        **Returns:**

        A matrix of shape `(n, m)`.
        """


class OwnFeatures(AbstractFeatures):
    """The exact features of a kernel that has finitely many of them.

    **Arguments:**

    - `kernel`: the kernel.
    """

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

    New rows have the same features (`cross`), so K with new rows added is still positive semi-definite. A variance computed
    from it is never negative.

    **Arguments:**

    - `kernel`, `x`, `mask`: the kernel, the rows, and which of them count.
    - `features`: φ.
    - `u`: U, the features of the rows; 0 in masked rows.
    - `squares`: the diagonal of K, `φ(x_i)·φ(x_i)`.
    """

    kernel: Any
    x: Rows
    mask: Bool[Array, " n"]
    features: AbstractFeatures
    u: Float[Array, "n r"]
    squares: Float[Array, " n"]

    @property
    def rank(self) -> int:
        """The number of features."""
        return self.u.shape[1]

    def mv(self, v):
        return matmul(self.u, self.transposed_mv(v))

    def transposed_mv(self, v: Float[Array, "n p"]) -> Float[Array, "r p"]:
        """The product `Uᵀ v`.

        **Arguments:**

        - `v`: columns, `(n, p)`.

        **Returns:**

        An array of shape `(r, p)`.
        """
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
