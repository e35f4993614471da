"""K over the rows that count. Callers should compute as few of its numbers as possible.

Products are computed tile by tile, in O(n) memory, and since K is symmetric, a tile off the diagonal serves twice: its
numbers cost more than multiplying by them. Derivatives are JAX's own; each tile is computed again in the backward pass
(`jax.checkpoint`), also once for both of its places, and never kept.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Key

from kernax._arrays import matmul
from kernax.rows import Rows, in_blocks, map_rows, num_rows, take

_TILE = 512
"""Rows and columns of a tile; between 512 and 1024 is best on CPU."""
_WHOLE = 4
"""Tiles up to which a product is computed in one piece: it compiles sooner, and K is small then."""


class AbstractGram(eqx.Module):
    """Base class of kernel matrices K over rows. Rows and columns that do not count are 0.

    A class of your own defines `mv` and `dense`.
    """

    kernel: eqx.AbstractVar[Any]
    x: eqx.AbstractVar[Rows]
    mask: eqx.AbstractVar[Bool[Array, " n"]]
    is_tiled: ClassVar[bool] = False
    """Whether `mv` computes the entries of K at every call, tile by tile, so that storing them would save time."""

    @property
    def n(self) -> int:
        """The number of rows, those that do not count included."""
        return self.mask.shape[0]

    @abc.abstractmethod
    def mv(self, v: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """The product `K v`.

        **Arguments:**

        - `v`: columns, `(n, p)`.

        **Returns:**

        An array of the same shape.
        """

    @abc.abstractmethod
    def dense(self) -> Float[Array, "n n"]:
        """The matrix K as an array.

        **Returns:**

        A matrix of shape `(n, n)`.
        """

    def diagonal(self) -> Float[Array, " n"]:
        """The diagonal of K, in O(n).

        **Returns:**

        An array of shape `(n,)`.
        """
        return jnp.where(self.mask, self.kernel.diag(take(self.x)), 0.0)

    def rows(self, chosen: Int[Array, " k"]) -> Float[Array, "k n"]:
        """Some rows of K. The diagonal entries among them are exact.

        **Arguments:**

        - `chosen`: the numbers of the rows.

        **Returns:**

        A matrix of shape `(k, n)`.
        """
        some = take(self.x, chosen)
        entries = self.cross(some).T
        itself = chosen[:, None] == jnp.arange(self.n)[None, :]
        entries = jnp.where(itself, self.kernel.diag(some)[:, None], entries)
        return jnp.where(self.mask[chosen][:, None] & self.mask[None, :], entries, 0.0)

    def cross(self, x: Rows) -> Float[Array, "n m"]:
        """The matrix `k(X, x)` for new rows.

        **Arguments:**

        - `x`: new rows.

        **Returns:**

        A matrix of shape `(n, m)`.
        """
        return jnp.where(self.mask[:, None], self.kernel.gram(take(self.x), x), 0.0)

    def cross_mv(self, x: Rows, v: Float[Array, "n p"]) -> Float[Array, "m p"]:
        """The product `k(x, X) v` for new rows, in bounded memory.

        **Arguments:**

        - `x`: new rows.
        - `v`: columns, `(n, p)`.

        **Returns:**

        An array of shape `(m, p)`.
        """
        known, v = take(self.x), jnp.where(self.mask[:, None], v, 0.0)
        # The known rows first: a kernel that centres its inputs does so by these, whatever the new ones are.
        return map_rows(lambda block: matmul(self.kernel.gram(known, block).T, v), x, self.n)

    def prior_draws(
        self, x: Rows, key: Key[Array, ""], number: int
    ) -> tuple[Float[Array, "n s"], Float[Array, "m s"]] | None:
        """Draw functions from the prior, at the rows and at new rows together.

        **Arguments:**

        - `x`: new rows.
        - `key`: a JAX random key.
        - `number`: how many functions.

        **Returns:**

        Values at the rows and at the new rows, a column for each function; `None` if drawing them needs a matrix root.
        """
        del x, key, number
        return None

    def prior_paths(self, key: Key[Array, ""], number: int) -> Callable[[Rows], Float[Array, "m s"]] | None:
        """Functions drawn from the prior exactly, to be called with any rows; `None` if K does not know how."""
        del key, number
        return None

    def tiled(self, tile: int | None, mesh: Mesh | None) -> "AbstractGram":
        """The same matrix with another tile size, and with its rows distributed over a mesh.

        **Arguments:**

        - `tile`: rows and columns of a tile; unchanged if `None`.
        - `mesh`: a mesh with one axis; unchanged if `None`.

        **Returns:**

        A Gram; the Gram itself if it does not multiply in tiles.
        """
        del tile, mesh
        return self

    def factors(self) -> list[Float[Array, "_ _"]] | None:
        """Matrices whose Kronecker product is K if every row counts.

        **Returns:**

        A list of matrices; `None` if K has no such form.
        """
        return None

    def cross_factors(self, x: Rows) -> list[Float[Array, "_ m"]] | None:
        """Matrices whose product, column by column, is `k(X, x)` for new rows if every row counts.

        **Arguments:**

        - `x`: new rows.

        **Returns:**

        A list of matrices; `None` if K has no such form.
        """
        del x
        return None

    def evaluated(self) -> "MatrixGram":
        """The same Gram with K stored as an array, as direct solvers need it.

        **Returns:**

        A `MatrixGram`.
        """
        return MatrixGram(self.kernel, self.x, self.mask, self.dense())


class Gram(AbstractGram):
    """The kernel matrix of any kernel over any rows, multiplied tile by tile.

    **Arguments:**

    - `kernel`, `x`, `mask`: the kernel, the rows, and which of them count.
    - `tile`: rows and columns of a tile of K.
    - `mesh`: a mesh with one axis, over whose devices the rows are spread; each device multiplies its own rows.
    """

    kernel: Any
    x: Rows
    mask: Bool[Array, " n"]
    is_tiled: ClassVar[bool] = True
    tile: int = eqx.field(static=True, default=_TILE)
    mesh: Mesh | None = eqx.field(static=True, default=None)

    def mv(self, v):
        v = jnp.where(self.mask[:, None], v, 0.0)
        product = symmetric_product(self.kernel, self.x, v, self.tile) if self.mesh is None else self._sharded(v)
        return jnp.where(self.mask[:, None], product, 0.0)

    def _sharded(self, v: Float[Array, "n p"]) -> Float[Array, "n p"]:
        assert self.mesh is not None
        places = jnp.arange(self.n)
        (axis,) = self.mesh.axis_names
        numbers, others = eqx.partition(self.kernel, eqx.is_array)

        def of_device(numbers: Any, x: Rows, v: Array, places: Array) -> Array:
            every = jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, axis, tiled=True), (x, v, places))
            kernel = eqx.combine(numbers, others)
            return tiled_product(kernel, x, every[0], every[1], self.tile, (places, every[2]))

        # Every device gets as many rows. What fills up the last one is multiplied by 0, and its products are cut off.
        more = -self.n % self.mesh.size
        x = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[:1], more, axis=0)]) if more else leaf, self.x)
        v, places = jnp.pad(v, ((0, more), (0, 0))), jnp.pad(places, (0, more))
        specs = (P(), P(axis), P(axis), P(axis))
        product = jax.shard_map(of_device, mesh=self.mesh, in_specs=specs, out_specs=P(axis), check_vma=False)
        return product(numbers, x, v, places)[: self.n]

    def dense(self):
        return masked(self.kernel.gram(self.x, None), self.mask)

    def tiled(self, tile, mesh):
        return Gram(self.kernel, self.x, self.mask, self.tile if tile is None else tile, self.mesh if mesh is None else mesh)


class MatrixGram(AbstractGram):
    """A stored kernel matrix, or any symmetric matrix.

    **Arguments:**

    - `kernel`: the kernel; `None` for a matrix without one. New rows are then not possible.
    - `x`, `mask`: the rows, and which of them count.
    - `matrix`: K.
    """

    kernel: Any
    x: Rows
    mask: Bool[Array, " n"]
    matrix: Float[Array, "n n"]

    def mv(self, v):
        return matmul(self.matrix, v)

    def dense(self):
        return self.matrix

    def diagonal(self):
        return jnp.diagonal(self.matrix)

    def rows(self, chosen):
        return self.matrix[chosen]

    def evaluated(self):
        return self


def masked(matrix: Float[Array, "n n"], mask: Bool[Array, " n"]) -> Float[Array, "n n"]:
    """Set the rows and columns of a matrix that do not count to 0.

    **Arguments:**

    - `matrix`: a square matrix, `(n, n)`.
    - `mask`: which rows and columns count, n booleans.

    **Returns:**

    A matrix of the same shape.
    """
    return jnp.where(mask[:, None] & mask[None, :], matrix, 0.0)


def symmetric_product(kernel: Any, x: Rows, v: Float[Array, "n p"], tile: int) -> Float[Array, "n p"]:
    """`k(x, x) v` with no more than one tile of `k(x, x)` in memory at a time, each pair of tiles computed once.

    **Arguments:**

    - `kernel`, `x`, `v`: the kernel, rows, and columns to multiply.
    - `tile`: rows and columns of a tile.

    **Returns:**

    An array of shape `(n, p)`.
    """
    n, p = v.shape

    def own(block: tuple[Rows, Array]) -> Array:
        rows, v = block
        return matmul(kernel.gram(rows, None), v)

    if n * n <= _WHOLE * tile * tile:
        return jax.checkpoint(own)((x, v))
    # What fills up the last block of rows is multiplied by 0, and its products are cut off.
    rows, weights = in_blocks(x, tile), jnp.pad(v, ((0, -n % tile), (0, 0))).reshape(-1, tile, p)

    # The blocks are looked up inside, so that the backward pass keeps the numbers i and j and not the blocks.
    @jax.checkpoint
    def pair(i: Array, j: Array) -> tuple[Array, Array]:
        entries = kernel.gram(take(rows, i), take(rows, j))
        # `v_iᵀ K_ij`, not `K_ijᵀ v_i`, for which XLA would transpose the tile.
        return matmul(entries, weights[j]), matmul(weights[i].T, entries)

    def add(sums: tuple[Array, Array], numbers: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        (below, above), (i, j) = sums, numbers
        of_i, of_j = pair(i, j)
        return (below.at[i].add(of_i), above.at[j].add(of_j)), None

    on_diagonal = jax.lax.map(jax.checkpoint(own), (rows, weights))
    start = (on_diagonal, jnp.zeros((len(on_diagonal), p, tile), v.dtype))
    i, j = np.triu_indices(len(on_diagonal), 1)
    below, above = jax.lax.scan(add, start, (jnp.asarray(i), jnp.asarray(j)))[0]
    return (below + jnp.swapaxes(above, 1, 2)).reshape(-1, p)[:n]


def tiled_product(
    kernel: Any, x: Rows, z: Rows, v: Float[Array, "m p"], tile: int, places: tuple[Array, Array]
) -> Float[Array, "n p"]:
    """`k(x, z) v` with no more than one tile of `k(x, z)` in memory at a time.

    **Arguments:**

    - `kernel`, `x`, `z`, `v`: the kernel, rows on the left and on the right, and columns to multiply.
    - `tile`: rows and columns of a tile.
    - `places`: the numbers of the rows of x and of z in one common set. Where they are equal stands the kernel's exact
      diagonal, which a distance computed by matrix products misses by rounding.

    **Returns:**

    An array of shape `(n, p)`.
    """
    n, m = num_rows(x), num_rows(z)

    @jax.checkpoint
    def product(rows: Rows, numbers: Array, columns: Rows, others: Array, v: Array) -> Array:
        entries = kernel.gram(rows, columns)
        entries = jnp.where(numbers[:, None] == others[None, :], kernel.diag(rows)[:, None], entries)
        return matmul(entries, v)

    own, other = places
    if n * m <= _WHOLE * tile * tile:
        return product(x, own, z, other, v)
    tall, wide = min(tile, n), min(tile, m)
    # What fills up the last block of columns is multiplied by 0.
    weights = jnp.concatenate([v, jnp.zeros((-m % wide, v.shape[1]), v.dtype)]).reshape(-1, wide, v.shape[1])
    columns = (in_blocks(z, wide), in_blocks(other, wide), weights)

    @jax.checkpoint
    def of_rows(block: tuple[Rows, Array]) -> Array:
        def add(total: Array, column: tuple[Rows, Array, Array]) -> tuple[Array, None]:
            return total + product(*block, *column), None

        start = jnp.zeros((tall, v.shape[1]), v.dtype)
        return jax.lax.scan(add, start, columns)[0]

    blocks = jax.lax.map(of_rows, (in_blocks(x, tall), in_blocks(own, tall)))
    return blocks.reshape(-1, v.shape[1])[:n]
