"""Scores of forecasts."""

from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float


def gaussian_crps(observed: Any, mean: Any, sd: Any) -> Float[np.ndarray, "..."]:
    """The continuous ranked probability score of normal forecasts: `∫ (F(z) - 1{z ≥ y})² dz`, in closed form.

    Computes `sd (z (2Φ(z) - 1) + 2φ(z) - 1/√π)` with `z = (y - mean)/sd` (T. Gneiting and A. E. Raftery, *Strictly proper
    scoring rules, prediction, and estimation*, 2007). Smaller is better; it is in the units of the values.

    **Arguments:**

    - `observed`, `mean`, `sd`: arrays that broadcast. Where `sd` is 0, the score is the absolute error.

    **Returns:**

    An array of scores.
    """
    from scipy.special import ndtr  # not with kernax: it takes a while to import

    observed, mean, sd = (np.asarray(part, float) for part in (observed, mean, sd))
    error = observed - mean
    with np.errstate(divide="ignore", invalid="ignore"):
        z = error / sd
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        score = error * (2 * ndtr(z) - 1) + sd * (2 * density - 1 / np.sqrt(np.pi))
    return np.where(sd == 0, np.abs(error), score)


def coverage(observed: Any, mean: Any, sd: Any, level: float) -> Float[np.ndarray, "..."]:
    """Whether each value lies in the central interval of a normal forecast.

    **Arguments:**

    - `observed`, `mean`, `sd`: arrays that broadcast.
    - `level`: the probability of the interval, between 0 and 1.

    **Returns:**

    An array of 0 and 1; NaN where a value or a forecast is missing.
    """
    observed, mean, sd = (np.asarray(part, float) for part in (observed, mean, sd))
    error = np.abs(observed - mean)
    inside = error <= half_width(level) * sd
    return np.where(np.isfinite(error + sd), inside, np.nan)


def naive_error(values: Any, period: int) -> float:
    """The mean absolute error of the seasonal naive forecast inside a series: the unit of MASE.

    **Arguments:**

    - `values`: the series, NaN where a value is missing.
    - `period`: how many steps back the naive forecast looks; 1 without a season.

    **Returns:**

    The mean of `|y_t - y_(t - period)|`; NaN if there is no such pair of values, or if all values are equal.
    """
    values = np.asarray(values, float)
    apart = np.abs(values[period:] - values[:-period])
    apart = apart[np.isfinite(apart)]
    return float(np.mean(apart)) if apart.size and np.any(apart > 0) else float("nan")


def half_width(level: float) -> float:
    """Half the width of the central interval of this probability, in standard deviations."""
    if not 0 < level < 1:
        raise ValueError(f"level must be a probability between 0 and 1, got {level!r}.")
    return NormalDist().inv_cdf(0.5 + 0.5 * level)
