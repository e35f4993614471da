"""Periods to start from: the peaks of a periodogram."""

import math

import numpy as np

_DEGREE = 3
"""Of the polynomial that is taken out first, as a trend."""
_FINENESS = 4
"""Frequencies in the width of a peak."""
_MOST = 20_000
"""Frequencies at the most."""
_CHANCE = 0.01
"""How likely a peak may be in noise alone."""
_HARMONICS = 3
"""Harmonics that are taken out with a period."""


def likely_periods(x: np.ndarray, y: np.ndarray, number: int) -> list[float]:
    """Periods that the series seems to have, the clearest first.

    Each is the highest peak of the periodogram of Lomb and Scargle. Its harmonics are then taken out, before the next one is
    looked for. Peaks that noise could have made are left out, except that there is at least one period.

    **Arguments:**

    - `x`: times, `(n,)`, in any order and at any distances.
    - `y`: values, `(n,)`.
    - `number`: how many periods at the most.

    **Returns:**

    A list of periods. It is empty if there are too few rows, or values that are not finite, or no variation.
    """
    from scipy.signal import lombscargle  # not with kernax: it takes a while to import

    x, y = x.astype(np.float64), y.astype(np.float64)
    n = np.unique(x).size
    if n < 4 * _HARMONICS or not np.all(np.isfinite(x) & np.isfinite(y)):
        return []
    span = np.ptp(x)
    x = (x - x.min()) / span
    rest = _without(y, np.polynomial.legendre.legvander(2.0 * x - 1.0, _DEGREE))
    # From two periods in the series to two rows in a period.
    cycles = np.linspace(2.0, n / 2.0, int(np.clip(_FINENESS * (n / 2.0 - 2.0), 2, _MOST)))
    found: list[float] = []
    while len(found) < number and np.abs(rest).max() > 1e-10 * np.abs(y).max():
        power = lombscargle(x, rest, 2.0 * np.pi * cycles, normalize=True)
        best = int(np.argmax(power))
        # The chance that noise has such a peak at one frequency, times the number of frequencies that are independent.
        chance = (n / 2.0) * math.exp((n - 3) / 2.0 * math.log1p(-min(float(power[best]), 1.0 - 1e-12)))
        if found and chance > _CHANCE:
            break
        found.append(float(span / cycles[best]))
        angles = 2.0 * np.pi * cycles[best] * x[:, None] * np.arange(1, _HARMONICS + 1)
        rest = _without(rest, np.concatenate([np.ones((len(x), 1)), np.cos(angles), np.sin(angles)], axis=1))
    return found


def _without(y: np.ndarray, features: np.ndarray) -> np.ndarray:
    """The residual of least squares."""
    return y - features @ np.linalg.lstsq(features, y, rcond=None)[0]
