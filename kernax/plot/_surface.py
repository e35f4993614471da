"""The posterior over two columns, as a map."""

from typing import Any, Literal, get_args

import numpy as np
from matplotlib.ticker import MaxNLocator

from kernax.plot._canvas import Axes, by_output, canvas, check_drawable, drawn_rows
from kernax.plot._units import Inputs, quantity
from kernax.posterior import predict

Shown = Literal["mean", "sd"]


def surface(
    of: Any,
    first: int | str = 0,
    second: int | str = 1,
    *,
    show: Shown = "mean",
    num: int = 50,
    output: int = 0,
    columns: Any = None,
    target: Any = None,
    ax: Any = None,
) -> Axes:
    """Draw the posterior over two columns of x as a map, with the rows.

    With `show="mean"` the dots have the colour of their target, so that a dot that stands out is far from the mean. Other
    columns are held at their medians.

    **Arguments:**

    - `of`: a `Conditioned` or a `Fit` with inputs of shape `(n, d)`, d at least 2.
    - `first`, `second`: the columns along the two axes, by their numbers or names.
    - `show`: the posterior mean, or its standard deviation (`"sd"`).
    - `num`: places along each axis.
    - `output`: which column of y to draw.
    - `columns`: the names of the columns. With a `kx.tables.Column` for each, the picture has their units.
    - `target`: the same for y.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes.
    """
    c, y = check_drawable(of), quantity(target, "y")
    inputs = Inputs(c, columns)
    names = inputs.quantities
    if len(names) < 2:
        raise ValueError("a surface needs two columns, and the data has one: use kx.plot.posterior.")
    i, j = inputs.number(first), inputs.number(second)
    if i == j:
        raise ValueError(f"a surface needs two different columns, got {first!r} twice.")
    if show not in get_args(Shown):
        raise ValueError(f"show must be one of {', '.join(get_args(Shown))}, got {show!r}.")
    if num < 2:
        raise ValueError(f"num, of places along each axis, must be at least 2, got {num}.")
    if names[i].levels is not None or names[j].levels is not None:
        raise ValueError("a surface is drawn over numbers, and one of the two columns holds categories.")
    rows, known = inputs.rows, inputs.values
    lines = [_across(known[:, k], num) for k in (i, j)]
    points = np.repeat(inputs.usual()[None], num * num, axis=0)
    points[:, i], points[:, j] = (grid.ravel() for grid in np.meshgrid(*lines))
    middle, variance = predict(c, inputs.of(points))[:2]
    values = y.restored(by_output(middle)[:, output]) if show == "mean" else y.scale * np.sqrt(np.asarray(variance, float))
    values = values.reshape(num, num)

    ax = canvas(ax)
    at = [names[k].placed(axis, line) for k, axis, line in zip((i, j), (ax.xaxis, ax.yaxis), lines, strict=True)]
    some = drawn_rows(len(rows))
    dots = [names[k].placed(axis, known[some, k]) for k, axis in zip((i, j), (ax.xaxis, ax.yaxis), strict=True)]
    targets = y.restored(by_output(c.data.y)[rows[some], output])
    shown = np.concatenate([values.ravel(), targets]) if show == "mean" else values
    low, high = float(shown.min()), float(shown.max())
    levels = MaxNLocator(14).tick_values(low, high if high > low else low + 1.0)
    # Dark to bright in equal steps, for every eye and in print.
    filled = ax.contourf(*at, values, levels=levels, cmap="viridis")
    style: dict[str, Any] = {"s": 22, "edgecolors": "white", "linewidths": 0.8}
    if show == "mean":
        ax.scatter(*dots, c=targets, cmap="viridis", vmin=levels[0], vmax=levels[-1], **style)
    else:
        ax.scatter(*dots, c="black", **style)
    figure: Any = ax.figure
    label = y.label if show == "mean" else f"standard deviation of {y.label}"
    figure.colorbar(filled, ax=ax, label=label)
    ax.set(xlabel=names[i].label, ylabel=names[j].label)
    return ax


def _across(known: np.ndarray, num: int) -> np.ndarray:
    beyond = 0.05 * np.ptp(known) or 1.0
    return np.linspace(known.min() - beyond, known.max() + beyond, num)
