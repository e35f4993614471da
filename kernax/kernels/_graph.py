"""Kernels of the nodes of a graph."""

import dataclasses
import hashlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kernax._arrays import as_floats, is_concrete, matmul
from kernax._labels import check_labels, known_labels
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import of_features
from kernax.parameters import Parameter, positive
from kernax.rows import is_label

_ROUNDING = 1e-8
"""Relative to the largest entry: how far from symmetric, or below 0, a Laplacian may be by rounding."""


class Graph(AbstractKernel):
    """Kernel of the nodes of a graph, `[U f(Λ) Uᵀ]_ab`, with the eigenvalues Λ and eigenvectors U of its Laplacian.

    `f(λ) = exp(-ℓ²λ/2)` is the diffusion kernel, and `f(λ) = (1 + ℓ²λ/2ν)^-ν` a Matérn kernel on the graph, which tends to
    it as ν grows (Borovitskiy et al., 2021). It is divided by the mean of its diagonal, so that the average variance is 1.
    Positive definite. The eigendecomposition is computed once, when the kernel is made: for up to a few thousand nodes.

    Rows are nodes, as integers from 0 on: `Select(Graph(laplacian), key="node")` for rows `{"node": nodes}`.

    **Arguments:**

    - `laplacian`: degrees on the diagonal minus the weights of the edges, `(nodes, nodes)`, symmetric. A normalised
      Laplacian also works.
    - `lengthscale`: ℓ: how far correlation reaches, in steps along edges of weight 1.
    - `nu`: ν of the Matérn kernel, which is fitted; `None` for diffusion.
    """

    spectrum: "Spectrum" = eqx.field(static=True, repr=False)
    lengthscale: Float[Parameter, ""] = positive(scalar=True)
    nu: Any = positive(default=None, scalar=True)

    def __init__(self, laplacian: Any, lengthscale: Any = 1.0, nu: Any = None):
        self.spectrum = _spectrum(laplacian)
        self.lengthscale = as_floats(lengthscale, "Graph.lengthscale")
        self.nu = None if nu is None else as_floats(nu, "Graph.nu")

    def pair(self, a, b):
        (u, known), (v, v_known) = self._vectors(a), self._vectors(b)
        return jnp.where(known & v_known, jnp.sum(u * self._weights() * v), jnp.nan)

    def gram(self, x, z):
        u, known = self._vectors(x)
        v, z_known = (u, known) if z is None else self._vectors(z)
        return jnp.where(known[:, None] & z_known, matmul(u * self._weights(), v.T), jnp.nan)

    def diag(self, x):
        u, known = self._vectors(x)
        return jnp.where(known, jnp.sum(u**2 * self._weights(), axis=1), jnp.nan)

    def state_space(self):
        return of_features(self.features)

    def features(self, x):
        return self._vectors(x)[0] * jnp.sqrt(self._weights())

    def check(self, x: Any, counts: Any = None) -> None:
        """Raise `ValueError` if a row names a node that the graph does not have, as far as that can be seen."""
        del counts
        number = len(self.spectrum.eigenvalues)
        remedy = " Leave out the row, or give a Laplacian that has this node."
        check_labels(self._nodes(x), number, "Graph", "node", has="nodes", belongs="is", remedy=remedy)

    def _weights(self) -> Float[Array, " nodes"]:
        """f(λ), divided by its mean: the mean of the diagonal."""
        eigenvalues = jnp.asarray(self.spectrum.eigenvalues, self.lengthscale.dtype)
        if self.nu is None:
            weights = jnp.exp(-0.5 * self.lengthscale**2 * eigenvalues)
        else:
            weights = jnp.exp(-self.nu * jnp.log1p(0.5 * self.lengthscale**2 * eigenvalues / self.nu))
        return weights / jnp.mean(weights)

    def _vectors(self, x: Any) -> tuple[Float[Array, "*n nodes"], Bool[Array, "*n"]]:
        """Rows of U, and which nodes the graph has. Others have the kernel NaN, not that of another node."""
        nodes, known = known_labels(self._nodes(x), len(self.spectrum.vectors))
        return jnp.asarray(self.spectrum.vectors, self.lengthscale.dtype)[nodes], known

    def _nodes(self, x: Any) -> Any:
        if not isinstance(x, jax.Array | np.ndarray) or not is_label(x):
            raise ValueError(
                'Graph needs nodes as integers: write Select(Graph(laplacian), key="node") and rows {"node": nodes}.'
            )
        return x.astype(int)


@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues and eigenvectors of a Laplacian, as [`kernax.kernels.Graph`][] stores them.

    They are not parameters, so they are part of the structure of a model. Two of them are equal if their digests are.

    **Arguments:**

    - `eigenvalues`: the eigenvalues, `(nodes,)`.
    - `vectors`: the eigenvectors in columns, `(nodes, nodes)`.
    - `digest`: a hash of the Laplacian.
    """

    eigenvalues: np.ndarray
    vectors: np.ndarray
    digest: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spectrum) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _spectrum(laplacian: Any) -> Spectrum:
    if hasattr(laplacian, "toarray"):
        laplacian = laplacian.toarray()
    if not is_concrete(laplacian):
        raise TypeError("Graph decomposes its Laplacian when it is made, so it must be made outside of jit, vmap and grad.")
    matrix = np.asarray(laplacian, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size or not np.isfinite(matrix).all():
        raise ValueError(f"Graph needs a finite, square Laplacian, one row for each node, got shape {matrix.shape}.")
    slack = _ROUNDING * np.abs(matrix).max()
    gaps = np.abs(matrix - matrix.T)
    if gaps.max() > slack:
        i, j = np.unravel_index(np.argmax(gaps), gaps.shape)
        raise ValueError(
            f"Graph needs a symmetric Laplacian, but entries ({i}, {j}) and ({j}, {i}) are {matrix[i, j]:g} and "
            f"{matrix[j, i]:g}: for a directed graph, symmetrise the weights first, w = (w + w.T)/2."
        )
    eigenvalues, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    if eigenvalues[0] < -max(slack, _ROUNDING) * len(matrix):
        raise ValueError(
            f"Graph needs a Laplacian, which has no negative eigenvalue, but the smallest one is {eigenvalues[0]:g}: for "
            "weights w, give np.diag(w.sum(axis=1)) - w."
        )
    digest = hashlib.sha256(np.ascontiguousarray(matrix).tobytes()).hexdigest()
    return Spectrum(np.maximum(eigenvalues, 0.0), vectors, digest)
