"""New inputs, checked against those that a model was conditioned on."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernax.data import Data
from kernax.model import AbstractModel
from kernax.model._checks import check_conditioned, check_known
from kernax.rows import (
    Rows,
    as_row_dtype,
    as_rows,
    check_rows_finite,
    check_same_columns,
    fitted_to,
    is_on_disk,
    num_rows,
    rows_at_once,
    take,
)

_PIECE = 2**16
"""The most rows in a file that are predicted at once."""


def new_rows(c: Any, x: Any, name: str = "x") -> Rows:
    """New inputs, checked against those that the model was conditioned on, in their floating type."""
    check_conditioned(c)
    return rows_like(c.model, c.data, x, name)


def rows_like(model: AbstractModel, data: Data, x: Any, name: str = "x") -> Rows:
    """New rows, checked against the data and in its floating type.

    **Arguments:**

    - `model`: the model, which must know the labels in the rows.
    - `data`: the dataset that the model was conditioned on.
    - `x`: new inputs.
    - `name`: what error messages call them.

    **Returns:**

    The rows. Raises `ValueError` if their columns differ from those of the data, if a number is not finite, or if the model
    does not know a label.
    """
    return take(unread_rows(model, data, x, name))


def unread_rows(model: AbstractModel, data: Data, x: Any, name: str = "x") -> Rows:
    """The same, but rows in a file stay there."""
    x = as_rows(x, name, one="one new point is a row of its own")
    x = fitted_to(x, data.x)
    check_same_columns(x, data.x, name, "the data the model was conditioned on")
    check_known(model, x)
    x = x if is_on_disk(x) else take(x)
    check_rows_finite(x, name)
    return as_row_dtype(x, data.dtype, like=data.x)


def in_pieces(answer: Callable[[Rows], Any], x: Rows) -> list[Any]:
    """The answers for all rows: one, or, for rows in a file, one for each piece that is read.

    The pieces are of one size, so that a program is compiled once. What the last two have in common is cut off the last.
    """
    if not is_on_disk(x):
        return [answer(x)]
    n = num_rows(x)
    size = min(_PIECE, rows_at_once(x))
    answers = [answer(take(x, np.arange(begin, begin + size))) for begin in range(0, n - size + 1, size)]
    rest = n % size
    if rest:
        last = answer(take(x, np.arange(n - size, n)))
        answers.append(jax.tree.map(lambda leaf: leaf[size - rest :] if jnp.ndim(leaf) else leaf, last))
    return answers
