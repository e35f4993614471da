"""Whether intervals hold as many rows as they promise."""

from typing import Any

import numpy as np
from scipy.stats import norm

from kernax.plot._canvas import COLOURS, GREY, MARKERS, Axes, canvas, check_drawable, output_name
from kernax.plot._left_out import left_out

LEVELS = np.linspace(0.05, 0.95, 19)


def calibration(of: Any, *, ax: Any = None) -> Axes:
    """Draw the share of rows inside their leave-one-out interval, against the probability of the interval.

    On the diagonal the intervals are calibrated; below it they are too narrow, above it too wide. The grey band
    holds the whole curve with probability 0.95 if the model is right and rows are independent (Kolmogorov and Smirnov).

    **Arguments:**

    - `of`: a `Conditioned` or a `Fit`.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes.
    """
    held = left_out(check_drawable(of))
    ax, scores = canvas(ax), np.abs(held.scores)
    reach = norm.ppf((1 + LEVELS) / 2)
    chance = 1.36 / np.sqrt(len(scores))
    along = np.linspace(0, 1, 201)
    low, high = np.maximum(along - chance, 0), np.minimum(along + chance, 1)
    ax.fill_between(along, low, high, color=GREY, alpha=0.2, linewidth=0, label="what chance explains")
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9)
    for j in range(scores.shape[1]):
        inside = np.mean(scores[:, j, None] <= reach, axis=0)
        colour, marker = COLOURS[j % len(COLOURS)], MARKERS[j % len(MARKERS)]
        label = f"{_verdict(inside, chance)}{output_name(j, scores.shape[1])}"
        ax.plot(LEVELS, inside, color=colour, marker=marker, markersize=3.5, linewidth=1.2, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the interval", ylabel="share of rows inside")
    ax.legend(loc="best", fontsize="small")
    return ax


def _verdict(inside: np.ndarray, chance: float) -> str:
    apart = inside - LEVELS
    farthest = 100 * np.max(np.abs(apart))
    if farthest <= 100 * chance:
        return "calibrated, up to chance"
    return f"too {'narrow' if np.mean(apart) < 0 else 'wide'}, by up to {farthest:.0f} points"
