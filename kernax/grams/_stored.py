"""The kernel matrix over rows in a file."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from kernax.grams._gram import AbstractGram, Gram
from kernax.rows import Rows, map_rows, num_rows, take


class StoredGram(AbstractGram):
    """The kernel matrix of any kernel over rows in a file.

    Only the rows that are needed are read; a product with K reads all rows.

    **Arguments:**

    - `kernel`, `x`, `mask`: the kernel, the rows, and which of them count.
    """

    kernel: Any
    x: Rows
    mask: Bool[Array, " n"]

    def mv(self, v):
        return self._in_memory().mv(v)

    def dense(self):
        return self._in_memory().dense()

    def tiled(self, tile, mesh):
        return self._in_memory().tiled(tile, mesh)

    def diagonal(self):
        return jnp.where(self.mask, map_rows(self.kernel.diag, self.x, 1), 0.0)

    def cross(self, x):
        entries = map_rows(lambda block: self.kernel.gram(block, x), self.x, num_rows(x))
        return jnp.where(self.mask[:, None], entries, 0.0)

    def _in_memory(self) -> Gram:
        return Gram(self.kernel, take(self.x), self.mask)
