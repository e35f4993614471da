"""Several outputs as long rows: one row for each observed value."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from kernax._arrays import as_floats, is_concrete
from kernax.data._data import Data
from kernax.rows import as_rows, num_rows, take


def long(x: Any, y: Any, mask: Any = None, *, key: str = "task", inputs: str = "x") -> Data:
    """Outputs that are observed at some inputs each, as one row for each observed value.

    For kernels of tasks, such as [`kernax.kernels.ICM`][], and for `kx.noises.PerGroup` and `kx.means.PerGroup`. If every
    value is observed, `kx.Data(kx.Grid({"x": x, "task": np.arange(p)}), y)` has the same rows, and `kx.Kronecker()` solves
    it faster.

    **Arguments:**

    - `x`: inputs, `(n, d)`, or a structure of arrays with n rows.
    - `y`: outputs, `(n, p)`. Without a mask, NaN means not observed.
    - `mask`: which values are observed, `(n, p)` booleans.
    - `key`: what the tasks are called in the rows.
    - `inputs`: what the inputs are called in the rows.

    **Returns:**

    A `Data` with rows `{"x": x, "task": tasks}`: those of the first row of x, then those of the second, and so on. Raises
    `ValueError` if an output has no observed value.
    """
    x, y = as_rows(x, "x"), as_floats(y, "y")
    if not is_concrete(y) or not is_concrete(mask):
        raise TypeError("kx.data.long looks at which values are observed: call it outside jit, grad and vmap.")
    if key == inputs:
        raise ValueError(f"key and inputs are both {key!r}: give two names.")
    if y.ndim != 2:
        raise ValueError(f"y has shape {y.shape}; kx.data.long needs (n, p), a column for each output.")
    if num_rows(x) != y.shape[0]:
        raise ValueError(f"x has {num_rows(x)} rows and y has {y.shape[0]}: they must be the same.")
    observed = ~np.isnan(np.asarray(y)) if mask is None else np.asarray(mask)
    if observed.shape != y.shape or observed.dtype != bool:
        raise ValueError(
            f"mask must be {y.shape} booleans (True: observed), got {observed.dtype} of shape {observed.shape}."
        )
    empty = np.flatnonzero(~observed.any(axis=0))
    if empty.size:
        raise ValueError(f"output {empty[0]} has no observed value: leave it out of y.")
    rows, tasks = np.nonzero(observed)
    return Data({inputs: take(x, rows), key: jnp.asarray(tasks)}, y[rows, tasks])
