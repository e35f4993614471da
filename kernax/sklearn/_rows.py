"""Rows padded to a few counts, so that few shapes are compiled; masks keep the answers exact."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from kernax.data import Data
from kernax.data._shapes import LEAST_ROWS

_COARSE = 128


def padded_count(rows: int) -> int:
    """The count that `rows` are padded to: a power of two up to 128, then steps of an eighth of one or less."""
    if rows <= _COARSE:
        return max(LEAST_ROWS, 1 << (rows - 1).bit_length())
    step = 1 << ((rows - 1).bit_length() - 4)
    return -(-rows // step) * step


def padded(values: np.ndarray, filling: Any = None) -> np.ndarray:
    """`values` with as many rows as they are padded to: copies of the first, or `filling`."""
    count = padded_count(len(values)) - len(values)
    more = np.broadcast_to(values[:1] if filling is None else filling, (count, *values.shape[1:]))
    return np.concatenate([values, more]).astype(values.dtype, copy=False)


def padded_mask(rows: int) -> np.ndarray:
    """True for each of the `rows`, False for the padding behind them."""
    return np.arange(padded_count(rows)) < rows


def padded_data(X: np.ndarray, y: np.ndarray) -> Data:
    """Rows and targets as a dataset whose mask marks the padding."""
    return Data(padded(X), padded(y), padded_mask(len(X)))


def at_rows(function: Callable[[np.ndarray], Any], X: np.ndarray) -> Any:
    """`function` of the padded rows, its answers cut to the rows of X: NumPy arrays that may be written to."""
    return jax.tree.map(lambda leaf: np.array(np.asarray(leaf)[: len(X)]), function(padded(X)))
