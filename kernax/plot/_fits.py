"""Many fits as small pictures, the worst first."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from kernax.data._many import windows
from kernax.fitting import Fits, condition_many, predict_many, score_many
from kernax.plot._canvas import BLUE, GREY, Axes, by_output, check_level, dots, drawn_rows, ink, panels
from kernax.plot._left_out import left_out
from kernax.plot._units import plain, quantity
from kernax.selection import loo_mse
from kernax.solvers import AbstractSolver


def unexplained(c: Any) -> Any:
    """The mean squared leave-one-out residual divided by the variance of the targets: `1 - R²`."""
    counts = c.data.mask[:, None] if c.data.y.ndim > c.data.mask.ndim else c.data.mask
    number = jnp.sum(jnp.broadcast_to(counts, c.data.y.shape))
    targets = jnp.where(counts, c.data.y, 0.0)
    level = jnp.sum(targets, axis=0) / jnp.maximum(jnp.sum(counts, axis=0), 1)
    variance = jnp.sum(jnp.where(counts, (targets - level) ** 2, 0.0)) / jnp.maximum(number, 1)
    return loo_mse(c) / jnp.where(variance > 0, variance, 1.0)


def fits(
    many: Fits,
    datasets: Any,
    *,
    scores: Any = None,
    number: int = 9,
    level: float = 0.95,
    columns: Any = None,
    target: Any = None,
    ax: Any = None,
) -> list[Axes]:
    """Draw the worst of many fits, one small picture each: failed fits first, then those with the largest score.

    With one column of x each picture is the posterior with its band of new observations and the data; with several it is
    the targets against their leave-one-out predictions.

    **Arguments:**

    - `many`: `Fits` from [`kernax.fit_many`][].
    - `datasets`: the datasets that were fitted, as in `kx.fit_many` (no generator).
    - `scores`: one number for each fit, larger is worse; or a function of a `Conditioned`, as in
      [`kernax.fitting.score_many`][]. The share of the targets' variance that leave-one-out predictions do not explain if
      not given; the title then has R².
    - `number`: how many fits are drawn.
    - `level`: the probability of the band.
    - `columns`: the names of the columns of x; with one column a `kx.tables.Column` gives it units.
    - `target`: the same for y.
    - `ax`: a list of matplotlib axes, one for each fit that is drawn; a new figure if not given.

    **Returns:**

    The list of axes, the worst fit first.
    """
    if not isinstance(many, Fits):
        raise TypeError(f"fits needs Fits from kx.fit_many, got {type(many).__name__}.")
    factor = check_level(level)
    if number < 1:
        raise ValueError(f"number, of fits to draw, must be at least 1, got {number}.")
    every = [data for window in windows(datasets) for data in window]
    if len(every) != len(many):
        raise ValueError(f"there are {len(many)} fits and {len(every)} datasets: give the datasets that were fitted.")
    solver = many.settings.solver if isinstance(many.settings.solver, AbstractSolver) else None
    values = _values(many, datasets, scores, solver)
    order = worst_first(many, values)[:number]
    chosen = [every[i].read() for i in order]
    count = len(order)
    across = min(3, count)
    axes = panels(ax, count, f"{count} fits are drawn", (math.ceil(count / across), across), (3.1, 2.5))
    x, y = quantity(None if columns is None else columns[0], "x"), quantity(target, "y")
    widths = {data.x.shape[1] if getattr(data.x, "ndim", 0) == 2 else 0 for data in chosen}
    own = [(data.x, data.y, data.mask) for data in chosen]
    if widths == {1}:
        _draw_posteriors(axes, many[order], own, solver, factor, x, y)
    else:
        _draw_left_out(axes, many[order], own, solver, y)
    for panel, i, value in zip(axes, order, values[order], strict=True):
        score = f"R² {1 - value:.2f}" if scores is None else f"{value:.3g}"
        ended = str(many.result_names[i]).replace("_", " ") if many.failed[i] else ""
        words = [plain(str(many.keys[i])), score if np.isfinite(value) else "", ended]
        panel.set_title(" · ".join(word for word in words if word), fontsize="small")
    return axes


def worst_first(many: Fits, scores: np.ndarray) -> np.ndarray:
    """The numbers of the fits: failed ones, then by their scores, the largest first."""
    failed = many.failed & ~np.isfinite(np.asarray(many.value))
    return np.lexsort((-np.nan_to_num(scores, nan=-np.inf), ~failed))


def _values(many: Fits, datasets: Any, scores: Any, solver: Any) -> np.ndarray:
    if scores is None or callable(scores):
        quantity_of: Any = unexplained if scores is None else scores
        return np.asarray(score_many(many, datasets, quantity_of, solver=solver), np.float64)
    values = np.asarray(scores, np.float64)
    if values.shape != (len(many),):
        raise ValueError(f"scores has shape {values.shape}, and there are {len(many)} fits: give one number for each.")
    return values


def _draw_posteriors(axes: list[Axes], many: Fits, own: list[Any], solver: Any, factor: float, x: Any, y: Any) -> None:
    places = []
    for inputs, _, mask in own:
        known = inputs[mask, 0] if mask.any() else np.zeros(1)
        places.append(np.linspace(known.min(), known.max(), 120).astype(inputs.dtype))
    answers = predict_many(many, own, [line[:, None] for line in places], noisy=True, solver=solver)
    for panel, line, answer, (inputs, targets, mask) in zip(axes, places, answers, own, strict=True):
        at, middle = x.placed(panel.xaxis, line), y.restored(by_output(answer.mean)[:, 0])
        width = factor * y.scale * np.sqrt(np.asarray(answer.variance, np.float64))
        rows = np.flatnonzero(mask)
        rows = rows[drawn_rows(len(rows))] if len(rows) else rows
        panel.fill_between(at, middle - width, middle + width, color=BLUE, alpha=0.2, linewidth=0)
        known = x.placed(panel.xaxis, inputs[rows, 0])
        panel.plot(known, y.restored(by_output(targets)[rows, 0]), **dots(len(rows), ink()))
        panel.plot(at, middle, color=BLUE, linewidth=1.3)
    for panel in axes:
        panel.set(xlabel=x.label, ylabel=y.label)


def _draw_left_out(axes: list[Axes], many: Fits, own: list[Any], solver: Any, y: Any) -> None:
    for panel, c in zip(axes, condition_many(many, own, solver), strict=True):
        if bool(c.ok):
            held = left_out(c)
            expected, observed = y.restored(held.expected[:, 0]), y.restored(held.observed[:, 0])
            middle = float(observed.mean())
            panel.axline((middle, middle), slope=1.0, color=GREY, linewidth=0.9)
            panel.plot(expected, observed, **dots(len(observed), BLUE))
        panel.set(xlabel=f"{y.label}, predicted", ylabel=f"{y.label}, observed")
