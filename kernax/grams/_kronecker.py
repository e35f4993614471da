"""A product kernel over a grid: `K_1 ⊗ K_2 ⊗ …`, never written out."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax.grams._gram import AbstractGram, masked
from kernax.rows import Grid


class KroneckerGram(AbstractGram):
    """A kernel with `axes()` over a `Grid`. Products go axis by axis; with missing cells it still multiplies."""

    kernel: Any
    x: Grid
    mask: Bool[Array, " n"]

    def factors(self) -> list[Float[Array, "k k"]]:
        """The Gram matrix of each axis."""
        axes = self.kernel.axes()
        return [axes[i].gram(axis, None) for i, axis in enumerate(self.x.axes)]

    def mv(self, v):
        on = self.mask[:, None]
        return jnp.where(on, along_axes(self.factors(), jnp.where(on, v, 0.0)), 0.0)

    def dense(self):
        factors = self.factors()
        matrix = factors[0]
        for factor in factors[1:]:
            matrix = jnp.kron(matrix, factor)
        return masked(matrix, self.mask)


def along_axes(matrices: list[Float[Array, "_ _"]], v: Float[Array, "n p"]) -> Float[Array, "m p"]:
    """`(M_1 ⊗ M_2 ⊗ …) v`, one axis after the other: O(n Σ n_i)."""
    out = v.reshape(*(matrix.shape[1] for matrix in matrices), v.shape[1])
    for axis, matrix in enumerate(matrices):
        out = jnp.moveaxis(jnp.tensordot(matrix, out, axes=(1, axis), precision="highest"), 0, axis)
    return out.reshape(-1, v.shape[1])
