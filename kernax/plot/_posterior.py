"""The posterior of a function of one variable: mean, band, samples, data."""

from statistics import NormalDist
from typing import Any

import numpy as np

from kernax.model import Conditioned
from kernax.plot._canvas import (
    COLOURS,
    LINES,
    MARKERS,
    Axes,
    by_output,
    canvas,
    check_drawable,
    drawn_rows,
    ink,
    legend_above,
    output_name,
    some_of,
)
from kernax.posterior import predict, sample
from kernax.rows import arrays_of, take


def posterior(
    c: Any,
    x: Any = None,
    *,
    num_samples: int = 0,
    key: Any = None,
    noisy: bool = False,
    level: float = 0.95,
    ax: Any = None,
) -> Axes:
    """Draw the posterior mean and a band of a model of one input column, with its data and optional samples.

    All outputs are drawn, and masked rows are not. If there are more than 4000 rows, evenly spaced ones are drawn.

    **Arguments:**

    - `c`: a `Conditioned` whose inputs have one column.
    - `x`: where to draw, `(m,)` or `(m, 1)`; by default 400 places across the data and a tenth of its width beyond.
    - `num_samples`: how many functions to draw from the posterior. They do not contain noise.
    - `key`: the random key of the samples; required if there are any.
    - `noisy`: draw the band of a new observation instead of the function.
    - `level`: the probability of the band at each place, between 0 and 1.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes.
    """
    c = check_drawable(c)
    _check_one_column(c)
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")
    if num_samples and key is None:
        raise ValueError("num_samples= draws at random: give a key, such as key=jax.random.key(0).")
    places = _places(c, x)
    mean, variance = predict(c, places[:, None], noisy=noisy)[:2]
    means, width = by_output(mean), NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(np.asarray(variance))
    draws = np.asarray(sample(c, places[:, None], key=key, num_samples=num_samples)) if num_samples else []
    counts = np.flatnonzero(np.asarray(c.data.mask))
    rows = counts[drawn_rows(len(counts))]
    known, targets = np.asarray(take(c.data.x))[rows, 0], by_output(c.data.y)[rows]
    seen = some_of(len(rows), len(counts))
    outputs = means.shape[1]

    ax = canvas(ax)
    band = f"{100 * level:.3g} % band of {'new observations' if noisy else 'the function'}"
    for j in range(outputs):
        # Bands and samples have their mean's colour: the legend names them once.
        name, colour, once = output_name(j, outputs), COLOURS[j % len(COLOURS)], j == 0
        low, high = means[:, j] - width, means[:, j] + width
        ax.fill_between(places, low, high, color=colour, alpha=0.22, linewidth=0, label=band if once else None)
        for i in range(num_samples):
            line = draws[i].reshape(means.shape)[:, j]
            ax.plot(places, line, color=colour, linewidth=0.6, alpha=0.7, label="samples" if once and i == 0 else None)
        ax.plot(places, means[:, j], color=colour, linestyle=LINES[j % len(LINES)], linewidth=1.5, label=f"mean{name}")
        dots = {"marker": MARKERS[j % len(MARKERS)], "markersize": 3.5, "markeredgecolor": ink(), "markeredgewidth": 0.6}
        fill = colour if outputs > 1 else ink()
        ax.plot(known, targets[:, j], linestyle="none", color=fill, label=f"data{name}{seen}", **dots)
    ax.set(xlabel="x", ylabel="y")
    legend_above(ax, 2 if outputs == 1 else 1 + outputs)
    return ax


def _check_one_column(c: Conditioned) -> None:
    leaves = arrays_of(c.data.x)
    if len(leaves) != 1 or leaves[0].ndim != 2 or leaves[0].shape[1] != 1:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(
            f"a posterior is drawn over one input column, and the data's inputs have shape {shapes}: "
            "choose a line through them and draw kx.predict along it."
        )


def _places(c: Conditioned, x: Any) -> np.ndarray:
    """Where to draw, in order: the places given, or 400 across the data and a tenth of its width beyond."""
    known = np.asarray(take(c.data.x))[np.asarray(c.data.mask), 0] if x is None else np.zeros(0)
    return places_across(known, x, c.data.dtype)


def places_across(known: np.ndarray, x: Any, dtype: Any, num: int = 400) -> np.ndarray:
    """Where to draw, in order: the places x, or `num` across known ones and a tenth of their width beyond."""
    if x is None:
        low, high = known.min(), known.max()
        beyond = 0.1 * (high - low) or 1.0
        return np.linspace(low - beyond, high + beyond, num).astype(dtype)
    places = np.asarray(x)
    if places.ndim == 2 and places.shape[1] == 1:
        places = places[:, 0]
    if places.ndim != 1 or not len(places):
        raise ValueError(f"x has shape {np.shape(x)}: give places along one axis, (m,) or (m, 1).")
    return np.sort(places)
