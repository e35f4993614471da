"""Leave-one-out residuals against what was expected of them."""

from typing import Any, Literal, get_args

import numpy as np

from kernax import selection
from kernax.plot._canvas import (
    COLOURS,
    GREY,
    MARKERS,
    Axes,
    by_output,
    canvas,
    check_drawable,
    drawn_rows,
    legend_above,
    output_name,
)

Against = Literal["mean", "index"]


def loo_residuals(c: Any, *, against: Against = "mean", ax: Any = None) -> Axes:
    """`y_i - f⁽⁻ⁱ⁾(x_i)` against `f⁽⁻ⁱ⁾(x_i)` (or against i), over bars of ±2 standard deviations of y_i given the others.

    Points outside their bar are ringed and counted: about one in twenty if the model is right. All outputs are drawn; masked
    rows are not, and of more than 4000 rows evenly spread ones are. All are counted.
    """
    c = check_drawable(c)
    if against not in get_args(Against):
        raise ValueError(f"against must be one of {', '.join(get_args(Against))}, got {against!r}.")
    ax = canvas(ax)
    rows = np.flatnonzero(np.asarray(c.data.mask))
    residuals = by_output(selection.loo_residuals(c))[rows]
    means = by_output(selection.loo_mean(c))[rows]
    reach = 2 * np.sqrt(np.asarray(selection.loo_variance(c, noisy=True))[rows])
    outputs, some = residuals.shape[1], drawn_rows(len(rows))
    for j in range(outputs):
        places = means[:, j] if against == "mean" else rows
        bars = {"color": "0.85", "linewidth": 2, "label": "±2 standard deviations" if j == 0 else None}
        ax.vlines(places[some], -reach[some], reach[some], **bars)
    ax.axhline(0.0, color=GREY, linewidth=0.8)
    for j in range(outputs):
        places = means[:, j] if against == "mean" else rows
        outside = np.abs(residuals[:, j]) > reach
        colour, marker = COLOURS[j % len(COLOURS)], MARKERS[j % len(MARKERS)]
        label = f"{outside.sum()} of {len(rows)} outside{output_name(j, outputs)}"
        ax.plot(places[some], residuals[some, j], linestyle="none", marker=marker, markersize=3.5, color=colour, label=label)
        ring = {"markersize": 9, "markerfacecolor": "none", "markeredgecolor": "black"}
        ringed = some[outside[some]]
        ax.plot(places[ringed], residuals[ringed, j], linestyle="none", marker="o", **ring)
    ax.set(
        xlabel=r"leave-one-out mean, $f^{(-i)}(x_i)$" if against == "mean" else "row $i$",
        ylabel=r"leave-one-out residual, $y_i - f^{(-i)}(x_i)$",
    )
    legend_above(ax, 1 + outputs // 2)
    return ax
