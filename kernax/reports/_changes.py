"""How much a model can change over its data, whatever its kernel is made of: from the kernel's values alone."""

from typing import Any, NamedTuple

import jax
import numpy as np

from kernax._programs import compiled
from kernax.kernels import Constant, Sum
from kernax.kernels._names import kernel_labels
from kernax.model import Conditioned

_MOST_COLUMNS, _MOST_ROWS = 200, 40
_PLACES = np.array([0.0, 0.07, 0.18, 0.31, 0.47, 0.62, 0.79, 0.91, 1.0])
"""Along a column's range; uneven, so that no period hits them all at one phase."""


def along_columns(c: Conditioned) -> np.ndarray | None:
    """The deviation that the prior gives to the change of f along each column's range, with the others as in some rows.

    The largest over pairs of places and over the rows. `None` for splines, whose kernel is no covariance.
    """
    x = _rows(c, 5)
    if c.system.num_free or x.shape[1] > _MOST_COLUMNS:
        return None
    every = np.asarray(c.data.x)[np.asarray(c.data.mask)]
    low, high = every.min(axis=0), every.max(axis=0)
    changes = []
    for column in range(x.shape[1]):
        places = np.repeat(x[:, None], len(_PLACES), axis=1)
        places[:, :, column] = low[column] + _PLACES * (high[column] - low[column])
        points = places.reshape(-1, x.shape[1])
        matrix, level = (np.asarray(values, float) for values in _prior(c.model, points))
        level = level.reshape(len(points), -1)[:, 0]
        matrix = _squared_changes(matrix) + (level[:, None] - level) ** 2
        blocks = matrix.reshape(len(x), len(_PLACES), len(x), len(_PLACES))
        changes.append(max(blocks[i, :, i].max() for i in range(len(x))))
    return np.sqrt(np.array(changes))


class Term(NamedTuple):
    """One term of a kernel's sum: its name, the deviation of its values, and that of its changes between rows."""

    name: str
    size: float
    change: float


def terms(c: Conditioned) -> list[Term]:
    """The terms of the kernel, less those that are meant to be constant."""
    kernel: Any = c.model.kernel
    if kernel.trend() is not None:
        return []
    labels, parts = kernel_labels(kernel), {(): kernel}
    if isinstance(kernel, Sum):
        within = jax.tree_util.GetAttrKey("kernels")
        parts = {(within, jax.tree_util.SequenceKey(i)): part for i, part in enumerate(kernel.kernels)}
    parts = {path: part for path, part in parts.items() if not isinstance(part, Constant)}
    found = []
    for path, matrix in zip(parts, _matrices(list(parts.values()), _rows(c, _MOST_ROWS)), strict=True):
        matrix = np.asarray(matrix, float)
        size, change = np.mean(np.diag(matrix)), np.mean(_squared_changes(matrix))
        found.append(Term(labels[path], float(np.sqrt(max(size, 0.0))), float(np.sqrt(max(change, 0.0)))))
    return found


@compiled
def _matrices(kernels: list[Any], x: Any) -> list[Any]:
    """The kernels' matrices, by one program: operation after operation, compiling them takes several times as long."""
    return [kernel(x) for kernel in kernels]


@compiled
def _prior(model: Any, x: Any) -> tuple[Any, Any]:
    """The kernel's matrix and the mean at some rows, by one program."""
    return model.kernel(x), jax.vmap(model.mean)(x)


def _rows(c: Conditioned, most: int) -> np.ndarray:
    """Some of the rows that count, spread over the data."""
    rows = np.flatnonzero(np.asarray(c.data.mask))
    return np.asarray(c.data.x)[rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))]]


def _squared_changes(matrix: np.ndarray) -> np.ndarray:
    """The variance of `f(x_i) - f(x_j)`."""
    return np.diag(matrix)[:, None] + np.diag(matrix) - 2.0 * matrix
