"""A product kernel over a grid: `K_1 ⊗ K_2 ⊗ …`, never written out."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.grams._gram import AbstractGram, masked
from kernax.rows import Grid, map_rows, take


class KroneckerGram(AbstractGram):
    """The matrix of a kernel with `axes()` over a `Grid`. Products are computed axis by axis. Cells may be missing.

    **Arguments:**

    - `kernel`, `x`, `mask`: the kernel, the grid, and which cells count.
    """

    kernel: Any
    x: Grid
    mask: Bool[Array, " n"]

    def factors(self):
        axes = self.kernel.axes()
        return [axes[key].gram(axis, None) for key, axis in zip(self.x.keys, self.x.axes, strict=True)]

    def cross_factors(self, x):
        axes, parts = self.kernel.axes(), take(x)
        keys: Any = self.x.keys
        return [axes[key].gram(axis, parts[key]) for key, axis in zip(keys, self.x.axes, strict=True)]

    def mv(self, v):
        on = self.mask[:, None]
        return jnp.where(on, along_axes(self.factors(), jnp.where(on, v, 0.0)), 0.0)

    def dense(self):
        factors = self.factors()
        matrix = factors[0]
        for factor in factors[1:]:
            matrix = jnp.kron(matrix, factor)
        return masked(matrix, self.mask)

    def cross(self, x):
        return jnp.where(self.mask[:, None], by_columns(self.cross_factors(x)), 0.0)

    def cross_mv(self, x, v):
        v = jnp.where(self.mask[:, None], v, 0.0)
        if isinstance(x, Grid):
            axes = self.kernel.axes()
            parts = zip(self.x.keys, self.x.axes, x.axes, strict=True)
            return along_axes([axes[key].gram(known, new).T for key, known, new in parts], v)
        # What stays of a row's numbers when the first axis has been summed over.
        width = v.shape[1] * math.prod(self.x.shape[1:]) + sum(self.x.shape)
        return map_rows(lambda block: summed_by_columns(self.cross_factors(block), v), x, width)


class ScaledGram(AbstractGram):
    """`S K S` over a grid, with a diagonal S that depends on one axis: what is left of a noise that differs along it."""

    kernel: Any
    x: Grid
    mask: Bool[Array, " n"]
    scale: Float[Array, " k"]
    """The diagonal of S along that axis."""
    axis: int = eqx.field(static=True)

    def factors(self):
        factors = self._plain.factors()
        factors[self.axis] = self.scale[:, None] * factors[self.axis] * self.scale
        return factors

    def cross_factors(self, x):
        parts = self._plain.cross_factors(x)
        parts[self.axis] = self.scale[:, None] * parts[self.axis]
        return parts

    def mv(self, v):
        scale = self._of_rows()[:, None]
        return scale * self._plain.mv(scale * v)

    def dense(self):
        scale = self._of_rows()
        return scale[:, None] * self._plain.dense() * scale

    def diagonal(self):
        return self._of_rows() ** 2 * self._plain.diagonal()

    def cross(self, x):
        return self._of_rows()[:, None] * self._plain.cross(x)

    def cross_mv(self, x, v):
        return self._plain.cross_mv(x, self._of_rows()[:, None] * v)

    def _of_rows(self) -> Float[Array, " n"]:
        shape = [-1 if axis == self.axis else 1 for axis in range(len(self.x.shape))]
        return jnp.broadcast_to(self.scale.reshape(shape), self.x.shape).reshape(-1)

    @property
    def _plain(self) -> KroneckerGram:
        return KroneckerGram(self.kernel, self.x, self.mask)


def along_axes(matrices: Sequence[Float[Array, "_ _"]], v: Float[Array, "n p"]) -> Float[Array, "m p"]:
    """The product `(M_1 ⊗ M_2 ⊗ …) v`, computed one axis after the other. Costs O(n Σ n_i) for each column of v.

    **Arguments:**

    - `matrices`: M_1, M_2, …
    - `v`: `(n, p)`, where n is the product of the numbers of columns of the matrices.

    **Returns:**

    An array of shape `(m, p)`, where m is the product of the numbers of rows.
    """
    out = v.reshape(*(matrix.shape[1] for matrix in matrices), v.shape[1])
    for axis, matrix in enumerate(matrices):
        out = jnp.moveaxis(jnp.tensordot(matrix, out, axes=(1, axis), precision="highest"), 0, axis)
    return out.reshape(-1, v.shape[1])


def by_columns(parts: Sequence[Float[Array, "_ m"]]) -> Float[Array, "n m"]:
    """The Kronecker product of the columns of matrices, column by column (the Khatri-Rao product).

    **Arguments:**

    - `parts`: matrices of shape `(n_i, m)`.

    **Returns:**

    An array of shape `(n, m)`, where n is the product of the `n_i`.
    """
    product = parts[0]
    for part in parts[1:]:
        product = (product[:, None, :] * part[None, :, :]).reshape(-1, part.shape[1])
    return product


def summed_by_columns(parts: Sequence[Float[Array, "_ m"]], v: Float[Array, "n p"]) -> Float[Array, "m p"]:
    """The product `by_columns(parts)ᵀ v` without storing `by_columns(parts)`. Costs O(n p) for each of its columns.

    **Arguments:**

    - `parts`: matrices of shape `(n_i, m)`.
    - `v`: `(n, p)`, where n is the product of the `n_i`.

    **Returns:**

    An array of shape `(m, p)`.
    """
    first, *others = parts
    out = matmul(first.T, v.reshape(first.shape[0], -1))
    for part in others:
        out = jnp.sum(part.T[:, :, None] * out.reshape(out.shape[0], part.shape[0], -1), axis=1)
    return out
