"""A Gram matrix as an image."""

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from kernax.kernels import AbstractKernel
from kernax.model import Conditioned, Model
from kernax.plot._canvas import Axes, canvas, check_drawable, check_finished
from kernax.rows import take


def gram(of: Any, x: Any = None, *, ax: Any = None) -> Axes:
    """Draw the matrix `k(x_i, x_j)` as an image with a colour bar.

    **Arguments:**

    - `of`: a kernel or a `Model`, with rows `x`; a `Conditioned`; or a matrix.
    - `x`: the rows. A `Conditioned` uses the rows of its own data that count if `x` is not given. Leave it out for a matrix.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes. The noise is not drawn.
    """
    matrix = _matrix(of, x)
    if matrix.ndim != 2 or 0 in matrix.shape:
        batch = ": a batch is drawn one matrix at a time" if matrix.ndim > 2 else ""
        raise ValueError(f"an image needs a matrix, got shape {matrix.shape}{batch}.")
    ax = canvas(ax)
    # Dark to bright in equal steps, for every eye and in print.
    aspect = "equal" if matrix.shape[0] == matrix.shape[1] else "auto"
    image = ax.imshow(matrix, cmap="viridis", interpolation="none", aspect=aspect)
    figure: Any = ax.figure
    figure.colorbar(image, ax=ax, label="$k(x_i, x_j)$", fraction=0.046, pad=0.04)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    ax.set(xlabel="row $j$", ylabel="row $i$")
    return ax


def _matrix(of: Any, x: Any) -> np.ndarray:
    check_finished((of, x))
    if isinstance(of, Conditioned):
        c = check_drawable(of)
        rows = np.asarray(c.data.mask)
        return np.asarray(c.model.kernel(take(c.data.x, rows) if x is None else x))
    if isinstance(of, AbstractKernel | Model):
        if x is None:
            raise ValueError(f"{type(of).__name__} needs points to compare: gram(kernel, x).")
        return np.asarray((of if isinstance(of, AbstractKernel) else of.kernel)(x))
    if x is not None:
        raise ValueError("x is for kernels only: leave it out if you draw a matrix.")
    try:
        return np.asarray(of, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"gram needs a matrix, a kernel, a Model or a Conditioned, got {type(of).__name__}.") from error
