"""Principal components in a kernel's own space."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul, whole_number
from kernax._programs import compiled
from kernax.grams import MatrixGram, gram_of
from kernax.kernels import AbstractKernel
from kernax.kernels._kernel import check_rows
from kernax.parameters import as_dtype
from kernax.rows import Rows, as_rows, check_rows_finite, check_same_columns, map_rows, num_rows, row_dtype, take
from kernax.solvers import Eigh
from kernax.statistics._dependence import centred
from kernax.statistics._two_samples import checked_rows, gram_matrix


class KernelPCA(eqx.Module):
    """Kernel principal components. Call it with new rows for their coordinates `(m, q)`."""

    kernel: AbstractKernel
    """The kernel."""
    x: Rows
    """The rows."""
    eigenvalues: Float[Array, " q"]
    """The largest eigenvalues of the centred kernel matrix in descending order: n times the variances."""
    vectors: Float[Array, "n q"]
    """Their eigenvectors. The entry with the largest size in each is positive."""
    means: Float[Array, " n"]
    """The means of the columns of the kernel matrix."""

    @property
    def scores(self) -> Float[Array, "n q"]:
        """The coordinates of the rows themselves."""
        return self.vectors * jnp.sqrt(self.eigenvalues)

    def __call__(self, x: Any) -> Float[Array, "m q"]:
        """The coordinates of new rows, O(n) for each row and component.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m, q)`.
        """
        rows = as_rows(x, "x")
        check_same_columns(rows, self.x, "x", "the rows of the components")
        check_rows_finite(rows, "x")
        check_rows(self.kernel, rows)
        return _coordinates(self, rows)


def kernel_pca(kernel: AbstractKernel, x: Any, number: int) -> KernelPCA:
    """Kernel principal component analysis: the directions in the kernel's space in which the rows vary most.

    With `H = I - 11ᵀ/n` and the eigenvalues λ and eigenvectors v of `H K H`, the coordinates of row i are `√λ v_i`
    (Schölkopf, Smola & Müller, 1998). O(n³). Not differentiable.

    **Arguments:**

    - `kernel`: a kernel.
    - `x`: the rows, `(n, d)`.
    - `number`: how many components, at most n.

    **Returns:**

    A `KernelPCA`. A component with no variance has the eigenvalue 0 and coordinates 0.
    """
    rows, number = take(checked_rows(kernel, x, "x")), whole_number(number, "number")
    if number > num_rows(rows):
        raise ValueError(f"number must be between 1 and the number of rows, {num_rows(rows)}, got {number}.")
    return _kernel_pca(as_dtype(kernel, row_dtype(rows)), rows, number)


@compiled
def _kernel_pca(kernel: AbstractKernel, x: Rows, number: int) -> KernelPCA:
    gram = jax.lax.stop_gradient(gram_matrix(kernel, x))
    n = gram.shape[0]
    system = Eigh().prepare(MatrixGram(None, None, jnp.ones(n, bool), centred(gram)), jnp.ones((), gram.dtype))
    values, vectors = system.spectrum.values[::-1][:number], system.spectrum.vectors[:, ::-1][:, :number]
    # Rounding leaves eigenvalues of this size where there are none.
    values = jnp.where(values > n * jnp.finfo(gram.dtype).eps * values[0], values, 0.0)
    largest = jnp.take_along_axis(vectors, jnp.argmax(jnp.abs(vectors), axis=0)[None], axis=0)
    return KernelPCA(kernel, x, values, vectors * jnp.sign(largest), jnp.mean(gram, axis=0))


@compiled
def _coordinates(c: KernelPCA, x: Rows) -> Float[Array, "m q"]:
    gram = gram_of(c.kernel, c.x, jnp.ones(num_rows(c.x), bool))
    positive = c.eigenvalues > 0
    directions = jnp.where(positive, c.vectors / jnp.sqrt(jnp.where(positive, c.eigenvalues, 1.0)), 0.0)

    def of_block(rows: Rows) -> Array:
        cross = gram.cross(rows).T
        return matmul(cross - jnp.mean(cross, axis=1, keepdims=True) - c.means + jnp.mean(c.means), directions)

    return map_rows(of_block, x, 2 * num_rows(c.x))
