"""How a number is spread over many fits."""

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from kernax.plot._canvas import BLUE, Axes, canvas
from kernax.plot._units import plain

_SAME = 1e-6
"""Numbers that differ by this share of the largest are the same for a picture."""


def spread(values: Any, name: str, *, ax: Any = None) -> Axes:
    """A histogram of finite numbers, on a logarithmic axis if they are positive and span more than a factor of 20."""
    known, ax = np.asarray(values, np.float64), canvas(ax)
    if np.ptp(known) <= _SAME * np.abs(known).max():
        known = np.full_like(known, np.median(known))  # otherwise the axis would show rounding errors
    low, high = known.min(), known.max()
    count = int(np.clip(np.sqrt(len(known)), 8, 40))
    is_wide = low > 0 and high > 20 * low
    ax.hist(known, np.geomspace(low, high, count) if is_wide else count, color=BLUE, alpha=0.8)
    ax.set(xlabel=plain(name), ylabel="fits", xscale="log" if is_wide else "linear")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    return ax
