"""The L-curve and its corner."""

from typing import Any

import numpy as np

from kernax.plot._canvas import BLUE, VERMILION, Axes, canvas, check_finished, check_single, name_ticks, say
from kernax.selection import LCurve
from kernax.solvers import result_name


def l_curve(curve: LCurve, *, ax: Any = None) -> Axes:
    """Draw `‖f̂‖` against `‖y - f̂_X‖` along the ridges, on logarithmic axes, with the corner and its ridge.

    **Arguments:**

    - `curve`: from `kx.l_curve`. A curve without a corner (`kx.l_curve(c, throw=False)`) is drawn too, and the legend says
      that there is none.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes.
    """
    if not isinstance(curve, LCurve):
        raise TypeError(f"l_curve needs the result of kx.l_curve, got {type(curve).__name__}.")
    check_finished(curve)
    check_single(curve, curve.corner)
    ax = canvas(ax)
    ridges, corner = np.asarray(curve.ridges), float(curve.corner)
    points = np.exp(np.stack([curve.log_residual_norm, curve.log_rkhs_norm]))
    at = np.exp(np.asarray(curve.corner_point))
    # The line goes through the corner, too, which lies between two points of the grid.
    order = np.argsort(np.append(ridges, corner))
    ax.plot(*np.column_stack([points, at])[:, order], color=BLUE, linewidth=1.2)
    ax.plot(*points, color=BLUE, marker=".", markersize=4, linestyle="none")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel=r"norm of the residual, $\Vert y - \hat f_X \Vert$",
        ylabel=r"norm of the function, $\Vert \hat f \,\Vert$",
    )
    for axis, values in ((ax.xaxis, points[0]), (ax.yaxis, points[1])):
        name_ticks(axis, values)

    ax.margins(0.06, 0.1)
    # The curve falls: above its first point and below its last one there is room for a name.
    shown = np.flatnonzero(np.isfinite(points).all(axis=0))
    if len(shown):
        first, last = shown[0], shown[-1]
        _name(ax, points[:, first], ridges[first], (6, 0), "left", "bottom")
        _name(ax, points[:, last], ridges[last], (-6, 2), "right", "top")
    if np.isfinite(corner):
        ax.plot(*at, color=VERMILION, marker="D", markersize=8, linestyle="none", label=f"corner, ridge {corner:.3g}")
    else:
        say(ax, result_name(curve.result).replace("_", " "))
    ax.legend(loc="best")
    return ax


def _name(ax: Axes, point: np.ndarray, ridge: Any, offset: tuple[int, int], side: str, base: str) -> None:
    where = {"xytext": offset, "textcoords": "offset points", "horizontalalignment": side, "verticalalignment": base}
    ax.annotate(f"ridge {ridge:.3g}", (point[0], point[1]), fontsize="small", **where)
