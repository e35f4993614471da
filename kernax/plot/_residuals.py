"""Pictures of leave-one-out residuals."""

from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from scipy.stats import beta, norm

from kernax.model import Conditioned
from kernax.plot._canvas import (
    BLUE,
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    VERMILION,
    Axes,
    canvas,
    check_drawable,
    dots,
    drawn_rows,
    legend_above,
    output_name,
    some_of,
)
from kernax.plot._left_out import LeftOut, left_out
from kernax.plot._units import quantity
from kernax.rows import arrays_of, take

Against = Literal["mean", "index", "normal", "lag"]
_MOST_PROBES = 200
"""Rows from which the expected autocorrelation is averaged."""


def residuals(of: Any, *, against: Against = "mean", lags: int | None = None, target: Any = None, ax: Any = None) -> Axes:
    """Draw leave-one-out residuals, `y_i - f⁽⁻ⁱ⁾(x_i)`: against predictions or rows, as a QQ plot, or their autocorrelation.

    With `"mean"` and `"index"` the bars are ±2 standard deviations of y_i given the other rows. Points outside their bar are
    ringed and counted: about one in twenty if the model is right.

    With `"normal"` (a QQ plot) the residuals, each in its own standard deviations, are sorted and drawn against the
    quantiles of a normal distribution. The band contains each point with probability 0.95 if the rows are independent.

    With `"lag"` the stems are the autocorrelation of the residuals in their own standard deviations, at rows that are so
    many places apart (in the order of x if it is one column, else in the order of the rows). Leave-one-out residuals are
    correlated even if the model is right: the line shows the correlation that the model expects, and its band contains each
    stem with probability 0.95 (Bartlett's formula). Stems outside of the band show structure that the model misses.

    **Arguments:**

    - `of`: a `Conditioned` or a `Fit`, with a solver that offers leave-one-out (all but `CG`).
    - `against`: `"mean"`, the leave-one-out prediction; `"index"`, the row; `"normal"`; or `"lag"`.
    - `lags`: the largest lag; a quarter of the rows and at most 40 if not given.
    - `target`: the name of y. With a `kx.tables.Column` the picture has its units.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes. All outputs are drawn. If there are more than 4000 rows, evenly spaced ones are drawn, and all are counted.
    """
    c = check_drawable(of)
    if against not in get_args(Against):
        raise ValueError(f"against must be one of {', '.join(get_args(Against))}, got {against!r}.")
    if lags is not None and (against != "lag" or lags < 1):
        raise ValueError('lags is for against="lag" only, and must be at least 1.')
    held, y = left_out(c), quantity(target, "y")
    if against == "lag" and len(held.rows) < 4:
        raise ValueError(f"an autocorrelation needs at least 4 rows, and there are {len(held.rows)}.")
    ax = canvas(ax)
    if against == "normal":
        _draw_normal(ax, held)
    elif against == "lag":
        _draw_lag(ax, c, held, lags)
    else:
        _draw_bars(ax, held, against == "mean", y)
    return ax


def _draw_bars(ax: Axes, held: LeftOut, is_mean: bool, y: Any) -> None:
    values, means, reach = y.scale * held.residuals, y.restored(held.expected), 2 * y.scale * held.sd
    n, outputs = values.shape
    some = drawn_rows(n)
    for j in range(outputs):
        places = means[:, j] if is_mean else held.rows
        label = f"±2 standard deviations{some_of(len(some), n)}" if j == 0 else ""
        ax.vlines(places[some], -reach[some], reach[some], color=GREY, alpha=0.3, linewidth=2, label=label)
    ax.axhline(0.0, color=GREY, linewidth=0.8)
    for j in range(outputs):
        places = means[:, j] if is_mean else held.rows
        outside = np.abs(values[:, j]) > reach
        colour, marker = COLOURS[j % len(COLOURS)], MARKERS[j % len(MARKERS)]
        label = f"{outside.sum()} of {n} outside{output_name(j, outputs)}"
        ax.plot(places[some], values[some, j], label=label, **dots(len(some), colour, marker))
        ring = {"markersize": 9, "markerfacecolor": "none", "markeredgecolor": VERMILION, "markeredgewidth": 1.2}
        ringed = some[outside[some]]
        ax.plot(places[ringed], values[ringed, j], linestyle="none", marker="o", **ring)
    ax.set(
        xlabel=f"{y.label}, predicted from the other rows" if is_mean else "row",
        ylabel=f"{y.label}, observed − predicted",
    )
    legend_above(ax, 1 + outputs // 2)


def _draw_normal(ax: Axes, held: LeftOut) -> None:
    n, outputs = held.scores.shape
    order, some = np.arange(1, n + 1), drawn_rows(n)
    quantiles = norm.ppf((order - 0.5) / n)
    # The i-th smallest of n uniform numbers has a beta distribution.
    low, high = (norm.ppf(beta.ppf(end, order, n + 1 - order)) for end in (0.025, 0.975))
    ax.fill_between(quantiles, low, high, color=GREY, alpha=0.2, linewidth=0, label="what chance explains")
    ax.axline((0.0, 0.0), slope=1.0, color=GREY, linewidth=0.9)
    for j in range(outputs):
        values = np.sort(held.scores[:, j])
        name = f"rows{output_name(j, outputs)}{some_of(len(some), n)}"
        style = dots(len(some), COLOURS[j % len(COLOURS)], MARKERS[j % len(MARKERS)])
        ax.plot(quantiles[some], values[some], label=name, **style)
    ax.set(xlabel="quantile of a normal distribution", ylabel="leave-one-out residual [standard deviations]")
    ax.legend(loc="upper left", fontsize="small")


def _draw_lag(ax: Axes, c: Conditioned, held: LeftOut, lags: int | None) -> None:
    n, outputs = held.scores.shape
    largest = min(max(n // 4, 1), 40) if lags is None else min(lags, n - 1)
    order = _in_order(c, held)
    expected = _expected_correlations(c, held, order, min(4 * largest, n - 1))
    half = 1.96 * _standard_errors(expected, largest, n)
    at, middle = np.arange(1, largest + 1), expected[1 : largest + 1]
    scores = held.scores[order]
    scores = np.where(np.isfinite(scores), scores, 0.0)
    ax.fill_between(at, middle - half, middle + half, color=GREY, alpha=0.2, linewidth=0, label="what chance explains")
    ax.plot(at, middle, color=GREY, linewidth=1.2, linestyle=LINES[1], label="what the model expects")
    ax.axhline(0.0, color=GREY, linewidth=0.8)
    for j in range(outputs):
        z, colour = scores[:, j], COLOURS[j % len(COLOURS)] if outputs > 1 else BLUE
        square = np.sum(z**2)
        found = np.array([np.sum(z[h:] * z[:-h]) for h in at]) / (square if square > 0 else 1.0)
        places = at + 0.15 * (j - (outputs - 1) / 2)
        ax.vlines(places, 0.0, found, color=colour, linewidth=1.2)
        style = {"linestyle": "none", "marker": MARKERS[j % len(MARKERS)], "markersize": 4, "color": colour}
        ax.plot(places, found, label=f"residuals{output_name(j, outputs)}", **style)
    ax.set(xlabel="lag [rows]", ylabel="autocorrelation of the residuals")
    legend_above(ax, 2 + outputs // 2)


def _in_order(c: Conditioned, held: LeftOut) -> np.ndarray:
    """The rows that count by increasing x, if that is one column; else as they stand."""
    leaves = arrays_of(c.data.x)
    if len(leaves) == 1 and leaves[0].ndim == 2 and leaves[0].shape[1] == 1:
        return np.argsort(np.asarray(take(c.data.x))[held.rows, 0], kind="stable")
    return np.arange(len(held.rows))


def _expected_correlations(c: Conditioned, held: LeftOut, order: np.ndarray, most: int) -> np.ndarray:
    """The mean correlation of residuals at each lag that the model expects: residuals have covariance `D⁻¹ A⁻¹ D⁻¹`.

    `A⁻¹` is the inverse of the kernel matrix with noise, and D its diagonal. Some of its columns are enough for a mean.
    """
    n = len(order)
    places = np.unique(np.linspace(0, n - 1, min(n, _MOST_PROBES)).astype(int))
    columns = np.zeros((c.data.n, len(places)))
    columns[held.rows[order[places]], np.arange(len(places))] = 1.0
    inverse = np.asarray(c.system.solve(jnp.asarray(columns, c.data.dtype)).value, np.float64)[held.rows[order]]
    sd = held.sd[order]
    correlations = inverse * sd[:, None] * sd[places]
    expected = np.ones(most + 1)
    for lag in range(1, most + 1):
        pairs = [correlations[places + step, np.arange(len(places))][inside] for step, inside in _neighbours(places, lag, n)]
        expected[lag] = np.mean(np.concatenate(pairs)) if any(len(pair) for pair in pairs) else 0.0
    return expected


def _neighbours(places: np.ndarray, lag: int, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each direction: the step to the neighbour at that lag, 0 where there is none, and where there is one."""
    found = []
    for step in (lag, -lag):
        inside = (places + step >= 0) & (places + step < n)
        found.append((np.where(inside, step, 0), inside))
    return found


def _standard_errors(expected: np.ndarray, lags: int, n: int) -> np.ndarray:
    """Of the autocorrelation of n numbers with these correlations, at lags 1, 2, …, by Bartlett's formula."""
    padded = np.concatenate([expected, np.zeros(2 * len(expected))])
    k = np.arange(1, len(expected) + lags)
    errors = []
    for h in range(1, lags + 1):
        terms = padded[k + h] + padded[np.abs(k - h)] - 2 * padded[h] * padded[k]
        errors.append(np.sqrt(np.sum(terms**2) / n))
    return np.array(errors)
