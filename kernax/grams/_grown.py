"""A kernel matrix to which rows are added without copying the matrix of the first rows."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.grams._gram import AbstractGram, MatrixGram
from kernax.rows import Rows


class GrownGram(AbstractGram):
    """A stored kernel matrix to which rows were added, in blocks: the first rows, and K between them and the added rows.

    **Arguments:**

    - `kernel`, `x`, `mask`: the kernel, all rows, and which of them count.
    - `first`: the Gram of the first rows.
    - `side`: K between the first rows and the added rows.
    - `corner`: K between the added rows.
    """

    kernel: Any
    x: Rows
    mask: Bool[Array, " n"]
    first: MatrixGram
    side: Float[Array, "k m"]
    corner: Float[Array, "m m"]

    def mv(self, v):
        old, new = jnp.split(v, [self.first.n])
        return jnp.concatenate(
            [self.first.mv(old) + matmul(self.side, new), matmul(self.side.T, old) + matmul(self.corner, new)]
        )

    def dense(self):
        return jnp.block([[self.first.dense(), self.side], [self.side.T, self.corner]])

    def diagonal(self):
        return jnp.concatenate([self.first.diagonal(), jnp.diagonal(self.corner)])

    def rows(self, chosen):
        return self.dense()[chosen]


def grown(old: MatrixGram | GrownGram, gram: AbstractGram) -> GrownGram:
    """Extend a stored Gram to more rows. Only the entries of the added rows are computed.

    **Arguments:**

    - `old`: the Gram of the first rows.
    - `gram`: the Gram of all rows.

    **Returns:**

    A `GrownGram`.
    """
    rows = gram.rows(jnp.arange(old.n, gram.n))
    first = old.first if isinstance(old, GrownGram) else old
    side, corner = rows[:, : first.n].T, rows[:, first.n :]
    if isinstance(old, GrownGram):
        side = jnp.concatenate([old.side, side], axis=1)
        known = old.n - first.n
        corner = jnp.block([[old.corner, corner[:, :known].T], [corner]])
    return GrownGram(gram.kernel, gram.x, gram.mask, first, side, corner)
