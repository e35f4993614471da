"""New inputs, checked against those that a model was conditioned on."""

from typing import Any

import jax

from kernax._arrays import check_finite
from kernax.data import Data
from kernax.model import check_conditioned
from kernax.rows import Rows, as_row_dtype, as_rows, check_same_columns, take


def new_rows(c: Any, x: Any, name: str = "x") -> Rows:
    """New inputs, checked against those that the model was conditioned on, in their floating type."""
    check_conditioned(c)
    return rows_like(c.data, x, name)


def rows_like(data: Data, x: Any, name: str = "x") -> Rows:
    """New rows with the columns and the floating type of the data's; raises `ValueError` if they differ."""
    x = as_rows(x, name, one="one new point is a row of its own")
    check_same_columns(x, data.x, name, "the data the model was conditioned on")
    x = take(x)
    for leaf in jax.tree.leaves(x):
        check_finite(leaf, name)
    return as_row_dtype(x, data.dtype, like=data.x)
