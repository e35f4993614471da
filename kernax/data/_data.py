"""One dataset."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import as_floats, check_finite, plain
from kernax._programs import compiled
from kernax._stored import is_stored
from kernax.data._gaps import Gaps, rows_and_gaps
from kernax.rows import (
    Grid,
    Rows,
    arrays_of,
    as_row_dtype,
    as_rows,
    check_rows_finite,
    is_bare,
    is_label,
    is_on_disk,
    leaves_of,
    num_rows,
)


class Data(eqx.Module):
    """Inputs, targets, and a mask of the rows that count.

    Rows with `mask=False` may contain anything, including NaN: they are overwritten, and no value or gradient depends on
    them.
    All numbers are converted to one floating type, the wider one of x and y. Integers and Python numbers take the type of
    the others. Inside a structure, integers keep their type: they are labels.

    **Arguments:**

    - `x`: inputs: an `(n, d)` array, a structure of arrays with n rows (dict, tuple, dataclass), or a `kx.Grid`. A
      memory-mapped array (`np.load("x.npy", mmap_mode="r")`) stays in its file. `kx.Vecchia()` reads rows from it when it
      needs them; other solvers read the whole file.
    - `y`: targets, `(n,)`, `(n, p)`, or the shape of the grid.
    - `mask`: which rows count, as n booleans; all of them if it is not given. For `(n, p)` targets it may also be `(n, p)`
      booleans that say which entries are observed: each output is then learned from its own rows.
    """

    x: Rows
    y: Float[Array, "n *p"]
    mask: Bool[Array, " n"]
    """Which rows count: those with an observed entry."""
    gaps: Gaps | None = None
    """Which rows each output is observed in; `None` if the outputs share their rows."""

    def __init__(self, x: Any, y: Any, mask: Any = None):
        x, y = plain(x) if is_bare(x) else jax.tree.map(plain, x), plain(y)
        precise = [leaf.dtype for leaf in (y, *leaves_of(x)) if _has_precision(leaf)]
        x = as_rows(x, "x")
        y = as_floats(y, "y")
        n = num_rows(x)
        if isinstance(x, Grid):
            y = y.reshape(n) if y.shape == x.shape else y
            mask = np.reshape(mask, n) if np.shape(mask) == x.shape else mask
        if n == 0:
            raise ValueError("x has no rows: kernax needs at least one.")
        if any(leaf.ndim > 1 and 0 in leaf.shape for leaf in arrays_of(x)):
            raise ValueError("x has no columns: kernax needs at least one.")
        if y.ndim not in (1, 2):
            raise ValueError(f"y has shape {y.shape}; kernax wants (n,) or (n, p).")
        if y.shape[0] != n:
            raise ValueError(f"x has {n} rows and y has {y.shape[0]}: they must be the same.")
        if y.ndim == 2 and y.shape[1] == 0:
            raise ValueError(f"y has shape {y.shape}: kernax needs at least one output.")
        mask, gaps = _as_mask(mask, y), None
        if mask is not None and mask.ndim == 2:
            y = jnp.where(mask, y, 0.0)
            mask, gaps = rows_and_gaps(mask)
        check_finite(y, "y", mask, "drop them, or mark them with mask=False")
        # A cell of a grid that does not count still has coordinates.
        check_rows_finite(x, "x", None if isinstance(x, Grid) else mask, "drop them, or mark them with mask=False")

        dtype = jax.dtypes.canonicalize_dtype(np.result_type(*precise)) if precise else jnp.result_type(float)
        x, y = as_row_dtype(x, dtype), y.astype(dtype)
        if mask is not None:
            x, y = _without_masked_rows(x, y, mask)
        self.x = x
        self.y = y
        self.mask = jnp.asarray(np.ones(n, bool)) if mask is None else mask
        self.gaps = gaps

    @property
    def n(self) -> int:
        """The number of rows, padding included."""
        return self.mask.shape[0]

    @property
    def count(self) -> Array:
        """The number of rows that count."""
        return jnp.sum(self.mask)

    @property
    def num_outputs(self) -> int:
        """The number of columns of y."""
        return 1 if self.y.ndim == 1 else self.y.shape[1]

    @property
    def observed(self) -> Bool[Array, "n *p"]:
        """Which entries of y count; one column for all outputs if they share their rows."""
        return _along_rows(self.mask, self.y) if self.gaps is None else self.gaps.observed

    @property
    def counts(self) -> Int[Array, "*p"]:
        """Observed entries of each output: one number if the outputs share their rows."""
        return self.count if self.gaps is None else jnp.sum(self.gaps.observed, axis=0)

    @property
    def num_observed(self) -> Int[Array, ""]:
        """The number of observed entries of y."""
        return self.count * self.num_outputs if self.gaps is None else jnp.sum(self.gaps.observed)

    @property
    def dtype(self) -> Any:
        """The floating type of all numbers."""
        return self.y.dtype

    def finite_or_zero(self) -> tuple["Data", Bool[Array, ""]]:
        """This dataset if all its numbers are finite, else one of zeros; and whether they are finite."""
        # 0 times a number is 0, unless that is infinite or NaN.
        traces = [jnp.sum(0.0 * leaf) for leaf in jax.tree.leaves((self.x, self.y)) if not is_label(leaf)]
        finite = jnp.sum(jnp.stack(traces)) == 0
        clean = jax.tree.map(lambda leaf: leaf if is_label(leaf) else jnp.where(finite, leaf, 0.0), (self.x, self.y))
        return eqx.tree_at(lambda d: (d.x, d.y), self, clean), finite

    def zero_where_masked(self, values: Float[Array, "n *p"]) -> Float[Array, "n *p"]:
        """`values` with 0 in the rows that do not count and, with a column for each output, in entries not observed."""
        own = self.gaps is not None and values.ndim == 2
        return jnp.where(self.observed if own else _along_rows(self.mask, values), values, 0.0)

    def __repr__(self):
        if isinstance(self.x, Grid):
            return f"Data(x=Grid{self.x.shape}, y={self.y.shape}, {self.dtype})"
        shapes, gaps = [leaf.shape for leaf in arrays_of(self.x)], "" if self.gaps is None else " with gaps"
        place = " on disk" if is_on_disk(self.x) else ""
        return f"Data(x={shapes[0] if len(shapes) == 1 else shapes}{place}, y={self.y.shape}{gaps}, {self.dtype})"


def _has_precision(value: Any) -> bool:
    return jnp.issubdtype(getattr(value, "dtype", int), jnp.floating)


def _as_mask(mask: Any, y: Float[Array, "n *p"]) -> Bool[Array, "n ..."] | None:
    if mask is None:
        return None
    if not isinstance(mask, jax.Array):
        mask = np.asarray(mask)
    n = y.shape[0]
    if mask.shape not in ((n,), y.shape) or mask.dtype != bool:
        each = f", or {y.shape} of them, one for each entry of y" if y.ndim == 2 else ""
        raise ValueError(f"mask must be {n} booleans (True: the row counts){each}, got {mask.dtype} of shape {mask.shape}.")
    return jnp.asarray(mask)


@compiled
def _without_masked_rows(x: Rows, y: Array, mask: Array) -> tuple[Rows, Array]:
    """Masked rows of x become copies of the first row that counts: finite, and no new extreme for centring or scaling."""
    y = jnp.where(_along_rows(mask, y), y, 0.0)
    if isinstance(x, Grid):
        return x, y

    def overwritten(leaf: Any) -> Any:
        if is_stored(leaf):
            return leaf.counting(mask)
        stand_in = jnp.where(jnp.any(mask), leaf[jnp.argmax(mask)], jnp.zeros_like(leaf[0]))
        return jnp.where(_along_rows(mask, leaf), leaf, stand_in)

    return jax.tree.map(overwritten, x, is_leaf=is_stored), y


def _along_rows(mask: Array, like: Array) -> Array:
    return mask.reshape((-1,) + (1,) * (like.ndim - 1))
