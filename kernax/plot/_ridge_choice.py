"""The curve behind the choice of a ridge, and all selectors' curves side by side."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import SymmetricalLogLocator

from kernax.plot._canvas import BLUE, GREY, VERMILION, Axes, canvas, check_finished, check_single, name_ticks, say
from kernax.selection import RidgeChoice
from kernax.solvers import result_name

_CRITERIA = {
    "loo": "leave-one-out mean squared error",
    "gcv": "generalised cross-validation",
    "kfold": "k-fold mean squared error",
    "likelihood": "negative log marginal likelihood",
    "l_curve": "curvature of the L-curve",
    "discrepancy": "mean squared residual",
}


def ridge_choice(choice: RidgeChoice, *, ax: Any = None) -> Axes:
    """Draw the criterion of `kx.select_ridge` along the ridges, with the chosen ridge.

    For the discrepancy principle the noise variance is drawn too. If 0 is among the ridges, the axis is linear at its left
    end.

    **Arguments:**

    - `choice`: from `kx.select_ridge`. A choice that failed (`throw=False`) is drawn without a mark, and the legend shows
      its status.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes.
    """
    if not isinstance(choice, RidgeChoice):
        raise TypeError(f"ridge_choice needs the result of kx.select_ridge, got {type(choice).__name__}.")
    check_finished(choice)
    check_single(choice, choice.ridge)
    ax = canvas(ax)
    ridges, values = np.asarray(choice.ridges), np.asarray(choice.values)
    ridge, value = float(choice.ridge), float(choice.value)
    ax.plot(ridges, values, color=BLUE, marker=".", markersize=4, linewidth=1.2)
    ax.set(xlabel="ridge", ylabel=_CRITERIA[choice.by])
    _scale(ax, choice.by, ridges, values)
    status = result_name(choice.result)
    if choice.target is not None:
        target = float(choice.target)
        ax.axhline(target, color=GREY, linestyle="--", linewidth=1, label=f"the noise's variance, {target:.3g}")
    if np.isfinite(ridge) and np.isfinite(value):
        if choice.target is None:
            ax.axvline(ridge, color=GREY, linestyle=":", linewidth=1)
        note = "" if status == "successful" else f" ({status.replace('_', ' ')})"
        ax.plot(ridge, value, color=VERMILION, marker="D", markersize=7, linestyle="none", label=f"ridge {ridge:.3g}{note}")
        _show_the_minimum(ax, choice.by, ridges, values, ridge, value)
    else:
        say(ax, status.replace("_", " "))
    ax.legend(loc="best")
    return ax


def ridge_choices(table: Mapping[str, RidgeChoice], *, axes: Any = None) -> np.ndarray:
    """Draw every choice in the table of `kx.compare_selectors` with `ridge_choice`, one picture for each.

    **Arguments:**

    - `table`: from `kx.compare_selectors`.
    - `axes`: matplotlib axes, at least as many as there are selectors, as `plt.subplots` returns them; a new figure if not
      given.

    **Returns:**

    An array of the axes, in the order of the table.
    """
    if not isinstance(table, Mapping) or not table:
        raise TypeError(f"ridge_choices needs the table of kx.compare_selectors, got {type(table).__name__}.")
    if axes is None:
        import matplotlib.pyplot as plt

        columns = min(3, len(table))
        rows = -(-len(table) // columns)
        size = (4.2 * columns, 3.2 * rows)
        axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)[1]
        for spare in axes.ravel()[len(table) :]:
            spare.remove()
    axes = np.ravel(np.asarray(axes, dtype=object))[: len(table)]
    if len(axes) < len(table):
        raise ValueError(f"the table has {len(table)} selectors, and only {len(axes)} Axes were given.")
    for (name, choice), ax in zip(table.items(), axes, strict=True):
        ridge_choice(choice, ax=ax).set_title(name)
    return axes


def _scale(ax: Axes, by: str, ridges: np.ndarray, values: np.ndarray) -> None:
    """Logarithmic in the ridge, linear below the least one if 0 is among them; logarithmic in errors that span a decade."""
    positive = ridges[ridges > 0]
    if len(positive) == len(ridges):
        ax.set_xscale("log")
    elif len(positive):
        ax.set_xscale("symlog", linthresh=positive.min())
        ticks = SymmetricalLogLocator(linthresh=positive.min(), base=10)
        ticks.set_params(numticks=6)
        ax.xaxis.set_major_locator(ticks)
    shown = values[np.isfinite(values) & (values > 0)]
    if by not in ("likelihood", "l_curve") and len(shown) and shown.max() > 10 * shown.min():
        ax.set_yscale("log")
        name_ticks(ax.yaxis, shown)


def _show_the_minimum(ax: Axes, by: str, ridges: np.ndarray, values: np.ndarray, ridge: float, value: float) -> None:
    """Towards ridge 0 the likelihood may fall without end, which would flatten everything else: let it leave the picture."""
    near = values[(ridges >= ridge / 10) & (ridges <= ridge * 10) & np.isfinite(values)]
    if by != "likelihood" or not len(near):
        return
    rise = 3 * (near.max() - value)
    if 0 < rise < np.nanmax(values) - value:
        ax.set_ylim(value - 0.1 * rise, value + rise)
