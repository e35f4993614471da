"""Targets (n, p) whose outputs are correlated: each value is a row of its own, and new rows are asked for every output."""

from typing import Any

import numpy as np

from kernax.data import Data
from kernax.kernels import ICM, AbstractKernel
from kernax.posterior import covariance, predict_tasks
from kernax.rows import Grid
from kernax.sklearn._shapes import at_rows, padded, padded_mask


def coregion_rank(coregion: Any) -> int:
    """The rank that `coregion=` asks for: 0 for False, 1 for True."""
    if isinstance(coregion, bool | np.bool_):
        return int(coregion)
    if not isinstance(coregion, int | np.integer) or coregion < 1:
        raise ValueError(f"coregion must be True, False or a rank of at least 1, got {coregion!r}.")
    return int(coregion)


def with_tasks(kernel: AbstractKernel, number: int, rank: int, variance: float) -> AbstractKernel:
    """A kernel of so many outputs with this variance, each like the given kernel."""
    whole = ICM(kernel, number, rank)
    coregion, inputs = whole.kernels
    return coregion.initialised(None, None, np.asarray(variance)) * inputs


def long_data(X: np.ndarray, y: np.ndarray) -> Data:
    """Rows and targets (n, p) as n · p padded rows, the outputs of a row together."""
    n, p = y.shape
    rows = {"x": padded(np.repeat(X, p, axis=0)), "task": padded(np.tile(np.arange(p), n))}
    return Data(rows, padded(y.ravel()), padded_mask(n * p))


def grid_data(X: np.ndarray, y: np.ndarray) -> Data:
    """The same as a grid of rows and outputs, for solvers that need every cell of it. Nothing is padded."""
    return Data(Grid({"x": X, "task": np.arange(y.shape[1])}), y)


def tasks_at(c: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of every output at the rows of X, (m, p) each."""
    return at_rows(lambda rows: tuple(predict_tasks(c, rows)[:2]), X)


def covariance_of_tasks(c: Any, X: np.ndarray, number: int) -> np.ndarray:
    """The covariance of all outputs at all rows of X, (m p, m p), the outputs of a row together."""
    m = len(X)
    rows = {"x": padded(np.repeat(X, number, axis=0)), "task": padded(np.tile(np.arange(number), m))}
    return np.array(np.asarray(covariance(c, rows))[: m * number, : m * number])
