"""Which form of Gram a kernel and its rows allow."""

from jaxtyping import Array, Bool

from kernax.grams._gram import AbstractGram, Gram
from kernax.grams._kronecker import KroneckerGram
from kernax.grams._stored import StoredGram
from kernax.kernels import AbstractKernel
from kernax.rows import Grid, Rows, is_on_disk, take


def gram_of(kernel: AbstractKernel, x: Rows, mask: Bool[Array, " n"]) -> AbstractGram:
    """The Gram of a kernel over rows, in the most efficient form that both allow.

    **Arguments:**

    - `kernel`: any kernel.
    - `x`: rows.
    - `mask`: which rows count.

    **Returns:**

    A `KroneckerGram` for a `Grid` whose every axis has a factor of the kernel, a `StoredGram` for rows in a file, else a
    `Gram`.
    """
    if isinstance(x, Grid):
        axes = kernel.axes()
        if axes is not None and set(axes) == set(x.keys):
            return KroneckerGram(kernel, x, mask)
    if is_on_disk(x):
        return StoredGram(kernel, x, mask)
    return Gram(kernel, take(x), mask)
