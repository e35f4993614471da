"""The pictures of a report. They are drawn when the page is made, and need matplotlib."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernax.fitting import Fit
from kernax.kernels import AbstractStationary
from kernax.model import Conditioned
from kernax.parameters import owner_and_field, parameters
from kernax.reports._page import Picture
from kernax.rows import arrays_of
from kernax.selection._leave_one_out import offers_left_out

_MOST_COLUMNS, _MOST_FITS = 12, 9
_LEAST_ROWS = 4
_MOST_ROWS = 2000
"""Rows up to which intervals of lengthscales are computed: that takes two gradients for each parameter."""


def pictures_of_model(
    c: Any, columns: Sequence[Any] | None, target: Any, *, fit: Fit[Any] | None = None, objective: str = "objective"
) -> list[Picture]:
    """How a conditioned model predicts rows that are left out, what it says along each column, and how it was fitted.

    **Arguments:**

    - `c`: a `Conditioned`; of another thing only the path of the fit is drawn.
    - `columns`, `target`: names, or `kx.tables.Column`, whose units the pictures then have.
    - `fit`: the fit that the model comes from.
    - `objective`: what the fit minimised.

    **Returns:**

    The pictures.
    """
    from kernax import plot
    from kernax.plot._units import Inputs

    drawn = Drawn()
    if isinstance(c, Conditioned) and _can_be_drawn(c):
        names = [getattr(of, "name", of) for of in columns or [one.name for one in Inputs(c, None).quantities]]
        y = getattr(target, "name", target) or "y"
        if offers_left_out(c) and int(np.sum(np.asarray(c.data.mask))) >= _LEAST_ROWS:
            drawn.add(
                "Predicted and observed",
                "Each row predicted from all others, with its 95 % interval. Points on the line are predicted exactly.",
                lambda figure: plot.predicted_observed(c, target=target, ax=figure.add_subplot()),
            )
            drawn.add(
                "Residuals",
                "Observed minus predicted. If the model is right, about one row in twenty lies outside its bar.",
                lambda figure: plot.residuals(c, target=target, ax=figure.add_subplot()),
            )
            drawn.add(
                "Calibration",
                "The share of rows inside intervals of each probability: on the line if the intervals are calibrated.",
                lambda figure: plot.calibration(c, ax=figure.add_subplot()),
            )
            drawn.add(
                "Normal quantiles",
                "Residuals in standard deviations against the quantiles of a normal distribution.",
                lambda figure: plot.residuals(c, against="normal", ax=figure.add_subplot()),
            )
            if len(names) == 1:
                drawn.add(
                    "Autocorrelation of the residuals",
                    f"Along {names[0]}. Stems outside the grey band are structure that the model misses.",
                    lambda figure: plot.residuals(c, against="lag", ax=figure.add_subplot()),
                )
        if len(names) > 1 and len(arrays_of(c.data.x)) == 1 and _has_own_lengthscales(c):
            has_intervals = fit is not None and fit.data is not None and c.data.n <= _MOST_ROWS
            of, level = (fit, 0.95) if has_intervals else (c, None)
            drawn.add(
                "Sensitivity",
                "Columns with a short bar hardly change the function over the data.",
                lambda figure: plot.sensitivity(of, level=level, columns=columns, ax=figure.add_subplot()),
            )
        for i, name in enumerate(names[:_MOST_COLUMNS]):
            rest = "" if len(names) == 1 else ", with the other columns at their medians"
            drawn.add(
                f"{y} along {name}",
                f"Mean, 95 % intervals and the rows{rest}.",
                lambda figure, i=i: plot.partial_dependence(c, i, columns=columns, target=target, ax=figure.add_subplot()),
            )
        if len(names) == 2 and len(arrays_of(c.data.x)) == 1:
            drawn.add(
                f"{y} over {names[0]} and {names[1]}",
                "The mean as a map; dots are the rows, in the colour of their target.",
                lambda figure: plot.surface(c, columns=columns, target=target, ax=figure.add_subplot()),
            )
    if fit is not None and len(fit.history) > 1:
        drawn.add(
            "Optimisation",
            f"{int(fit.num_steps)} evaluations.",
            lambda figure: plot.trace(fit, objective=objective, ax=figure.add_subplot()),
        )
    return drawn.pictures


def pictures_of_many(
    spreads: Mapping[str, Any],
    many: Any = None,
    datasets: Callable[[Any], Any] | None = None,
    scores: Any = None,
    columns: Sequence[Any] | None = None,
    target: Any = None,
) -> list[Picture]:
    """How each of some numbers is spread over many fits, and the fits with the largest scores if there are datasets.

    `datasets` is a function of the numbers of some fits.
    """
    from kernax import plot
    from kernax.plot._fits import worst_first
    from kernax.plot._spread import spread

    drawn = Drawn()
    if datasets is not None:
        worst = worst_first(many, scores)[:_MOST_FITS]
        number, own = len(worst), datasets(worst)
        drawn.add(
            "The worst fits",
            "Those that failed, then those with the largest error of leave-one-out predictions.",
            lambda figure: plot.fits(
                many[worst],
                own,
                scores=scores[worst],
                number=number,
                columns=columns,
                target=target,
                ax=[figure.add_subplot(-(-number // 3), min(3, number), i + 1) for i in range(number)],
            ),
            size=(9.0, 2.4 * -(-number // 3)),
        )
    for title, values in list(spreads.items())[: _MOST_COLUMNS + 1]:
        known = np.asarray(values, np.float64)
        known = known[np.isfinite(known)]
        if len(known):
            quarters = ", ".join(f"{value:.4g}" for value in np.quantile(known, (0.25, 0.5, 0.75)))
            caption = f"Quartiles {quarters}; from {known.min():.4g} to {known.max():.4g}."
            drawn.add(title, caption, lambda figure, known=known, title=title: spread(known, title, ax=figure.add_subplot()))
    return drawn.pictures


class Drawn:
    """Pictures of one page, each with identifiers of its own."""

    def __init__(self) -> None:
        self.pictures: list[Picture] = []

    def add(self, title: str, caption: str, draw: Callable[[Any], Any], size: Any = (5.6, 3.7)) -> None:
        """One more picture."""
        from kernax.plot._svg import inline_svg

        name = f"p{len(self.pictures)}"
        self.pictures.append(Picture(title, inline_svg(draw, name, f"{title}. {caption}", size), caption))


def _can_be_drawn(c: Conditioned) -> bool:
    """Whether it holds numbers, targets in every row that counts, and rows of numbers."""
    is_table = all(leaf.ndim in (1, 2) for leaf in arrays_of(c.data.x))
    known = np.isfinite(np.asarray(c.data.y)[np.asarray(c.data.mask)]).all()
    return bool(c.ok) and c.data.gaps is None and is_table and bool(known)


def _has_own_lengthscales(c: Conditioned) -> bool:
    """Whether some kernel has a lengthscale for each column of a single array."""
    width = arrays_of(c.data.x)[0].shape[-1]
    for path, leaf in parameters(c.model):
        owner, field = owner_and_field(c.model, path)
        if isinstance(owner, AbstractStationary) and field == "lengthscale" and np.shape(leaf) == (width,):
            return True
    return False
