"""Observed targets against their predictions from the other rows."""

from typing import Any

import numpy as np

from kernax.plot._canvas import (
    COLOURS,
    GREY,
    MARKERS,
    Axes,
    canvas,
    check_drawable,
    check_level,
    dots,
    drawn_rows,
    legend_above,
    output_name,
    some_of,
)
from kernax.plot._left_out import left_out
from kernax.plot._units import quantity


def predicted_observed(of: Any, *, level: float = 0.95, target: Any = None, ax: Any = None) -> Axes:
    """Draw each observed target against its leave-one-out prediction, with the interval of the prediction.

    Points on the diagonal are predicted exactly. The legend has the root mean squared error and R², over all rows. All
    outputs are drawn; if there are more than 4000 rows, evenly spaced ones are drawn.

    **Arguments:**

    - `of`: a `Conditioned` or a `Fit`.
    - `level`: the probability of each interval.
    - `target`: the name of y. With a `kx.tables.Column` the picture has its units.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes.
    """
    c, factor, y = check_drawable(of), check_level(level), quantity(target, "y")
    held, ax = left_out(c), canvas(ax)
    observed, expected, reach = y.restored(held.observed), y.restored(held.expected), factor * y.scale * held.sd
    some, outputs = drawn_rows(len(held.rows)), observed.shape[1]
    low, high = min(observed.min(), expected.min()), max(observed.max(), expected.max())
    ax.axline((low, low), (high, high) if high > low else (low + 1, low + 1), color=GREY, linewidth=0.9, zorder=1)
    for j in range(outputs):
        colour, name = COLOURS[j % len(COLOURS)], output_name(j, outputs)
        band = f"{100 * level:.3g} % intervals{some_of(len(some), len(observed))}" if j == 0 else None
        at, values = expected[some, j], observed[some, j]
        ax.hlines(values, at - reach[some], at + reach[some], color=colour, alpha=0.25, linewidth=0.8, label=band)
        rmse, spread = np.sqrt(np.mean((observed[:, j] - expected[:, j]) ** 2)), np.var(observed[:, j])
        share = f", R² {1 - rmse**2 / spread:.3f}" if spread > 0 else ""
        style = dots(len(some), colour, MARKERS[j % len(MARKERS)])
        ax.plot(at, values, label=f"RMSE {rmse:.3g}{share}{name}", **style)
    margin = 0.04 * (high - low or 1.0)
    ax.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
    ax.set(xlabel=f"{y.label}, predicted from the other rows", ylabel=f"{y.label}, observed")
    legend_above(ax, 1 + outputs // 2)
    return ax
