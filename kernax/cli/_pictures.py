"""The pictures of a report, in the units of the table, as PNG."""

import base64
import io
import warnings
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kernax.fitting._fits import NUM_FACTS
from kernax.plot._canvas import BLUE, GREY, VERMILION, drawn_rows
from kernax.posterior import predict
from kernax.reports._scores import offers_left_out
from kernax.selection import loo_mean, loo_residuals, loo_variance
from kernax.tables import Column, ManyTableFits, TableFit

_LEVELS = np.linspace(0.05, 0.95, 19)
_MOST_COLUMNS = 12


class Held(NamedTuple):
    """What is known of each row without it: observed and expected, and the standard deviation of the difference."""

    observed: np.ndarray
    expected: np.ndarray
    sd: np.ndarray

    @property
    def scores(self) -> np.ndarray:
        return (self.observed - self.expected) / np.where(self.sd > 0, self.sd, np.nan)

    @property
    def drawn(self) -> "Held":
        """The rows that are drawn."""
        rows = drawn_rows(len(self.observed))
        return Held(self.observed[rows], self.expected[rows], self.sd[rows])


def left_out(fitted: TableFit, c: Any) -> Held | None:
    """Every row, predicted from all others, in the target's units; `None` if the solver does not offer it."""
    if not offers_left_out(c):
        return None
    target = fitted.target
    expected = np.asarray(loo_mean(c), np.float64)
    sd = np.sqrt(np.asarray(loo_variance(c, noisy=True), np.float64))
    known = np.isfinite(expected) & np.isfinite(sd)
    observed = target.restored(np.asarray(c.data.y, np.float64))
    return Held(observed[known], target.restored(expected)[known], (target.scale * sd)[known])


def pictures(fitted: TableFit, c: Any) -> list[tuple[str, str, str]]:
    """Title, PNG in base64 and caption of each picture."""
    held = left_out(fitted, c)
    drawn = []
    if held is not None:
        drawn += [
            _drawn("Predicted and observed", lambda ax: _observed(ax, fitted, held)),
            _drawn("Residuals", lambda ax: _residuals(ax, fitted, held)),
            _drawn("Calibration", lambda ax: _calibration(ax, held)),
        ]
    residuals = None if held is None else np.asarray(loo_residuals(c), np.float64)
    if len(fitted.fit.history) > 1:
        drawn.append(_drawn("Optimisation", lambda ax: _history(ax, fitted)))
    for i, column in enumerate(fitted.columns[:_MOST_COLUMNS]):
        drawn.append(
            _drawn(f"{fitted.target.name} along {column.name}", lambda ax, i=i: _along(ax, fitted, c, i, residuals))
        )
    return drawn


def pictures_of_many(fitted: ManyTableFits, errors: np.ndarray) -> list[tuple[str, str, str]]:
    """How leave-one-out errors and parameters are spread over the groups."""
    name, table = fitted.target.name, fitted.table()
    spread = {f"Leave-one-out RMSE of {name}": errors} | dict(list(table.items())[NUM_FACTS:][:_MOST_COLUMNS])
    return [_drawn(title, lambda ax, title=title, v=values: _spread(ax, title, v)) for title, values in spread.items()]


def _spread(ax: Axes, title: str, values: np.ndarray) -> str:
    values = np.asarray(values, np.float64)
    known = values[np.isfinite(values)]
    if not len(known):
        return "No fit has a value."
    low, high = known.min(), known.max()
    count = int(np.clip(np.sqrt(len(known)), 8, 40))
    is_wide = low > 0 and high > 20 * low
    ax.hist(known, np.geomspace(low, high, count) if is_wide else count, color=BLUE, alpha=0.8)
    ax.set(xlabel=name_in_picture(title), ylabel="groups", xscale="log" if is_wide else "linear")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    quarters = ", ".join(f"{value:.4g}" for value in np.quantile(known, (0.25, 0.5, 0.75)))
    return f"Quartiles {quarters}; from {low:.4g} to {high:.4g}."


def _drawn(title: str, draw: Callable[[Axes], str]) -> tuple[str, str, str]:
    figure = Figure(figsize=(5.6, 3.7), layout="constrained")
    ax = figure.add_subplot()
    ax.spines[["top", "right"]].set_visible(False)
    with warnings.catch_warnings():
        # Letters that matplotlib's font lacks are drawn as boxes; nobody needs to hear of it.
        warnings.simplefilter("ignore")
        caption = draw(ax)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=130)
    return title, base64.b64encode(file.getvalue()).decode(), caption


def name_in_picture(text: str) -> str:
    """Text from a table as it is: dollar signs would begin a formula."""
    text = text if len(text) <= 40 else f"{text[:39]}…"
    return text.replace("$", r"\$")


def _observed(ax: Axes, fitted: TableFit, held: Held) -> str:
    some = held.drawn
    size, alpha = _dots(len(some.observed))
    low = min(held.observed.min(), held.expected.min())
    high = max(held.observed.max(), held.expected.max())
    ax.axline((low, low), (high, high) if high > low else (low + 1, low + 1), color=GREY, linewidth=0.9, zorder=1)
    ax.errorbar(
        some.expected,
        some.observed,
        xerr=1.96 * some.sd,
        fmt="none",
        ecolor=BLUE,
        elinewidth=0.6,
        alpha=0.35 * alpha,
        zorder=2,
    )
    ax.plot(some.expected, some.observed, ".", color=BLUE, markersize=size, alpha=alpha, zorder=3)
    margin = 0.04 * (high - low or 1.0)
    ax.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
    name = name_in_picture(fitted.target.name)
    ax.set(xlabel=f"{name}, predicted from the other rows", ylabel=f"{name}, observed")
    rmse = float(np.sqrt(np.mean((held.observed - held.expected) ** 2)))
    spread = float(np.var(held.observed))
    share = f", R² {1 - rmse**2 / spread:.3f}" if spread > 0 else ""
    return f"Each row predicted without it, with its 95 % interval. RMSE {rmse:.4g}{share}."


def _residuals(ax: Axes, fitted: TableFit, held: Held) -> str:
    some = held.drawn
    size, alpha = _dots(len(some.observed))
    order = np.argsort(some.expected)
    residual, reach = (some.observed - some.expected)[order], 1.96 * some.sd[order]
    at = some.expected[order]
    outside = np.abs(residual) > reach
    ax.vlines(at, -reach, reach, color="0.87", linewidth=1.5, zorder=1)
    ax.axhline(0.0, color=GREY, linewidth=0.9)
    ax.plot(at[~outside], residual[~outside], ".", color=BLUE, markersize=size, alpha=alpha)
    ax.plot(at[outside], residual[outside], "x", color=VERMILION, markersize=size, markeredgewidth=1.2)
    name = name_in_picture(fitted.target.name)
    ax.set(xlabel=f"{name}, predicted from the other rows", ylabel="observed − predicted")
    n, missed = len(held.observed), np.sum(np.abs(held.observed - held.expected) > 1.96 * held.sd)
    return f"{missed} of {n} rows lie outside their 95 % interval (expected: about {0.05 * n:.0f})."


def _calibration(ax: Axes, held: Held) -> str:
    scores = np.abs(held.scores)
    reach = np.array([NormalDist().inv_cdf((1 + level) / 2) for level in _LEVELS])
    found = np.array([np.mean(scores <= r) for r in reach])
    # Kolmogorov and Smirnov's: the whole curve stays within it in 95 of 100 cases.
    chance = 1.36 / np.sqrt(len(scores))
    along = np.linspace(0, 1, 201)
    ax.fill_between(along, np.maximum(along - chance, 0), np.minimum(along + chance, 1), color="0.9", linewidth=0)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9)
    ax.plot(_LEVELS, found, "o-", color=BLUE, markersize=3.5, linewidth=1.2)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the interval", ylabel="share of rows inside")
    apart = float(np.max(np.abs(found - _LEVELS)))
    if apart <= chance:
        return "Intervals hold as many rows as they say, as far as chance (grey) lets one see."
    word = "too narrow" if np.mean(found - _LEVELS) < 0 else "too wide"
    return f"Intervals are {word}: by up to {100 * apart:.0f} points of probability."


def _history(ax: Axes, fitted: TableFit) -> str:
    history = np.asarray(fitted.fit.history, np.float64)
    best = np.fmin.accumulate(history)
    finite = np.isfinite(history)
    ax.plot(np.flatnonzero(finite), history[finite], ".", color="0.7", markersize=3, label="evaluated")
    ax.plot(best, color=BLUE, linewidth=1.4, label="best so far")
    known = best[np.isfinite(best)]
    if len(known) > 3:
        # Where it began, and wild steps of the line search, would flatten what matters.
        low, high = known.min(), np.quantile(known, 0.97)
        margin = 0.08 * (high - low or 1.0)
        ax.set_ylim(low - margin, high + margin)
    ax.set(xlabel="evaluation", ylabel=f"objective ({fitted.selected_by})")
    ax.legend(loc="upper right", frameon=False)
    return f"{int(fitted.fit.num_steps)} evaluations."


def _along(ax: Axes, fitted: TableFit, c: Any, i: int, residuals: np.ndarray | None) -> str:
    column, target = fitted.columns[i], fitted.target
    x = np.asarray(c.data.x, np.float64)
    drawn = drawn_rows(len(x))
    margin = 0.05 * (column.high - column.low) or 1.0
    places = np.linspace(column.low - margin, column.high + margin, 1500)  # a season over decades has many peaks
    rows = np.repeat(np.median(x, axis=0)[None], len(places), axis=0)
    rows[:, i] = column.standardised(places)
    own_rows = np.repeat(np.median(x, axis=0)[None], len(drawn), axis=0)
    own_rows[:, i] = x[drawn, i]
    mean, variance = predict(c, np.concatenate([rows, own_rows]).astype(c.data.dtype))[:2]
    mean, variance, beside = mean[: len(places)], variance[: len(places)], np.asarray(mean[len(places) :], np.float64)
    sd = target.scale * np.sqrt(np.asarray(variance, np.float64))
    noisy = np.sqrt(sd**2 + target.scale**2 * float(c.model.noise))
    mean = target.restored(np.asarray(mean, np.float64))
    alone = x.shape[1] == 1
    y = None
    if alone:
        y = target.restored(np.asarray(c.data.y, np.float64)[drawn])
    elif residuals is not None:
        # What is left of each row when the other columns' part is taken out.
        y = target.restored(beside + residuals[drawn])
    at, own = _axis(ax, column, places), _axis(ax, column, column.restored(x[drawn, i]))
    ax.fill_between(
        at, mean - 1.96 * noisy, mean + 1.96 * noisy, color=BLUE, alpha=0.13, linewidth=0, label="95 %, new observations"
    )
    ax.fill_between(at, mean - 1.96 * sd, mean + 1.96 * sd, color=BLUE, alpha=0.3, linewidth=0, label="95 %, the function")
    if y is not None:
        size, alpha = _dots(len(y))
        ax.plot(own, y, ".", color="black" if alone else "0.45", markersize=size, alpha=alpha, zorder=1)
    ax.plot(at, mean, color=BLUE, linewidth=1.5)
    ax.set(xlabel=name_in_picture(column.name if column.is_date else column.label), ylabel=name_in_picture(target.name))
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, fontsize="small")
    if alone:
        return "Mean, 95 % intervals and the rows."
    dots = "" if y is None else "; dots are the mean plus each row's residual"
    return f"Mean and 95 % intervals with the other columns at their medians{dots}."


def _axis(ax: Axes, column: Column, values: np.ndarray) -> np.ndarray:
    """Values as matplotlib is to place them: dates on an axis of dates."""
    if not column.is_date:
        return values
    locator = AutoDateLocator(maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    return column.times(values)


def _dots(n: int) -> tuple[float, float]:
    """Size and opacity of so many dots."""
    return (6.0, 0.9) if n <= 100 else (4.5, 0.7) if n <= 1000 else (2.5, 0.4)
