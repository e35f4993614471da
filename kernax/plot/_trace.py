"""The path of an optimiser."""

from typing import Any

import numpy as np

from kernax.fitting import Fit
from kernax.plot._canvas import BLUE, GREY, VERMILION, Axes, canvas, check_finished, check_single


def trace(fit: Fit[Any], *, objective: str = "objective", ax: Any = None) -> Axes:
    """Draw the value of the objective at each evaluation of a fit, the best so far, and where each start ended.

    Values far above the rest, where the fit began or a step was too long, may lie outside the picture.

    **Arguments:**

    - `fit`: a `Fit` from [`kernax.fit`][].
    - `objective`: the name of what was minimised, for the label of the axis.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes.
    """
    if not isinstance(fit, Fit):
        raise TypeError(f"trace needs a Fit from kx.fit, got {type(fit).__name__}.")
    check_finished(fit)
    check_single(fit, fit.value)
    history, ends = np.asarray(fit.history, np.float64), np.asarray(fit.start_values, np.float64)
    if not np.isfinite(history).any():
        raise ValueError("this Fit has no history: fits from kx.fit_many keep none, so fit that dataset with kx.fit.")
    ax = canvas(ax)
    steps, finite = np.arange(1, len(history) + 1), np.isfinite(history)
    best = np.fmin.accumulate(history)
    ax.plot(steps[finite], history[finite], ".", color=GREY, markersize=4, label="evaluated")
    ax.plot(steps, best, color=BLUE, linewidth=1.4, label="best so far")
    ends = ends[np.isfinite(ends)] if len(ends) > 1 else ends[:0]
    if len(ends):
        place = np.full(len(ends), 1.03 * len(history))
        ax.plot(place, ends, "x", color=VERMILION, markersize=6, label=f"ends of {len(ends)} starts")
    shown = np.concatenate([best[np.isfinite(best)], ends])
    if len(shown) > 3:
        low, high = shown.min(), max(np.quantile(shown, 0.97), ends.max(initial=-np.inf))
        margin = 0.08 * (high - low or 1.0)
        ax.set_ylim(low - margin, high + margin)
    ax.set(xlabel="evaluation", ylabel=objective)
    ax.legend(loc="upper right", fontsize="small")
    return ax
