"""Every row, predicted from all others."""

from typing import NamedTuple

import numpy as np

from kernax import selection
from kernax.model import Conditioned
from kernax.plot._canvas import by_output


class LeftOut(NamedTuple):
    """The rows that count, with what the other rows say of each."""

    rows: np.ndarray
    """Their numbers, `(n,)`."""
    observed: np.ndarray
    """`(n, p)`"""
    expected: np.ndarray
    """`(n, p)`"""
    sd: np.ndarray
    """The standard deviation of `observed - expected` that the model expects, `(n,)`."""

    @property
    def residuals(self) -> np.ndarray:
        return self.observed - self.expected

    @property
    def scores(self) -> np.ndarray:
        """Residuals in standard deviations. Where the model is certain: 0 if it is right, and infinite if not."""
        sd = self.sd[:, None]
        certain = np.where(self.residuals == 0, 0.0, np.copysign(np.inf, self.residuals))
        return np.where(sd > 0, self.residuals / np.where(sd > 0, sd, 1.0), certain)


def left_out(c: Conditioned) -> LeftOut:
    """Leave-one-out predictions of all rows that count, without those that a trend does not determine."""
    residuals = by_output(selection.loo_residuals(c)).astype(np.float64)
    sd = np.sqrt(np.asarray(selection.loo_variance(c, noisy=True), np.float64))
    rows = np.flatnonzero(np.asarray(c.data.mask) & np.isfinite(residuals).all(axis=1) & np.isfinite(sd))
    observed = by_output(c.data.y).astype(np.float64)[rows]
    return LeftOut(rows, observed, observed - residuals[rows], sd[rows])
