"""How the target depends on one column."""

from typing import Any, Literal, get_args

import numpy as np

from kernax.model import Conditioned
from kernax.noises import is_per_row, noise_at
from kernax.plot._canvas import (
    BLUE,
    Axes,
    by_output,
    canvas,
    check_drawable,
    check_level,
    dots,
    drawn_rows,
    ink,
    legend_above,
    some_of,
)
from kernax.plot._left_out import left_out
from kernax.plot._posterior import places_across
from kernax.plot._units import Inputs, quantity
from kernax.posterior import covariance, mean, predict
from kernax.selection._leave_one_out import offers_left_out

Others = Literal["median", "average"]
_ALONG_ONE, _ALONG_SEVERAL, _AVERAGES = 1500, 300, 60
"""A season over decades has many peaks; an average costs a covariance matrix at each place."""
_MOST_AVERAGED = 100


def partial_dependence(
    of: Any,
    column: int | str = 0,
    x: Any = None,
    *,
    others: Others = "median",
    level: float = 0.95,
    output: int = 0,
    columns: Any = None,
    target: Any = None,
    ax: Any = None,
) -> Axes:
    """Draw how the prediction depends on one column of x, with its bands and the rows.

    The dark band is that of the function, the light one that of a new observation. The dots are the curve at each row plus
    the leave-one-out residual of that row, that is, the target without the effect of the other columns. With a single
    column they are the targets.

    **Arguments:**

    - `of`: a `Conditioned` or a `Fit` whose rows are numbers: `(n, d)`, or a dict of such arrays. Integers are categories.
    - `column`: the column along which to draw, by its number or its name.
    - `x`: values of that column, `(m,)`, in the numbers of the model; evenly spread over the data if not given.
    - `others`: `"median"` holds the other columns at their medians (categories at the most frequent one); `"average"`
      averages the function over the rows (at most 100 of them, evenly spread), and the dark band is that of the average.
    - `level`: the probability of the bands at each place.
    - `output`: which column of y to draw.
    - `columns`: the names of the columns. With a `kx.tables.Column` for each, the picture has their units.
    - `target`: the same for y.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes.
    """
    c, factor, y = check_drawable(of), check_level(level), quantity(target, "y")
    inputs = Inputs(c, columns)
    i = inputs.number(column)
    if others not in get_args(Others):
        raise ValueError(f"others must be one of {', '.join(get_args(Others))}, got {others!r}.")
    own_column, some = inputs.quantities[i], drawn_rows(len(inputs.rows))
    own = inputs.values[some, i]
    if own_column.levels is not None:
        places = np.arange(len(own_column.levels), dtype=np.float64)
    else:
        number = _AVERAGES if others == "average" else _ALONG_ONE if len(inputs.quantities) == 1 else _ALONG_SEVERAL
        places = places_across(inputs.values[:, i], x, c.data.dtype, number).astype(np.float64)
        if others == "median" and x is None:
            places = np.unique(np.concatenate([places, own]))  # the dots then sit on the curve exactly
    along = _at_medians if others == "median" else _averaged
    middle, sd, noise = along(c, inputs, i, places, output)
    middle, sd, noise = y.restored(middle), y.scale * sd, None if noise is None else y.scale**2 * noise

    ax = canvas(ax)
    at, alone = own_column.placed(ax.xaxis, places), len(inputs.quantities) == 1
    bands = {} if noise is None else {"new observations": np.sqrt(sd**2 + noise)}
    bands |= {"the function" if others == "median" else "the average": sd}
    for (name, width), alpha in zip(bands.items(), (0.14, 0.3)[-len(bands) :], strict=True):
        low, high, label = middle - factor * width, middle + factor * width, f"{100 * level:.3g} %, {name}"
        if own_column.levels is None:
            ax.fill_between(at, low, high, color=BLUE, alpha=alpha, linewidth=0, label=label)
        else:
            ax.vlines(at, low, high, color=BLUE, alpha=alpha, linewidth=12, label=label)
    values = _dots(c, inputs, some, np.interp(own, places, middle), y, output)
    if values is not None:
        # Dots of a category are spread, so that they can be seen.
        aside = 0.0 if own_column.levels is None else np.random.default_rng(0).uniform(-0.1, 0.1, len(own))
        style = dots(len(some), ink(), "o") | {"zorder": 1, "alpha": 0.6}
        label = f"{'data' if alone else 'curve + residual'}{some_of(len(some), len(inputs.rows))}"
        ax.plot(own_column.placed(ax.xaxis, own + aside), values, label=label, **style)
    label = "mean" if alone else f"mean, others {'usual' if others == 'median' else 'averaged'}"
    style = {"linewidth": 1.5} if own_column.levels is None else {"linestyle": "none", "marker": "_", "markersize": 14}
    ax.plot(at, middle, color=BLUE, label=label, **style)
    ax.set(xlabel=own_column.label, ylabel=y.label)
    legend_above(ax, 2)
    return ax


def _at_medians(c: Conditioned, inputs: Inputs, i: int, places: np.ndarray, output: int) -> tuple[Any, Any, Any]:
    """Mean, standard deviation and noise variance along column i, with the other columns at their usual values."""
    points = np.repeat(inputs.usual()[None], len(places), axis=0)
    points[:, i] = places
    rows = inputs.of(points)
    middle, variance = predict(c, rows)[:2]
    noise = None if is_per_row(c.model.noise) else np.asarray(noise_at(c.model.noise, rows, c.data.dtype), np.float64)
    return by_output(middle)[:, output], np.sqrt(np.asarray(variance, np.float64)), noise


def _averaged(c: Conditioned, inputs: Inputs, i: int, places: np.ndarray, output: int) -> tuple[Any, Any, None]:
    """Mean and standard deviation of the function's average over rows, with column i replaced by each place."""
    number = len(inputs.rows)
    some = inputs.values[np.unique(np.linspace(0, number - 1, min(number, _MOST_AVERAGED)).astype(int))]
    middle, sd = np.empty(len(places)), np.empty(len(places))
    for k, place in enumerate(places):
        points = some.copy()
        points[:, i] = place
        rows = inputs.of(points)
        middle[k] = np.mean(by_output(mean(c, rows))[:, output])
        sd[k] = np.sqrt(max(float(np.mean(np.asarray(covariance(c, rows), np.float64))), 0.0))
    return middle, sd, None


def _dots(c: Conditioned, inputs: Inputs, some: np.ndarray, curve: np.ndarray, y: Any, output: int) -> np.ndarray | None:
    """The targets, or the curve plus the residual of each row; `None` if the solver does not offer leave-one-out."""
    drawn = inputs.rows[some]
    if len(inputs.quantities) == 1:
        return y.restored(by_output(c.data.y)[drawn, output])
    if not offers_left_out(c):
        return None
    held = left_out(c)
    residuals = np.full(c.data.n, np.nan)
    residuals[held.rows] = y.scale * held.residuals[:, output]
    return curve + residuals[drawn]
