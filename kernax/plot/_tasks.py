"""The posterior of several outputs, one panel for each task."""

from statistics import NormalDist
from typing import Any

import jax
import numpy as np

from kernax.plot._canvas import COLOURS, Axes, check_drawable, drawn_rows, ink, legend_above, some_of
from kernax.plot._posterior import places_across
from kernax.posterior import predict_tasks
from kernax.posterior._tasks import tasks_of
from kernax.rows import take


def tasks(
    c: Any,
    x: Any = None,
    *,
    noisy: bool = False,
    level: float = 0.95,
    names: Any = None,
    ax: Any = None,
) -> list[Axes]:
    """Draw the posterior of each task with its own data, one panel for each.

    **Arguments:**

    - `c`: a model with a [`kernax.kernels.Coregion`][], conditioned on long rows with one input column.
    - `x`: where to draw, `(m,)` or `(m, 1)`; 400 places across the data of all tasks and a little beyond if not given.
    - `noisy`: whether the band is that of new observations instead of the function.
    - `level`: the probability of the band at each place.
    - `names`: what to call the tasks; "task 0", "task 1", … if not given.
    - `ax`: a list of matplotlib axes, one for each task; a new figure if not given.

    **Returns:**

    The list of axes, from top to bottom.
    """
    c = check_drawable(c)
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")
    labels, inputs, targets = _seen(c)
    places = places_across(inputs, x, c.data.dtype)
    mean, variance = (np.asarray(part) for part in predict_tasks(c, places[:, None], noisy=noisy)[:2])
    number = mean.shape[1]
    names = [f"task {j}" for j in range(number)] if names is None else list(names)
    if len(names) != number:
        raise ValueError(f"the model has {number} tasks: give as many names.")
    if ax is None:
        import matplotlib.pyplot as plt

        size = (6.4, 1.2 + 1.9 * number)
        ax = list(plt.subplots(number, 1, sharex=True, squeeze=False, figsize=size, layout="constrained")[1][:, 0])
    if len(ax) != number:
        raise ValueError(f"the model has {number} tasks: give as many axes, or leave out ax=.")
    factor = NormalDist().inv_cdf((1 + level) / 2)
    band = f"{100 * level:.3g} % band of {'new observations' if noisy else 'the function'}"
    for j, panel in enumerate(ax):
        middle, width, colour = mean[:, j], factor * np.sqrt(variance[:, j]), COLOURS[j % len(COLOURS)]
        own = np.flatnonzero(labels == j)
        rows = own[drawn_rows(len(own))]
        panel.fill_between(places, middle - width, middle + width, color=colour, alpha=0.22, linewidth=0, label=band)
        panel.plot(places, middle, color=colour, linewidth=1.5, label="mean")
        dots = {"marker": "o", "markersize": 3.5, "markeredgecolor": ink(), "markeredgewidth": 0.6}
        seen = f"data{some_of(len(rows), len(own))}"
        panel.plot(inputs[rows], targets[rows], linestyle="none", color=colour, label=seen, **dots)
        panel.set(ylabel=names[j])
    legend_above(ax[0], 5)  # in a low panel two rows take more of its height
    ax[-1].set(xlabel="x")
    return ax


def _seen(c: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tasks, the only input and the targets of all rows that count."""
    coregion, parts = tasks_of(c)
    counts, rows = np.asarray(c.data.mask), take(c.data.x)
    leaves = jax.tree.leaves({name: rows[name] for name in parts})
    if len(leaves) != 1 or leaves[0].ndim != 2 or leaves[0].shape[1] != 1:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(
            f"tasks are drawn over one input column, and the data's inputs have shape {shapes}: choose a line through them "
            "and draw kx.posterior.predict_tasks along it."
        )
    return np.asarray(rows[coregion.key])[counts], np.asarray(leaves[0])[counts, 0], np.asarray(c.data.y)[counts]
