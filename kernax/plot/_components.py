"""The summands of a kernel, each with its own posterior."""

from statistics import NormalDist
from typing import Any

import numpy as np

from kernax.plot._canvas import COLOURS, Axes, by_output, check_drawable, legend_above
from kernax.plot._posterior import _check_one_column, _places
from kernax.posterior import components as posterior_components


def components(c: Any, x: Any = None, *, level: float = 0.95, output: int = 0, ax: Any = None) -> list[Axes]:
    """Draw the posterior of each summand of a sum kernel, one panel for each.

    **Arguments:**

    - `c`: a model of one input column, conditioned on data.
    - `x`: where to draw, `(m,)` or `(m, 1)`; 400 places across the data and a little beyond if not given.
    - `level`: the probability that the band contains the component at each place.
    - `output`: which column of y to draw.
    - `ax`: a list of matplotlib axes, one for each summand; a new figure if not given.

    **Returns:**

    The list of axes, from top to bottom.
    """
    c = check_drawable(c)
    _check_one_column(c)
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")
    places = _places(c, x)
    parts = posterior_components(c, places[:, None])
    number = len(parts.names)
    if ax is None:
        import matplotlib.pyplot as plt

        size = (6.4, 1.2 + 1.7 * number)
        ax = list(plt.subplots(number, 1, sharex=True, squeeze=False, figsize=size, layout="constrained")[1][:, 0])
    if len(ax) != number:
        raise ValueError(f"the kernel has {number} summands: give as many axes, or leave out ax=.")
    factor = NormalDist().inv_cdf((1 + level) / 2)
    for j, panel in enumerate(ax):
        middle = by_output(parts.mean[j])[:, output]
        width, colour = factor * np.sqrt(np.asarray(parts.variance[j])), COLOURS[j % len(COLOURS)]
        panel.fill_between(places, middle - width, middle + width, color=colour, alpha=0.22, linewidth=0)
        panel.plot(places, middle, color=colour, linewidth=1.5, label=parts.names[j])
        panel.set(ylabel="y")
        legend_above(panel, 1)
    ax[-1].set(xlabel="x")
    return ax
