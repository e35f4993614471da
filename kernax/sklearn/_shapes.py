"""Rows and columns padded to a few counts, so that few shapes are compiled, with the same answers.

Rows of padding stand behind a mask. Columns of padding are 0, for kernels that do not see such columns. A Gram matrix of 128
rows is factorised in less than a millisecond and a program takes seconds to compile, so that small sizes are far apart.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kernax.data import Data
from kernax.kernels import (
    RBF,
    AbstractKernel,
    AbstractStationary,
    Constant,
    Linear,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    Polynomial,
    Power,
    Product,
    RationalQuadratic,
    Scale,
    Sum,
)
from kernax.model import Conditioned

_SMALL = (32, 128, 256)
_LARGEST_STEP = 128
_WIDTHS = (8, 32, 128)
# A subclass may count the columns.
_KNOWN = (RBF, Matern, Matern12, Matern32, Matern52, RationalQuadratic)
_KNOWN += (Linear, Polynomial, Constant, Scale, Power, Sum, Product)


def padded_count(rows: int) -> int:
    """The number that `rows` are padded to: 32, 128, 256, then steps of an eighth or less of it."""
    for count in _SMALL:
        if rows <= count:
            return count
    # Work grows with the cube: of many rows, a few more cost more than a program that is compiled again.
    step = min(1 << ((rows - 1).bit_length() - 4), _LARGEST_STEP)
    return -(-rows // step) * step


def padded_width(columns: int, kernel: AbstractKernel | None = None) -> int:
    """The number that `columns` are padded to: 8, 32, 128; as they are if there are more, or if the kernel would see it."""
    if columns > _WIDTHS[-1] or (kernel is not None and not ignores_empty_columns(kernel)):
        return columns
    return next(width for width in _WIDTHS if columns <= width)


def fitted_width(columns: int, kernel: AbstractKernel, solver: Any) -> int:
    """The number that the columns of training rows are padded to. A solver of the user's sees them as they are: it may keep
    rows of its own, or want a single column."""
    return padded_width(columns, kernel) if solver is None else columns


def ignores_empty_columns(kernel: AbstractKernel) -> bool:
    """Whether the kernel is known to stay the same if all inputs get one more column of zeros."""
    if type(kernel) not in _KNOWN:
        return False
    match kernel:
        case AbstractStationary():
            return kernel.lengthscale.ndim == 0
        case Linear():
            return kernel.variance.ndim == 0
        case Polynomial() | Constant():
            return True
        case Scale() | Power():
            return ignores_empty_columns(kernel.kernel)
        case Sum() | Product():
            return all(ignores_empty_columns(part) for part in kernel.kernels)
    return False


def padded(values: np.ndarray, filling: Any = None) -> np.ndarray:
    """`values` with as many rows as they are padded to: copies of the first, or `filling`."""
    count = padded_count(len(values)) - len(values)
    more = np.broadcast_to(values[:1] if filling is None else filling, (count, *values.shape[1:]))
    return np.concatenate([values, more]).astype(values.dtype, copy=False)


def padded_mask(rows: int) -> np.ndarray:
    """True for each of the `rows`, False for the padding behind them."""
    return np.arange(padded_count(rows)) < rows


def with_width(X: np.ndarray, width: int) -> np.ndarray:
    """X with empty columns added, or with its last columns cut off."""
    return np.pad(X[:, :width], ((0, 0), (0, max(width - X.shape[1], 0))))


def padded_data(X: np.ndarray, y: np.ndarray, width: int | None = None) -> Data:
    """Rows and targets as a dataset of padded rows and, if a width is given, padded columns."""
    x = X if width is None else with_width(X, width)
    return Data(padded(x), padded(y), padded_mask(len(X)))


def data_with_columns(data: Data, width: int) -> Data:
    """A dataset with empty columns added, or with its last columns cut off."""
    if data.x.shape[1] == width:
        return data
    return eqx.tree_at(lambda d: d.x, data, jnp.asarray(with_width(np.asarray(data.x), width)))


def with_columns(machine: Any, width: int) -> Any:
    """A machine (or a fit) with this many columns in its data: its own, as users see it, or the padded ones."""
    if machine.data.x.shape[1] == width:
        return machine
    data = data_with_columns(machine.data, width)
    machine = eqx.tree_at(lambda m: m.data, machine, data)
    # A conditioned model predicts with the rows of its Gram.
    return eqx.tree_at(lambda m: m.system.gram.x, machine, data.x) if isinstance(machine, Conditioned) else machine


def at_rows(function: Callable[[np.ndarray], Any], X: np.ndarray) -> Any:
    """`function` of the padded rows, its answers cut to the rows of X: NumPy arrays that may be written to."""
    return jax.tree.map(lambda leaf: np.array(np.asarray(leaf)[: len(X)]), function(padded(X)))


def ask(question: Callable[[Any, np.ndarray], Any], machine: Any, X: np.ndarray, width: int | None = None) -> Any:
    """`question(machine, rows)` in padded shapes, its answers cut to the rows of X; `width` columns if that is given."""
    width = padded_width(X.shape[1], machine.model.kernel) if width is None else width
    machine = with_columns(machine, width)
    return at_rows(lambda rows: question(machine, rows), with_width(X, width))
