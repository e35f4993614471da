"""What the rows left out say about a model."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from kernax._programs import compiled
from kernax.model import Conditioned
from kernax.selection import loo_residuals, loo_variance

LEVELS = {0.5: 0.6744897501960817, 0.95: 1.959963984540054}
"""How many standard deviations to each side hold this share of a normal distribution."""


class Scores(NamedTuple):
    """Leave-one-out scores over the rows that count (and all outputs)."""

    rows: np.ndarray
    """The row that each residual belongs to."""
    standardised: np.ndarray
    """Each residual in standard deviations of its prediction."""
    rmse: float
    explained: float
    """`1 - mean squared residual / variance of the targets`; NaN if they do not vary."""
    log_density: float
    """The mean of `log p(y_i | the others)`."""
    coverage: dict[float, float]
    """For each level, the share of rows inside their leave-one-out interval."""


def scores(c: Conditioned) -> Scores | None:
    """The scores, from the one factorisation; `None` if they are not defined, or if the solver does not offer them."""
    left_out = None if c.data.gaps is not None else _left_out(c)
    if left_out is None:
        return None
    residuals, variance = (np.asarray(values, float) for values in left_out)
    counts = np.asarray(c.data.mask) & np.isfinite(residuals.reshape(len(residuals), -1)).all(axis=1)
    rows = np.flatnonzero(counts)
    if len(rows) < 3:
        return None
    variance = variance[rows]
    residuals, targets = residuals[rows].reshape(len(rows), -1), np.asarray(c.data.y, float)[rows].reshape(len(rows), -1)
    # With noise 0 an observation can be certain; it is then either met exactly or missed by far.
    standardised = residuals / np.sqrt(np.maximum(variance, np.finfo(float).tiny))[:, None]
    mse, spread = np.mean(residuals**2), np.mean(np.var(targets, axis=0))
    log_density = -0.5 * np.mean(standardised**2 + np.log(2 * np.pi * np.maximum(variance, np.finfo(float).tiny))[:, None])
    return Scores(
        rows=np.repeat(rows, residuals.shape[1]),
        standardised=standardised.ravel(),
        rmse=float(np.sqrt(mse)),
        explained=float(1 - mse / spread) if spread > 0 else float("nan"),
        log_density=float(log_density),
        coverage={level: float(np.mean(np.abs(standardised) <= width)) for level, width in LEVELS.items()},
    )


@compiled
def _left_out(c: Conditioned) -> tuple[Float[Array, "n *p"], Float[Array, " n"]] | None:
    """Residuals and variances by one program, which computes the diagonal of the inverse once for both."""
    if c.system.inverse_diagonal() is None:
        return None
    return loo_residuals(c), loo_variance(c, noisy=True)
