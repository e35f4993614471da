"""A kernel of one column: its covariance and functions drawn from it."""

from typing import Any

import numpy as np

from kernax.fitting import Fit
from kernax.kernels import AbstractKernel
from kernax.model import Conditioned, Model
from kernax.plot._canvas import COLOURS, GREY, LINES, Axes, check_finished, key_or_default, panels
from kernax.plot._posterior import places_across
from kernax.posterior import sample


def kernel(of: Any, x: Any = None, *, at: Any = None, num_samples: int = 3, key: Any = None, ax: Any = None) -> list[Axes]:
    """Draw the covariance `k(x, x₀)` of a kernel of one column, and beside it functions drawn from the prior.

    The covariance is drawn for three places x₀, marked by vertical lines: the curves of a stationary kernel are the same
    curve, moved.

    **Arguments:**

    - `of`: a kernel, or a `Model`, a `Conditioned` or a `Fit`, whose kernel is drawn.
    - `x`: where to draw, `(m,)` or `(m, 1)`; by default the range of the data, or 200 places from −4 to 4 without data.
    - `at`: the places x₀; at a quarter, the middle and three quarters of the range if not given.
    - `num_samples`: how many functions to draw. With 0 only the covariance is drawn, into one panel.
    - `key`: random key of the functions; `jax.random.key(0)` if not given.
    - `ax`: a list of two matplotlib axes; a new figure if not given.

    **Returns:**

    The list of axes.
    """
    check_finished((of, x, at))
    data = of.data if isinstance(of, Fit | Conditioned) else None
    owner = of.model if isinstance(of, Fit | Conditioned) else of
    drawn = owner.kernel if isinstance(owner, Model) else owner
    if not isinstance(drawn, AbstractKernel):
        raise TypeError(f"kernel needs a kernel, a Model, a Conditioned or a Fit, got {type(of).__name__}.")
    known = np.array([-10 / 3, 10 / 3]) if data is None else _range(data)
    places = places_across(known, x, float if data is None else data.dtype, 200)
    centres = np.quantile(places, (0.25, 0.5, 0.75)) if at is None else np.atleast_1d(np.asarray(at, float))
    values = np.asarray(drawn(places[:, None], centres[:, None].astype(places.dtype)))
    draws: Any = []
    if num_samples:
        model = Model(drawn, noise=0.0)
        draws = np.asarray(sample(model, places[:, None], key=key_or_default(key), num_samples=num_samples))
    number = 2 if num_samples else 1
    axes = panels(ax, number, f"this picture has {number} panels", (1, number), (4.6, 3.4))
    digits = 2 - int(np.floor(np.log10(np.ptp(places) or 1.0)))
    for j, (centre, curve) in enumerate(zip(centres, values.T, strict=True)):
        colour = COLOURS[j % len(COLOURS)]
        axes[0].axvline(centre, color=GREY, linewidth=0.8, linestyle=":")
        name = f"$x_0$ = {round(centre, digits):g}"
        axes[0].plot(places, curve, color=colour, linestyle=LINES[j % len(LINES)], label=name)
    axes[0].set(xlabel="$x$", ylabel="$k(x, x_0)$", title="covariance")
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(low, high + 0.16 * (high - low), auto=True)
    axes[0].legend(loc="upper center", ncols=3, fontsize="small", columnspacing=0.9, handlelength=1.6)
    for j, line in enumerate(draws):
        axes[1].plot(places, line, color=COLOURS[j % len(COLOURS)], linewidth=1.2)
    if num_samples:
        axes[1].set(xlabel="$x$", ylabel="$f(x)$", title=f"{num_samples} functions drawn from the prior")
    return axes


def _range(data: Any) -> np.ndarray:
    """The inputs of a dataset, if they are one column; else the range that kernels are drawn over."""
    values = np.asarray(data.x) if hasattr(data.x, "ndim") else np.zeros((0, 2))
    if values.ndim != 2 or values.shape[1] != 1:
        raise ValueError(f"a kernel is drawn over one column, and the data's inputs have shape {values.shape}: give x.")
    return values[np.asarray(data.mask), 0]
