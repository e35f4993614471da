"""Which form of Gram a kernel and its rows allow."""

from jaxtyping import Array, Bool

from kernax.grams._gram import AbstractGram, Gram
from kernax.grams._kronecker import KroneckerGram
from kernax.kernels import AbstractKernel
from kernax.rows import Grid, Rows, take


def gram_of(kernel: AbstractKernel, x: Rows, mask: Bool[Array, " n"]) -> AbstractGram:
    """The Gram of a kernel over rows, in the most structured form that both allow.

    **Arguments:**

    - `kernel`: any kernel.
    - `x`: rows.
    - `mask`: which rows count.

    **Returns:**

    A `KroneckerGram` for a `Grid` whose every axis has a factor of the kernel, else a `Gram`.
    """
    if isinstance(x, Grid):
        axes = kernel.axes()
        if axes is not None and set(axes) == set(range(len(x.axes))):
            return KroneckerGram(kernel, x, mask)
    return Gram(kernel, take(x), mask)
