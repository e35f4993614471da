"""The model of a series: a fixed sum of a line, a trend, seasons, a short-term part and noise, with priors."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax.forecasting._series import rows_of, series_of, standardised
from kernax.kernels import Linear, Matern12, Matern52, Periodic, Scale
from kernax.model import Model
from kernax.parameters import freeze, parameters, setting, with_prior
from kernax.priors import LogNormal
from kernax.selection import negative_log_marginal_likelihood
from kernax.solvers import AbstractSolver, Cholesky, StateSpace

_MEASURED = {
    "slope": LogNormal(-9.0, 2.0),
    "trend_variance": LogNormal(-1.0, 2.0),
    "trend_lengthscale": LogNormal(3.5, 1.0),
    "season_variance": LogNormal(-1.0, 2.0),
    "season_lengthscale": LogNormal(0.0, 1.0),
    "season_memory": LogNormal(3.0, 1.5),
    "short_variance": LogNormal(-2.0, 2.0),
    "short_lengthscale": LogNormal(1.5, 1.5),
    "noise": LogNormal(-3.0, 2.0),
}
"""The default priors, as `benchmarks/forecast_priors.py` prints them."""
_LEAST_SD = 0.5
"""The smallest standard deviation of a fitted prior, for parameters about which the series say little."""
_LONG = 1000
"""From so many rows on, the state space is faster than a dense matrix."""


@dataclasses.dataclass(frozen=True)
class Seasonal:
    """A model of one series: a line, a smooth trend, one season for each period, a short-term part, and noise.

    The kernel is a fixed sum, so no structure is searched. Its parameters have log-normal priors that were fitted to many
    series, so even a short series gets sensible ones (the idea of G. Corani, A. Benavoli and M. Zaffalon, *Time series
    forecasting with Gaussian processes needs priors*, 2021). The model is meant for standardised values (mean 0, standard
    deviation 1) at times that count steps, with 0 in the middle: [`kernax.forecasting.forecast`][] converts a series.

    The kernel is `slope · Linear + Matern52 + Σ Periodic · Matern12 + Matern12`: `Matern12` lets each season change slowly.

    **Arguments:**

    - `periods`: the periods in steps, such as 12 for months, or `(24, 168)` for hours; a number or several. `()` for no
      season. Periods are not fitted.
    - `priors`: the priors by name, where they differ from the default: `slope` (variance of the line, per squared step),
      `trend_variance`, `trend_lengthscale` (steps), `season_variance`, `season_lengthscale` (that of `Periodic`),
      `season_memory` (after how many periods a season has changed), `short_variance`, `short_lengthscale` (steps), `noise`.
      Each is a `kx.priors.LogNormal`. [`kernax.forecasting.Seasonal.fit_priors`][] measures them on series of your own.
    """

    periods: Any = ()
    priors: Mapping[str, LogNormal] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        values = np.atleast_1d(np.asarray(self.periods, float))
        if values.ndim != 1 or not np.all(np.isfinite(values) & (values > 1)):
            raise ValueError(f"periods must be numbers of steps, each more than 1, got {self.periods!r}.")
        object.__setattr__(self, "periods", tuple(values.tolist()))
        if unknown := [name for name in self.priors if name not in _MEASURED]:
            raise ValueError(f"there is no prior {unknown[0]!r}: the names are {', '.join(_MEASURED)}.")
        for name, prior in self.priors.items():
            if not isinstance(prior, LogNormal):
                raise TypeError(f"the prior of {name} must be a kx.priors.LogNormal, got {prior!r}.")
        object.__setattr__(self, "priors", _MEASURED | dict(self.priors))

    def model(self) -> Model:
        """The model with its priors; each parameter starts at the median of its prior.

        **Returns:**

        A `kx.Model` for one column of times.
        """
        start = {name: math.exp(prior.mean) for name, prior in self.priors.items()}
        kernel = Linear(start["slope"]) + Scale(Matern52(start["trend_lengthscale"]), start["trend_variance"])
        for period in self.periods:
            season = Periodic(start["season_lengthscale"], period) * Matern12(start["season_memory"] * period)
            kernel = kernel + Scale(season, start["season_variance"])
        kernel = kernel + Scale(Matern12(start["short_lengthscale"]), start["short_variance"])
        model = Model(kernel, noise=start["noise"])
        for name, where in _places(len(self.periods)):
            prior = self.priors[name.partition(" ")[0]]
            if name.startswith("season_memory"):
                period = self.periods[int(name.partition(" ")[2])]
                prior = LogNormal(prior.mean + math.log(period), prior.sd)
            model = with_prior(model, where, prior)
        return model

    def trainable(self) -> Model | None:
        """Which parameters are fitted: all but the periods.

        **Returns:**

        A boolean tree for `kx.fit(..., trainable=...)`, or `None` without periods.
        """
        if not self.periods:
            return None
        seasons = range(2, 2 + len(self.periods))
        return freeze(self.model(), lambda m: [m.kernel.kernels[i].kernel.kernels[0].period for i in seasons])

    def solver(self, rows: int) -> AbstractSolver:
        """The solver that suits series of so many rows.

        **Arguments:**

        - `rows`: how many rows the longest series has.

        **Returns:**

        `kx.StateSpace()` for long series, else `kx.Cholesky()`.
        """
        return StateSpace() if rows >= _LONG else Cholesky()

    def fit_priors(self, series: Any, *, max_steps: int = 100, progress: bool = False) -> "Seasonal":
        """Measure the priors on many series (empirical Bayes).

        Fits the model to each series with the current priors made wide. The mean and the standard deviation of the logarithm
        of each fitted parameter make the new prior.

        **Arguments:**

        - `series`: as in [`kernax.forecasting.forecast_many`][]; a few dozen or more.
        - `max_steps`: as in `fit_many`.
        - `progress`: show a progress bar.

        **Returns:**

        A `Seasonal` with these priors.
        """
        from kernax.forecasting._forecast import fit_series

        every = list(series_of(series).values())
        if len(every) < 2:
            raise ValueError("fit_priors needs several series: one says nothing of how series differ.")
        wide = Seasonal(self.periods, {name: LogNormal(prior.mean, 2.0) for name, prior in self.priors.items()})
        fits = fit_series(wide, [rows_of(standardised(values)[0]) for values in every], max_steps, progress)
        usable = np.isfinite(np.asarray(fits.value))
        if usable.sum() < 2:
            raise ValueError("the model could be fitted to fewer than two of the series: see kx.forecasting.forecast_many.")
        logs: dict[str, list[np.ndarray]] = {}
        for name, where in _places(len(self.periods)):
            kind, _, number = name.partition(" ")
            values = np.log(np.asarray(where(fits.model), float)[usable])
            if kind == "season_memory":
                values = values - math.log(self.periods[int(number)])
            logs.setdefault(kind, []).append(values)
        found = {name: _log_normal(np.concatenate(values)) for name, values in logs.items()}
        return Seasonal(self.periods, {**self.priors, **found})


def _log_normal(logs: np.ndarray) -> LogNormal:
    return LogNormal(float(np.mean(logs)), max(float(np.std(logs)), _LEAST_SD))


def _places(seasons: int) -> list[tuple[str, Any]]:
    """The name of each fitted parameter, with the number of its season, and how to find it in a model."""
    places: list[tuple[str, Any]] = [
        ("slope", lambda m: m.kernel.kernels[0].variance),
        ("trend_variance", lambda m: m.kernel.kernels[1].variance),
        ("trend_lengthscale", lambda m: m.kernel.kernels[1].kernel.lengthscale),
        ("short_variance", lambda m: m.kernel.kernels[-1].variance),
        ("short_lengthscale", lambda m: m.kernel.kernels[-1].kernel.lengthscale),
        ("noise", lambda m: m.noise),
    ]
    for i in range(seasons):
        places += [
            (f"season_variance {i}", lambda m, i=i: m.kernel.kernels[2 + i].variance),
            (f"season_lengthscale {i}", lambda m, i=i: m.kernel.kernels[2 + i].kernel.kernels[0].lengthscale),
            (f"season_memory {i}", lambda m, i=i: m.kernel.kernels[2 + i].kernel.kernels[1].lengthscale),
        ]
    return places


def negative_log_posterior(c: Any) -> Float[Array, ""]:
    """What is minimised, without the priors, which every fit adds: `-log p(y)` less the logarithms of the parameters.

    With them the priors are densities of the logarithms. The greatest density of a log-normal parameter itself is far below
    its median if the prior is wide.
    """
    own = [value for path, value in parameters(c.model) if setting(c.model, path).prior is not None]
    return negative_log_marginal_likelihood(c) - sum((jnp.sum(jnp.log(value)) for value in own), 0.0)
