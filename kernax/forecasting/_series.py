"""Series as they are given, checked and standardised."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np


def one_series(values: Any, name: str) -> np.ndarray:
    """One value for each step, NaN where it is missing. Raises `TypeError` or `ValueError` for anything else."""
    try:
        values = np.asarray(values)
        kind = values.dtype if values.dtype in (np.float32, np.float64) else np.float64
        values = values.astype(kind)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must hold numbers: {error}.") from None
    if values.ndim != 1:
        raise ValueError(f"{name} has shape {values.shape}; a series needs one axis, with one value for each step.")
    if np.any(np.isinf(values)):
        raise ValueError(f"{name} has infinite values: write NaN where a value is missing.")
    return values


def series_of(series: Any) -> dict[Hashable, np.ndarray]:
    """Series by name, or by number if they are given without names."""
    if not isinstance(series, Mapping):
        if isinstance(series, str) or not isinstance(series, Iterable):
            raise TypeError(f"series must be a list or dict of arrays, got {type(series).__name__}.")
        given = list(series)
        if given and all(np.ndim(values) == 0 for values in given):
            raise ValueError("series must be a list or dict of arrays: put a single series into a list.")
        series = dict(enumerate(given))
    if not series:
        raise ValueError("series is empty: give at least one series.")
    return {name: one_series(values, f"series {name!r}") for name, values in series.items()}


def check_observed(values: np.ndarray, name: Hashable) -> None:
    if np.isfinite(values).sum() < 2:
        raise ValueError(f"series {name!r} has fewer than two values: leave it out.")


def standardised(values: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Values with mean 0 and standard deviation 1, and what makes them so: the mean and the standard deviation."""
    wide = values.astype(float)
    centre, scale = float(np.nanmean(wide)), float(np.nanstd(wide))
    if not scale > 100 * np.finfo(values.dtype).eps * abs(centre):  # constant, but for rounding
        scale = 1e-3 * max(abs(centre), 1.0)
    return ((wide - centre) / scale).astype(values.dtype), centre, scale


def rows_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a standardised series: steps, counted from its middle, and values, without those that are missing."""
    known = np.isfinite(values)
    return steps_of(np.arange(len(values)), len(values), values.dtype)[known], values[known]


def steps_of(numbers: np.ndarray, rows: int, dtype: Any) -> np.ndarray:
    """Numbers of steps as a column of times, 0 in the middle of a series of so many rows."""
    return (numbers - 0.5 * (rows - 1)).astype(dtype)[:, None]
