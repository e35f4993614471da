"""Kernels of labels: the entries of a matrix that has a row for each label."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax._labels import known_labels
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import of_features


class AbstractOfLabels(AbstractKernel):
    """Base class of kernels `k(s, t) = M_st` of labels 0, 1, …

    An unknown label has the kernel NaN, not that of another one.
    """

    @abc.abstractmethod
    def matrix(self) -> Float[Array, "labels labels"]:
        """The kernel of all pairs of labels.

        **Returns:**

        A matrix.
        """

    @abc.abstractmethod
    def _root(self) -> Float[Array, "labels r"]:
        """R with `R Rᵀ = matrix()`."""

    @abc.abstractmethod
    def _labels(self, x: Any) -> Any:
        """The labels of rows, or of one row, as integers."""

    @property
    @abc.abstractmethod
    def _size(self) -> int:
        """The number of labels."""

    def pair(self, a, b):
        (s, s_known), (t, t_known) = self._places(a), self._places(b)
        return jnp.where(s_known & t_known, self.matrix()[s, t], jnp.nan)

    def gram(self, x, z):
        # By products with 0 and 1, which are exact: derivatives of an entry that is looked up n² times are a slow sum.
        left, known = self._indicators(x)
        right, z_known = (left, known) if z is None else self._indicators(z)
        return jnp.where(known[:, None] & z_known, matmul(matmul(left, self.matrix()), right.T), jnp.nan)

    def diag(self, x):
        labels, known = self._places(x)
        return jnp.where(known, jnp.diagonal(self.matrix())[labels], jnp.nan)

    def state_space(self):
        return of_features(self.features)

    def features(self, x):
        labels, known = self._places(x)
        return jnp.where(known[:, None], self._root()[labels], jnp.nan)

    def _places(self, x: Any) -> tuple[Any, Any]:
        """Labels, and which are known."""
        return known_labels(self._labels(x), self._size)

    def _indicators(self, x: Any) -> tuple[Float[Array, "n labels"], Any]:
        labels, known = self._places(x)
        return (labels[:, None] == jnp.arange(self._size)).astype(self.matrix().dtype), known


def first_loadings(number: int, rank: int) -> tuple[Array, Array]:
    """Loadings and variances from which fits of `B Bᵀ + diag(v)` start: every label has variance 1, half of it from B."""
    # Columns that are all different: those that start alike would stay alike.
    start = np.sqrt(0.5 / rank) * np.cos(np.arange(rank) * (2.0 * np.arange(number)[:, None] + 1.0))
    return jnp.asarray(start, float), jnp.asarray(1.0 - np.sum(start**2, axis=1), float)


def of_loadings(loadings: Float[Array, "labels rank"], variances: Float[Array, " labels"]) -> Float[Array, "labels labels"]:
    """`B Bᵀ + diag(v)`."""
    return matmul(loadings, loadings.T) + jnp.diag(variances)


def root_of_loadings(
    loadings: Float[Array, "labels rank"], variances: Float[Array, " labels"]
) -> Float[Array, "labels features"]:
    """R with `R Rᵀ = B Bᵀ + diag(v)`."""
    return jnp.concatenate([loadings, jnp.diag(jnp.sqrt(variances))], axis=1)


def with_variance(kernel: Any, variance: Any) -> Any:
    """The kernel with its loadings and variances scaled, so that the mean of its diagonal is a given number."""
    share = variance / jnp.mean(jnp.diagonal(kernel.matrix()))
    values = (jnp.sqrt(share) * kernel.loadings, share * kernel.variances)
    return eqx.tree_at(lambda k: (k.loadings, k.variances), kernel, values)
