"""Pictures of targets that are classes or counts: what is predicted along each column."""

from typing import Any

import numpy as np

from kernax.reports._page import Picture
from kernax.reports._pictures import Drawn, pictures_of_model
from kernax.tables._likelihoods import latent_predictions

_MOST_COLUMNS = 12


def pictures_of_latent(fitted: Any, c: Any) -> list[Picture]:
    """The probability of each class, or the mean of counts, along each column; and how the model was fitted."""
    drawn, names = Drawn(), [column.name for column in fitted.columns]
    drawn.pictures += pictures_of_model(None, None, None, fit=fitted.fit)
    rest = ", with the other columns at their medians" if len(names) > 1 else ""
    what = "Probability of each class" if fitted.target.is_category else "Mean, with a 95 % interval of the mean"
    for i, name in enumerate(names[:_MOST_COLUMNS]):
        title = f"{fitted.target.name} along {name}"
        drawn.add(title, f"{what}{rest}.", lambda figure, i=i: _along(figure.add_subplot(), fitted, c, i))
    return drawn.pictures


def _along(ax: Any, fitted: Any, c: Any, i: int) -> None:
    from kernax.plot._canvas import BLUE
    from kernax.plot._posterior import places_across
    from kernax.plot._units import Inputs, plain

    inputs, target = Inputs(c, fitted.columns), fitted.target
    column = inputs.quantities[i]
    if column.levels is None:
        places = places_across(inputs.values[:, i], None, c.data.dtype, 300).astype(np.float64)
    else:
        places = np.arange(len(column.levels), dtype=np.float64)
    points = np.repeat(inputs.usual()[None], len(places), axis=0)
    points[:, i] = places
    answers = latent_predictions(c, target, inputs.of(points), 0.95, noisy=False)
    at, style = column.placed(ax.xaxis, places), "-" if column.levels is None else "o"
    if target.is_category:
        for level in target.levels:
            ax.plot(at, answers[f"p_{level}"], style, linewidth=1.5, label=plain(level))
        ax.set(ylim=(-0.02, 1.02), ylabel="probability")
    else:
        if column.levels is None:
            ax.fill_between(at, answers["lower"], answers["upper"], color=BLUE, alpha=0.3, linewidth=0, label="95 %")
        else:
            ax.vlines(at, answers["lower"], answers["upper"], color=BLUE, alpha=0.3, linewidth=12, label="95 %")
        ax.plot(at, answers["mean"], style, color=BLUE, linewidth=1.5, label="mean")
        ax.set_ylabel(plain(target.name))
    ax.set_xlabel(column.label)
    if column.levels is not None:
        ax.set_xlim(-0.5, len(places) - 0.5)
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, frameon=False, fontsize="small")
