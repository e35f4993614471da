"""Common parts of all pictures: axes, colours, and checks of what can be drawn."""

from statistics import NormalDist
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from kernax._arrays import is_concrete
from kernax.data import refuse_gaps
from kernax.fitting import Fit
from kernax.model import Conditioned, condition
from kernax.model._checks import check_conditioned
from kernax.solvers import result_name

# Okabe and Ito's colours, which colour-blind readers can distinguish; in print, markers and line styles differ.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#777777"
COLOURS = (BLUE, "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", "-.", ":")
MOST_DOTS = 4000
"""More rows than this are not drawn one by one: pictures show evenly spread ones of them, and text counts all."""


def canvas(ax: Any) -> Axes:
    """The Axes to draw into: those given, or those of a new figure."""
    if ax is None:
        # pyplot keeps a list of figures; who brings Axes of their own need not load it.
        import matplotlib.pyplot as plt

        return plt.subplots(layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise TypeError(f"ax must be one matplotlib Axes, got {type(ax).__name__}.")
    return ax


def ink() -> str:
    """The colour of text: black, or what a dark style sheet makes of it."""
    return mpl.rcParams["text.color"]


def drawn_rows(n: int) -> np.ndarray:
    """The rows of n that are drawn."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST_DOTS)).astype(int))


def some_of(drawn: int, n: int) -> str:
    """What tells a legend that not all rows are drawn; nothing if all are."""
    return f" ({drawn:,} of {n:,} rows)" if drawn < n else ""


def check_finished(of: Any) -> None:
    """Refuse what is still being traced."""
    if any(not is_concrete(leaf) for leaf in jax.tree.leaves(of)):
        raise TypeError("a picture needs concrete numbers: draw outside of jit, grad and vmap.")


def check_single(of: Any, one: Any) -> None:
    """Refuse a batch: `one` is a number that a batch has many of."""
    if np.ndim(one):
        raise ValueError(
            f"a picture shows one {type(of).__name__}, got a batch of shape {np.shape(one)}: "
            "take one of them, jax.tree.map(lambda leaf: leaf[i], batch)."
        )


def panels(ax: Any, number: int, what: str, shape: tuple[int, int], size: tuple[float, float], **options: Any) -> list[Axes]:
    """The axes of a picture with several panels: those given, or those of a new figure.

    `shape` is the rows and columns of panels, and `size` the inches of one panel.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        inches = (size[0] * shape[1], size[1] * shape[0])
        made = plt.subplots(*shape, figsize=inches, layout="constrained", squeeze=False, **options)[1].ravel()
        for spare in made[number:]:
            spare.remove()
        return list(made[:number])
    given = list(np.ravel(np.asarray(ax, dtype=object)))
    if not all(isinstance(one, Axes) for one in given):
        raise TypeError("ax must be a list of matplotlib Axes.")
    if len(given) != number:
        raise ValueError(f"{what}: give as many axes, or leave out ax=.")
    return given


def check_drawable(c: Any) -> Conditioned:
    """The `Conditioned` to draw, also that of a `Fit`. Raises if it is traced, a batch, or holds no numbers."""
    if isinstance(c, Fit):
        check_finished(c)
        check_single(c, c.value)
        if c.data is None:
            raise ValueError("this Fit does not hold its data: draw kx.condition(fit.model, data).")
        c = condition(c.model, c.data, c.solver, throw=False)
    check_conditioned(c)
    check_finished(c)
    check_single(c, c.jitter)
    refuse_gaps(c.data, "a picture")
    if not bool(c.ok):
        raise ValueError(f"conditioning failed with the status {result_name(c.result)}, so nothing can be drawn.")
    return c


def check_level(level: float) -> float:
    """Half the width of an interval with this probability, in standard deviations. Raises unless 0 < level < 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")
    return NormalDist().inv_cdf((1 + level) / 2)


def key_or_default(key: Any) -> Any:
    """The random key given, or the one that makes the same picture each time."""
    return jax.random.key(0) if key is None else key


def by_output(values: Any) -> np.ndarray:
    """Values with one column per output, whether there are several or one."""
    values = np.asarray(values)
    return values[:, None] if values.ndim == 1 else values


def output_name(j: int, outputs: int) -> str:
    """What tells a legend which output is meant; nothing if there is one."""
    return f", output {j}" if outputs > 1 else ""


def name_ticks(axis: Any, values: np.ndarray) -> None:
    """A logarithmic axis names powers of ten; where it holds few of them, plain numbers read better."""
    values = values[np.isfinite(values) & (values > 0)]
    span = values.max() / values.min() if len(values) else np.inf
    if span < 300:
        # 1, 2, 5, 10, …; within less than half a decade, round steps.
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if span > 5 else MaxNLocator(5))
        axis.set_major_formatter(StrMethodFormatter("{x:.6g}"))
        axis.set_minor_locator(NullLocator())


def legend_above(ax: Axes, rows: int) -> None:
    """A legend in two columns, above what is drawn; who draws more has the axis fitted again."""
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + (0.04 + 0.075 * rows) * (high - low), auto=True)
    ax.legend(loc="upper center", ncols=2, fontsize="small")


def say(ax: Axes, text: str) -> None:
    """A line of the legend that stands for no mark in the picture."""
    ax.plot([], [], color=VERMILION, marker="x", linestyle="none", label=text)


def dots(n: int, colour: str, marker: str = "o") -> dict[str, Any]:
    """How so many dots are drawn."""
    size, alpha = (3.5, 0.9) if n <= 300 else (2.5, 0.6) if n <= 1500 else (1.6, 0.4)
    return {"linestyle": "none", "marker": marker, "markersize": size, "alpha": alpha, "color": colour, "markeredgewidth": 0}
